"""Work directories and archives with additive codes."""

import json
import struct

import forge
from changes import BAD, archive, at, cut, matrix_entry, tensors
from net import Kind, found, refused, shown

LIST, PACK, READ = "pack --list {}", "pack -q {} -o out.vptq", "eval ppl -q -m {} --text B/text --context 32"
Q = "layer_000_q_proj.safetensors"
P = "model.layers.0.self_attn.q_proj"  # 16 x 16, vectors of 2, codes of 4 bits, blocks of 4 x 8


def part(name, change):
    return tensors(lambda s: change(s, f"{P}.{name}"), Q)


def entry(name, **values):
    return part(name, lambda s, t: s.header[t].update(values))


def numbers(name, code, place, *values):
    size = struct.calcsize(code)

    def change(s, t):
        struct.pack_into(f"<{len(values)}{code}", s.data, s.at(t)[0] + place * size, *values)

    return part(name, change)


def extra(name, dtype, shape, size):
    return tensors(lambda s: s.add(f"{P}.{name}", dtype, shape, bytes(size)), Q)


# --- the entry of a matrix ---

kind = Kind("additive work", "wg", LIST, PACK)
for name, values in [
    ("format unknown", {"format": BAD}),
    ("dtype f32", {"dtype": "f32"}),
    ("dtype a number", {"dtype": 16}),
    ("another dtype", {"dtype": "bf16"}),
    ("rows 0", {"rows": 0}),
    ("rows 15", {"rows": 15}),
    ("rows 2^31", {"rows": 1 << 31}),
    ("rows -16", {"rows": -16}),
    ("columns 18", {"columns": 18}),
    ("columns 2^31 - 2", {"columns": (1 << 31) - 2}),
    ("columns a text", {"columns": BAD}),
    ("vector_length 0", {"vector_length": 0}),
    ("vector_length 4", {"vector_length": 4}),
    ("vector_length 32", {"vector_length": 32}),
    ("no bits", {"bits": None}),
    ("bits of no stage", {"bits": []}),
    ("bits of 9 stages", {"bits": [4] * 9}),
    ("bits of 10^5 stages", {"bits": [4] * 10**5}),
    ("bits 0", {"bits": [0]}),
    ("bits 17", {"bits": [17]}),
    ("bits 16", {"bits": [16]}),
    ("bits -4", {"bits": [-4]}),
    ("bits of two stages", {"bits": [4, 4]}),
    ("block_rows 0", {"block_rows": 0}),
    ("block_rows 17", {"block_rows": 17}),
    ("block_rows 1", {"block_rows": 1}),
    ("block_columns 3", {"block_columns": 3}),
    ("block_columns 2^31 - 1", {"block_columns": (1 << 31) - 1}),
    ("scale_columns 8", {"scale_columns": 8}),
    ("int8 false", {"int8": False}),
    ("int8 a text", {"int8": BAD}),
    ("sparse", {"sparse": True}),
    ("a lattice", {"lattice": True, "vector_length": 8, "bits": [16], "int8": False}),
    ("rotated", {"rotated": True}),
]:
    kind.row(name, matrix_entry(Q, **values), refused("q_proj"))

# --- its tensors ---

for name, change in [
    ("codes of another shape", entry("codes.0", shape=[1, 16])),
    ("codes of 2^62 rows", entry("codes.0", shape=[1 << 62, 1])),
    ("codes of one dimension", entry("codes.0", shape=[16])),
    ("codes of another type", entry("codes.0", dtype="F32")),
    ("codebooks of another shape", entry("codebooks.0", shape=[2, 4, 16, 2])),
    ("codebooks of two dimensions", entry("codebooks.0", shape=[8, 32])),
    ("codebooks of another type", entry("codebooks.0", dtype="U8")),
    ("scales of another shape", entry("codebook_scales.0", shape=[8])),
    ("scales of another type", entry("codebook_scales.0", dtype="I16")),
    ("no codes", part("codes.0", lambda s, t: s.drop(t))),
    ("no codebooks", part("codebooks.0", lambda s, t: s.drop(t))),
    ("no scales of codebooks", part("codebook_scales.0", lambda s, t: s.drop(t))),
    ("the matrix as well", extra("weight", "F16", [16, 16], 512)),
    ("codes of a second stage", extra("codes.1", "I32", [16, 1], 64)),
    ("scales of rows", extra("scales", "F16", [16, 1], 32)),
    ("signs of rows", extra("row_signs", "I32", [1], 4)),
    ("a code of -128", numbers("codebooks.0", "b", 5, -128)),
    ("cut", cut(Q, -1)),
    ("another byte", at(Q, -1, b"\x01\x02")),
]:
    kind.row(name, change, refused("q_proj"))
