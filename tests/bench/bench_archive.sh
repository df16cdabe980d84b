#!/usr/bin/env bash
# Compares an archive with the directory that it was made from: sizes and seconds at each level, the gain of
# each kind of entry, and the time to read one tensor.
# Usage: bench_archive.sh PACKED [LEVEL..]   (a packed directory; default: by kind, 1 3 9 19)
# Environment: BIN (tools, default build/bin), BENCH_DIR (benchmarks, default those of the plain build),
# PYTHON (one with numpy and zstandard, default python3).
set -euo pipefail
export LC_ALL=C # decimal points

src=$(cd "$(dirname "$0")/../.." && pwd)
bin=${BIN:-$src/build/bin}
bench=${BENCH_DIR:-$src/build/release/tests/bench}
# shellcheck source=tests/bench/common.sh
. "$src/tests/bench/common.sh"
[ $# -gt 0 ] || skip "needs PACKED [LEVEL..]"
need_python numpy zstandard
need_file "$bench/bench_archive" "make $bench/bench_archive"
packed=$1
shift
[ $# -gt 0 ] || set -- 0 1 3 9 19
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# seconds COMMAND..: of one run, by the clock, and of the processors
seconds() {
    local TIMEFORMAT='%R s, processor %U s'
    { time "$@" > "$work/out" 2> "$work/err"; } 2>&1
}
row() { printf '%-28s %12d  %6.4f  %s\n' "$1" "$2" "$(awk "BEGIN { print $2 / $all }")" "$3"; }

all=$(cat "$packed"/* | wc -c)
row "directory" "$all" ""
tar_zstd() { tar -C "$packed" -cf - . | zstd -q -19 -T1 > "$work/tar.zst"; }
if command -v zstd > /dev/null; then
    time=$(seconds tar_zstd)
    row "tar | zstd -19 (1 thread)" "$(wc -c < "$work/tar.zst")" "$time"
    time=$(seconds tar -C "$work" --use-compress-program=zstd -xOf "$work/tar.zst" ./config.json)
    echo "    one member out of it: $time"
fi
for level in "$@"; do
    time=$(seconds "$bin/vptq-pack" -q "$packed" -o "$work/$level.vptq" --level "$level" -t 1)
    name="archive, level $level"
    [ "$level" != 0 ] || name="archive, levels by kind"
    row "$name" "$(wc -c < "$work/$level.vptq")" "$time"
    "$PYTHON" -B "$src/scripts/vptq_archive.py" list "$work/$level.vptq" --json > "$work/$level.json"
done

"$PYTHON" - "$work" "$@" << 'PY'
import json, sys

PARTS = ("res_centroids", "outlier_centroids", "centroids", "outlier_indices", "indices", "perm", "weight_scale", "weight_bias")


def kind(row):
    if row["kind"] == "file":
        return row["name"]
    for part in PARTS:
        if f".{part}" in row["name"]:
            return part
    return "norms" if "norm" in row["name"] else "embedding and head" if row["name"].split(".")[-2] in ("embed_tokens", "lm_head") else "other"


tables = {}
for level in sys.argv[2:]:
    with open(f"{sys.argv[1]}/{level}.json") as f:
        for row in map(json.loads, f):
            sizes = tables.setdefault(kind(row), {}).setdefault(level, [0, 0])
            sizes[0] += row["bytes"]
            sizes[1] += row["archived_bytes"]
print(f"{'kind':<24} {'bytes':>12}" + "".join(f" {'by kind' if level == '0' else 'level ' + level:>9}" for level in sys.argv[2:]))
for name, table in sorted(tables.items()):
    print(f"{name:<24} {table[sys.argv[2]][0]:>12}" + "".join(f" {table[level][1] / max(table[level][0], 1):9.4f}" for level in sys.argv[2:]))
PY
"$bench/bench_archive" "$work/$1.vptq"
