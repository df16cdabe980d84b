"""Hugging Face directories: settings, weights, shards, links; llama2.c checkpoints."""

import json
import struct

import forge
from changes import (
    BAD,
    at,
    both,
    cut,
    fifo,
    folder,
    json_file,
    link,
    quantization,
    remove,
    setting,
    sparse,
    tensors,
    write,
)
from net import Kind, harmless, refused, shown, warned, without

LIST, PLAN, UNPACK = "pack --list {}", "quantize -m {} --dry-run", "pack -q --unpack {} -o out"
GENERATE, TOKENS = "eval generate -q -m {} -p the -n 1", "eval ppl -q -m {} --text B/text --tokens-only"

# --- config.json ---

config = Kind("config", "m", PLAN)
for name, size in (
    ("2^31", 1 << 31),
    ("2^62", 1 << 62),
    ("0", 0),
    ("-1", -1),
    ("1.5", 1.5),
    ("a text", "16"),
    ("a list", [16]),
):
    config.row(f"hidden_size {name}", setting(hidden_size=size), refused("hidden.size"), PLAN, LIST)
    config.row(
        f"layers {name}", setting(num_hidden_layers=size), refused("num_hidden_layers|number of layers"), PLAN, LIST
    )
for key, size, words in [
    ("intermediate_size", 1 << 40, "intermediate.size"),
    ("num_attention_heads", 0, "heads is 0"),
    ("num_attention_heads", 1 << 31, "heads is 2147"),
    ("num_attention_heads", 3, "q_proj"),
    ("num_key_value_heads", 1 << 31, "key-value heads"),
    ("num_key_value_heads", 0, "key-value heads"),
    ("head_dim", 1 << 31, "head dimension"),
    ("head_dim", 7, "head dimension"),
    ("vocab_size", 10**9, "vocabulary size"),
    ("vocab_size", 1 << 62, "vocab"),
    ("rms_norm_eps", -1, "epsilon"),
    ("rope_theta", -1, "theta"),
    ("num_hidden_layers", 10**6, "number of layers"),
    ("num_hidden_layers", 65536, "model.layers.2"),
    ("num_hidden_layers", 3, "model.layers.2"),
    ("max_position_embeddings", 10**12, "max_position"),
    ("max_position_embeddings", -1, "max_position|context"),
    ("partial_rotary_factor", 0.5, "partial_rotary_factor"),
    ("rope_scaling", {"rope_type": "llama3", "factor": 0}, "low_freq_factor"),
    ("rope_scaling", [], "rope_scaling"),
    ("rope_scaling", {"rope_type": BAD, "factor": 2}, "RoPE scaling"),
    ("hidden_act", "gelu", "gelu"),
    ("hidden_act", BAD, "hidden_act|activation"),
    ("model_type", BAD, "model type"),
    ("architectures", [BAD], "architecture"),
    ("tie_word_embeddings", "yes", "tie_word_embeddings"),
    ("bos_token_id", 1 << 40, "bos_token_id"),
    ("eos_token_id", -5, "eos_token_id"),
    ("eos_token_id", [BAD], "eos_token_id"),
]:
    config.row(f"{key} {json.dumps(size)[:40]}", setting(**{key: size}), refused(words))
for key, value in [
    ("rope_theta", 1e308),
    ("rope_scaling", {"rope_type": "yarn", "factor": 1e300}),
    ("architectures", []),
    ("model_type", None),
    ("eos_token_id", [2] * 100000),
    ("torch_dtype", BAD),
    ("k" * (1 << 20), BAD),
]:
    config.row(f"{key[:20]} {json.dumps(value)[:40]}", setting(**{key: value}), harmless)
