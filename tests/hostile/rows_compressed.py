"""Models in the compressed-tensors layout, and work directories with uniform codes."""

import struct

from changes import BAD, at, cut, matrix_entry, quantization, remove, tensors
from net import Kind, found, refused, shown

LIST, READ = "pack --list {}", "eval ppl -q -m {} --text B/text --context 32"
DOWN = "model.layers.0.mlp.down_proj"  # 16 x 24, 4 bits, groups of 8 columns in an order


def part(name, change):
    return tensors(lambda s: change(s, f"{DOWN}.weight_{name}"))


def entry(name, **values):
    return part(name, lambda s, t: s.header[t].update(values))


def numbers(name, code, place, *values):
    """Other numbers in a tensor, from element `place` on."""
    size = struct.calcsize(code)

    def change(s, t):
        struct.pack_into(f"<{len(values)}{code}", s.data, s.at(t)[0] + place * size, *values)

    return part(name, change)


def group(**values):
    return quantization(lambda q: q["config_groups"]["group_0"].update(values))


def weights(**values):
    return quantization(lambda q: q["config_groups"]["group_0"]["weights"].update(values))


# --- what the config says ---

kind = Kind("compressed", "u", LIST, READ)
for name, change in [
    ("num_bits 1", weights(num_bits=1)),
    ("num_bits 9", weights(num_bits=9)),
    ("num_bits 2^31", weights(num_bits=1 << 31)),
    ("num_bits -4", weights(num_bits=-4)),
    ("num_bits a text", weights(num_bits=BAD)),
    ("floats", weights(type="float")),
    ("scales made while running", weights(dynamic=True)),
    ("group_size 0", weights(group_size=0)),
    ("group_size -8", weights(group_size=-8)),
    ("group_size 2^40", weights(group_size=1 << 40)),
    ("strategy block", weights(strategy="block")),
    ("strategy with control characters", weights(strategy=BAD)),
    ("inputs of 4 bits", group(input_activations={"num_bits": 4})),
    ("inputs of 8 bits, codes of 4", group(input_activations={"strategy": "token", "dynamic": True})),
    ("outputs of 8 bits", group(output_activations={"num_bits": 8})),
    ("targets as a text", group(targets="Linear")),
    ("targets as numbers", group(targets=[1])),
    ("an expression that does not end", group(targets=["re:("])),
    ("format unknown", quantization(lambda q: q.update(format=BAD))),
    ("groups as a list", quantization(lambda q: q.update(config_groups=[]))),
    ("no groups", quantization(lambda q: q.update(config_groups=None))),
    ("sparse", quantization(lambda q: q.update(sparsity_config={"format": "sparse-24-bitmask"}))),
    ("a cache of 8 bits", quantization(lambda q: q.update(kv_cache_scheme={"num_bits": 8}))),
    ("a transform", quantization(lambda q: q.update(transform_config={"config_groups": {"a": {}}}))),
]:
    kind.row(name, change, refused("^vptq-[a-z]+: u[:/]"))
for name, change in [
    ("no weights", group(weights=None)),
    ("ignored layers that are stored", quantization(lambda q: q.update(ignore=["Linear"]))),
]:
    kind.row(name, change, refused("q_proj.weight' is missing"), READ)
    kind.row(name + ", listed", change, shown("down_proj.weight_packed"), LIST)
kind.row(
    "10^4 groups that nothing belongs to",
    quantization(
        lambda q: q["config_groups"].update(
            {f"g{i}": {"targets": ["x"], "weights": {"num_bits": 99}} for i in range(10**4)}
        )
    ),
    shown("8.500 bits per weight"),
    READ,
)
kind.row(
    "an expression that takes exponential time",
    quantization(lambda q: q.update(ignore=["re:(a|o|d|e|l|m|\\.|_)*(.*)*(.+)+$^"])),
    refused("takes too many steps"),
)

# --- what the tensors are ---

for name, change in [
    ("codes of another shape", entry("packed", shape=[48, 1])),
    ("codes of 2^62 rows", entry("packed", shape=[1 << 62, 3])),
    ("codes of one dimension", entry("packed", shape=[48])),
    ("codes of another type", entry("packed", dtype="F32")),
    ("scales of another shape", entry("scale", shape=[3, 16])),
    ("scales of another type", entry("scale", dtype="I16")),
    ("zero points of another shape", entry("zero_point", shape=[3, 2])),
    ("rows 2^62", numbers("shape", "q", 0, 1 << 62)),
    ("rows -16", numbers("shape", "q", 0, -16)),
    ("columns 0", numbers("shape", "q", 1, 0)),
    ("columns 25", numbers("shape", "q", 1, 25)),
    ("a group of 2^31 - 1", numbers("g_idx", "i", 0, 2**31 - 1)),
    ("a group of -2", numbers("g_idx", "i", 0, -2)),
    ("a group of 9 columns", numbers("g_idx", "i", 0, *[0] * 9)),
    ("no codes", part("packed", lambda s, t: s.drop(t))),
    ("no scales", part("scale", lambda s, t: s.drop(t))),
    ("no shape", part("shape", lambda s, t: s.drop(t))),
    ("no zero points", part("zero_point", lambda s, t: s.drop(t))),
    ("the matrix as well", tensors(lambda s: s.add(f"{DOWN}.weight", "F16", [16, 24], bytes(768)))),
]:
    kind.row(name, change, refused("down_proj"))
