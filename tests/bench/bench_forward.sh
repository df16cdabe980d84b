#!/usr/bin/env bash
# Compares perplexity and decoding of the demo model with PyTorch (bench_forward.py), alternating.
# Environment: BIN (tools, default build/bin), PYTHON (one with torch and transformers, default
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
BIN=$BIN "$PYTHON" "$src/tests/bench/bench_forward.py" "$work/plain" "$@"