for name, value in ("NaN", float("nan")), ("infinite", float("inf")), ("0", 0.0), ("negative", -1.0):
    change = numbers("codebook_scales.0", "e", 3, value)
    kind.row(f"a scale that is {name}", change, refused("q_proj"))
    kind.row(f"a scale that is {name}, checked", change, found("q_proj"), "pack --check {}")
kind.row(
    "the largest codes and scales",
    tensors(
        lambda s: (
            struct.pack_into("<256b", s.data, s.at(f"{P}.codebooks.0")[0], *[127] * 256),
            struct.pack_into("<8e", s.data, s.at(f"{P}.codebook_scales.0")[0], *[512.0] * 8),
        ),
        Q,
    ),
    shown("perplexity|ppl|not finite"),
    READ,
)
kind.row("the largest codes of vectors", numbers("codes.0", "I", 0, *[2**32 - 1] * 16), shown("perplexity|ppl"), READ)


def other_name(s):
    """The matrix in place of the head, which is not a linear layer of a block."""
    meta = s.header["__metadata__"]
    old, meta["name"] = meta["name"], "lm_head"
    for t in [t for t in s.header if t.startswith(old)]:
        s.header["lm_head" + t[len(old) :]] = s.header.pop(t)


kind.row("codes in place of the head", tensors(other_name, Q), refused("'lm_head' is not in the base model"))


def other_matrix(s):
    """A matrix of another shape under the name of this one."""
    meta = s.header["__metadata__"]
    old, meta["name"] = meta["name"], "model.layers.0.mlp.down_proj"
    for t in [t for t in s.header if t.startswith(old)]:
        s.header[meta["name"] + t[len(old) :]] = s.header.pop(t)


kind.row("codes of another shape than the model's", tensors(other_matrix, Q), refused("another shape than in the base"))

# --- archives ---

kind = Kind("additive archive", "g.vptq", LIST, READ)


def config(change):
    def edit(a):
        e = a.entry("config.json")
        c = json.loads(forge.unzstd(a.frames[e["first"]][0], e["size"]))
        change(c["quantization_config"])
        a.put("config.json", json.dumps(c).encode())

    return archive(edit)


def listed(**values):
    return config(lambda q: q["config_for_layers"][P].update(values))


for name, change in [
    ("quant_method unknown", config(lambda q: q.update(quant_method=BAD))),
    ("quant_method vptq", config(lambda q: q.update(quant_method="vptq"))),
    ("layers as a list", config(lambda q: q.update(config_for_layers=[]))),
    ("no layers", config(lambda q: q.update(config_for_layers=None))),
    ("an entry that is a text", config(lambda q: q["config_for_layers"].update({P: BAD}))),
    ("rows 15", listed(rows=15)),
    ("rows 2^31 - 1", listed(rows=(1 << 31) - 1)),
    ("bits of two stages", listed(bits=[4, 4])),
    ("block_columns 16", listed(block_columns=16)),
    ("dtype bf16", listed(dtype="bf16")),
]:
    kind.row(name, change, refused("g.vptq"), READ)
kind.row("without a layer", config(lambda q: q["config_for_layers"].pop(P)), refused("q_proj.weight"), READ)
kind.row("without a layer, checked", config(lambda q: q["config_for_layers"].pop(P)), found("q_proj"), "pack --check {}")
kind.row(
    "a layer that the model does not have",
    config(lambda q: q["config_for_layers"].update({"model.layers.99.mlp.up_proj": {"format": BAD}})),
    shown("perplexity|ppl"),
    READ,
)
kind.row("the matrix as well", archive(lambda a: a.add(f"{P}.weight", bytes(512), 1, b"F16", [16, 16])), refused("q_proj"))
kind.row("signs", archive(lambda a: a.add(f"{P}.row_signs", bytes(4), 1, b"I32", [1])), refused("q_proj"))
