#!/usr/bin/env bash
# make gpu-bench, make cpu-bench: measures a device and writes docs/results/DEVICE/: a description of the device,
# and for each step the records as JSON lines, a table as text and a plot.  A step takes less than 10 minutes.
# usage: device_bench.sh cuda|cpu [STEP..]      (default: all of that device)
#   gemv     the published tables: packed against dense products, batch 1, from cold caches
#   grid     the same with codebooks on an int8 grid
#   batch    one large shape, batch 1 to 64
#   warm     the published shapes with one pair of codebooks from warm caches
#   chain    blocks of models, one product after another
#   decode   tokens per second of MODELS="PATH PATH.." alternating
#   serve    batches of sequences: SERVE_MODELS="original=PATH NAME=PATH.." alternating, RUNS (3) of CONFIGS; the report
#            as Markdown and HTML.  Keeps what was measured before an interruption
#   quantize (cuda) the demo model quantized on the GPU and on the processor (MODEL=, HESSIANS=)
# Environment: BIN (folder of the tools), OUT (default docs/results), SECONDS_PER_ROW, THREADS.
set -eu
export LC_ALL=C # decimal points

src=$(cd "$(dirname "$0")/.." && pwd)
backend=${1:-}
case $backend in
cuda | cpu) shift ;;
*) echo "usage: device_bench.sh cuda|cpu [STEP..]" >&2; exit 2 ;;
esac
BIN=${BIN:?device_bench.sh needs BIN}
seconds=${SECONDS_PER_ROW:-1}
threads=${THREADS:-0}
device=$("$BIN/vptq-pack" --version --verbose --backend "$backend" | sed -n "s/^backend $backend: //p")
if [ "$backend" = cuda ]; then
    case $device in
    *"compute capability"*) ;;
    *) echo "device-bench: ${device:-no GPU answers}" >&2; exit 1 ;;
    esac
    name=${device%% (*}
else
    processor=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
    name="$processor ${device%% kernels*}"
    device="$processor, $device"
fi
name=$(sed 's/[^A-Za-z0-9]\+/-/g; s/^-//; s/-$//' <<<"$name")
out=${OUT:-$src/docs/results}/$name
mkdir -p "$out"
{
    echo "$device"
    if [ "$backend" = cuda ]; then
        command -v nvidia-smi >/dev/null &&
            nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,memory.total,power.limit --format=csv
    else
        lscpu | sed -n -E '/^(CPU\(s\)|Thread|Core|L1d|L2|L3|CPU max)/p'
    fi
} >"$out/device.txt"

# table STEP OPTION..: runs vptq-eval gemv once and writes its table in all formats.
table()
{
    local step=$1
    shift
    "$BIN/vptq-eval" gemv --backend "$backend" --threads "$threads" --seconds "$seconds" --format json "$@" \
        >"$out/$step.json.new"
    mv "$out/$step.json.new" "$out/$step.json"
    {
        echo "vptq-eval gemv --backend $backend --threads $threads --seconds $seconds $*"
        "$src/scripts/gemv_table.sh" "$out/$step.json"
    } >"$out/$step.txt"
    echo "$out/$step.json"
}

picture()
{
    if command -v gnuplot >/dev/null; then
        "$src/scripts/plot_gemv.sh" "$out/$1.json" "$out/$1.svg"
    else
        echo "device-bench: gnuplot is not installed; no plot of $1" >&2
    fi
}

# Runs every model once in each of five rounds; the median counts.
decode()
{
    if [ -z "${MODELS-}" ]; then
        echo "skip decode: MODELS is empty"
        return
    fi
    local model round
    for round in 1 2 3 4 5; do
        for model in $MODELS; do
            "$BIN/vptq-eval" generate -m "$model" --backend "$backend" --threads "$threads" -q -n 100 --ignore-eos \
                -p 'Once upon a time' --format json |
                sed -E "s|.*\"tokens_per_second\": ([0-9.]+).*|{\"model\": \"$(basename "$model")\", \"round\": $round, \"tokens_per_second\": \1}|"
        done
    done >"$out/decode.json.new"
    mv "$out/decode.json.new" "$out/decode.json"
    {
        echo "vptq-eval generate -n 100 --ignore-eos, tokens per second of 5 alternating rounds, median last"
        sed 's/[{}",:]//g' "$out/decode.json" | sort -k2,2 -k6,6g | awk '
            $2 != model { if (model != "") print model rates "   " rate[3]; model = $2; rates = ""; n = 0 }
            { rate[++n] = sprintf("%.1f", $6); rates = rates " " rate[n] }
            END { print model rates "   " rate[3] }'
    } >"$out/decode.txt"
    echo "$out/decode.json"
}

# Five of the seven configurations: the others need a longer context, or more memory and patience.
serve()
{
    if [ -z "${SERVE_MODELS-}" ]; then
        echo "skip serve: SERVE_MODELS is empty"
        return
    fi
    local model config form arguments=(--backend "$backend" --threads "$threads" --runs "${RUNS:-3}")
    for model in $SERVE_MODELS; do
        arguments+=(-m "$model")
    done
    for config in ${CONFIGS:-interactive decode_bound prefill_bound medium_batch base}; do
        arguments+=(--config "$config")
    done
    "$BIN/vptq-eval" serve -q "${arguments[@]}" -o "$out/serve.jsonl.new" >"$out/serve.txt"
    mv "$out/serve.jsonl.new" "$out/serve.jsonl"
    for form in md html; do
        "$BIN/vptq-eval" compare "$out/serve.jsonl" -q --format $form -o "$out/serve.$form" -f
    done
    echo "$out/serve.jsonl"
}

quantize()
{
    if [ -z "${MODEL-}" ] || [ -z "${HESSIANS-}" ]; then
        echo "skip quantize: MODEL and HESSIANS name none"
        return
    fi
    local one
    for one in cuda cpu; do
        rm -rf "$out/work"
        "$BIN/vptq-quantize" -m "$MODEL" -H "$HESSIANS" -o "$out/work" --layers 0-1 -q --format json \
            --backend "$one" >"$out/quantize-$one.json"
        rm -rf "$out/work"
        echo "$out/quantize-$one.json"
    done
}

steps=("$@")
[ "${#steps[@]}" -gt 0 ] || steps=(gemv grid batch warm chain decode serve)
[ "$#" -gt 0 ] || [ "$backend" = cpu ] || steps+=(quantize)
for step in "${steps[@]}"; do
    case $step in
    gemv) table gemv; picture gemv ;;
    grid) table grid --codebook-grid int8; picture grid ;;
    batch) table batch --shape 8192x28672 --batch 1 --batch 2 --batch 4 --batch 8 --batch 16 --batch 32 \
        --batch 64 ;;
    warm) table warm --books 4096+256 --cache warm; picture warm ;;
    chain) table chain --cache chain ;;
    decode) decode ;;
    serve) serve ;;
    quantize) quantize ;;
    *) echo "device-bench: unknown step '$step'" >&2; exit 2 ;;
    esac
done
