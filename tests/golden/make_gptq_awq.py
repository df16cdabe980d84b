#!/usr/bin/env python3
"""Writes tests/golden/gptq_awq, for tests/unit/formats/test_gptq.c, tests/cli/pack/gptq.sh and tests/hostile.

    make_gptq_awq.py tests/golden/gptq_awq                         needs: pip install torch safetensors
    make_gptq_awq.py --corpus tests/fuzz/corpus                    the inputs of tests/fuzz/fuzz_gptq.c
    make_gptq_awq.py --against AUTOGPTQ AUTOAWQ                    needs also transformers

The packers here follow the layouts that AutoGPTQ 0.7.1, GPTQModel and AutoAWQ 0.2.9 publish: where each code has its
bits is spelled out, not computed as a stream. --against takes checkouts of the first and the last, packs the same
matrices with their code, and compares every word and decoded weight.

layers.safetensors   matrices of every kind with their decoded weights
gptq, awq            models of one layer; gptq has an order of columns and a plain o_proj
gptq_plain, ..       the same, decoded
"""
import importlib.util
import json
import sys
import types
from pathlib import Path

import torch
from safetensors.torch import save, save_file

OUT, IN = 32, 96
# Shifts of the codes of 32 columns in the three words of 3 bits; codes 10 and 21 go on in the next word.
WORDS_OF_3 = [[(i, 3 * i) for i in range(11)], [(i, 3 * i - 32) for i in range(10, 22)], [(i, 3 * i - 64) for i in range(21, 32)]]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def shifted(codes, by):
    return codes << by if by >= 0 else codes >> -by


def pack_gptq(codes, bits):
    """Rows of codes -> rows of words: int32 [n bits / 32, m] of [n, m]."""
    fields = WORDS_OF_3 if bits == 3 else [[(i, bits * i) for i in range(32 // bits)]]
    step = 32 if bits == 3 else 32 // bits
    words = []
    for first in range(0, len(codes), step):
        for word in fields:
            x = torch.zeros(codes.shape[1], dtype=torch.int64)
            for i, shift in word:
                x |= shifted(codes[first + i].long(), shift) & 0xFFFFFFFF
            words.append(x)
    return signed(torch.stack(words))


def signed(words):
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def pack_awq(codes):
    """int32 [n, m / 8] of codes [n, m]."""
    words = torch.zeros(codes.shape[0], codes.shape[1] // 8, dtype=torch.int64)
    for i, column in enumerate(AWQ_ORDER):
        words |= codes[:, column::8].long() << (4 * i)
    return signed(words)


def minus_one(words, bits):
    """As GPTQModel makes the zero points of format gptq: one less in all fields of a word at once."""
    ones = sum(1 << shift for shift in range(0, 32, bits))
    return signed((words.long() - ones) & 0xFFFFFFFF)


class Layer:
    """Codes [in, out], zero points and scales [groups, out] from a generator."""

    def __init__(self, seed, bits, group, symmetric=False, order=False, smallest=1, dtype=torch.float16, shape=(OUT, IN)):
        g = torch.Generator().manual_seed(seed)
        out, inn = shape
        self.bits, self.group = bits, group
        groups = -(-inn // group) if group > 0 else 1
        self.codes = torch.randint(0, 1 << bits, (inn, out), generator=g)
        self.zeros = torch.full((groups, out), 1 << (bits - 1)) if symmetric else torch.randint(smallest, 1 << bits, (groups, out), generator=g)
        self.scales = (torch.rand(groups, out, generator=g) * 0.09 + 0.01).to(dtype)
        columns = torch.randperm(inn, generator=g) if order else torch.arange(inn)
        self.g_idx = torch.empty(inn, dtype=torch.int32)
        self.g_idx[columns] = (torch.arange(inn) // (group if group > 0 else inn)).int()

    def decoded(self):
        at = self.g_idx.long()
        return ((self.codes - self.zeros[at]).to(self.scales.dtype) * self.scales[at]).t().contiguous()

    def gptq(self, v2=False, at_once=False):
        zeros = pack_gptq((self.zeros if v2 or at_once else self.zeros - 1).t(), self.bits).t()
        zeros = minus_one(zeros, self.bits) if at_once else zeros
        return {"qweight": pack_gptq(self.codes, self.bits), "qzeros": zeros.contiguous(), "scales": self.scales, "g_idx": self.g_idx}

    def awq(self):
        return {"qweight": pack_awq(self.codes), "qzeros": pack_awq(self.zeros), "scales": self.scales}


def layers():
    """Name, layer, stored tensors."""
    for seed, (name, args, how) in enumerate([
        ("b2", dict(bits=2, group=32), {}),
        ("b3", dict(bits=3, group=32, order=True), {}),
        ("b4", dict(bits=4, group=32, symmetric=True), {}),
        ("b4_order", dict(bits=4, group=32, order=True, dtype=torch.bfloat16), {}),
        ("b4_ragged", dict(bits=4, group=64), {}),
        ("b4_zero", dict(bits=4, group=32, smallest=0), dict(at_once=True)),
        ("b8", dict(bits=8, group=-1), {}),
        ("v2_b3", dict(bits=3, group=32, smallest=0), dict(v2=True)),
        ("v2_b4", dict(bits=4, group=32, smallest=0), dict(v2=True)),
    ]):
        layer = Layer(seed, **args)
        yield name, layer, layer.gptq(**how)
    for seed, (name, args) in enumerate([
        ("awq", dict(bits=4, group=32, smallest=0)),
        ("awq_row", dict(bits=4, group=-1, smallest=0)),
        ("awq_sym", dict(bits=4, group=16, symmetric=True)),
    ]):
        layer = Layer(100 + seed, **args)
        yield name, layer, layer.awq()


# ---- models ----

HIDDEN, FFN, VOCAB = 32, 64, 48
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN,
          "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "vocab_size": VOCAB,
          "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
          "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float16"}
LINEAR = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HIDDEN, HIDDEN), "self_attn.v_proj": (HIDDEN, HIDDEN),
          "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN),
          "mlp.down_proj": (HIDDEN, FFN)}
QUANTIZATION = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True, "sym": False, "lm_head": False,
             "checkpoint_format": "gptq", "true_sequential": True, "damp_percent": 0.01,
             "modules_in_block_to_quantize": [[name for name in LINEAR if "o_proj" not in name]]},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm",
            "backend": "autoawq", "modules_to_not_convert": None},
}


