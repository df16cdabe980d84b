# The runners of make check run tests side by side and count every one, also those that die.
# The programs expand what is quoted.
# shellcheck disable=SC2016
unset UNDER # for programs of this machine
program() # program NAME: an executable from stdin
{
    { echo '#!/bin/bash'; cat; } >"$1"
    chmod +x "$1"
}
program good <<<'echo 1..2; echo "ok 1"; echo "not ok 2 # SKIP no data"'
program bad <<<'echo 1..1; echo "not ok 1"; exit 1'
program slow <<<'echo 1..1; sleep 0.3; echo "ok 1"'
# SIGINT must not be ignored, or tests of interrupted tools wait for ever.
program interrupted <<<'echo 1..1; bash -c "kill -INT \$\$; sleep 1"; [ $? -eq 130 ] && echo "ok 1"'
program dies <<<'echo 1..3; echo "ok 1"; kill -KILL $$'
# Its parent is timeout, whose parent is the process that runs the test.
program kills_runner <<<'kill -KILL "$(awk "{ print \$4 }" /proc/$PPID/stat)"; sleep 5'
program leaves <<<'sleep 600 & echo $! >"$LEFT"; echo 1..1; echo "ok 1"'
export LEFT=$PWD/left
program busy <<<'for ((i = 0; i < 100000; i++)); do :; done; echo 1..1; echo "ok 1"'

for jobs in 0 two; do
    expect_exit 2 env JOBS=$jobs "$SRC/scripts/run_tests.sh" ./good 2>err.txt
    expect_line err.txt "JOBS is '$jobs', expected a number of tests at a time"
done
for jobs in 1 3; do
    rm -f tally
    expect_exit 1 env JOBS=$jobs TALLY="$PWD/tally" "$SRC/scripts/run_tests.sh" \
        ./slow ./good ./bad ./interrupted ./dies ./kills_runner ./missing ./leaves >out.txt
    [ "$(tail -n 1 out.txt)" = "5 passed, 4 failed, 1 skipped" ] || fail "$(cat out.txt)"
    [ "$(cat tally)" = "1 0 0 slow
1 0 1 good
0 1 0 bad
1 0 0 interrupted
1 1 0 dies
0 1 0 kills_runner
0 1 0 missing
1 0 0 leaves" ] || fail "$(cat tally)"
    for _ in $(seq 50); do
        kill -0 "$(cat left)" 2>/dev/null || break
        sleep 0.1
    done
    ! kill -0 "$(cat left)" 2>/dev/null || fail "a process of a finished test goes on"
done

# Seconds of every test, and of its processes.
TIMES=$PWD/times "$SRC/scripts/run_tests.sh" ./busy ./slow >out.txt
expect_line times '^[0-9]* [0-9]*\.[0-9]* [0-9]*\.[0-9]* ./busy$'
expect_line times '^[0-9]* [0-9]*\.[0-9]* [0-9]*\.[0-9]* ./slow$'
expect_number "$(sed -n 's/^[^ ]* \([^ ]*\) .*busy$/\1/p' times)" '>' 0
