#!/bin/sh
# Prints the loss after each step of the encoder over the matrices of some layers: the rows of the table
# in docs/encoder.md, section 8.
#
#     scripts/ladder.sh MODEL HDIR HELD_OUT DIR [OPTION..]
#
# HELD_OUT is a directory of Hessians of other tokens.  OPTIONs go to vptq-quantize.  LAYERS (default
# "0 15 29") chooses the layers, BIN (default build/bin) the tools.  DIR keeps the work directories, so an
# interrupted run continues.  Columns: geometric mean over the matrices, then the plain mean, each
# for the Hessian and the held-out one, in percent.
set -eu
export LC_ALL=C # decimal points

if [ $# -lt 4 ]; then
    echo "usage: scripts/ladder.sh MODEL HDIR HELD_OUT DIR [OPTION..]" >&2
    exit 2
fi
model=$1 hessians=$2 held_out=$3 dir=$4
shift 4
bin=${BIN:-build/bin}
mkdir -p "$dir"

# Prints the numbers under a key of every row as lines "key index value".
steps() {
    tr -d ' ' < "$1" | awk '
    BEGIN { n = split("kmeans residual joint pass retrain sweeps scales refit storage", name, " ") }
    function value(key,    at, text) {
        at = index($0, "\"" key "\":")
        if (!at) return ""
        text = substr($0, at + length(key) + 3)
        if (substr(text, 1, 1) == "[") return substr(text, 2, index(text, "]") - 2)
        sub(/[,}].*/, "", text)
        return text
    }
    {
        rows++
        for (i = 1; i <= n; i++) {
            count = split(value("loss_" name[i]), plain, ",")
            split(value("loss_" name[i] "_held_out"), other, ",")
            for (j = 1; j <= count; j++) {
                key = name[i] (count > 1 ? " " j : "")
                if (!(key in seen)) { order[++keys] = key; seen[key] = 1 }
                log_sum[key] += log(plain[j]); sum[key] += plain[j]
                log_other[key] += log(other[j]); sum_other[key] += other[j]
            }
        }
    }
    END {
        for (i = 1; i <= keys; i++) {
            k = order[i]
            printf "| %s | %.4f | %.4f | %.3f | %.3f |\n", k, 100 * exp(log_sum[k] / rows),
                100 * exp(log_other[k] / rows), 100 * sum[k] / rows, 100 * sum_other[k] / rows
        }
    }'
}

for layer in ${LAYERS:-0 15 29}; do
    "$bin/vptq-quantize" -m "$model" -H "$hessians" --held-out "$held_out" -o "$dir/work" \
        --layers "$layer" --no-progress -q "$@" > /dev/null
done
echo "| step | geometric mean | held out | mean | held out |"
echo "|---|---|---|---|---|"
steps "$dir/work/report.jsonl"
