#!/usr/bin/env python3
"""Makes gptvq.safetensors: losses of the published GPTVQ, for tests/unit/uniform/test_gptvq.c.

    python3 make_gptvq.py REPOSITORY [MATRICES]   needs torch, transformers and safetensors, and a checkout of
                                                  github.com/Qualcomm-AI-research/gptvq

Options are those of its paper: Mahalanobis initialization, 100 iterations of k-means, lookups weighted by the Hessian,
codebooks of 8 bits, and the M-step.  Tensors of each matrix I: those of matrices.py, and loss_I [1] F64,
tr(E H E^T) / tr(W H W^T).

With MATRICES, a file of matrices.py, only prints the losses of those, with the settings GIVEN.
"""
import os
import sys

import torch
from safetensors.torch import load_file, save_file

from matrices import HERE, loss, pairs, synthetic

sys.path.insert(0, sys.argv[1])
from gptq import GPTQ  # noqa: E402
from vq_quant import VQQuantizer  # noqa: E402

SHAPES = [(48, 96), (32, 128), (64, 64)]
# bits per weight, vector length, rows and columns that share a codebook
SETTINGS = [(2, 2, 8, 48), (3, 2, 16, 128), (2, 4, 32, 64)]
GIVEN = (2, 2, 8, 192)


def quantize(w, h, bits, v, rows, columns):
    layer = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    layer.weight.data = w.clone()
    gptq = GPTQ(layer)
    gptq.H = h.clone()
    gptq.quantizer = VQQuantizer(vq_dim=v, columns_per_group=columns, kmeans_init_method="mahalanobis",
                                 kmeans_iters=100, codebook_bitwidth=8, quantize_per_codebook=True)
    gptq.quantizer.configure(bits)
    with torch.no_grad():
        gptq.fasterquant(percdamp=0.01, groupsize=rows * columns, use_vq=True, include_m_step=True,
                         hessian_weighted_lookups=True)
    return layer.weight.data


def main():
    torch.cuda.synchronize = lambda: None
    torch.set_num_threads(1)
    torch.manual_seed(0)
    given = len(sys.argv) > 2
    tensors = load_file(sys.argv[2]) if given else synthetic(SHAPES)
    for i, (w, h) in enumerate(pairs(tensors)):
        found = loss(quantize(w, h, *(GIVEN if given else SETTINGS[i])), w, h)
        tensors[f"loss_{i}"] = torch.tensor([found], dtype=torch.float64)
        print(f"matrix {i}: loss {found:.6f}", flush=True)
    if not given:
        save_file(tensors, os.path.join(HERE, "gptvq.safetensors"))


main()
