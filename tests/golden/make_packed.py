#!/usr/bin/env python3
"""Makes small packed models with our tools, and the logits that upstream's loaders give for them.

    make interop                                                 makes the environment
    build/interop/venv/bin/python tests/golden/make_packed.py    writes tests/golden/packed_FAMILY/

The tiny model of each family is quantized and packed by the tools in $BIN (default build/bin) with other settings.
logits.npy is float32 [ids, vocabulary], by transformers 4.57.6; the loader of vptq 0.0.5.post1 must agree."""
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../interop"))
import upstream

BIN = os.environ.get("BIN", os.path.join(HERE, "../../build/bin"))
MODELS = {  # options of vptq-quantize, of vptq-pack
    "llama3": ("-v 4 -k 16 -r 16", "--shard-size 8K"),
    "mistral": ("-v 6 -k 32 -g 4 --outliers 10:4:16 --dtype bf16", ""),
    "qwen2": ("-v 4 -k 16 -r 8 -g 4 --outliers 10:6:16", "--lm-head"),
    "qwen3": ("-v 8 -k 64 --no-norm --no-perm --dtype bf16", ""),
}


def make(family):
    base, out = os.path.join(HERE, "tiny_" + family), os.path.join(HERE, "packed_" + family)
    quantize, pack = (options.split() for options in MODELS[family])
    given = os.path.join(base, "ids.i32")
    ids = np.fromfile(given, "<i4")
    with tempfile.TemporaryDirectory() as work:
        work = os.path.join(work, "work")
        subprocess.run([BIN + "/vptq-quantize", "-q", "-m", base, "--tokens", given, "-l", str(len(ids)), "-o", work] +
                       quantize, check=True)
        shutil.rmtree(out, ignore_errors=True)
        subprocess.run([BIN + "/vptq-pack", "-q", work, "-o", out] + pack, check=True)
    logits = upstream.logits(upstream.by_transformers(out), ids)
    if family != "qwen3":  # whose head is tied, which vptq's own loader does not do
        other = upstream.logits(upstream.by_vptq(out), ids)
        assert np.abs(logits - other).max() < 1e-5 * np.abs(logits).max()
    np.save(os.path.join(out, "logits.npy"), logits.astype("<f4"))
    shutil.copy(given, out)
    for entry in os.listdir(out):
        os.chmod(os.path.join(out, entry), 0o644)


for name in sys.argv[1:] or sorted(MODELS):
    make(name)
