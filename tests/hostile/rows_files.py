"""GGUF files, archives, packed directories."""

import struct

import forge
from changes import BAD, OUTSIDE, archive, at, both, cut, fifo, gguf, json_file, link, quantization, sparse, tensors
from forge import ARRAY, F32, STRING, U32, U64, Raw
from net import Kind, found, harmless, refused, shown

LIST, UNPACK = "pack --list {}", "pack -q --unpack {} -o out"
CHAT = "eval generate -q -m {} --chat -p hi --dry-run"
TOKENS = "eval ppl -q -m {} --text B/text --tokens-only"

# --- GGUF ---

kind = Kind("gguf", "m.gguf", LIST, memory=384)
HUGE = [("2^63", 1 << 63), ("2^64 - 1", (1 << 64) - 1), ("2^40", 1 << 40), ("10^9", 10**9)]
for name, n in HUGE:
    kind.row(f"{name} keys", gguf(lambda g, n=n: setattr(g, "key_count", n)), refused("m.gguf"))
    kind.row(f"{name} tensors", gguf(lambda g, n=n: setattr(g, "tensor_count", n)), refused("m.gguf"))
    kind.row(
        f"a key of {name} bytes",
        gguf(lambda g, n=n: g.keys.insert(0, [b"x", STRING, Raw(struct.pack("<Q", n))])),
        refused("m.gguf"),
    )
    for item in 0, STRING, ARRAY, 12:
        kind.row(
            f"an array of {name} items of type {item}",
            gguf(lambda g, n=n, item=item: g.keys.insert(0, [b"x", ARRAY, Raw(struct.pack("<IQ", item, n))])),
            refused("m.gguf"),
        )
    kind.row(
        f"a tensor of {name} columns",
        gguf(lambda g, n=n: g.tensor("output.weight").__setitem__(1, [n, 47])),
        refused("output.weight"),
    )
    kind.row(
        f"a tensor at {name}",
        gguf(lambda g, n=n: g.tensor("output.weight").__setitem__(3, n - n % 32)),
        refused("output.weight"),
    )
for name, change in [
    ("version 0", lambda g: setattr(g, "version", 0)),
    ("version 1", lambda g: setattr(g, "version", 1)),
    ("version 2^32 - 1", lambda g: setattr(g, "version", 2**32 - 1)),
    ("version 3, big endian", lambda g: setattr(g, "version", 3 << 24)),
    ("an array of arrays", lambda g: g.set("x", ARRAY, (ARRAY, [(4, [1])]))),
    ("10^5 nested arrays", lambda g: g.set("x", ARRAY, Raw(struct.pack("<IQ", ARRAY, 1) * 10**5))),
    ("a value of type 13", lambda g: g.set("x", 13, Raw(b"1234"))),
    ("a value of type 2^31", lambda g: g.set("x", 1 << 31, Raw(b""))),
    ("a key without a name", lambda g: g.set("", U32, 1)),
    ("a key with a zero", lambda g: g.set("a\0b", U32, 1)),
    ("a key with control characters", lambda g: g.set(BAD, U32, 1)),
    ("a key of 70,000 bytes", lambda g: g.set("a" * 70000, U32, 1)),
    ("a key twice", lambda g: g.keys.append([b"general.type", STRING, b"x"])),
    ("architecture with control characters", lambda g: g.set("general.architecture", STRING, BAD.encode())),
    ("architecture with a zero", lambda g: g.set("general.architecture", STRING, b"llama\0")),
    ("architecture a number", lambda g: g.set("general.architecture", U32, 1)),
    ("alignment 0", lambda g: g.set("general.alignment", U32, 0)),
    ("alignment 2^31", lambda g: g.set("general.alignment", U32, 1 << 31)),
    ("alignment 3", lambda g: g.set("general.alignment", U32, 3)),
    ("alignment 1", lambda g: g.set("general.alignment", U32, 1)),
    ("layers 10^6", lambda g: g.set("llama.block_count", U32, 10**6)),
    ("layers 2^32 - 1", lambda g: g.set("llama.block_count", U32, 2**32 - 1)),
    ("layers 0", lambda g: g.set("llama.block_count", U32, 0)),
    ("layers 65536", lambda g: g.set("llama.block_count", U32, 65536)),
    ("layers of 64 bits", lambda g: g.set("llama.block_count", U64, 1 << 33)),
    ("layers a float", lambda g: g.set("llama.block_count", F32, 2.0)),
    ("embedding 2^31", lambda g: g.set("llama.embedding_length", U32, 1 << 31)),
    ("embedding 0", lambda g: g.set("llama.embedding_length", U32, 0)),
    ("context 0", lambda g: g.set("llama.context_length", U32, 0)),
    ("context 2^32 - 1", lambda g: g.set("llama.context_length", U32, 2**32 - 1)),
    ("heads 0", lambda g: g.set("llama.attention.head_count", U32, 0)),
    ("heads 2^31", lambda g: g.set("llama.attention.head_count", U32, 1 << 31)),
    ("heads 3", lambda g: g.set("llama.attention.head_count", U32, 3)),
    ("epsilon NaN", lambda g: g.set("llama.attention.layer_norm_rms_epsilon", F32, float("nan"))),
    ("theta infinite", lambda g: g.set("llama.rope.freq_base", F32, float("inf"))),
    ("theta -1", lambda g: g.set("llama.rope.freq_base", F32, -1.0)),
    ("head size 2^31", lambda g: g.set("llama.attention.key_length", U32, 1 << 31)),
    ("experts", lambda g: g.set("llama.expert_count", U32, 8)),
    ("scaling with control characters", lambda g: g.set("llama.rope.scaling.type", STRING, BAD.encode())),
]:
    kind.row(name, gguf(change), refused("m.gguf"), "quantize -m {} --dry-run")


