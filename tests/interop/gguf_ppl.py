#!/usr/bin/env python3
"""Prints the perplexity that llama.cpp computes for a GGUF file: gguf_ppl.py FILE TEXT CONTEXT WINDOWS IDS

Prints the perplexity; the ids of the whole text, one a line, go to the file IDS.  Windows without
overlap over the text, which is tokenized once; the mean over the predicted tokens of each.  Keys
and values are kept in F32.  Needs: llama-cpp-python, numpy.
"""
import math
import sys

import numpy as np
from gguf_model import open_model


def main():
    path, text, context, windows, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    model = open_model(path, context)
    with open(text, "rb") as f:
        data = f.read()
    add_bos = model.metadata.get("tokenizer.ggml.add_bos_token") == "true"
    ids = model.tokenize(data, add_bos=add_bos, special=False)
    with open(out, "w") as f:
        f.writelines(f"{i}\n" for i in ids)
    nll, count = 0.0, 0
    for w in range(min(windows, len(ids) // context)):
        window = ids[w * context:(w + 1) * context]
        model.reset()
        model.eval(window)
        logits = np.asarray(model.scores[:context - 1], dtype=np.float64)
        top = logits.max(axis=1, keepdims=True)
        logsum = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
        nll += float((logsum - logits[np.arange(context - 1), window[1:]]).sum())
        count += context - 1
    print(math.exp(nll / count))


main()
