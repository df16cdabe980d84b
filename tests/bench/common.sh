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
