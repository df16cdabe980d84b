#!/usr/bin/env python3
"""Replays the queue of matrices for a model and numbers of ranks, from measured times of matrices: how well does the
work of vptq-quantize -H spread?  (docs/scale.md)

usage: replay_queue.py ROWS.jsonl [LAYERS HIDDEN INTERMEDIATE KEY_VALUE]

ROWS.jsonl is what `vptq-quantize --format json -t N` printed: rows, columns and seconds of matrices of at least two
widths.  Seconds grow with the weights W of a matrix and with W times its columns; both rates are fitted.  The default
model is Llama 2 70B: 80 layers of 8192 hidden and 28672 intermediate numbers, 1024 for keys and values.
"""

import heapq
import json
import sys

RANKS = (1, 2, 4, 8, 16, 32, 64, 128)


def fit(rows):
    """Least squares of seconds / W = a + b columns, neither below 0."""
    points = [(r["columns"], r["seconds"] / (r["rows"] * r["columns"])) for r in rows]
    n = len(points)
    sx, sy = sum(x for x, _ in points), sum(y for _, y in points)
    sxx, sxy = sum(x * x for x, _ in points), sum(x * y for x, y in points)
    b = max(0.0, (n * sxy - sx * sy) / (n * sxx - sx * sx))
    return max(0.0, (sy - b * sx) / n), b


def shapes(layers, hidden, intermediate, key_value):
    q, kv = (hidden, hidden), (key_value, hidden)
    block = [q, kv, kv, q, (intermediate, hidden), (intermediate, hidden), (hidden, intermediate)]
    return block * layers


def replay(units, ranks):
    """Seconds until the last rank is idle, when each takes the next unit of the list."""
    idle = [0.0] * ranks
    for seconds in units:
        heapq.heapreplace(idle, idle[0] + seconds)
    return max(idle)


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        rows = [r for r in map(json.loads, f) if r.get("seconds") and "columns" in r]
    a, b = fit(rows)
    model = [int(x) for x in sys.argv[2:]] or [80, 8192, 28672, 1024]
    units = sorted((w * c * (a + b * c) for w, c in shapes(*model)), reverse=True)
    whole = sum(units)
    print(f"{len(rows)} matrices measured: {a:.3e} s per weight and {b:.3e} s per weight and column")
    print(f"{len(units)} matrices of {units[-1]:.0f} to {units[0]:.0f} s, {whole / 3600:.1f} h in all\n")
    print("| ranks | hours | efficiency |\n| ---: | ---: | ---: |")
    for ranks in RANKS:
        end = replay(units, ranks)
        print(f"| {ranks} | {end / 3600:.1f} | {whole / end / ranks:.3f} |")


if __name__ == "__main__":
    main()
