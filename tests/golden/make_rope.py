"""Writes rope.json: rotary tables of every kind of scaling, computed with NumPy.

Inverse frequencies in float32 as transformers defines them (default, linear, llama3, yarn);
angles are float32 products, cosines and sines are taken in float64 and rounded.  Needs:
pip install numpy

    python3 tests/golden/make_rope.py tests/golden/rope.json
"""

import json
import math
import sys

import numpy as np

F = np.float32
POSITIONS = [0, 1, 17, 1000, 8191]

CASES = {
    "none": dict(head_dim=16, theta=10000.0),
    "linear": dict(head_dim=16, theta=10000.0, factor=2.5),
    "llama3": dict(head_dim=64, theta=500000.0, factor=32.0, low=1.0, high=4.0, original=8192),
    "yarn": dict(head_dim=64, theta=1000000.0, factor=4.0, low=1.0, high=32.0, original=32768),
    # The ramp is cut off at the first dimension, and the attention factor is given.
    "yarn_given": dict(head_dim=32, theta=10000.0, factor=40.0, low=1.0, high=32.0, original=128,
                       attention=0.75),
}


def powers(c):
    exponents = np.arange(0, c["head_dim"], 2, dtype=np.float32) / F(c["head_dim"])
    return np.power(np.float64(c["theta"]), exponents.astype(np.float64)).astype(np.float32)


def llama3(inverse, c):
    wave = F(2 * math.pi) * (F(1) / inverse)
    low, high, old = c["low"], c["high"], c["original"]
    out = np.where(wave > F(old / low), inverse / F(c["factor"]), inverse)
    smooth = ((F(1) / wave) * F(old) - F(low)) / F(high - low)
    blend = (F(1) - smooth) * out / F(c["factor"]) + smooth * out
    medium = ~(wave < F(old / high)) & ~(wave > F(old / low))
    return np.where(medium, blend, out).astype(np.float32)


def yarn(power, c):
    d, theta = c["head_dim"], c["theta"]

    def dimension(rotations):
        return d * math.log(c["original"] / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(dimension(c["high"])), 0)
    last = min(math.ceil(dimension(c["low"])), d - 1)
    if first == last:
        last += 0.001
    ramp = np.clip((np.arange(d // 2, dtype=np.float32) - F(first)) / F(last - first), F(0), F(1))
    keep = F(1) - ramp
    stretched = F(1) / (F(c["factor"]) * power)
    return (stretched * (F(1) - keep) + (F(1) / power) * keep).astype(np.float32)


def table(name, c):
    power = powers(c)
    inverse = F(1) / power
    scale = 1.0
    if name == "linear":
        inverse = inverse / F(c["factor"])
    elif name == "llama3":
        inverse = llama3(inverse, c)
    elif name.startswith("yarn"):
        inverse = yarn(power, c)
        scale = c.get("attention", 0.1 * math.log(c["factor"]) + 1.0)
    angle = np.array(POSITIONS, dtype=np.float32)[:, None] * inverse[None, :]
    cos = np.cos(angle.astype(np.float64)).astype(np.float32) * F(scale)
    sin = np.sin(angle.astype(np.float64)).astype(np.float32) * F(scale)
    return dict(c, name=name, positions=POSITIONS,
                cos=[float(x) for x in cos.ravel()], sin=[float(x) for x in sin.ravel()])


def main():
    cases = [table(name, c) for name, c in CASES.items()]
    with open(sys.argv[1], "w", encoding="ascii") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


main()
