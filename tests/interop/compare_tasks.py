#!/usr/bin/env python3
"""Compares the results of `vptq-eval tasks --samples` and lm_eval_run.py on the same items.

usage: compare_tasks.py SAMPLES HARNESS [--tolerance X]

Prints one line per task and one per item whose choice or verdict differs, with both sides'
log-likelihoods.  Exit 1 when fewer than 99 of 100 choices of a task are the same, or when a
log-likelihood differs by more than X nats per scored token (default 1e-3; 0.001 is some ten times
the rounding of float32 sums over a block)."""
import argparse
import json
import math
import sys


def load(path):
    rows, figures = {}, {}
    with open(path, encoding="utf-8") as f:
        for line in f:
            row = json.loads(line)
            if "figures" in row:
                figures[row["task"]] = row["figures"]
            else:
                rows[row["task"], row["item"]] = row
    return rows, figures


def argmax(values):
    return max(range(len(values)), key=lambda i: (values[i], -i))


def stderr(values):
    n, mean = len(values), sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n) if n > 1 else math.nan


def check_task(task, ours, theirs, figures, tolerance):
    items = sorted(i for t, i in theirs if t == task)
    worst = same = verdicts = 0
    ok = True
    for i in items:
        a, b = ours[task, i], theirs[task, i]
        if len(a["loglikelihoods"]) != len(b["loglikelihoods"]):
            print(f"{task} {i}: {len(a['loglikelihoods'])} requests, harness {len(b['loglikelihoods'])}")
            return False
        for x, y, n in zip(a["loglikelihoods"], b["loglikelihoods"], a["tokens"]):
            worst = max(worst, abs(x - y) / n)
        alike = argmax(a["loglikelihoods"]) == argmax(b["loglikelihoods"]) and a["greedy"] == b["greedy"]
        norm = b.get("correct_norm")
        verdict = a["correct"] == b["correct"]
        if norm is not None:
            verdict &= norm == (a["choice_norm"] == a["gold"])
        same += alike
        verdicts += verdict
        if not (alike and verdict):
            print(f"{task} {i}: ours {a['loglikelihoods']}, harness {b['loglikelihoods']}")
    acc = [float(ours[task, i]["correct"]) for i in items]
    text = f"acc {sum(acc) / len(acc):.4f} ± {stderr(acc):.4f}, harness {figures['acc']:.4f} ± {figures['acc_stderr']:.4f}"
    if "acc_norm" in figures:
        norm = [float(ours[task, i]["choice_norm"] == ours[task, i]["gold"]) for i in items]
        text += f"; acc_norm {sum(norm) / len(norm):.4f} ± {stderr(norm):.4f}, harness {figures['acc_norm']:.4f} ± {figures['acc_norm_stderr']:.4f}"
    if "perplexity" in figures:
        mean = sum(ours[task, i]["loglikelihoods"][0] for i in items) / len(items)
        text += f"; perplexity {math.exp(-mean):.6g}, harness {figures['perplexity']:.6g}"
    print(f"{task}: {len(items)} items, {same} choices and {verdicts} verdicts the same, "
          f"log-likelihoods within {worst:.2g} nats per token; {text}")
    if same < 0.99 * len(items) or verdicts < 0.99 * len(items) or worst > tolerance:
        ok = False
    return ok


def main():
    p = argparse.ArgumentParser()
    p.add_argument("samples")
    p.add_argument("harness")
    p.add_argument("--tolerance", type=float, default=1e-3)
    a = p.parse_args()
    ours, _ = load(a.samples)
    theirs, figures = load(a.harness)
    results = [check_task(task, ours, theirs, figures[task], a.tolerance) for task in figures]
    sys.exit(0 if results and all(results) else 1)


if __name__ == "__main__":
    main()
