"""Writes tokenizer_steps.json: small tokenizers, one per feature of the format, with texts and
the ids that the Python package `tokenizers` gives for them (0.22.2; any version since 0.20), and where a
case is about decoding, the texts of these ids.

    python3 tests/golden/make_tokenizer_steps.py

Two vocabularies are shared by all cases: "bytes" (byte-level) and "pieces" (SentencePiece
style); a case names its base and what it puts in place of the base's keys."""

import copy
import json
import os

from tokenizers import Tokenizer

META = "\u2581"


def byte_alphabet():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, n = {}, 0
    for b in range(256):
        if b in keep:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + n)
            n += 1
    return table


def grow(vocab, merges, words, symbols):
    """Adds the merges that build each word from the left."""
    for word in words:
        parts = symbols(word)
        left = parts[0]
        for right in parts[1:]:
            if left + right not in vocab:
                vocab[left + right] = len(vocab)
                merges.append([left, right])
            left += right


def bytes_base():
    table = byte_alphabet()
    vocab = {table[b]: b for b in range(256)}
    merges = []
    words = ["the", " the", " then", " a", " an", "  ", "    ", "in", "12", "123", "ing", "\n\n", "é", " é"]
    grow(vocab, merges, words, lambda w: [table[b] for b in w.encode()])
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": False, "vocab": vocab, "merges": merges},
    }


def pieces_base():
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for b in range(256):
        vocab[f"<0x{b:02X}>"] = len(vocab)
    for c in META + "abcdefghijklmnopqrstuvwxyz.,!19é":
        vocab[c] = len(vocab)
    merges = []
    words = [META * 2, META * 4, META + "the", META + "then", META + "a", "in", "ing", "the", "19"]
    grow(vocab, merges, words, list)
    special = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for i, t in enumerate(["<unk>", "<s>", "</s>"])]
    return {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": META},
            {"type": "Replace", "pattern": {"String": " "}, "content": META}]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": META}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
                  "ignore_merges": False, "vocab": vocab, "merges": merges},
    }


# What patterns name and what they mean of it in Oniguruma.
PATTERNS = {
    "classes": r"\w+|\d|\s", "not classes": r"\W+|[^\w\d\S]|\S\D", "bounds": r"\b|\B(?=t)", "empty": r"x*",
    "posix": r"[[:punct:]]|[[:space:]]+|[[:digit:]]|[[:word:]]+",
    "posix more": r"[[:upper:]][[:lower:]]*|[[:alpha:]]+|[^[:alnum:]]",
    "ends": r"^.|.$|\A\s|\S\z", "any": r"a.t|.\n", "possessive": r"a++b|(?>x+)|\s?+\p{L}+?", "lookbehind": r"(?<=t)h|(?<!a)b|(?<![\w])[a-c]",
    "caseless": r"(?i:THE|\u017f|k|\u00c9)+", "properties": r"\p{Lu}|\p{^N}\p{Mn}|\P{L}\p{P}|\p{Han}+|\p{Zs}",
}

TEXTS = [
    "", " ", "  ", "the", " the then", "the  then   a", "a b  c    d     e", "the\n\nthen\n",
    "1234 12 1 1a2\u00b2\u0663\u2167", "it's THE'S we'll I'M", "e\u0301 \u00e9 \u212b \ufb01\u2460",
    "tab\tand\u00a0nbsp\u3000wide \u180e \u2028.", "<s>the</s> a<unk>", "x <L> y<L>z", "a_<W>_b <W> c<W>",
    "e\u0301<N\u00e9>x <Ne\u0301>y", "foo<u><u>bar <u", "<u>        x    x x      x",  "\u65e5\u672c\u8a9e the \U0001F600!", META + "a" + META * 3 + " in",
    "..!!.,, a.b.c", "\u0e44\u0e17\u0e22 ing", "aXbXXc", " lead and trail ",
    "((a) xx [b]) (c", "E\u0301\u0130\u03a3 DZ\u01c4 \u1e9e\u24b6\u2160 \u212a\u017f", "\u0301a\u0323\u0301 \u20dd", "a\u200db_c\u203fd\u24b6 $+<=>^`|~\u00a7\u2014\u201e",
    "\u3359\u65e5\u3005\u30fc\u3001\u32a4", "a\u0085b\u000bc\r\nd\u1680e\u2060",
]


