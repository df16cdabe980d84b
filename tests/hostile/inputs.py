"""The good inputs: a model of 2 small layers made here, and everything that the tools make from it."""

import json
import random
import shutil
import struct
import subprocess
from pathlib import Path

import forge

HIDDEN, FFN, LAYERS, HEADS, KV, HEAD_DIM = 16, 24, 2, 2, 1, 8
PIECES = [
    "<unk>",
    "<s>",
    "</s>",
    "\u2581",
    *"abcdefghijklmnopqrstuvwxyz",
    ".",
    ",",
    "th",
    "the",
    "at",
    "er",
    "in",
    "\u2581the",
    "cat",
    "sat",
    "on",
    "\u2581a",
    "\u2581s",
    "ll",
    "\n",
    "\u2581on",
    "\u2581c",
]
MERGES = [
    "t h",
    "th e",
    "a t",
    "e r",
    "i n",
    "\u2581 the",
    "c at",
    "s at",
    "o n",
    "\u2581 a",
    "\u2581 s",
    "l l",
    "\u2581 on",
    "\u2581 c",
]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "head_dim": HEAD_DIM,
    "vocab_size": len(PIECES),
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float16",
}
STARCODER = {
    **CONFIG,
    "architectures": ["Starcoder2ForCausalLM"],
    "model_type": "starcoder2",
    "hidden_act": "gelu_pytorch_tanh",
    "norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
    "use_bias": True,
}
TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"


def shapes():
    """Names and shapes of the model's tensors."""
    yield "model.embed_tokens.weight", [len(PIECES), HIDDEN]
    for n in range(LAYERS):
        p = f"model.layers.{n}."
        for norm in "input_layernorm", "post_attention_layernorm":
            yield p + norm + ".weight", [HIDDEN]
        for name, rows in ("q", HEADS * HEAD_DIM), ("k", KV * HEAD_DIM), ("v", KV * HEAD_DIM), ("o", HIDDEN):
            yield p + f"self_attn.{name}_proj.weight", [rows, HEADS * HEAD_DIM if name == "o" else HIDDEN]
        yield p + "mlp.gate_proj.weight", [FFN, HIDDEN]
        yield p + "mlp.up_proj.weight", [FFN, HIDDEN]
        yield p + "mlp.down_proj.weight", [HIDDEN, FFN]
    yield "model.norm.weight", [HIDDEN]
    yield "lm_head.weight", [len(PIECES), HIDDEN]


def starcoder_shapes():
    """Those of a StarCoder2 model: biases everywhere, no gate."""
    for name, shape in shapes():
        if "gate_proj" not in name and "lm_head" not in name:
            name = name.replace("up_proj", "c_fc").replace("down_proj", "c_proj")
            yield name, shape
            if "embed" not in name:
                yield name.replace(".weight", ".bias"), shape[:1]


def weights(names=None, shapes=shapes):
    """A safetensors file of these tensors, F16; the numbers depend only on the name."""
    s = forge.Safetensors(struct.pack("<Q", 2) + b"{}")
    s.header["__metadata__"] = {"format": "pt"}
    for name, shape in shapes():
        if names is None or name in names:
            rng, count = random.Random(name), shape[0] * (shape[1] if len(shape) > 1 else 1)
            numbers = [1 + rng.gauss(0, 0.1) if "norm" in name else rng.gauss(0, 0.3) for _ in range(count)]
            s.add(name, "F16", shape, struct.pack("<%de" % count, *numbers))
    return s.bytes()


def tokenizer():
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": PIECES[i], **token} for i in range(3)],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {p: i for i, p in enumerate(PIECES)},
            "merges": MERGES,
        },
    }


def sentencepiece():
    """The same pieces as a tokenizer.model."""
    kinds = {0: 2, 1: 3, 2: 3}
    pieces = b"".join(forge.piece(p.encode(), -float(i), kinds.get(i, 1)) for i, p in enumerate(PIECES))
    return pieces + forge.message(2, forge.number(3, 2)) + forge.message(3, forge.number(3, 1) + forge.number(4, 0))


def put(path, value):
    (
        path.write_bytes(value)
        if isinstance(value, bytes)
        else path.write_text(value if isinstance(value, str) else json.dumps(value))
    )


