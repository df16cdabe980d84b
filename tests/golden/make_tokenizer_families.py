"""Writes tokenizer_families.json: one small tokenizer per family, its tokenizer.json shaped as the
family's files are, with a vocabulary trained here; texts; the ids and decoded texts that the Python
package `tokenizers` gives for them (0.22.2; 0.23 shows normalized added tokens as the normalizer
leaves them).

    python3 tests/golden/make_tokenizer_families.py

tests/interop/check_tokenizers.py imports families() and TEXTS."""

import json
import os

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

META = "\u2581"

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog doesn't mind, it's asleep; we'll see.",
    "In 1969 the 3 astronauts flew 384,400 km there and 384,400 km back, and they've told us since.",
    "def main(argc, argv):\n    for i in range(100):\n        print(i, argv[i])\n\n    return 0\n",
    "<p>Some <b>words</b> in HTML &amp; more</p>\r\n\r\n\t\ttabs\tand   spaces",
    "Der Fuchs \u00fcber den Fl\u00fcssen, d\u00e9j\u00e0 vu, \u00bfqu\u00e9 tal?, na\u00efve caf\u00e9s, \u00c9TAT, \u0141\u00f3d\u017a",
    "\u0411\u044b\u0441\u0442\u0440\u0430\u044f \u043b\u0438\u0441\u0430 \u0438 \u043b\u0435\u043d\u0438\u0432\u0430\u044f \u0441\u043e\u0431\u0430\u043a\u0430, \u0430\u043b\u0435 \u0441\u043e\u0431\u0430\u043a\u0430 \u0441\u043f\u0438\u0442\u044c.",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3067\u3059\u3002\u65e5\u672c\u306e\u72ac\u3068\u72d0\u3002\u4e2d\u6587\u53e5\u5b50\u3002\ud55c\uad6d\uc5b4 \ubb38\uc7a5\uc785\ub2c8\ub2e4.",
    "\u0627\u0644\u062b\u0639\u0644\u0628 \u0627\u0644\u0628\u0646\u064a \u0648\u0627\u0644\u0643\u0644\u0628 \u0627\u0644\u0643\u0633\u0648\u0644 \u0e44\u0e17\u0e22 \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u0939\u093f\u0928\u094d\u0926\u0940 \u092d\u093e\u0937\u093e",
    "\U0001f600\U0001f600 \U0001f469\u200d\U0001f4bb \U0001f1e9\U0001f1ea !!! ??? ... ((())) ==== ---- // \\\\ ##",
]

