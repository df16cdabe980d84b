"""Hessian directories and their exchange forms, work directories, and the files that commands take besides a model."""

import pickle
import shutil
import struct

import forge
import inputs
from changes import (
    BAD,
    at,
    both,
    cut,
    fifo,
    folder,
    json_file,
    link,
    matrix_entry,
    remove,
    replace,
    sparse,
    tensors,
    write,
)
from net import Kind, found, harmless, refused, shown

NAN, INF = float("nan"), float("inf")

# --- Hessian directories ---

SHOW, QUANTIZE = "hessian --show {}", "quantize -q -m B/m -H {} -k 16 -o out"
MEASURE = "eval error -q -m B/w --base B/m -H {}"
BEGUN = ["out", "out/quantize.json"]
kind = Kind("hessian", "h", SHOW, MEASURE)
QKV = "layer_000_qkv.safetensors"


def hessian(change, sealed=True):
    return tensors(change, QKV, sealed)


def settings(**values):
    return json_file("hessian.json", lambda h: h.update(values))


for name, value in ("NaN", NAN), ("infinity", INF), ("minus infinity", -INF):
    for where in "hessian", "mean":
        kind.row(
            f"{name} in {where}",
            hessian(lambda s, where=where, value=value: s.floats(where, 0, [value])),
            shown("0 qkv .* broken\n"),
            SHOW,
        )
        kind.row(
            f"{name} in {where}, quantizing",
            hessian(lambda s, where=where, value=value: s.floats(where, 0, [value])),
            refused("qkv.*finite", BEGUN),
            QUANTIZE,
        )
for name, where, value in [
    ("NaN in abs_mean", "abs_mean", NAN),
    ("-1 in abs_mean", "abs_mean", -1.0),
    ("infinity in max", "max", INF),
    ("a min above the max", "min", 1e20),
    ("a max below the min", "max", -1e20),
]:
    kind.row(
        f"{name}, quantizing",
        hessian(lambda s, where=where, value=value: s.floats(where, 0, [value])),
        refused("qkv.*(finite|positive|above its max)", BEGUN),
        QUANTIZE,
    )
kind.row("NaN in min", hessian(lambda s: s.floats("min", 0, [NAN])), shown("0 qkv .* broken\n"), SHOW)
kind.row(
    "-1 on the diagonal",
    hessian(lambda s: s.floats("hessian", 0, [-1.0])),
    refused("q_proj.*diagonal", BEGUN),
    QUANTIZE,
)
kind.row(
    "a Hessian of zeros",
    hessian(lambda s: s.floats("hessian", 0, [0.0] * 136)),
    refused("q_proj.*zero", BEGUN),
    QUANTIZE,
)
kind.row(
    "an indefinite Hessian",
    hessian(lambda s: s.floats("hessian", 1, [1e20])),
    refused("q_proj.*positive definite", BEGUN),
    QUANTIZE,
)
for name, value in ("1e24", 9e23), ("1e-45", 1e-45):
    kind.row(
        f"a Hessian of {name}",
        hessian(lambda s, value=value: s.floats("hessian", 0, [value] * 136)),
        shown("q_proj"),
        QUANTIZE,
    )
