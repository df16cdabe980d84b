#!/usr/bin/env python3
"""Makes dbllm.safetensors: what DB-LLM makes of the matrix in gptq.safetensors, in double, for
tests/unit/uniform/test_dbllm.c.

    python3 make_dbllm.py      needs numpy

Written from the equations of Chen et al. 2024 (arXiv 2402.11960, "flexible dual binarization"), groups of 64 columns:

    w = a1 b1 + a2 b2      b1 = H(w - (a1 + a2) / 2)      b2 = H(-(w - a1 b1 - a2 / 2))      a1 = 2s, a2 = -s

H(x) is 1 for x >= 0.  The step s is that of 2-bit rounding (docs/methods.md); groups that reach further below 0 than
above are negated.  Then the rounds of docs/methods.md in place of the paper's training.  Tensors: codes [out, in] U8 (b1 +
2 b2 of the start), alpha [2, out, groups] F32 (of the start, rounded to float16), fitted [out, in] F32 (the matrix after
the rounds, a1 and a2 not rounded).
"""
import json
import os
import struct

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
GROUP = 64


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
        kind = "U8" if x.dtype == np.uint8 else "F32"
        header[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def start(w):
    """b1, b2 [rows, columns] and a1, a2 [rows] of one group."""
    lo, hi = np.minimum(w.min(1), 0), np.maximum(w.max(1), 0)
    s = ((hi - lo) / np.float32(3)).astype(np.float16).astype(np.float64)
    sign = np.where(np.rint(-lo / s) < 2, 1.0, -1.0)
    a1, a2 = 2 * s, -s
    u = sign[:, None] * w
    b1 = u - (a1 + a2)[:, None] / 2 >= 0
    b2 = -(u - a1[:, None] * b1 - a2[:, None] / 2) >= 0
    return b1.astype(float), b2.astype(float), sign * a1, sign * a2


def fit(w, h, groups, state, tolerance=0.01):
    """Rounds: a1 and a2 of every group by least squares, then every weight its best level."""
    q = np.zeros_like(w)
    for g, (b1, b2, a1, a2) in zip(groups, state):
        q[:, g] = a1[:, None] * b1 + a2[:, None] * b2
    before = np.sum((q - w) @ h * (q - w))
    while True:
        for g, (b1, b2, a1, a2) in zip(groups, state):
            for r in range(len(w)):
                b = np.stack([b1[r], b2[r]], 1)
                rest = w[r] - q[r]
                rest[g] = w[r, g]
                a, *_ = np.linalg.lstsq(b.T @ h[g, g] @ b, b.T @ h[g] @ rest, rcond=1e-9)
                a1[r], a2[r] = a
                q[r, g] = b @ a
            for c in range(g.start, g.stop):
                levels = np.stack([0 * a1, a1, a2, a1 + a2], 1)
                step = levels - q[:, c : c + 1]
                change = step * (2 * ((q - w) @ h[:, c])[:, None] + step * h[c, c])
                best = change.argmin(1)
                b1[:, c - g.start], b2[:, c - g.start] = best & 1, best >> 1
                q[:, c] = np.take_along_axis(levels, best[:, None], 1)[:, 0]
        loss = np.sum((q - w) @ h * (q - w))
        if not loss < (1 - tolerance) * before:
            return q
        before = loss


def main():
    t = load(os.path.join(HERE, "gptq.safetensors"))
    w, columns = t["w"], t["w"].shape[1]
    h = np.zeros((columns, columns))
    h[np.tril_indices(columns)] = t["lower"]
    h = np.tril(h) + np.tril(h, -1).T
    groups = [slice(c, min(c + GROUP, columns)) for c in range(0, columns, GROUP)]
    state = [start(w[:, g]) for g in groups]
    tensors = {
        "codes": np.concatenate([b1 + 2 * b2 for b1, b2, _, _ in state], 1).astype(np.uint8),
        "alpha": np.stack([np.stack([s[k] for s in state], 1) for k in (2, 3)]).astype(np.float32),
    }
    w = w.astype(np.float64)
    fitted = fit(w, h, groups, state)
    print("loss:", np.sum((fitted - w) @ h * (fitted - w)) / np.sum(w @ h * w))
    tensors["fitted"] = fitted.astype(np.float32)
    save(os.path.join(HERE, "dbllm.safetensors"), tensors)


main()