for name, change in [
    ("a bool of 7", lambda g: g.set("x", 7, 7)),
    ("bools of 7", lambda g: g.set("x", ARRAY, (7, [7] * 9))),
    ("a key that is not UTF-8", lambda g: g.set(b"\xff\xfe", U32, 1)),
    ("a name with control characters", lambda g: g.set("general.name", STRING, BAD.encode())),
]:
    kind.row(name, gguf(change), harmless, "quantize -m {} --dry-run")


def tensor(name, place, value):
    return gguf(lambda g: g.tensor(name).__setitem__(place, value))


for name, change in [
    ("without dimensions", tensor("output.weight", 1, [])),
    ("of 5 dimensions", tensor("output.weight", 1, [16, 47, 1, 1, 1])),
    ("of no rows", tensor("output.weight", 1, [16, 0])),
    ("whose product overflows", tensor("output.weight", 1, [1 << 32, 1 << 32])),
    ("whose product is small modulo 2^64", tensor("output.weight", 1, [1 << 63, 2])),
    ("of type 99", tensor("output.weight", 2, 99)),
    ("of type 2^32 - 1", tensor("output.weight", 2, 2**32 - 1)),
    ("of a removed type", tensor("output.weight", 2, 4)),
    ("of blocks with a rest", tensor("output.weight", 2, 8)),
    ("at an odd place", tensor("output.weight", 3, 33)),
    ("on another one", tensor("output.weight", 3, 0)),
]:
    kind.row(f"a tensor {name}", change, refused("output.weight|overlap"))
for name, text in [
    ("with control characters", BAD),
    ("with a zero", "output.weight\0"),
    ("of 10,000 bytes", "a" * 10000),
    ("empty", ""),
    ("unknown", "blk.0.evil.weight"),
    ("of layer 2^64", "blk.18446744073709551616.attn_q.weight"),
    ("of layer -1", "blk.-1.attn_q.weight"),
    ("of layer 02", "blk.00.attn_q.weight"),
    ("twice", "output_norm.weight"),
    ("a path", "../../etc/passwd"),
]:
    kind.row(
        f"tensor name {name}", tensor("output.weight", 0, text.encode()), refused("m.gguf"), "quantize -m {} --dry-run"
    )