kind.row(
    "a Hessian of 3e38",
    hessian(lambda s: s.floats("hessian", 0, [3e38] * 136)),
    refused("qkv.*3e\\+38", BEGUN),
    QUANTIZE,
)
for name, change in [
    ("a triangle of another size", lambda s: s.header["hessian"].update(shape=[8, 17])),
    ("no mean", lambda s: s.drop("mean")),
    ("no Hessian", lambda s: s.drop("hessian")),
    ("another type", lambda s: s.header["mean"].update(dtype="I32")),
    ("a diagonal as well", lambda s: s.add("diagonal", "F32", [16], b"\0" * 64)),
    ("a mean of other length", lambda s: (s.drop("mean"), s.add("mean", "F32", [17], b"\0" * 68))),
    ("no max", lambda s: s.drop("max")),
    ("a min of other length", lambda s: (s.drop("min"), s.add("min", "F32", [17], b"\0" * 68))),
    ("a size that no n has", lambda s: (s.drop("hessian"), s.add("hessian", "F32", [137], b"\0" * 548))),
    ("0 tokens", lambda s: s.header["__metadata__"].update(tokens="0")),
    ("-1 tokens", lambda s: s.header["__metadata__"].update(tokens="-1")),
    ("2^63 tokens", lambda s: s.header["__metadata__"].update(tokens=str(1 << 63))),
    ("tokens as text", lambda s: s.header["__metadata__"].update(tokens=BAD)),
    ("1e3 tokens", lambda s: s.header["__metadata__"].update(tokens="1e3")),
    ("no tokens", lambda s: s.header["__metadata__"].pop("tokens")),
    ("a kind of its own", lambda s: s.header["__metadata__"].update(kind=BAD)),
]:
    kind.row(name, hessian(change), refused("qkv"))
kind.row("a third tensor", hessian(lambda s: s.add("evil", "F32", [1], b"1234")), harmless)
kind.row("a changed number", hessian(lambda s: s.floats("mean", 0, [1.0]), False), refused("qkv.*checksum"))
kind.row("no checksum", hessian(lambda s: s.header["__metadata__"].pop("xxh3")), refused("qkv.*checksum"))
kind.row(
    "a checksum with control characters",
    hessian(lambda s: s.header["__metadata__"].update(xxh3=BAD), False),
    refused("qkv.*checksum"),
)
kind.row(
    "of another layer",
    lambda t: (t / QKV).write_bytes((t / "layer_000_down.safetensors").read_bytes()),
    refused("expected 24|qkv"),
    MEASURE,
)
kind.row("a Hessian that is missing", remove(QKV), refused("qkv"))
kind.row("a Hessian that is a pipe", fifo(QKV), refused("qkv"))
kind.row("a Hessian that is a folder", folder(QKV), refused("qkv"))
kind.row("a Hessian that is a secret", link(QKV, "../secret.txt"), refused("qkv"))
kind.row("a Hessian cut short", cut(QKV, -8), refused("qkv"))
for name, values in [
    ("layers 10^6", {"model_layers": 10**6}),
    ("layers 0", {"model_layers": 0}),
    ("layers 2^62", {"model_layers": 1 << 62}),
    ("layers -1", {"model_layers": -1}),
    ("last layer 2^31", {"last_layer": 1 << 31}),
    ("last layer 2", {"last_layer": 2}),
    ("first layer -1", {"first_layer": -1}),
    ("first layer after the last", {"first_layer": 1, "last_layer": 0}),
    ("tokens -1", {"tokens": -1}),
    ("tokens 2^62 as text", {"tokens": "4611686018427387904"}),
    ("fingerprint with control characters", {"fingerprint": BAD}),
    ("fingerprint a list", {"fingerprint": []}),
    ("fingerprint of 1 MiB", {"fingerprint": "0" * (1 << 20)}),
    ("channel ranges as text", {"channel_ranges": BAD}),
    ("weights unknown", {"weights": BAD}),
    ("factor -1", {"weights_factor": -1}),
    ("factor as text", {"weights_factor": "1"}),
    ("format 2", {"format": 2}),
    ("format as text", {"format": BAD}),
    ("experts a list", {"experts": [4]}),
    ("0 experts", {"experts": {"count": 0, "dense_layers": []}}),
    ("2^31 experts", {"experts": {"count": 1 << 31, "dense_layers": []}}),
    ("layers without experts missing", {"experts": {"count": 2}}),
    ("a layer without experts as text", {"experts": {"count": 2, "dense_layers": [BAD]}}),
    ("a layer without experts beyond the model", {"experts": {"count": 2, "dense_layers": [2]}}),
    ("a layer without experts 2^62", {"experts": {"count": 2, "dense_layers": [1 << 62]}}),
]:
    kind.row(f"hessian.json: {name}", settings(**values), refused("hessian.json"))
