#!/usr/bin/env python3
"""Writes q6_k.bin: float32 blocks of 256, then the Q6_K bytes that ggml's quantize_row_q6_K_ref makes from them.

    make_q6_k.py tests/golden/q6_k.bin          needs: pip install numpy pywhispercpp (which has ggml)
"""
import ctypes
import importlib.metadata
import sys

import numpy as np

BLOCKS = 8
rng = np.random.default_rng(12)
x = rng.standard_normal((BLOCKS, 256)).astype(np.float32)
x[1] = 0
x[2] *= 1e-4  # a scale that is a subnormal half
x[3] = np.arange(256) % 64 * 0.5 - 16  # halves: rounded to even
x[4] *= 1e4
x[5] = np.where(np.arange(256) % 16 == 3, x[5], 0)
x[6] *= np.repeat(10.0 ** -np.arange(16), 16)  # runs with scales that round to 0, whose numbers ggml leaves undefined
x[7] = 0.25
library = ctypes.CDLL(importlib.metadata.distribution("pywhispercpp").locate_file("libggml-base.so"))
made = np.zeros(BLOCKS * 210, np.uint8)
library.quantize_row_q6_K_ref(x.ctypes.data_as(ctypes.c_void_p), made.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(x.size))
with open(sys.argv[1], "wb") as out:
    out.write(x.tobytes())
    out.write(made.tobytes())
