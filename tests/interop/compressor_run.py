#!/usr/bin/env python3
"""Compresses a model with llm-compressor, on the CPU and in float32.

    compressor_run.py MODEL IDS LENGTH OUT METHOD..      writes OUT/METHOD

IDS       int32 ids: windows of LENGTH
METHOD    awq: 4 bits in groups of 64 columns with zero points; awq-row: one group per row; awq-duo: awq with scales that
          also depend on weights, the library's default
          smooth: SmoothQuant, strength 0.8, then 8 bits per row with 8-bit activations; rtn8: without SmoothQuant
          sparse: SparseGPT, half of the weights; sparse-2:4
          rtn: 4 bits in groups of 64 columns

Statistics are those of the original, for all layers, as those of Hessian directories are.  (In the pipeline "basic" AWQ
compares outputs of rounded weights with outputs of weights rounded twice; in "sequential" codes are not used either.)
"""
import os
import sys
import warnings

warnings.filterwarnings("ignore")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
import transformers
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from llmcompressor import oneshot
from llmcompressor.core import reset_session
from llmcompressor.modifiers.pruning.sparsegpt import SparseGPTModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
from llmcompressor.pipelines.cache import IntermediatesCache

IntermediatesCache.pin_memory = lambda self, batch: None  # which needs a GPU
TOKENS = QuantizationArgs(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True)


def rounding(bits, group, symmetric, inputs=None):
    weights = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, strategy="group" if group else "channel",
                               group_size=group or None, dynamic=False, observer="minmax")
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, input_activations=inputs)
    return QuantizationModifier(config_groups={"group_0": scheme}, ignore=["lm_head"])


def recipe(method):
    if method.startswith("awq"):
        return [AWQModifier(duo_scaling=method == "awq-duo"), rounding(4, 0 if method == "awq-row" else 64, False)]
    if method == "rtn":
        return [rounding(4, 64, False)]
    w8a8 = rounding(8, 0, True, TOKENS)
    if method == "rtn8":
        return [w8a8]
    if method == "smooth":
        return [SmoothQuantModifier(smoothing_strength=0.8), w8a8]
    structure = method.partition("-")[2] or "0:0"
    return [SparseGPTModifier(sparsity=0.5, mask_structure=structure, targets=["re:.*layers.[0-9]+$"], ignore=["lm_head"])]


def main(path, ids, length, out, *methods):
    windows = torch.from_numpy(np.fromfile(ids, "<i4").astype("i8").reshape(-1, int(length)))
    batches = [{"input_ids": windows, "attention_mask": torch.ones_like(windows)}]
    for method in methods:
        reset_session()
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        oneshot(model=model, dataset=torch.utils.data.DataLoader(batches, batch_size=None), recipe=recipe(method),
                num_calibration_samples=1, max_seq_length=int(length),
                pipeline="sequential" if method.startswith("awq") else "basic")
        # in 16 bits: the type of the scales that the tools read
        model.to(torch.float16).save_pretrained(os.path.join(out, method), save_compressed=True)
        print(method, "done", flush=True)


main(*sys.argv[1:])
