#!/usr/bin/env python3
"""Makes small PyTorch files for tests/unit/formats/test_torch_file.c and the fuzz corpus: make_torch_files.py.

Needs PyTorch.  With --check FILE.. it reads files back with torch.load(weights_only=True) and
prints every key, type, shape and the bits of every number.
"""
import sys
import zipfile
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path

import torch

HERE = Path(__file__).parent


def make(folder):
    n = 5
    a = torch.arange(n * (n + 1) // 2, dtype=torch.float32)
    torch.save({"flatH": a / 3 + 1, "mu": torch.arange(n) / 7 - 0.25, "n": n, "ct": 5_000_000_000},
               folder / "hessian.pt")
    m = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    types = OrderedDict(
        plain=m, turned=m.t(), part=m[1:, 1:3], scalar=torch.tensor(2.5), empty=torch.empty(0, 3),
        half=torch.tensor([1.5, -2.0, 65504.0], dtype=torch.float16),
        bfloat16=torch.tensor([1.5, -2.0, 3.0], dtype=torch.bfloat16),
        long=torch.tensor([[1, -2], [3, 1 << 40]]), bool=torch.tensor([True, False, True]),
        small=-7, big=-(1 << 40), real=0.1, text="t\u00e9xt", none=None, yes=True,
        list=[1, 2.5, "x", (1,), (), [m]], dict={"a": {"b": m}, 3: None})
    torch.save(types, folder / "types.pt")
    torch.save(types, folder / "types_protocol4.pt", pickle_protocol=4)
    torch.save({"x": m.double()}, folder / "double.pt")
    torch.save({"x": Fraction(1, 3)}, folder / "object.pt")
    torch.save([m], folder / "list.pt")
    # The same entries by another zip writer, deflated.
    with zipfile.ZipFile(folder / "hessian.pt") as src, \
            zipfile.ZipFile(folder / "deflated.pt", "w", zipfile.ZIP_DEFLATED) as dst:
        for name in src.namelist():
            dst.writestr(zipfile.ZipInfo(name), src.read(name), zipfile.ZIP_DEFLATED)


def check(path):
    for key, value in torch.load(path, weights_only=True).items():
        if isinstance(value, torch.Tensor):
            raw = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes().hex()
            print(key, value.dtype, list(value.shape), raw)
        else:
            print(key, repr(value))


if len(sys.argv) > 2 and sys.argv[1] == "--check":
    for name in sys.argv[2:]:
        check(name)
else:
    (HERE / "torch").mkdir(exist_ok=True)
    make(HERE / "torch")
