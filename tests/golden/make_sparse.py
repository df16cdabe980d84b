#!/usr/bin/env python3
"""Makes sparse.safetensors: what SparseGPT prunes of the matrix in gptq.safetensors, in double, for
tests/unit/uniform/test_sparse.c.

    python3 make_sparse.py      needs numpy

Written from the equations of Frantar & Alistarh 2023 (Algorithm 1) and the conventions of IST-DASLab/sparsegpt: a ridge
of 0.01 of the mean diagonal, blocks of 128 columns, a threshold over all weights of a block.  Tensors mask_0.5, mask_0.7,
mask_2:4 and mask_4:8 [out, in] U8 (1: pruned), and dense_0.5 and dense_2:4 [out, in] F32 (the pruned matrix).
"""
import json
import os
import struct

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
BLOCK = 128


def load(path):
    """Tensors of type F32."""
    with open(path, "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
        data = f.read()
    return {
        name: np.frombuffer(data[t["data_offsets"][0] : t["data_offsets"][1]], "<f4").reshape(t["shape"])
        for name, t in header.items()
        if name != "__metadata__" and t["dtype"] == "F32"
    }


def save(path, tensors):
    header, data = {}, b""
    for name, x in sorted(tensors.items()):
        raw = x.tobytes()
        header[name] = {
            "dtype": "U8" if x.dtype == np.uint8 else "F32",
            "shape": list(x.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def factor(h):
    """U, upper triangular, with U^T U = (H + ridge)^-1."""
    damped = h + 0.01 * np.mean(np.diag(h)) * np.eye(len(h))
    return np.linalg.cholesky(np.linalg.inv(damped)).T


def prune(w, u, share=0.0, pattern=None):
    w = w.copy()
    out, columns = w.shape
    score = lambda first, last: (w[:, first:last] / np.diag(u)[first:last]) ** 2
    mask = np.zeros(w.shape, bool)
    for j in range(columns):
        if pattern is None and j % BLOCK == 0:
            end = min(j + BLOCK, columns)
            s = score(j, end)
            mask[:, j:end] = s <= np.sort(s, axis=None)[int(s.size * share)]
        if pattern is not None and j % pattern[1] == 0:
            least = np.argsort(score(j, j + pattern[1]), axis=1, kind="stable")[:, : pattern[0]]
            np.put_along_axis(mask, j + least, True, axis=1)
        lost = np.where(mask[:, j], w[:, j], 0.0)
        w[:, j:] -= np.outer(lost / u[j, j], u[j, j:])
    return mask, np.where(mask, 0.0, w)


def main():
    t = load(os.path.join(HERE, "gptq.safetensors"))
    w = t["w"].astype(np.float64)
    columns = w.shape[1]
    h = np.zeros((columns, columns))
    h[np.tril_indices(columns)] = t["lower"]
    h = np.tril(h) + np.tril(h, -1).T
    tensors = {}
    for name, how in (
        ("0.5", {"share": 0.5}),
        ("0.7", {"share": 0.7}),
        ("2:4", {"pattern": (2, 4)}),
        ("4:8", {"pattern": (4, 8)}),
    ):
        mask, dense = prune(w, factor(h), **how)
        tensors[f"mask_{name}"] = mask.astype(np.uint8)
        if name in ("0.5", "2:4"):
            tensors[f"dense_{name}"] = dense.astype(np.float32)
    save(os.path.join(HERE, "sparse.safetensors"), tensors)


main()