TEXTS = [
    "", " ", "\n", "a", "The quick brown fox.", " The  quick   brown fox", "it's IT'S we'LL they\u2019ve I'd\u017f '\u017f",
    "In 1969 384,400 1234567 12 \u0663\u0664\u0665 \u00b2\u2167\u2460 x1y22z333",
    "for i in range(100):\n\n\n    print(i)\r\n\r\n\t\t\n  end \n ", "    ", "a" + " " * 20 + "b", "\n" * 7 + " \n \n", "\t \t\u00a0\u3000\u2003 x\u0085\u2028y",
    "e\u0301\u0323 \u00e9 \u1e69 s\u0323\u0307 \u212b \ufb01\u2460 \uac00\u1100\u1161 \u0344", "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0 \ud55c\uad6d\uc5b4 \u0e44\u0e17\u0e22 \u0939\u093f\u0928\u094d\u0926\u0940",
    "\U0001f469\u200d\U0001f4bb\U0001f1e9\U0001f1ea\U0001f600 \U00010348\U0001d11e\U000e0041\U0010fffd", "\u200b\u200d\ufeff\u0000\u0001\u007f\u0080\ufffd",
    META + "a" + META * 3 + "b " + META, "<s>The</s> <bos>fox<eos> <|endoftext|><|im_start|>user\nx<|im_end|>",
    "[INST] The [/INST]</s>  <|assistant|> \n\n fox<|end|>  \n", "<think>\n1969</think><tool_call>x", "x<|eot_id|><|begin_of_text|>y <0x41> <unk>",
    "word<sep> <sep>word <sep> _<sep> \u200d<sep> \u24b6<sep>", "  <pad>  <pad>x<pad>", "Don't 'quote' \"this\" (or that) [so] {it} #1 $2 50% a@b.c http://x.y/z?q=1&r=2",
    "\u0130stanbul \u03a3\u03a3 DZ\u01c4 \u00df\u1e9e CamelCaseWORD aB1", "fl\u00fcssen caf\u00e9s \u0141\u00f3d\u017a \u0411\u044b\u0441\u0442\u0440\u0430\u044f",
]

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
PHI4 = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|"
        r"\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
          r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def token(content, id, special=True, **more):
    return dict({"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                 "normalized": False, "special": special}, **more)


def level(prefix=False, regex=True, trim=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim, "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def template(bos=None, eos=None):
    """bos, eos: (text, id) or None."""
    ends = [[{"SpecialToken": {"id": t[0], "type_id": 0}}] if t else [] for t in (bos, eos)]
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    single = ends[0] + [sequence] + ends[1]
    return {"type": "TemplateProcessing", "single": single,
            "pair": single + ends[0] + [{"Sequence": {"id": "B", "type_id": 1}}] + ends[1],
            "special_tokens": {t[0]: {"id": t[0], "ids": [t[1]], "tokens": [t[0]]} for t in (bos, eos) if t}}


def train(normalizer, pre, size, alphabet, specials=()):
    """Vocabulary and merges of a BPE trained on CORPUS with steps of the kind that the family has."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizer
    t.pre_tokenizer = pre
    t.train_from_iterator(CORPUS * 2, trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, initial_alphabet=alphabet, special_tokens=list(specials), show_progress=False))
    model = json.loads(t.to_str())["model"]
    return model["vocab"], model["merges"]


def bpe(vocab, merges, **more):
    return dict({"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                 "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                 "vocab": vocab, "merges": merges}, **more)


def whole(model, added, normalizer, pre, post, decoder):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": pre, "post_processor": post, "decoder": decoder, "model": model}


def sequence(kind, *members):
    return {"type": "Sequence", kind: list(members)}


def byte_family(regex, added, *, normalizer=None, digits=False, bos=False, size=420, **model):
    """regex: the pattern of a Split in front of ByteLevel, None: ByteLevel's own; added: (text, options) behind the
    vocabulary; digits: one by one; bos: the first added token is put in front."""
    steps = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    before = [{"type": "Digits", "individual_digits": True}] if digits else []
    if regex:
        steps.append(pre_tokenizers.Split(Regex(regex), "isolated"))
        before.append(split({"Regex": regex}))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not regex))
    vocab, merges = train(None, pre_tokenizers.Sequence(steps), size, sorted(pre_tokenizers.ByteLevel.alphabet()))
    pre = sequence("pretokenizers", *before, level(regex=not regex)) if before else level()
    added = [token(text, len(vocab) + i, **options) for i, (text, options) in enumerate(added)]
    post = level(True, True, False)
    if bos:
        post = sequence("processors", level(True, True), template((added[0]["content"], added[0]["id"])))
    return whole(bpe(vocab, merges, **model), added, normalizer, pre, post, level(True, True))


SPM_DECODER = [{"type": "Replace", "pattern": {"String": META}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": META}


def piece_family(specials, more, normalizer, pre, decoder, bos, prefix=True, size=260):
    """specials: at the ids from 0; more: added tokens behind the vocabulary or in it."""
    norm = [normalizers.Prepend(META)] if prefix else []
    trained = train(normalizers.Sequence(norm + [normalizers.Replace(" ", META)]),
                    pre_tokenizers.Split(META, "merged_with_next"), size,
                    sorted(set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,".replace(" ", META))))
    vocab = {t: i for i, t in enumerate(specials)}
    for b in range(256):
        vocab[f"<0x{b:02X}>"] = len(vocab)
    for t in sorted(trained[0], key=trained[0].get):
        vocab.setdefault(t, len(vocab))
    merges = trained[1]
    for n in (2, 3, 4, 8):  # runs of spaces and ends of lines, as the families have
        for c in (META, "\n"):
            if c * n not in vocab:
                vocab[c * n] = len(vocab)
                merges.append([c * (n // 2), c * (n - n // 2)])
    if "\n" not in vocab:
        vocab["\n"] = len(vocab)
    added = [token(t, i) for i, t in enumerate(specials)]
    behind = len(vocab)
    for content, options in more:
        known = content in vocab
        added.append(token(content, vocab[content] if known else behind, **options))
        behind += not known
    added.sort(key=lambda a: a["id"])
    model = bpe(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return whole(model, added, normalizer, pre, template((bos, vocab[bos])), decoder)


def families():
    """name -> what its tokenizer.json holds."""
    out = {}
    plain = {"special": False}

    def special(*texts):
        return [(t, {}) for t in texts]

    out["gpt2"] = byte_family(None, [("<|endoftext|>", {"normalized": True})])
    out["smollm2"] = byte_family(None, special("<|endoftext|>", "<|im_start|>", "<|im_end|>") + [("<sep>", {"single_word": True})],
                                 digits=True, unk_token="<|endoftext|>")
    out["llama3"] = byte_family(LLAMA3, special("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"), bos=True, ignore_merges=True)
    out["qwen2"] = byte_family(QWEN2, special("<|endoftext|>", "<|im_start|>", "<|im_end|>") +
                               [(t, plain) for t in ("<tool_call>", "<think>", "</think>")], normalizer={"type": "NFC"})
    out["phi4"] = byte_family(PHI4, special("<|endoftext|>") + [("<|im_start|>", {"lstrip": True, "rstrip": True}),
                                                                ("<|im_end|>", {"rstrip": True})])
    out["tekken"] = byte_family(TEKKEN, special("<s>", "</s>", "[INST]", "[/INST]", "<pad>"), bos=True, ignore_merges=True)
    legacy = sequence("normalizers", {"type": "Prepend", "prepend": META}, SPACES)
    three = ["<unk>", "<s>", "</s>"]
    decode = sequence("decoders", *SPM_DECODER, STRIP)
    out["llama2"] = piece_family(three, [("<pad>", {"lstrip": True, "rstrip": True}), ("<sep>", {"special": False, "normalized": True})],
                                 legacy, None, decode, "<s>")
    out["mistral1"] = piece_family(three, [], legacy, None, decode, "<s>")
    first = {"type": "Metaspace", "replacement": META, "prepend_scheme": "first", "split": False}
    out["mistral3"] = piece_family(three + ["[INST]", "[/INST]"], [("<sep>", {"single_word": True, "special": False})],
                                   None, first, decode, "<s>")
    right = {"rstrip": True}
    out["phi3"] = piece_family(three, [("<|endoftext|>", {}), ("<|assistant|>", right), ("<|end|>", right)], legacy, None, decode, "<s>")
    runs = [(c * n, plain) for n in (2, 3, 4, 8) for c in ("\n", META)]
    out["gemma"] = piece_family(["<pad>", "<eos>", "<bos>", "<unk>"], runs + [("<b>", plain)], SPACES,
                                split({"String": " "}, "MergedWithPrevious"), sequence("decoders", *SPM_DECODER), "<bos>", prefix=False)
    return out


def results(tokenizer, texts):
    """Ids with special tokens in the text (and at its ends), without; texts of the first with and without them."""
    out = []
    for text in texts:
        tokenizer.encode_special_tokens = False
        ids = tokenizer.encode(text).ids
        row = {"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=True),
               "shown": tokenizer.decode(ids, skip_special_tokens=False)}
        tokenizer.encode_special_tokens = True
        row["plain"] = tokenizer.encode(text, add_special_tokens=False).ids
        out.append(row)
    return out


def main():
    out = {"texts": TEXTS, "families": {}}
    for name, tokenizer in families().items():
        rows = results(Tokenizer.from_str(json.dumps(tokenizer)), TEXTS)
        out["families"][name] = {"tokenizer": tokenizer, "rows": rows}
    path = os.path.join(os.path.dirname(__file__), "tokenizer_families.json")
    with open(path, "w", encoding="utf8") as f:
        json.dump(out, f, separators=(",", ":"), ensure_ascii=False)
        f.write("\n")


if __name__ == "__main__":
    main()
