#!/usr/bin/env python3
"""Makes PyTorch checkpoints of the tiny models next to this file, whose weights they share: make_pytorch_models.py.

Needs: pip install torch transformers.  Writes to tests/golden/torch: qwen2.bin (torch.save of a state_dict with its
metadata, where embedding and head share a storage), mistral-0000?-of-00002.bin with mistral.index.json, and legacy.bin
in the format before PyTorch 1.6; and an input of tests/fuzz/fuzz_torch_file.c.
"""
import io
import json
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

HERE = Path(__file__).parent
OUT = HERE / "torch"


def weights(name):
    return AutoModelForCausalLM.from_pretrained(HERE / name, dtype="auto").state_dict()


tied = weights("tiny_qwen2")
assert tied["lm_head.weight"].data_ptr() == tied["model.embed_tokens.weight"].data_ptr() and tied._metadata
torch.save(tied, OUT / "qwen2.bin")

names = sorted(weights("tiny_mistral"))
state = weights("tiny_mistral")
files = {}
for shard, part in enumerate((names[:11], names[11:]), 1):
    file = f"mistral-{shard:05}-of-00002.bin"
    torch.save({n: state[n] for n in part}, OUT / file)
    files.update(dict.fromkeys(part, file))
(OUT / "mistral.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}, indent=0) + "\n")

torch.save({"x": torch.zeros(2)}, OUT / "legacy.bin", _use_new_zipfile_serialization=False)

# The pickle of a state_dict with attributes for tests/fuzz/fuzz_torch_file.c, after the bytes of its storage "0".
buffer = io.BytesIO()
torch.save(torch.nn.LayerNorm(3).state_dict(), buffer)
with zipfile.ZipFile(buffer) as z:
    pickle = z.read(next(n for n in z.namelist() if n.endswith("/data.pkl")))
(HERE.parent / "fuzz/corpus/torch_file/pickle_state").write_bytes(bytes([12]) + pickle)
