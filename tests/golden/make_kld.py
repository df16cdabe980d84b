"""Writes kld.json: divergence of a perturbed stories260K from the plain one, in float64 NumPy:
all figures over whole windows and over their second halves, by the formulas of llama.cpp's
perplexity tool; and the divergence when only the likeliest ids of the plain model are known.

The model is llama2.c's file, the perturbation is that of tests/unit/eval/test_kld.c: float i
of the file behind the header is multiplied by 1 + u(i) / 8.  Needs: pip install numpy

    python3 tests/golden/make_kld.py DATA tests/golden/kld.json      DATA: the data directory
"""

import json
import sys

import numpy as np
from kld_figures import figures

WINDOWS, CONTEXT = 4, 256


def perturb(w):
    i = np.arange(w.size, dtype=np.uint64)
    u = (i * np.uint64(2654435761) % np.uint64(1 << 32)).astype(np.float64) / 2.0**31 - 1
    return (w.astype(np.float64) * (1 + u / 8)).astype(np.float32)


def parts(head, w):
    dim, hidden, layers, heads, kv_heads, vocab, _ = head
    kv = dim // heads * kv_heads
    shapes = [("embed", (vocab, dim)), ("norm1", (layers, dim)), ("wq", (layers, dim, dim)),
              ("wk", (layers, kv, dim)), ("wv", (layers, kv, dim)), ("wo", (layers, dim, dim)),
              ("norm2", (layers, dim)), ("w1", (layers, hidden, dim)),
              ("w2", (layers, dim, hidden)), ("w3", (layers, hidden, dim)), ("norm", (dim,))]
    out, at = {}, 0
    for name, shape in shapes:
        n = int(np.prod(shape))
        out[name] = w[at:at + n].reshape(shape).astype(np.float64)
        at += n
    return out


def rms(x, weight):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5) * weight


def rotate(x, dim):
    """Neighbouring pairs, as llama2.c does; x [tokens, heads, dim]."""
    angle = np.outer(np.arange(x.shape[0]), 10000.0 ** (-np.arange(0, dim, 2) / dim))
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * c - x[..., 1::2] * s
    out[..., 1::2] = x[..., 0::2] * s + x[..., 1::2] * c
    return out


def log_probabilities(head, p, ids):
    dim, _, layers, heads, kv_heads, _, _ = head
    size, n = dim // heads, len(ids)
    x = p["embed"][ids]
    mask = np.triu(np.full((n, n), -np.inf), 1)
    for l in range(layers):
        h = rms(x, p["norm1"][l])
        q = rotate((h @ p["wq"][l].T).reshape(n, heads, size), size)
        k = rotate((h @ p["wk"][l].T).reshape(n, kv_heads, size), size)
        v = (h @ p["wv"][l].T).reshape(n, kv_heads, size)
        k, v = (np.repeat(a, heads // kv_heads, axis=1) for a in (k, v))
        a = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(size) + mask
        a = np.exp(a - a.max(-1, keepdims=True))
        a /= a.sum(-1, keepdims=True)
        x = x + np.einsum("hij,jhd->ihd", a, v).reshape(n, dim) @ p["wo"][l].T
        h = rms(x, p["norm2"][l])
        g = h @ p["w1"][l].T
        x = x + (g / (1 + np.exp(-g)) * (h @ p["w3"][l].T)) @ p["w2"][l].T
    z = rms(x, p["norm"]) @ p["embed"].T
    z -= z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def lumped(b, m, top):
    """Divergence over the `top` likeliest ids of b and one bucket for all others, and b's probability of that."""
    known = np.zeros(b.shape, bool)
    np.put_along_axis(known, np.argsort(-b, axis=1, kind="stable")[:, :top], True, axis=1)
    p, q = np.where(known, 0, np.exp(b)).sum(1), np.where(known, 0, np.exp(m)).sum(1)
    return np.where(known, np.exp(b) * (b - m), 0).sum(1) + p * np.log(p / q), p


def main(data, out):
    raw = open(f"{data}/models/stories260K/stories260K.bin", "rb").read()
    head = [int(i) for i in np.frombuffer(raw[:28], dtype="<i4")]
    w = np.frombuffer(raw[28:], dtype="<f4")
    base, model = parts(head, w), parts(head, perturb(w))
    windows = np.load(f"{data}/models/stories260K-hf/ppl_tokens.npy")[:WINDOWS].astype(np.int64)
    rows, tops = [[], []], {16: [], 128: []}
    for ids in windows:
        b = log_probabilities(head, base, ids)[:-1]
        m = log_probabilities(head, model, ids)[:-1]
        at = np.arange(CONTEXT - 1)
        all_rows = np.stack([np.sum(np.exp(b) * (b - m), axis=1), b.argmax(1) == m.argmax(1),
                             -m[at, ids[1:]], -b[at, ids[1:]]])
        for top, values in tops.items():
            values.append(lumped(b, m, top))
        rows[0].append(all_rows)
        rows[1].append(all_rows[:, CONTEXT // 2:])
    result = {name: figures(*np.concatenate(r, axis=1)) for name, r in zip(("gptq", "llama.cpp"), rows)}
    for top, values in tops.items():
        kld, tail = np.concatenate(values, axis=1)
        result[f"top{top}"] = {"mean_kld": kld.mean(), "max_kld": kld.max(), "base_tail": tail.mean()}
    with open(out, "w", encoding="ascii") as f:
        json.dump(result, f, indent=1)
        f.write("\n")


main(*sys.argv[1:])