def model(folder, config=CONFIG, shapes=shapes):
    folder.mkdir()
    put(folder / "config.json", config)
    put(folder / "model.safetensors", weights(shapes=shapes))
    put(folder / "tokenizer.json", tokenizer())
    put(
        folder / "tokenizer_config.json",
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "model_max_length": 64},
    )
    put(folder / "special_tokens_map.json", {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})
    put(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    put(folder / "chat_template.jinja", TEMPLATE)


def quantized(folder, name):
    """A model of tests/golden/make_gptq_awq.py, whose vocabulary has one token more than the tokenizer."""
    shutil.copytree(Path(__file__).parent.parent / "golden/gptq_awq" / name, folder)
    put(folder / "tokenizer.json", tokenizer())


def shards(folder):
    """The same model in two files with an index."""
    model(folder)
    (folder / "model.safetensors").unlink()
    names = [n for n, _ in shapes()]
    files = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for name, part in files.items():
        put(folder / name, weights(part))
    put(
        folder / "model.safetensors.index.json",
        {"metadata": {"total_size": 1}, "weight_map": {n: f for f, p in files.items() for n in p}},
    )


def pytorch(folder):
    """The same model as PyTorch saves it."""
    model(folder)
    s = forge.Safetensors((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors").unlink()
    entries = {"m/data.pkl": forge.pickled_tensors(list(shapes()))}
    for i, (name, _) in enumerate(shapes()):
        begin, end = s.at(name)
        entries[f"m/data/{i}"] = bytes(s.data[begin:end])
    put(folder / "pytorch_model.bin", forge.zip_of(entries))


def cached(folder):
    """The same model in the cache of the Hugging Face hub."""
    for part in "refs", "blobs", "snapshots":
        (folder / part).mkdir(parents=True)
    model(folder / "snapshots/abc")
    for i, file in enumerate(sorted((folder / "snapshots/abc").iterdir())):
        blob = f"{i:040x}"
        file.rename(folder / "blobs" / blob)
        file.symlink_to(f"../../blobs/{blob}")
    put(folder / "refs/main", "abc")


def llama2c():
    """A checkpoint of llama2.c of one layer with zeros, small enough to be listed."""
    dim, hidden, layers, heads, kv, vocab, length = 16, 24, 1, 2, 1, 48, 64
    floats = vocab * dim + layers * (2 * dim + 2 * dim * dim + 2 * kv * 8 * dim + 3 * dim * hidden) + dim + length * 8
    return struct.pack("<7i", dim, hidden, layers, heads, kv, vocab, length) + b"\0" * (4 * floats)


def records():
    """Three runs of two models as vptq-eval serve writes them."""
    row = {
        "run_name": "original_2_4_2",
        "group": "original",
        "model": "original",
        "batch_size": 2,
        "input_len": 4,
        "output_len": 2,
        "latency": 0.5,
        "output_throughput": 8.0,
        "overall_throughput": 24.0,
        "input_throughput": 16.0,
        "ttft": 0.1,
    }
    return "".join(
        json.dumps({**row, "group": g, "model": g, "run_name": g + "_2_4_2"}) + "\n"
        for g in ("original", "packed", "packed")
    )


def imatrix():
    """The older form: the diagonals of all inputs."""
    entries = []
    for n in range(LAYERS):
        for name, size in ("attn_q", HIDDEN), ("attn_output", HIDDEN), ("ffn_up", HIDDEN), ("ffn_down", FFN):
            text = f"blk.{n}.{name}.weight".encode()
            entries.append(struct.pack("<i", len(text)) + text + struct.pack("<ii%df" % size, 2, size, *[2.0] * size))
    return struct.pack("<i", len(entries)) + b"".join(entries)


def make(good, tools):
    """Fills the folder `good`."""
    good.mkdir()
    model(good / "m")
    model(good / "sc", STARCODER, starcoder_shapes)
    shards(good / "s")
    pytorch(good / "bin")
    cached(good / "models--o--m")
    quantized(good / "gq", "gptq")
    quantized(good / "aq", "awq")
    model(good / "spm")
    (good / "spm/tokenizer.json").unlink()
    put(good / "spm/tokenizer.model", sentencepiece())
    (good / "c").mkdir()
    put(good / "c/m.bin", llama2c())
    put(good / "c/tokenizer.json", tokenizer())
    (good / "np").mkdir()
    for n in range(LAYERS):
        for name, size in ("qkv", HIDDEN), ("o", HIDDEN), ("up", HIDDEN), ("down", FFN):
            put(
                good / f"np/{n}_{name}.npy",
                forge.npy(
                    (size, size),
                    struct.pack("<%df" % (size * size), *[float(i == j) for i in range(size) for j in range(size)]),
                ),
            )
    put(good / "text", "the cat sat on the other cat. a thin, tall cat sat in there.\n" * 12)
    put(good / "ids.i32", struct.pack("<128i", *[3 + i % 40 for i in range(128)]))
    put(good / "imatrix.dat", imatrix())
    put(good / "records.jsonl", records())
    put(
        good / "copa.jsonl",
        {"premise": "the cat sat.", "choice1": "he sat.", "choice2": "the hat.", "question": "cause", "label": 0},
    )
    put(good / "recipe.json", {"rules": [{"match": "*.v_proj", "settings": {"centroids": 32}}]})
    put(good / "rows.json", [{"name": "a", "settings": {"centroids": 16}}])
    put(good / "messages.json", [{"role": "user", "content": "the cat"}])
    for command in [
        "hessian -m m -c text -n 2 -l 32 --outputs 1 -o h",
        "quantize -m m -H h -k 16 -o w",
        "quantize -m m -H h -b 6 --dry-run -o wb",
        "quantize -m m -H h --method gptq --group-size 8 --act-order -o wu",
        "quantize -m m -H h --method rtn --weight-bits 8 --group-size 0 --symmetric --activation-bits 8 -o w8",
        "quantize -m m -H h --method awq --group-size 8 -o wf",
        "quantize -m m -H h --method sparse -o wd",
        "quantize -m m -H h --method gptvq --group-size 8 --codebook-rows 4 -o wg",
        "quantize -m sc -c text -n 1 -l 32 -k 16 -o scw",
        "pack w -o ps",
        "pack scw -o scps",
        "pack wu -o us",
        "pack w8 -o u8s",
        "pack w -o m.vptq",
        "pack wg -o g.vptq",
        "pack --unpack m -o m.gguf",
        "hessian --export h -o pt",
        "eval ablate -m m -H h -o ab --text text --context 32 --text-windows 1 --table rows.json --kld --task t=copa.jsonl --serve 1,4,2",
        "eval serve -m m=m --config 2,4,2 --runs 1 --warmup 0 -o served.jsonl",
        "eval kld --base m --text text --context 32 --windows 2 --save-base base.kld",
    ]:
        tool, *words = command.split()
        done = subprocess.run(
            [tools / ("vptq-" + tool), *words, "-q", "-t", "1"], cwd=good, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"the good inputs cannot be made: vptq-{command}: {done.stderr}")
    # p, u, u8: without digests, which would find every change before anything else does
    for name in "p", "u", "u8", "scp":
        shutil.copytree(good / (name + "s"), good / name, ignore=shutil.ignore_patterns("SHA256SUMS"))
