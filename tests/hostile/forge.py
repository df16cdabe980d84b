"""Reads and writes every file format of the tools just well enough to lie in it.

Each class or function here takes the true content of a file and puts it back after a row of the table has
changed it, with checksums and offsets computed anew unless the row sets them. Formats: docs/formats.
"""

import ctypes
import io
import json
import math
import re
import struct
import zipfile

_xxhash = ctypes.CDLL("libxxhash.so.0")
_xxhash.XXH3_64bits_withSeed.restype = ctypes.c_uint64
_xxhash.XXH3_64bits_withSeed.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
_zstd = ctypes.CDLL("libzstd.so.1")
for _name in "ZSTD_compressBound", "ZSTD_compress2", "ZSTD_decompress":
    getattr(_zstd, _name).restype = ctypes.c_size_t
_zstd.ZSTD_createCCtx.restype = ctypes.c_void_p
ZSTD_CHECKSUM = 201  # ZSTD_c_checksumFlag


def xxh3(data, seed=0):
    return _xxhash.XXH3_64bits_withSeed(data, len(data), seed)


def zstd(data):
    """One frame with content size and checksum."""
    context = ctypes.c_void_p(_zstd.ZSTD_createCCtx())
    _zstd.ZSTD_CCtx_setParameter(context, ZSTD_CHECKSUM, 1)
    room = _zstd.ZSTD_compressBound(ctypes.c_size_t(len(data)))
    out = ctypes.create_string_buffer(room)
    n = _zstd.ZSTD_compress2(context, out, ctypes.c_size_t(room), data, ctypes.c_size_t(len(data)))
    _zstd.ZSTD_freeCCtx(context)
    return out.raw[:n]


def unzstd(data, size):
    out = ctypes.create_string_buffer(max(size, 1))
    n = _zstd.ZSTD_decompress(out, ctypes.c_size_t(size), data, ctypes.c_size_t(len(data)))
    return out.raw[:n]


def zstd_bomb(says, makes):
    """A frame of a few bytes per 128 KiB: its header gives `says` bytes, its blocks make `makes`."""
    blocks = b""
    while True:
        n = min(makes, 1 << 17)
        makes -= n
        blocks += struct.pack("<I", (makes == 0) | 1 << 1 | n << 3)[:3] + b"\0"
        if makes == 0:
            return b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", says) + blocks


# --- JSON ---


def real(x, digits):
    """A fraction as sealed JSON has it."""
    text = re.sub(r"e([+-])0*", lambda m: "e" + m[1].strip("+"), "%.*g" % (digits, x))
    return text if re.search("[.e]", text) else text + ".0"


def seal(value):
    """Gives sealed JSON (docs/formats/hessians.md) its checksum."""
    floats = []

    def mark(x):
        """The value with a text in place of each fraction."""
        if isinstance(x, float):
            floats.append(x)
            return f"\0{len(floats) - 1}\0"
        if isinstance(x, list):
            return [mark(y) for y in x]
        return {k: mark(y) for k, y in x.items()} if isinstance(x, dict) else x

    if "xxh3" in value:
        text = json.dumps(mark({k: v for k, v in value.items() if k != "xxh3"}), ensure_ascii=False)
        digits = next(n for n in (15, 16, 17) if n == 17 or all(float(real(x, n)) == x for x in floats))
        text = re.sub(r'"\\u0000(\d+)\\u0000"', lambda m: real(floats[int(m[1])], digits), text)
        text = re.sub(r"\\u00..", lambda m: "\\u" + m.group()[2:].upper(), text)
        value["xxh3"] = "%016x" % xxh3(text.encode())
    return value


def edit_json(path, change):
    value = json.loads(path.read_text())
    value = change(value) or value
    path.write_text(json.dumps(seal(value) if isinstance(value, dict) else value))


def deep(n, opening='{"a":', inner="1", closing="}"):
    return opening * n + inner + closing * n


