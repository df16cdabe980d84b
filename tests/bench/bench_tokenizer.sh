#!/usr/bin/env bash
# Compares loading and encoding with the Python package `tokenizers` (bench_tokenizer.py) on one core.
# Environment: PYTHON (one with tokenizers, default python3), PROGRAM (bench_tokenizer, default that
# of the plain build), VPTQ_DATA (default ../shared/data).  If something is missing, it says so and
# does nothing.
set -euo pipefail

src=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/bench/common.sh
. "$src/tests/bench/common.sh"
data=${VPTQ_DATA:-$src/../shared/data}
export PROGRAM=${PROGRAM:-$src/build/release/tests/bench/bench_tokenizer}

need_python tokenizers
need_file "$data/tokenizers" "VPTQ_DATA=..."
need_file "$PROGRAM" "make $PROGRAM"
exec "$PYTHON" "$src/tests/bench/bench_tokenizer.py" "$data"
