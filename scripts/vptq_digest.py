#!/usr/bin/env python3
"""The digest of a packed directory in Python, from docs/formats.md alone: a second implementation, for people
without the tools and as a test of that page.  Needs nothing but Python 3.

    vptq_digest.py DIR            the digest, as vptq-pack --digest DIR prints it
    vptq_digest.py DIR --text     the text that it is the SHA-256 of
"""
import argparse
import glob
import hashlib
import json
import os
import struct

PIECE = 1 << 20


def read_tensors(path, tensors):
    """Adds name -> (SHA-256, type, shape) of a safetensors file."""
    with open(path, "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
        for name, t in header.items():
            if name == "__metadata__":
                continue
            begin, end = t["data_offsets"]
            f.seek(8 + size + begin)
            digest = hashlib.sha256()
            for at in range(begin, end, PIECE):
                digest.update(f.read(min(PIECE, end - at)))
            tensors[name] = digest.hexdigest(), t["dtype"], t["shape"]


def weight_files(folder):
    """Those of the index, else model.safetensors, else all."""
    index, one = (os.path.join(folder, "model.safetensors" + end) for end in (".index.json", ""))
    if os.path.exists(index):
        with open(index, encoding="utf-8") as f:
            return [os.path.join(folder, name) for name in set(json.load(f)["weight_map"].values())]
    return [one] if os.path.exists(one) else glob.glob(os.path.join(glob.escape(folder), "*.safetensors"))


def quantization(config):
    return config.get("quantization_config") or config["text_config"]["quantization_config"]


def matrix_line(name, e):
    """Numbers that none of the tensors' shapes tell."""
    count = [max(x, 0) for x in e["num_centroids"]]
    outliers = e["outlier_size"]
    v0, k0 = (e["vector_lens"][0], count[0]) if outliers else (0, 0)
    numbers = [e["vector_lens"][1], count[1], max(e["num_res_centroids"][1], 0), e["group_num"], e["group_size"],
               outliers, v0, k0]
    return "matrix [%d,%d] %s %s" % (e["out_features"], e["in_features"], " ".join(map(str, numbers)), name)


def digest_text(folder):
    tensors = {}
    for path in weight_files(folder):
        read_tensors(path, tensors)
    if tensors.get("lm_head.weight") == tensors["model.embed_tokens.weight"]:
        tensors.pop("lm_head.weight", None)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        q = quantization(json.load(f))
    full, shared = q.get("config_for_layers") or {}, q.get("shared_layer_config") or {}
    lines = ["vptq1"]
    for name in sorted(tensors, key=str.encode):
        sha256, dtype, shape = tensors[name]
        lines.append("tensor %s %s [%s] %s" % (sha256, dtype, ",".join(map(str, shape)), name))
    matrices = [name[:-len(".indices")] for name in tensors if name.endswith(".indices")]
    for name in sorted(matrices, key=str.encode):
        lines.append(matrix_line(name, full.get(name) or shared[name.split(".")[-1]]))
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--text", action="store_true")
    args = parser.parse_args()
    text = digest_text(args.folder)
    print(text if args.text else "vptq1:" + hashlib.sha256(text.encode()).hexdigest(), end="" if args.text else "\n")


main()