for name, change in [
    ("no pieces", lambda g: g.set("tokenizer.ggml.tokens", ARRAY, (STRING, []))),
    ("pieces of numbers", lambda g: g.set("tokenizer.ggml.tokens", ARRAY, (U32, [1] * 47))),
    ("pieces that are one", lambda g: g.set("tokenizer.ggml.tokens", ARRAY, (STRING, [b"a"] * 47))),
    (
        "pieces that are not UTF-8",
        lambda g: g.set("tokenizer.ggml.tokens", ARRAY, (STRING, [b"\xff" + bytes([65 + i]) for i in range(47)])),
    ),
    ("too few scores", lambda g: g.set("tokenizer.ggml.scores", ARRAY, (F32, [1.0]))),
    ("scores that are not numbers", lambda g: g.set("tokenizer.ggml.scores", ARRAY, (F32, [float("nan")] * 47))),
    ("types out of range", lambda g: g.set("tokenizer.ggml.token_type", ARRAY, (5, [99] * 47))),
    ("BOS 2^32 - 1", lambda g: g.set("tokenizer.ggml.bos_token_id", U32, 2**32 - 1)),
    ("EOS 47", lambda g: g.set("tokenizer.ggml.eos_token_id", U32, 47)),
    ("unknown 2^31", lambda g: g.set("tokenizer.ggml.unknown_token_id", U32, 1 << 31)),
    ("model with control characters", lambda g: g.set("tokenizer.ggml.model", STRING, BAD.encode())),
    ("model gpt2 without merges", lambda g: g.set("tokenizer.ggml.model", STRING, b"gpt2")),
    ("a million pieces", lambda g: g.set("tokenizer.ggml.tokens", ARRAY, (STRING, [b"%d" % i for i in range(10**6)]))),
]:
    kind.row(f"tokenizer: {name}", gguf(change), refused("m.gguf"), TOKENS)
kind.row(
    "a template with a zero",
    gguf(lambda g: g.set("tokenizer.chat_template", STRING, b"{{ 1 }}\0")),
    refused("zero"),
    CHAT,
)
kind.row(
    "template with loops",
    gguf(lambda g: g.set("tokenizer.chat_template", STRING, b"{% for i in range(100000) %}" * 4 + b"{% endfor %}" * 4)),
    refused("steps|values"),
    CHAT,
)
kind.row("cut in the keys", cut("", 300), refused("m.gguf"))
kind.row("cut in the data", cut("", -100), refused("m.gguf"))
kind.row("only GGUF", cut("", 4), refused("m.gguf"))
kind.row("a pipe", fifo(""), refused("m.gguf"))
kind.row("a link to a secret", link("", "secret.txt"), refused("m.gguf"))
kind.row("1 GiB of zeros after it", sparse("", 1 << 30), shown("lm_head"))

# --- archives ---

kind = Kind("archive", "m.vptq", LIST, UNPACK)


def ends(name, value):
    return archive(lambda a: setattr(a, name, value))


def entry(of="config.json", **values):
    return archive(lambda a: a.entry(of).update(values))


def blocks(dtype, data, *shape):
    return archive(lambda a: a.add("extra", data, 1, dtype, shape))


def frame(place, value, i=0):
    return archive(lambda a: a.frames[i].__setitem__(place, value))


