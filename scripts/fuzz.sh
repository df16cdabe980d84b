#!/usr/bin/env bash
# Runs libFuzzer programs (`make fuzz-programs`) one after another, each for SECONDS, with its
# dictionary tests/fuzz/dict/NAME.dict and a scratch copy of its corpus tests/fuzz/corpus/NAME.
# usage: fuzz.sh SECONDS PROGRAM..
# Prints the executions and new inputs of each.  An input that makes one fail is kept in findings/NAME next to
# the program, and the exit status is 1; add it to the corpus once it is fixed.
set -u

src=$(cd "$(dirname "$0")/.." && pwd)
seconds=${1:?usage: fuzz.sh SECONDS PROGRAM..}
shift
case $seconds in
'' | *[!0-9]* | 0) echo "fuzz.sh: '$seconds' is not a number of seconds above 0" >&2; exit 2 ;;
esac
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0

# stat NAME: prints a number from libFuzzer's closing statistics
stat() { sed -n "s/^stat::$1: *//p" "$scratch/log"; }

for program in "$@"; do
    name=$(basename "$program")
    name=${name#fuzz_}
    findings=$(dirname "$program")/findings/$name
    rm -rf "$scratch/corpus"
    mkdir -p "$scratch/corpus" "$findings"
    status=0
    # No input is larger than a few KiB, so that half a GiB at once is a size that was believed.
    "$program" -max_total_time="$seconds" -dict="$src/tests/fuzz/dict/$name.dict" \
        -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=512 -print_final_stats=1 \
        -artifact_prefix="$findings/" "$scratch/corpus" "$src/tests/fuzz/corpus/$name" \
        >"$scratch/log" 2>&1 || status=$?
    if [ "$status" -eq 0 ]; then
        echo "ok $name: $(stat number_of_executed_units) executions in $seconds s," \
            "$(stat new_units_added) new inputs"
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
