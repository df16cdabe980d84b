# Tensors that the model does not use: ignored by every tool, and said once.
model=$(data models/stories260K-hf)
text=$(data text/tinystories/tiny.utf8)
command -v python3 >/dev/null || skip "needs python3"

# Biases that config.json does not declare, a buffer of old releases, and a second tower.
mkdir m
cp "$model"/{config,tokenizer,tokenizer_config}.json m
python3 - "$model/model.safetensors" m/model.safetensors <<'END'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
size, = struct.unpack("<Q", data[:8])
head, body = json.loads(data[8:8 + size]), data[8 + size:]
for name, n in [("model.layers.0.self_attn.q_proj.bias", 64), ("model.layers.1.mlp.up_proj.bias", 172),
                ("model.layers.2.self_attn.rotary_emb.inv_freq", 4), ("vision.a", 3), ("vision.b", 3)]:
    head[name] = {"dtype": "F32", "shape": [n], "data_offsets": [len(body), len(body) + 4 * n]}
    body += struct.pack(f"<{n}f", *(0.5 for _ in range(n)))
text = json.dumps(head).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + body)
END

biases="warning: m: ignored 2 biases that config.json does not declare, as transformers does: "
biases+="'model.layers.0.self_attn.q_proj.bias', 'model.layers.1.mlp.up_proj.bias'$"
others="warning: m: a model of this architecture does not use 2 of its tensors: 'vision.a', 'vision.b'$"
# once FILE: both warnings are there, one time each.
once()
{
    expect_line "$1" "$biases"
    expect_line "$1" "$others"
    [ "$(grep -c 'warning: .*\(ignored\|does not use\)' "$1")" -eq 2 ] || fail "$(cat "$1")"
}
ppl() { "$BIN/vptq-eval" ppl -q --text "$text" --context 128 --windows 4 --format json -m "$@"; }
ppl m >with.json 2>err.txt
once err.txt
ppl "$model" >without.json 2>err.txt
[ ! -s err.txt ] || fail "$(cat err.txt)"
[ "$(json_get ppl with.json)" = "$(json_get ppl without.json)" ] || fail "$(cat with.json)"
"$BIN/vptq-eval" ppl -v --no-progress --text "$text" --windows 1 -m m >out.txt 2>err.txt
expect_line err.txt "^vptq-eval: unused tensor 'model.layers.1.mlp.up_proj.bias'$"
expect_line err.txt "^vptq-eval: unused tensor 'vision.b'$"

# Nothing copies the biases.
"$BIN/vptq-pack" -q --unpack m -o plain >out.txt 2>err.txt
once err.txt
"$BIN/vptq-pack" -q --list plain >out.txt
! grep -q 'proj.bias' out.txt || fail "$(cat out.txt)"

# A run of several stages, and a table of several rows.
"$BIN/vptq-quantize" -q -m m -c "$text" -n 16 -l 64 -k 16 -o w --tune e2e --steps 1 >out.txt 2>err.txt
once err.txt
echo '[{"name": "original", "original": true}, {"name": "a", "settings": {"centroids": 16}},
 {"name": "b", "settings": {"centroids": 32}}]' >rows.json
"$BIN/vptq-eval" ablate -q -m m -c "$text" -n 16 -l 64 --layers 0-0 -o t --text "$text" --context 64 \
    --text-windows 2 --table rows.json >out.txt 2>err.txt
once err.txt