for name, change in [
    ("version 3", ends("version", 3)),
    ("version 2^32 - 1", ends("version", 2**32 - 1)),
    ("index at 0", ends("index_at", 0)),
    ("index at 2^63", ends("index_at", 1 << 63)),
    ("index at 2^64 - 1", ends("index_at", 2**64 - 1)),
    ("index of 2^63 bytes", ends("index_raw", 1 << 63)),
    ("index of 17 MiB", ends("index_raw", 17 << 20)),
    ("index of 0 bytes", ends("index_raw", 0)),
    (
        "index that is a bomb",
        both(ends("index_raw", 16 << 20), archive(lambda a: setattr(a, "index", forge.zstd_bomb(16 << 20, 16 << 20)))),
    ),
    (
        "index that is a larger bomb",
        both(ends("index_raw", 8), archive(lambda a: setattr(a, "index", forge.zstd_bomb(8, 1 << 30)))),
    ),
    (
        "index without a size",
        both(ends("index_raw", 8), archive(lambda a: setattr(a, "index", b"\x28\xb5\x2f\xfd\x00\x58\x01\x00\x00"))),
    ),
    ("index that is not zstd", ends("index", b"x" * 100)),
    ("index of two frames", archive(lambda a: setattr(a, "index", forge.zstd(a.index_bytes()) * 2))),
    ("a frame at 0", archive(lambda a: a.offsets.update({1: 0}))),
    ("a frame at 2^63", archive(lambda a: a.offsets.update({1: 1 << 63}))),
    ("a frame on another", archive(lambda a: a.offsets.update({1: 16}))),
    ("a frame of 2^32 - 1 bytes", frame(1, 2**32 - 1)),
    ("a frame of 0 bytes", frame(1, 0)),
    ("a frame of another size", frame(1, 100)),
    ("an empty frame", frame(0, b"")),
    ("an entry of 2^63 bytes", entry(size=1 << 63)),
    ("an entry of 2^64 - 1 bytes", entry(size=2**64 - 1)),
    ("an entry of 0 bytes", entry(size=0)),
    ("an entry of 2^32 - 1 frames", entry(frames=2**32 - 1)),
    ("an entry from frame 2^32 - 1", entry(first=2**32 - 1)),
    ("two entries of one frame", archive(lambda a: a.entries[1].update(first=0))),
    ("entries of all frames", entry(frames=5)),
    ("an entry of kind 2", entry(kind=2)),
    ("an entry of kind 255", entry(kind=255)),
    ("an entry with something where zeros belong", entry(zero=1)),
    ("0 planes", entry(planes=0)),
    ("3 planes", entry(planes=3)),
    ("255 planes", entry(planes=255)),
    ("8 planes of a rest", entry(planes=8)),
    ("a file with dimensions", entry(shape=[1])),
    ("a file with a type", entry(dtype=b"F16")),
    ("a tensor of 9 dimensions", entry("lm_head.weight", shape=[1] * 9)),
    ("a tensor that says 255 dimensions", entry("lm_head.weight", says_dims=255)),
    ("a shape that overflows", entry("lm_head.weight", shape=[1 << 32, 1 << 32])),
    ("a shape of another size", entry("lm_head.weight", shape=[47, 17])),
    ("a type that is unknown", entry("lm_head.weight", dtype=b"F8")),
    ("a type with control characters", entry("lm_head.weight", dtype=b"\x1b[2J\x07")),
    ("a block type with bytes of another", entry("lm_head.weight", dtype=b"Q8_0")),
    ("a block type that archives do not have", blocks(b"Q4_0", bytes(18), 2, 16)),
    ("blocks that end early", blocks(b"Q6_K", bytes(2 * 210), 48, 16)),
    ("blocks of half a block", blocks(b"Q8_0", bytes(34), 1, 16)),
    ("blocks whose number overflows", blocks(b"Q6_K", bytes(210), 1 << 40, 1 << 32)),
    ("a type without an end", entry("lm_head.weight", dtype=b"F16F16F1")),
    ("a name of 2^32 - 1 bytes", entry(says_length=2**32 - 1)),
    ("a name of 0 bytes", entry(name=b"")),
    ("a name twice", archive(lambda a: a.add("tokenizer.json", b"{}"))),
    ("no config.json", entry(name=b"other.json")),
    ("no tensor", archive(lambda a: a.entries.__delitem__(slice(6, None)))),
    ("cut", cut("", -100)),
    ("64 bytes", cut("", 64)),
    ("8 bytes", cut("", 8)),
    ("zeros between", both(at("", -48, struct.pack("<Q", 40)))),
    ("a pipe", fifo("")),
    ("a link to itself", link("", "m.vptq")),
    ("1 GiB of zeros after it", sparse("", 1 << 30)),
    (
        "entries that are many times larger than the file",
        archive(
            lambda a: [
                a.add(f"t{i}", b"", 1, b"U8", [4 << 20])
                or a.entries[-1].update(size=4 << 20)
                or a.frames[-1].__setitem__(1, 4 << 20)
                for i in range(100)
            ]
        ),
    ),
]:
    kind.row(name, change, refused("m.vptq|archive"))
