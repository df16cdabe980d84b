#!/usr/bin/env python3
"""Writes tests/golden/compressed with the compressors of compressed-tensors, for tests/unit/formats/test_compressed.c.

    make_compressed.py tests/golden/compressed            needs: pip install xxhash compressed-tensors==0.20.0
    make_compressed.py --older tests/golden/compressed    needs: pip install xxhash compressed-tensors==0.17.1

library.json      digests of what is stored for, and decoded from, matrices whose codes, scales and zero points follow
                  from a formula: `noise` here and in the test
small.*           small matrices whole, with the scales that the library computes from random weights, and their config
older.safetensors what only older releases write: an order of columns, and codes with gaps
"""
import json
import sys
from pathlib import Path

import torch
import xxhash
from compressed_tensors import __version__
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

SHAPES = [(192, 576), (576, 1536), (7, 50)]
DTYPES = {torch.float16: "F16", torch.bfloat16: "BF16", torch.int32: "I32", torch.int64: "I64", torch.int8: "I8"}
BYTES = "int-quantized"
PACKED = "pack-quantized"
TOKENS = QuantizationArgs(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True)


def scheme(bits, group, symmetric, kind=PACKED, name="Linear", strategy=None, **more):
    strategy = strategy or ("group" if group else "channel")
    weights = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, strategy=strategy,
                               group_size=group or None, dynamic=False, observer="minmax", **more)
    return QuantizationScheme(targets=[name], weights=weights, input_activations=TOKENS if kind == BYTES else None)


def compressor(kind):
    return BaseCompressor.get_value_from_registry(kind)


def stored(state, kind, rule):
    """The tensors of a state {weight, weight_scale, weight_zero_point}, and the decoded weights."""
    tensors = compressor(kind).compress(state, rule)
    if rule.weights.symmetric and "weight_zero_point" in tensors:
        del tensors["weight_zero_point"]
    tensors = {part: t.contiguous() for part, t in tensors.items()}
    if rule.weights.num_bits == 4 and not rule.weights.symmetric and len(tensors["weight_zero_point"]) == 1:
        # 0.20.0 fails to unpack 4-bit zero points of a single row of words
        codes = unpack_from_int32(tensors["weight_packed"], 4, tensors["weight_shape"])
        return tensors, dequantize(codes, state["weight_scale"], state["weight_zero_point"], rule.weights)
    return tensors, compressor(kind).decompress(tensors, rule)["weight"]


# ---- matrices of a formula ----

def noise(n, salt):
    """n numbers of 17 bits."""
    i = torch.arange(n, dtype=torch.int64)
    return (((i + 1) * (2654435761 + 2 * salt)) & 0xFFFFFFFF) >> 15


def formula(out, inn, bits, group, symmetric, dtype):
    """Weights that are exact in float32, so that the library finds these codes again."""
    groups = inn // group if group else 1
    half = 1 << (bits - 1)
    code = (noise(out * inn, bits) % (1 << bits) - half).reshape(out, inn)
    first, count = (0x1C00, 0x1000) if dtype == torch.float16 else (0x3A00, 0x300)
    scale = (first + noise(out * groups, 50) % count).to(torch.int16).view(dtype).reshape(out, groups)
    zero = torch.zeros(out, groups, dtype=torch.int8)
    if not symmetric:
        zero = (noise(out * groups, 60) % (1 << bits) - half).to(torch.int8).reshape(out, groups)
    per = inn // groups
    weight = (code - zero.repeat_interleave(per, 1)).float() * scale.float().repeat_interleave(per, 1)
    return {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}


def digest(t):
    flat = torch.empty(t.numel(), dtype=t.dtype).copy_(t.reshape(-1))  # with a stride of 1 also for one element
    data = flat.view(torch.uint8).numpy().tobytes()
    return {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "xxh3": xxhash.xxh3_64_hexdigest(data)}


def case(out, inn, bits, group, symmetric, dtype, kind=PACKED):
    state = formula(out, inn, bits, group, symmetric, dtype)
    rule = scheme(bits, group, symmetric, kind)
    tensors, decoded = stored(state, kind, rule)
    assert decoded.dtype == dtype and torch.equal(decoded, state["weight"].to(dtype))
    return {"out": out, "in": inn, "bits": bits, "group_size": group, "symmetric": symmetric, "storage": DTYPES[dtype],
            "format": kind, "tensors": {part: digest(t) for part, t in tensors.items()}, "decoded": digest(decoded)}


