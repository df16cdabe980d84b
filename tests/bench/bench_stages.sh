#!/usr/bin/env bash
# Seconds, processor seconds and peak memory of every stage on the demo model, each a fresh process.
# Usage: bench_stages.sh [WINDOWS]   (windows of 2048 tokens for Hessians and perplexity, default 4)
# The model and the texts are what `make demo` fetches; MODEL= overrides the model.
#   BIN=DIR    the tools (default: build/bin)
#   PEER=DIR   other tools, such as an older build's: every stage runs with both in turn, REPEAT times (default 3), and
#              the last column is the median of the ratios of seconds, BIN to PEER; the other columns are BIN's medians
set -euo pipefail

src=$(cd "$(dirname "$0")/../.." && pwd)
bin=${BIN:-$src/build/bin}
peer=${PEER-}
demo=${DEMO_DIR:-$src/build/demo}
windows=${1:-4}
if [ -n "${MODEL-}" ]; then wanted=--text-only; else wanted=; fi
# shellcheck disable=SC2086 # nothing, or one word
"$src/scripts/fetch_demo.sh" $wanted "$demo"
model=${MODEL:-$demo/model.gguf}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# measure NAME TOOL ARGUMENT..: an argument OUT/NAME is a file or folder that a tool writes or reads; each set of tools
# has its own.
measure()
{
    python3 - "$bin" "$peer" "$work" "${REPEAT:-3}" "$@" <<'PY'
import os, shutil, statistics, subprocess, sys, time
bins, work, repeat, name = [b for b in sys.argv[1:3] if b], sys.argv[3], int(sys.argv[4]), sys.argv[5]

def run(which):
    out = os.path.join(work, str(which))
    args = [a.replace("OUT/", out + "/", 1) if a.startswith("OUT/") else a for a in sys.argv[7:]]
    if "-o" in args:
        path = args[args.index("-o") + 1]
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.remove(path)
    os.makedirs(out, exist_ok=True)
    begin = time.monotonic()
    child = subprocess.Popen([os.path.join(bins[which], sys.argv[6])] + args, stdout=subprocess.DEVNULL)
    _, status, use = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit("%s: %s exits with %d" % (name, child.args[0], child.returncode))
    return time.monotonic() - begin, use.ru_utime + use.ru_stime, use.ru_maxrss / 1024

rounds = []
for turn in range(repeat if len(bins) > 1 else 1):
    order = range(len(bins)) if turn % 2 == 0 else reversed(range(len(bins)))
    rounds.append([use for _, use in sorted((i, run(i)) for i in order)])
row = "%-28s" % name + " %9.1f %9.1f %9.0f" % tuple(statistics.median(r[0][i] for r in rounds) for i in range(3))
if len(bins) > 1:
    row += " %9.3f" % statistics.median(r[0][0] / r[1][0] for r in rounds)
print(row, flush=True)
PY
}

printf '%-28s %9s %9s %9s' stage "wall s" "cpu s" "peak MiB"
if [ -n "$peer" ]; then printf ' %9s' ratio; fi
echo
measure "hessian, $windows windows" vptq-hessian -m "$model" -c "$demo/calib.txt" -n "$windows" -o OUT/h -q
measure "quantize v=4 k=256" vptq-quantize -m "$model" -H OUT/h -o OUT/w -q -v 4 -k 256
measure "pack to a directory" vptq-pack OUT/w -o OUT/packed -q
measure "pack to an archive" vptq-pack OUT/w -o OUT/m.vptq --to archive -q
measure "unpack to float16" vptq-pack --unpack OUT/packed -o OUT/f16 -q
measure "perplexity, original" vptq-eval ppl -m "$model" --text "$demo/eval.txt" --windows "$windows" -q
measure "perplexity, packed" vptq-eval ppl -m OUT/packed --text "$demo/eval.txt" --windows "$windows" -q
measure "perplexity, archive" vptq-eval ppl -m OUT/m.vptq --text "$demo/eval.txt" --windows "$windows" -q
measure "32 tokens, original" vptq-eval generate -m "$model" -p "Once upon a time" -n 32 -q
measure "32 tokens, packed" vptq-eval generate -m OUT/packed -p "Once upon a time" -n 32 -q
