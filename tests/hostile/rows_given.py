"""What commands take besides a model: recipes, rows of an ablation, tasks, records, base logits, ids, texts."""

import gzip
import json
import struct

import forge
import inputs
from changes import BAD, OUTSIDE, at, both, cut, fifo, folder, link, sparse, write
from net import Kind, refused, shown

# --- recipes, rows of an ablation ---

kind = Kind("recipe", "recipe.json", "quantize -m B/m --dry-run --recipe {}")
RULE = {"match": "*", "settings": {"centroids": 16}}


def setting(**values):
    return [{"match": "*", "settings": values}]


for name, rules in [
    ("10^5 rules", [RULE] * 10**5),
    ("a pattern of 257 characters", [{**RULE, "match": "*" * 257}]),
    ("a pattern of nothing", [{**RULE, "match": ""}]),
    ("a pattern with control characters", [{**RULE, "match": BAD}]),
    ("a pattern that is a number", [{**RULE, "match": 1}]),
    ("patterns of stars", [{**RULE, "match": "*a" * 128}] * 1024),
    ("layers 0-10^20", [{**RULE, "layers": "0-100000000000000000000"}]),
    ("layers -1", [{**RULE, "layers": "-1"}]),
    ("layers with control characters", [{**RULE, "layers": BAD}]),
    ("no settings", [{"match": "*", "settings": {}}]),
    ("an unknown setting", setting(**{BAD: 1})),
    ("centroids 2^62", setting(centroids=1 << 62)),
    ("centroids 0", setting(centroids=0)),
    ("centroids 1.5", setting(centroids=16.5)),
    ("kmeans_iterations 10^9", setting(kmeans_iterations=10**9)),
    ("beam 2^31", setting(beam=1 << 31)),
    ("ridge 1e308", setting(ridge=1e308)),
    ("outliers 101", setting(outliers=101)),
    ("fit_groups 2", setting(method="rtn", fit_groups=2)),
    ("fit_groups without groups", setting(fit_groups=True)),
    ("a rule that is a list", [[]]),
]:
    kind.row(name, write("", json.dumps({"rules": rules})), refused("recipe.json|groups|q_proj"))
kind.row("groups 65536", write("", json.dumps({"rules": setting(groups=65536)})), refused("groups", status=2))
for name, text in [
    ("depth 10^6", lambda: forge.deep(10**6)),
    ("2 MiB", " " * (2 << 20) + "{}"),
    ("a key twice", '{"rules": [], "rules": []}'),
    ("an unknown key", '{"rules": [], "\\u001b[2J": 1}'),
    ("nothing", ""),
    ("a number of 10^5 digits", '{"rules": ' + "1" * 10**5 + "}"),
]:
    kind.row(name, write("", text), refused("recipe.json"))
kind.row("zeros for ever", link("", "/dev/zero"), refused("recipe.json"))
for name, raw in [
    ("a gzip bomb", lambda: gzip.compress(b" " * (64 << 20))),
    ("a zstd bomb", lambda: forge.zstd_bomb(1 << 30, 1 << 30)),
    ("gzip cut short", gzip.compress(b'{"rules": []}')[:-4]),
    ("UTF-16", '{"rules": []}'.encode("utf-16")),
]:
    kind.row(name, write("", raw), refused("recipe.json"))

kind = Kind("rows", "rows.json", "eval ablate -q -m B/m --text B/text --table {} --dry-run")
for name, rows in [
    ("a name in the folder above", [{"name": "../evil"}]),
    ("a name with an absolute path", [{"name": OUTSIDE}]),
    ("a name ..", [{"name": ".."}]),
    ("a hidden name", [{"name": ".bashrc"}]),
    ("a name of 65 characters", [{"name": "a" * 65}]),
    ("a name with control characters", [{"name": BAD}]),
    ("a name of nothing", [{"name": ""}]),
    ("names that differ in case", [{"name": "a"}, {"name": "A"}]),
    ("names that are equal", [{"name": "a"}, {"name": "a"}]),
    ("1001 rows", [{"name": f"r{i}"} for i in range(1001)]),
    ("no rows", []),
    ("a recipe that is a secret", [{"name": "a", "recipe": "secret.txt"}]),
    ("a recipe that is a device", [{"name": "a", "recipe": "/dev/zero"}]),
    ("bits -1", [{"name": "a", "bits": -1}]),
    ("an unknown preset", [{"name": "a", "preset": BAD}]),
    ("an unknown key", [{"name": "a", BAD: 1}]),
    ("an unknown setting", [{"name": "a", "settings": {BAD: 1}}]),
    ("a row that is a list", [[]]),
]:
    kind.row(name, write("", json.dumps(rows)), refused("rows.json|secret.txt|/dev/zero"))
