"""Tokenizers of every form, and chat templates."""

import base64
import json
import struct

import forge
import inputs
from changes import BAD, both, fifo, json_file, link, replace, sparse, write
from net import Kind, harmless, refused, shown, warned

TOKENS = "eval ppl -q -m {} --text B/text --tokens-only"

# --- tokenizer.json ---

tokenizer = Kind("tokenizer", "m", TOKENS)


def part(**values):
    return json_file("tokenizer.json", lambda t: t.update(values))


def bpe(**values):
    return json_file("tokenizer.json", lambda t: t["model"].update(values))


def added(**values):
    return json_file("tokenizer.json", lambda t: t["added_tokens"][0].update(values))


def steps(*list_of_steps):
    return {"type": "Sequence", "normalizers": list(list_of_steps)}


def exchange(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def split(pattern, behavior="Isolated"):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


GROW = exchange({"String": "a"}, "a" * 200)
WORK = "steps|longer|more than|grow|bytes"
for n in 2, 5, 32:
    tokenizer.row(f"{n} Replace steps that grow 200 times each", part(normalizer=steps(*[GROW] * n)), refused(WORK))
tokenizer.row("33 steps", part(normalizer=steps(*[GROW] * 33)), refused("tokenizer.json"))
tokenizer.row("a Replace of nothing", part(normalizer=exchange({"String": ""}, "a" * 1000)), refused("tokenizer.json"))
tokenizer.row(
    "a Replace of every place", part(normalizer=exchange({"Regex": ""}, "a" * 100000)), refused("tokenizer.json")
)
tokenizer.row(
    "a Prepend of 1 MiB",
    part(normalizer=steps(*[{"type": "Prepend", "prepend": "a" * (1 << 20)}] * 3)),
    refused("tokenizer.json"),
)
tokenizer.row(
    "10^4 nested sequences",
    write(
        "tokenizer.json",
        '{"model":{},"normalizer":'
        + forge.deep(10**4, '{"type":"Sequence","normalizers":[', '{"type":"NFC"}', "]}")
        + "}",
    ),
    refused("tokenizer.json"),
)
tokenizer.row(
    "9 nested sequences",
    part(normalizer=json.loads(forge.deep(9, '{"type":"Sequence","normalizers":[', '{"type":"NFC"}', "]}"))),
    refused("tokenizer.json"),
)
for pattern, expect in [
    (r"(a+)+$", refused("steps")),
    (r"(a|a)*b", refused("steps")),
    (r"((a*)*)*\z", refused("steps")),
    (r"(\w+\s?)*\d", refused("steps")),
    (r"(?=(.*.*.*.*x))", refused("steps")),
    (r"(.*)*x", shown("^1\n")),
    (r"(?:\s*\s*\s*\s*)*q", shown("^1\n")),
    (r".*.*.*.*.*=.*", shown("^1\n")),
]:
    tokenizer.row(
        f"pattern {pattern}",
        both(part(pre_tokenizer=split(pattern)), write("text", "a" * 3000 + " aaa" * 100)),
        expect,
        "eval ppl -q -m {} --text m/text --tokens-only",
    )
for name, pattern in [
    ("of 70,000 bytes", "a" * 70000),
    ("with 10^4 groups", "(a)" * 10**4),
    ("of depth 20,000", "(" * 20000 + ")" * 20000),
    ("with a huge count", "((a{1000}){1000}){1000}"),
    ("that is not one", "(((["),
    ("with a verb", "(*LIMIT_MATCH=9)a"),
    ("with control characters", "(" + BAD),
    ("that calls itself", "(a|(?1))*(?R)"),
    ("that calls a group of nothing", "(a||((?1)))+\\R"),
    ("with code", "(?{exit})"),
    ("with \\K", "a\\Kb\\C"),
    ("with an odd name", "(?<\u202e>a)\\k<\u202e>("),
]:
    tokenizer.row(f"pattern {name}", part(pre_tokenizer=split(pattern)), refused("tokenizer.json"))
tokenizer.row(
    "32 patterns of work",
    both(
        part(pre_tokenizer={"type": "Sequence", "pretokenizers": [split("(a|b)*.*q")] * 32}),
        write("text", "ab" * 20000),
    ),
    refused("steps"),
    "eval ppl -q -m {} --text m/text --tokens-only",
)
for name, change in [
    ("no pieces", bpe(vocab={}, merges=[])),
    ("a merge twice", bpe(merges=["t h", "t h"])),
    ("a pattern with a callout", part(pre_tokenizer=split("(?C1)a"))),
]:
    tokenizer.row(name, change, shown("^1\n"))
for what, change in [
    ("piece with control characters twice", replace("tokenizer.json", '"vocab": {', '"vocab": {"a": 9, ')),
    ("pieces as a list", bpe(vocab=[])),
    ("merges as an object", bpe(merges={})),
    ("merge of unknown pieces", bpe(merges=["q zz"])),
    ("merge of one piece", bpe(merges=["th"])),
    ("merge of three pieces", bpe(merges=["t h e"])),
    ("merge with control characters", bpe(merges=[BAD + " " + BAD])),
    ("merges of lists", bpe(merges=[["t", "h", "e"]])),
    ("id 2^31", bpe(vocab={**{p: i for i, p in enumerate(inputs.PIECES)}, "zz": 1 << 31})),
    ("id 10^6", bpe(vocab={**{p: i for i, p in enumerate(inputs.PIECES)}, "zz": 10**6})),
    ("id -1", bpe(vocab={**{p: i for i, p in enumerate(inputs.PIECES)}, "zz": -1})),
    ("id 1.5", bpe(vocab={**{p: i for i, p in enumerate(inputs.PIECES)}, "zz": 1.5})),
    ("id twice", bpe(vocab={**{p: i for i, p in enumerate(inputs.PIECES)}, "zz": 5})),
    (
        "piece of 10,000 bytes",
        bpe(vocab={**{p: i for i, p in enumerate(inputs.PIECES)}, "z" * 10000: len(inputs.PIECES)}),
    ),
    ("unknown token missing", bpe(unk_token="none" + BAD)),
    ("type Unigram", bpe(type="Unigram")),
    ("type with control characters", bpe(type=BAD)),
    ("added token of id 2^40", added(id=1 << 40)),
    ("added token of id -1", added(id=-1)),
    ("added token of another piece's id", added(id=7)),
    ("added token of nothing", added(content="")),
    ("added token with control characters", added(content=BAD, id="x")),
    ("added token of 1 MiB", added(content="a" * (1 << 20))),
    ("normalizer unknown", part(normalizer={"type": BAD})),
    ("pre-tokenizer unknown", part(pre_tokenizer={"type": BAD})),
    ("decoder unknown", part(decoder={"type": BAD})),
    ("post-processor unknown", part(post_processor={"type": BAD})),
    (
        "template of unknown tokens",
        replace("tokenizer.json", '{"id": "<s>", "type_id"', '{"id": "\\u001b[2J", "type_id"'),
    ),
    ("model missing", part(model=None)),
    ("nothing", write("tokenizer.json", "")),
    ("a number", write("tokenizer.json", "1")),
    ("depth 10^6", write("tokenizer.json", lambda: forge.deep(10**6))),
    ("300 MiB of zeros", sparse("tokenizer.json", 300 << 20)),
    ("lone surrogates", replace("tokenizer.json", '"vocab": {', '"vocab": {"\\ud800": 9, ')),
    ("a zero in a piece", replace("tokenizer.json", '"vocab": {', '"vocab": {"\\u0000": 9, ')),
]:
    tokenizer.row(what, change, refused("tokenizer.json|\\(root\\)"))
tokenizer.row(
    "10^5 added tokens that nest",
    json_file(
        "tokenizer.json",
        lambda t: t["added_tokens"].extend(
            {**t["added_tokens"][0], "id": 48 + i, "content": "a" * (i % 400 + 2) + str(i)} for i in range(10**5)
        ),
    ),
    warned("tokenizer.json: the tokenizer has 100048 tokens"),
)
tokenizer.row(
    "pieces with control characters",
    bpe(vocab={**{p: i for i, p in enumerate(inputs.PIECES[:-1])}, BAD: len(inputs.PIECES) - 1}, merges=[]),
    shown("<s>|the|\n"),
    "eval generate -q -m {} -p the -n 3",
    "pack -q --unpack {} -o out",
)
tokenizer.row(
    "config: 1 MiB of bos_token",
    json_file("tokenizer_config.json", lambda c: c.update(bos_token="a" * (1 << 20))),
    refused("tokenizer"),
)
tokenizer.row(
    "config: bos_token with control characters",
    json_file("tokenizer_config.json", lambda c: c.update(bos_token=BAD)),
    refused("tokenizer"),
)
tokenizer.row(
    "config: depth 10^6", write("tokenizer_config.json", lambda: forge.deep(10**6)), refused("tokenizer_config.json")
)
tokenizer.row("config: a list", write("tokenizer_config.json", "[]"), refused("tokenizer_config.json"))

# --- tokenizer.model: SentencePiece, ranks; llama2.c's tokenizer.bin ---

spm = Kind("sentencepiece", "spm", TOKENS)


def spm_model(raw):
    return write("tokenizer.model", raw)


GOOD = inputs.sentencepiece()
for what, raw in [
    ("a piece longer than the file", b"\x0a\xff\xff\xff\xff\x7f" + GOOD),
    ("a number without an end", b"\x0a" + b"\xff" * 64),
    ("lengths of 2^64 - 1", b"\x0a" + b"\xff" * 9 + b"\x01" + GOOD),
    ("cut in a piece", GOOD[:200]),
    ("groups", b"\x0b" * 10**6),
    ("10^6 empty pieces", b"\x0a\x00" * 10**6),
    ("pieces twice", GOOD + forge.piece(b"th")),
    ("an empty piece", GOOD + forge.piece(b"")),
    ("a piece that is not UTF-8", GOOD + forge.piece(b"\xff\xfe")),
    ("a piece of 10,000 bytes", GOOD + forge.piece(b"q" * 10000)),
    ("a score that is not a number", GOOD + forge.piece(b"zz", float("nan"))),
    ("a type 99", GOOD + forge.piece(b"zz", 0, 99)),
    ("type unigram", GOOD + forge.message(2, forge.number(3, 1))),
    ("a normalizer of its own", GOOD + forge.message(3, forge.message(2, b"x" * 100))),
    ("nothing", b""),
    ("text", b"hello\n" * 10),
    ("zeros", b"\0" * 1000),
    ("ranks with a number of 2^63", base64.b64encode(b"a") + b" 9223372036854775808\n"),
    ("ranks with lines of 1 MiB", base64.b64encode(b"a" * (1 << 20)) + b" 0\n"),
    ("ranks of 10^6 equal lines", b"YQ== 0\n" * 10**6),
]:
    spm.row(what, spm_model(raw), refused("tokenizer.model"))
spm.row(
    "tokenizer.bin",
    both(
        lambda t: (t / "tokenizer.model").unlink(),
        write(
            "tokenizer.bin", struct.pack("<I", 9) + b"".join(struct.pack("<fi", 0, 2**31 - 1) + b"a" for _ in range(9))
        ),
    ),
    refused("tokenizer"),
    "eval ppl -q -m {} --text B/text --tokens-only --tokenizer spm/tokenizer.bin",
)

# --- chat templates ---

CHAT = "eval generate -q -m {} --chat -p hi --dry-run"
template = Kind("template", "m", CHAT, memory=384)
STOPPED = "chat_template.jinja.*(steps|memory|MiB|levels|items|nested|longer|size|than)"
RANGE = "{% for i in range(100000) %}"
for what, text in [
    ("loops in loops", RANGE * 4 + "x" + "{% endfor %}" * 4),
    ("range of 2^62", "{% for i in range(4611686018427387904) %}x{% endfor %}"),
    ("range of 100,001", "{% for i in range(100001) %}x{% endfor %}"),
    ("range down for ever", "{% for i in range(0, 9223372036854775807, 1) %}x{% endfor %}"),
    (
        "a text that doubles",
        "{% set ns = namespace(a='aaaaaaaa') %}" + RANGE + "{% set ns.a = ns.a + ns.a %}{% endfor %}",
    ),
    ("a list that doubles", "{% set ns = namespace(a=[1]) %}" + RANGE + "{% set ns.a = ns.a + ns.a %}{% endfor %}"),
    ("a text times 2^40", "{{ 'a' * 1099511627776 }}"),
    ("a text times times", "{{ 'a' * 10000000 * 10000000 }}"),
    ("replace that grows", "{{ ('a' * 100000).replace('a', 'b' * 100000) }}"),
    ("replace of nothing", "{{ ('a' * 100000).replace('', 'b' * 100000) }}"),
    ("join that grows", "{{ range(100000) | join('a' * 100000) }}"),
    ("split of a long text", RANGE + "{% set x = ('a,' * 1000000).split(',') %}{% endfor %}"),
    (
        "searches in long texts",
        "{% set a = 'a' * 50000000 %}" + RANGE + "{% if ('a' * 10000 + 'b') in a %}x{% endif %}{% endfor %}",
    ),
    (
        "startswith of long texts",
        "{% set a = 'a' * 50000000 %}" + RANGE + "{% if a.startswith(a) %}x{% endif %}{% endfor %}",
    ),
    (
        "endswith of long texts",
        "{% set a = 'a' * 50000000 %}" + RANGE + "{% if a.endswith(a) %}x{% endif %}{% endfor %}",
    ),
    (
        "replace in long texts",
        "{% set a = 'a' * 50000000 %}" + RANGE + "{% set x = a.replace('ab', 'c') %}{% endfor %}",
    ),
    ("strip of long texts", "{% set a = ' ' * 50000000 %}" + RANGE + "{% set x = a.strip() %}{% endfor %}"),
    ("upper of long texts", "{% set a = 'a' * 50000000 %}" + RANGE + "{% set x = a | upper %}{% endfor %}"),
    (
        "equality of long texts",
        "{% set a = 'a' * 50000000 %}{% set b = 'a' * 50000000 %}" + RANGE + "{% if a == b %}x{% endif %}{% endfor %}",
    ),
    ("sort of long lists", RANGE + "{% set x = range(100000) | list | sort %}{% endfor %}"),
    (
        "tojson of nested lists",
        "{% set ns = namespace(a=[1]) %}" + RANGE + "{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a | tojson }}",
    ),
    ("indent that grows", "{{ ('a\\n' * 1000000) | indent(1000000) }}"),
    ("tojson with a large indent", "{{ [1, [2]] | tojson(indent=1000000000) }}"),
    ("a macro that calls itself", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
    (
        "macros that fork",
        "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}",
    ),
    ("201 brackets", "{{ " + "(" * 201 + "1" + ")" * 201 + " }}"),
    ("10^5 brackets", "{{ " + "(" * 10**5 + "1" + ")" * 10**5 + " }}"),
    ("10^5 lists", "{{ " + "[" * 10**5 + "]" * 10**5 + " }}"),
    ("10^5 nots", "{{ " + "not " * 10**5 + "1 }}"),
    ("10^5 minuses", "{{ " + "-" * 10**5 + "1 }}"),
    ("10^5 ifs", "{% if 1 %}" * 10**5),
    ("10^5 filters", "{{ 1 " + "| string " * 10**5 + "}}"),
    ("10^5 attributes", "{{ messages" + ".a" * 10**5 + " }}"),
    ("2 MiB", "a" * (2 << 20)),
]:
    template.row(what, write("chat_template.jinja", text), refused("chat_template.jinja|chat template"))
for what, text in [
    ("an unknown filter", "{{ 1 | system }}"),
    ("an unknown name", "{{ cycler.__init__.__globals__.os.popen('id').read() }}"),
    ("classes of Python", "{{ ''.__class__.__mro__[1].__subclasses__() }}"),
    ("an import", "{% import 'os' as os %}"),
    ("an include", "{% include '../secret.txt' %}"),
    ("inheritance", "{% extends '/etc/passwd' %}"),
    ("a statement without an end", "{% if 1 %}a"),
    ("an error with control characters", "{{ raise_exception('" + BAD.replace("\n", " ") + "') }}"),
    ("an error of 1 MB", "{{ raise_exception('a' * 1000000) }}"),
    ("numbers that overflow", "{{ 9223372036854775807 + 1 }}"),
    ("products that overflow", "{{ 9223372036854775807 * 2 }}"),
    ("a number too long", "{{ 99999999999999999999999999 }}"),
    ("a rest by 0", "{{ 1 % 0 }}"),
    ("control characters as syntax", "{{ \x1b[2J }}"),
    ("not UTF-8", b"{{ '\xff' }}{% x \xfe %}"),
    ("a zero", "{{ '\0' }}{{"),
]:
    template.row(what, write("chat_template.jinja", text), refused("chat.template|jinja|the"))
template.row(
    "text with control characters",
    write("chat_template.jinja", inputs.TEMPLATE.replace("[{{", "\x1b[2J\u202e[{{")),
    shown(r"\\u001b\[2J"),
    CHAT + " --format json",
)
template.row(
    "roles with control characters",
    lambda t: (t / "messages.json").write_text(json.dumps([{"role": BAD, "content": BAD}])),
    shown(r"x\\u001b\[2J"),
    CHAT + " --format json --messages m/messages.json",
)
template.row(
    "the smallest number by -1", write("chat_template.jinja", "{{ (-9223372036854775807 - 1) % -1 }}"), shown("^0")
)
template.row(
    "in tokenizer_config.json",
    both(
        lambda t: (t / "chat_template.jinja").unlink(),
        json_file("tokenizer_config.json", lambda c: c.update(chat_template=RANGE * 4 + "x" + "{% endfor %}" * 4)),
    ),
    refused("steps"),
)
for what, text in [
    ("depth 10^6", forge.deep(10**6, "[", "", "]")),
    ("an object", "{}"),
    ("numbers", "[1, 2]"),
    ("a role that is a list", '[{"role": [], "content": ""}]'),
    ("10^6 messages", lambda: "[" + ",".join(['{"role": "user", "content": ""}'] * 10**6) + "]"),
    ("nothing", ""),
]:
    template.row(
        f"messages: {what}",
        write("messages.json", text),
        refused("messages.json|messages|steps"),
        CHAT + " --messages m/messages.json",
    )

# --- generation_config.json ---

kind = Kind("generation", "m", "eval generate -q -m {} -p the -n 1")


def stop(value):
    return json_file("generation_config.json", lambda g: g.update(eos_token_id=value))


for name, change in [
    ("id 2^40", stop(1 << 40)),
    ("id -1", stop(-1)),
    ("id 47", stop(47)),
    ("an id as text", stop(BAD)),
    ("10^5 ids", stop([2] * 10**5)),
    ("an object", stop({})),
    ("a list", write("generation_config.json", "[]")),
]:
    kind.row(name, change, harmless)
for name, change in [
    ("depth 10^6", write("generation_config.json", lambda: forge.deep(10**6))),
    ("nothing", write("generation_config.json", "")),
    ("zeros", write("generation_config.json", b"\0" * 4096)),
    ("a pipe", fifo("generation_config.json")),
    ("zeros for ever", link("generation_config.json", "/dev/zero")),
    ("a secret", link("generation_config.json", "../secret.txt")),
]:
    kind.row(name, change, refused("generation_config.json"))
