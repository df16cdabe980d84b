#!/usr/bin/env bash
# Perplexity and decoding of the demo model beside PyTorch (bench_forward.py), in turns.
# Environment: BIN (tools, default build/bin), PYTHON (one with torch and transformers, default
# python3), VPTQ_DEMO_GGUF (default build/demo/model.gguf).  Says what is missing and does nothing
# where it cannot run.
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
