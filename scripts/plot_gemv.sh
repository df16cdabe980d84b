#!/usr/bin/env bash
# Plots `vptq-eval gemv --format json`: the ratio of packed to dense products over the size of the dense
# matrix, next to that of the published kernel (docs/results/published-gemv.csv).
# usage: plot_gemv.sh RECORDS.json PICTURE.svg|PICTURE.png
set -eu
export LC_ALL=C # decimal points

src=$(cd "$(dirname "$0")/.." && pwd)
usage="usage: plot_gemv.sh RECORDS.json PICTURE.svg|PICTURE.png"
records=${1:?$usage}
picture=${2:?$usage}
case $picture in
*.svg) terminal="svg size 900,560 dynamic background '#ffffff' font 'sans-serif,14'" ;;
*.png) terminal="pngcairo size 1350,840 font 'sans-serif,16'" ;;
*) echo "plot-gemv: '$picture', expected a name ending in .svg or .png" >&2; exit 2 ;;
esac
command -v gnuplot >/dev/null || { echo "plot-gemv: gnuplot is not installed" >&2; exit 1; }

data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
# megabytes and ratio, one file per pair of codebooks
tr -d '{}"' <"$records" | awk -F', ' -v data="$data" '{
    for (i = 1; i <= NF; i++) {
        at = index($i, ": ")
        value[substr($i, 1, at - 1)] = substr($i, at + 2)
    }
    print value["dense_half_bytes"] / 1e6, value["ratio"] >(data "/" value["k"] "+" value["k_res"] ".ours")
}'
awk -F, 'NR > 1 { print $1 * $2 * 2 / 1e6, $7 }' "$src/docs/results/published-gemv.csv" >"$data/published"
mapfile -t files < <(find "$data" -name '*.ours' | sort -V)
[ "${#files[@]}" -gt 0 ] || { echo "plot-gemv: no records in '$records'" >&2; exit 1; }

# one series per pair of codebooks, ordered by size
lines=''
color=0
colors=('#0b6fb8' '#d1740b' '#1f8a4c' '#8a3fa8' '#b8322a' '#5a6b7a')
for file in "${files[@]}"; do
    lines="$lines, '$file' using 1:2 with points pt 7 ps 0.9 lc rgb '${colors[color % 6]}' title '$(basename "$file" .ours)'"
    color=$((color + 1))
done
gnuplot <<END
set terminal $terminal
set output '$picture.new'
set logscale x
set logscale y
set title 'a product with a packed matrix beside one with a dense matrix'
set xlabel 'dense matrix in 16 bits, MB'
set ylabel 'time of packed / time of dense'
set ytics (0.2, 0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 3, 5, 7)
set xrange [1.5:2500]
set yrange [0.2:9]
set grid
set key outside bottom center horizontal
plot 1 with lines lc rgb '#777777' dt 2 notitle, \
    '$data/published' using 1:2 with points pt 2 ps 0.9 lc rgb '#aaaaaa' title 'published kernel, its GPU'$lines
END
mv "$picture.new" "$picture"
echo "$picture"
