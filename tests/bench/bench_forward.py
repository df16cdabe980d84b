#!/usr/bin/env python3
"""Compares perplexity and decoding speed with PyTorch, alternating on the same machine.

    python3 tests/bench/bench_forward.py MODEL [--tokens IDS] [--threads N] [--rounds N] [--windows N]

MODEL is a Hugging Face directory (vptq-pack --unpack makes one of anything); the tools are in
$BIN (default build/bin).  Needs torch and transformers.  Each round runs --windows windows of ours
(vptq-eval ppl: forward, logits of every position and their loss; a fresh process) and as many of
PyTorch's (float32, SDPA attention: forward, logits, loss; in a process that is warm) one after the
other; then decoding the same way.  What is
compared is the best of the rounds, which other load on the machine disturbs least.  CPU seconds
stand beside, for busy machines."""
import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from transformers import AutoModelForCausalLM

BIN = os.environ.get("BIN", "build/bin")


def cpu_of_children(run):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return out, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ours(arguments):
    command = [os.path.join(BIN, "vptq-eval")] + arguments
    command += ["--format", "json", "--quiet"]
    text, cpu = cpu_of_children(
        lambda: subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return json.loads(text), cpu


def theirs(model, ids):
    wall, cpu = time.perf_counter(), time.process_time()
    with torch.inference_mode():
        logits = model(ids).logits[0]
        loss = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:])
    return time.perf_counter() - wall, time.process_time() - cpu, float(loss)


def decode_theirs(model, ids, n):
    with torch.inference_mode():
        out = model(ids, use_cache=True)
        wall = time.perf_counter()
        for _ in range(n):
            ids = out.logits[:, -1:].argmax(-1)
            out = model(ids, past_key_values=out.past_key_values, use_cache=True)
        return n / (time.perf_counter() - wall)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", help="int32 ids (default: random)")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--windows", type=int, default=4, help="per round and side")
    parser.add_argument("--decode", type=int, default=32, help="tokens to decode, 0 = none")
    a = parser.parse_args()

    torch.set_num_threads(a.threads)
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)
    model.eval()
    if a.tokens:
        ids = np.fromfile(a.tokens, dtype="<i4")[:a.context]
    else:
        ids = np.random.default_rng(0).integers(0, model.config.vocab_size, a.context)
    x = torch.tensor(ids[None].astype(np.int64))
    with tempfile.NamedTemporaryFile(suffix=".i32") as f:
        np.tile(ids.astype("<i4"), a.windows).tofile(f.name)
        ppl = ["ppl", "-m", a.model, "--tokens", f.name, "--context", str(a.context),
               "--threads", str(a.threads)]
        best = [float("inf")] * 4
        for _ in range(a.rounds):
            r, cpu = ours(ppl)
            runs = [theirs(model, x) for _ in range(a.windows)]
            wall, cpu_theirs, loss = (sum(column) / a.windows for column in zip(*runs))
            mine = (r["seconds"] / a.windows, wall, cpu / a.windows, cpu_theirs)
            best = [min(p) for p in zip(best, mine)]
    if abs(loss - r["nll"]) > 1e-3:
        sys.exit("losses differ: %.6f and %.6f" % (r["nll"], loss))
    print("window of %d tokens, %d threads, torch %s" % (a.context, a.threads,
                                                         torch.__version__))
    print("  vptq   %8.1f tokens/s  %6.2f s  %6.2f CPU s (whole process)" %
          (a.context / best[0], best[0], best[2]))
    print("  torch  %8.1f tokens/s  %6.2f s  %6.2f CPU s" %
          (a.context / best[1], best[1], best[3]))
    print("  ratio  %8.2f" % (best[1] / best[0]))
    if not a.decode:
        return
    generate = ["generate", "-m", a.model, "-p", "Once upon a time there was",
                "-n", str(a.decode), "--ignore-eos", "--threads", str(a.threads)]
    speed = [max(ours(generate)[0]["tokens_per_second"] for _ in range(a.rounds)),
             max(decode_theirs(model, x[:, :8], a.decode) for _ in range(a.rounds))]
    print("decoding %d tokens" % a.decode)
    print("  vptq   %8.1f tokens/s" % speed[0])
    print("  torch  %8.1f tokens/s" % speed[1])
    print("  ratio  %8.2f" % (speed[0] / speed[1]))


main()