kind.row(
    "bits 1e308",
    write("", json.dumps([{"name": "a", "bits": 1e308, "allocate": "uniform"}])),
    refused("row 'a': a budget of 1e.308 .* above the largest", status=2),
)
kind.row("a label with control characters", write("", json.dumps([{"name": "a", "label": BAD}])), shown(r"x\\x1b\[2J"))
kind.row("depth 10^6", write("", lambda: forge.deep(10**6, "[", "", "]")), refused("rows.json"))

# --- tasks ---

kind = Kind("tasks", "copa.jsonl", "eval tasks -q -m B/m --task t={}")
CHOICES = {"query": "the", "choices": ["a", "the"], "gold": 0}
for name, item in [
    ("gold 2", {**CHOICES, "gold": 2}),
    ("gold -1", {**CHOICES, "gold": -1}),
    ("gold 2^62", {**CHOICES, "gold": 1 << 62}),
    ("gold as text", {**CHOICES, "gold": BAD}),
    ("no choices", {**CHOICES, "choices": []}),
    ("10^5 choices", {**CHOICES, "choices": ["a"] * 10**5}),
    ("choices of nothing", {**CHOICES, "choices": ["", ""]}),
    ("choices of numbers", {**CHOICES, "choices": [1, 2]}),
    ("a query of 1 MiB", {**CHOICES, "query": "the " * (1 << 18)}),
    ("a key with control characters", {BAD: 1}),
    ("a list", []),
    ("a number", 1),
]:
    kind.row(name, write("", json.dumps(item) + "\n"), refused("copa.jsonl|task t|task 't'"))
for name, text in [
    ("nothing", ""),
    ("empty lines", "\n" * 10**6),
    ("a line of 80 MB", lambda: '{"query": "' + "a" * (80 << 20) + '"}'),
    ("a line without an end", '{"query": "a"'),
    ("depth 10^6", lambda: forge.deep(10**6) + "\n"),
    ("zeros", b"\0" * 1000),
    ("not UTF-8", b'{"query": "\xff", "choices": ["a", "b"], "gold": 0}\n'),
]:
    kind.row(name, write("", text), refused("copa.jsonl"))
kind.row("zeros for ever", link("", "/dev/zero"), refused("copa.jsonl"))

# --- records of serving runs ---

COMPARE = "eval compare {} --format "
SERVE = "eval serve -q -m m=B/m --config 2,4,2 --runs 1 --warmup 0 -o {}"
kind = Kind("records", "records.jsonl", *[COMPARE + f for f in ("md", "csv", "json", "html")])
for name, text in [
    ("nothing", ""),
    ("a list", inputs.records() + "[]\n"),
    ("depth 10^6", lambda: forge.deep(10**6) + "\n"),
    ("a line of 20 MB", lambda: '{"group": "' + "a" * (20 << 20) + '"}\n'),
    ("a line without an end", '{"group": "a"'),
    ("zeros", b"\0" * 1000),
]:
    kind.row(name, write("", text), refused("records.jsonl"))


def record(**values):
    first = json.loads(inputs.records().splitlines()[0])
    return write("", inputs.records() + json.dumps({**first, **values}) + "\n")


for key, value in [
    ("batch_size", -1),
    ("batch_size", 1e300),
    ("latency", "1"),
    ("latency", []),
    ("latency", -1),
    ("output_throughput", float("inf")),
    ("input_len", "a" + BAD),
    ("group", []),
    ("group", 1),
    ("run_name", {}),
]:
    kind.row(f"{key} {json.dumps(value)[:20]}", record(**{key: value}), refused("records.jsonl"))
for name, text in [
    ("a script", "<script>alert(1)</script>"),
    ("an image", "![x](http://evil/x.png)"),
    ("a link", "[x](javascript:alert(1))"),
    ("a formula", "=cmd|' /C calc'!A0"),
    ("a table", "a|b|c"),
    ("1000 characters", "a" * 1000),
    ("something turned around", "\u202eevil"),
]:
    kind.row(f"a group named {name}", record(group=text, model=text, run_name=text), shown("packed"))
