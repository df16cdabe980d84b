#!/usr/bin/env python3
"""Writes q8_0.bin: float32 blocks of 32, then the Q8_0 bytes that the `gguf` Python package makes from them.

    make_q8_0.py tests/golden/q8_0.bin          needs: pip install numpy gguf
"""
import sys

import gguf
import numpy as np

rng = np.random.default_rng(11)
x = rng.standard_normal((8, 32)).astype(np.float32)
x[1] = 0
x[2] *= 1e-7  # a scale that is a subnormal half
x[3] = np.arange(32) * 0.5 - 8  # halves: rounded away from zero
x[3, 0] = 127
x[4] *= 1e4
x[5] = -x[5, 0]
with open(sys.argv[1], "wb") as out:
    out.write(x.tobytes())
    out.write(gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0).tobytes())
