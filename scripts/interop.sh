#!/usr/bin/env bash
# make interop: loads files that the tools write and repair with the vptq package and transformers.
# usage: interop.sh [PATTERN]      checks whose name contains PATTERN
#
# Installs the packages once into a virtual environment in build/interop/venv (6 GB; 1 GB with a
# TORCH_INDEX that has PyTorch without GPU libraries).  If they cannot be installed, prints one line
# and exits with 0.  The last line is "N passed, N failed, N skipped"; exits with 1 if a check failed.
# Environment: BIN (tools), LOGITS (tests/interop/logits), INTEROP_DIR (default build/interop),
# PYTHON (creates the environment), VPTQ_DATA, VPTQ_DEMO_GGUF.
set -euo pipefail

src=$(cd "$(dirname "$0")/.." && pwd)
dir=${INTEROP_DIR:-$src/build/interop}
export BIN=${BIN:-$src/build/bin}
export LOGITS=${LOGITS:-$src/build/release/tests/interop/logits}

# transformers 4.57 is the last version that loads the layout.  vptq imports sentence-transformers;
# its other requirements serve its demos and are left out.
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
