#!/usr/bin/env python3
"""Writes ggml_blocks.bin: BLOCKS x 256 float32 numbers, then, per type in the order of TYPES, the blocks that ggml's
reference quantizers (quantize_row_*_ref) make of them.

    make_ggml_blocks.py tests/golden/ggml_blocks.bin          needs: pip install numpy pywhispercpp (which has ggml)
"""
import ctypes
import importlib.metadata
import sys

import numpy as np

# name, numbers and bytes of a block
TYPES = [
    ("q4_0", 32, 18),
    ("q4_1", 32, 20),
    ("q5_0", 32, 22),
    ("q5_1", 32, 24),
    ("q8_0", 32, 34),
    ("q2_K", 256, 84),
    ("q3_K", 256, 110),
    ("q4_K", 256, 144),
    ("q5_K", 256, 176),
    ("q6_K", 256, 210),
]
BLOCKS = 8


def numbers():
    rng = np.random.default_rng(12)
    x = rng.standard_normal((BLOCKS, 256))
    x[1] = 0
    x[2] *= 1e-6  # scales that are subnormal halves
    x[3] = np.arange(256) % 64 * 0.5 - 16  # halves: to be rounded to even, or away from zero
    x[4] *= 1e4
    x[5] = np.where(np.arange(256) % 16 == 3, 40 * x[5], 0)  # outliers among zeros
    x[6] *= np.repeat(10.0 ** -np.arange(16), 16)  # runs whose scales round to 0
    constant = np.repeat([0.25, -0.25, 5, -5, 1e-14, -1e-16, -0.0, 300], 32)
    x[7] = np.where(np.arange(256) // 16 % 2, constant * (1 + 1e-6 * x[7]), constant)
    return x.astype(np.float32)


def main():
    library = ctypes.CDLL(importlib.metadata.distribution("pywhispercpp").locate_file("libggml-base.so"))
    x = numbers()
    with open(sys.argv[1], "wb") as out:
        out.write(x.astype("<f4").tobytes())
        for name, block, size in TYPES:
            made = np.zeros(x.size // block * size, np.uint8)
            quantize = getattr(library, f"quantize_row_{name}_ref")
            quantize(x.ctypes.data_as(ctypes.c_void_p), made.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(x.size))
            out.write(made.tobytes())


main()