def added(first, **_):
    def token(k, content, **more):
        return dict({"id": first + k, "content": content, "single_word": False, "lstrip": False,
                     "rstrip": False, "normalized": False, "special": False}, **more)

    return [token(0, "<u>"), token(1, "<L>", lstrip=True, rstrip=True), token(2, "<W>", single_word=True),
            token(3, "<N\u00e9>", normalized=True), token(4, "<u", special=True)]


def added_spaces(k, base):
    """Tokens that lie in what another one swallows."""
    options = [("<u>", {"rstrip": True}), ("   ", {"rstrip": True}), ("x ", {"lstrip": True, "rstrip": True})][k]
    token = {"id": len(base()["model"]["vocab"]) + k, "content": options[0], "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": False}
    return dict(token, **options[1])


def cases():
    prepend = {"type": "Prepend", "prepend": META}
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": META}

    def norms(*n):
        return {"type": "Sequence", "normalizers": list(n)}

    def pre(*p):
        return {"type": "Sequence", "pretokenizers": list(p)}

    def level(prefix, regex):
        return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}

    def split(pattern, behavior, invert):
        return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}

    yield "plain", "bytes", {}
    yield "added", "bytes", {"added": True}
    yield "added spaces", "bytes", {"added_tokens": [added_spaces(m, bytes_base) for m in range(3)]}
    yield "added nfc", "bytes", {"added": True, "normalizer": {"type": "NFC"}}
    yield "prefix, regex", "bytes", {"pre_tokenizer": level(True, True)}
    yield "prefix, no regex", "bytes", {"pre_tokenizer": level(True, False)}
    yield "whole words", "bytes", {"pre_tokenizer": level(False, False), "model": {"ignore_merges": True}}
    yield "digits alone", "bytes", {"pre_tokenizer": pre({"type": "Digits", "individual_digits": True}, level(False, True))}
    yield "digits in runs", "bytes", {"pre_tokenizer": pre({"type": "Digits", "individual_digits": False}, level(True, False))}
    for behavior in ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"):
        for invert in (False, True):
            yield (f"split {behavior} {invert}", "bytes",
                   {"pre_tokenizer": pre(split({"Regex": "\\s+|\\p{N}|^a|t$"}, behavior, invert), level(False, False))})
            yield (f"string {behavior} {invert}", "bytes",
                   {"pre_tokenizer": pre(split({"String": "."}, behavior, invert), level(False, True))})
    for name, pattern in PATTERNS.items():
        yield name, "bytes", {"pre_tokenizer": pre(split({"Regex": pattern}, "Isolated", False), level(False, False))}
    yield ("empty matches to the left", "bytes",
           {"pre_tokenizer": pre(split({"Regex": "x*|(?=b)"}, "MergedWithPrevious", False), level(False, False))})
    yield ("empty matches in runs", "bytes",
           {"pre_tokenizer": pre(split({"Regex": "\\b"}, "Contiguous", True), level(False, False))})
    for name in ("Whitespace", "WhitespaceSplit"):
        yield name, "bytes", {"pre_tokenizer": pre({"type": name}, level(False, False))}
    for behavior in ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"):
        yield (f"punctuation {behavior}", "bytes",
               {"pre_tokenizer": pre({"type": "Punctuation", "behavior": behavior}, level(True, False))})
    for delimiter in ".\u00e9":
        yield (f"delimiter {delimiter}", "bytes",
               {"pre_tokenizer": pre({"type": "CharDelimiterSplit", "delimiter": delimiter}, level(False, True))})
    yield ("llama 3", "bytes", {"pre_tokenizer": pre(split({"Regex":
           "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
           "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}, "Isolated", False), level(False, False))})
    yield "no merges", "bytes", {"model": {"merges": []}}
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        yield form, "bytes", {"normalizer": {"type": form}}
    lower, accents = {"type": "Lowercase"}, {"type": "StripAccents"}
    for left in (False, True):
        for right in (False, True):
            yield (f"strip {left} {right}", "bytes", {"added": True, "normalizer": {
                "type": "Strip", "strip_left": left, "strip_right": right}})
    yield "lower", "bytes", {"added": True, "normalizer": lower}
    yield "accents", "bytes", {"normalizer": norms({"type": "NFD"}, accents, lower)}
    yield "marks", "bytes", {"normalizer": accents}
    yield "pieces", "pieces", {}
    yield "pieces added", "pieces", {"added": True}
    yield "unknown", "pieces", {"model": {"byte_fallback": False}}
    yield "unknown apart", "pieces", {"model": {"byte_fallback": False, "fuse_unk": False}}
    yield "squeeze", "pieces", {"normalizer": norms(
        {"type": "Replace", "pattern": {"Regex": "\\A +| +\\z"}, "content": ""},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}, prepend, spaces)}
    yield "replace longer", "pieces", {"normalizer": norms({"type": "Replace", "pattern": {"String": "X"}, "content": " the"}, prepend, spaces)}
    merges = bytes_base()["model"]["merges"]
    yield "merges named twice", "bytes", {"model": {"merges": merges + merges[:len(merges) // 2]}}
    for scheme in ("always", "first", "never"):
        for cut in (True, False):
            yield (f"metaspace {scheme} {cut}", "pieces",
                   {"added": True, "normalizer": None, "pre_tokenizer":
                    {"type": "Metaspace", "replacement": META, "prepend_scheme": scheme, "split": cut}})
    first = {"type": "Metaspace", "replacement": META, "prepend_scheme": "first", "split": True}
    for name, norm in (("strip", {"type": "Strip", "strip_left": True, "strip_right": False}), ("marks", accents),
                       ("nothing", {"type": "Replace", "pattern": {"Regex": "^[\\s(<]"}, "content": ""}),
                       ("less", {"type": "Replace", "pattern": {"String": " "}, "content": ""})):
        yield f"metaspace behind {name}", "pieces", {"added": True, "normalizer": norm, "pre_tokenizer": first}
    yield "gemma", "pieces", {"normalizer": spaces, "pre_tokenizer": split({"String": " "}, "MergedWithPrevious", False)}
    for scheme in ("always", "first", "never"):
        yield (f"metaspace decoder {scheme}", "pieces", {"normalizer": None, "pre_tokenizer": first, "decoder": norms_of(
            "decoders", {"type": "ByteFallback"}, {"type": "Metaspace", "replacement": META, "prepend_scheme": scheme, "split": True})})
    yield ("no strip", "pieces", {"decoder": norms_of("decoders", {"type": "Replace", "pattern": {"String": META}, "content": " "},
                                                     {"type": "ByteFallback"}, {"type": "Fuse"})})
    yield "metaspace old", "pieces", {"normalizer": None, "pre_tokenizer":
                                      {"type": "Metaspace", "replacement": META, "add_prefix_space": True}}


def norms_of(key, *members):
    return {"type": "Sequence", key: list(members)}


def build(base, change):
    j = copy.deepcopy(base)
    for key, value in change.items():
        if key == "model":
            j["model"].update(value)
        elif key == "added":
            j["added_tokens"] += added(len(j["model"]["vocab"]))
        else:
            j[key] = value
    return j


def main():
    bases = {"bytes": bytes_base(), "pieces": pieces_base()}
    out = {"bases": bases, "texts": TEXTS, "cases": []}
    for name, base, change in cases():
        j = build(bases[base], change)
        tokenizer = Tokenizer.from_str(json.dumps(j))
        ids = [tokenizer.encode(t, add_special_tokens=False).ids for t in TEXTS]
        case = {"name": name, "base": base, "ids": ids}
        case["change"] = {k: j["added_tokens"] if k == "added" else v for k, v in change.items()}
        if "added" in case["change"]:
            case["change"]["added_tokens"] = case["change"].pop("added")
        if "decoder" in change:
            case["decoded"] = [tokenizer.decode(i) for i in ids]
        out["cases"].append(case)
    path = os.path.join(os.path.dirname(__file__), "tokenizer_steps.json")
    with open(path, "w", encoding="utf8") as f:
        json.dump(out, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
