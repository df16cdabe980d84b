#!/usr/bin/env python3
"""Writes the corpus of tests/fuzz/fuzz_compressed.c, from docs/formats/compressed-tensors.md alone.

    make_compressed_corpus.py tests/fuzz/corpus
"""
import json
import os
import struct
import sys


def safetensors(tensors):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def bits(fields, width):
    stream = sum(f << (i * width) for i, f in enumerate(fields))
    return stream.to_bytes(4 * ((len(fields) * width + 31) // 32), "little")


def halves(n):
    return struct.pack(f"<{n}H", *(0x3000 + 37 * i % 0x800 for i in range(n)))


def scheme(num_bits, group, symmetric, inputs, targets):
    weights = {"num_bits": num_bits, "type": "int", "symmetric": symmetric, "strategy": "group" if group else "channel",
               "group_size": group or None, "dynamic": False}
    activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    return {"targets": targets, "weights": weights, "input_activations": activations if inputs else None}


def model(out, inn, num_bits, group=0, symmetric=True, inputs=False, order=False, ignore=(), target="Linear"):
    groups = inn // group if group else 1
    code = [[(7 * r + 3 * c) % (1 << num_bits) for c in range(inn)] for r in range(out)]
    t = {"P.weight_scale": ("BF16" if inputs else "F16", [out, groups], halves(out * groups))}
    if inputs:
        t["P.weight"] = ("I8", [out, inn], bytes((x - 128) % 256 for row in code for x in row))
    else:
        rows = [bits(row, num_bits) for row in code]
        t["P.weight_packed"] = ("I32", [out, len(rows[0]) // 4], b"".join(rows))
        t["P.weight_shape"] = ("I64", [2], struct.pack("<qq", out, inn))
    if not symmetric:
        columns = [bits([(r + g) % (1 << num_bits) for r in range(out)], num_bits) for g in range(groups)]
        words = [struct.unpack(f"<{len(c) // 4}I", c) for c in columns]
        stored = b"".join(struct.pack("<I", w) for row in zip(*words) for w in row)
        t["P.weight_zero_point"] = ("I32", [len(words[0]), groups], stored)
    if order:
        t["P.weight_g_idx"] = ("I32", [inn], struct.pack(f"<{inn}i", *(c % groups for c in range(inn))))
    config = {"quant_method": "compressed-tensors", "format": "int-quantized" if inputs else "pack-quantized",
              "ignore": list(ignore), "config_groups": {"group_0": scheme(num_bits, group, symmetric, inputs, [target])}}
    return json.dumps({"quantization_config": config}).encode() + b"\0" + safetensors(t)


def main(corpus):
    inputs = {
        "int8": model(3, 10, 8, inputs=True),
        "pack8": model(3, 10, 8, ignore=["lm_head"]),
        "pack4_asym": model(9, 12, 4, group=4, symmetric=False, target="P"),
        "pack3_order": model(12, 24, 3, group=6, symmetric=False, order=True, target="re:(P|Q)$"),
        "pack5": model(4, 20, 5, group=10, ignore=["re:.*head"]),
    }
    os.makedirs(os.path.join(corpus, "compressed"), exist_ok=True)
    for name, data in inputs.items():
        with open(os.path.join(corpus, "compressed", name), "wb") as f:
            f.write(data)


if __name__ == "__main__":
    main(sys.argv[1])
