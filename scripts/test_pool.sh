# shellcheck shell=bash
# Sourced by the scripts that run tests: runs tests side by side and counts them.
#
#     pool RUN ITEM..    calls RUN ITEM for every item, JOBS at a time (default: one per core), and
#                        prints the outputs in the order of the items
#     pool_result NAME PASSED FAILED SKIPPED     called by RUN, once
#     pool_end           prints the tests that took longest, if one took 10 seconds, the processor time of all,
#                        and "N passed, N failed", with ", N skipped" if there are any; its status is 1 if a
#                        test failed
#
# RUN is called in a process of its own, with the empty directory $WORK to itself.  A RUN that ends
# without a result counts as one failed test.  With TALLY=FILE every result is appended to FILE as
# "PASSED FAILED SKIPPED NAME", with TIMES=FILE every test as "SECONDS USER SYSTEM NAME".
JOBS=${JOBS:-$(nproc)}
case $JOBS in
0* | *[!0-9]*) echo "JOBS is '$JOBS', expected a number of tests at a time" >&2; exit 2 ;;
esac
# Idle threads sleep at once: tests side by side have more threads than there are cores, and those of the tools, which
# wait actively for a moment, took a third of the processor time of tuning.
export GOMP_SPINCOUNT="${GOMP_SPINCOUNT-0}"
pool_dir=$(mktemp -d) || exit 1
trap 'chmod -R u+rwx "$pool_dir"; rm -rf "$pool_dir"' EXIT
trap 'pool_stop' INT TERM HUP
: >"$pool_dir/tally"
: >"$pool_dir/seconds"

# Ends the tests that are running, with everything that they started.
pool_stop()
{
    local pid
    for pid in $(jobs -rp); do
        kill -KILL -- "-$pid" 2>/dev/null
    done
    exit 130
}

pool_result()
{
    echo "$2 $3 $4 $1" >>"$WORK.tally"
}

# pool_job RUN ITEM: what a process of the pool does; its output is complete when WORK.log exists.
pool_job()
{
    trap - EXIT INT TERM HUP
    local name start=$SECONDS TIMEFORMAT='%U %S'
    name=$(basename "$(dirname "$2")")/$(basename "$2" .sh)
    mkdir "$WORK"
    { time "$1" "$2" >"$WORK.part" 2>&1 </dev/null; } 2>"$WORK.cpu"
    echo "$((SECONDS - start)) $(tail -n 1 "$WORK.cpu" | tr , .) $name" >>"$pool_dir/seconds"
    mv "$WORK.part" "$WORK.log"
}

# pool_print NUMBER PID ITEM: prints the output of a job that has ended, and keeps its result.
pool_print()
{
    local job=$pool_dir/$1
    wait "$2" 2>/dev/null
    kill -KILL -- "-$2" 2>/dev/null # what it may have left running
    cat "$job.log" 2>/dev/null || cat "$job.part"
    if [ ! -s "$job.tally" ]; then
        echo "not ok $(basename "$3"): ended without a result"
        echo "0 1 0 $(basename "$3")" >"$job.tally"
    fi
    cat "$job.tally" >>"$pool_dir/tally"
    chmod -R u+rwx "$job"
    rm -rf "$job" "$job".*
}

pool()
{
    local run=$1 started=0 printed=0 item
    local -a pids=()
    shift
    set -m # every job is a process group, which does not ignore SIGINT
    for item in "$@"; do
        while [ "$(jobs -rp | wc -l)" -ge "$JOBS" ]; do
            wait -n
        done
        WORK=$pool_dir/$started pool_job "$run" "$item" &
        pids[started]=$!
        started=$((started + 1))
        while [ -f "$pool_dir/$printed.log" ]; do
            printed=$((printed + 1))
            pool_print "$((printed - 1))" "${pids[printed - 1]}" "${!printed}"
        done
    done
    while [ "$printed" -lt "$started" ]; do
        wait "${pids[printed]}" 2>/dev/null # then its output is complete, if it has one
        printed=$((printed + 1))
        pool_print "$((printed - 1))" "${pids[printed - 1]}" "${!printed}"
    done
    set +m
}

pool_end()
{
    local passed failed skipped line slowest
    slowest=$(sort -nr "$pool_dir/seconds" | awk '$1 >= 10 && NR <= 10 { printf "%s%s %s s", (NR > 1 ? ", " : ""), $4, $1 }')
    [ -z "$slowest" ] || echo "slowest: $slowest"
    LC_ALL=C awk '{ s += $2 + $3 } END { if (s >= 10) printf "%d s of processor time\n", s }' "$pool_dir/seconds"
    [ -z "${TIMES:-}" ] || sort -k 4 "$pool_dir/seconds" >>"$TIMES"
    read -r passed failed skipped < <(
        awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }' "$pool_dir/tally")
    line="$passed passed, $failed failed"
    [ "$skipped" -eq 0 ] || line="$line, $skipped skipped"
    echo "$line"
    [ -z "${TALLY:-}" ] || cat "$pool_dir/tally" >>"$TALLY"
    [ "$failed" -eq 0 ]
}
