#!/usr/bin/env python3
"""Writes the corpus of tests/fuzz/fuzz_kld_base.c: saved base logits, from docs/formats/kld-base.md alone.

    make_kld_base_corpus.py tests/fuzz/corpus/kld_base          needs: pip install xxhash
"""
import math
import os
import struct
import sys

import xxhash

MAGIC = bytes([0x8F]) + b"VPTK\r\n\x1a"


def record(number, values, ids, wide, target, tail):
    """values: log-probabilities, ids: of a compact record, ascending, or None."""
    high, low = max(values), max(min(values), max(values) - 24)
    codes = [round(max(v - low, 0) / (high - low) * 65535) if high > low else 0 for v in values]
    best = values.index(high)
    data = struct.pack("<fIfffI", target, best if ids is None else ids[best], high, low, tail, 0)
    data += struct.pack(f"<{len(codes)}H", *codes)
    if ids is not None:
        data += struct.pack(f"<{len(ids)}{'I' if wide else 'H'}", *ids)
    data += bytes(-len(data) % 8)
    return data + struct.pack("<Q", xxhash.xxh3_64_intdigest(data, seed=number))


def base(vocab, entries, context, protocol, windows, bos=-1, name=b"model"):
    full = entries == 0
    positions = context - 1 - (context // 2 if protocol else 0)
    ids = struct.pack(f"<{windows * context}i", *[i * 7 % vocab for i in range(windows * context)])
    head = MAGIC + struct.pack("<IIIIIIIi", 1, full, vocab, vocab if full else entries, context, protocol, windows, bos)
    head += struct.pack("<QQQ", 0x0123456789ABCDEF, 0xFEDCBA9876543210, xxhash.xxh3_64_intdigest(ids))
    head += name.ljust(64, b"\0")
    data = head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + ids
    for i in range(windows * positions):
        if full:
            weights = [1 + (i * 5 + j * 3) % 11 for j in range(vocab)]
            data += record(i, [math.log(w / sum(weights)) for w in weights], None, False, -1.5, -math.inf)
        else:
            step = vocab // entries
            values = [-1.0 - (i + j) % entries for j in range(entries)]
            tail = math.log(1 - sum(map(math.exp, values)))
            data += record(i, values, [j * step + i % step for j in range(entries)], vocab > 65536, -3.25, tail)
    return data


def main(corpus):
    os.makedirs(corpus, exist_ok=True)
    files = {
        "compact": base(48, 5, 6, 0, 3),
        "halves": base(48, 8, 8, 1, 2, bos=1),
        "full": base(9, 0, 4, 0, 2),
        "wide_ids": base(70000, 3, 3, 0, 1, name=b"x" * 63),
        "one": base(2, 1, 2, 0, 1),
    }
    for name, data in files.items():
        with open(os.path.join(corpus, name), "wb") as f:
            f.write(data)


if __name__ == "__main__":
    main(sys.argv[1])
