#!/usr/bin/env python3
"""Runs random and adversarial texts through our tokenizers and through the Python packages `tokenizers`
(tokenizer.json) and `sentencepiece` (tokenizer.model): same ids, same decoded texts.

    python3 tests/interop/check_tokenizers.py [--pipe PROGRAM] [--seed N] [--texts N] [--mixed N] [--points] [NAME..]

PROGRAM is tokenizer_pipe (make build/release/tests/interop/tokenizer_pipe).  NAME picks some: a family of
tests/golden/make_tokenizer_families.py, a case of make_tokenizer_steps.py, a tokenizer of the data directory
(VPTQ_DATA, default ../shared/data), or a path to a tokenizer.json.  --mixed adds N tokenizers put together at random, with
25 texts each.  --points asks about every code point in turn.
Exit 1 when anything differs."""

import argparse
import importlib.util
import json
import lzma
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DATA = os.environ.get("VPTQ_DATA", os.path.join(ROOT, "..", "shared", "data"))
SPECIAL, BOS, HIDDEN, SHOWN = 2, 1, 16, 17

from tokenizers import Tokenizer  # noqa: E402

try:
    import sentencepiece
except ImportError:
    sentencepiece = None


def module(name):
    spec = importlib.util.spec_from_file_location(name, os.path.join(ROOT, "tests", "golden", name + ".py"))
    m = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(m)
    return m


