"""Writes the Hessian terms of k and v for weighted tokens, computed with PyTorch in double.

For every block, from the input x of k_proj and the attention probabilities p of eager attention:
    sink       mean over windows of x_0 x_0^T
    attention  mean over windows of sum_t a_t x_t x_t^T, a_t = mean over heads and queries of p^2
Each is one [layers, n (n + 1) / 2] array, the lower triangle row by row.  `ids` windows are read
from a .npy or .i32 file.  Needs: pip install numpy torch transformers

    python3 tests/golden/make_attention_term.py MODEL IDS WINDOWS LENGTH tests/golden/attention_term/NAME
"""

import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def lower(m):
    return m[np.tril_indices(m.shape[0])]


def main():
    path, ids_path, windows, length, out = sys.argv[1:]
    windows, length = int(windows), int(length)
    ids = np.load(ids_path) if ids_path.endswith(".npy") else np.fromfile(ids_path, np.int32)
    ids = ids.reshape(-1)[: windows * length].astype(np.int32)
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float64)
    layers = model.model.layers
    inputs = [None] * len(layers)
    for i, layer in enumerate(layers):
        layer.self_attn.k_proj.register_forward_pre_hook(
            lambda _, args, i=i: inputs.__setitem__(i, args[0][0].detach().numpy()))
    n = model.config.hidden_size
    sink = np.zeros((len(layers), n, n))
    attention = np.zeros((len(layers), n, n))
    for window in ids.reshape(windows, length):
        with torch.no_grad():
            p = model(torch.tensor(window[None].astype(np.int64)), output_attentions=True).attentions
        for i, x in enumerate(inputs):
            a = (p[i][0].numpy() ** 2).mean(axis=(0, 1))
            sink[i] += np.outer(x[0], x[0]) / windows
            attention[i] += (x.T * a) @ x / windows
    ids.astype("<i4").tofile(out + "_ids.i32")
    for name, term in (("sink", sink), ("attention", attention)):
        np.save(f"{out}_{name}.npy", np.stack([lower(t) for t in term]).astype(np.float32))


main()
