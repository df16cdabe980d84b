#!/usr/bin/env python3
"""Does upstream's own code read what vptq-pack writes?

    vptq-pack WORK -o PACKED
    vptq-pack --unpack PACKED -o PLAIN --dtype f32
    check_upstream.py PACKED PLAIN

Loads PACKED with transformers and the vptq package (their torch path, on the CPU, in float32) and PLAIN with transformers alone. Every quantized
matrix, read off upstream's layer by giving it the identity, must equal PLAIN's weight bit for bit; logits of the two models must agree to float32
rounding.  Not part of the tests: needs torch, accelerate, transformers 4.57.x (5.x does not load the layout) and vptq 0.0.5.post1.
"""
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from vptq.layers.vqlinear import VQuantLinear


def main(packed_dir, plain_dir):
    torch.manual_seed(0)
    packed = AutoModelForCausalLM.from_pretrained(packed_dir, torch_dtype=torch.float32, device_map="cpu")
    plain = AutoModelForCausalLM.from_pretrained(plain_dir, torch_dtype=torch.float32)
    weights = dict(plain.named_modules())
    checked = different = 0
    with torch.no_grad():
        for name, layer in packed.named_modules():
            if not isinstance(layer, VQuantLinear):
                continue
            bias, layer.bias = layer.bias, None
            w = layer(torch.eye(layer.in_features)).T
            layer.bias = bias
            checked += 1
            if not torch.equal(w, weights[name].weight):
                different += 1
                print(f"{name}: {(w != weights[name].weight).sum()} weights differ")
        ids = torch.randint(0, packed.config.vocab_size, (1, 64))
        a = packed(ids).logits
        b = plain(ids).logits
    error = ((a - b).abs().max() / b.abs().max()).item()
    print(f"{checked} matrices, {different} different; logits differ by {error:.2e} of the largest")
    text = "Once upon a time, there was a little girl."
    tokens = [AutoTokenizer.from_pretrained(d)(text).input_ids for d in (packed_dir, plain_dir)]
    print("tokenizers agree" if tokens[0] == tokens[1] else "tokenizers differ")
    return 0 if checked and not different and error < 1e-5 and tokens[0] == tokens[1] else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
