#!/usr/bin/env python3
"""Makes gptvq.safetensors: losses of the published GPTVQ, for tests/unit/uniform/test_gptvq.c.

    python3 make_gptvq.py REPOSITORY      needs torch, transformers and safetensors, and a checkout of
                                          github.com/Qualcomm-AI-research/gptvq

Options are those of its paper: Mahalanobis initialization, 100 iterations of k-means, lookups weighted by the Hessian,
codebooks of 8 bits, and the M-step.  Tensors of each matrix I: w_I [out, in] F32, lower_I [in (in + 1) / 2] F32 (the
packed Hessian), and loss_I [1] F64, tr(E H E^T) / tr(W H W^T).
"""
import os
import sys

import numpy as np
import torch
from safetensors.torch import save_file

sys.path.insert(0, sys.argv[1])
from gptq import GPTQ  # noqa: E402
from vq_quant import VQQuantizer  # noqa: E402

# out, in, bits per weight, vector length, rows and columns that share a codebook
CASES = [(48, 96, 2, 2, 8, 48), (32, 128, 3, 2, 16, 128), (64, 64, 2, 4, 32, 64)]
TOKENS = 400


def problem(rng, rows, columns):
    """Weights as large as those of language models, for which the steps of the M-step are made, with columns of
    different size, and the Hessian of correlated inputs."""
    w = 0.02 * rng.standard_normal((rows, columns)) * np.exp(0.5 * rng.standard_normal(columns))
    x = rng.standard_normal((TOKENS, 24)) @ rng.standard_normal((24, columns)) + rng.standard_normal((TOKENS, columns))
    x *= np.exp(0.7 * rng.standard_normal(columns))
    return w.astype(np.float32), (x.T @ x / TOKENS).astype(np.float32)


def published(w, h, bits, v, rows, columns):
    layer = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    layer.weight.data = torch.from_numpy(w.copy())
    gptq = GPTQ(layer)
    gptq.H = torch.from_numpy(h.copy())
    gptq.quantizer = VQQuantizer(vq_dim=v, columns_per_group=columns, kmeans_init_method="mahalanobis",
                                 kmeans_iters=100, codebook_bitwidth=8, quantize_per_codebook=True)
    gptq.quantizer.configure(bits)
    with torch.no_grad():
        gptq.fasterquant(percdamp=0.01, groupsize=rows * columns, use_vq=True, include_m_step=True,
                         hessian_weighted_lookups=True)
    e = layer.weight.data.double().numpy() - w.astype(np.float64)
    h64, w64 = h.astype(np.float64), w.astype(np.float64)
    return np.sum(e @ h64 * e) / np.sum(w64 @ h64 * w64)


def main():
    torch.cuda.synchronize = lambda: None
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tensors = {}
    for i, (out, columns, bits, v, rows, group) in enumerate(CASES):
        w, h = problem(np.random.default_rng(5 + i), out, columns)
        tensors[f"w_{i}"] = torch.from_numpy(w)
        tensors[f"lower_{i}"] = torch.from_numpy(h[np.tril_indices(columns)].copy())
        loss = published(w, h, bits, v, rows, group)
        tensors[f"loss_{i}"] = torch.tensor([loss], dtype=torch.float64)
        print(f"matrix {i}: loss {loss:.6f}")
    save_file(tensors, os.path.join(os.path.dirname(os.path.abspath(__file__)), "gptvq.safetensors"))


main()
