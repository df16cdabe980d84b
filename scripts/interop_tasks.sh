#!/usr/bin/env bash
# make interop-tasks: compares `vptq-eval tasks` with lm-evaluation-harness choice by choice, both in
# float32 on the CPU: the items of tests/golden/tasks on stories260K and, if VPTQ_DEMO_F16 names the
# unpacked demo model, the first LIMIT items (200) of the files in DATA/qa.
#
# Installs the packages once into a virtual environment in build/interop/tasks (1 GB with a TORCH_INDEX
# that has PyTorch without GPU libraries).  If they cannot be installed, prints one line and exits with
# 0.  The last line is "N passed, N failed, N skipped"; exits with 1 if a check failed.
# Environment: BIN (tools), INTEROP_DIR (default build/interop), PYTHON (creates the environment),
# INTEROP_PYTHON (an interpreter that has the packages), VPTQ_DATA, VPTQ_DEMO_F16, LIMIT.
set -euo pipefail

src=$(cd "$(dirname "$0")/.." && pwd)
dir=${INTEROP_DIR:-$src/build/interop}/tasks
BIN=${BIN:-$src/build/bin}
data=${VPTQ_DATA:-$src/../shared/data}
packages=(lm_eval==0.4.13 transformers==4.57.6 datasets accelerate)
passed=0 failed=0 skipped=0

skip_all()
{
    echo "skip interop-tasks: $*"
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
        install --index-url "$TORCH_INDEX" torch==2.15.0 || return
    else
        install torch==2.15.0 || return
    fi
    install "${packages[@]}"
}
python=${INTEROP_PYTHON:-$dir/venv/bin/python}
mkdir -p "$dir"
if ! "$python" -c 'import lm_eval' 2>/dev/null; then
    echo "installing torch, ${packages[*]}"
    make_environment >"$dir/pip.log" 2>&1 ||
        skip_all "packages cannot be installed (see $dir/pip.log)"
    python=$dir/venv/bin/python
fi
work=$(mktemp -d "$dir/run.XXXXXX")
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1

# check WHAT MODEL LIMIT NAME=FILE..: runs both on the same items; LIMIT 0 = all.
check()
{
    local what=$1 model=$2 limit=$3 task ours=()
    shift 3
    for task; do
        ours+=(--task "$task")
    done
    if "$BIN/vptq-eval" tasks -q -m "$model" --limit "$limit" "${ours[@]}" -f \
        --samples "$work/samples.jsonl" >"$work/ours.txt" &&
        "$python" "$src/tests/interop/lm_eval_run.py" "$model" "$work/harness.jsonl" \
            --limit "$limit" "$@" >"$dir/harness.log" 2>&1 &&
        "$python" "$src/tests/interop/compare_tasks.py" "$work/samples.jsonl" \
            "$work/harness.jsonl"; then
        echo "ok $what"
        passed=$((passed + 1))
    else
        echo "not ok $what (see $dir/harness.log)"
        failed=$((failed + 1))
    fi
}

golden=()
for file in "$src"/tests/golden/tasks/{[!e]*.jsonl,endings.txt}; do
    name=$(basename "$file")
    golden+=("${name%.*}=$file")
done
model=$data/models/stories260K-hf
if [ -e "$model" ]; then
    check "items of every form on stories260K" "$model" 0 "${golden[@]}"
else
    echo "skip stories260K: '$model' does not exist (VPTQ_DATA)"
    skipped=$((skipped + 1))
fi
if [ -n "${VPTQ_DEMO_F16-}" ] && [ -e "$data/qa" ]; then
    check "four sets on the demo model" "$VPTQ_DEMO_F16" "${LIMIT:-200}" \
        "arc_easy=$data/qa/arc_easy.jsonl" "piqa=$data/qa/piqa.jsonl" \
        "winogrande=$data/qa/winogrande.jsonl" "hellaswag=$data/qa/hellaswag_val_1500.txt"
else
    echo "skip the demo model: VPTQ_DEMO_F16 is not set, or '$data/qa' does not exist"
    skipped=$((skipped + 1))
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
