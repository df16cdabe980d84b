#!/usr/bin/env bash
# Instructions of the hot functions on ARM (NEON, under qemu-user) and with AVX2 (under callgrind), for the same work:
# Hessians, one quantized block, perplexity and generated text of stories260K, one thread.
# Usage: bench_instructions.sh [PERCENT]   (functions with at least this share of a stage on ARM, default 1)
#   BIN=DIR       the tools for AVX2 (default: build/bin)
#   VPTQ_DATA=DIR stories260K and its text
# Needs a cross build (make CROSS=aarch64-linux-gnu- tools), qemu-user with plugins, and valgrind.
set -euo pipefail

src=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/bench/common.sh
. "$src/tests/bench/common.sh"
bin=$(realpath "${BIN:-$src/build/bin}")
arm=$src/build/release-aarch64/bin
sysroot=$(realpath -m "${SYSROOT:-$src/build/sysroot}")
data=$(realpath -m "${VPTQ_DATA:-$src/../shared/data}")
model=$data/models/stories260K/stories260K.bin
text=$data/text/tinystories/tiny.utf8
tokenizer=(--tokenizer "$data/models/stories260K/tok512.bin")

need_file "$arm/vptq-eval" "make CROSS=aarch64-linux-gnu- tools"
need_file "$bin/vptq-eval" "make tools"
need_file "$model" VPTQ_DATA
need_file "$text" VPTQ_DATA
for program in qemu-aarch64 valgrind python3 cc; do
    command -v "$program" >/dev/null || skip "there is no $program"
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cc -O2 -shared -fPIC -o count.so "$src/tests/bench/qemu/count.c"
mkdir neon avx2

# stage NAME TOOL ARGUMENT..: counts of both, each in a folder of its own, where outputs go.
stage()
{
    local name=$1 tool=$2
    shift 2
    (cd neon && COUNTS=../$name.neon qemu-aarch64 -plugin ../count.so -L "$sysroot" "$arm/$tool" "$@" -t 1 -q >/dev/null)
    (cd avx2 && VPTQ_SIMD=avx2 valgrind -q --log-file="../$name.log" --tool=callgrind \
        --callgrind-out-file="../$name.out" "$bin/$tool" "$@" -t 1 -q >/dev/null)
    callgrind_annotate --auto=no --threshold=100 "$name.out" >"$name.avx2"
}

stage hessian vptq-hessian -m "$model" "${tokenizer[@]}" -c "$text" -n 2 -l 256 -o h
stage quantize vptq-quantize -m "$model" "${tokenizer[@]}" -H h --layers 0-0 -v 8 -k 256 -r 64 \
    --joint 2 --sweeps 1 --refits 1 -o w
stage perplexity vptq-eval ppl -m w "${tokenizer[@]}" --text "$text" --context 256 --windows 2
stage generate vptq-eval generate -m w "${tokenizer[@]}" -p Once -n 32
python3 - "${1:-1}" <<'PY'
import collections, re, sys
percent = float(sys.argv[1])

def plain(name):  # of a copy that the compiler made
    return re.sub(r"('\d+|\.(constprop|isra|part|cold).*)$", "", name)

print("%-12s %-28s %12s %12s %6s" % ("stage", "function", "NEON", "AVX2", "ratio"))
for stage in "hessian", "quantize", "perplexity", "generate":
    neon, avx2 = collections.Counter(), collections.Counter()
    for line in open(stage + ".neon"):
        count, name = line.split(None, 1)
        neon[plain(name.strip())] += int(count)
    for line in open(stage + ".avx2"):
        found = re.match(r" *([\d,]+) \(.*?\) +(?:\S*:)?(\S+)", line)  # inlined code is listed by its file
        if found:
            avx2[plain(found.group(2))] += int(found.group(1).replace(",", ""))
    whole = sum(neon.values())
    rows = [("all", whole, avx2["PROGRAM"])]
    rows += [(n, c, avx2[n]) for n, c in neon.most_common()
             if avx2[n] and c >= percent / 100 * whole and not n.startswith("XXH_")]  # its AVX2 has another name
    for name, ours, theirs in rows:
        print("%-12s %-28s %12d %12d %6.2f" % (stage, name, ours, theirs, ours / theirs))
PY
