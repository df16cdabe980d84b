#!/usr/bin/env bash
# Compares serving with PyTorch (bench_serve.py), alternating.  Passes its arguments on: --batches 1,8,32,64
# --input 128 --output 32 --threads 2 --rounds 3 --dtypes float32,bfloat16.
# Environment: BIN (tools, default build/bin), PYTHON (one with torch and transformers, default
# python3), MODEL (a Hugging Face directory; default: made of VPTQ_DEMO_GGUF, default
# build/demo/model.gguf), PACKED (the same packed, or nothing).  If something is missing, it says
# so and does nothing.
set -euo pipefail

src=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/bench/common.sh disable=SC1091
. "$src/tests/bench/common.sh"
BIN=${BIN:-$src/build/bin}

need_python torch transformers
model=${MODEL:-}
if [ -z "$model" ]; then
    gguf=${VPTQ_DEMO_GGUF:-$src/build/demo/model.gguf}
    need_file "$gguf" "scripts/fetch_demo.sh --model-only build/demo"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    "$BIN/vptq-pack" --unpack "$gguf" -o "$work/plain" --dtype f16 --quiet
    model=$work/plain
fi
"$PYTHON" "$src/tests/bench/bench_serve.py" "$BIN/vptq-eval" "$model" ${PACKED:+"$PACKED"} "$@"
