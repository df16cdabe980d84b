#!/usr/bin/env python3
"""Makes aqlm.safetensors: what the published AQLM makes of the matrix in gptq.safetensors, for
tests/unit/uniform/test_aqlm.c.

    python3 make_aqlm.py AQLM      AQLM: a checkout of Vahe1994/AQLM (commit e79a896); needs torch and safetensors

Its defaults (residual k-means of 100 iterations, rounds of 100 steps of Adam and a beam search of one hypothesis) and the
tolerance of 0.01 of its README.  Tensors: BITSxCODEBOOKS [out, in] F32, the decoded matrix, in vectors of 8.
"""
import os
import random
import sys
import types

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, sys.argv[1])
from aq_engine import AQEngine  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


def quantize(w, h, bits, codebooks):
    torch.manual_seed(0)
    random.seed(0)
    layer = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    layer.weight.data = w.clone()
    engine = AQEngine(layer)
    engine.XTX = h
    args = types.SimpleNamespace(
        devices=[torch.device("cpu")], out_group_size=1, in_group_size=8, num_codebooks=codebooks,
        nbits_per_codebook=bits, codebook_value_nbits=16, codebook_value_num_groups=1, scale_nbits=0, init_max_iter=100,
        init_max_points_per_centroid=None, lr=1e-4, max_epochs=1000, steps_per_epoch=100, relative_mse_tolerance=0.01,
        print_frequency=100, beam_size=1)
    return engine.quantize(args=args, verbose=False)().detach()


def main():
    t = load_file(os.path.join(HERE, "gptq.safetensors"))
    columns = t["w"].shape[1]
    h = torch.zeros(columns, columns, dtype=torch.float64)
    rows = torch.tril_indices(columns, columns)
    h[rows[0], rows[1]] = t["lower"].double()
    h = h.tril() + h.tril(-1).T
    tensors = {}
    for bits, codebooks in ((4, 2), (5, 2), (5, 3)):
        q = quantize(t["w"], h, bits, codebooks)
        e = (q - t["w"]).double()
        print(f"{bits}x{codebooks}:", float(((e @ h) * e).sum() / ((t["w"].double() @ h) * t["w"]).sum()))
        tensors[f"{bits}x{codebooks}"] = q
    save_file(tensors, os.path.join(HERE, "aqlm.safetensors"))


main()
