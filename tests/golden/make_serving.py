#!/usr/bin/env python3
"""Writes the results that a comparison of served models must find in the records of the published report.

usage: make_serving.py RECORDS.jsonl > serving.jsonl

NumPy and SciPy, no code of the project: medians, deviations, ranks, speedups over the original
with their intervals, outliers; the means over configurations; where speedups pass 1.
Needs: pip install numpy scipy"""
import collections
import itertools
import json
import sys

import numpy as np
from scipy import stats

METRICS = ("latency", "output_throughput", "input_throughput", "overall_throughput", "ttft")
LESS = ("latency", "ttft")


def cut(n, m, level=0.9):
    """Quotients to drop on each side: the null distribution by counting all orders."""
    counts = collections.Counter(
        sum(1 for i in a for j in range(n + m) if j not in a and j < i)
        for a in itertools.combinations(range(n + m), n)
    )
    total, below, c = sum(counts.values()), 0, 0
    while (below + counts[c]) / total <= (1 - level) / 2 + 1e-12:
        below += counts[c]
        c += 1
    return max(c - 1, 0)


def ratio(a, b):
    quotients = np.sort(np.divide.outer(a, b).ravel())
    k = cut(len(a), len(b))
    return np.median(a) / np.median(b), quotients[k], quotients[-1 - k]


def main():
    groups = collections.defaultdict(list)
    for line in open(sys.argv[1], encoding="utf-8"):
        r = json.loads(line)
        r["ttft"] = r["latency"] - r["batch_size"] * r["output_len"] / r["output_throughput"]
        r["input_throughput"] = r["batch_size"] * r["input_len"] / r["ttft"]
        groups[r["batch_size"], r["input_len"], r["output_len"], r["group"]].append(r)
    labels = {k[:3]: k[3][len("original_"):] for k in groups if k[3].startswith("original_")}
    values = {k: {m: np.array([r[m] for r in rs]) for m in METRICS} for k, rs in groups.items()}
    speedups = collections.defaultdict(dict)
    for key in sorted(groups):
        config, name = key[:3], key[3]
        model = name[: -len(labels[config]) - 1]
        row = {"group": name, "model": model, "configuration": labels[config], "batch_size": key[0]}
        for m in METRICS:
            x = values[key][m]
            med = np.median(x)
            sign = 1 if m in LESS else -1
            peers = [np.median(values[k][m]) for k in groups if k[:3] == config]
            row[m] = {
                "median": med,
                "mean": np.mean(x),
                "std": np.std(x, ddof=1),
                "rank": int(stats.rankdata(sign * np.array(peers), "min")[
                    [k for k in groups if k[:3] == config].index(key)]),
            }
            if m not in ("ttft", "input_throughput"):
                mad = stats.median_abs_deviation(x)
                off = np.abs(x - med)
                row[m]["outliers"] = int(np.sum((0.6745 * off > 3.5 * mad) & (off > 0.05 * med)))
            if model != "original":
                base = values[config + ("original_" + labels[config],)][m]
                s = ratio(base, x) if m in LESS else ratio(x, base)
                row[m]["speedup"] = list(s)
                speedups[model, m][config] = s[0]
        print(json.dumps(row))
    for (model, m), by in speedups.items():
        row = {"model": model, "metric": m, "mean": stats.gmean(list(by.values())),
               "slower": int(sum(v < 1 for v in by.values()))}
        x = {k[0]: np.log(v) for k, v in by.items() if k[1:] == (256, 128)}
        if x[8] > 0 >= x[64]:
            row["even"] = float(np.exp(np.interp(0, [x[64], x[8]], np.log([64, 8]))))
        print(json.dumps(row))
    for n, m in itertools.product(range(1, 7), repeat=2):
        print(json.dumps({"n": n, "m": m, "dropped": cut(n, m)}))


main()
