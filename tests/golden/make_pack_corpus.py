#!/usr/bin/env python3
"""Writes the corpora of tests/fuzz/fuzz_packed.c and fuzz_archive.c, from docs/formats/vptq-layout.md and archive.md alone.

    make_pack_corpus.py tests/fuzz/corpus          needs: pip install xxhash zstandard
"""
import json
import os
import struct
import sys

import xxhash
import zstandard


def safetensors(tensors):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def u16(values):
    return struct.pack(f"<{len(values)}H", *values)


def halves(n):
    return u16([0x3000 + 37 * i % 0x800 for i in range(n)])


def bits(fields, width):
    stream = sum(f << (i * width) for i, f in enumerate(fields))
    words = (len(fields) * width + 31) // 32
    return stream.to_bytes(4 * words, "little")


def matrix(out, inn, v, k, kr=0, groups=1, outliers=0, v0=0, k0=0, perm=False, norm=False, packed=True, dtype="F16",
           int8=False):
    gs = (inn - outliers) // groups
    strips = -(-out // v)
    m, r = k.bit_length() - 1, (kr.bit_length() - 1 if kr else 0)
    n = groups * strips * gs
    main = [i * 3 % k for i in range(n)]
    res = [i * 5 % kr if kr else 0 for i in range(n)]
    t = {"P.centroids.weight": (dtype, [groups, k * v], halves(groups * k * v))}
    if packed:
        rows = [bits([main[i] | res[i] << m for i in range(row * gs, row * gs + gs)], m + r) for row in range(groups * strips)]
        t["P.indices"] = ("I32", [groups, strips, len(rows[0]) // 4], b"".join(rows))
    else:
        t["P.indices"] = ("I16", [groups, strips, gs], u16(main))
        if kr:
            t["P.res_indices"] = ("I16", [groups, strips, gs], u16(res))
    if kr:
        t["P.res_centroids.weight"] = (dtype, [groups, kr * v], halves(groups * kr * v))
    if outliers:
        rows0 = -(-out // v0)
        t["P.outlier_centroids.weight"] = (dtype, [1, k0 * v0], halves(k0 * v0))
        t["P.outlier_indices"] = ("I16", [1, rows0, outliers], u16([i % k0 for i in range(rows0 * outliers)]))
    if perm:
        order = list(range(inn))[::-1]
        t["P.perm"] = ("I16", [inn], u16(order)) if packed else ("I64", [inn], struct.pack(f"<{inn}q", *order))
    if norm:
        t["P.weight_scale"] = t["P.weight_bias"] = (dtype, [inn], halves(inn))
    for name in [name for name in t if int8 and name.endswith("centroids.weight")]:
        _, (count, n), _ = t[name]
        t[name] = ("I8", [count, n], bytes((i * 29 % 255 - 127) % 256 for i in range(count * n)))
        t[name.replace("weight", "scale")] = (dtype, [count], u16([0x2c00 + 0x400 * g for g in range(count)]))
    entry = {"in_features": inn, "out_features": out, "vector_lens": [v0 or -1, v], "num_centroids": [k0 or -1, k],
             "num_res_centroids": [-1, kr or -1], "group_num": groups, "group_size": gs, "outlier_size": outliers,
             "indices_as_float": False, "enable_norm": norm, "enable_perm": perm, "is_indice_packed": packed, "bias": False}
    config = {"quantization_config": {"quant_method": "vptq", "config_for_layers": {"P": entry}}}
    return json.dumps(config).encode() + b"\0" + safetensors(t)


def archive_parts(entries):
    """Frames and raw index of [(name, kind, dtype, planes, shape, raw)]; every entry in one frame."""
    frames, records, index = b"", b"", b""
    count = 0
    zstd = zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=True)
    for name, kind, dtype, planes, shape, raw in entries:
        shuffled = b"".join(raw[p::planes] for p in range(planes))
        packed = zstd.compress(shuffled) if raw else b""
        index += struct.pack("<BBBBIIIQ8s", kind, planes, len(shape), 0, len(name), count, 1 if raw else 0, len(raw), dtype.encode())
        index += struct.pack(f"<{len(shape)}Q", *shape) + name.encode() + b"\0" * (-len(name) % 8)
        if raw:
            records += struct.pack("<QIIQ", 16 + len(frames), len(packed), len(raw), xxhash.xxh3_64_intdigest(packed))
            frames += packed
            count += 1
    return frames, struct.pack("<II", count, len(entries)) + records + index


def archive(frames, index):
    header = b"\x8fVPTQ\r\n\x1a" + struct.pack("<II", 2, 0)
    packed = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(index)
    footer = struct.pack("<QQQQ", 16 + len(frames), len(packed), len(index), xxhash.xxh3_64_intdigest(packed))
    footer += struct.pack("<Q", xxhash.xxh3_64_intdigest(header + footer))
    return header + frames + packed + footer + b"\x1a\n\rQTPV\x8f"


def main(corpus):
    packed = {
        "everything": matrix(6, 9, 4, 8, kr=4, groups=2, outliers=1, v0=2, k0=4, perm=True, norm=True),
        "training": matrix(6, 9, 4, 8, kr=4, groups=2, outliers=1, v0=2, k0=4, perm=True, norm=True, packed=False),
        "plain": matrix(8, 5, 2, 16),
        "perm": matrix(7, 10, 8, 4, kr=2, perm=True, norm=True),
        "bf16": matrix(5, 6, 3, 4, norm=True, dtype="BF16"),
        "int8": matrix(6, 9, 4, 8, kr=4, groups=2, outliers=1, v0=2, k0=4, perm=True, norm=True, int8=True),
    }
    files = [("config.json", 0, "", 1, [], b'{"model_type": "llama"}\n')]
    tensors = [("model.norm.weight", 1, "F16", 2, [20], halves(20)), ("P.indices", 1, "I32", 4, [1, 2, 3], bytes(range(24))),
               ("model.embed_tokens.weight", 1, "Q6_K", 1, [4, 128], bytes(208) + b"\0\x3c" + bytes(range(208)) + b"\0\x3c"),
               ("lm_head.weight", 1, "Q8_0", 1, [4, 16], (b"\0\x3c" + bytes(range(32))) * 2), ("none", 1, "F16", 2, [0, 4], b""), ("scalar", 1, "F32", 4, [], b"\0\0\x80\x3f")]
    archives = {}
    for name, entries in {"file": files, "tensors": files + tensors}.items():
        frames, index = archive_parts(entries)
        archives[f"{name}_parts"] = struct.pack("<I", len(frames)) + frames + index
        archives[name] = archive(frames, index)
    for room, inputs in {"packed": packed, "archive": archives}.items():
        os.makedirs(os.path.join(corpus, room), exist_ok=True)
        for name, data in inputs.items():
            with open(os.path.join(corpus, room, name), "wb") as f:
                f.write(data)


if __name__ == "__main__":
    main(sys.argv[1])