for name, value in ("NaN", float("nan")), ("infinite", float("inf")), ("0", 0.0), ("negative", -1.0):
    kind.row(f"a scale that is {name}", numbers("scale", "e", 5, value), refused("down_proj"), READ)
    kind.row(f"a scale that is {name}, checked", numbers("scale", "e", 5, value), found("down_proj"), "pack --check {}")
kind.row("the largest zero points", numbers("zero_point", "I", 0, 2**32 - 1), shown("perplexity|ppl"), READ)
kind.row("a file that is cut", cut("model.safetensors", -8), refused("model.safetensors"))

# --- 8-bit activations ---

kind = Kind("bytes", "u8", LIST, READ)
INPUTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


def inputs(**values):
    return group(input_activations={**INPUTS, **values})


def bytes_entry(name, **values):
    return tensors(lambda s: s.header[f"{DOWN}.weight{name}"].update(values))


for name, change in [
    ("of 4 bits", inputs(num_bits=4)),
    ("of 16 bits", inputs(num_bits=16)),
    ("of -8 bits", inputs(num_bits=-8)),
    ("of a text of bits", inputs(num_bits=BAD)),
    ("of floats", inputs(type="float")),
    ("with zero points", inputs(symmetric=False)),
    ("of the whole input", inputs(strategy="tensor")),
    ("with fixed scales", inputs(dynamic=False)),
    ("as a list", group(input_activations=[INPUTS])),
    ("with codes of 4 bits", weights(num_bits=4)),
    ("with codes in groups", weights(strategy="group", group_size=8)),
    ("with zero points of codes", weights(symmetric=False)),
    ("with packed codes", quantization(lambda q: q.update(format="pack-quantized"))),
    ("with codes of another type", bytes_entry("", dtype="U8")),
    ("with codes of another shape", bytes_entry("", shape=[24, 16])),
    ("with codes of one dimension", bytes_entry("", shape=[384])),
    ("with scales of another shape", bytes_entry("_scale", shape=[1, 16])),
    ("without codes", tensors(lambda s: s.drop(f"{DOWN}.weight"))),
    ("without scales", tensors(lambda s: s.drop(f"{DOWN}.weight_scale"))),
]:
    kind.row("activations " + name, change, refused("^vptq-[a-z]+: u8[:/]"))
for name, value in ("NaN", float("nan")), ("infinite", float("inf")), ("0", 0.0), ("negative", -1.0):
    kind.row(f"a scale that is {name}", numbers("scale", "e", 5, value), refused("down_proj"), READ)
kind.row("the largest scales", numbers("scale", "e", 0, *[65504.0] * 16), shown("perplexity|ppl|not finite"), READ)
kind.row("without activations", group(input_activations=None), shown("perplexity|ppl"), READ)

# --- work directories ---

kind = Kind("uniform work", "wu", LIST, "pack -q {} -o out")
Q = "layer_000_q_proj.safetensors"


def other_name(s):
    """The matrix in place of the head, which is not a linear layer of a block."""
    meta = s.header["__metadata__"]
    old, meta["name"] = meta["name"], "lm_head"
    for t in [t for t in s.header if t.startswith(old)]:
        s.header["lm_head" + t[len(old) :]] = s.header.pop(t)


for name, change in [
    ("num_bits 0", matrix_entry(Q, num_bits=0)),
    ("num_bits 8", matrix_entry(Q, num_bits=8)),
    ("group_size 0", matrix_entry(Q, group_size=0)),
    ("group_size 2^40", matrix_entry(Q, group_size=1 << 40)),
    ("format unknown", matrix_entry(Q, format=BAD)),
    ("symmetric with zero points", matrix_entry(Q, symmetric=True)),
    ("cut", cut(Q, -1)),
    ("another byte", at(Q, -1, b"\x01\x02")),
]:
    kind.row(name, change, refused("q_proj"))
kind.row("codes in place of the head", tensors(other_name, Q), refused("'lm_head' is not in the base model"))

