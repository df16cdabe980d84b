#!/usr/bin/env python3
"""Compares loading and encoding with the Python package `tokenizers`: alternating, one core, processor seconds.

    python3 tests/bench/bench_tokenizer.py DATA [--rounds N]

DATA is the data directory; $PROGRAM the program bench_tokenizer.  Tokenizers: those of Llama 3 and Qwen 3 (9 and
11 MB), and Llama 2's as a tokenizer.json where sentencepiece is installed, too.  Each round runs ours (best of
three passes) and the package (best of two, encode_batch_fast, which computes no offsets, without threads) one
after the other, each in a process of its own; what is compared is the best of the rounds."""
import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time

META = "\u2581"


def theirs(path, texts):
    """In a process of its own: one object per row, as ours prints them."""
    from tokenizers import Tokenizer
    start = time.process_time()
    tokenizer = Tokenizer.from_file(path)
    tokenizer.encode_special_tokens = True
    yield {"load_seconds": time.process_time() - start}
    for name in texts:
        with open(name, encoding="utf8", newline="") as f:
            text = f.read()
        for way, parts in (("whole", [text]), ("lines", keep_ends(text))):
            seconds = []
            for _ in range(2):
                start = time.process_time()
                encoded = tokenizer.encode_batch_fast(parts, add_special_tokens=False)
                seconds.append(time.process_time() - start)
            yield {"text": os.path.basename(name), "way": way, "ids": sum(len(e) for e in encoded),
                   "mb_per_second": 1e-6 * len(text.encode()) / min(seconds)}


def keep_ends(text):
    """Lines with the "\\n" at their ends, and no other end of a line."""
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return [line for line in lines if line]


def run(command, environment=None):
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout
    return [json.loads(line) for line in out.splitlines()]


def llama2(model):
    """tokenizer.json of a SentencePiece model: the merges that its scores imply."""
    import sentencepiece
    p = sentencepiece.SentencePieceProcessor(model_file=model)
    vocab = {p.IdToPiece(i): i for i in range(p.GetPieceSize())}
    merges = []
    for piece, i in vocab.items():
        if not (p.IsControl(i) or p.IsUnknown(i) or p.IsByte(i)):
            cuts = ((piece[:k], piece[k:]) for k in range(1, len(piece)))
            merges += [(-p.GetScore(i), i, vocab[a], a, b) for a, b in cuts if a in vocab and b in vocab]
    special = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True} for i, t in enumerate(("<unk>", "<s>", "</s>"))]
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": META}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "pre_tokenizer": None,
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": META}, spaces]},
            "post_processor": None, "decoder": None,
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                      "vocab": vocab, "merges": [[m[3], m[4]] for m in sorted(merges)]}}


def prepare(data, folder):
    """Paths of tokenizer.json files by name."""
    paths = {}
    for name in ("llama2", "llama3", "qwen3"):
        os.mkdir(os.path.join(folder, name))
        paths[name] = os.path.join(folder, name, "tokenizer.json")
        if name != "llama2":
            with lzma.open(os.path.join(data, "tokenizers", name, "tokenizer.json.xz")) as packed:
                text = packed.read().decode()
        else:
            try:
                text = json.dumps(llama2(os.path.join(data, "tokenizers/llama2/tokenizer.model")), ensure_ascii=False)
            except ImportError:
                print("llama2 left out: no sentencepiece")
                del paths[name]
                continue
        with open(paths[name], "w", encoding="utf8") as f:
            f.write(text)
    return paths


def compare(name, path, texts, rounds):
    single = dict(os.environ, TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")
    best = [None, None]
    for _ in range(rounds):
        sides = (run([os.environ["PROGRAM"], "--json", path] + texts),
                 run([sys.executable, __file__, "--theirs", path] + texts, single))
        for side, rows in enumerate(sides):
            if best[side] is None:
                best[side] = rows
            for a, b in zip(best[side], rows):
                for key, pick in (("load_seconds", min), ("mb_per_second", max)):
                    if key in a:
                        a[key] = pick(a[key], b[key])
    ours, other = (b[0]["load_seconds"] for b in best)
    print(f"| {name} | loading, s | {ours:.3f} | {other:.3f} | {other / ours:.1f} |")
    for a, b in zip(best[0][1:], best[1][1:]):
        if a["ids"] != b["ids"]:
            sys.exit(f"{name}, {a['text']}, {a['way']}: {a['ids']} ids, tokenizers has {b['ids']}")
        ours, other = a["mb_per_second"], b["mb_per_second"]
        print(f"| {name} | {a['text']}, {a['way']}, MB/s | {ours:.1f} | {other:.2f} | {ours / other:.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    texts = [os.path.join(a.data, "text", t) for t in ("wikitext2/wiki.test.raw", "calib/c4.utf8")]
    print("| tokenizer | | vptq | tokenizers | ratio |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name, path in prepare(a.data, folder).items():
            compare(name, path, texts, a.rounds)


if sys.argv[1:2] == ["--theirs"]:
    for row in theirs(sys.argv[2], sys.argv[3:]):
        print(json.dumps(row))
else:
    main()