for name, text in [
    ("in the folder above", b"../evil"),
    ("absolute", OUTSIDE.encode()),
    ("in a folder", b"a/b"),
    ("..", b".."),
    (".", b"."),
    ("hidden", b".bashrc"),
    ("with a zero", b"a\0b"),
    ("with control characters", BAD.encode()[:200]),
    ("of 256 bytes", b"a" * 256),
    ("with a space", b"a b"),
    ("that is not UTF-8", b"\xff\xfe"),
    ("with a backslash", b"..\\evil"),
    ("turned around", "\u202egnp.json".encode()),
    ("with a colon", b"c:evil"),
]:
    kind.row(f"a file named {name}", archive(lambda a, text=text: a.add(text, b"evil")), refused("m.vptq"))
for name, text in [
    ("with control characters", BAD.encode()),
    ("with a zero", b"a\0b"),
    ("of 513 bytes", b"a" * 513),
    ("with DEL", b"a\x7f"),
    ("empty", b""),
]:
    kind.row(
        f"a tensor named {name}", archive(lambda a, text=text: a.add(text, b"1234", 1, b"U8", [4])), refused("m.vptq")
    )
kind.row(
    "a tensor named in the folder above",
    archive(lambda a: a.add("../evil", b"1234", 1, b"U8", [4])),
    shown("plain"),
    UNPACK,
)
for dtype, size, count, scale_at in (b"Q8_0", 34, 24, 0), (b"Q6_K", 210, 3, 208):
    good = bytes(count * size)  # 48 x 16 numbers
    bad = good[: size + scale_at] + b"\x00\x7e" + good[size + scale_at + 2 :]
    name = dtype.decode()
    kind.row(f"{name} of zeros", blocks(dtype, good, 48, 16), shown("plain"), UNPACK)
    kind.row(f"{name} with a scale of NaN", blocks(dtype, bad, 48, 16), refused("'extra': row .* is nan"), UNPACK)
    kind.row(
        f"{name} with a scale of NaN, checking", blocks(dtype, bad, 48, 16), found("not finite"), "pack --check {}"
    )
for option, needs in ("q8", "Q8_0 needs a multiple of 32"), ("q6", "Q6_K needs a multiple of 256"):
    kind.row(
        f"an odd embedding as {option}",
        both(),
        refused(rf"has 752 numbers.*, {needs}"),
        f"pack -q {{}} -o out.vptq --embeddings {option}",
        f"quantize -m B/m --dry-run --allocate uniform -b 9 --budget file --embeddings {option}",
    )
for name, packed in [
    ("a bomb of 1 GiB", forge.zstd_bomb(4 << 20, 1 << 30)),
    ("a frame of less", forge.zstd_bomb(4 << 20, 1 << 20)),
    ("a frame without its size", b"\x28\xb5\x2f\xfd\x00\x58\x01\x00\x00"),
    ("a frame that is none", b"x" * 100),
    ("a frame that says 2^63", forge.zstd_bomb(1 << 63, 4 << 20)),
    ("two frames", forge.zstd(b"a" * (2 << 20)) * 2),
]:
    for entry_name in "generation_config.json", "lm_head.weight":

        def bomb(a, packed=packed, entry_name=entry_name):
            e = a.entry(entry_name)
            e.update(size=4 << 20, **({"shape": [4 << 20], "dtype": b"U8"} if e["shape"] else {}), planes=1)
            a.frames[e["first"]] = [packed, 4 << 20, None]

        kind.row(f"{entry_name}: {name}", archive(bomb), refused(entry_name), UNPACK)
        kind.row(f"{entry_name}: {name}, checking", archive(bomb), found(entry_name), "pack --check {}")
kind.row(
    "a config.json of 65 MiB",
    archive(lambda a: a.put("config.json", b"{}" + b" " * (65 << 20))),
    refused("config.json"),
)
kind.row(
    "a config.json of depth 10^6",
    archive(lambda a: a.put("config.json", forge.deep(10**6).encode())),
    refused("config.json"),
)
kind.row("a config.json of zeros", archive(lambda a: a.put("config.json", b"\0" * (4 << 20))), refused("config.json"))
kind.row("a wrong checksum", frame(2, 1), refused("config.json"))
kind.row("a wrong checksum, checking", frame(2, 1, 4), found("chat_template"), "pack --check {}")
kind.row(
    "10^5 entries",
    archive(
        lambda a: [a.add(f"f{i}.txt", b"") or a.frames.pop() and a.entries[-1].update(frames=0) for i in range(10**5)]
    ),
    shown("lm_head"),
    LIST,
)