class Ours:
    def __init__(self, program, path):
        self.p = subprocess.Popen([program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, kind, count, content, size):
        self.p.stdin.write(struct.pack("<II", kind, count) + content)
        self.p.stdin.flush()
        n, = struct.unpack("<I", self.p.stdout.read(4))
        if n == 0xffffffff:
            n, = struct.unpack("<I", self.p.stdout.read(4))
            raise ValueError(self.p.stdout.read(n).decode())
        return self.p.stdout.read(n * size)

    def encode(self, text, flags):
        b = text if isinstance(text, bytes) else text.encode()
        a = self.ask(flags, len(b), b, 4)
        return list(struct.unpack(f"<{len(a) // 4}i", a))

    def decode(self, ids, kind):
        return self.ask(kind, len(ids), struct.pack(f"<{len(ids)}i", *ids), 1)

    def close(self):
        self.p.stdin.close()
        self.p.wait()


# --- texts -----------------------------------------------------------------------------------

PLANES = [(0, 0x80), (0x80, 0x250), (0x250, 0x600), (0x600, 0x1100), (0x1100, 0x2000), (0x2000, 0x2c00),
          (0x2c00, 0x3400), (0x3400, 0xd800), (0xe000, 0x10000), (0x10000, 0x12000), (0x1d000, 0x1d800),
          (0x1f000, 0x1fb00), (0x20000, 0x2a6d0), (0xe0000, 0xe01f0), (0xf0000, 0xf0100), (0x10ff00, 0x110000)]
MARKS = [0x300, 0x301, 0x323, 0x327, 0x345, 0x3099, 0x5b0, 0x64b, 0x93c, 0xe38, 0x1dc0, 0x20dd, 0x20e3, 0xfe0f, 0x1161, 0x11a8]
SPACES = [" ", " ", " ", "\t", "\n", "\r", "\r\n", "\v", "\f", "\x85", "\u00a0", "\u1680", "\u180e", "\u2003", "\u2028", "\u2029",
          "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff", "\u2581"]
BITS = ["'s", "'S", "'t", "'re", "'VE", "'ll", "\u2019s", "'\u017f", "\u017f", "\u212a", "don't", "the", " the", "The", "123", "1", "3.14", "1,000",
        "<0x41>", "<0xE2>", "<", ">", "|", "_", "\u200d", "\u200c", "\u24b6", "\u2160", "\u0130", "\u00df", "\u03a3", "\u01c5"]


def point(rng):
    while True:
        lo, hi = rng.choice(PLANES)
        c = chr(rng.randrange(lo, hi))
        if known(c):
            return c


def emoji(rng):
    return rng.choice(["\U0001f469\u200d\U0001f4bb", "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd", "\u2764\ufe0f", "1\ufe0f\u20e3", "\U0001f600",
                       "\U0001f3f4\U000e0067\U000e0062\U000e007f"])


def part(rng, specials, words):
    k = rng.randrange(14)
    if k == 0:
        return "".join(point(rng) for _ in range(rng.randrange(1, 12)))
    if k == 1:
        return rng.choice(SPACES) * rng.choice([1, 2, 3, 5, 8, 17, 33, 70])
    if k == 2:
        return "".join(rng.choice(SPACES) for _ in range(rng.randrange(1, 6)))
    if k == 3:
        return "".join(rng.choice("0123456789\u0663\u00b2\u2167\u0967\U0001d7ce") for _ in range(rng.randrange(1, 9)))
    if k == 4:
        return emoji(rng) * rng.randrange(1, 3)
    if k == 5:
        return "".join(rng.choice("aeous\u00e9\uac00\u1100\u0438") + "".join(chr(rng.choice(MARKS)) for _ in range(rng.randrange(0, 6)))
                       for _ in range(rng.randrange(1, 5)))
    if k in (6, 7) and specials:
        s = rng.choice(specials)
        return s if rng.random() < 0.8 else s[:rng.randrange(1, len(s) + 1)]
    if k == 8:
        return rng.choice(BITS)
    if k == 9:
        return rng.choice("=-*#~.!?/\\\"'()[]{}<>|&%$@^`+:;,") * rng.choice([1, 2, 3, 4, 7, 16, 40])
    if k == 10:
        return chr(rng.randrange(0, 0x80))
    return rng.choice(words) + rng.choice(["", "", " ", " ", "\n"])


def random_text(rng, specials, words):
    return "".join(part(rng, specials, words) for _ in range(rng.choice([0, 1, 1, 2, 3, 5, 8, 13, 30])))


# --- comparing -------------------------------------------------------------------------------

def lossy(b):
    return b.decode("utf8", "replace")


class Report:
    def __init__(self):
        self.runs, self.bad, self.panics = 0, 0, 0

    def differ(self, name, what, text, want, got):
        self.bad += 1
        if self.bad <= 40:
            at = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
            lo = max(0, at - 3)
            print(f"{name}: {what} of {text!r:.300}\n  at {at}: expected {want[lo:at + 8]!r}, got {got[lo:at + 8]!r}")

    def check(self, name, what, text, want, get):
        self.runs += 1
        try:
            got = get()
        except ValueError as e:
            return self.differ(name, what, text, want, [str(e)])
        if want != got:
            self.differ(name, what, text, want, got)


def both_forms(theirs, text):
    """(what, flags or kind, ours asked with, expected) for everything that is asked about a text."""
    theirs.encode_special_tokens = False
    yield "ids", SPECIAL | BOS, text, theirs.encode(text).ids
    ids = theirs.encode(text, add_special_tokens=False).ids
    yield "ids between the ends", SPECIAL, text, ids
    yield "decoding", HIDDEN, ids, theirs.decode(ids)
    yield "decoding with special tokens", SHOWN, ids, theirs.decode(ids, skip_special_tokens=False)
    theirs.encode_special_tokens = True
    yield "ids as plain text", 0, text, theirs.encode(text, add_special_tokens=False).ids


def compare_json(name, theirs, ours, texts, report):
    for text in texts:
        try:
            questions = list(both_forms(theirs, text))
        except BaseException as e:
            if type(e).__name__ != "PanicException":
                raise
            report.panics += 1  # of the package
            continue
        for what, kind, asked, want in questions:
            if kind < HIDDEN:
                report.check(name, what, text, want, lambda: ours.encode(asked, kind))
            elif "\ufffd" not in want:  # there, bytes of the alphabet in an added token, or of a run that is not UTF-8, are lost
                report.check(name, what, text, want, lambda: lossy(ours.decode(asked, kind)))


def compare_ids(name, theirs, ours, rng, count, vocab, report):
    """Decoding of ids that no text has."""
    for _ in range(count):
        ids = [rng.randrange(vocab) for _ in range(rng.choice([1, 1, 2, 3, 8]))]
        for kind in (HIDDEN, SHOWN):
            want = theirs.decode(ids, skip_special_tokens=kind == HIDDEN)
            if "\ufffd" not in want:
                report.check(name, "decoding ids", ids, want, lambda: lossy(ours.decode(ids, kind)))


def compare_model(name, theirs, ours, texts, report):
    for text in texts:
        text = text.replace("\0", "")  # which ends a text there
        want = theirs.EncodeAsIds(text)
        report.check(name, "ids", text, want, lambda: ours.encode(text, 0))
        if want:
            back = theirs.DecodeIds(want)
            report.check(name, "decoding", text, back, lambda: lossy(ours.decode(want, HIDDEN)))


# --- what is compared ------------------------------------------------------------------------

def steps_cases():
    m = module("make_tokenizer_steps")
    bases = {"bytes": m.bytes_base(), "pieces": m.pieces_base()}
    for name, base, change in m.cases():
        yield name, m.build(bases[base], change)


def mixed(rng):
    """A tokenizer of random steps on one of the two bases of make_tokenizer_steps.py."""
    m = module("make_tokenizer_steps")
    meta = m.META
    behaviors = ["Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"]
    patterns = [{"Regex": p} for p in list(m.PATTERNS.values()) + [r"\p{N}{1,3}", r"\s+", r" ?\p{L}+"]] + [{"String": s} for s in (" ", "a", "the")]
    norms = [{"type": t} for t in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents")]
    norms += [{"type": "Strip", "strip_left": a, "strip_right": b} for a, b in ((True, False), (False, True), (True, True))]
    norms += [{"type": "Prepend", "prepend": p} for p in (meta, " ", "x")]
    norms += [{"type": "Replace", "pattern": p, "content": c} for p in ({"String": " "}, {"Regex": " {2,}"}, {"Regex": "[aeiou]"}, {"String": "th"})
              for c in (meta, "", " ", "in")]
    splits = [{"type": "Digits", "individual_digits": b} for b in (False, True)] + [{"type": "Whitespace"}, {"type": "WhitespaceSplit"}]
    splits += [{"type": "Punctuation", "behavior": b} for b in behaviors] + [{"type": "CharDelimiterSplit", "delimiter": c} for c in ".t"]
    splits += [{"type": "Split", "pattern": p, "behavior": b, "invert": i} for p in patterns for b in behaviors for i in (False, True)]
    metaspaces = [{"type": "Metaspace", "replacement": meta, "prepend_scheme": s, "split": b} for s in ("always", "first", "never") for b in (True, False)]

    base = rng.choice(["bytes", "pieces"])
    # with pieces, a whole word can be a special token there, which ours never takes from plain text
    change = {"model": {"ignore_merges": base == "bytes" and rng.random() < 0.3}}
    pre = [rng.choice(splits) for _ in range(rng.choice([0, 0, 1, 2, 3]))]
    if base == "bytes":
        pre.append({"type": "ByteLevel", "add_prefix_space": rng.random() < 0.3, "trim_offsets": True, "use_regex": rng.random() < 0.5})
    else:
        change["model"]["fuse_unk"] = rng.random() < 0.5
        change["model"]["byte_fallback"] = rng.random() < 0.7
        if rng.random() < 0.6:
            pre.insert(rng.randrange(len(pre) + 1), rng.choice(metaspaces))
    change["pre_tokenizer"] = m.norms_of("pretokenizers", *pre)
    first = any(p.get("prepend_scheme") == "first" for p in pre)
    if base == "bytes" or first or rng.random() < 0.7:
        if first:  # there, all that a normalizer adds at the start or makes of the first characters counts as the start
            norms = [n for n in norms if n["type"] not in ("Prepend", "Replace")]
        change["normalizer"] = m.norms_of("normalizers", *[rng.choice(norms) for _ in range(rng.choice([0, 0, 1, 2, 3]))])
    j = m.build({"bytes": m.bytes_base, "pieces": m.pieces_base}[base](), change)
    for text in rng.sample(["<u>", "<u", "the", " <S>", "th", "<\u00e9>", "12", "  ", meta + "q", "A<B>"], rng.randrange(5)):
        flags = {k: rng.random() < 0.3 for k in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        flags["normalized"] &= text in ("<u>", "<u", "<\u00e9>")  # nothing may be left of others, which matches everywhere there
        if text not in j["model"]["vocab"]:
            number = len(j["model"]["vocab"]) + sum(t["content"] not in j["model"]["vocab"] for t in j["added_tokens"])
            j["added_tokens"].append(dict(flags, id=number, content=text))
    return j


def sources(names, folder, a):
    """(name, path of ours, Tokenizer or SentencePieceProcessor)"""
    def wanted(name):
        return not names or name in names

    def stored(name, j):
        path = os.path.join(folder, "".join(c if c.isalnum() else "_" for c in name))
        os.makedirs(path, exist_ok=True)
        path = os.path.join(path, "tokenizer.json")
        with open(path, "w", encoding="utf8") as f:
            json.dump(j, f, ensure_ascii=False)
        return name, path, Tokenizer.from_file(path)

    for name, j in list(module("make_tokenizer_families").families().items()) + list(steps_cases()):
        if wanted(name):
            yield stored(name, j)
    for i in range(a.mixed):
        name = f"mixed {a.seed} {i}"
        yield stored(name, mixed(random.Random(name)))
    for name in ("llama3", "qwen3"):
        packed = os.path.join(DATA, "tokenizers", name, "tokenizer.json.xz")
        if wanted(name) and os.path.exists(packed):
            yield stored(name, json.loads(lzma.open(packed).read()))
    path = os.path.join(DATA, "models/stories260K-hf/tokenizer.json")
    if wanted("stories260K") and os.path.exists(path):
        yield "stories260K", path, Tokenizer.from_file(path)
    for name in names:
        if os.path.exists(name):
            yield name, name, Tokenizer.from_file(name)
    for name in ("llama2/tokenizer.model", "mistral/tokenizer.model.v1", "mistral/tokenizer.model.v3"):
        path = os.path.join(DATA, "tokenizers", name)
        if wanted(name) and sentencepiece and os.path.exists(path):
            yield name, path, sentencepiece.SentencePieceProcessor(model_file=path)


def all_points():
    """Texts that hold every code point between letters."""
    points = [chr(c) for c in range(0x110000) if known(chr(c))]
    for i in range(0, len(points), 1024):
        yield "".join("a" + c + "1" + c + " " + c + c + "." for c in points[i:i + 1024])


def known(c):
    """Assigned in Unicode 3.2: some tables of `tokenizers` are much older than others, and than ours."""
    return unicodedata.ucd_3_2_0.category(c) not in ("Cn", "Cs")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pipe", default=os.path.join(ROOT, "build/release/tests/interop/tokenizer_pipe"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--mixed", type=int, default=0)
    parser.add_argument("--points", action="store_true")
    parser.add_argument("names", nargs="*")
    a = parser.parse_args()
    report, words = Report(), "the of and in to Hello WORLD value_1 x=y naïve été über 日本語 한국어 ไทย हिन्दी привет العربية".split()
    texts = module("make_tokenizer_families").TEXTS
    with tempfile.TemporaryDirectory() as folder:
        for name, path, theirs in sources(a.names, folder, a):
            rng, before, runs = random.Random(f"{a.seed} {name}"), report.bad, report.runs
            ours = Ours(a.pipe, path)
            json_form = isinstance(theirs, Tokenizer)
            specials = [t.content for t in theirs.get_added_tokens_decoder().values()] if json_form else \
                [theirs.IdToPiece(i) for i in range(min(20, theirs.GetPieceSize()))]
            some = texts + [random_text(rng, specials, words) for _ in range(a.texts)]
            if name.startswith("mixed"):
                some = some[-25:]
            if a.points:
                some = list(all_points())
            try:
                (compare_json if json_form else compare_model)(name, theirs, ours, some, report)
                if json_form and not a.points:
                    compare_ids(name, theirs, ours, rng, a.texts, theirs.get_vocab_size(), report)
            except (struct.error, BrokenPipeError):
                report.bad += 1
            ours.close()
            print(f"{name}: {report.runs - runs} comparisons, {report.bad - before} differences")
    print(f"{report.runs} comparisons, {report.bad} differences; the package panicked at {report.panics} texts")
    sys.exit(report.bad > 0)


main()
