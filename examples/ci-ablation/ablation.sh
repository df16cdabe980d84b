#!/bin/sh
# Rebuilds a table of settings on a small model and fails if a row got worse, or is missing.
# usage: ablation.sh MODEL CALIBRATION.txt EVALUATION.txt BASELINE.csv
# The first run writes BASELINE.csv, to be committed.  Tables are the same on every machine, so a difference is one
# of the code or the data; TOLERANCE (0.002) is the relative increase of perplexity or bits that passes.
set -eu
export LC_ALL=C # decimal points
usage='usage: ablation.sh MODEL CALIBRATION.txt EVALUATION.txt BASELINE.csv'
model=${1:?$usage} calibration=${2:?$usage} evaluation=${3:?$usage} baseline=${4:?$usage}
here=$(dirname "$0")
out=${ABLATION_DIR:-ablation}

vptq-eval ablate -m "$model" -c "$calibration" -n 16 -l 256 --text "$evaluation" --context 256 --text-windows 16 \
    --table "$here/rows.json" -o "$out" --no-seconds --no-progress -q --format csv >"$out.csv"
[ -e "$baseline" ] || {
    cp "$out.csv" "$baseline"
    echo "ablation: wrote $baseline"
    exit 0
}
awk -F, -v tolerance="${TOLERANCE:-0.002}" '
    FNR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
    { ppl = $at["ppl"]; bits = $at["bits_per_weight"] }
    FILENAME == ARGV[1] { old_ppl[$1] = ppl; old_bits[$1] = bits; next }
    {
        seen[$1] = 1
        if (!($1 in old_ppl))
            next
        worse = ppl > old_ppl[$1] * (1 + tolerance) || bits > old_bits[$1] * (1 + tolerance)
        printf "%-16s %8.4f bits, was %8.4f; perplexity %8.4f, was %8.4f%s\n", $1, bits, old_bits[$1], ppl, old_ppl[$1],
            worse ? "  WORSE" : ""
        bad += worse
    }
    END {
        for (row in old_ppl)
            if (!(row in seen)) {
                print row " is missing"
                bad++
            }
        exit bad > 0
    }' "$baseline" "$out.csv"
