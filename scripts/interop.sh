#!/usr/bin/env bash
# make interop: what the tools write and repair, held against the vptq package and transformers.
# usage: interop.sh [PATTERN]      checks whose name contains PATTERN
#
# The packages go into a virtual environment in build/interop/venv, which is kept (6 GB; 1 GB with a
# TORCH_INDEX that has PyTorch without GPU libraries).  Where they cannot be had, one line says so
# and the exit status is 0.  The last line is "N passed, N failed, N skipped"; exit 1 when
# something failed.
# Environment: BIN (tools), LOGITS (tests/interop/logits), INTEROP_DIR (default build/interop),
# PYTHON (to make the environment with), VPTQ_DATA, VPTQ_DEMO_GGUF.
set -euo pipefail

src=$(cd "$(dirname "$0")/.." && pwd)
dir=${INTEROP_DIR:-$src/build/interop}
export BIN=${BIN:-$src/build/bin}
export LOGITS=${LOGITS:-$src/build/release/tests/interop/logits}

# transformers 4.57 is the last one that loads the layout.  sentence-transformers is imported by
# vptq; what else that asks for is for its demos and is left out.
torch=torch==2.15.0
vptq=vptq==0.0.5.post1
packages=(transformers==4.57.6 accelerate==1.15.0 sentence-transformers==5.1.2 safetensors numpy)

skip()
{
    echo "skip interop: $*"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}

install()
{
    "$dir/venv.new/bin/python" -m pip install --quiet --disable-pip-version-check "$@" \
        >>"$dir/pip.log" 2>&1
}

make_environment()
{
    rm -rf "$dir/venv.new"
    mkdir -p "$dir"
    : >"$dir/pip.log"
    "${PYTHON:-python3}" -m venv "$dir/venv.new" >>"$dir/pip.log" 2>&1 || return
    { [ -n "${TORCH_INDEX-}" ] && install --index-url "$TORCH_INDEX" "$torch"; } ||
        install "$torch" || return
    install "${packages[@]}" || return
    install --no-deps --only-binary :all: "$vptq" || return
    mv "$dir/venv.new" "$dir/venv"
}

if [ ! -x "$dir/venv/bin/python" ]; then
    echo "interop: installing $torch, ${packages[*]}, $vptq in $dir/venv" >&2
    make_environment || { rm -rf "$dir/venv.new"; skip "packages cannot be installed: $(tail -n 1 "$dir/pip.log")"; }
fi

work=$(mktemp -d "$dir/run.XXXXXX")
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1
"$dir/venv/bin/python" "$src/tests/interop/run.py" "$work" "$@"