config.row("context 10^12, generating", setting(max_position_embeddings=10**12), refused("max_position"), GENERATE)
config.row("context 2^31 - 1, generating", setting(max_position_embeddings=2**31 - 1), harmless, GENERATE)
MIXTRAL = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
QWEN2_MOE = {"model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], "num_experts": 4}
QWEN2_MOE.update(num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=8)
for family, key, value, words in [
    (MIXTRAL, "num_local_experts", 0, "number of experts is 0"),
    (MIXTRAL, "num_local_experts", 1 << 31, "number of experts is 2147"),
    (MIXTRAL, "num_local_experts", 1 << 62, "num_local_experts"),
    (MIXTRAL, "num_local_experts", 512, "experts.0"),
    (MIXTRAL, "num_experts_per_tok", 9, "experts per token is 9"),
    (MIXTRAL, "num_experts_per_tok", 0, "experts per token is 0"),
    (MIXTRAL, "num_hidden_layers", 257, "number of layers is 257"),
    (MIXTRAL, "vocab_size", 1, "embed_tokens"),
    (QWEN2_MOE, "num_experts", -1, "num_experts"),
    (QWEN2_MOE, "moe_intermediate_size", 1 << 31, "intermediate size of experts"),
    (QWEN2_MOE, "shared_expert_intermediate_size", 0, "intermediate size of the shared expert"),
    (QWEN2_MOE, "decoder_sparse_step", 0, "decoder_sparse_step"),
    (QWEN2_MOE, "decoder_sparse_step", 1 << 62, "decoder_sparse_step"),
    (QWEN2_MOE, "mlp_only_layers", [2], "mlp_only_layers"),
    (QWEN2_MOE, "mlp_only_layers", [1 << 62], "mlp_only_layers"),
    (QWEN2_MOE, "mlp_only_layers", [BAD], "mlp_only_layers"),
    (QWEN2_MOE, "mlp_only_layers", {"0": 1}, "mlp_only_layers"),
    (QWEN2_MOE, "mlp_only_layers", [0] * 100000, "experts.0|bias"),
    (QWEN2_MOE, "norm_topk_prob", "yes", "norm_topk_prob"),
    (QWEN2_MOE, "use_sliding_window", True, "use_sliding_window"),
    (QWEN2_MOE, "hidden_size", 16, "bias"),
]:
    name = f"{family['model_type']} {key} {json.dumps(value)[:30]}"
    config.row(name, setting(**{**family, key: value}), refused(words))
for name, text in [
    ("numbers of 100,000 digits", '{"hidden_size": ' + "9" * 100000 + "}"),
    ("1e999", '{"hidden_size": 1e999}'),
    ("depth 10^6 of objects", lambda: forge.deep(10**6)),
    ("depth 10^6 of lists", lambda: forge.deep(10**6, "[", "", "]")),
    ("a list", "[]"),
    ("nothing", ""),
    ("zeros", b"\0" * 4096),
    ("not UTF-8", b'{"hidden_size": "\xff\xfe"}'),
    ("UTF-16", "{}".encode("utf-16")),
    ("duplicate keys", '{"hidden_size": 16, "hidden_size": 32}'),
    ("18 MB of objects", lambda: '{"a":[' + "{}," * (6 << 20) + "{}]}"),
]:
    config.row(name, write("config.json", text), refused("config.json"))
config.row("a zero after the object", at("config.json", 1 << 30, b"\0"), refused("config.json"))
config.row("200 MiB of zeros after the object", sparse("config.json", 200 << 20), refused("config.json"))

# --- safetensors ---

weights = Kind("safetensors", "m", LIST)


def header(change):
    return tensors(lambda s: change(s.header))


def entry(**values):
    return header(lambda h: h["model.norm.weight"].update(values))


for name, length in (
    ("0", 0),
    ("1", 1),
    ("2^63", 1 << 63),
    ("2^64 - 1", (1 << 64) - 1),
    ("2^64 - 8", (1 << 64) - 8),
    ("the file's size", 1 << 14),
):
    weights.row(f"header of {name} bytes", at("model.safetensors", 0, struct.pack("<Q", length)), refused("header"))
weights.row(
    "header of 64 MB of zeros",
    both(at("model.safetensors", 0, struct.pack("<Q", 64 << 20)), sparse("model.safetensors", 100 << 20)),
    refused("header|JSON"),
)
for name, values in [
    ("beyond the file", {"data_offsets": [0, 1 << 40]}),
    ("beyond 64 bits", {"data_offsets": [0, 1 << 64]}),
    ("backwards", {"data_offsets": [32, 0]}),
    ("negative", {"data_offsets": [-32, 0]}),
    ("of one number", {"data_offsets": [0]}),
    ("of fractions", {"data_offsets": [0.5, 32.5]}),
    ("overlapping", {"data_offsets": [0, 32]}),
]:
    weights.row(f"offsets {name}", entry(**values), refused("model.norm.weight|overlap|too big integer"))
for name, shape in [
    ("whose product overflows", [1 << 32, 1 << 32]),
    ("whose bytes overflow", [1 << 62, 2, 2]),
    ("2^63", [1 << 63]),
    ("negative", [-16]),
    ("of 9 dimensions", [1] * 8 + [16]),
    ("of 10^5 dimensions", [1] * 10**5),
    ("0 x 2^63", [0, 1 << 62]),
    ("text", "16"),
    ("none", None),
    ("fraction", [16.5]),
    ("2 x 8", [2, 8]),
]:
    weights.row(f"shape {name}", entry(shape=shape), refused("model.norm.weight|too big integer"), PLAN)
for name, dtype in [
    ("unknown", "F8"),
    ("with control characters", BAD),
    ("a number", 1),
    ("of 1 MiB", "F" * (1 << 20)),
    ("I64", "I64"),
]:
    weights.row(f"type {name}", entry(dtype=dtype), refused("model.norm.weight"))
for name, text in [("with control characters", BAD), ("with a zero", "a\0b"), ("with ESC", "a\x1b")]:
    weights.row(
        f"tensor name {name}", tensors(lambda s, text=text: s.add(text, "F16", [0], b"")), refused("name|NUL byte")
    )
for name, text in [
    ("of 10,000 characters", "a" * 10000),
    ("empty", ""),
    ("a path", "../../etc/passwd"),
    ("turned around", "\u202eweight"),
]:
    weights.row(
        f"tensor name {name}", tensors(lambda s, text=text: s.add(text, "F16", [0], b"")), shown("lm_head.weight")
    )
    weights.row(
        f"tensor name {name}, planning", tensors(lambda s, text=text: s.add(text, "F16", [0], b"")), harmless, PLAN
    )


def many(count):
    """Tensors without elements."""
    return header(
        lambda h: h.update({f"t{i}": {"dtype": "F16", "shape": [0], "data_offsets": [0, 0]} for i in range(count)})
    )


weights.row("10^5 tensors", many(10**5), harmless, PLAN)
weights.row("2 10^5 tensors", many(2 * 10**5), harmless, PLAN)
weights.row("7 10^5 tensors", many(7 * 10**5), refused("model.safetensors"))
weights.row(
    "metadata of 3 10^5 texts",
    header(lambda h: h.update(__metadata__={str(i): "" for i in range(3 * 10**5)})),
    shown("lm_head"),
)
weights.row("metadata with control characters", header(lambda h: h.update(__metadata__={BAD: 1})), refused("metadata"))
weights.row(
    "metadata with control characters, as text",
    header(lambda h: h.update(__metadata__={"format": BAD})),
    harmless,
    PLAN,
)
weights.row(
    "a tensor twice",
    tensors(lambda s: setattr(s, "text", json.dumps(s.header).encode().replace(b"lm_head", b"model.norm", 1))),
    refused("duplicate|model.norm"),
)
weights.row(
    "header of depth 10^5",
    tensors(lambda s: setattr(s, "text", forge.deep(10**5).encode())),
    refused("model.safetensors"),
)
weights.row("a missing tensor", tensors(lambda s: s.drop("lm_head.weight")), refused("lm_head"), PLAN)
weights.row("a gap of data", tensors(lambda s: s.data.extend(b"\0" * 64)), refused("model.safetensors"))
weights.row("an empty file", write("model.safetensors", b""), refused("model.safetensors"))
weights.row("half of the file", cut("model.safetensors", -3000), refused("model.safetensors"))
weights.row(
    "NaN in a norm",
    tensors(lambda s: s.floats("model.norm.weight", 3, [float("nan")])),
    refused("not a number"),
    GENERATE,
)
weights.row(
    "infinity in the head",
    tensors(lambda s: s.floats("lm_head.weight", 3, [float("inf")] * 640)),
    refused("not a number"),
    GENERATE,
)
weights.row(
    "NaN, quantizing",
    tensors(lambda s: s.floats("model.layers.0.mlp.up_proj.weight", 3, [float("nan")])),
    refused("up_proj"),
    "quantize -q -m {} -c B/text -n 1 -l 32 -k 16 -o out",
)

# --- shards and their index ---

index = Kind("index", "s", LIST)
FIRST, INDEX = "model-00001-of-00002.safetensors", "model.safetensors.index.json"


def shard(name):
    return json_file(INDEX, lambda v: v["weight_map"].update({"lm_head.weight": name}))


for what, name in [
    ("in the folder above", "../secret.txt"),
    ("with an absolute path", "/etc/passwd"),
    ("in a folder", "a/b.safetensors"),
    ("..", ".."),
    (".", "."),
    ("without a name", ""),
    ("with a zero", FIRST + "\0.txt"),
    ("with control characters", BAD),
    ("of 10,000 characters", "a" * 10000),
    ("that is missing", "none.safetensors"),
    ("that is a number", 1),
    ("that is the other one", FIRST),
    ("config.json", "config.json"),
    ("with other case", FIRST.upper()),
    ("that is the index", INDEX),
    ("with a backslash", "..\\secret.txt"),
]:
    index.row(f"a shard {what}", shard(name), refused("index|shard|lm_head|safetensors|json|cannot open"))
index.row(
    "3 10^5 shards",
    json_file(INDEX, lambda v: v.update(weight_map={f"t{i}": f"{i}.safetensors" for i in range(3 * 10**5)})),
    refused("0.safetensors"),
)
index.row(
    "10^5 shards that are one",
    json_file(INDEX, lambda v: v["weight_map"].update({f"t{i}": FIRST for i in range(10**5)})),
    refused("index|t0"),
)
index.row("an unknown tensor", json_file(INDEX, lambda v: v["weight_map"].update({BAD: FIRST})), refused("index|x"))
index.row("no map", write(INDEX, "{}"), refused("weight_map"))
index.row("a list as a map", write(INDEX, '{"weight_map": []}'), refused("weight_map"))
index.row("a shard that loops", link(FIRST, FIRST), refused(FIRST))
index.row("a missing shard", remove(FIRST), refused(FIRST))
index.row("an index that is a pipe", fifo(INDEX), refused(INDEX))
index.row("total_size 2^63", json_file(INDEX, lambda v: v["metadata"].update(total_size=2**63 - 1)), harmless)


def shard_text(change):
    return tensors(change, FIRST)


index.row(
    "a tensor in both shards",
    shard_text(lambda s: s.add("lm_head.weight", "F16", [0], b"")),
    refused("lm_head"),
)
index.row(
    "a file with control characters in its name",
    both(remove(INDEX), write("x\x1b[2J\n.safetensors", "")),
    refused(r"x\\x1b\[2J"),
)
index.row("a hidden file of weights", both(remove(INDEX), write(".x.safetensors", "evil")), refused(".x.safetensors"))
index.row(
    "10^4 files of weights",
    both(remove(INDEX), lambda t: [(t / f"{i}.safetensors").touch() for i in range(10**4)]),
    refused("safetensors"),
)
index.row("a pipe as weights", both(remove(INDEX), fifo("x.safetensors")), refused("x.safetensors"))

# --- PyTorch checkpoints and their index ---

BIN = "pytorch_model.bin"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 548105171\n"
kind = Kind("pytorch_model", "bin", LIST)


def zipped(change):
    return lambda t: forge.edit_zip(t / BIN, change)


def pickled(raw):
    return zipped(lambda z: z.update({"m/data.pkl": raw(z["m/data.pkl"]) if callable(raw) else raw}))


kind.row("as it is", lambda t: None, harmless, PLAN, UNPACK, GENERATE)
for name, raw in [
    ("that runs a command", b"cos\nsystem\n(S'touch evil'\ntR."),
    ("that runs a command by protocol 4", b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0atouch evil\x85R."),
    ("that runs a command by attributes", b"}cos\nsystem\nb."),
    ("that evaluates", b"cbuiltins\neval\n(X\x01\0\0\0" + b"1tR."),
    ("with a name of control characters", b"c\x1b[2J\x07\nx\n)R."),
    ("of attributes of nothing", b"}" + b"}b" * 10**5 + b"b."),
    ("with a list", b"]."),
    ("of 2 MB", b"N" * (2 << 20)),
    ("without an end", lambda p: p[:-1]),
]:
    kind.row(f"a pickle {name}", pickled(raw), refused(BIN))
kind.row("an empty dictionary", pickled(b"}."), refused("model.embed_tokens"), PLAN)
kind.row("a dictionary of dictionaries", pickled(b"}X\x01\0\0\0a}s."), refused("model.embed_tokens"), PLAN)
for name, change in [
    ("a transposed tensor", pickled(lambda p: p.replace(b"J\x10\0\0\0J\x01\0\0\0t\x89", b"J\x01\0\0\0J\x10\0\0\0t\x89", 1))),
    ("a stride of 2^30", pickled(lambda p: p.replace(b"J\x10\0\0\0J\x01\0\0\0t\x89", b"J\0\0\0\x40J\x01\0\0\0t\x89", 1))),
    ("a storage that is missing", zipped(lambda z: z.pop("m/data/0") and None)),
    ("a storage of other length", zipped(lambda z: z.update({"m/data/0": b"1234"}))),
    ("tensors of doubles", pickled(lambda p: p.replace(b"HalfStorage", b"DoubleStorage"))),
    ("a tensor twice", pickled(lambda p: p.replace(b"layers.1.mlp.up", b"layers.0.mlp.up"))),
    ("a deflated bomb", lambda t: forge.edit_zip(t / BIN, lambda z: z.update({"m/data/0": b"\0" * (64 << 20)}), 8)),
    ("a wrong checksum", lambda t: forge.edit_bytes(t / BIN, lambda b: b.replace(b"lm_head", b"lm_hea_", 1))),
    ("a Git LFS pointer", write(BIN, POINTER)),
    ("the format before PyTorch 1.6", write(BIN, b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.cos\nsystem\n.")),
    ("nothing", write(BIN, "")),
    ("cut short", cut(BIN, -30)),
    ("1 TiB of zeros", sparse(BIN, 1 << 40)),
    ("a pipe", fifo(BIN)),
    ("a folder", folder(BIN)),
]:
    kind.row(name, change, refused(BIN))
for name, file in [
    ("in the folder above", "../secret.txt"),
    ("with an absolute path", "/etc/passwd"),
    ("with control characters", BAD),
    ("that is missing", "none.bin"),
    ("config.json", "config.json"),
]:
    kind.row(
        f"a shard {name}",
        write(BIN + ".index.json", json.dumps({"weight_map": {"lm_head.weight": file}})),
        refused(BIN + "|none.bin|config.json|cannot open"),
    )
kind.row(
    "a shard that is the file",
    write(BIN + ".index.json", json.dumps({"weight_map": {"lm_head.weight": BIN}})),
    harmless,
    PLAN,
)
weights.row("a Git LFS pointer", write("model.safetensors", POINTER), refused("Git LFS pointer"))
weights.row("a tokenizer that is a Git LFS pointer", write("tokenizer.json", POINTER), refused("Git LFS"), TOKENS)

# --- the cache of the Hugging Face hub ---

kind = Kind("hub", "models--o--m", LIST)
kind.row("as it is", lambda t: None, harmless, PLAN, UNPACK)
for name, text in [
    ("in the folder above", "../../secret"),
    ("..", ".."),
    ("with an absolute path", "/etc"),
    ("with control characters", BAD),
    ("of nothing", ""),
    ("of 100 characters", "a" * 100),
    ("of 10^6 characters", "a" * 10**6),
    ("that is missing", "def"),
    ("of two lines", "abc\nabc"),
]:
    kind.row(f"refs/main: a name {name}", write("refs/main", text), refused("refs/main|no complete snapshot"))
for name, change in [("a pipe", fifo), ("a folder", folder)]:
    kind.row(f"refs/main: {name}", change("refs/main"), refused("refs/main"))
kind.row("refs/main: zeros for ever", link("refs/main", "/dev/zero"), refused("refs/main"))
kind.row("refs/main: missing", remove("refs/main"), harmless)
kind.row(
    "snapshots with control characters in their names",
    both(remove("refs/main"), folder("snapshots/" + BAD.replace("/", "")), folder("snapshots/b")),
    refused("has several snapshots and no refs/main; .*: abc, b$"),
)
kind.row("a snapshot outside", both(link("snapshots/x", "/etc"), write("refs/main", "x")), refused("link"))
kind.row("a snapshot of itself", both(link("snapshots/x", "x"), write("refs/main", "x")), refused("snapshot"))
kind.row("a snapshot that is another", both(link("snapshots/x", "abc"), write("refs/main", "x")), refused("link"))
kind.row(
    "a file outside, unpacking",
    link("snapshots/abc/notes.txt", "../../../secret.txt"),
    without("notes.txt"),
    UNPACK,
)

# --- a family without gates, with biases in its norms ---

starcoder = Kind("starcoder2", "sc", PLAN, GENERATE)
for key, value, words in [
    ("norm_epsilon", 0, "norm epsilon is 0"),
    ("norm_epsilon", -1, "norm epsilon is -1"),
    ("norm_epsilon", 1e300, "norm epsilon is inf"),
    ("norm_epsilon", BAD, "'norm_epsilon' is a string"),
    ("use_bias", 1, "'use_bias' is a whole number"),
    ("use_bias", BAD, "'use_bias' is a string"),
    ("hidden_act", "gelu", "'hidden_act' is 'gelu'"),
    ("sliding_window", -1, "'sliding_window' is -1"),
    ("num_key_value_heads", 2, "k_proj"),
    ("intermediate_size", 32, "mlp.c_fc"),
    ("model_type", "llama", "architecture"),
]:
    starcoder.row(f"{key} {json.dumps(value)[:40]}", setting(**{key: value}), refused(words))
starcoder.row("use_bias false", setting(use_bias=False), shown("ignored 12 biases"), PLAN)
starcoder.row("sliding_window 1", setting(sliding_window=1), shown("c_fc|the"))
starcoder.row("rms_norm_eps -1", setting(rms_norm_eps=-1), harmless)
starcoder.row(
    "another family's name",
    setting(model_type="llama", architectures=["LlamaForCausalLM"]),
    refused("mlp.gate_proj"),
)
for name in "model.norm.bias", "model.layers.1.input_layernorm.bias", "model.layers.0.mlp.c_proj.bias":
    starcoder.row(f"{name} is missing", tensors(lambda s, name=name: s.drop(name)), refused(name))
    starcoder.row(f"{name} is a matrix", header(lambda h, name=name: h[name].update(shape=[4, 4])), refused(name))
starcoder.row(
    "NaN in the bias of a norm",
    tensors(lambda s: s.floats("model.norm.bias", 3, [float("nan")])),
    refused("not a number|not finite"),
    GENERATE,
)
starcoder.row(
    "a gate",
    tensors(lambda s: s.add("model.layers.0.mlp.gate_proj.weight", "F16", [0, 16], b"")),
    warned("does not use 1 of its tensors: 'model.layers.0.mlp.gate_proj.weight'"),
)
entries = Kind("starcoder2 packed", "scp", LIST, GENERATE)
for what, old, new in [
    ("a gate in place of c_fc", "mlp.c_fc", "mlp.gate_proj"),
    ("up_proj in place of c_fc", "mlp.c_fc", "mlp.up_proj"),
]:
    entries.row(
        what,
        quantization(
            lambda q, old=old, new=new: q.update(
                config_for_layers={n.replace(old, new): e for n, e in q["config_for_layers"].items()}
            )
        ),
        refused("mlp.c_fc"),
    )
entries.row(
    "a gate besides",
    quantization(
        lambda q: q["config_for_layers"].update(
            {"model.layers.0.mlp.gate_proj": q["config_for_layers"]["model.layers.0.mlp.c_fc"]}
        )
    ),
    shown("the|lists 'model.layers.0.mlp.gate_proj', which is not a linear layer of a block"),
    GENERATE,
    "pack --check {}",
)

# --- what is in place of a file ---

place = Kind("place", "m", LIST)
for name in "config.json", "model.safetensors":
    place.row(f"{name}: a pipe", fifo(name), refused(name))
    place.row(f"{name}: a folder", folder(name), refused(name))
    place.row(f"{name}: a link to itself", link(name, name), refused(name))
    place.row(f"{name}: a link to nothing", link(name, "nothing"), refused(name))
    place.row(f"{name}: a terminal", link(name, "/dev/tty"), refused(name))
    place.row(f"{name}: zeros for ever", link(name, "/dev/zero"), refused(name))
    place.row(f"{name}: nothing for ever", link(name, "/dev/null"), refused(name))
    place.row(f"{name}: a secret", link(name, "../secret.txt"), refused(name))
place.row("tokenizer.json: a pipe", fifo("tokenizer.json"), refused("tokenizer.json"), TOKENS, UNPACK)
place.row("tokenizer.json: zeros for ever", link("tokenizer.json", "/dev/zero"), refused("tokenizer.json"), TOKENS)
place.row(
    "chat_template.jinja: a pipe",
    fifo("chat_template.jinja"),
    refused("chat_template.jinja"),
    "eval generate -q -m {} --chat -p a --dry-run",
)
place.row("the model is a pipe", fifo(""), refused("m"))
place.row("the model is a link to itself", link("", "m"), refused("m"))
place.row("the model is an empty folder", folder(""), refused("m"))
place.row("the model is a terminal", link("", "/dev/tty"), refused("m"))
place.row("the model is random", link("", "/dev/urandom"), refused("m"))

# --- llama2.c ---

llama2c = Kind("llama2c", "c", "pack --list c/m.bin")
for what, where, value in [
    ("dim 0", 0, 0),
    ("dim 2^31 - 1", 0, 2**31 - 1),
    ("dim -1", 0, -1),
    ("layers 10^6", 8, 10**6),
    ("layers 2^31 - 1", 8, 2**31 - 1),
    ("heads 0", 12, 0),
    ("heads 3", 12, 3),
    ("key-value heads -1", 16, -1),
    ("vocabulary 10^9", 20, 10**9),
    ("vocabulary -2^31", 20, -(2**31)),
    ("context 2^31 - 1", 24, 2**31 - 1),
    ("context -1", 24, -1),
]:
    llama2c.row(what, at("m.bin", where, struct.pack("<i", value)), refused("m.bin"))
llama2c.row("cut short", cut("m.bin", -4), refused("m.bin"))
llama2c.row("28 bytes", cut("m.bin", 28), refused("m.bin"))