# --- safetensors ---


class Safetensors:
    """header: the JSON object; data: all bytes after it; order of names as in the file."""

    def __init__(self, raw):
        n = struct.unpack_from("<Q", raw)[0]
        self.header = json.loads(raw[8 : 8 + n])
        self.data = bytearray(raw[8 + n :])
        self.length = None  # a lie about the header's length
        self.text = None  # bytes in place of the header

    def at(self, name):
        return self.header[name]["data_offsets"]

    def floats(self, name, at, values):
        """Puts numbers into a tensor of F32 or F16 from element `at` on."""
        code, width = {"F32": ("f", 4), "F16": ("e", 2), "U16": ("H", 2)}[self.header[name]["dtype"]]
        struct.pack_into("<%d%s" % (len(values), code), self.data, self.at(name)[0] + at * width, *values)

    def add(self, name, dtype, shape, raw):
        self.header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [len(self.data), len(self.data) + len(raw)],
        }
        self.data += raw

    def drop(self, name):
        """Removes a tensor with its bytes."""
        begin, end = self.at(name)
        del self.header[name], self.data[begin:end]
        for key, entry in self.header.items():
            if key != "__metadata__" and entry["data_offsets"][0] >= end:
                entry["data_offsets"] = [x - (end - begin) for x in entry["data_offsets"]]

    def seal(self):
        """The chain of checksums of Hessian, output Hessian and matrix files."""
        meta = self.header.get("__metadata__", {})
        if "xxh3" not in meta:
            return
        keys = ("kind", "tokens", "windows")
        if "entry" in meta:
            keys = ("format", "name", "entry", "fingerprint", "report")
        elif "fingerprint" in meta:
            keys = ("kind", "fingerprint", "windows", "tokens")
        h = 0
        for key in keys:
            if key in meta:
                h = xxh3(meta[key].encode() + b"\0", xxh3(key.encode() + b"\0", h))
        for name in sorted(k for k in self.header if k != "__metadata__"):
            begin, end = self.at(name)
            h = xxh3(bytes(self.data[begin:end]), xxh3(name.encode() + b"\0", h))
        meta["xxh3"] = "%016x" % h

    def bytes(self):
        text = self.text if self.text is not None else json.dumps(self.header).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text) if self.length is None else self.length) + text + self.data


def edit_tensors(path, change, sealed=True):
    s = Safetensors(path.read_bytes())
    change(s)
    if sealed:
        s.seal()
    path.write_bytes(s.bytes())


# --- .vptq archives ---


FRAME_RAW = 4 << 20  # content of a whole frame


