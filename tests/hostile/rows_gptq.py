"""Models in the layouts of AutoGPTQ and AutoAWQ."""

import struct

from changes import BAD, cut, quantization, setting, tensors
from net import Kind, found, refused, shown

LIST, READ = "pack --list {}", "eval ppl -q -m {} --text B/text --context 32"
UP = "model.layers.0.mlp.up_proj"  # 64 x 32, 4 bits, groups of 16 columns: qweight [4, 64] or [32, 8]


def settings(**values):
    return quantization(lambda q: q.update(values))


def part(name, change):
    return tensors(lambda s: change(s, f"{UP}.{name}"))


def entry(name, **values):
    return part(name, lambda s, t: s.header[t].update(values))


def numbers(name, code, place, *values):
    """Other numbers in a tensor, from element `place` on."""
    size = struct.calcsize(code)

    def change(s, t):
        struct.pack_into(f"<{len(values)}{code}", s.data, s.at(t)[0] + place * size, *values)

    return part(name, change)


BOTH = [
    ("bits 0", settings(bits=0)),
    ("bits 5", settings(bits=5)),
    ("bits 2^40", settings(bits=1 << 40)),
    ("bits -4", settings(bits=-4)),
    ("bits a text", settings(bits=BAD)),
    ("no bits", quantization(lambda q: q.pop("bits"))),
    ("group_size 0", settings(group_size=0)),
    ("group_size -2", settings(group_size=-2)),
    ("group_size 2^40", settings(group_size=1 << 40)),
    ("group_size 8", settings(group_size=8)),
    ("group_size a list", settings(group_size=[16])),
    ("checkpoint_format with control characters", settings(checkpoint_format=BAD)),
    ("checkpoint_format marlin", settings(checkpoint_format="marlin")),
    ("a quantized head", settings(lm_head=True)),
    ("words of 64 bits", settings(pack_dtype="int64")),
    ("settings of single layers", settings(dynamic={BAD: {"bits": 8}})),
    ("dynamic a list", settings(dynamic=[])),
    ("codes of another type", entry("qweight", dtype="F32")),
    ("codes of one dimension", entry("qweight", shape=[256])),
    ("codes of 2^62 words", entry("qweight", shape=[1 << 62, 64])),
    ("codes of no rows", entry("qweight", shape=[0, 64])),
    ("no scales", part("scales", lambda s, t: s.drop(t))),
    ("scales of another shape", entry("scales", shape=[64, 2])),
    ("scales of another type", entry("scales", dtype="I16")),
    ("no zero points", part("qzeros", lambda s, t: s.drop(t))),
    ("zero points of another shape", entry("qzeros", shape=[8, 2])),
    ("the matrix as well", tensors(lambda s: s.add(f"{UP}.weight", "F16", [64, 32], bytes(4096)))),
    ("a file that is cut", cut("model.safetensors", -8)),
]
GPTQ = [
    ("bits 8", settings(bits=8)),
    ("format and checkpoint_format", settings(format="gptq_v2")),
    ("marlin", settings(is_marlin_format=True)),
    ("rows of words that are not whole", entry("qweight", shape=[2, 128])),
    ("no order, which desc_act needs", part("g_idx", lambda s, t: s.drop(t))),
    ("an order of other length", entry("g_idx", shape=[16, 2])),
    ("a group of 2^31 - 1", numbers("g_idx", "i", 0, 2**31 - 1)),
    ("a group of -1", numbers("g_idx", "i", 31, -1)),
]
AWQ = [
    ("bits 8", settings(bits=8)),
    ("version gemv", settings(version="gemv")),
    ("version a number", settings(version=1)),
    ("backend llm-awq", settings(backend="llm-awq")),
    ("codes of another shape", entry("qweight", shape=[8, 32])),
]
for kind, changes in (Kind("gptq", "gq", LIST, READ), BOTH + GPTQ), (Kind("awq", "aq", LIST, READ), BOTH + AWQ):
    for name, change in changes:
        kind.row(name, change, refused("^vptq-[a-z]+: " + kind.target + "[:/]"))
    for name, value in ("NaN", float("nan")), ("infinite", float("inf")), ("0", 0.0), ("negative", -1.0):
        kind.row(f"a scale that is {name}", numbers("scales", "e", 5, value), refused("up_proj.scales"), READ)
        kind.row(f"a scale that is {name}, checked", numbers("scales", "e", 5, value), found("up_proj"), "pack --check {}")
    kind.row("the largest zero points", numbers("qzeros", "I", 0, 2**32 - 1), shown("perplexity|ppl"), READ)
    kind.row("no codes", part("qweight", lambda s, t: s.drop(t)), refused("up_proj.weight' is missing"), READ)
    kind.row("of fewer rows than the model", setting(intermediate_size=96), refused("gate_proj|up_proj|down_proj"), READ)

kind = Kind("gptq packed", "gq", "pack -q {} -o out")
kind.row("all columns in one group", numbers("g_idx", "i", 0, *[0] * 32), refused("up_proj.* group"))
