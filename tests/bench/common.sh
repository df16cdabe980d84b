# shellcheck shell=bash
# What the scripts beside it share; sourced by them.

# skip REASON: the benchmark cannot run here, which is no failure.
skip()
{
    echo "skipped: $*"
    exit 0
}

# need_python MODULE..: the Python to run (PYTHON, default python3) has these.
need_python()
{
    PYTHON=${PYTHON:-python3}
    local module
    for module; do
        "$PYTHON" -c "import $module" 2>/dev/null || skip "$PYTHON has no $module (PYTHON=...)"
    done
}

# need_file PATH HOW: where it comes from
need_file()
{
    [ -e "$1" ] || skip "$1 is not there ($2)"
}
