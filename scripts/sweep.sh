#!/usr/bin/env bash
# Quantizes, packs and measures one model with every combination of a grid of settings, and writes a CSV
# file and a plot of perplexity over all stored bits with the frontier of the best settings.
#
#     scripts/sweep.sh -o DIR [-v 4,8] [-k 256,4096] [-r 0,256] [-g 1] [--outliers 0] [--max-bits X]
#                      [--jobs N] -- -m MODEL -c CALIBRATION --text FILE [OPTION..]
#
# Lists are separated by commas: vector lengths (4,6,8), centroids (256), residual centroids (0),
# groups (1), percent of outlier columns (0).  Combinations that are impossible for this model, or take more than
# --max-bits bits per weight of it, are left out with a message.
# Arguments after -- go to vptq-eval ablate, which resumes: an interrupted sweep, or one whose lists have
# grown, computes only the missing rows.  --jobs N runs up to N rows at once, each with its share of the cores
# (-t after -- is the number of threads of each) and its own memory; table and files are the same.  The first row
# runs alone: it collects the Hessians.  Inputs are files then, not standard input or pipes; so are texts and tasks
# with --max-bits.  For several machines, interrupt it and run
#     mpirun -n N vptq-eval ablate ABLATE-OPTIONS --table DIR/rows.json -o DIR/ablation
# which shares rows over ranks (docs/scale.md); the sweep then finds them finished.
#
# One sweep at a time writes to DIR.  DIR/rows.json: the rows.  DIR/sweep.csv: the table of vptq-eval ablate and
# whether a row is on the frontier.  DIR/sweep.svg: the plot, if gnuplot is installed.
# Environment: BIN (folder of the tools, default build/bin).
set -euo pipefail
export LC_ALL=C # decimal points

src=$(cd "$(dirname "$0")/.." && pwd)
BIN=${BIN:-$src/build/bin}

synopsis="usage: sweep.sh -o DIR [-v LIST] [-k LIST] [-r LIST] [-g LIST] [--outliers LIST] [--max-bits X] [--jobs N] -- ABLATE-OPTIONS"

usage()
{
    echo "sweep.sh: $*" >&2
    echo "$synopsis" >&2
    exit 2
}

dir='' vectors=4,6,8 centroids=256 residuals=0 groups=1 outliers=0 max_bits='' jobs=1
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
    -h | --help)
        echo "$synopsis"
        exit 0
        ;;
    esac
    [ $# -ge 2 ] || usage "$1 needs a value"
    case $1 in
    -o) dir=$2 ;;
    -v) vectors=$2 ;;
    -k) centroids=$2 ;;
    -r) residuals=$2 ;;
    -g) groups=$2 ;;
    --outliers) outliers=$2 ;;
    --max-bits) max_bits=$2 ;;
    -j | --jobs) jobs=$2 ;;
    *) usage "unknown option '$1'" ;;
    esac
    shift 2
done
[ $# -gt 1 ] || usage "-- and the options of vptq-eval ablate are missing"
[ -n "$dir" ] || usage "-o DIR is missing"
shift
for word in "$@"; do
    case $word in
    --d | --dr* | --form* | --rep*) usage "$word is not for a sweep: its table is DIR/sweep.csv" ;;
    --tab*) usage "$word is not for a sweep: its rows are those of the lists" ;;
    --outputs | --outputs=*) ;;
    --o | --o=* | --ou*) usage "$word is not for a sweep: it writes to DIR/ablation" ;;
    esac
    # also after letters without a value: -qo
    [[ ! $word =~ ^-[fhqvV]*o ]] || usage "$word is not for a sweep: it writes to DIR/ablation"
done
for list in "$vectors" "$centroids" "$residuals" "$groups"; do
    [[ $list =~ ^[0-9]+(,[0-9]+)*$ ]] || usage "'$list' is not a list of whole numbers"
done
[[ $outliers =~ ^[0-9]+(\.[0-9]+)?(,[0-9]+(\.[0-9]+)?)*$ ]] || usage "'$outliers' is not a list of numbers"
[[ ${max_bits:-1} =~ ^[0-9]+(\.[0-9]+)?$ ]] || usage "'$max_bits' is not a number"
[[ $jobs =~ ^[1-9][0-9]{0,3}$ ]] || usage "--jobs '$jobs': expected a number from 1 to 9999"
for word in "$@"; do
    [ "$jobs" -gt 1 ] || break
    case $word in
    --on* | -f | --fo*) usage "$word does not go with --jobs" ;;
    --ser*) usage "$word does not go with --jobs: rows would be timed while others run" ;;
    esac
done