def cases():
    f16, bf16 = torch.float16, torch.bfloat16
    for out, inn in SHAPES:
        wide, narrow = (10, 5) if inn == 50 else (64, 32)
        yield case(out, inn, 8, 0, True, bf16, BYTES)
        yield case(out, inn, 8, wide, True, f16)
        yield case(out, inn, 8, narrow, True, bf16)
        for bits in range(2, 9):
            yield case(out, inn, bits, 0, True, f16 if bits % 2 else bf16)
            yield case(out, inn, bits, wide if bits % 2 else narrow, False, bf16 if bits % 2 else f16)
        yield case(out, inn, 4, 0, False, bf16)


# ---- small matrices ----

def computed(weight, rule):
    """The state of a matrix with the scales of the library, computed in the type of the weights."""
    group = rule.weights.group_size or weight.shape[1]
    parts = weight.reshape(weight.shape[0], -1, group)
    if rule.weights.strategy == "tensor":
        parts = weight.reshape(1, 1, -1)
    scale, zero = calculate_qparams(parts.amin(-1), parts.amax(-1), rule.weights)
    if rule.weights.strategy == "tensor":
        scale, zero = scale.reshape(1), zero.reshape(1)
    return {"weight": weight, "weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}


def small_weight(seed, dtype):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(7, 50, generator=g).to(dtype)
    w[3] = 0  # the library makes scales of zeros the type's eps
    w[4, 10:20] = 0
    w[5] = w[5].abs()  # asymmetric ranges begin at 0
    return w


def small(out):
    f16, bf16 = torch.float16, torch.bfloat16
    rows = {"int8": (8, 0, True, bf16, BYTES, {}), "int8_asym": (8, 0, False, bf16, BYTES, {}),
            "w8": (8, 0, True, f16, PACKED, {}), "w8_tensor": (8, 0, True, bf16, PACKED, {"strategy": "tensor"}),
            "w8_group": (8, 25, True, bf16, PACKED, {"actorder": "weight"}), "w4": (4, 10, True, bf16, PACKED, {}),
            "w4_asym": (4, 10, False, f16, PACKED, {}), "w3": (3, 0, True, bf16, PACKED, {}),
            "w3_asym": (3, 5, False, f16, PACKED, {}), "w5": (5, 10, True, f16, PACKED, {})}
    tensors, groups = {}, {}
    for seed, (name, (bits, group, symmetric, dtype, kind, more)) in enumerate(rows.items()):
        rule = scheme(bits, group, symmetric, kind, f"model.layers.0.{name}", **more)
        rule.format = kind
        parts, decoded = stored(computed(small_weight(seed, dtype), rule), kind, rule)
        tensors.update({f"model.layers.0.{name}.{part}": t for part, t in parts.items()})
        tensors[f"model.layers.0.{name}.decoded"] = decoded.contiguous()
        groups[f"group_{seed}"] = rule
    config = QuantizationConfig(config_groups=groups, format="mixed-precision", quantization_status="compressed",
                                ignore=["lm_head"])
    save_file(tensors, out / "small.safetensors")
    text = json.dumps({"quantization_config": config.to_dict()}, indent=1, default=str)
    (out / "small.json").write_text(text + "\n")


# ---- older releases ----

def older(out):
    rule = scheme(4, 10, True, actorder="group")
    order = torch.tensor([(c * 7 + 3) % 50 // 10 for c in range(50)], dtype=torch.int32)
    weight = small_weight(20, torch.bfloat16)
    state = computed(weight[:, torch.argsort(order, stable=True)], rule)
    state.update(weight=weight, weight_g_idx=order)
    gaps = scheme(7, 0, True)
    matrices = {"order": stored(state, PACKED, rule), "gaps": stored(computed(weight, gaps), PACKED, gaps)}
    tensors = {}
    for name, (parts, decoded) in matrices.items():
        tensors.update({f"{name}.{part}": t for part, t in parts.items()})
        tensors[f"{name}.decoded"] = decoded.contiguous()
    save_file(tensors, out / "older.safetensors")


def main():
    out = Path(sys.argv[-1])
    out.mkdir(exist_ok=True)
    if "--older" in sys.argv:
        assert __version__ == "0.17.1", __version__
        return older(out)
    assert __version__ == "0.20.0", __version__
    small(out)
    lines = ",\n".join(json.dumps(c) for c in cases())
    (out / "library.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
