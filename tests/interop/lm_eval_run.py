#!/usr/bin/env python3
"""Runs item files through lm-evaluation-harness on the CPU in float32: one JSON line per item, in the
words of `vptq-eval tasks --samples`, and one per task with its figures.

usage: lm_eval_run.py MODEL OUT [--limit N] [--max-length N] NAME=FILE..      limit 0 = all

NAME=FILE as for `vptq-eval tasks`: records of the known sets go through the harness's own task
definitions with only the data set replaced, the generic forms through tests/interop/tasks/*.yaml.
"""
import argparse
import json
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

import lm_eval
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

HERE = os.path.dirname(os.path.abspath(__file__))
OWN = {  # definitions of the harness, below its tasks/
    "arc_easy": "arc/arc_easy.yaml",
    "arc_challenge": "arc/arc_challenge.yaml",
    "piqa": "piqa/piqa.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "winogrande": "winogrande/default.yaml",
    "openbookqa": "openbookqa/openbookqa.yaml",
    "copa": "super_glue/copa/default.yaml",
    "boolq": "super_glue/boolq/default.yaml",
    "lambada_openai": "lambada/lambada_openai.yaml",
}


def records(name, path, work):
    """The file as JSON lines, and the definition that goes with it."""
    with open(path, encoding="utf-8", newline="\n") as f:
        lines = [line.rstrip("\n") for line in f]
    if not lines[0].lstrip().startswith("{"):
        out = os.path.join(work, name + ".jsonl")
        with open(out, "w", encoding="utf-8") as f:
            for i in range(0, len(lines) - 5, 6):
                item = {"query": lines[i], "gold": int(lines[i + 1]), "choices": lines[i + 2 : i + 6]}
                f.write(json.dumps(item) + "\n")
        return out, os.path.join(HERE, "tasks", "endings.yaml")
    keys = json.loads(lines[0]).keys()
    if "query" in keys:
        return path, os.path.join(HERE, "tasks", "choices.yaml")
    if "context_options" in keys:
        return path, os.path.join(HERE, "tasks", "schema.yaml")
    return path, os.path.join(os.path.dirname(lm_eval.__file__), "tasks", OWN[name])


def definition(name, path, work):
    """Writes a task file and returns the task's name."""
    data, base = records(name, path, work)
    files = {split: data for split in ("train", "validation", "test")}
    task = "local_" + name
    with open(os.path.join(work, task + ".yaml"), "w", encoding="utf-8") as f:
        f.write(f"include: {base}\ntask: {task}\ndataset_path: json\ndataset_name: null\n")
        f.write(f"dataset_kwargs:\n  data_files: {json.dumps(files)}\n")
    return task


def row(name, sample):
    responses = [r[0] for r in sample["resps"]]
    out = {
        "task": name,
        "item": sample["doc_id"],
        "loglikelihoods": [float(r[0]) for r in responses],
        "greedy": [bool(r[1]) for r in responses],
        "correct": bool(sample["acc"]),
    }
    if "acc_norm" in sample:
        out["correct_norm"] = bool(sample["acc_norm"])
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("tasks", nargs="+")
    p.add_argument("--limit", type=int, default=0)
    p.add_argument("--max-length", type=int)
    a = p.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work, open(a.out, "w", encoding="utf-8") as out:
        names = {}
        for word in a.tasks:
            name, path = word.split("=", 1)
            names[definition(name, os.path.abspath(path), work)] = name
        os.environ["HF_DATASETS_CACHE"] = work
        lm = HFLM(pretrained=a.model, dtype="float32", device="cpu", batch_size=1, max_length=a.max_length)
        manager = TaskManager(include_path=work, include_defaults=False)
        result = lm_eval.simple_evaluate(
            lm, tasks=list(names), task_manager=manager, limit=a.limit or None, log_samples=True,
            bootstrap_iters=1000)
        for task, name in names.items():
            for sample in sorted(result["samples"][task], key=lambda s: s["doc_id"]):
                print(json.dumps(row(name, sample)), file=out)
            figures = {
                key.replace(",none", ""): value
                for key, value in result["results"][task].items()
                if key.endswith(",none")
            }
            print(json.dumps({"task": name, "figures": figures}), file=out)


if __name__ == "__main__":
    main()