# once WORD: whether it names an input that can be read only once: standard input or a pipe
once()
{
    local file=$1
    [[ ! $file =~ ^-[fhqvV]*c(.+) ]] || file=${BASH_REMATCH[1]}
    file=${file##*=} # --text=FILE, NAME=FILE
    [ "$file" = - ] || [ -p "$file" ]
}

option=''
for word in "$@"; do
    given="$option $word"
    if [[ $word == -?* ]]; then option=$word given=$word; fi
    once "$word" || continue
    [ "$jobs" = 1 ] || usage "$given does not go with --jobs: every row reads it; pass a file"
    # The plan reads all inputs but calibration texts.
    [ -z "$max_bits" ] || [[ $option =~ ^(-[fhqvV]*c|--ca|--tokens) ]] ||
        usage "$given does not go with --max-bits, which reads it before the rows; pass a file"
done

# each LIST: prints its words
each()
{
    tr ',' '\n' <<<"$1"
}

# One row per line, so that rows can be removed from the file by name.
grid()
{
    local v k r g o name
    for v in $(each "$vectors"); do
        for k in $(each "$centroids"); do
            for r in $(each "$residuals"); do
                for g in $(each "$groups"); do
                    for o in $(each "$outliers"); do
                        name=v$v-k$k
                        [ "$r" = 0 ] || name=$name-r$r
                        [ "$g" = 1 ] || name=$name-g$g
                        [ "$o" = 0 ] || name=$name-o$o
                        printf '{"name": "%s", "optional": true, ' "$name"
                        printf '"settings": {"vector_length": %s, "centroids": %s, ' "$v" "$k"
                        printf '"residual": %s, "groups": %s, "outliers": %s}}\n' "$r" "$g" "$o"
                    done
                done
            done
        done
    done
}

# list FILE: prints lines of rows as a JSON list after the original
list()
{
    echo '[{"name": "original", "original": true}'
    sed 's/^/,/' "$1"
    echo ']'
}

mkdir -p "$dir"
if command -v flock >/dev/null; then
    exec 9>>"$dir/sweep.lock"
    flock -n 9 || {
        echo "sweep.sh: '$dir': another sweep is writing to it" >&2
        exit 1
    }
else
    echo "sweep: flock is not installed; nothing keeps two sweeps apart" >&2
fi

# plan OPTION..: writes the table of the rows that this model can have, without their results
plan()
{
    set -- "$@" --table "$dir/rows.json" --dry-run -q --no-progress --format csv
    "$BIN/vptq-eval" ablate "$@" >"$dir/plan.tmp" 2>/dev/null || "$BIN/vptq-eval" ablate "$@" >/dev/null
}

# adopt: moves what jobs have made into the ablation, also what a killed sweep has left
adopt()
{
    local made to
    for made in "$dir"/jobs/*/{work,rows,packed}/*; do
        [ -e "$made" ] || continue
        to=$(basename "$(dirname "$made")")
        mkdir -p "$dir/ablation/$to"
        mv "$made" "$dir/ablation/$to/"
    done
    rm -rf "$dir/jobs"
}

# start NAME OPTION..: runs a row in the background, in an ablation of its own, which begins with the Hessians and
# what there is of the row
start()
{
    local name=$1 job=$dir/jobs/$1 part
    shift
    mkdir -p "$job"/{work,rows,packed}
    cp "$dir/ablation/ablate.json" "$job"
    if [ -d "$dir/ablation/hessians" ]; then
        cp -Rl "$dir/ablation/hessians" "$job"
        find "$job/hessians" -name lock -exec rm {} +
    fi
    for part in work/"$name" rows/"$name".{json,seconds} packed/"$name".vptq; do
        [ ! -e "$dir/ablation/$part" ] || mv "$dir/ablation/$part" "$job/$part"
    done
    "$BIN/vptq-eval" ablate -t "$threads" "$@" --table "$dir/rows.json" --only "$name" -o "$job" -q --no-progress \
        >/dev/null &
}

# stop STATUS SIGNAL: ends the jobs, whose finished work stays; another signal than the terminal has sent them, too,
# would end them at once
stop()
{
    trap '' INT TERM HUP
    local pids
    pids=$(jobs -rp)
    # shellcheck disable=SC2086 # words
    [ -z "$pids" ] || kill -s "$2" $pids 2>/dev/null || true
    wait
    exit "$1"
}

# run_side_by_side OPTION..: runs all rows, $jobs at a time; the first that fails ends the sweep when those that run
# have ended
run_side_by_side()
{
    local cores threads first names name running=0 failed=0
    cores=$(nproc)
    threads=$((cores > jobs ? cores / jobs : 1))
    plan "$@"
    first=$(awk -F, 'NR > 1 && $1 != "original" { print $1; exit }' "$dir/plan.tmp")
    [ -n "$first" ] || return 0
    "$BIN/vptq-eval" ablate "$@" --table "$dir/rows.json" --only "$first" -o "$dir/ablation" >/dev/null
    trap 'stop 130 INT' INT
    trap 'stop 143 TERM' TERM
    trap 'stop 129 HUP' HUP
    names=$(awk -F, -v first="$first" 'NR > 1 && $1 != first { print $1 }' "$dir/plan.tmp")
    for name in $names; do
        [ "$failed" = 0 ] || break
        start "$name" "$@"
        running=$((running + 1))
        [ "$running" -ge "$jobs" ] || continue
        wait -n || failed=$?
        running=$((running - 1))
    done
    for (( ; running > 0; running--)); do
        wait -n || failed=$?
    done
    trap - INT TERM HUP
    adopt
    [ "$failed" = 0 ] || exit "$failed"
}

trap 'adopt; rm -f "$dir"/{grid,plan,large,small,table,sweep.csv}.tmp' EXIT
adopt
grid >"$dir/grid.tmp"
list "$dir/grid.tmp" >"$dir/rows.json"
if [ -n "$max_bits" ]; then
    plan "$@"
    awk -F, -v max="$max_bits" '
        NR == 1 { for (i = 1; i <= NF; i++) if ($i == "bits_per_weight") at = i; next }
        NR > 2 && $at > max { print $1 }' "$dir/plan.tmp" >"$dir/large.tmp"
    while read -r name; do
        echo "sweep: $name is left out: more than $max_bits bits per weight" >&2
    done <"$dir/large.tmp"
    # FILENAME and not NR == FNR, which holds for the second file if the first is empty
    awk -F'"' 'FILENAME == ARGV[1] { large[$0] = 1; next } !($4 in large)' "$dir/large.tmp" "$dir/grid.tmp" \
        >"$dir/small.tmp"
    list "$dir/small.tmp" >"$dir/rows.json"
fi

[ "$jobs" = 1 ] || run_side_by_side "$@"
"$BIN/vptq-eval" ablate "$@" --table "$dir/rows.json" -o "$dir/ablation" --format csv >"$dir/table.tmp"

# A row is on the frontier if no row with as few bits has a lower perplexity.
awk -F, '
    NR == 1 { for (i = 1; i <= NF; i++) { if ($i == "bits_per_weight") b = i; if ($i == "ppl") p = i }
              head = $0; next }
    { line[++n] = $0; bits[n] = $b; ppl[n] = $p }
    END {
        print head ",frontier"
        for (i = 1; i <= n; i++) {
            on = 1
            for (j = 1; j <= n; j++)
                if (bits[j] <= bits[i] && ppl[j] <= ppl[i] && (bits[j] < bits[i] || ppl[j] < ppl[i])) on = 0
            print line[i] "," on
        }
    }' "$dir/table.tmp" >"$dir/sweep.csv.tmp"
mv "$dir/sweep.csv.tmp" "$dir/sweep.csv"
cat "$dir/sweep.csv"

if ! command -v gnuplot >/dev/null; then
    echo "sweep: gnuplot is not installed; no plot" >&2
    exit 0
fi
# points CONDITION: prints bits, perplexity, error and name of the rows except the original
points()
{
    awk -F, "
        NR == 1 { for (i = 1; i <= NF; i++) at[\$i] = i; next }
        \$at[\"row\"] != \"original\" && ($1) {
            print \$at[\"bits_per_weight\"], \$at[\"ppl\"], \$at[\"ppl_stderr\"], \$at[\"row\"] }" "$dir/sweep.csv" | sort -n
}
original=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "ppl") p = i } $1 == "original" { print $p }' "$dir/sweep.csv")
# shellcheck disable=SC2016 # $ belongs to awk
others=$(points '$at["frontier"] == 0') frontier=$(points '$at["frontier"] == 1')
if [ -z "$others$frontier" ]; then
    rm -f "$dir/sweep.svg"
    echo "sweep: no rows but the original; no plot" >&2
    exit 0
fi
range='' plot=()
if [ -n "$original" ]; then
    range="set yrange [$original * 0.9:]"
    plot+=("$original with lines lt 1 dt 2 lc rgb '#777777' title sprintf('original, %.3f', $original)")
fi
# An x range around points that all have the same size.
range+=$(printf '%s\n' "$others" "$frontier" | awk '
    NF { if (!n++) least = most = $1; if ($1 < least) least = $1; if ($1 > most) most = $1 }
    END { if (least == most) printf "\nset xrange [%s * 0.9:%s * 1.1]", least, most }')
# shellcheck disable=SC2016 # $ belongs to gnuplot
{
    [ -z "$others" ] ||
        plot+=('$all using 1:2:3 with yerrorbars pt 7 ps 0.6 lt 1 lc rgb "#999999" title "settings"')
    [ -z "$frontier" ] || plot+=(
        '$frontier using 1:2 with lines lt 1 lw 2 lc rgb "#0072b2" notitle'
        '$frontier using 1:2:3 with yerrorbars pt 7 ps 0.9 lt 1 lc rgb "#0072b2" title "nothing better for as few bits"'
        '$frontier using 1:2:4 with labels left rotate by 40 offset 0.6,0.7 font ",10" notitle')
}
gnuplot <<EOF
set terminal svg size 900,560 background "white" font "sans-serif,12"
set output "$dir/sweep.svg"
set xlabel "bits per weight, everything that is stored"
set ylabel "perplexity"
set logscale y
set grid ytics xtics lc rgb "#e0e0e0" lt 1
set border 3
set tics nomirror
set key top right
set offsets graph 0.02, graph 0.12, graph 0.2, graph 0.05
$range
\$all <<END
$others
END
\$frontier <<END
$frontier
END
plot $(printf '%s, ' "${plot[@]}" | sed 's/, $//')
EOF