kind.row("hessian.json: diagonal", settings(diagonal=True), shown("only the diagonals"), MEASURE)
kind.row("hessian.json: held out, which is missing", settings(held_out_tokens=64), refused("holdout", BEGUN), QUANTIZE)
kind.row("hessian.json: tool with control characters", settings(settings={"tool": BAD, "outputs": 1}), shown("qkv"), SHOW)
kind.row(
    "hessian.json: of another model", settings(model_fingerprint="0123456789abcdef"), refused("another model"), QUANTIZE
)
kind.row(
    "hessian.json: another number of windows of output Hessians",
    settings(settings={"outputs": 2}),
    refused("outputs.*of 1 window, hessian.json expects 2"),
    QUANTIZE,
)
kind.row("hessian.json: windows of output Hessians -1", settings(settings={"outputs": -1}), refused("hessian.json"))
kind.row("hessian.json: a pipe", fifo("hessian.json"), refused("hessian.json|h"))

# --- output Hessians ---

OUTPUTS = "outputs.safetensors"
for name, change in [
    ("another kind", lambda s: s.header["__metadata__"].update(kind=BAD)),
    ("a fingerprint with control characters", lambda s: s.header["__metadata__"].update(fingerprint=BAD)),
    ("-1 windows", lambda s: s.header["__metadata__"].update(windows="-1")),
    ("2^63 tokens", lambda s: s.header["__metadata__"].update(tokens=str(1 << 63))),
    ("no kind", lambda s: s.header["__metadata__"].pop("kind")),
    ("no checksum", lambda s: s.header["__metadata__"].pop("xxh3")),
]:
    kind.row(f"output Hessians: {name}", tensors(change, OUTPUTS), refused("outputs"), SHOW)
kind.row(
    "output Hessians: a changed number",
    tensors(lambda s: s.floats("layer_000_q_proj", 0, [1.0]), OUTPUTS, False),
    refused("outputs.*checksum"),
    SHOW,
)
kind.row("output Hessians: a pipe", fifo(OUTPUTS), refused("outputs"), SHOW)
kind.row("output Hessians: a folder", folder(OUTPUTS), refused("outputs"), SHOW)
kind.row("output Hessians: cut short", cut(OUTPUTS, -8), refused("outputs"), SHOW)
kind.row("hessian.json: depth 10^6", write("hessian.json", lambda: forge.deep(10**6)), refused("hessian.json"))
kind.row("hessian.json: without a checksum", write("hessian.json", '{"format": 1}'), refused("hessian.json"))
kind.row(
    "hessian.json: duplicate keys",
    replace("hessian.json", '"format"', '"format": 1, "format"'),
    refused("hessian.json"),
)

# --- Hessians that are merged and exported ---

MERGE, EXPORT = "hessian -q --merge {} h2 -o out", "hessian -q --export {} -o out"
kind = Kind("merge", "h", MERGE)


def all_tokens(t, tokens):
    """Every Hessian of this many tokens, and a copy of the directory next to it."""
    for path in t.glob("layer_*"):
        forge.edit_tensors(path, lambda s: s.header["__metadata__"].update(tokens=str(tokens)))
    forge.edit_json(t / "hessian.json", lambda h: h.update(tokens=tokens))
    twice(t)


def twice(t):
    shutil.copytree(t, t.parent / "h2")


