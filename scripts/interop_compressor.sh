#!/usr/bin/env bash
# make interop-compressor: compares AWQ, SmoothQuant with 8-bit activations and SparseGPT with llm-compressor on the same
# calibration ids: the perplexity, by vptq-eval, of the models that both write, of stories260K and, if VPTQ_DEMO_F16
# names the unpacked demo model, of that (4 windows of 1024 tokens, more than a matrix has columns; half an hour).
#
# usage: interop_compressor.sh [METHOD..]     of compressor_run.py: awq, awq-row, smooth, sparse, sparse-2:4
#
# Installs the packages once into a virtual environment in build/interop/compressor (1 GB with a TORCH_INDEX that has
# PyTorch without GPU libraries).  If they cannot be installed, prints one line and exits with 0.  The last line is
# "N passed, N failed, N skipped"; exits with 1 if a check failed: SmoothQuant and SparseGPT must be within 1 %, and AWQ,
# whose search differs (docs/methods.md), may be better by any amount.
# Environment: BIN (tools), INTEROP_DIR (default build/interop), PYTHON (creates the environment),
# INTEROP_PYTHON (an interpreter that has the packages), VPTQ_DATA, VPTQ_DEMO_F16.
set -euo pipefail
export LC_ALL=C # decimal points

src=$(cd "$(dirname "$0")/.." && pwd)
dir=${INTEROP_DIR:-$src/build/interop}/compressor
BIN=${BIN:-$src/build/bin}
data=${VPTQ_DATA:-$src/../shared/data}
packages=(llmcompressor==0.14.0.1 transformers==5.17.0)
passed=0 failed=0 skipped=0

skip_all()
{
    echo "skip interop-compressor: $*"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}

install()
{
    "$dir/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

make_environment()
{
    rm -rf "$dir/venv"
    "${PYTHON:-python3}" -m venv "$dir/venv" || return
    if [ -n "${TORCH_INDEX-}" ]; then
        install --index-url "$TORCH_INDEX" torch==2.14.0 || return
    fi
    install "${packages[@]}"
}

python=${INTEROP_PYTHON:-$dir/venv/bin/python}
mkdir -p "$dir"
if ! "$python" -c 'import llmcompressor' 2>/dev/null; then
    echo "installing ${packages[*]}"
    make_environment >"$dir/pip.log" 2>&1 ||
        skip_all "packages cannot be installed (see $dir/pip.log)"
    python=$dir/venv/bin/python
fi
work=$(mktemp -d "$dir/run.XXXXXX")
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1

# settings METHOD: the same of vptq-quantize.
settings()
{
    case $1 in
        awq) echo --method awq --weight-bits 4 --group-size 64 ;;
        awq-row) echo --method awq --weight-bits 4 --group-size 0 ;;
        smooth) echo --method smooth+rtn --smooth-alpha 0.8 --weight-bits 8 --group-size 0 --symmetric --activation-bits 8 ;;
        sparse) echo --method sparse --sparsity 0.5 ;;
        sparse-2:4) echo --method sparse --sparsity-pattern 2:4 ;;
        *) return 1 ;;
    esac
}

# ppl MODEL IDS CONTEXT
ppl()
{
    "$BIN/vptq-eval" ppl -qq -m "$1" --tokens "$2" --context "$3" --format json |
        sed 's/.*"ppl": \([0-9.e+]*\).*/\1/'
}

# compare WHAT METHOD OURS THEIRS
compare()
{
    local verdict="not ok"
    if awk -v method="$2" -v ours="$3" -v theirs="$4" \
        'BEGIN { d = ours / theirs - 1; exit !(d <= 0.01 && (method ~ /awq/ || d >= -0.01)) }'; then
        verdict=ok passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
    echo "$verdict $1 $2: perplexity $3, llm-compressor $4"
}

# check WHAT MODEL CALIBRATION LENGTH TEXT CONTEXT METHOD..
check()
{
    local what=$1 model=$2 calibration=$3 length=$4 text=$5 context=$6 method options
    shift 6
    "$BIN/vptq-hessian" -qq -m "$model" --tokens "$calibration" -n 1000 -l "$length" --weights plain -o "$work/$what.h"
    mkdir "$work/$what"
    if ! "$python" "$src/tests/interop/compressor_run.py" "$model" "$calibration" "$length" "$work/$what" "$@" \
        >"$dir/compressor.log" 2>&1; then
        echo "not ok $what: llm-compressor failed (see $dir/compressor.log)"
        failed=$((failed + 1))
        return
    fi
    for method; do
        read -ra options <<<"$(settings "$method")"
        "$BIN/vptq-quantize" -qq -m "$model" -H "$work/$what.h" -o "$work/$what.$method" "${options[@]}" >"$dir/ours.log"
        compare "$what" "$method" "$(ppl "$work/$what.$method" "$text" "$context")" \
            "$(ppl "$work/$what/$method" "$text" "$context")"
        rm -rf "${work:?}/$what.$method" "${work:?}/$what/$method"
    done
}

# cut_ids FILE COUNT WINDOW TAKE: the first TAKE ids of each of the first COUNT windows.
cut_ids()
{
    local i
    for ((i = 0; i < $2; i++)); do
        dd if="$1" bs=4 skip=$((i * $3)) count="$4" status=none
    done
}

# story_ids MODEL TEXT LEARN TEST: 64 and 32 windows of 256 ids.
story_ids()
{
    "$python" - "$@" 2>"$dir/ids.log" <<'PYTHON'
import sys
import numpy as np
from transformers import AutoTokenizer
model, text, learn, test = sys.argv[1:]
ids = AutoTokenizer.from_pretrained(model)(open(text, encoding="utf8").read()[-200000:])["input_ids"]
np.array(ids[: 64 * 256], "<i4").tofile(learn)
np.array(ids[64 * 256 : 96 * 256], "<i4").tofile(test)
PYTHON
}

model=$data/models/stories260K-hf
golden=$data/golden/smollm2
if [ -e "$model" ]; then
    story_ids "$model" "$data/text/tinystories/tiny.utf8" "$work/learn.i32" "$work/test.i32"
    methods=("$@")
    [ $# -gt 0 ] || methods=(smooth sparse sparse-2:4 awq-row)
    check stories260K "$model" "$work/learn.i32" 256 "$work/test.i32" 256 "${methods[@]}"
else
    echo "skip stories260K: '$model' does not exist (VPTQ_DATA)"
    skipped=$((skipped + 1))
fi
if [ -n "${VPTQ_DEMO_F16-}" ] && [ -e "$golden" ]; then
    cut_ids "$golden/calib_64x2048.i32" 4 2048 1024 >"$work/learn.i32"
    cut_ids "$golden/wikitext2_w16.i32" 4 1024 1024 >"$work/test.i32"
    methods=("$@")
    [ $# -gt 0 ] || methods=(smooth sparse sparse-2:4 awq)
    check demo "$VPTQ_DEMO_F16" "$work/learn.i32" 1024 "$work/test.i32" 1024 "${methods[@]}"
else
    echo "skip the demo model: VPTQ_DEMO_F16 is not set, or '$golden' does not exist"
    skipped=$((skipped + 1))
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
