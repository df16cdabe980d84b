#!/usr/bin/env python3
"""Writes the corpora of tests/fuzz/fuzz_hessian.c and fuzz_layer_file.c, from docs/formats/hessians.md and work.md alone.

    make_work_corpus.py tests/fuzz/corpus          needs: pip install xxhash zstandard
"""
import json
import math
import os
import struct
import sys

import xxhash
from make_pack_corpus import matrix


def split(data):
    """The tensors of a safetensors file: {name: (dtype, shape, raw)}."""
    n = struct.unpack("<Q", data[:8])[0]
    header, at = json.loads(data[8:8 + n]), 8 + n
    return {k: (v["dtype"], v["shape"], data[at + v["data_offsets"][0]:at + v["data_offsets"][1]]) for k, v in header.items()}


def safetensors(tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, shape, raw) in sorted(tensors.items()):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def layer(*args, **kwargs):
    """A matrix file around a packed matrix; its float books are some numbers of the right shape."""
    config, packed = matrix(*args, **kwargs).split(b"\0", 1)
    entry = json.loads(config)["quantization_config"]["config_for_layers"]["P"]
    tensors = split(packed)
    for name, k in (("centroids", entry["num_centroids"][1]), ("res_centroids", entry["num_res_centroids"][1])):
        if k > 0:
            n = entry["group_num"] * k * entry["vector_lens"][1]
            tensors[f"{name}_f32"] = ("F32", [entry["group_num"], k, entry["vector_lens"][1]], floats([i / 8 for i in range(n)]))
    return sealed(entry, tensors)


def dense(dtype, shape, raw):
    return sealed({"format": "dense"}, {"P.weight": (dtype, shape, raw)})


def additive(bits, tensors, **values):
    """A matrix of 4 x 8 whose tensors are zero bytes, but for scales."""
    entry = {"format": "additive", "dtype": "f16", "rows": 4, "columns": 8, "vector_length": 2, "bits": bits,
             "block_rows": 2, "block_columns": 4, "scale_columns": 0} | values
    sizes = {"F16": 2, "F32": 4, "I32": 4, "I8": 1}
    one = struct.pack("<e", 1)
    body = {}
    for name, (dtype, shape) in tensors.items():
        raw = bytes(sizes[dtype] * math.prod(shape))
        body["P." + name] = (dtype, shape, one * math.prod(shape) if name.startswith("codebook_scales") else raw)
    return sealed(entry, body)


def sealed(entry, tensors):
    """A matrix file with the right checksum."""
    metadata = {"format": "1", "name": "P", "entry": json.dumps(entry), "fingerprint": "00" * 8, "report": '{"layer": 0}'}
    h = 0
    for text in [x for item in metadata.items() for x in item]:
        h = xxhash.xxh3_64_intdigest(text.encode() + b"\0", seed=h)
    for name, (_, _, raw) in sorted(tensors.items()):
        h = xxhash.xxh3_64_intdigest(name.encode() + b"\0", seed=h)
        h = xxhash.xxh3_64_intdigest(raw, seed=h)
    return safetensors(tensors, metadata | {"xxh3": f"{h:016x}"})


def hessian(n, metadata, diagonal=False):
    lower = [1.0 + i if i == j else 0.25 for i in range(n) for j in range(i + 1)]
    body = {"diagonal": ("F32", [n], floats([1.0 + i for i in range(n)]))} if diagonal else {"hessian": ("F32", [len(lower)], floats(lower))}
    return safetensors(body | {"mean": ("F32", [n], floats([0.5] * n))}, metadata)


def main(corpus):
    doc = {"format": 1, "fingerprint": "0123456789abcdef", "model_fingerprint": "fedcba9876543210", "model_layers": 4,
           "first_layer": 1, "last_layer": 3, "tokens": 4096, "settings": {"windows": 2, "text": "wiki"}}
    weighted = doc | {"weights": "sink", "weights_factor": 3.5, "held_out_tokens": 512}
    inputs = {
        "hessian": {
            "plain": hessian(5, {"tokens": "100"}),
            "term": hessian(3, {"kind": "attention", "tokens": "100", "windows": "4"}),
            "diagonal": hessian(4, {"tokens": "unknown"}, diagonal=True),
            "json": json.dumps(doc).encode(),
            "json_weights": json.dumps(weighted).encode(),
            "json_diagonal": json.dumps(doc | {"diagonal": True, "tokens": 0}).encode(),
        },
        "layer_file": {
            "plain": layer(8, 5, 2, 16),
            "residual": layer(6, 9, 4, 8, kr=4, groups=2, perm=True, norm=True),
            "everything": layer(6, 9, 4, 8, kr=4, groups=2, outliers=1, v0=2, k0=4, perm=True, norm=True),
            "bf16": layer(5, 6, 3, 4, norm=True, dtype="BF16"),
            "additive": additive([3], {"codes.0": ("I32", [4, 1]), "codebooks.0": ("I8", [2, 2, 8, 2]),
                                       "codebook_scales.0": ("F16", [2, 2])}, int8=True),
            "additive_scales": additive([1, 2], {"codes.0": ("I32", [4, 1]), "codebooks.0": ("F16", [2, 2, 1, 2]),
                                                 "codes.1": ("I32", [4, 1]), "codebooks.1": ("F16", [2, 2, 3, 2]),
                                                 "scales": ("F16", [4, 1])}, sparse=True, scale_columns=8),
            "additive_lattice": additive([16], {"codes.0": ("I32", [4, 1]), "stage_scales": ("F32", [1]),
                                                "row_signs": ("I32", [1]), "column_signs": ("I32", [1])},
                                         vector_length=8, block_rows=4, block_columns=8, lattice=True, rotated=True),
            "dense": dense("F16", [2, 3], struct.pack("<6e", 0, 1, -0.5, 0, 65504, 0)),
            "dense_vector": dense("BF16", [4], struct.pack("<4H", 0x3F80, 0, 0xBF00, 0x8000)),
        },
    }
    for room, files in inputs.items():
        os.makedirs(os.path.join(corpus, room), exist_ok=True)
        for name, data in files.items():
            with open(os.path.join(corpus, room, name), "wb") as f:
                f.write(data)


if __name__ == "__main__":
    main(sys.argv[1])
