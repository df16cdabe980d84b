"""Writes chat_demo.json: three conversations with the demo model (SmolLM2-135M-Instruct, unpacked to float16), the ids that
transformers (4.57.6) makes of them with the model's chat template, and its greedy replies in float32.

    python3 tests/golden/make_chat_demo.py DEMO_F16"""

import json
import os
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "You answer in one short sentence."}, {"role": "user", "content": "Why is the sky blue?"}],
    [{"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": "Hello Ada!"},
     {"role": "user", "content": "Write a poem about the sea, with my name in it."}],
]
NEW = 40

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
cases = []
for messages in CHATS:
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False,
                         eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.eos_token_id)[0].tolist()
    reply = out[ids.shape[1]:]
    cases.append({"messages": messages, "prompt_ids": ids[0].tolist(), "reply_ids": reply,
                  "reply": tokenizer.decode(reply, skip_special_tokens=True)})
with open(os.path.join(HERE, "chat_demo.json"), "w", encoding="utf-8") as f:
    json.dump({"new_tokens": NEW, "cases": cases}, f, ensure_ascii=False, indent=1)
    f.write("\n")