class Archive:
    """frames: [packed bytes, raw size, checksum or None]; entries: dicts with the fields of a record."""

    HEADER, FOOTER = struct.Struct("<8sII"), struct.Struct("<QQQQQ8s")
    FRAME, ENTRY = struct.Struct("<QIIQ"), struct.Struct("<BBBBIIIQ8s")
    FIELDS = "kind planes dims zero length first frames size dtype".split()

    def __init__(self, raw):
        offset, packed, size = struct.unpack_from("<QQQ", raw, len(raw) - 48)
        index = unzstd(raw[offset : offset + packed], size)
        count, entries = struct.unpack_from("<II", index)
        self.frames, self.entries, at = [], [], 8 + 24 * count
        for i in range(count):
            begin, n, full, _ = self.FRAME.unpack_from(index, 8 + 24 * i)
            self.frames.append([raw[begin : begin + n], full, None])
        for _ in range(entries):
            e = dict(zip(self.FIELDS, self.ENTRY.unpack_from(index, at)))
            e["shape"] = list(struct.unpack_from("<%dQ" % e["dims"], index, at + 32 + 8 - 8))
            at += 32 + 8 * e["dims"]
            e["name"] = index[at : at + e["length"]]
            at += (e["length"] + 7) // 8 * 8
            self.entries.append(e)
        self.version, self.offsets, self.index_at, self.index_raw, self.index = 2, {}, None, None, None

    def entry(self, name):
        return next(e for e in self.entries if e["name"] == name.encode())

    def add(self, name, data, kind=0, dtype=b"", shape=(), frame=None):
        """Adds a file or tensor of one frame at the end; frame: other packed bytes."""
        self.entries.append(
            {
                "kind": kind,
                "planes": 1,
                "zero": 0,
                "first": len(self.frames),
                "frames": 1,
                "size": len(data),
                "dtype": dtype,
                "shape": list(shape),
                "name": name if isinstance(name, bytes) else name.encode(),
            }
        )
        self.frames.append([zstd(data) if frame is None else frame, len(data), None])

    def put(self, name, data):
        """Other content for a file of one frame."""
        e = self.entry(name)
        parts = [data[i : i + FRAME_RAW] for i in range(0, len(data), FRAME_RAW)]
        for other in self.entries:
            other["first"] += len(parts) - 1 if other["first"] > e["first"] else 0
        e.update(size=len(data), frames=len(parts))
        self.frames[e["first"] : e["first"] + 1] = [[zstd(p), len(p), None] for p in parts]

    def index_bytes(self):
        out, at = struct.pack("<II", len(self.frames), len(self.entries)), 16
        for i, (packed, raw, checksum) in enumerate(self.frames):
            out += self.FRAME.pack(
                self.offsets.get(i, at), len(packed), raw, xxh3(packed) if checksum is None else checksum
            )
            at += len(packed)
        for e in self.entries:
            values = {**e, "dims": e.get("says_dims", len(e["shape"])), "length": e.get("says_length", len(e["name"]))}
            out += self.ENTRY.pack(*(values[f] for f in self.FIELDS)) + struct.pack(
                "<%dQ" % len(e["shape"]), *e["shape"]
            )
            out += e["name"] + b"\0" * (-len(e["name"]) % 8)
        return out

    def bytes(self):
        header = self.HEADER.pack(b"\x8fVPTQ\r\n\x1a", self.version, 0)
        body = header + b"".join(f[0] for f in self.frames)
        index = self.index_bytes()
        packed = zstd(index) if self.index is None else self.index
        footer = struct.pack(
            "<QQQQ",
            len(body) if self.index_at is None else self.index_at,
            len(packed),
            len(index) if self.index_raw is None else self.index_raw,
            xxh3(packed),
        )
        return body + packed + footer + struct.pack("<Q", xxh3(header + footer)) + b"\x1a\n\rQTPV\x8f"


def edit_archive(path, change):
    a = Archive(path.read_bytes())
    change(a)
    path.write_bytes(a.bytes())


# --- GGUF ---

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
U32, F32, STRING, ARRAY, U64 = 4, 6, 8, 9, 10


class Raw(bytes):
    """A value of GGUF given as bytes."""


