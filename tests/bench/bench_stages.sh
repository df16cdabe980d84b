#!/usr/bin/env bash
# Seconds, processor seconds and peak memory of every stage on the demo model, each a fresh process.
# Usage: bench_stages.sh [WINDOWS]   (windows of 2048 tokens for Hessians and perplexity, default 4)
# The model and the texts are what `make demo` fetches; MODEL= overrides the model.
set -euo pipefail

src=$(cd "$(dirname "$0")/../.." && pwd)
bin=${BIN:-$src/build/bin}
demo=${DEMO_DIR:-$src/build/demo}
windows=${1:-4}
if [ -n "${MODEL-}" ]; then wanted=--text-only; else wanted=; fi
# shellcheck disable=SC2086 # nothing, or one word
"$src/scripts/fetch_demo.sh" $wanted "$demo"
model=${MODEL:-$demo/model.gguf}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# measure NAME COMMAND..
measure() {
    local name=$1
    shift
    python3 - "$name" "$@" <<'PY'
import os, resource, subprocess, sys, time
begin = time.monotonic()
code = subprocess.run(sys.argv[2:], stdout=subprocess.DEVNULL).returncode
wall = time.monotonic() - begin
use = resource.getrusage(resource.RUSAGE_CHILDREN)
print("%-28s %9.1f %9.1f %9.0f" % (sys.argv[1], wall, use.ru_utime + use.ru_stime, use.ru_maxrss / 1024))
sys.exit(code)
PY
}

printf '%-28s %9s %9s %9s\n' stage "wall s" "cpu s" "peak MiB"
measure "hessian, $windows windows" "$bin/vptq-hessian" -m "$model" -c "$demo/calib.txt" \
    -n "$windows" -o "$work/h" -q
measure "quantize v=4 k=256" "$bin/vptq-quantize" -m "$model" -H "$work/h" -o "$work/w" -q \
    -v 4 -k 256
measure "pack to a directory" "$bin/vptq-pack" "$work/w" -o "$work/packed" -q
measure "pack to an archive" "$bin/vptq-pack" "$work/w" -o "$work/m.vptq" --to archive -q
measure "unpack to float16" "$bin/vptq-pack" --unpack "$work/packed" -o "$work/f16" -q
measure "perplexity, original" "$bin/vptq-eval" ppl -m "$model" --text "$demo/eval.txt" \
    --windows "$windows" -q
measure "perplexity, packed" "$bin/vptq-eval" ppl -m "$work/packed" --text "$demo/eval.txt" \
    --windows "$windows" -q
measure "perplexity, archive" "$bin/vptq-eval" ppl -m "$work/m.vptq" --text "$demo/eval.txt" \
    --windows "$windows" -q
measure "32 tokens, original" "$bin/vptq-eval" generate -m "$model" -p "Once upon a time" -n 32 -q
measure "32 tokens, packed" "$bin/vptq-eval" generate -m "$work/packed" -p "Once upon a time" \
    -n 32 -q
