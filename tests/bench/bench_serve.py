"""Compares serving with PyTorch: batches of random prompts, greedy, with a KV cache, on the same cores.

usage: bench_serve.py TOOL ORIGINAL [PACKED] [--batches 1,8,32,64] [--input 128] [--output 32]
       [--threads 2] [--rounds 3] [--dtypes float32,bfloat16]

TOOL is vptq-eval, ORIGINAL a Hugging Face directory in 16 or 32 bits, PACKED the same model packed.
Sides take turns, batch by batch and round by round; each has warmed up before it is timed, and
the medians of the rounds are printed, with our rate over PyTorch's.  The loop on PyTorch's side
asks for the last position's logits only and does no more than feed argmax back.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time


def ours(tool, model, batch, args):
    """(prompt tokens per second, new tokens per second) of one run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        records = os.path.join(folder, "runs.jsonl")
        subprocess.run([tool, "serve", "-q", "-m", "m=" + model, "--config",
                        f"{batch},{args.input},{args.output}", "--runs", "1", "-t",
                        str(args.threads), "-o", records],
                       check=True, stdout=subprocess.DEVNULL)
        with open(records, encoding="utf-8") as file:
            record = json.loads(file.read())
    return record["input_throughput"], record["output_throughput"]


def torch_run(torch, model, batch, length, output):
    ids = torch.randint(3, model.config.vocab_size, (batch, length))
    with torch.inference_mode():
        start = time.perf_counter()
        step = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        token = step.logits[:, -1].argmax(-1, keepdim=True)
        first = time.perf_counter()
        for _ in range(output - 1):
            step = model(input_ids=token, past_key_values=step.past_key_values, use_cache=True)
            token = step.logits[:, -1].argmax(-1, keepdim=True)
        end = time.perf_counter()
    return batch * length / (first - start), batch * output / (end - first)


def torch_sides(args):
    import torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(args.threads)
    sides = {}
    for name in args.dtypes.split(","):
        model = AutoModelForCausalLM.from_pretrained(args.original, dtype=getattr(torch, name))
        model.eval()

        def run(batch, model=model):
            torch_run(torch, model, batch, 64, 4)
            return torch_run(torch, model, batch, args.input, args.output)
        sides["PyTorch " + name] = run
    return sides, f"PyTorch {torch.__version__}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tool")
    parser.add_argument("original")
    parser.add_argument("packed", nargs="?")
    parser.add_argument("--batches", default="1,8,32,64")
    parser.add_argument("--input", type=int, default=128)
    parser.add_argument("--output", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    args = parser.parse_args()

    sides = {"original": lambda batch: ours(args.tool, args.original, batch, args)}
    if args.packed:
        sides["packed"] = lambda batch: ours(args.tool, args.packed, batch, args)
    peers, version = torch_sides(args) if args.dtypes else ({}, "no PyTorch")
    sides.update(peers)
    print(f"{version}, {args.threads} threads, prompts of {args.input} tokens, {args.output} new "
          f"ones, medians of {args.rounds} rounds in turns\n")
    print("| batch | " + " | ".join(f"{side} {what}" for what in ("prompt tok/s", "new tok/s")
                                  for side in sides) + " | original over PyTorch |")
    print("| --- " * (2 + 2 * len(sides)) + "|")
    for batch in (int(word) for word in args.batches.split(",")):
        rates = {side: [] for side in sides}
        for _ in range(args.rounds):
            for side, run in sides.items():
                rates[side].append(run(batch))
        median = {side: [statistics.median(r[i] for r in runs) for i in range(2)]
                  for side, runs in rates.items()}
        ratios = [f"{name.split()[1]} {median['original'][0] / median[name][0]:.2f} prompt, "
                  f"{median['original'][1] / median[name][1]:.2f} new" for name in peers]
        cells = [f"{median[side][i]:.1f}" for i in range(2) for side in sides]
        print(f"| {batch} | " + " | ".join(cells) + " | " + "; ".join(ratios) + " |", flush=True)


main()
