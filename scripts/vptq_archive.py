#!/usr/bin/env python3
"""The .vptq archive in Python, from docs/formats/archive.md alone: a second implementation, for
people who want to read or write archives elsewhere and as a test of that page.  Needs numpy and zstandard.

    vptq_archive.py list FILE [--json]              one row per entry
    vptq_archive.py verify FILE                     all checksums; exit 1 naming what is damaged
    vptq_archive.py extract FILE [NAME..] -o DIR    files, and the tensors as model.safetensors; blocks become F32
    vptq_archive.py write DIR -o FILE [--level N]   of a directory with config.json and safetensors

An entry is unpacked frame by frame, so that memory does not grow with the archive.
"""
import argparse
import json
import os
import re
import struct
import sys

import numpy as np
import zstandard

MAGIC, END_MAGIC = b"\x8fVPTQ\r\n\x1a", b"\x1a\n\rQTPV\x8f"
VERSION = 2
HEADER, FOOTER = struct.Struct("<8sII"), struct.Struct("<QQQQQ8s")
FRAME, ENTRY = struct.Struct("<QIIQ"), struct.Struct("<BBBBIIIQ8s")
FRAME_RAW = 4 << 20
FRAME_PACKED = FRAME_RAW + (16 << 10)
INDEX_RAW, INDEX_PACKED = 16 << 20, (16 << 20) + (64 << 10)
NAME_FILE = re.compile(
    rb"((config|generation_config|preprocessor_config|processor_config|video_preprocessor_config|tokenizer|tokenizer_config"
    rb"|special_tokens_map|added_tokens|vocab|tekken|chat_template)\.json|tokenizer\.model|merges\.txt|chat_template\.jinja"
    rb"|(?=.{1,255}$)([A-Za-z0-9_-][A-Za-z0-9_.-]*\.(md|txt)|(LICENSE|LICENCE|NOTICE|COPYING)[A-Za-z0-9_-]*))", re.DOTALL)
NAME_TENSOR = re.compile(rb"[^\x00-\x1f\x7f]{1,512}")
WIDTH = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1,
         "BOOL": 1}
BLOCKS = {"Q8_0": (32, 34), "Q6_K": (256, 210)}  # numbers and bytes


class Damage(Exception):
    """What is wrong with an archive, in one sentence."""


# --- XXH3, 64 bits, seed 0 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md) ---

M64, M32 = (1 << 64) - 1, (1 << 32) - 1
P32_1, P32_2, P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64_1, P64_2, P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P64_4, P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
PMX1, PMX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"
    "e03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d"
    "8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc"
    "8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")


def u32(b, at=0):
    return int.from_bytes(b[at:at + 4], "little")


def u64(b, at=0):
    return int.from_bytes(b[at:at + 8], "little")


def fold(a, b):
    product = a * b
    return (product & M64) ^ (product >> 64)


def swap64(x):
    return int.from_bytes(x.to_bytes(8, "little"), "big")


def rotate(x, n):
    return (x << n | x >> (64 - n)) & M64


def avalanche(h):
    h = (h ^ h >> 37) * PMX1 & M64
    return h ^ h >> 32


def avalanche64(h):
    h = (h ^ h >> 33) * P64_2 & M64
    h = (h ^ h >> 29) * P64_3 & M64
    return h ^ h >> 32


def mix16(data, at, secret):
    return fold(u64(data, at) ^ u64(SECRET, secret), u64(data, at + 8) ^ u64(SECRET, secret + 8))


