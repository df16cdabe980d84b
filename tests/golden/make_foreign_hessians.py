#!/usr/bin/env python3
"""Writes one Hessian in the formats of other tools, for tests/unit/test_hessian_foreign.c and the fuzz corpora.

    make_foreign_hessians.py            writes tests/golden/foreign; needs torch, numpy, gguf

X [tokens, n] are the inputs; H = X^T X / tokens.  The inverse form follows the steps of the
published tools in single precision: H over its mean diagonal, + 0.01, columns sorted, + 0.01 of
the mean diagonal, the upper Cholesky factor of the inverse.
"""
import struct
from pathlib import Path

import gguf
import numpy as np
import torch

OUT = Path(__file__).parent / "foreign"
N, TOKENS, CALLS = 12, 40, 5
INPUTS = {"attn_q": 1, "attn_output": 2, "ffn_gate": 3, "ffn_down": 4}  # input: factor of X


def inverse_form(h, sort, damped=True):
    h = torch.from_numpy(h).float()
    if damped:
        h = h / h.diagonal().mean() + 0.01 * torch.eye(len(h))
    perm = torch.argsort(h.diagonal(), descending=True) if sort else torch.arange(len(h))
    h = h[perm][:, perm]
    if damped:
        h += 0.01 * h.diagonal().mean() * torch.eye(len(h))
    u = torch.linalg.cholesky(torch.linalg.inv(h), upper=True)
    return {"invH": u, "perm": perm, "zero_idx": torch.zeros(len(h), dtype=torch.bool)}


def write_legacy(path, squares):
    with open(path, "wb") as f:
        f.write(struct.pack("<i", len(INPUTS) + 1))
        for name, s in INPUTS.items():
            full = f"blk.0.{name}.weight".encode()
            sums = (squares * s * s / TOKENS * CALLS).astype("<f4")
            f.write(struct.pack("<i", len(full)) + full + struct.pack("<ii", CALLS, N) + sums.tobytes())
        f.write(struct.pack("<i", 13) + b"output.weight" + struct.pack("<ii", 0, 1) + struct.pack("<f", 1))
        f.write(struct.pack("<ii", CALLS, 8) + b"text.txt")


def write_gguf(path, squares, sums):
    w = gguf.GGUFWriter(path, None)
    w.add_type("imatrix")
    w.add_array("imatrix.datasets", ["text.txt"])
    w.add_uint32("imatrix.chunk_count", CALLS)
    w.add_uint32("imatrix.chunk_size", TOKENS // CALLS)
    for name, s in INPUTS.items():
        full = f"blk.0.{name}.weight"
        w.add_tensor(f"{full}.in_sum2", (squares * s * s).astype(np.float32).reshape(1, N))
        w.add_tensor(f"{full}.counts", np.full((1, 1), TOKENS, np.float32))
        if name == "attn_q":
            w.add_tensor(f"{full}.in_sum", (sums * s).astype(np.float32).reshape(1, N))
    w.add_tensor("blk.0.ffn_up_exps.weight.in_sum2", np.ones((2, N), np.float32))
    w.add_tensor("blk.0.ffn_up_exps.weight.counts", np.ones((2, 1), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def make():
    OUT.mkdir(exist_ok=True)
    rng = np.random.default_rng(7)
    x = rng.normal(size=(TOKENS, N)) @ rng.normal(size=(N, N)) + 0.5
    h, mu = x.T @ x / TOKENS, x.mean(0)
    np.save(OUT / "h.npy", h)
    np.save(OUT / "fortran.npy", np.asfortranarray(h.astype(np.float32)))
    with open(OUT / "version3.npy", "wb") as f:
        np.lib.format.write_array(f, h, version=(3, 0))
    np.save(OUT / "asymmetric.npy", h + np.triu(np.full((N, N), 0.01 * h.max()), 1))
    np.save(OUT / "wide.npy", h[:, :5])
    np.save(OUT / "big.npy", h.astype(">f8"))
    np.save(OUT / "whole.npy", np.eye(3, dtype=np.int64))
    np.save(OUT / "records.npy", np.zeros(2, dtype=[("a", "<f4")]))
    np.save(OUT / "mean.npy", mu)
    cov = h - np.outer(mu, mu)
    flat = torch.from_numpy(cov[np.tril_indices(N)]).float()
    torch.save({"flatH": flat, "mu": torch.from_numpy(mu).float(), "n": N, "ct": TOKENS}, OUT / "covariance.pt")
    torch.save(inverse_form(h, False), OUT / "inverse.pt")
    torch.save(inverse_form(h, True), OUT / "inverse_sorted.pt")
    torch.save(inverse_form(h / 100, True, False), OUT / "inverse_other.pt")
    write_legacy(OUT / "imatrix.dat", (x * x).sum(0))
    write_gguf(OUT / "imatrix.gguf", (x * x).sum(0), x.sum(0))


make()
