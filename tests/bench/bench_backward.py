#!/usr/bin/env python3
"""Compares a window forwards and backwards with PyTorch, alternating on the same machine.

    python3 tests/bench/bench_backward.py MODEL [--tokens IDS] [--threads N] [--rounds N] [--windows N]

MODEL is a Hugging Face directory (vptq-pack --unpack makes one of anything); the program is $BENCH
(default build/release/tests/bench/bench_backward).  Needs torch and transformers.  Both sides compute
the loss of the next token in float32 and the gradients of all linear layers' weights and norms, not
of the embedding.  Each side is a fresh process per round, which runs a window before those that are
timed; what is compared is the best round and the peak memory of a process."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

BENCH = os.environ.get("BENCH", "build/release/tests/bench/bench_backward")


def run(command):
    """The JSON that a process prints, and its peak memory in MiB."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit("%s failed" % command[0])
    return json.loads(text), used.ru_maxrss / 1024


def torch_windows(a):
    import torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(a.threads)
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)
    for name, p in model.named_parameters():
        p.requires_grad_("embed" not in name and "lm_head" not in name)
    ids = torch.tensor(np.fromfile(a.tokens, dtype="<i4")[None, :a.context].astype(np.int64))
    embeddings = model.model.embed_tokens(ids).detach().requires_grad_(True)

    def window():
        model.zero_grad(set_to_none=False)
        logits = model(inputs_embeds=embeddings).logits[0]
        loss = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:])
        loss.backward()
        return loss.item()

    window()
    start = time.perf_counter()
    for _ in range(a.windows):
        loss = window()
    seconds = (time.perf_counter() - start) / a.windows
    largest = max(float(p.grad.abs().max()) for p in model.parameters()
                  if p.grad is not None and p.ndim == 2)
    print(json.dumps({"seconds": seconds, "loss": loss, "largest": largest,
                      "version": torch.__version__}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", help="int32 ids (default: random)")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--windows", type=int, default=2, help="per round and side")
    parser.add_argument("--torch", action="store_true", help="only PyTorch's side, as JSON")
    a = parser.parse_args()
    if a.torch:
        torch_windows(a)
        return
    with tempfile.NamedTemporaryFile(suffix=".i32") as f:
        if a.tokens:
            ids = np.fromfile(a.tokens, dtype="<i4")[:a.context]
        else:
            ids = np.random.default_rng(0).integers(0, 48, a.context)
        ids.astype("<i4").tofile(f.name)
        mine = [BENCH, a.model, f.name, str(a.context), str(a.threads), str(a.windows)]
        theirs = [sys.executable, __file__, a.model, "--torch", "--tokens", f.name, "--context",
                  str(a.context), "--threads", str(a.threads), "--windows", str(a.windows)]
        rounds = [(run(mine), run(theirs)) for _ in range(a.rounds)]
    ours, torch = rounds[-1][0][0], rounds[-1][1][0]
    for key, limit in (("loss", 1e-4), ("largest", 1e-2)):
        if abs(ours[key] - torch[key]) > limit * abs(torch[key]):
            sys.exit("%s differs: %.6g and %.6g" % (key, ours[key], torch[key]))
    print("window of %d tokens forwards and backwards, %d threads, torch %s"
          % (a.context, a.threads, torch["version"]))
    best = [min(side[i][0]["seconds"] for side in rounds) for i in range(2)]
    peak = [max(side[i][1] for side in rounds) for i in range(2)]
    for i, name in enumerate(("vptq", "torch")):
        print("  %-6s %8.1f tokens/s  %6.2f s  peak %5.0f MiB"
              % (name, a.context / best[i], best[i], peak[i]))
    print("  ratio  %8.2f  memory %.2f" % (best[1] / best[0], peak[0] / peak[1]))


main()