for name, text in ("control characters", BAD), ("a newline", "a\n|b"), ("10^6 characters", "a" * 10**6):
    kind.row(f"a group named {name}", record(group=text, model=text, run_name=text), refused("records.jsonl: line 4"))
LINE = inputs.records().splitlines()[0]
kind.row(
    "10^5 groups",
    write("", lambda: "".join(LINE.replace("original", f"g{i}") + "\n" for i in range(10**5))),
    refused("more than 2000 groups"),
)
kind.row("zeros for ever", link("", "/dev/zero"), refused("records.jsonl"), COMPARE + "md")

# --- records that serving goes on with ---

kind = Kind("served", "served.jsonl", SERVE)


def served(seal=True, **values):
    """Other values in the record; sealed again or not."""

    def change(t):
        value = {**json.loads(t.read_text()), **values}
        t.write_text(json.dumps(forge.seal(value) if seal else value) + "\n")

    return change


for name, change in [
    ("a changed number", served(False, latency=1.0)),
    ("another model", served(model_fingerprint="0123456789abcdef")),
    ("another type of cache", served(kv="f32")),
    ("batch -1", served(batch_size=-1)),
    ("batch 2^62", served(batch_size=1 << 62)),
    ("latency as text", served(latency=BAD)),
    ("a name that is a list", served(run_name=[])),
    ("a seed as text", served(seed=BAD)),
    ("zeros after it", sparse("", 1 << 20)),
    ("twice", lambda t: t.write_bytes(t.read_bytes() * 2)),
    ("depth 10^6", write("", lambda: forge.deep(10**6) + "\n")),
    ("a link to a secret", link("", "secret.txt")),
    ("a link to nothing", link("", "made.jsonl")),
    ("a pipe", fifo("")),
    ("a folder", folder("")),
    ("zeros for ever", link("", "/dev/zero")),
]:
    kind.row(name, change, refused("served.jsonl"))
for name, change in [
    ("latency -1", served(latency=-1)),
    ("a name with control characters", served(run_name=BAD)),
    ("cut short", cut("", -20)),
]:
    kind.row(name, change, shown("m  +b2_i4_o2"))

# --- saved base logits ---

kind = Kind("kld", "base.kld", "eval kld -q -m B/m --base-file {}")


def head(place, layout, *values):
    """Other numbers in the head, with its checksum made right."""

    def change(t):
        raw = bytearray(t.read_bytes())
        struct.pack_into("<" + layout, raw, place, *values)
        struct.pack_into("<Q", raw, 128, forge.xxh3(bytes(raw[:128])))
        t.write_bytes(raw)

    return change


for name, change in [
    ("version 2", head(8, "I", 2)),
    ("precision 7", head(12, "I", 7)),
    ("vocabulary 0", head(16, "I", 0)),
    ("vocabulary 2^31", head(16, "I", 1 << 31)),
    ("vocabulary 2^31 - 1", head(16, "I", 2**31 - 1)),
    ("entries 0", head(20, "I", 0)),
    ("entries 2^31", head(20, "I", 1 << 31)),
    ("context 0", head(24, "I", 0)),
    ("context 1", head(24, "I", 1)),
    ("context 2^32 - 1", head(24, "I", 2**32 - 1)),
    ("protocol 2", head(28, "I", 2)),
    ("windows 0", head(32, "I", 0)),
    ("windows 2^32 - 1", head(32, "I", 2**32 - 1)),
    ("windows and context that overflow", both(head(24, "I", 1 << 31), head(32, "I", 1 << 31))),
    ("first id 2^31 - 1", head(36, "i", 2**31 - 1)),
    ("first id -2", head(36, "i", -2)),
    ("a name without an end", head(64, "64s", b"a" * 64)),
    ("a changed head", at("", 20, b"\1")),
    ("a changed id", at("", 140, b"\1")),
    ("a changed record", at("", 400, b"\1\2\3")),
    ("cut short", cut("", -8)),
    ("the head alone", cut("", 136)),
    ("100 bytes", cut("", 100)),
    ("nothing", write("", "")),
    ("a pipe", fifo("")),
    ("zeros for ever", link("", "/dev/zero")),
    ("a secret", link("", "secret.txt")),
]:
    kind.row(name, change, refused("base.kld"))

