#!/bin/sh
# The paper's ablation (Table 10) on a small model: one row per setting with honest bits, mean loss and
# perplexity, as a markdown table.
#
#     scripts/ablation.sh MODEL HDIR TEXT DIR [OPTION..]
#
# OPTIONs go to every vptq-quantize (for instance --encoder upstream).  PPL_OPTIONS (default "--rows --context
# 2048 --windows 16") go to vptq-eval ppl.  ROWS names the rows to do (default: all); BIN (default
# build/bin) the tools.  DIR keeps work directories and results, so a run that was interrupted goes on.
set -eu

if [ $# -lt 4 ]; then
    echo "usage: scripts/ablation.sh MODEL HDIR TEXT DIR [OPTION..]" >&2
    exit 2
fi
model=$1 hessians=$2 text=$3 dir=$4
shift 4
bin=${BIN:-build/bin}
mkdir -p "$dir"

# name: settings.  Codebooks are sized for a small model: with those of the paper the books alone would
# outweigh the indices.
rows='
v2: -v 2 -k 16
v4: -v 4 -k 256
v6: -v 6 -k 4096
v6-together: -v 6 -k 4096 --pass-columns 6
v8: -v 8 -k 4096
v8-residual: -v 8 -k 256 -r 256
v12-residual: -v 12 -k 4096 -r 4096
outliers-1: -v 8 -k 256 -r 256 --outliers 1:4:256
outliers-2: -v 8 -k 256 -r 256 --outliers 2:4:256
outliers-5: -v 8 -k 256 -r 256 --outliers 5:4:256
groups-2: -v 8 -k 256 -r 256 -g 2
groups-4: -v 8 -k 256 -r 256 -g 4
groups-8: -v 8 -k 256 -r 256 -g 8
'

field() { sed -n "s/.*\"$2\": *\\([-0-9.eE+]*\\).*/\\1/p" "$1"; }

# Every row of a work directory has its loss and its bits; the mean loss is over matrices.
mean_loss() {
    tr ',' '\n' < "$1" | awk -F: '/"proxy_loss"/ { sum += $2; n++ } END { printf "%.5f", sum / n }'
}

echo "| row | settings | bits per weight | mean loss | perplexity |"
echo "|---|---|---|---|---|"
echo "$rows" | while IFS=: read -r name settings; do
    [ -n "$name" ] || continue
    case " ${ROWS:-$name} " in *" $name "*) ;; *) continue ;; esac
    if [ ! -s "$dir/$name.json" ]; then
        # shellcheck disable=SC2086 # the settings are several words
        "$bin/vptq-quantize" -m "$model" -H "$hessians" -o "$dir/$name" $settings "$@" \
            --no-progress -q > /dev/null
        # shellcheck disable=SC2086
        "$bin/vptq-eval" ppl -m "$dir/$name" --text "$text" \
            ${PPL_OPTIONS:---rows --context 2048 --windows 16} --no-progress --format json \
            > "$dir/$name.tmp"
        mv "$dir/$name.tmp" "$dir/$name.json"
    fi
    printf '| %s |%s | %.3f | %s | %.2f ± %.2f |\n' "$name" "$settings" \
        "$(field "$dir/$name.json" bits_per_weight)" "$(mean_loss "$dir/$name/report.jsonl")" \
        "$(field "$dir/$name.json" ppl)" "$(field "$dir/$name.json" ppl_stderr)"
done
