#!/usr/bin/env bash
# Runs cmocka test programs and counts their tests.
# usage: run_tests.sh PROGRAM..
#
# Prints one line per program, followed by the whole output if it failed.  Skipped tests are named.
# A program that is missing, dies or runs too long (TEST_TIMEOUT seconds) counts as one more failed
# test.  UNDER is a command that runs the programs.  JOBS, TALLY and the last line: test_pool.sh.  Exits with 1 if a test failed.
set -u

# shellcheck source=scripts/test_pool.sh
. "$(dirname "$0")/test_pool.sh"

run_one()
{
    local program=$1 log=$WORK/log name status plan ok not_ok skip
    name=$(basename "$program")
    if [ ! -x "$program" ]; then
        echo "not ok $name: not built"
        pool_result "$name" 0 1 0
        return
    fi
    # shellcheck disable=SC2086 # UNDER may have arguments
    CMOCKA_MESSAGE_OUTPUT=TAP timeout --foreground -k 10 "${TEST_TIMEOUT:-600}" ${UNDER:-} "$program" >"$log" 2>&1
    status=$?
    plan=$(grep -a -m1 -E '^1\.\.[0-9]+' "$log" | sed 's/^1\.\.//')
    ok=$(grep -a -c -E '^ok [0-9]+' "$log")
    skip=$(grep -a -c -E '^not ok [0-9]+ # SKIP' "$log")
    not_ok=$(($(grep -a -c -E '^not ok [0-9]+' "$log") - skip))
    # A program that stopped early has run fewer tests than planned.
    if [ "$((ok + not_ok + skip))" -ne "${plan:--1}" ] ||
        { [ "$status" -ne 0 ] && [ "$not_ok" -eq 0 ]; }; then
        echo "# $name: ended with status $status after $((ok + not_ok + skip)) of ${plan:-?} tests" >>"$log"
        not_ok=$((not_ok + 1))
    fi
    pool_result "$name" "$ok" "$not_ok" "$skip"
    if [ "$not_ok" -ne 0 ]; then
        echo "not ok $name: $not_ok of ${plan:-?} failed"
        sed 's/^/    /' "$log"
    else
        echo "ok $name: $ok"
        grep -a -B1 -E '# SKIP' "$log" | grep -a -v -E '^(--|ok )' |
            sed -E 's/^not ok [0-9]+ # SKIP/    skipped:/; /skipped:/!s/^/    /'
    fi
}

pool run_one "$@"
pool_end
