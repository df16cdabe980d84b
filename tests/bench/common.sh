# shellcheck shell=bash
# Helpers of the benchmark scripts; sourced by them.

# skip REASON: the benchmark cannot run here; exits with 0.
skip()
{
    echo "skipped: $*"
    exit 0
}

# need_python MODULE..: skips unless PYTHON (default python3) has these modules.
need_python()
{
    PYTHON=${PYTHON:-python3}
    local module
    for module; do
        "$PYTHON" -c "import $module" 2>/dev/null || skip "$PYTHON has no $module (PYTHON=...)"
    done
}

# need_file PATH HOW: skips if the file is missing, and says how to get it
need_file()
{
    [ -e "$1" ] || skip "$1 is not there ($2)"
}

# against_pytorch SCRIPT ARGUMENT..: runs a Python script of this folder on the demo model as a plain directory.
# Environment: BIN (tools, default build/bin), PYTHON, VPTQ_DEMO_GGUF (default build/demo/model.gguf).
against_pytorch()
{
    local script=$1 model=${VPTQ_DEMO_GGUF:-$src/build/demo/model.gguf}
    shift
    export BIN=${BIN:-$src/build/bin}
    need_python torch transformers
    need_file "$model" "scripts/fetch_demo.sh --model-only build/demo"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    "$BIN/vptq-pack" --unpack "$model" -o "$work/plain" --dtype f16 --quiet
    "$PYTHON" "$src/tests/bench/$script" "$work/plain" "$@"
}
