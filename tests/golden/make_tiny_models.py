#!/usr/bin/env python3
"""Makes tiny random models of every family with the logits that `transformers` computes.

    python3 tests/golden/make_tiny_models.py [family ...]      writes tests/golden/tiny_FAMILY/

Weights are drawn so that attention is far from uniform and every bias, norm, window and RoPE
scaling changes the logits visibly: a reader that drops one of them fails.  The logits are
float32 (eager attention) over the stored values; logits_N.npy has those of the first N tokens
alone, where RoPE depends on the length."""
import json
import os
import shutil
import sys

import numpy as np
import torch
import transformers
from transformers import (Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM,
                          Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, MixtralConfig, MixtralForCausalLM, Phi3Config,
                          Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen2MoeConfig,
                          Qwen2MoeForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig,
                          Qwen3MoeForCausalLM, Starcoder2Config, Starcoder2ForCausalLM)

COMMON = dict(vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
              bos_token_id=1, eos_token_id=2, attn_implementation="eager")
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=16.0,
              original_max_position_embeddings=16, rope_theta=10000.0)
LONGROPE = dict(rope_type="longrope", short_factor=[1.0, 1.25, 1.5],
                long_factor=[1.1, 2.5, 6.0], rope_theta=10000.0)
# The root of 48 is not a bfloat16 number.
GEMMA = dict(hidden_size=48, intermediate_size=32, head_dim=8, sliding_window=8,
             query_pre_attn_scalar=12)
FAMILIES = {
    "llama3": (LlamaConfig, LlamaForCausalLM, torch.float32,
               dict(tie_word_embeddings=False, rope_scaling=LLAMA3, rope_theta=10000.0)),
    "mistral": (MistralConfig, MistralForCausalLM, torch.bfloat16,
                dict(tie_word_embeddings=False, sliding_window=8, head_dim=8)),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, torch.float16,
              dict(tie_word_embeddings=True, use_sliding_window=True, sliding_window=6,
                   max_window_layers=1)),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, torch.float16,
              dict(tie_word_embeddings=True, head_dim=16)),
    "phi3": (Phi3Config, Phi3ForCausalLM, torch.bfloat16,
             dict(sliding_window=8, pad_token_id=0)),
    "phi4": (Phi3Config, Phi3ForCausalLM, torch.bfloat16,
             dict(tie_word_embeddings=True, partial_rotary_factor=0.75, rope_scaling=LONGROPE,
                  original_max_position_embeddings=24, pad_token_id=0)),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM, torch.bfloat16,
               dict(**GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=5.0)),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, torch.bfloat16,
               dict(**GEMMA, num_hidden_layers=3,
                    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                    rope_parameters=dict(
                        sliding_attention=dict(rope_type="default", rope_theta=100.0),
                        full_attention=dict(rope_type="linear", factor=4.0,
                                            rope_theta=10000.0)))),
    "mixtral": (MixtralConfig, MixtralForCausalLM, torch.bfloat16,
                dict(intermediate_size=24, num_local_experts=4, num_experts_per_tok=2,
                     tie_word_embeddings=False)),
    "qwen2moe": (Qwen2MoeConfig, Qwen2MoeForCausalLM, torch.bfloat16,
                 dict(num_hidden_layers=4, num_experts=4, num_experts_per_tok=3,
                      moe_intermediate_size=16, shared_expert_intermediate_size=24,
                      mlp_only_layers=[1], decoder_sparse_step=1, norm_topk_prob=False,
                      tie_word_embeddings=True)),
    "qwen3moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, torch.bfloat16,
                 dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                      decoder_sparse_step=2, norm_topk_prob=True, head_dim=8,
                      tie_word_embeddings=True)),
    "starcoder2": (Starcoder2Config, Starcoder2ForCausalLM, torch.bfloat16,
                   dict(sliding_window=8, norm_epsilon=0.05)),
}
SEEDS = {family: i + 1 for i, family in enumerate(FAMILIES)}
SEEDS["starcoder2"] = 9
SHORT = {"phi4": 20}
TOKENS = 40


def randomize(model, generator):
    gemma = model.config.model_type.startswith("gemma")
    for name, p in model.named_parameters():
        x = torch.randn(p.shape, generator=generator, dtype=torch.float32)
        if "embed" in name and gemma:
            x *= 0.15  # multiplied by the root of the hidden size
        elif p.ndim >= 2 and "embed" not in name:
            x *= (2.0 if "q_proj" in name or "k_proj" in name else 1.2) / p.shape[-1] ** 0.5
        elif name.endswith("bias"):
            x *= 0.5
        elif p.ndim == 1:
            x = 0.3 * x if gemma else 1 + 0.3 * x
        p.data = x


def make(family):
    config_class, model_class, dtype, extra = FAMILIES[family]
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny_" + family)
    shutil.rmtree(out, ignore_errors=True)
    generator = torch.Generator().manual_seed(SEEDS[family])
    model = model_class(config_class(**{**COMMON, **extra}))
    randomize(model, generator)
    model.to(dtype).save_pretrained(out)
    # Read back: a cast of the model would also have rounded its RoPE frequencies.
    model = model_class.from_pretrained(out, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    scaled = model.get_input_embeddings()
    if hasattr(scaled, "embed_scale"):  # rounded as for weights of the stored type
        scaled.embed_scale.copy_(scaled.embed_scale.to(dtype))
    ids = torch.randint(3, COMMON["vocab_size"], (1, TOKENS), generator=generator)
    with torch.no_grad():
        logits = model(ids).logits[0]
        if family in SHORT:
            short = model(ids[:, :SHORT[family]]).logits[0]
            np.save(os.path.join(out, "logits_%d.npy" % SHORT[family]),
                    short.numpy().astype("<f4"))
    ids[0].numpy().astype("<i4").tofile(os.path.join(out, "ids.i32"))
    np.save(os.path.join(out, "logits.npy"), logits.numpy().astype("<f4"))
    generation = os.path.join(out, "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)
    for entry in os.listdir(out):
        os.chmod(os.path.join(out, entry), 0o644)
    print(family, json.dumps({"transformers": transformers.__version__,
                              "torch": torch.__version__,
                              "largest": float(logits.abs().max())}))


for name in sys.argv[1:] or sorted(FAMILIES):
    make(name)