# --- packed directories ---

kind = Kind("packed", "p", "pack --check {}")
DOWN = "model.layers.0.mlp.down_proj"


def layer(**values):
    return json_file("config.json", lambda c: c["quantization_config"]["config_for_layers"][DOWN].update(values))


for name, change in [
    ("in_features 2^31", layer(in_features=1 << 31)),
    ("in_features 0", layer(in_features=0)),
    ("in_features -1", layer(in_features=-1)),
    ("out_features 2^62", layer(out_features=1 << 62)),
    ("vectors of 0", layer(vector_lens=[-1, 0])),
    ("vectors of 2^31", layer(vector_lens=[-1, 1 << 31])),
    ("vectors of -4", layer(vector_lens=[-1, -4])),
    ("vectors without a list", layer(vector_lens=4)),
    ("vectors of 10^5 numbers", layer(vector_lens=[4] * 10**5)),
    ("0 centroids", layer(num_centroids=[-1, 0])),
    ("2^31 centroids", layer(num_centroids=[-1, 1 << 31])),
    ("3 centroids", layer(num_centroids=[-1, 3])),
    ("2^31 residual centroids", layer(num_res_centroids=[-1, 1 << 31])),
    ("0 groups", layer(group_num=0)),
    ("2^31 groups", layer(group_num=1 << 31)),
    ("5 groups", layer(group_num=5)),
    ("groups of 0", layer(group_size=0)),
    ("groups of 2^40", layer(group_size=1 << 40)),
    ("outliers 2^31", layer(outlier_size=1 << 31)),
    ("outliers -1", layer(outlier_size=-1)),
    ("outliers 25", layer(outlier_size=25)),
    ("no norm", layer(enable_norm=False)),
    ("indices that are not packed", layer(is_indice_packed=False)),
    ("layers as a list", quantization(lambda q: q.update(config_for_layers=[]))),
    ("a layer as a number", quantization(lambda q: q["config_for_layers"].update({DOWN: 1}))),
]:
    kind.row(name, change, refused("down_proj|config_for_layers|no linear layer"), LIST)
kind.row("out_features 15", layer(out_features=15), found("down_proj"))
for name, change in [
    ("indices as floats", layer(indices_as_float=True)),
    ("a permutation that is missing", layer(enable_perm=True)),
    ("a bias that is missing", layer(bias=True)),
    (
        "a layer that is missing",
        quantization(
            lambda q: q["config_for_layers"].update({"model.layers.9.mlp.down_proj": q["config_for_layers"][DOWN]})
        ),
    ),
    ("a layer with control characters", quantization(lambda q: q["config_for_layers"].update({BAD: {}}))),
    ("10^4 layers", quantization(lambda q: q["config_for_layers"].update({f"l{i}": {} for i in range(10**4)}))),
]:
    kind.row(name, change, shown("warning: p: "))
for name, where, values in [
    ("centroids that are not numbers", "centroids.weight", [float("nan")]),
    ("infinite centroids", "centroids.weight", [float("inf")]),
    ("a scale that is not a number", "weight_scale", [float("nan")]),
]:
    kind.row(
        name, tensors(lambda s, where=where, values=values: s.floats(f"{DOWN}.{where}", 3, values)), found("down_proj")
    )
kind.row(
    "a part of no layer",
    tensors(lambda s: s.add("model.layers.0.mlp.evil.indices", "I32", [1, 1, 1], b"1234")),
    refused("evil"),
    LIST,
)
kind.row(
    "indices of another shape",
    tensors(lambda s: s.header[f"{DOWN}.indices"].update(shape=[1, 3, 4])),
    refused("down_proj"),
    LIST,
)
kind.row(
    "indices of another type",
    tensors(lambda s: s.header[f"{DOWN}.indices"].update(dtype="F32")),
    refused("down_proj"),
    LIST,
)
