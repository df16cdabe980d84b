# A dry run for a GPU says what the run would take on one, in builds without CUDA too.
command -v python3 > /dev/null || skip "needs python3 to make a model"
truncate -s 1G hole
[ "$(du -k hole | cut -f1)" -lt 1024 ] || skip "the file system has no sparse files"
rm hole

# The shape of Llama-2-7B without numbers.
mkdir model
python3 - << 'END'
import json
layers, hidden, inter, vocab, tensors, at = 32, 4096, 11008, 32000, {}, 0
def add(name, *shape):
    global at
    size = 2
    for n in shape:
        size *= n
    tensors[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + size]}
    at += size
for l in range(layers):
    p = f"model.layers.{l}."
    for n in "qkvo":
        add(f"{p}self_attn.{n}_proj.weight", hidden, hidden)
    add(p + "mlp.gate_proj.weight", inter, hidden)
    add(p + "mlp.up_proj.weight", inter, hidden)
    add(p + "mlp.down_proj.weight", hidden, inter)
    add(p + "input_layernorm.weight", hidden)
    add(p + "post_attention_layernorm.weight", hidden)
add("model.embed_tokens.weight", vocab, hidden)
add("model.norm.weight", hidden)
add("lm_head.weight", vocab, hidden)
header = json.dumps(tensors).encode()
header += b" " * (-len(header) % 8)
with open("model/model.safetensors", "wb") as f:
    f.write(len(header).to_bytes(8, "little") + header)
    f.truncate(8 + len(header) + at)
with open("model/config.json", "w") as f:
    json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16",
               "hidden_act": "silu", "hidden_size": hidden, "intermediate_size": inter,
               "num_hidden_layers": layers, "num_attention_heads": 32, "num_key_value_heads": 32,
               "vocab_size": vocab, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
               "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": 1,
               "eos_token_id": 2}, f)
END
run() { "$BIN/vptq-quantize" -m model --dry-run -v 8 "$@"; }
predict() { run -k 4096 -r 256 --backend cuda "$@"; }

predict > cuda.txt
grep -q '^predicted on one H200: [0-9]* min [0-9]* s$' cuda.txt || fail "$(tail -n 4 cuda.txt)"
grep -q '^time: k-means [0-9]* %, residual' cuda.txt || fail "$(tail -n 4 cuda.txt)"
run -k 256 > cpu.txt # encodes a slice, which takes long with large codebooks
! grep -q predicted cpu.txt || fail "a prediction nobody asked for"

# Rows add up to the total; calibration is on top of it.
predict --format json > rows.json
python3 - << 'END'
import json
rows = [json.loads(line) for line in open("rows.json") if line.startswith('{"layer"')]
assert len(rows) == 224, len(rows)
for r in rows:
    steps = sum(r["predicted_step_seconds"].values())
    assert abs(steps - r["predicted_seconds"]) < 0.01, r
total = sum(r["predicted_seconds"] for r in rows)
said = [w for w in open("cuda.txt") if w.startswith("predicted")][0].split()
assert abs(int(said[4]) * 60 + int(said[6]) - total) <= 1.5, (said, total)
END