for name, change in [
    ("2^62 tokens twice", lambda t: all_tokens(t, 1 << 62)),
    ("2^63 - 1 tokens twice", lambda t: all_tokens(t, (1 << 63) - 1)),
    ("3e38 twice", both(hessian(lambda s: s.floats("hessian", 0, [3e38] * 136)), twice)),
    ("NaN", both(hessian(lambda s: s.floats("hessian", 0, [NAN])), twice)),
    ("one without a layer", both(twice, remove(QKV))),
    ("one of other layers", both(twice, settings(last_layer=0))),
    ("one of another model", both(twice, settings(model_fingerprint="0123456789abcdef"))),
    ("one of other weights", both(twice, settings(weights="attention"))),
    ("one that is a secret", both(twice, link(QKV, "../secret.txt"))),
    ("one that is a pipe", both(twice, fifo(QKV))),
]:
    kind.row(name, change, refused("h/|h2|layer|tokens|qkv"))
for name, value in ("NaN", NAN), ("infinity", INF), ("3e38", 3e38):
    kind.row(
        f"exporting {name}",
        hessian(lambda s, value=value: s.floats("hessian", 0, [value] * 136)),
        refused("qkv"),
        EXPORT,
    )
    kind.row(
        f"exporting a mean of {name}",
        hessian(lambda s, value=value: s.floats("mean", 0, [value])),
        refused("qkv"),
        EXPORT,
    )

kind.row("exporting a mean of 1e23", hessian(lambda s: s.floats("mean", 0, [1e23])), refused("qkv.*mean"), EXPORT)

# --- a collection that goes on ---

kind = Kind("collect", "h", "hessian -q -m B/m -c B/text -n 2 -l 32 -o {}")
STATE, LAST = "hidden.state", "layer_001_down.safetensors"
UNFINISHED = remove(LAST)
for name, change in [
    ("nothing", write(STATE, "")),
    ("zeros", write(STATE, b"\0" * 100000)),
    ("1 TiB of zeros", both(write(STATE, ""), sparse(STATE, 1 << 40))),
    ("the secret", link(STATE, "../secret.txt")),
    ("zeros for ever", link(STATE, "/dev/zero")),
    ("a pipe", fifo(STATE)),
    ("a folder", folder(STATE)),
]:
    kind.row(f"hidden.state: {name}", both(UNFINISHED, change), shown("1 layer kept"))
for name, change in [
    ("nothing", write(QKV, "")),
    ("zeros", write(QKV, b"\0" * 4096)),
    ("cut short", cut(QKV, -1)),
    ("a changed number", hessian(lambda s: s.floats("mean", 0, [1.0]), False)),
    ("a link to the secret", link(QKV, "../secret.txt")),
    ("a link out that is good", link(QKV, "../B/h/" + QKV)),
]:
    kind.row(f"a layer: {name}", change, shown("1 layer, |0 layers, "))
for name, change in [
    ("a layer: a pipe", fifo(QKV)),
    ("a layer: a folder", folder(QKV)),
    ("lock: a link to the secret", link("lock", "../secret.txt")),
    ("lock: a link to nothing", link("lock", "../made")),
    ("lock: a pipe", fifo("lock")),
    ("hessian.json: nothing", write("hessian.json", "")),
    ("hessian.json: a link to the secret", link("hessian.json", "../secret.txt")),
    ("hessian.json: of another model", settings(model_fingerprint="0123456789abcdef", fingerprint="0123456789abcdef")),
]:
    kind.row(name, change, refused("h/|another model"))

# --- work directories ---

kind = Kind("work", "w", "pack --check {}", "pack -q {} -o out")
Q = "layer_000_q_proj.safetensors"


def run_file(**values):
    return json_file("quantize.json", lambda q: q.update(values))


def matrix(change, sealed=True):
    return tensors(change, Q, sealed)


def meta(**values):
    return matrix(lambda s: s.header["__metadata__"].update(values))


def entry(**values):
    return matrix_entry(Q, **values)


