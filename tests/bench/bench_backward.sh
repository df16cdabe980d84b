#!/usr/bin/env bash
# Compares a window of the demo model forwards and backwards with PyTorch (bench_backward.py), alternating.
# Environment: BIN (tools, default build/bin), BENCH (bench_backward of a build), PYTHON (one with torch
# and transformers, default python3), VPTQ_DEMO_GGUF (default build/demo/model.gguf).  If something is
# missing, it says so and does nothing.
set -euo pipefail

src=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/bench/common.sh
. "$src/tests/bench/common.sh"
export BENCH=${BENCH:-$src/build/release/tests/bench/bench_backward}
against_pytorch bench_backward.py "$@"
