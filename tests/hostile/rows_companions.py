"""Companions: files next to weights that packing copies and archives carry; sensitivities, ablations, printed names."""

import os

import forge
from changes import BAD, archive, both, fifo, folder, json_file, link, sparse, tensors, write
from net import Kind, found, refused, shown, without

COPIES = ["pack -q --unpack {} -o out", "pack -q --unpack {} -o out.gguf"]
TEXTS = [
    "chat_template.jinja",
    "merges.txt",
    "special_tokens_map.json",
    "generation_config.json",
    "added_tokens.json",
    "notes.txt",
    "README.md",
    "LICENSE",
    "vocab.json",
    "preprocessor_config.json",
]

# --- links in a directory that is copied ---

kind = Kind("links", "m", COPIES[0])
for name in TEXTS:
    kind.row(f"{name}: a link to a secret, without it", link(name, "../secret.txt"), without(name))
    kind.row(f"{name}: a link to a secret", link(name, "../secret.txt"), shown("warning: m/" + name + " is not copied"))
    kind.row(f"{name}: zeros for ever", link(name, "/dev/zero"), without(name))
    kind.row(f"{name}: a link to nothing", link(name, "nothing"), without(name))
    kind.row(f"{name}: a link to itself", link(name, name), without(name))
for name in "notes.txt", "README.md", "LICENSE", "generation_config.json", "preprocessor_config.json":
    kind.row(f"{name}: a pipe", fifo(name), without(name))
    kind.row(f"{name}: a folder", folder(name), without(name))
for name in "merges.txt", "special_tokens_map.json", "added_tokens.json", "vocab.json":
    kind.row(f"{name}: a pipe", fifo(name), refused(name))
    kind.row(f"{name}: a folder", folder(name), refused(name))
kind.row("config.json: a link to a secret", link("config.json", "../secret.txt"), refused("config.json"))
kind.row("tokenizer.json: a link to a secret", link("tokenizer.json", "../secret.txt"), refused("tokenizer.json"))
kind.row(
    "tokenizer_config.json: a link to a secret", link("tokenizer_config.json", "../secret.txt"), shown("not copied")
)
for what, change in [
    ("a link by way of the folder itself", link("notes.txt", "../m/../secret.txt")),
    ("a link to the folder above", link("notes.txt", "..")),
    ("a link to a link to a secret", both(link("a.txt", "../secret.txt"), link("notes.txt", "a.txt"))),
    ("a link that looks like the cache's", both(folder("blobs"), link("notes.txt", "../../blobs/../secret.txt"))),
    ("a link into a cache that is not there", link("notes.txt", "../../blobs/0123456789abcdef")),
    ("a text of 17 MiB", both(write("notes.txt", ""), sparse("notes.txt", 17 << 20))),
]:
    kind.row(what, change, without("notes.txt"))
kind.row(
    "a secret as the template of a GGUF file",
    link("chat_template.jinja", "../secret.txt"),
    shown("not copied"),
    COPIES[1],
)
for name in (
    "modeling.py",
    "pytorch_model.bin",
    "lock",
    "quantize.json.bak",
    ".bashrc",
    "model.pt",
    "a b.txt",
    "x\x1b[2J.txt",
    "\u202etxt.md",
    "a" * 248 + ".txt~",
):
    kind.row(f"a file {name!r} next to the weights", write(name, "import os"), without(name))
kind.row("a file \\xff.txt next to the weights", lambda t: (t / os.fsdecode(b"\xff.txt")).write_text("x"), without("x"))
kind.row("10^4 files next to the weights", lambda t: [(t / f"{i}.py").touch() for i in range(10**4)], without("x"))

# --- files of an archive ---

kind = Kind(
    "companions", "m.vptq", "pack --list {}", "pack -q --unpack {} -o out", "pack -q --repair {} -o out", memory=256
)
NAMES = [
    "model.safetensors",
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "adapter_model.safetensors",
    "adapter_config.json",
    "quantize.json",
    "hessian.json",
    "report.jsonl",
    "lock",
    "modeling_llama.py",
    "tokenization.py",
    "setup.py",
    "Makefile",
    "SHA256SUMS",
    "x.vptq",
    "x.gguf",
    "x.npy",
    "x.pt",
    "x.sh",
    "x.html",
    "CONFIG.JSON",
    "Config.json",
    "config.json.",
    "tokenizer.model.safetensors",
    "LICENSE.py",
    "con",
]
for name in NAMES:
    kind.row(name, archive(lambda a, name=name: a.add(name, b"{}")), refused(name))
    kind.row(
        f"{name}, checking",
        archive(lambda a, name=name: a.add(name, b"{}")),
        found("does not belong in an archive"),
        "pack --check {}",
    )
