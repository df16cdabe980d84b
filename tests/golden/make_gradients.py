#!/usr/bin/env python3
"""Makes the gradients of the tiny models of make_tiny_models.py, computed by PyTorch in float64.

    python3 tests/golden/make_gradients.py      writes tests/golden/gradients/

FAMILY_kl.npy     for the sum over tokens of the divergence from a teacher
llama3_nll.npy    for the sum over tokens of -ln p(next id); the last token has none
FAMILY_teacher.npy   [tokens, hidden]: the teacher's hidden states after the final norm

An array of gradients is flat, rounded to float32: the loss of every token; the gradients of the embeddings
[tokens, hidden]; for every layer those of the weights (q, k, v, o, gate, up, down), the biases of q, k
and v, input norm, post-attention norm, norms of q and k, as far as the family has them; that of the
final norm.  The teacher is the same model with other weights."""
import os

import numpy as np
import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
FAMILIES = ["llama3", "mistral", "qwen2", "qwen3"]
LINEAR = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
          "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
VECTORS = ["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias",
           "input_layernorm.weight", "post_attention_layernorm.weight",
           "self_attn.q_norm.weight", "self_attn.k_norm.weight"]


def norm(module, x):
    """RMSNorm without the detour through float32."""
    variance = x.pow(2).mean(-1, keepdim=True)
    return module.weight * x * torch.rsqrt(variance + module.variance_epsilon)


def load(family):
    path = os.path.join(HERE, "tiny_" + family)
    # "eager" would compute the softmax in float32.
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="sdpa").double().eval()
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = norm.__get__(module)
    ids = torch.from_numpy(np.fromfile(os.path.join(path, "ids.i32"), "<i4").astype(np.int64))
    return model, ids


def states(model, embeddings):
    """Hidden states after the final norm."""
    return model.model(inputs_embeds=embeddings[None]).last_hidden_state[0]


def flat(model, embeddings, losses):
    params = dict(model.named_parameters())
    model.zero_grad()
    embeddings.grad = None
    losses.sum().backward()
    parts = [losses.detach(), embeddings.grad]
    for layer in range(model.config.num_hidden_layers):
        names = [name + ".weight" for name in LINEAR] + VECTORS
        names = ["model.layers.%d.%s" % (layer, name) for name in names]
        parts += [params[name].grad for name in names if name in params]
    parts.append(params["model.norm.weight"].grad)
    return np.concatenate([p.numpy().ravel() for p in parts]).astype("<f4")


def make(family):
    model, ids = load(family)
    teacher_model, _ = load(family)
    generator = torch.Generator().manual_seed(FAMILIES.index(family) + 1)
    with torch.no_grad():
        for p in teacher_model.model.layers.parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float32)
            p.mul_(1 + 0.2 * noise.double())
        embeddings = model.model.embed_tokens(ids)
        teacher = states(teacher_model, embeddings).float()
        wanted = torch.log_softmax(model.lm_head(teacher.double()), -1)
    embeddings = embeddings.detach().requires_grad_(True)
    out = os.path.join(HERE, "gradients", family)
    os.makedirs(os.path.dirname(out), exist_ok=True)
    np.save(out + "_teacher.npy", teacher.numpy())
    logp = torch.log_softmax(model.lm_head(states(model, embeddings)), -1)
    kl = (wanted.exp() * (wanted - logp)).sum(-1)
    np.save(out + "_kl.npy", flat(model, embeddings, kl))
    print(family, "torch", torch.__version__, "transformers", transformers.__version__,
          "mean divergence %.4f" % kl.detach().mean().item())
    if family != "llama3":
        return
    logp = torch.log_softmax(model.lm_head(states(model, embeddings)), -1)
    nll = -logp[:-1].gather(-1, ids[1:, None])[:, 0]
    nll = torch.cat([nll, torch.zeros(1, dtype=nll.dtype)])
    np.save(out + "_nll.npy", flat(model, embeddings, nll))


for name in FAMILIES:
    make(name)
