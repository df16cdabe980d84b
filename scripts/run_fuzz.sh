#!/usr/bin/env bash
# Runs each fuzz program on its corpus, tests/fuzz/corpus/NAME/* for fuzz_NAME: every file unchanged
# and in a fixed number of damaged forms (see tests/fuzz/regression_driver.c).
# usage: run_fuzz.sh PROGRAM..
# Each program counts as one test; JOBS, TALLY and the last line: test_pool.sh.
set -u

src=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=scripts/test_pool.sh
. "$src/scripts/test_pool.sh"

run_one()
{
    local program=$1 log=$WORK/log name
    name=$(basename "$program")
    if timeout --foreground -k 10 "${TEST_TIMEOUT:-600}" "$program" -m "${FUZZ_MUTATIONS:-200}" \
        "$src/tests/fuzz/corpus/${name#fuzz_}" >"$log" 2>&1; then
        echo "ok $name: $(tail -n1 "$log")"
        pool_result "$name" 1 0 0
    else
        echo "not ok $name"
        tail -n 40 "$log" | sed 's/^/    /'
        pool_result "$name" 0 1 0
    fi
}

pool run_one "$@"
pool_end