for name in "notes.txt", "README.md", "LICENSE", "merges.txt", "added_tokens.json":
    kind.row(
        name, archive(lambda a, name=name: a.add(name, b"\0\x1b[2J")), shown("out: "), "pack -q --unpack {} -o out"
    )
kind.row(
    "a text of 100 MiB",
    archive(lambda a: [a.add("notes.txt", b""), a.put("notes.txt", b"a" * (100 << 20))]),
    shown("100.0 MiB"),
    "pack -q --unpack {} -o out",
)

# --- digests of a directory ---

kind = Kind("sums", "ps", "pack --check {}")
ZERO = "0" * 64


def line(text):
    """A line more at the end of SHA256SUMS."""
    return lambda t: (t / "SHA256SUMS").write_bytes((t / "SHA256SUMS").read_bytes() + text)


for name, change in [
    ("a secret", line(f"{ZERO}  ../secret.txt\n".encode())),
    ("an absolute path", line(f"{ZERO}  /etc/passwd\n".encode())),
    ("a device", line(f"{ZERO}  /dev/zero\n".encode())),
    ("a file that is missing", line(f"{ZERO}  none\n".encode())),
    ("a file without a name", line(f"{ZERO}  \n".encode())),
    ("control characters", line(f"{ZERO}  ".encode() + BAD.encode() + b"\n")),
    ("a name of 10,000 bytes", line(f"{ZERO}  {'a' * 10000}\n".encode())),
    ("a name that is not UTF-8", line(ZERO.encode() + b"  \xff\xfe\n")),
    ("a zero", line(b"\0")),
    ("a short digest", line(b"0123  config.json\n")),
    ("a digest that is none", line(b"g" * 64 + b"  config.json\n")),
    ("a file twice", line(f"{ZERO}  config.json\n".encode())),
    ("a line of 20 MiB", line(b"0" * (20 << 20))),
    ("10^5 lines", line(b"".join(b"%064d  f%d\n" % (i, i) for i in range(10**5)))),
    ("a line without an end", line(f"{ZERO}  config".encode())),
    ("nothing", write("SHA256SUMS", "")),
    ("text", write("SHA256SUMS", "hello\n")),
    ("a changed file", write("chat_template.jinja", "{{ evil }}")),
    ("a file less", lambda t: (t / "chat_template.jinja").unlink()),
    ("a listed file is a link to a secret", link("chat_template.jinja", "../secret.txt")),
    ("a listed file is a folder", folder("chat_template.jinja")),
    ("a listed file is a pipe", fifo("chat_template.jinja")),
    ("a listed file is zeros for ever", link("chat_template.jinja", "/dev/zero")),
    ("a link to a secret", link("SHA256SUMS", "../secret.txt")),
]:
    kind.row(name, change, found("error: "))
kind.row("a file more", write("evil.txt", "evil"), shown("warning: .*evil.txt"))
for what, change in (
    ("a pipe", fifo("SHA256SUMS")),
    ("a folder", folder("SHA256SUMS")),
    ("zeros for ever", link("SHA256SUMS", "/dev/zero")),
):
    kind.row(what, change, refused("SHA256SUMS"))

# --- sensitivities, directories of ablations ---

kind = Kind("sensitivity", "wb", "quantize -q -m B/m -H B/h -b 6 --dry-run -o {}")


def sensitivity(change):
    return json_file("sensitivity.json", change)


