"""Writes ggml_quants.bin: random blocks of every GGUF block type that is read, and the floats
that the `gguf` Python package (gguf.quants.dequantize, numpy, float32) makes of them.

Little endian, per type in the order of TYPES: the blocks' bytes, then their float32 values.
BLOCKS blocks per type; the first has zero scales.  Needs: pip install numpy gguf

    python3 tests/golden/make_ggml_quants.py tests/golden/ggml_quants.bin
"""

import sys

import gguf
import numpy as np

BLOCKS = 5
# name, byte offsets of the float16 fields of a block
TYPES = [
    ("Q4_0", [0]),
    ("Q4_1", [0, 2]),
    ("Q5_0", [0]),
    ("Q5_1", [0, 2]),
    ("Q8_0", [0]),
    ("Q2_K", [80, 82]),
    ("Q3_K", [108]),
    ("Q4_K", [0, 2]),
    ("Q5_K", [0, 2]),
    ("Q6_K", [208]),
]


def main():
    rng = np.random.default_rng(7)
    with open(sys.argv[1], "wb") as out:
        for name, halves in TYPES:
            kind = gguf.GGMLQuantizationType[name]
            size = gguf.GGML_QUANT_SIZES[kind][1]
            blocks = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
            for at in halves:
                # ordinary scales, and one block of subnormal ones
                scale = rng.standard_normal(BLOCKS) * 0.02
                scale[0] = 0.0
                scale[1] *= 1e-5
                raw = scale.astype("<f2").view(np.uint8).reshape(BLOCKS, 2)
                blocks[:, at : at + 2] = raw
            values = gguf.quants.dequantize(blocks.reshape(-1), kind)
            assert values.dtype == np.float32 and np.isfinite(values).all()
            out.write(blocks.tobytes())
            out.write(values.astype("<f4").tobytes())


main()
