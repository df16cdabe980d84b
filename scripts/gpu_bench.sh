#!/usr/bin/env bash
# make gpu-bench: figures of the CUDA backend on the GPU that is here, into docs/results/DEVICE/: each
# step's table as Markdown and JSON, and what the device is.  A step takes less than 10 minutes.
# usage: gpu_bench.sh [STEP..]      (default: all)
#   gemv     the published tables: packed beside dense products, batch 1
#   batch    one large shape, batch 1 to 32
#   warm     the published shapes of one pair of books from warm caches
#   quantize the demo model quantized on the GPU and on the processor (MODEL=, HESSIANS=)
# Environment: BIN (tools of a build with CUDA=), OUT (default docs/results), SECONDS_PER_ROW.
set -eu

src=$(cd "$(dirname "$0")/.." && pwd)
BIN=${BIN:-$src/build/release-cuda/bin}
seconds=${SECONDS_PER_ROW:-1}
device=$("$BIN/vptq-pack" --version --verbose --backend cuda | sed -n 's/^backend cuda: //p')
case $device in
*"compute capability"*) ;;
*) echo "gpu-bench: ${device:-no GPU answers}" >&2; exit 1 ;;
esac
name=$(sed 's/ (.*//; s/[^A-Za-z0-9]\+/-/g; s/^-//; s/-$//' <<<"$device")
out=${OUT:-$src/docs/results}/$name
mkdir -p "$out"
{
    echo "$device"
    command -v nvidia-smi >/dev/null &&
        nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,memory.total,power.limit --format=csv
} >"$out/device.txt"

# table STEP OPTION..: one table of vptq-eval gemv, in both forms from one run.
table()
{
    local step=$1
    shift
    "$BIN/vptq-eval" gemv --backend cuda --seconds "$seconds" --format json "$@" >"$out/$step.json.new"
    mv "$out/$step.json.new" "$out/$step.json"
    {
        echo "vptq-eval gemv --backend cuda --seconds $seconds $*"
        sed 's/[{}"]//g; s/, /  /g' "$out/$step.json"
    } >"$out/$step.txt"
    echo "$out/$step.json"
}

quantize()
{
    if [ -z "${MODEL-}" ] || [ -z "${HESSIANS-}" ]; then
        echo "skip quantize: MODEL and HESSIANS name none"
        return
    fi
    local backend
    for backend in cuda cpu; do
        rm -rf "$out/work"
        "$BIN/vptq-quantize" -m "$MODEL" -H "$HESSIANS" -o "$out/work" --layers 0-1 -q --format json \
            --backend "$backend" >"$out/quantize-$backend.json"
        rm -rf "$out/work"
        echo "$out/quantize-$backend.json"
    done
}

for step in "${@:-gemv batch warm quantize}"; do
    for one in $step; do
        case $one in
        gemv) table gemv ;;
        batch) table batch --shape 8192x28672 --batch 1 --batch 2 --batch 4 --batch 8 --batch 16 --batch 32 ;;
        warm) table warm --books 4096+256 --cache warm ;;
        quantize) quantize ;;
        *) echo "gpu-bench: unknown step '$one'" >&2; exit 2 ;;
        esac
    done
done
