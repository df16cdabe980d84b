#!/usr/bin/env python3
"""Makes the gradients of one block of the demo model, computed by PyTorch in float64.

    vptq-pack --unpack build/demo/model.gguf -o F16
    python3 tests/golden/make_block_gradient.py F16      writes tests/golden/gradients/smollm2_block.npy

The window is the first 24 ids of WikiText-2 (data/golden/smollm2/wikitext2_w16.i32), the block number 15, which
gets the hidden states of the blocks before it.  The array is flat, rounded to float32: what goes into the block
[tokens, hidden]; the gradient of what comes out of it; the gradient of what goes in; for every linear layer (q, k,
v, o, gate, up, down) dW u and v dW with u[i] = cos(i + 1) and v the same; the gradients of the weights of input norm
and post-attention norm."""
import json
import math
import os
import sys

import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
IDS = os.path.join(HERE, "../../../shared/data/golden/smollm2/wikitext2_w16.i32")
TOKENS, BLOCK = 24, 15
LINEAR = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
          "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
NORMS = ["input_layernorm", "post_attention_layernorm"]


def read(path):
    """The tensors of a safetensors file of float16, in float64."""
    with open(path, "rb") as f:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = f.read()
    tensors = {}
    for name, t in head.items():
        if name == "__metadata__":
            continue
        assert t["dtype"] == "F16", t
        begin, end = t["data_offsets"]
        a = np.frombuffer(data[begin:end], "<f2").reshape(t["shape"]).astype(np.float64)
        tensors[name] = torch.from_numpy(a)
    return tensors


def norm(x, weight, eps):
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def rotate(x, theta):
    """Rotary positions of [tokens, heads, dim]: the halves of a head are the pairs."""
    tokens, _, dim = x.shape
    angle = torch.arange(tokens, dtype=torch.float64)[:, None] * theta ** (
        -torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    lo, hi = x[..., :dim // 2], x[..., dim // 2:]
    return torch.cat([lo * cos - hi * sin, hi * cos + lo * sin], -1)


def block(c, w, h):
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    dim, eps = c["hidden_size"] // heads, c["rms_norm_eps"]
    x = norm(h, w["input_layernorm"], eps)
    q, k, v = (x @ w["self_attn.%s_proj" % n].T for n in "qkv")
    theta = c.get("rope_theta") or c["rope_parameters"]["rope_theta"]
    q = rotate(q.view(TOKENS, heads, dim), theta)
    k = rotate(k.view(TOKENS, kv, dim), theta).repeat_interleave(heads // kv, 1)
    v = v.view(TOKENS, kv, dim).repeat_interleave(heads // kv, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(dim)
    scores = scores.masked_fill(torch.ones(TOKENS, TOKENS).triu(1).bool(), -math.inf)
    o = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(TOKENS, -1)
    h = h + o @ w["self_attn.o_proj"].T
    x = norm(h, w["post_attention_layernorm"], eps)
    gate, up = x @ w["mlp.gate_proj"].T, x @ w["mlp.up_proj"].T
    return h + (torch.nn.functional.silu(gate) * up) @ w["mlp.down_proj"].T


def weights(tensors, layer):
    return {n: tensors["model.layers.%d.%s.weight" % (layer, n)] for n in LINEAR + NORMS}


def main(path):
    with open(os.path.join(path, "config.json")) as f:
        c = json.load(f)
    tensors = read(os.path.join(path, "model.safetensors"))
    ids = np.fromfile(IDS, "<i4", TOKENS).astype(np.int64)
    h = tensors["model.embed_tokens.weight"][torch.from_numpy(ids)]
    for layer in range(BLOCK):
        h = block(c, weights(tensors, layer), h)
    h = h.float().double().requires_grad_(True)
    dout = torch.cos(torch.arange(h.numel(), dtype=torch.float64)).view_as(h).float().double()
    w = {n: t.clone().requires_grad_(True) for n, t in weights(tensors, BLOCK).items()}
    block(c, w, h).backward(dout)
    parts = [h.detach(), dout, h.grad]
    for name in LINEAR:
        out, inp = w[name].shape
        u, v = (torch.cos(torch.arange(n, dtype=torch.float64) + 1) for n in (inp, out))
        parts += [w[name].grad @ u, v @ w[name].grad]
    parts += [w[name].grad for name in NORMS]
    flat = np.concatenate([p.numpy().ravel() for p in parts]).astype("<f4")
    np.save(os.path.join(HERE, "gradients", "smollm2_block.npy"), flat)
    print("torch", torch.__version__, flat.size, "numbers")


main(sys.argv[1])
