"""Compares vptq-eval ppl and kld with the same figures from the logits of other programs.

    evaluation.py transformers BASE MODEL TEXT CONTEXT WINDOWS
    evaluation.py llama.cpp BASE.gguf MODEL.gguf TEXT CONTEXT WINDOWS [OUR_BASE OUR_MODEL]

BASE and MODEL are what vptq-eval reads and, in the first form, plain directories that transformers reads, too
(vptq-pack --unpack --dtype f32).  Every figure may be 0.1 % off; a quantile, whose value may be next to nothing, 0.1 % of
the mean divergence or of the root mean square; a fraction of tokens, one token.  Prints a table for each protocol, or for
llama.cpp for its own, and exits with 1 when a figure is further off.  $BIN has the tools.
"""
import json
import os
import subprocess
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden"))
from kld_figures import figures

SRC = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
BIN = os.environ.get("BIN", os.path.join(SRC, "build/bin"))
WITHIN = 1e-3


# ---- figures from logits ----


def log_probabilities(logits):
    z = np.asarray(logits, np.float64)
    z = z - z.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


def rows(base, model, ids):
    """Divergence, same likeliest token, losses of model and base of every predicted token of a window, from logits."""
    b, m = log_probabilities(base[:len(ids) - 1]), log_probabilities(model[:len(ids) - 1])
    at = np.arange(len(ids) - 1)
    return np.stack([(np.exp(b) * (b - m)).sum(1), b.argmax(1) == m.argmax(1), -m[at, ids[1:]], -b[at, ids[1:]]])


def windows_of(ids, context, count, first=None):
    """`count` windows; with `first` as their first id."""
    for w in range(min(count, len(ids) // context)):
        window = np.array(ids[w * context:(w + 1) * context])
        if first is not None:
            window[0] = first
        yield window


# ---- other programs ----


class Transformers:
    """Both protocols from one run where no BOS is put in front.  `load` makes a model of a directory."""

    def __init__(self, base, model, load=None):
        import torch
        import transformers
        transformers.logging.set_verbosity_error()

        def plain(path):
            return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32,
                                                                     attn_implementation="eager").eval()

        self.torch = torch
        self.models = [plain(base), (load or plain)(model)]
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(base)

    def logits(self, ids):
        with self.torch.no_grad():
            return [m(self.torch.tensor(ids[None])).logits[0].numpy() for m in self.models]

    def figures(self, text, context, count):
        ids = np.array(self.tokenizer(open(text, encoding="utf-8", newline="").read()).input_ids)
        bos = self.tokenizer.bos_token_id if ids[0] == self.tokenizer.bos_token_id else None
        whole, half, size = [], [], 0
        for w in windows_of(ids, context, count):
            whole.append(rows(*self.logits(w), w))
            size += sum(len(t) for t in self.tokenizer.convert_ids_to_tokens(w[1:]))  # a character for each byte
        for i, w in enumerate(windows_of(ids, context, count, bos)):
            r = whole[i] if bos is None else rows(*self.logits(w), w)
            half.append(r[:, context // 2:])
        result = {"gptq": figures(*np.concatenate(whole, 1)), "llama.cpp": figures(*np.concatenate(half, 1))}
        result["gptq"]["bits_per_byte"] = np.concatenate(whole, 1)[2].sum() / np.log(2) / size
        return result


class LlamaCpp:
    """The protocol of its perplexity tool: second halves, BOS before every window if the tokenizer adds one."""

    def __init__(self, base, model):
        self.paths = base, model

    def figures(self, text, context, count):
        from gguf_model import open_model
        kept = []
        for path in self.paths:  # one after the other: two models in memory at once are not needed
            model = open_model(path, context)
            bos = model.token_bos() if model.metadata.get("tokenizer.ggml.add_bos_token") == "true" else None
            ids = model.tokenize(open(text, "rb").read(), add_bos=bos is not None, special=False)
            logits = []
            for w in windows_of(ids, context, count, bos):
                model.reset()
                model.eval(w.tolist())
                logits.append(np.array(model.scores[context // 2:context], np.float32))
            kept.append(logits)
            model.close()
        windows = windows_of(ids, context, count, bos)
        parts = [rows(b, m, w[context // 2:]) for b, m, w in zip(*kept, windows)]
        return {"llama.cpp": figures(*np.concatenate(parts, 1))}


# ---- compared with ours ----


def ours(base, model, text, context, count, protocol):
    common = ["--text", text, "--context", str(context), "--windows", str(count), "--protocol", protocol, "-q", "--format",
              "json"]

    def run(*arguments):
        return json.loads(subprocess.run([os.path.join(BIN, "vptq-eval"), *arguments, *common], check=True,
                                         stdout=subprocess.PIPE).stdout)

    return run("kld", "-m", model, "--base", base), run("ppl", "-m", model)


def allowed(key, want, theirs):
    if key.endswith("_kld"):
        return WITHIN * max(abs(want), theirs["mean_kld"])
    if key.endswith("delta_p") and key != "rms_delta_p":
        return WITHIN * max(abs(want), theirs["rms_delta_p"])
    if key == "same_top1":
        return max(WITHIN * want, 1.5 / theirs["tokens"])
    if key in ("ln_ppl_ratio", "ppl_difference"):
        return WITHIN * max(abs(want), theirs[key + "_stderr"])
    return WITHIN * abs(want)


def compare(kld, ppl, theirs, show=print):
    """Shows every figure; returns the keys that are too far off."""
    wrong = []
    for key, want in theirs.items():
        got = kld[key] if key in kld else ppl[key]
        bad = not abs(got - want) <= allowed(key, want, theirs)
        if key in ("ppl", "ppl_stderr"):
            bad = bad or not abs(ppl[key] - want) <= WITHIN * abs(want)
        show(f"| `{key}` | {got:.6g} | {want:.6g} | {abs(got / want - 1) if want else abs(got):.1e} |{' WRONG' * bad}")
        wrong += [key] * bad
    return wrong


def main():
    program, base, model, text, context, count = sys.argv[1:7]
    theirs = {"transformers": Transformers, "llama.cpp": LlamaCpp}[program](base, model)
    base, model = sys.argv[7:9] if len(sys.argv) > 7 else (base, model)
    wrong = []
    for protocol, figures_ in theirs.figures(text, int(context), int(count)).items():
        print(f"| {protocol} protocol | vptq-eval | {program} | off |\n| --- | --- | --- | --- |")
        wrong += compare(*ours(base, model, text, context, count, protocol), figures_)
        print()
    if wrong:
        sys.exit(f"too far off: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
