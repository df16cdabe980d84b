#!/usr/bin/env python3
"""Makes aqlm.safetensors: losses of the published AQLM on the matrices of quip.safetensors, for
tests/unit/uniform/test_aqlm.c.

    python3 make_aqlm.py AQLM [MATRICES]      AQLM: a checkout of Vahe1994/AQLM (commit e79a896); needs torch and
                                              safetensors

Its defaults (residual k-means of 100 iterations, rounds of 100 steps of Adam and a beam search of one hypothesis), the
tolerance of 0.01 of its README, and vectors of 8.  Tensors: loss_I [3] F64 of each matrix I, tr(E H E^T) / tr(W H W^T)
for each of SETTINGS, the mean over SEEDS seeds.

With MATRICES, a file of matrices.py, only prints the losses of those with two codebooks of 256 and one seed.
"""
import os
import random
import sys
import types

import torch
from safetensors.torch import load_file, save_file

from matrices import HERE, loss, pairs

sys.path.insert(0, sys.argv[1])
from aq_engine import AQEngine  # noqa: E402

# bits, codebooks
SETTINGS = ((4, 2), (5, 2), (5, 3))
SEEDS = 4


def quantize(w, h, bits, codebooks, seed):
    torch.manual_seed(seed)
    random.seed(seed)
    layer = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    layer.weight.data = w.clone()
    engine = AQEngine(layer)
    engine.XTX = h.double()
    args = types.SimpleNamespace(
        devices=[torch.device("cpu")], out_group_size=1, in_group_size=8, num_codebooks=codebooks,
        nbits_per_codebook=bits, codebook_value_nbits=16, codebook_value_num_groups=1, scale_nbits=0, init_max_iter=100,
        init_max_points_per_centroid=None, lr=1e-4, max_epochs=1000, steps_per_epoch=100, relative_mse_tolerance=0.01,
        print_frequency=100, beam_size=1)
    return engine.quantize(args=args, verbose=False)().detach()


def main():
    torch.set_num_threads(1)
    given = len(sys.argv) > 2
    settings, seeds = (((8, 2),), 1) if given else (SETTINGS, SEEDS)
    tensors = {}
    for i, (w, h) in enumerate(pairs(load_file(sys.argv[2] if given else os.path.join(HERE, "quip.safetensors")))):
        losses = [sum(loss(quantize(w, h, *s, seed), w, h) for seed in range(seeds)) / seeds for s in settings]
        tensors[f"loss_{i}"] = torch.tensor(losses, dtype=torch.float64)
        print(f"matrix {i}:", *(f"{x:.6f}" for x in losses), flush=True)
    if not given:
        save_file(tensors, os.path.join(HERE, "aqlm.safetensors"))


main()