LIST, RESUME = "pack --list {}", "quantize -q -m B/m -H B/h -k 16 -o {}"
for name, change in [
    ("base_model a secret", run_file(base_model="/etc/passwd")),
    ("base_model missing", run_file(base_model=None)),
    ("base_model with control characters", run_file(base_model=BAD)),
    ("base_model relative", run_file(base_model="../secret.txt")),
    ("base_model itself", run_file(base_model="w")),
    ("base_model of 1 MiB", run_file(base_model="/" + "a" * (1 << 20))),
    ("base_model zeros for ever", run_file(base_model="/dev/zero")),
    ("tokenizer a secret", run_file(tokenizer="/etc/passwd")),
    ("dtype f99", run_file(dtype=BAD)),
    ("fingerprint with control characters", run_file(base_fingerprint=BAD)),
    ("format 2", run_file(format=2)),
    ("skips more than there are", run_file(matrices={f"m{i}": {"skip": True} for i in range(99)})),
    ("a changed key", replace("quantize.json", "f16", "f99")),
    ("depth 10^6", write("quantize.json", lambda: forge.deep(10**6))),
    ("nothing", write("quantize.json", "")),
    ("a pipe", fifo("quantize.json")),
    ("a folder", folder("quantize.json")),
]:
    kind.row(f"quantize.json: {name}", change, refused("quantize.json|base model|passwd"), "pack -q {} -o out")
for name, change in [
    ("entry: vectors of 0", entry(vector_lens=[-1, 0])),
    ("entry: 2^31 centroids", entry(num_centroids=[-1, 1 << 31])),
    ("entry: 2^62 columns", entry(in_features=1 << 62)),
    ("entry: depth 10^6", meta(entry=forge.deep(10**6))),
    ("entry: nothing", meta(entry="")),
    ("name of another", meta(name="model.layers.1.self_attn.q_proj")),
    ("name with control characters", meta(name=BAD)),
    ("name in the folder above", meta(name="../../evil")),
    ("format 2", meta(format="2")),
    ("centroids that are not numbers", matrix(lambda s: s.floats("centroids_f32", 3, [NAN]))),
    (
        "centroids without a number",
        matrix(lambda s: s.floats("model.layers.0.self_attn.q_proj.centroids.weight", 3, [NAN])),
    ),
    ("a tensor less", matrix(lambda s: s.drop("centroids_f32"))),
    ("no checksum", matrix(lambda s: s.header["__metadata__"].pop("xxh3"))),
    ("a changed number", matrix(lambda s: s.floats("centroids_f32", 0, [1.0]), False)),
    ("cut short", cut(Q, -8)),
    ("a secret", link(Q, "../secret.txt")),
]:
    kind.row(f"matrix: {name}", change, found("layer_000_q_proj|q_proj"), "pack --check {}")
    kind.row(f"matrix: {name}, packing", change, refused("layer_000_q_proj|q_proj"), "pack -q {} -o out")
for name, change in [
    ("a link to a secret", link("lock", "../secret.txt")),
    ("a pipe", fifo("lock")),
    ("a folder", folder("lock")),
    ("a large file", sparse("lock", 1 << 30)),
]:
    kind.row(f"lock: {name}", change, refused("lock"), RESUME)
for name, change in [
    ("quantize.json: settings a list", run_file(settings=[])),
    ("quantize.json: matrices a list", run_file(matrices=[])),
    ("matrix: report a list", meta(report="[]")),
    ("matrix: report of depth 10^6", meta(report=forge.deep(10**6))),
    ("matrix: a tensor more", matrix(lambda s: s.add("zz", "F32", [1], b"1234"))),
]:
    kind.row(name, change, harmless, "pack -q {} -o out")
for name, change in [
    ("missing", lambda t: (t / "report.jsonl").unlink()),
    ("a link to a secret", link("report.jsonl", "../secret.txt")),
    ("zeros for ever", link("report.jsonl", "/dev/zero")),
    ("a large file", sparse("report.jsonl", 1 << 40)),
    ("a pipe", fifo("report.jsonl")),
    ("a folder", folder("report.jsonl")),
]:
    kind.row(f"report.jsonl: {name}", change, refused("report.jsonl"), "pack -q {} -o out")
