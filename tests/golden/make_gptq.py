#!/usr/bin/env python3
"""Makes gptq.safetensors: GPTQ of one matrix by llm-compressor, for tests/unit/uniform/test_uniform.c.

    python3 make_gptq.py      needs llmcompressor (0.14.0), torch and safetensors

One group is a whole row, so that its range, which llm-compressor takes from the original weights, is the same
everywhere.  Tensors: w [out, in] F32, lower [in (in + 1) / 2] F32 (the packed Hessian), and codes_BITS_GRID_ORDER
[out, in] U8, GRID sym or asym, ORDER plain or act, in the order of columns.
"""
import importlib.util
import os
import sys
import types

import numpy as np
import torch
from compressed_tensors.quantization import QuantizationArgs
from safetensors.torch import save_file


def import_quantize_weight():
    """The one module; importing the package would import datasets and all that it needs."""
    path = importlib.util.find_spec("llmcompressor").submodule_search_locations[0]
    for name in ("llmcompressor", "llmcompressor.modifiers", "llmcompressor.modifiers.gptq"):
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(path, *name.split(".")[1:])]
        sys.modules[name] = package
    from llmcompressor.modifiers.gptq.gptq_quantize import quantize_weight
    return quantize_weight


OUT, IN, TOKENS = 32, 144, 400


def problem(rng):
    """Weights with columns of different size, and the Hessian of correlated inputs."""
    w = rng.standard_normal((OUT, IN)) * np.exp(0.5 * rng.standard_normal(IN))
    x = rng.standard_normal((TOKENS, 24)) @ rng.standard_normal((24, IN)) + rng.standard_normal((TOKENS, IN))
    x *= np.exp(0.7 * rng.standard_normal(IN))
    return w.astype(np.float32), (x.T @ x / TOKENS).astype(np.float32)


def grid(w, bits, symmetric):
    """Scale, as stored in float16, and zero point of every row."""
    top = 2**bits - 1
    lo, hi = np.minimum(w.min(1), 0), np.maximum(w.max(1), 0)
    if symmetric:
        hi = np.maximum(hi, -lo)
        lo = -hi
    scale = ((hi - lo) / np.float32(top)).astype(np.float16).astype(np.float32)
    zero = np.full(len(w), (top + 1) // 2) if symmetric else np.clip(np.rint(-lo / scale), 0, top)
    return scale[:, None], zero[:, None]


def main():
    quantize_weight = import_quantize_weight()
    w, h = problem(np.random.default_rng(5))
    tensors = {"w": torch.from_numpy(w), "lower": torch.from_numpy(h[np.tril_indices(IN)].copy())}
    for bits, symmetric, order in ((3, False, None), (3, False, "weight"), (4, True, "weight"), (8, True, None)):
        scale, zero = grid(w, bits, symmetric)
        middle = 2 ** (bits - 1)
        args = QuantizationArgs(num_bits=bits, symmetric=symmetric, strategy="channel", actorder=order)
        dense, _, fallback = quantize_weight(
            torch.from_numpy(w.copy())[None], torch.from_numpy(h.copy())[None], torch.from_numpy(scale)[None],
            torch.from_numpy(zero - middle).to(torch.float32)[None], None, args)
        assert not fallback.any()
        codes = np.rint(dense[0].numpy() / scale) + zero
        name = f"codes_{bits}_{'sym' if symmetric else 'asym'}_{'act' if order else 'plain'}"
        tensors[name] = torch.from_numpy(codes.astype(np.uint8))
    save_file(tensors, os.path.join(os.path.dirname(os.path.abspath(__file__)), "gptq.safetensors"))


main()
