#!/usr/bin/env bash
# Loading and encoding beside the Python package `tokenizers` (bench_tokenizer.py), on one core.
# Environment: PYTHON (one with tokenizers, default python3), PROGRAM (bench_tokenizer, default that
# of the plain build), VPTQ_DATA (default ../shared/data).  Says what is missing and does nothing
# where it cannot run.
set -euo pipefail

src=$(cd "$(dirname "$0")/../.." && pwd)
PYTHON=${PYTHON:-python3}
data=${VPTQ_DATA:-$src/../shared/data}
export PROGRAM=${PROGRAM:-$src/build/release/tests/bench/bench_tokenizer}

if ! "$PYTHON" -c 'import tokenizers' 2>/dev/null; then
    echo "skipped: $PYTHON has no tokenizers (PYTHON=...)"
    exit 0
fi
if [ ! -e "$data/tokenizers" ]; then
    echo "skipped: $data/tokenizers is not there (VPTQ_DATA=...)"
    exit 0
fi
if [ ! -e "$PROGRAM" ]; then
    echo "skipped: $PROGRAM is not there (make $PROGRAM)"
    exit 0
fi
exec "$PYTHON" "$src/tests/bench/bench_tokenizer.py" "$data"
