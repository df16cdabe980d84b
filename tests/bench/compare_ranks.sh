#!/usr/bin/env bash
# Compares what several ranks write and print with one process, byte by byte, on a real model.
# Usage: compare_ranks.sh MODEL HESSIANS CALIBRATION_IDS TEXT_IDS   (ids: int32, little endian)
# Prints what ran, the number of ranks, whether the output is the same, and seconds; exits with 1 if anything differs or
# fails.
#   BIN=DIR           the tools, built with MPI (default: build/bin)
#   RANKS="2 3 4 7"   numbers of ranks
#   MPIRUN=COMMAND    launcher and its options (default: mpirun --oversubscribe --bind-to none; MPICH: mpiexec.mpich)
set -euo pipefail

src=$(cd "$(dirname "$0")/../.." && pwd)
bin=$(realpath "${BIN:-$src/build/bin}")
[ $# = 4 ] || {
    echo "usage: compare_ranks.sh MODEL HESSIANS CALIBRATION_IDS TEXT_IDS" >&2
    exit 2
}
model=$(realpath "$1") hessians=$(realpath "$2") calibration=$(realpath "$3") text=$(realpath "$4")
read -r -a counts <<<"${RANKS:-2 3 4 7}"
read -r -a launch <<<"${MPIRUN:-mpirun --oversubscribe --bind-to none}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0

# run DIR COMMAND..: the command in a new directory; what it prints goes to printed.txt there, without times.
run()
{
    local dir=$1 rc=0
    shift
    mkdir -p "$dir"
    (cd "$dir" && "$@" >"$work/out.txt" 2>"$work/err.txt") || rc=$?
    sed -E 's/"(seconds|step_seconds|tokens_per_second)": (\{[^}]*\}|[^,}]*)//g' "$work/out.txt" >"$dir/printed.txt"
    return "$rc"
}

now() { date +%s%3N; }

# row WHAT RANKS RESULT BEGIN: a row of the table, with the seconds since then.
row()
{
    local ms=$(($(now) - $4))
    printf '%-22s %5s  %-8s %6d.%d\n' "$1" "$2" "$3" $((ms / 1000)) $((ms % 1000 / 100))
}

# compare WHAT TOOL ARGUMENT..: one process, whose output stays in WHAT, and each number of ranks.
compare()
{
    local what=$1 tool=$bin/$2 n begin result
    shift 2
    begin=$(now)
    run "$work/$what" "$tool" "$@" -t 1 -q || {
        cat "$work/err.txt" >&2
        exit 1
    }
    row "$what" 1 - "$begin"
    for n in "${counts[@]}"; do
        begin=$(now)
        result=same
        if ! run "$work/many" "${launch[@]}" -n "$n" "$tool" "$@" -t 1 -q; then
            result=fails
            cat "$work/err.txt" >&2
        elif ! diff -r -x lock -x '*.seconds' -x report.json "$work/$what" "$work/many" >"$work/diff.txt"; then
            result=differs
            head -n 5 "$work/diff.txt" >&2
        fi
        [ "$result" = same ] || status=1
        row "$what" "$n" "$result" "$begin"
        rm -r "$work/many"
    done
}

cheap=(-v 8 -k 256 --kmeans-iterations 2 --retrain 0 --sweeps 1 --refits 0)
calibrate=(--tokens "$calibration" -n 16 -l 512)
cat >"$work/rows.json" <<'JSON'
[{"name": "original", "original": true},
 {"name": "v8", "settings": {"vector_length": 8, "centroids": 256, "kmeans_iterations": 2, "retrain": 0, "sweeps": 1,
                             "refits": 0}},
 {"name": "k64", "settings": {"vector_length": 8, "centroids": 64, "kmeans_iterations": 2, "retrain": 0, "sweeps": 1,
                              "refits": 0}}]
JSON

printf '%-22s %5s  %-8s %8s\n' what ranks output seconds
compare ablate vptq-eval ablate -m "$model" -H "$hessians" --layers 15-15 --table "$work/rows.json" \
    --text-tokens "$text" --context 128 --text-windows 4 --kld --no-seconds --keep-packed --format json -o out
packed=$(find "$work/ablate/out/packed" -name '*v8*.vptq')
compare ppl vptq-eval ppl -m "$packed" --tokens "$text" --context 128 --windows 24 --dump losses --format json
compare kld vptq-eval kld -m "$packed" --base "$model" --tokens "$text" --context 128 --windows 12 --format json
compare hessian vptq-hessian -m "$model" "${calibrate[@]}" --holdout 0.25 --layers 0-1 --format json -o out
compare quantize vptq-quantize -m "$model" -H "$hessians" --layers 15-16 "${cheap[@]}" --format json -o out
compare "quantize -c" vptq-quantize -m "$model" "${calibrate[@]}" --layers 0-1 "${cheap[@]}" --format json -o out
compare "quantize --sequential" vptq-quantize -m "$model" "${calibrate[@]}" --sequential --layers 0-1 "${cheap[@]}" \
    --format json -o out
compare "quantize -b" vptq-quantize -m "$model" -H "$hessians" -b 2.2 --allocate kl --allocate-tokens "$calibration" \
    --allocate-windows 1 --allocate-length 16 --layers 15-15 --format json -o out
exit "$status"
