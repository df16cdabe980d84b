#!/usr/bin/env bash
# Runs libFuzzer programs (`make fuzz-programs`) one after another, each with its dictionary
# tests/fuzz/dict/NAME.dict and a scratch copy of its corpus tests/fuzz/corpus/NAME and of the seeds
# that scripts/fuzz_seeds.sh takes from the data directory.
# usage: fuzz.sh SECONDS RUNS PROGRAM..
#   SECONDS   time of each program, 0 = no limit     RUNS   executions of each, 0 = no limit
#   STATE     in the environment: a directory that keeps corpora and counts.  The next run continues with them, and
#             RUNS and the table's executions count all runs.
# Prints a table of executions, new inputs and findings.  An input that makes one fail is kept in findings/NAME
# next to the program, and the exit status is 1; add it to the corpus once it is fixed.
set -u

src=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 3 ] || { echo "usage: fuzz.sh SECONDS RUNS PROGRAM.." >&2; exit 2; }
seconds=$1
runs=$2
shift 2
for n in "$seconds" "$runs"; do
    case $n in
    '' | *[!0-9]*) echo "fuzz.sh: '$n' is not a number" >&2; exit 2 ;;
    esac
done
[ "$((seconds + runs))" -gt 0 ] || { echo "fuzz.sh: neither seconds nor runs" >&2; exit 2; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
state=${STATE:-$scratch}
mkdir -p "$state/runs"

"$src/scripts/fuzz_seeds.sh" "$scratch/seeds"

# stat NAME: prints a number from libFuzzer's closing statistics, or what its log says last
stat() { sed -n "s/^stat::$1: *//p" "$scratch/log"; }
executions() {
    local n
    n=$(stat number_of_executed_units)
    echo "${n:-$(sed -n 's/^#\([0-9]*\).*/\1/p' "$scratch/log" | tail -n1)}"
}

printf '%-16s %12s %8s %8s %8s\n' target executions seconds new findings
for program in "$@"; do
    name=$(basename "$program")
    name=${name#fuzz_}
    findings=$(dirname "$program")/findings/$name
    corpus=$state/corpus/$name
    mkdir -p "$corpus" "$scratch/seeds/$name" "$findings"
    before=$(cat "$state/runs/$name" 2>/dev/null || echo 0)
    left=$((runs - before))
    if [ "$runs" -eq 0 ]; then
        left=-1
    elif [ "$left" -le 0 ]; then
        printf '%-16s %12s %8s %8s %8s\n' "$name" "$before" 0 0 0
        rmdir "$findings" 2>/dev/null
        continue
    fi
    status=0
    start=$SECONDS
    # Texts and records are cut short: the time of these targets grows with them, their code's reach does not.
    case $name in text | regex) longest=512 ;; records) longest=2048 ;; *) longest=0 ;; esac
    # No input is larger than a few KiB, so that half a GiB at once is a size that was believed.  Inputs that
    # take long are changed less often.
    nice "$program" -runs="$left" -max_total_time="$seconds" -dict="$src/tests/fuzz/dict/$name.dict" \
        -max_len="$longest" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=512 -print_final_stats=1 \
        -entropic_scale_per_exec_time=1 \
        -artifact_prefix="$findings/" "$corpus" "$src/tests/fuzz/corpus/$name" \
        "$scratch/seeds/$name" >"$scratch/log" 2>&1 || status=$?
    total=$((before + $(executions)))
    echo "$total" >"$state/runs/$name"
    printf '%-16s %12s %8s %8s %8s\n' "$name" "$total" "$((SECONDS - start))" \
        "$(stat new_units_added)" "$((status != 0))"
    if [ "$status" -eq 0 ]; then
        rmdir "$findings" 2>/dev/null
    else
        echo "not ok $name: see $findings"
        tail -n 40 "$scratch/log" | sed 's/^/    /'
        failed=$((failed + 1))
    fi
done
rmdir "$(dirname "${1:-.}")/findings" 2>/dev/null
echo "$(($# - failed)) without a finding, $failed with"
[ "$failed" -eq 0 ]