kind.row("a name with control characters", head(64, "8s", b"\x1b[2J\x07\n\r\t"), shown("ppl"))

# --- ids, texts ---

kind = Kind("ids", "ids.i32", "eval ppl -q -m B/m --tokens {} --context 32")
for name, change in [
    ("id -1", write("", struct.pack("<128i", *[-1] * 128))),
    ("id 47", write("", struct.pack("<128i", *[47] * 128))),
    ("id 2^31 - 1", write("", struct.pack("<128i", *[2**31 - 1] * 128))),
    ("3 bytes", write("", b"123")),
    ("nothing", write("", b"")),
    ("text", write("", b"the cat sat on\n" * 100)),
    ("a folder", folder("")),
    ("zeros for ever", link("", "/dev/zero")),
]:
    kind.row(name, change, refused("ids.i32"))

kind = Kind("text", "text", "eval ppl -q -m B/m --text {} --tokens-only")
COLLECT = "hessian -q -m B/m -c {} -n 1 -l 16 -o out"
LOSSY = "eval ppl -q -m B/m --lossy --text {} --tokens-only"
TEXT = b"the cat sat on the other cat.\n" * 100
GZIP, ZSTD = gzip.compress(TEXT), forge.zstd(TEXT)
for name, raw in [
    ("nothing", b""),
    ("1 MiB without a space", b"a" * (1 << 20)),
    ("a mark and nothing", b"\xef\xbb\xbf"),
    ("gzip", GZIP),
    ("gzip, 1000 members", gzip.compress(b"a") * 1000),
    ("zstd", ZSTD),
    ("zstd, 1000 frames", forge.zstd(b"a") * 1000),
]:
    kind.row(name, write("", raw), shown("^1\n"))
for name, raw in [
    ("zeros", b"\0" * 4096),
    ("not UTF-8", b"x\xff\xfe\x80" * 1000),
    ("Latin-1", b"caf\xe9\n" * 100),
    ("a character cut short", b"caf\xc3"),
    ("overlong", b"\xc0\xaf"),
    ("surrogates", b"\xed\xa0\x80"),
    ("UTF-16 without a mark", "the cat".encode("utf-16-le") * 100),
]:
    kind.row(name, write("", raw), refused("text: "))
    kind.row(f"{name}, collecting", write("", raw), refused("text: "), COLLECT)
    kind.row(f"{name}, repaired", write("", raw), shown("^1\n"), LOSSY)
for name, raw in [
    ("UTF-16", "the cat".encode("utf-16") * 100),
    ("gzip cut short", GZIP[:-1]),
    ("gzip, 10 bytes", GZIP[:10]),
    ("gzip, another checksum", GZIP[:-8] + b"abcd" + GZIP[-4:]),
    ("gzip, another length", GZIP[:-4] + b"abcd"),
    ("gzip and something after it", GZIP + b"the cat"),
    ("gzip, another method", b"\x1f\x8b\x07" + GZIP[3:]),
    ("a gzip bomb", lambda: gzip.compress(b"a" * (256 << 20))),
    ("a gzip bomb of many members", lambda: gzip.compress(b"a" * (1 << 20)) * 256),
    ("zstd cut short", ZSTD[:-1]),
    ("zstd, another checksum", ZSTD[:-4] + b"abcd"),
    ("zstd and something after it", ZSTD + b"the cat"),
    ("a zstd bomb", lambda: forge.zstd_bomb(1 << 30, 1 << 30)),
    ("a zstd bomb that says little", lambda: forge.zstd_bomb(100, 1 << 30)),
    ("zstd that says 2^62 bytes", lambda: forge.zstd_bomb(1 << 62, 1 << 10)),
    ("zstd with a window of 2 GiB", b"\x28\xb5\x2f\xfd\x00\xa8" + ZSTD[6:]),
]:
    kind.row(name, write("", raw), refused("text: |text'"))
    kind.row(f"{name}, repaired", write("", raw), refused("text: |text'"), LOSSY)
for name, change in [
    ("a folder", folder("")),
    ("zeros for ever", link("", "/dev/zero")),
    ("a link to itself", link("", "text")),
]:
    kind.row(name, change, refused("text"))
    kind.row(f"{name}, collecting", change, refused("text"), COLLECT)
