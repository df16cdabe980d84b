"""Writes kld.json: divergence of a perturbed stories260K from the plain one, in float64 NumPy.

The model is llama2.c's file, the perturbation is that of tests/unit/test_divergence.c: float i
of the file behind the header is multiplied by 1 + u(i) / 8.  Needs: pip install numpy

    python3 tests/golden/make_kld.py DATA tests/golden/kld.json      DATA: the data directory
"""

import json
import sys

import numpy as np

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


def main(data, out):
    raw = open(f"{data}/models/stories260K/stories260K.bin", "rb").read()
    head = [int(i) for i in np.frombuffer(raw[:28], dtype="<i4")]
    w = np.frombuffer(raw[28:], dtype="<f4")
    base, model = parts(head, w), parts(head, perturb(w))
    windows = np.load(f"{data}/models/stories260K-hf/ppl_tokens.npy")[:WINDOWS].astype(np.int64)
    kld, same, nll, nll_base = [], [], [], []
    for ids in windows:
        b = log_probabilities(head, base, ids)[:-1]
        m = log_probabilities(head, model, ids)[:-1]
        at = np.arange(CONTEXT - 1)
        kld.append(np.sum(np.exp(b) * (b - m), axis=1))
        same.append(b.argmax(1) == m.argmax(1))
        nll.append(-m[at, ids[1:]])
        nll_base.append(-b[at, ids[1:]])
    kld, same, nll, nll_base = (np.concatenate(a) for a in (kld, same, nll, nll_base))
    n = kld.size
    ratio = np.exp(np.mean(nll - nll_base))
    result = {
        "mean_kld": kld.mean(), "kld_stderr": kld.std(ddof=1) / np.sqrt(n),
        "max_kld": kld.max(), "p99_kld": np.quantile(kld, 0.99), "p50_kld": np.quantile(kld, 0.5),
        "same_top1": same.mean(), "ppl": np.exp(nll.mean()), "ppl_base": np.exp(nll_base.mean()),
        "ppl_ratio": ratio, "ppl_ratio_stderr": ratio * (nll - nll_base).std(ddof=1) / np.sqrt(n),
    }
    result = {key: float(value) for key, value in result.items()}
    result["tokens"] = n
    with open(out, "w", encoding="ascii") as f:
        json.dump(result, f, indent=1)
        f.write("\n")


main(*sys.argv[1:])