class Gguf:
    """keys: [name, type, value], of an array (type, items); tensors: [name, shape innermost first, type, offset]."""

    def __init__(self, raw):
        self.raw, self.place = raw, 4
        self.version, tensors, keys = self.take("IQQ")
        self.keys = []
        for _ in range(keys):
            name, kind = self.string(), self.take("I")[0]
            self.keys.append([name, kind, self.value(kind)])
        self.tensors = []
        for _ in range(tensors):
            name = self.string()
            dims = self.take("I")[0]
            self.tensors.append([name, list(self.take("%dQ" % dims)), *self.take("IQ")])
        self.data = raw[self.place + -self.place % 32 :]
        self.key_count = self.tensor_count = None

    def take(self, layout):
        values = struct.unpack_from("<" + layout, self.raw, self.place)
        self.place += struct.calcsize("<" + layout)
        return values

    def string(self):
        n = self.take("Q")[0]
        self.place += n
        return self.raw[self.place - n : self.place]

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            item, n = self.take("IQ")
            return item, [self.value(item) for _ in range(n)]
        return self.take(_SCALARS[kind])[0]

    def set(self, name, kind, value):
        name = name.encode() if isinstance(name, str) else name
        for key in self.keys:
            if key[0] == name:
                key[1:] = kind, value
                return
        self.keys.append([name, kind, value])

    def get(self, name):
        return next(k[2] for k in self.keys if k[0] == name.encode())

    def tensor(self, name):
        return next(t for t in self.tensors if t[0] == name.encode())

    @staticmethod
    def pack_string(s):
        return struct.pack("<Q", len(s)) + s

    def pack(self, kind, value):
        if isinstance(value, Raw):
            return value
        if kind == STRING:
            return self.pack_string(value)
        if kind == ARRAY:
            item, items = value
            return struct.pack("<IQ", item, len(items)) + b"".join(self.pack(item, x) for x in items)
        return struct.pack("<" + _SCALARS[kind], value)

    def bytes(self):
        out = b"GGUF" + struct.pack(
            "<IQQ",
            self.version,
            len(self.tensors) if self.tensor_count is None else self.tensor_count,
            len(self.keys) if self.key_count is None else self.key_count,
        )
        out += b"".join(self.pack_string(k) + struct.pack("<I", kind) + self.pack(kind, v) for k, kind, v in self.keys)
        for name, shape, kind, offset in self.tensors:
            out += self.pack_string(name) + struct.pack("<I%dQIQ" % len(shape), len(shape), *shape, kind, offset)
        return out + b"\0" * (-len(out) % 32) + self.data


def edit_gguf(path, change):
    g = Gguf(path.read_bytes())
    change(g)
    path.write_bytes(g.bytes())


# --- PyTorch files ---


def edit_zip(path, change, compression=zipfile.ZIP_STORED):
    """change(entries): entries is a dict of name to bytes."""
    with zipfile.ZipFile(path) as z:
        entries = {n: z.read(n) for n in z.namelist()}
    entries = change(entries) or entries
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as z:
        for name, data in entries.items():
            z.writestr(zipfile.ZipInfo(name), data, compression)
    path.write_bytes(out.getvalue())


def pickled_tensors(shapes, dtype="Half"):
    """The pickle of a dictionary of contiguous tensors [(name, shape)]; number i is in the storage "i"."""

    def text(s):
        return b"X" + struct.pack("<I", len(s.encode())) + s.encode()

    def sizes(values):
        return b"(" + b"".join(b"J" + struct.pack("<i", v) for v in values) + b"t"

    out = b"\x80\x02}("
    for i, (name, shape) in enumerate(shapes):
        strides = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
        out += text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage")
        out += b"ctorch\n" + dtype.encode() + b"Storage\n" + text(str(i)) + text("cpu")
        out += b"J" + struct.pack("<i", math.prod(shape)) + b"tQK\0" + sizes(shape) + sizes(strides) + b"\x89}tR"
    return out + b"u."


def zip_of(entries):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name, data in entries.items():
            z.writestr(zipfile.ZipInfo(name), data)
    return out.getvalue()


def edit_bytes(path, change):
    raw = bytearray(path.read_bytes())
    path.write_bytes(change(raw) or raw)


# --- NumPy, protobuf ---


def npy(shape, data, dtype="<f4", header=None, length=None):
    text = header if header is not None else "{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (dtype, shape)
    text = text.encode() if isinstance(text, str) else text
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) if length is None else length) + text + data


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def message(field, data):
    """A field of protobuf that holds bytes."""
    return varint(field << 3 | 2) + varint(len(data)) + data


def number(field, n):
    return varint(field << 3) + varint(n)


def piece(text, score=0.0, kind=1):
    """A piece of a SentencePiece model."""
    return message(1, message(1, text) + varint(2 << 3 | 5) + struct.pack("<f", score) + number(3, kind))