def model(out, method):
    g = torch.Generator().manual_seed(7)
    plain = {"model.embed_tokens.weight": (0.2 * torch.randn(VOCAB, HIDDEN, generator=g)).half()}
    for norm in "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm", "model.norm":
        plain[norm + ".weight"] = (1 + 0.3 * torch.randn(HIDDEN, generator=g)).half()
    packed = dict(plain)
    for seed, (name, shape) in enumerate(LINEAR.items()):
        path = "model.layers.0." + name
        layer = Layer(200 + seed, 4, 16, order=method == "gptq", shape=shape)
        plain[path + ".weight"] = layer.decoded()
        if method == "gptq" and name == "self_attn.o_proj":
            packed[path + ".weight"] = layer.decoded()
        else:
            packed.update({f"{path}.{part}": t for part, t in (layer.gptq() if method == "gptq" else layer.awq()).items()})
    for folder, tensors, quantization in (method, packed, QUANTIZATION[method]), (method + "_plain", plain, None):
        place = out / folder
        place.mkdir(parents=True, exist_ok=True)
        config = {**CONFIG, "quantization_config": quantization} if quantization else CONFIG
        (place / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})


def corpus(out):
    for name, args, how in [
        ("gptq4_order", dict(bits=4, group=16, order=True), {}),
        ("gptq3", dict(bits=3, group=-1), {}),
        ("gptq8_v2", dict(bits=8, group=32), dict(v2=True)),
        ("awq", dict(bits=4, group=16), None),
    ]:
        layer = Layer(300, shape=(32, 32), **args)
        q = {**QUANTIZATION["awq" if how is None else "gptq"], "bits": layer.bits, "group_size": layer.group}
        if how:
            q["checkpoint_format"] = "gptq_v2"
        parts = layer.awq() if how is None else layer.gptq(**how)
        place = out / "gptq"
        place.mkdir(exist_ok=True)
        tensors = save({"P." + part: t for part, t in parts.items()})
        (place / name).write_bytes(json.dumps({"quantization_config": q}).encode() + b"\0" + tensors)


# ---- the code of others ----

def module_of(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def check(name, part, theirs, ours):
    assert torch.equal(theirs, ours), f"{name}: another {part}"


def linear(layer):
    weight = torch.nn.Linear(*layer.codes.shape, bias=False)
    at = layer.g_idx.long()
    weight.weight.data = ((layer.codes - layer.zeros[at]) * layer.scales[at].float()).t().contiguous()
    return weight


def against(autogptq, autoawq):
    gptq = module_of(Path(autogptq) / "auto_gptq/nn_modules/qlinear/qlinear_cuda.py", "qlinear_cuda")
    for name in "awq", "awq.utils":  # without their __init__, which need CUDA and models
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(Path(autoawq) / name.replace(".", "/"))]
    utils = module_of(Path(autoawq) / "awq/utils/packing_utils.py", "awq.utils.packing_utils")
    awq = module_of(Path(autoawq) / "awq/modules/linear/gemm.py", "gemm")
    for name, layer, parts in layers():
        if name.startswith("v2") or name == "b4_zero" or layer.scales.dtype != torch.float16:
            continue  # written by GPTQModel only
        inn, out = layer.codes.shape
        if name.startswith("awq"):
            group = layer.group if layer.group > 0 else inn
            q = awq.WQLinear_GEMM.from_linear(linear(layer), 4, group, scales=layer.scales, zeros=layer.zeros)
            check(name, "weight", utils.dequantize_gemm(q.qweight, q.qzeros, q.scales, 4, group).t(), layer.decoded())
        else:
            q = gptq.QuantLinear(layer.bits, layer.group, inn, out, False)
            q.pack(linear(layer), layer.scales.float().t(), layer.zeros.t().clone(), layer.g_idx)
            check(name, "g_idx", q.g_idx, layer.g_idx)
            # y = x W^T of the identity, in single precision: the values before rounding
            q.scales, q.autogptq_cuda_available = q.scales.float(), False
            check(name, "weight", q(torch.eye(inn)).t().half(), layer.decoded())
            q.scales = q.scales.half()
        for part in "qweight", "qzeros", "scales":
            check(name, part, getattr(q, part), parts[part])
        print(name, "is the same")


def main(words):
    if words[0] == "--against":
        return against(*words[1:])
    if words[0] == "--corpus":
        return corpus(Path(words[1]))
    out = Path(words[0])
    out.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, layer, parts in layers():
        tensors.update({f"{name}.{part}": t for part, t in parts.items()})
        tensors[name + ".decoded"] = layer.decoded()
    save_file(tensors, out / "layers.safetensors")
    for method in QUANTIZATION:
        model(out, method)


if __name__ == "__main__":
    main(sys.argv[1:])
