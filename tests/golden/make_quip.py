#!/usr/bin/env python3
"""Makes quip.safetensors: losses of the published QuIP# without fine-tuning, for tests/unit/uniform/test_quip.c.

    python3 make_quip.py REPOSITORY [MATRICES]   needs torch, transformers and safetensors, and a checkout of
                                                 github.com/Cornell-RelaxML/quip-sharp

The functions of its algo/quip.py and of its codebooks run on the CPU; only decoding of packed codes needs its CUDA
extensions, and is not called.  Options are its defaults; H is divided by its mean diagonal and gets sigma_reg, as
quantize_linear does.  Tensors of each matrix I: those of matrices.py, and loss_I [3] F64, tr(E H E^T) / tr(W H W^T) for
2, 3 and 4 bits, the mean over SEEDS draws of signs.

With MATRICES, a file of matrices.py, only prints the losses of those.
"""
import argparse
import importlib
import logging
import os
import sys
import types

import torch
from safetensors.torch import load_file, save_file

from matrices import HERE, loss, pairs, synthetic

SHAPES = [(64, 96), (48, 160), (96, 128)]
CODEBOOKS = [
    ("latticee8_padded12", "E8P12_codebook"),
    ("latticee8_padded12_rvq3bit", "E8P12RVQ3B_codebook"),
    ("latticee8_padded12_rvq4bit", "E8P12RVQ4B_codebook"),
]
SEEDS, SIGMA_REG = 4, 1e-2
OPTIONS = argparse.Namespace(use_fp64=False, rescale_WH=False, incoh_mode="had", lora_rank=0, scale_override=-1,
                             resid_scale_override=-1, quip_tune_iters=10, no_use_buffered=True)


def import_published(path):
    """Its modules, with empty ones for the CUDA extensions, the log, and packages that only collect them."""
    for name in ("quiptools_cuda", "fast_hadamard_transform", "glog"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["glog"].info = logging.debug
    for name in ("lib", "lib.codebook", "lib.algo", "lib.utils"):
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(path, *name.split("."))]
        sys.modules[name] = package
    utils = sys.modules["lib.utils"]
    sys.modules["lib"].utils = utils
    for name in ("matmul_had", "math_utils"):
        module = importlib.import_module(f"lib.utils.{name}")
        vars(utils).update({key: value for key, value in vars(module).items() if not key.startswith("_")})
    utils.clean = lambda: None
    codebooks = [getattr(importlib.import_module(f"lib.codebook.{file}"), name) for file, name in CODEBOOKS]
    return importlib.import_module("lib.algo.quip"), [codebook() for codebook in codebooks]


def published(quip, codebook, w, h):
    """The mean loss; the codebook packs codes of 16 rows at least."""
    total = 0
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        scale = w.square().mean().sqrt()
        damped = sys.modules["lib.utils"].regularize_H(h.clone(), len(h), SIGMA_REG)
        codebook.maybe_pack_idxs = lambda codes: codes
        with torch.no_grad():
            what, _ = quip.quantize(damped, w / scale, 0, codebook, OPTIONS)
        total += loss(what * scale, w, h)
    return total / SEEDS


def main():
    torch.set_num_threads(1)
    quip, codebooks = import_published(os.path.abspath(sys.argv[1]))
    given = len(sys.argv) > 2
    tensors = load_file(sys.argv[2]) if given else synthetic(SHAPES)
    for i, (w, h) in enumerate(pairs(tensors)):
        losses = [published(quip, codebook, w, h) for codebook in codebooks]
        tensors[f"loss_{i}"] = torch.tensor(losses, dtype=torch.float64)
        print(f"matrix {i}:", *(f"{x:.6f}" for x in losses), flush=True)
    if not given:
        save_file(tensors, os.path.join(HERE, "quip.safetensors"))


main()
