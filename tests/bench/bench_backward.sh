#!/usr/bin/env bash
# Compares a window of the demo model forwards and backwards with PyTorch (bench_backward.py), alternating.
# Environment: BIN (tools, default build/bin), BENCH (bench_backward of a build), PYTHON (one with torch and transformers, default
# python3), VPTQ_DEMO_GGUF (default build/demo/model.gguf).  If something is missing, it says so and
# does nothing.
set -euo pipefail

src=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/bench/common.sh
. "$src/tests/bench/common.sh"
BIN=${BIN:-$src/build/bin}
model=${VPTQ_DEMO_GGUF:-$src/build/demo/model.gguf}

need_python torch transformers
need_file "$model" "scripts/fetch_demo.sh --model-only build/demo"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$BIN/vptq-pack" --unpack "$model" -o "$work/plain" --dtype f16 --quiet
export BENCH=${BENCH:-$src/build/release/tests/bench/bench_backward}
"$PYTHON" "$src/tests/bench/bench_backward.py" "$work/plain" "$@"