def xxh3_short(data):
    n = len(data)
    if n == 0:
        return avalanche64(u64(SECRET, 56) ^ u64(SECRET, 64))
    if n <= 3:
        x = data[0] << 16 | data[n >> 1] << 24 | data[-1] | n << 8
        return avalanche64(x ^ (u32(SECRET, 0) ^ u32(SECRET, 4)))
    if n <= 8:
        x = (u32(data, n - 4) + (u32(data) << 32)) ^ (u64(SECRET, 8) ^ u64(SECRET, 16))
        x ^= rotate(x, 49) ^ rotate(x, 24)
        x = x * PMX2 & M64
        x = (x ^ (x >> 35) + n) * PMX2 & M64
        return x ^ x >> 28
    if n <= 16:
        low = u64(data) ^ u64(SECRET, 24) ^ u64(SECRET, 32)
        high = u64(data, n - 8) ^ u64(SECRET, 40) ^ u64(SECRET, 48)
        return avalanche(n + swap64(low) + high + fold(low, high) & M64)
    h = n * P64_1
    if n <= 128:
        for i in range((n - 1) // 32, -1, -1):
            h += mix16(data, 16 * i, 32 * i) + mix16(data, n - 16 * (i + 1), 32 * i + 16)
        return avalanche(h & M64)
    for i in range(8):
        h += mix16(data, 16 * i, 16 * i)
    h = avalanche(h & M64)
    for i in range(8, n // 16):
        h += mix16(data, 16 * i, 16 * (i - 8) + 3)
    return avalanche(h + mix16(data, n - 16, 136 - 17) & M64)


SWAP = [1, 0, 3, 2, 5, 4, 7, 6]


def accumulate(stripes, secret):
    """What stripes [.., 8] add to the eight accumulators; secret [.., 8] in the same places."""
    keyed = stripes ^ secret
    return stripes[..., SWAP] + (keyed & np.uint64(M32)) * (keyed >> np.uint64(32))


def xxh3(data):
    """XXH3 of any bytes; blocks of 16 stripes are summed at once, only their scrambling is one after another."""
    n = len(data)
    if n <= 240:
        return xxh3_short(data)
    lane = np.frombuffer(SECRET[:192], "<u8")
    keys = np.stack([np.frombuffer(SECRET, "<u8", 8, 8 * i) for i in range(16)])
    acc = np.array([P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1], np.uint64)
    blocks, rest = (n - 1) // 1024, ((n - 1) % 1024) // 64
    whole = np.frombuffer(data, "<u8", blocks * 128).reshape(blocks, 16, 8)
    for block in accumulate(whole, keys).sum(axis=1, dtype=np.uint64):
        acc = acc + block
        acc = (acc ^ acc >> np.uint64(47) ^ lane[16:24]) * np.uint64(P32_1)
    tail = np.frombuffer(data, "<u8", rest * 8, blocks * 1024).reshape(rest, 8)
    acc = acc + accumulate(tail, keys[:rest]).sum(axis=0, dtype=np.uint64)
    acc = acc + accumulate(np.frombuffer(data[n - 64:], "<u8"), np.frombuffer(SECRET, "<u8", 8, 192 - 64 - 7))
    h = n * P64_1
    for i in range(4):
        h += fold(int(acc[2 * i]) ^ u64(SECRET, 11 + 16 * i), int(acc[2 * i + 1]) ^ u64(SECRET, 11 + 16 * i + 8))
    return avalanche(h & M64)


# --- blocks ---


def tensor_bytes(dtype, elements):
    """Bytes of a tensor; None for an unknown type or a part of a block."""
    numbers, size = BLOCKS.get(dtype, (1, WIDTH.get(dtype)))
    return elements // numbers * size if size and elements % numbers == 0 else None


def decode_q8_0(blocks):
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    return blocks[:, 2:].copy().view(np.int8).astype(np.float32) * scale


def decode_q6_k(blocks):
    n = len(blocks)
    low = blocks[:, :128].reshape(n, 2, 1, 2, 32) >> np.array([0, 4], np.uint8).reshape(2, 1, 1) & 15
    high = blocks[:, 128:192].reshape(n, 2, 1, 1, 32) >> np.array([[0, 2], [4, 6]], np.uint8).reshape(2, 2, 1) & 3
    values = (low | high << 4).astype(np.float32).reshape(n, 16, 16) - np.float32(32)
    scales = blocks[:, 192:208].copy().view(np.int8).astype(np.float32) * blocks[:, 208:].copy().view("<f2").astype(np.float32)
    return values * scales[:, :, None]


def decoded(dtype, pieces):
    """Float32 bytes of a tensor in blocks, which pieces may cut."""
    width, rest = BLOCKS[dtype][1], b""
    for piece in pieces:
        rest += piece
        whole = len(rest) // width * width
        blocks = np.frombuffer(rest[:whole], np.uint8).reshape(-1, width)
        rest = rest[whole:]
        yield (decode_q8_0 if dtype == "Q8_0" else decode_q6_k)(blocks).astype("<f4").tobytes()


# --- reading ---


class Entry:
    def __init__(self, kind, planes, name, first, frames, size, dtype, shape):
        self.kind, self.planes, self.name, self.first, self.frames = kind, planes, name, first, frames
        self.size, self.dtype, self.shape = size, dtype, shape

    @property
    def what(self):
        return f"{'tensor' if self.kind else 'file'} '{self.name}'"


def unpack(packed, raw, what):
    """The content of one zstd frame, which must be all of `packed` and say that it has `raw` bytes."""
    try:
        parameters = zstandard.get_frame_parameters(packed)
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        content = decompressor.decompress(packed) if parameters.content_size == raw else b""
        good = len(content) == raw and decompressor.eof and not decompressor.unused_data
    except zstandard.ZstdError:
        good = False
    if not good:
        raise Damage(f"{what} is not what its record says")
    return content, parameters.has_checksum


class Archive:
    """An open archive: entries, and their bytes frame by frame."""

    def __init__(self, path):
        self.path = path
        self.file = open(path, "rb")
        self.size = os.fstat(self.file.fileno()).st_size
        self.read_index(*self.read_ends())

    def read(self, offset, n):
        self.file.seek(offset)
        data = self.file.read(n)
        if len(data) != n:
            raise Damage(f"the file ends before byte {offset + n}")
        return data

    def read_ends(self):
        if self.size < HEADER.size + FOOTER.size:
            raise Damage("not a .vptq archive")
        header, footer = self.read(0, HEADER.size), self.read(self.size - FOOTER.size, FOOTER.size)
        magic, version, zero = HEADER.unpack(header)
        offset, packed, raw, index_sum, ends_sum, end = FOOTER.unpack(footer)
        if magic != MAGIC and end != END_MAGIC:
            raise Damage("not a .vptq archive")
        if magic != MAGIC or end != END_MAGIC:
            raise Damage("its header is damaged" if magic != MAGIC else "its end is missing or its footer is damaged")
        if xxh3(header + footer[:32]) != ends_sum:
            raise Damage(f"the {'footer' if version == VERSION else 'header'} does not match its checksum")
        if version != VERSION:
            raise Damage(f"archive version {version}, expected {VERSION}")
        if zero:
            raise Damage("its header has something where zeros belong")
        if offset < HEADER.size or offset + packed + FOOTER.size != self.size:
            raise Damage("the index is not between the frames and the footer")
        if raw > INDEX_RAW or packed > INDEX_PACKED:
            raise Damage("the size of its index is wrong")
        packed = self.read(offset, packed)
        if xxh3(packed) != index_sum:
            raise Damage("the index does not match its checksum")
        return unpack(packed, raw, "the index")[0], offset

    def read_index(self, index, end):
        try:
            frames, entries = struct.unpack_from("<II", index)
            at = 8 + frames * FRAME.size
            self.frames = [FRAME.unpack_from(index, 8 + i * FRAME.size) for i in range(frames)]
            self.entries = []
            for _ in range(entries):
                entry, at = self.read_entry(index, at)
                self.entries.append(entry)
        except struct.error:
            raise Damage("its index is cut off") from None
        if at != len(index) or sum(e.frames for e in self.entries) != frames:
            raise Damage("its index does not end where it should")
        place = HEADER.size
        for offset, packed, raw, _ in self.frames:
            if offset != place or not 0 < raw <= FRAME_RAW or not 0 < packed <= FRAME_PACKED:
                raise Damage("a frame is not where the one before it ends, or has a wrong size")
            place += packed
        if place != end:
            raise Damage("the frames do not reach the index")
        if len({(e.kind, e.name) for e in self.entries}) != len(self.entries):
            raise Damage("two entries have one name")

    def read_entry(self, index, at):
        kind, planes, dims, zero, length, first, frames, size, dtype = ENTRY.unpack_from(index, at)
        shape = struct.unpack_from(f"<{dims}Q", index, at + ENTRY.size)
        name = index[at + ENTRY.size + 8 * dims:][:length]
        end = at + ENTRY.size + 8 * dims + (length + 7) // 8 * 8
        if len(name) != length or end > len(index) or kind > 1 or zero or dims > (8 if kind else 0):
            raise Damage("an entry of its index is wrong")
        if any(index[at + ENTRY.size + 8 * dims + length:end]) or (kind == 0 and any(dtype)):
            raise Damage("an entry of its index has something where zeros belong")
        if not (NAME_TENSOR if kind else NAME_FILE).fullmatch(name):
            raise Damage(f"an entry has the name '{name.decode(errors='backslashreplace')}', which none can have")
        entry = Entry(kind, planes, name.decode(errors="surrogateescape"), first, frames, size, dtype.rstrip(b"\0").decode(), shape)
        expected = sum(e.frames for e in self.entries)
        sizes = [f[2] for f in self.frames[first:first + frames]]
        if first != expected or len(sizes) != frames or sum(sizes) != size or any(s != FRAME_RAW for s in sizes[:-1]):
            raise Damage(f"the frames of {entry.what} are wrong")
        if planes not in (1, 2, 4, 8) or size % planes:
            raise Damage(f"{entry.what} has a wrong number of byte planes")
        if kind and tensor_bytes(entry.dtype, int(np.prod(shape, dtype=object))) != size:
            raise Damage(f"{entry.what} has a size that is not that of its type and shape")
        return entry, end

    def pieces(self, entry):
        """The bytes of an entry, a frame at a time."""
        for i in range(entry.frames):
            offset, packed, raw, checksum = self.frames[entry.first + i]
            what = f"{entry.what} is damaged: frame {i + 1} of {entry.frames}"
            data = self.read(offset, packed)
            if xxh3(data) != checksum:
                raise Damage(f"{what} does not match its checksum")
            content, has_checksum = unpack(data, raw, what)
            if not has_checksum:
                raise Damage(f"{what} is not what its record says")
            if entry.planes > 1:
                content = np.frombuffer(content, np.uint8).reshape(entry.planes, -1).T.tobytes()
            yield content


# --- what is done with it ---


def list_entries(archive, as_json):
    for e in archive.entries:
        packed = sum(f[1] for f in archive.frames[e.first:e.first + e.frames])
        row = {"name": e.name, "kind": "tensor" if e.kind else "file", "dtype": e.dtype, "shape": list(e.shape), "bytes": e.size,
               "archived_bytes": packed, "planes": e.planes, "frames": e.frames}
        if as_json:
            print(json.dumps(row))
        else:
            print(f"{e.name:<60} {e.dtype:<5} {str(list(e.shape)):<16} {e.size:>12} {packed:>12}")


def verify(archive):
    bad = 0
    for e in archive.entries:
        try:
            for _ in archive.pieces(e):
                pass
        except Damage as damage:
            print(f"{archive.path}: {damage}", file=sys.stderr)
            bad += 1
    print(f"{archive.path}: {len(archive.entries)} entries, {bad} damaged")
    return 1 if bad else 0


class Replacing:
    """A file that appears whole or not at all."""

    def __init__(self, path):
        self.path, self.temporary = path, f"{path}.tmp.{os.getpid()}"

    def __enter__(self):
        self.file = open(self.temporary, "wb")
        return self.file

    def __exit__(self, failed, *_):
        if not failed:
            self.file.flush()
            os.fsync(self.file.fileno())
        self.file.close()
        if failed:
            os.unlink(self.temporary)
        else:
            os.replace(self.temporary, self.path)


def extract(archive, directory, names):
    missing = set(names) - {e.name for e in archive.entries}
    if missing:
        raise Damage(f"there is no entry '{min(missing)}'")
    wanted = [e for e in archive.entries if not names or e.name in names]
    os.makedirs(directory, exist_ok=True)
    for e in wanted:
        if e.kind == 0:
            with Replacing(os.path.join(directory, e.name)) as f:
                f.writelines(archive.pieces(e))
    plain = [(e, "F32" if e.dtype in BLOCKS else e.dtype) for e in wanted if e.kind == 1]
    tensors = [(e, dtype, tensor_bytes(dtype, int(np.prod(e.shape, dtype=object)))) for e, dtype in plain]
    # sizes that are not a multiple of 8 go last, wide types first: every tensor is aligned to its element
    tensors.sort(key=lambda t: t[2] % 8 != 0 and 8 - WIDTH[t[1]])
    if not tensors:
        return
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for e, dtype, size in tensors:
        header[e.name] = {"dtype": dtype, "shape": list(e.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with Replacing(os.path.join(directory, "model.safetensors")) as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for e, dtype, _ in tensors:
            f.writelines(archive.pieces(e) if e.dtype == dtype else decoded(e.dtype, archive.pieces(e)))


def tensors_of(directory):
    """(name, dtype, shape, file, offset, bytes) of all safetensors files, by name."""
    found = []
    for name in sorted(os.listdir(directory)):
        if not name.endswith(".safetensors"):
            continue
        path = os.path.join(directory, name)
        with open(path, "rb") as f:
            length = u64(f.read(8))
            header = json.loads(f.read(length))
        header.pop("__metadata__", None)
        for tensor, h in header.items():
            begin, end = h["data_offsets"]
            found.append((tensor, h["dtype"], h["shape"], path, 8 + length + begin, end - begin))
    return sorted(found)


class Writer:
    def __init__(self, file, level):
        self.file, self.level, self.at = file, level, HEADER.size
        self.frames, self.entries = [], []
        file.write(HEADER.pack(MAGIC, VERSION, 0))

    def add(self, kind, name, dtype, shape, planes, pieces):
        """pieces: FRAME_RAW bytes each, but the last."""
        level = self.level or (9 if kind == 0 or len(shape) < 2 else 1)
        compressor = zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)
        first, size = len(self.frames), 0
        for raw in pieces:
            content = np.frombuffer(raw, np.uint8).reshape(-1, planes).T.tobytes() if planes > 1 else raw
            packed = compressor.compress(content)
            self.frames.append(FRAME.pack(self.at, len(packed), len(raw), xxh3(packed)))
            self.file.write(packed)
            self.at += len(packed)
            size += len(raw)
        text = name.encode()
        self.entries.append(ENTRY.pack(kind, planes, len(shape), 0, len(text), first, len(self.frames) - first, size, dtype.encode())
                            + struct.pack(f"<{len(shape)}Q", *shape) + text + b"\0" * (-len(text) % 8))

    def finish(self):
        index = struct.pack("<II", len(self.frames), len(self.entries)) + b"".join(self.frames + self.entries)
        packed = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(index)
        footer = struct.pack("<QQQQ", self.at, len(packed), len(index), xxh3(packed))
        ends_sum = xxh3(HEADER.pack(MAGIC, VERSION, 0) + footer)
        self.file.write(packed + footer + struct.pack("<Q", ends_sum) + END_MAGIC)


def read_pieces(path, offset, n):
    with open(path, "rb") as f:
        f.seek(offset)
        for at in range(0, n, FRAME_RAW):
            yield f.read(min(FRAME_RAW, n - at))


def files_of(directory):
    """Names of the files stored next to the tensors, config.json first."""
    found = []
    for name in sorted(os.listdir(directory)):
        if name.endswith((".safetensors", ".safetensors.index.json")):
            continue
        path = os.path.join(directory, name)
        if os.path.isfile(path) and NAME_FILE.fullmatch(os.fsencode(name)):
            found.append(name)
        else:
            print(f"{path} does not go along", file=sys.stderr)
    return sorted(found, key=lambda n: n != "config.json")


def write(directory, path, level):
    small = files_of(directory)
    with Replacing(path) as f:
        writer = Writer(f, level)
        for name in small:
            source = os.path.join(directory, name)
            writer.add(0, name, "", [], 1, read_pieces(source, 0, os.path.getsize(source)))
        for name, dtype, shape, source, offset, n in tensors_of(directory):
            writer.add(1, name, dtype, shape, WIDTH[dtype] if "F" in dtype else 1, read_pieces(source, offset, n))
        writer.finish()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("list", "verify", "extract"):
        command = commands.add_parser(name)
        command.add_argument("file")
        if name == "list":
            command.add_argument("--json", action="store_true")
        if name == "extract":
            command.add_argument("-o", "--output", required=True)
            command.add_argument("names", nargs="*")
    command = commands.add_parser("write")
    command.add_argument("directory")
    command.add_argument("-o", "--output", required=True)
    command.add_argument("--level", type=int, default=0, choices=range(23), metavar="1..22")
    a = parser.parse_args()
    try:
        if a.command == "write":
            return write(a.directory, a.output, a.level)
        archive = Archive(a.file)
        if a.command == "list":
            return list_entries(archive, a.json)
        return verify(archive) if a.command == "verify" else extract(archive, a.output, a.names)
    except Damage as damage:
        print(f"{a.file}: {damage}", file=sys.stderr)
    except OSError as error:
        print(f"vptq_archive.py: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
