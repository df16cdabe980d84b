#!/usr/bin/env python3
"""Matrices with Hessians on which make_aqlm.py, make_gptvq.py and make_quip.py measure published code.

    python3 matrices.py MODEL HESSIANS MATRICES LAYER.NAME ..      such as 15.k_proj; needs torch and safetensors

writes MATRICES, a safetensors file, from a Hugging Face directory and a Hessian directory of its model, without the
terms of weighted tokens (vptq-quantize --kv-factor 0).  Tensors of each matrix I: w_I [out, in] F32 and lower_I
[in (in + 1) / 2] F32, the packed Hessian.
"""
import os
import sys

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
INPUTS = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "o_proj": "o", "gate_proj": "up", "up_proj": "up",
          "down_proj": "down"}
TOKENS = 400


def problem(rng, rows, columns):
    """Weights as large as those of language models, for which the steps of published code are made, with columns of
    different size, and the Hessian of correlated inputs."""
    w = 0.02 * rng.standard_normal((rows, columns)) * np.exp(0.5 * rng.standard_normal(columns))
    x = rng.standard_normal((TOKENS, 24)) @ rng.standard_normal((24, columns)) + rng.standard_normal((TOKENS, columns))
    x *= np.exp(0.7 * rng.standard_normal(columns))
    return w.astype(np.float32), (x.T @ x / TOKENS).astype(np.float32)


def synthetic(shapes):
    tensors = {}
    for i, (out, columns) in enumerate(shapes):
        w, h = problem(np.random.default_rng(5 + i), out, columns)
        tensors[f"w_{i}"] = torch.from_numpy(w)
        tensors[f"lower_{i}"] = torch.from_numpy(h[np.tril_indices(columns)].copy())
    return tensors


def pairs(tensors):
    """w_I and the whole Hessian, for each I."""
    i = 0
    while f"w_{i}" in tensors:
        w = tensors[f"w_{i}"]
        n = w.shape[1]
        h = torch.zeros(n, n)
        h[tuple(torch.tril_indices(n, n))] = tensors[f"lower_{i}"]
        yield w, torch.tril(h) + torch.tril(h, -1).T
        i += 1


def loss(what, w, h):
    """tr(E H E^T) / tr(W H W^T)."""
    e, h, w = (what - w).double(), h.double(), w.double()
    return float(torch.sum(e @ h * e) / torch.sum(w @ h * w))


def main():
    model, hessians, path, *names = sys.argv[1:]
    tensors = {}
    with safe_open(os.path.join(model, "model.safetensors"), "pt") as weights:
        for i, (layer, name) in enumerate(matrix.split(".") for matrix in names):
            part = "mlp" if INPUTS[name] in ("up", "down") else "self_attn"
            tensors[f"w_{i}"] = weights.get_tensor(f"model.layers.{layer}.{part}.{name}.weight").float()
            file = f"layer_{int(layer):03d}_{INPUTS[name]}.safetensors"
            tensors[f"lower_{i}"] = load_file(os.path.join(hessians, file))["hessian"]
    save_file(tensors, path)


if __name__ == "__main__":
    main()