for name, change in [
    ("nothing", write("sensitivity.json", "")),
    ("depth 10^6", write("sensitivity.json", lambda: forge.deep(10**6))),
    ("no checksum", write("sensitivity.json", "{}")),
    ("zeros", write("sensitivity.json", b"\0" * 4096)),
    (
        "a changed number",
        lambda t: forge.edit_bytes(t / "sensitivity.json", lambda b: b.replace(b'"layer": 0', b'"layer": 1', 1)),
    ),
    ("rows a number", sensitivity(lambda s: s.update(rows=1))),
    ("a row more", sensitivity(lambda s: s["rows"].append(s["rows"][0]))),
    ("a loss of -1", sensitivity(lambda s: s["rows"][0].update(loss=-1.0))),
    ("a loss of 1e308", sensitivity(lambda s: s["rows"][0].update(loss=1e308))),
    ("a norm of 1e308", sensitivity(lambda s: s["rows"][0].update(norm=1e308))),
    ("layer 10^6", sensitivity(lambda s: s["rows"][0].update(layer=10**6))),
    ("layer -1", sensitivity(lambda s: s["rows"][0].update(layer=-1))),
    ("a name with control characters", sensitivity(lambda s: s["rows"][0].update(name=BAD))),
    ("another model's", sensitivity(lambda s: s.update(base_fingerprint="0" * 16))),
    ("a link to a secret", link("sensitivity.json", "../secret.txt")),
]:
    kind.row(name, change, shown("14 matrices"))
kind.row("a pipe", fifo("sensitivity.json"), refused("sensitivity.json"))
kind.row("a folder", folder("sensitivity.json"), refused("sensitivity.json"))

kind = Kind(
    "ablation",
    "ab",
    "eval ablate -q -m B/m -H B/h -o {} --text B/text --context 32 --text-windows 1 --table B/rows.json --kld "
    "--task t=B/copa.jsonl --serve 1,4,2",
)
ROW = "rows/a.json"


def figure(section, **values):
    """Other figures in a section of the row's file."""
    return json_file(ROW, lambda v: [entry.update(values) for entry in v[section].values()])


for name, change in [
    ("lock: a link to a secret", link("lock", "../secret.txt")),
    ("rows: a link out", link("rows", "..")),
    ("work: a link out", link("work", "..")),
    ("packed: a link out", link("packed", "..")),
    ("the work directory: a link out", link("work/a", "../..")),
]:
    kind.row(name, change, refused("ab"))
for name, change in [
    ("row: nothing", write(ROW, "")),
    ("row: depth 10^6", write(ROW, lambda: forge.deep(10**6))),
    ("row: no checksum", write(ROW, "{}")),
    ("row: bits 1e308", json_file(ROW, lambda v: v.update(bits_per_weight=1e308))),
    ("row: bits as text", json_file(ROW, lambda v: v.update(bits_per_weight=BAD))),
    ("row: scores a list", json_file(ROW, lambda v: v.update(scores=[]))),
    ("row: a perplexity of 1e308", figure("scores", ppl=1e308)),
    ("row: a divergence of -1e308", figure("scores", mean_kld=-1e308)),
    ("row: a divergence as text", figure("scores", mean_kld=BAD)),
    ("row: scores of numbers", json_file(ROW, lambda v: v.update(scores=dict.fromkeys(v["scores"], 1)))),
    ("row: tasks a list", json_file(ROW, lambda v: v.update(tasks=[]))),
    ("row: tasks of lists", json_file(ROW, lambda v: v.update(tasks=dict.fromkeys(v["tasks"], [])))),
    ("row: an accuracy of 1e308", figure("tasks", acc=1e308)),
    ("row: an accuracy as text", figure("tasks", acc=BAD)),
    ("row: serve a number", json_file(ROW, lambda v: v.update(serve=1))),
    ("row: a speed of 1e308", figure("serve", tokens_per_second=1e308)),
    ("row: memory of -1", figure("serve", peak_memory_bytes=-1)),
    ("row: memory as text", figure("serve", peak_memory_bytes=BAD)),
    ("row: a link to a secret", link(ROW, "../../secret.txt")),
    ("seconds: nothing", write("rows/a.seconds", "")),
    ("seconds: 1e308", write("rows/a.seconds", "1e308 0000000000000000")),
    ("seconds: a link to a secret", link("rows/a.seconds", "../../secret.txt")),
]:
    kind.row(name, change, shown("Ablation"))

# --- names in every printed form ---

kind = Kind("printed", "m", *["pack --list {} --format " + f for f in ("text", "json")])
for name in (
    BAD.replace("\n", "").replace("\r", "").translate({i: None for i in range(32)}),
    "=cmd|' /C calc'!A0",
    "<script>alert(1)</script>",
    "a" * 5000,
):
    kind.row(
        f"a tensor named {name[:20]!r}", tensors(lambda s, name=name: s.add(name, "F16", [0], b"")), shown("lm_head")
    )
