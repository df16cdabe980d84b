#!/usr/bin/env bash
# Compares perplexity and decoding of the demo model with PyTorch (bench_forward.py), alternating.
# Environment: BIN (tools, default build/bin), PYTHON (one with torch
# and transformers, default python3), VPTQ_DEMO_GGUF (default build/demo/model.gguf).  If something is
# missing, it says so and does nothing.
set -euo pipefail

src=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/bench/common.sh
. "$src/tests/bench/common.sh"
against_pytorch bench_forward.py "$@"
