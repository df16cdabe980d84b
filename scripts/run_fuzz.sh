#!/usr/bin/env bash
# Runs each fuzz program on its corpus, tests/fuzz/corpus/NAME/* for fuzz_NAME: every file unchanged
# and in a fixed number of damaged forms (see tests/fuzz/regression_driver.c).
# usage: run_fuzz.sh PROGRAM..
# Each program counts as one test; last line and TALLY as in run_tests.sh.
set -u

src=$(cd "$(dirname "$0")/.." && pwd)
passed=0
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for program in "$@"; do
    name=$(basename "$program")
    if timeout "${TEST_TIMEOUT:-600}" "$program" -m "${FUZZ_MUTATIONS:-200}" \
        "$src/tests/fuzz/corpus/${name#fuzz_}" >"$log" 2>&1; then
        echo "ok $name: $(tail -n1 "$log")"
        passed=$((passed + 1))
    else
        echo "not ok $name"
        tail -n 40 "$log" | sed 's/^/    /'
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed"
[ -z "${TALLY:-}" ] || echo "$passed $failed 0" >>"$TALLY"
[ "$failed" -eq 0 ]