for name, make in ("folder", folder), ("pipe", fifo):
    kind.row(f"matrix: a {name}", make(Q), refused("layer_000_q_proj"))
kind.row(
    "report.jsonl: a link to a secret, continuing",
    link("report.jsonl", "../secret.txt"),
    shown("q_proj|nothing"),
    RESUME,
)

# --- PyTorch files, NumPy files, imatrix files ---

IMPORT = "hessian -q --import {} -o out"
kind = Kind("pytorch", "pt", IMPORT)
PT = "0_qkv.pt"


def zipped(change):
    return lambda t: forge.edit_zip(t / PT, change)


def pickled(raw):
    return zipped(lambda z: z.update({"archive/data.pkl": raw}))


def opcodes(old, new):
    def change(z):
        assert old in z["archive/data.pkl"], old
        z["archive/data.pkl"] = z["archive/data.pkl"].replace(old, new, 1)

    return zipped(change)


for name, raw in [
    ("that runs a command", b"cos\nsystem\n(S'touch evil'\ntR."),
    ("that runs a command by protocol 4", b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0atouch evil\x85R."),
    ("that evaluates", pickle.dumps({"a": complex(1, 2)}, 2)),
    ("with a name of control characters", b"c" + b"\x1b[2J\x07\nx\n)R."),
    ("that builds", b"}}b."),
    ("that persists nothing", b"Q."),
    ("without an end", b"}"),
    ("that is empty", b""),
    ("of marks", b"(" * 10**6 + b"."),
    ("of lists", b"]" * 10**6 + b"."),
    ("of nested lists", b"]" * 10**5 + b"a" * (10**5 - 1) + b"."),
    ("that doubles a list", b"]" + b"q\x00" + b"(h\x00h\x00e" * 10**5 + b"."),
    ("of nested tuples", b")" + b"\x85" * 10**6 + b"."),
    ("with a text of 2^32 - 1", b"X\xff\xff\xff\xff."),
    ("with a text of 2^63", b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f."),
    ("with bytes of 2^63", b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f."),
    ("with a number of 2^31 bytes", b"\x8b\xff\xff\xff\x7f."),
    ("with 255 bytes of a number", b"\x8a\xff" + b"\xff" * 255 + b"."),
    ("with memo 2^31", b"j\xff\xff\xff\x7f."),
    ("with put 2^31", b"}r\xff\xff\xff\x7f."),
    ("in a frame of 2^63", b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f}."),
    ("of protocol 255", b"\x80\xff}."),
    ("of opcode 0", b"\0."),
    ("that pops nothing", b"0."),
    ("with 10^6 memos", b"}" + b"\x94" * 10**6 + b"."),
    ("that is a text", b"X\x01\0\0\0a."),
    ("without keys", b"}."),
]:
    kind.row(f"a pickle {name}", pickled(raw), refused("0_qkv.pt"))
for name, change in [
    (
        "sizes that overflow",
        (
            opcodes(b"J\x88\0\0\0\x85", b"J\xff\xff\xff\x7f\x85")
            if False
            else opcodes(b"J\x88\0\0\0t", b"J\xff\xff\xff\x7ft")
        ),
    ),
    ("negative sizes", opcodes(b"(J\x88\0\0\0t", b"(J\xff\xff\xff\xfft")),
    ("n 2^31 - 1", opcodes(b"X\x01\0\0\0nJ\x10\0\0\0", b"X\x01\0\0\0nJ\xff\xff\xff\x7f")),
    ("n 0", opcodes(b"X\x01\0\0\0nJ\x10\0\0\0", b"X\x01\0\0\0nJ\0\0\0\0")),
    ("n 17", opcodes(b"X\x01\0\0\0nJ\x10\0\0\0", b"X\x01\0\0\0nJ\x11\0\0\0")),
    ("tokens -1", opcodes(b"X\x02\0\0\0ctJ\x40\0\0\0", b"X\x02\0\0\0ctJ\xff\xff\xff\xff")),
    ("a storage that is missing", opcodes(b"X\x01\0\0\0" + b"0X", b"X\x01\0\0\0" + b"9X")),
    ("a storage in the folder above", opcodes(b"X\x01\0\0\0" + b"0X", b"X\x09\0\0\0" + b"../secretX")),
    ("a storage of other length", zipped(lambda z: z.update({"archive/data/0": b"1234"}))),
    ("a stride of 2^30", opcodes(b"(J\x01\0\0\0t", b"(J\0\0\0\x40t")),
    ("a storage of NaN", zipped(lambda z: z.update({"archive/data/0": struct.pack("<136f", *[NAN] * 136)}))),
    ("no pickle", zipped(lambda z: z.pop("archive/data.pkl") and None)),
    ("entries twice", zipped(lambda z: z.update({"other/data.pkl": z["archive/data.pkl"]}))),
    ("10^4 entries", zipped(lambda z: z.update({f"archive/data/{i + 9}": b"" for i in range(10**4)}))),
    (
        "a deflated bomb",
        lambda t: forge.edit_zip(t / PT, lambda z: z.update({"archive/data/0": b"\0" * (64 << 20)}), 8),
    ),
    ("a wrong checksum", replace(PT, "flatH", "flatX")),
    ("cut short", cut(PT, -30)),
    ("nothing", write(PT, "")),
    ("the end of a zip", write(PT, b"PK\5\6" + b"\xff" * 18)),
    ("a secret", link(PT, "../../secret.txt")),
    ("a pipe", fifo(PT)),
    ("a directory of a zip at 2^32 - 1", both(zipped(lambda z: None), at(PT, -6, b"\xff\xff\xff\xff"))),
    ("a directory of 2^32 - 1 bytes", both(zipped(lambda z: None), at(PT, -10, b"\xff\xff\xff\xff"))),
    ("65535 entries", both(zipped(lambda z: None), at(PT, -14, b"\xff\xff\xff\xff"))),
]:
    kind.row(name, change, refused("0_qkv.pt") if name not in ("10^4 entries", "entries twice") else harmless)
for name in (
    "x_qkv.pt",
    "99999999999999999999_qkv.pt",
    "-1_qkv.pt",
    "0_evil.pt",
    "0_qkv.pt.txt",
    "0_qkv\x1b[2J.pt",
    "4294967296_qkv.pt",
):
    kind.row(
        f"a file more: {name!r}",
        lambda t, name=name: (t / name).write_bytes((t / PT).read_bytes()),
        shown("layers 0-1"),
    )
kind.row(
    "two forms of one file",
    lambda t: (t / "0_qkv.npy").write_bytes(forge.npy((16, 16), b"\0" * 1024)),
    refused("npy|pt"),
)

kind = Kind("numpy", "np", IMPORT)
EYE = struct.pack("<256f", *[float(i % 17 == 0) for i in range(256)])
for name, raw in [
    ("a header of 65,535 bytes", forge.npy((16, 16), EYE, length=65535)),
    ("shape 2^63", forge.npy((1 << 63, 1), EYE)),
    ("shape 2^32 x 2^32", forge.npy((1 << 32, 1 << 32), EYE)),
    ("shape of 10^4 dimensions", forge.npy(tuple([1] * 10**4), EYE)),
    ("shape -16", forge.npy((-16, -16), EYE)),
    ("shape 16 x 17", forge.npy((16, 17), EYE + EYE[:64])),
    ("shape of one number", forge.npy((256,), EYE)),
    ("shape 0 x 0", forge.npy((0, 0), b"")),
    ("objects", forge.npy((16, 16), EYE, "|O")),
    ("a type with control characters", forge.npy((16, 16), EYE, "\x1b[2J")),
    ("big endian", forge.npy((16, 16), EYE, ">f4")),
    ("a structure", forge.npy(0, EYE, header="{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (16, 16)}")),
    ("code", forge.npy(0, EYE, header="__import__('os').system('touch evil')")),
    ("depth 10^4", forge.npy(0, EYE, header="{'descr': " + "(" * 10**4 + "}")),
    (
        "a key twice",
        forge.npy(0, EYE, header="{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': (16, 16)}"),
    ),
    ("no shape", forge.npy(0, EYE, header="{'descr': '<f4'}")),
    ("cut short", forge.npy((16, 16), EYE[:-4])),
    ("something after it", forge.npy((16, 16), EYE + b"1234")),
    ("version 9", b"\x93NUMPY\x09\x00" + forge.npy((16, 16), EYE)[8:]),
    ("version 2 of 2^32 - 1 bytes", b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + forge.npy((16, 16), EYE)[10:]),
    ("nothing", b""),
    ("10 bytes", b"\x93NUMPY\x01\x00\xff\xff"),
    ("NaN", forge.npy((16, 16), struct.pack("<f", NAN) + EYE[4:])),
    ("infinity", forge.npy((16, 16), struct.pack("<f", INF) + EYE[4:])),
    ("a negative diagonal", forge.npy((16, 16), struct.pack("<f", -1.0) + EYE[4:])),
    ("asymmetry", forge.npy((16, 16), EYE[:4] + struct.pack("<f", 9.0) + EYE[8:])),
    ("1e300 in double", forge.npy((16, 16), struct.pack("<256d", *[1e300 * (i % 17 == 0) for i in range(256)]), "<f8")),
]:
    kind.row(name, write("0_qkv.npy", raw), refused("0_qkv.npy"))

kind = Kind("imatrix", "imatrix.dat", IMPORT)
NAME = b"blk.0.attn_q.weight"
for name, raw in [
    ("2^31 - 1 entries", struct.pack("<i", 2**31 - 1)),
    ("-1 entries", struct.pack("<i", -1)),
    ("0 entries", struct.pack("<i", 0)),
    ("a name of 2^31 - 1", struct.pack("<ii", 1, 2**31 - 1)),
    ("a name of -1", struct.pack("<ii", 1, -1)),
    (
        "a name with control characters",
        struct.pack("<ii", 1, 12) + b"blk.0.\x1b[2J\x07\n" + struct.pack("<iif", 1, 1, 1),
    ),
    ("2^31 - 1 numbers", struct.pack("<ii", 1, len(NAME)) + NAME + struct.pack("<ii", 1, 2**31 - 1)),
    ("-1 numbers", struct.pack("<ii", 1, len(NAME)) + NAME + struct.pack("<ii", 1, -1)),
    ("0 calls", struct.pack("<ii", 1, len(NAME)) + NAME + struct.pack("<iif", 0, 1, 1)),
    ("NaN", struct.pack("<ii", 1, len(NAME)) + NAME + struct.pack("<iif", 1, 1, NAN)),
    ("a negative number", struct.pack("<ii", 1, len(NAME)) + NAME + struct.pack("<iif", 1, 1, -1)),
    ("a block twice", struct.pack("<i", 2) + (struct.pack("<i", len(NAME)) + NAME + struct.pack("<iif", 1, 1, 1)) * 2),
    (
        "block 2^40",
        struct.pack("<ii", 1, 32) + b"blk.1099511627776.attn_q.weight\0"[:32] + struct.pack("<iif", 1, 1, 1),
    ),
    ("block 10^6", struct.pack("<ii", 1, 25) + b"blk.1000000.attn_q.weight" + struct.pack("<iif", 1, 1, 1)),
    ("cut short", inputs.imatrix()[:100]),
    ("nothing", b""),
]:
    kind.row(name, write("", raw), refused("imatrix.dat"))
kind.row("zeros for ever", link("", "/dev/zero"), refused("imatrix.dat"))
