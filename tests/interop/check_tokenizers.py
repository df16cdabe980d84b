#!/usr/bin/env python3
"""Random and adversarial texts through our tokenizers and through the Python packages `tokenizers`
(tokenizer.json) and `sentencepiece` (tokenizer.model): same ids, same decoded texts.

    python3 tests/interop/check_tokenizers.py [--pipe PROGRAM] [--seed N] [--texts N] [--points] [NAME..]

PROGRAM is tokenizer_pipe (make build/release/tests/interop/tokenizer_pipe).  NAME picks some: a family of
tests/golden/make_tokenizer_families.py, a case of make_tokenizer_steps.py, a tokenizer of the data directory
(VPTQ_DATA, default ../shared/data), or a path to a tokenizer.json.  --points asks about every code point in turn.
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
        self.runs, self.bad = 0, 0

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


def compare_json(name, theirs, ours, texts, report):
    for text in texts:
        theirs.encode_special_tokens = False
        want = theirs.encode(text).ids
        report.check(name, "ids", text, want, lambda: ours.encode(text, SPECIAL | BOS))
        want = theirs.encode(text, add_special_tokens=False).ids
        report.check(name, "ids between the ends", text, want, lambda: ours.encode(text, SPECIAL))
        for kind in (HIDDEN, SHOWN):
            shown = theirs.decode(want, skip_special_tokens=kind == HIDDEN)
            # there, bytes of the alphabet in an added token, or of a run that is not UTF-8, are lost
            if "\ufffd" in shown:
                continue
            report.check(name, "decoding" + (" with special tokens" if kind == SHOWN else ""), text, shown,
                         lambda: lossy(ours.decode(want, kind)))
        theirs.encode_special_tokens = True
        want = theirs.encode(text, add_special_tokens=False).ids
        report.check(name, "ids as plain text", text, want, lambda: ours.encode(text, 0))


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


def sources(names, folder):
    """(name, path of ours, Tokenizer or SentencePieceProcessor, words of its vocabulary)"""
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
    parser.add_argument("--points", action="store_true")
    parser.add_argument("names", nargs="*")
    a = parser.parse_args()
    report, words = Report(), "the of and in to Hello WORLD value_1 x=y naïve été über 日本語 한국어 ไทย हिन्दी привет العربية".split()
    texts = module("make_tokenizer_families").TEXTS
    with tempfile.TemporaryDirectory() as folder:
        for name, path, theirs in sources(a.names, folder):
            rng, before, runs = random.Random(f"{a.seed} {name}"), report.bad, report.runs
            ours = Ours(a.pipe, path)
            json_form = isinstance(theirs, Tokenizer)
            specials = [t.content for t in theirs.get_added_tokens_decoder().values()] if json_form else \
                [theirs.IdToPiece(i) for i in range(min(20, theirs.GetPieceSize()))]
            some = texts + [random_text(rng, specials, words) for _ in range(a.texts)]
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
    print(f"{report.runs} comparisons, {report.bad} differences")
    sys.exit(report.bad > 0)


main()
