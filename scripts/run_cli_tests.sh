#!/usr/bin/env bash
# Runs the command-line tests: tests/cli/TOOL/NAME.sh, each with bash -eu in a scratch directory
# of its own, with the helpers of tests/cli/lib.sh and
#     BIN   folder of the tools      DATA  data directory      SRC  root of the sources
# A test passes if it exits with the status in NAME.exit (default 0) and its output equals
# NAME.stdout.exact / NAME.stderr.exact, or matches NAME.stdout.glob / .stderr.glob: one shell
# pattern per line, where a line "..." stands for any number of lines.  Status 77 means
# skipped (see skip in lib.sh).
#
# usage: run_cli_tests.sh [--bin DIR] [--update] [PATTERN..]
#   --bin DIR   tools to test (default: build/bin)
#   --update    writes the actual results to the existing .exit and .exact files
#   PATTERN     runs only tests whose TOOL/NAME matches one of these shell patterns (default: all but ranks/*)
#
# FAULTS in the environment is the library built from tests/faults (`make check-cli` sets it).
#
# JOBS, TALLY and the last line: test_pool.sh.
set -u

SRC=$(cd "$(dirname "$0")/.." && pwd)
bin=$SRC/build/bin
update=0
while [ $# -gt 0 ]; do
    case $1 in
    --bin) bin=$(realpath -m "$2"); shift ;;
    --update) update=1 ;;
    --*) echo "run_cli_tests.sh: unknown option '$1'" >&2; exit 2 ;;
    *) break ;;
    esac
    shift
done
data=${VPTQ_DATA:-$SRC/../shared/data}
[ ! -d "$data" ] || data=$(cd "$data" && pwd)
# shellcheck source=scripts/test_pool.sh
. "$SRC/scripts/test_pool.sh"

# matches TEXT PATTERNS: compares line by line; "..." matches any number of lines.
matches()
{
    local -a text pattern
    mapfile -t text <"$1"
    mapfile -t pattern <"$2"
    match_from 0 0
}

match_from()
{
    local t=$1 p=$2 i
    while [ "$p" -lt "${#pattern[@]}" ]; do
        if [ "${pattern[p]}" = "..." ]; then
            for ((i = t; i <= ${#text[@]}; i++)); do
                match_from "$i" "$((p + 1))" && return 0
            done
            return 1
        fi
        # The right side is meant to be a pattern.
        # shellcheck disable=SC2053
        [ "$t" -lt "${#text[@]}" ] && [[ ${text[t]} == ${pattern[p]} ]] || return 1
        t=$((t + 1))
        p=$((p + 1))
    done
    [ "$t" -eq "${#text[@]}" ]
}

# check_stream BASE STREAM: compares $WORK/STREAM with the expectations of the test.
check_stream()
{
    local base=$1 stream=$2
    if [ -f "$base.$stream.exact" ]; then
        if [ "$update" -eq 1 ]; then
            cp "$WORK/$stream" "$base.$stream.exact"
        elif ! diff -u "$base.$stream.exact" "$WORK/$stream" >"$WORK/diff"; then
            sed 's/^/    /' "$WORK/diff"
            return 1
        fi
    fi
    if [ -f "$base.$stream.glob" ] && ! matches "$WORK/$stream" "$base.$stream.glob"; then
        echo "    $stream does not match $(basename "$base").$stream.glob:"
        sed 's/^/    | /' "$WORK/$stream"
        return 1
    fi
}

run_one()
{
    local script=$1 base=${1%.sh} name status want=0 good=1 report
    name=${base#"$SRC/tests/cli/"}
    mkdir "$WORK/dir"
    [ ! -f "$base.exit" ] || want=$(cat "$base.exit")
    (
        cd "$WORK/dir" || exit 1
        unset VPTQ_SIMD OMP_NUM_THREADS TALLY TIMES
        export -n WORK
        export BIN=$bin DATA=$data SRC LC_ALL=C TERM=dumb TMPDIR=$WORK/dir
        # The inner shell expands the single-quoted text.
        # shellcheck disable=SC2016
        exec timeout --foreground -k 10 "${TEST_TIMEOUT:-600}" bash -eu -c '. "$SRC/tests/cli/lib.sh"; . "$1"' \
            "$name" "$script"
    ) >"$WORK/stdout" 2>"$WORK/stderr" </dev/null
    status=$?
    if [ "$status" -eq 77 ]; then
        echo "skip $name: $(grep -a '^SKIP: ' "$WORK/stderr" | tail -n1 | cut -c7-)"
        pool_result "$name" 0 0 1
        return
    fi
    if [ "$status" -ne "$want" ]; then
        if [ "$update" -eq 1 ] && [ -f "$base.exit" ]; then
            echo "$status" >"$base.exit"
        else
            good=0
        fi
    fi
    report=$(check_stream "$base" stdout && check_stream "$base" stderr) || good=0
    if [ "$good" -eq 1 ]; then
        echo "ok $name"
        pool_result "$name" 1 0 0
        return
    fi
    pool_result "$name" 0 1 0
    echo "not ok $name"
    [ "$status" -eq "$want" ] || echo "    exit status $status, expected $want"
    [ -z "$report" ] || echo "$report"
    tail -n 20 "$WORK/stderr" | sed 's/^/    stderr: /'
}

is_chosen()
{
    local name=$1 pattern
    shift
    [ $# -gt 0 ] || return 0
    for pattern in "$@"; do
        # shellcheck disable=SC2053
        [[ $name == $pattern ]] && return 0
    done
    return 1
}

chosen=()
for script in "$SRC"/tests/cli/*/*.sh; do
    [ -f "$script" ] || continue
    name=${script#"$SRC/tests/cli/"}
    # they need several processes: make check-ranks
    [[ $# -eq 0 && $name == ranks/* ]] || ! is_chosen "${name%.sh}" "$@" || chosen+=("$script")
done
pool run_one "${chosen[@]}"
pool_end