kind = Kind("work of bytes", "w8", LIST, "pack -q {} -o out")
for name, change in [
    ("activation_bits 0", matrix_entry(Q, activation_bits=0)),
    ("activation_bits 4", matrix_entry(Q, activation_bits=4)),
    ("activation_bits -8", matrix_entry(Q, activation_bits=-8)),
    ("activation_bits 2^40", matrix_entry(Q, activation_bits=1 << 40)),
    ("activation_bits a text", matrix_entry(Q, activation_bits=BAD)),
    ("format of packed codes", matrix_entry(Q, format="pack-quantized")),
    ("num_bits 4", matrix_entry(Q, num_bits=4)),
    ("zero points", matrix_entry(Q, symmetric=False)),
    ("groups of 8 columns", matrix_entry(Q, group_size=8)),
    ("cut", cut(Q, -1)),
    ("another byte", at(Q, -1, b"\x01\x02")),
]:
    kind.row(name, change, refused("q_proj"))

kind = Kind("folded work", "wf", LIST, READ)
for name, change in [
    ("a norm that is not a number", tensors(lambda s: s.floats("norm", 3, [float("nan")]), Q)),
    ("an infinite norm", tensors(lambda s: s.floats("norm", 3, [float("inf")]), Q)),
    ("a norm of two dimensions", tensors(lambda s: s.header["norm"].update(shape=[4, 4]), Q)),
    ("a norm of whole numbers", tensors(lambda s: s.header["norm"].update(dtype="I32"), Q)),
    ("a norm of a matrix that is not folded", matrix_entry(Q, folded=False)),
    ("folded a text", matrix_entry(Q, folded=BAD)),
]:
    kind.row(name, change, refused("q_proj"))
kind.row("a short norm", tensors(lambda s: (s.drop("norm"), s.add("norm", "F32", [8], bytes(32))), Q), refused("q_proj.*norm of 8"))
kind.row(
    "a norm before v",
    tensors(lambda s: s.add("norm", "F32", [16], bytes(64)), "layer_000_v_proj.safetensors"),
    refused("v_proj.*norm of 16"),
)
kind.row("without a file", remove("layer_000_k_proj.safetensors"), refused("holds an unfinished run"), READ)
# the layer is then that of the original
kind.row(
    "without a file, as it is",
    remove("layer_000_k_proj.safetensors"),
    shown("perplexity|ppl"),
    READ + " --partial",
)

# --- dense matrices of work directories: 16 x 16, F16 ---

kind = Kind("dense work", "wd", LIST, "pack -q {} -o out")
Q_WEIGHT = "model.layers.0.self_attn.q_proj.weight"


def dense(change):
    return tensors(change, Q)


def dense_entry(**values):
    return dense(lambda s: s.header[Q_WEIGHT].update(values))


def other_module(module, *shape):
    """The tensor under another name, with so many numbers."""

    def change(s):
        count = 1
        for n in shape:
            count *= n
        s.drop(Q_WEIGHT)
        s.header["__metadata__"]["name"] = module
        s.add(module + ".weight", "F16", list(shape), bytes(2 * count))

    return dense(change)


def dense_number(place, bits):
    return dense(lambda s: struct.pack_into("<H", s.data, s.at(Q_WEIGHT)[0] + 2 * place, bits))


for name, change in [
    ("format unknown", matrix_entry(Q, format=BAD)),
    ("format a number", matrix_entry(Q, format=3)),
    ("codes", matrix_entry(Q, num_bits=4)),
    ("another type", dense_entry(dtype="I16")),
    ("another 16-bit type", dense_entry(dtype="BF16")),
    ("another shape", dense_entry(shape=[8, 32])),
    ("one dimension", dense_entry(shape=[256])),
    ("three dimensions", dense_entry(shape=[16, 4, 4])),
    ("2^62 rows", dense_entry(shape=[1 << 62, 16])),
    ("no rows", dense_entry(shape=[0, 16])),
    ("no weight", dense(lambda s: s.drop(Q_WEIGHT))),
    ("a second tensor", dense(lambda s: s.add("x", "F16", [2], bytes(4)))),
    ("a NaN", dense_number(5, 0x7E00)),
    ("an infinity", dense_number(255, 0xFC00)),
    ("cut", cut(Q, -1)),
    ("another byte", at(Q, -1, b"\x01\x02")),
]:
    kind.row(name, change, refused("q_proj"))
for name, change in [
    ("the head", other_module("lm_head", 48, 16)),
    ("the embeddings", other_module("model.embed_tokens", 48, 16)),
    ("a module that does not exist", other_module("model.layers.7.mlp.up_proj", 24, 16)),
    ("a name with control characters", other_module(BAD, 16, 16)),
    ("a norm of another size", other_module("model.layers.0.input_layernorm", 15)),
    ("a norm as a matrix", other_module("model.layers.0.input_layernorm", 1, 16)),
]:
    kind.row(name, change, refused(Q))
kind.row("a norm", other_module("model.layers.0.input_layernorm", 16), shown("."))
