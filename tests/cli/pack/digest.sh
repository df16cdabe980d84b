# --digest: one hash of a model in every form, by a second implementation as well; what changes it, what does not.
command -v python3 >/dev/null || skip "needs python3"
hf=$(data models/stories260K-hf)
text=$(data text/tinystories/tiny.utf8)
second() { "$SRC/scripts/vptq_digest.py" "$@"; }
digest() { "$BIN/vptq-pack" -q --digest "$@"; }
pack() { "$BIN/vptq-pack" -q "$@" >/dev/null; }

# expect_digest DIGEST MODEL..
expect_digest()
{
    local want=$1 model
    shift
    for model; do
        [ "$(digest "$model")" = "$want" ] || fail "$model: $(digest "$model"), expected $want"
    done
}

# expect_other DIGEST MODEL: a digest, but another one, and the second implementation finds the same.
expect_other()
{
    local found
    found=$(digest "$2")
    [ "$found" != "$1" ] || fail "$2: the same digest"
    [ "$(second "$2")" = "$found" ] || fail "$2: $found, but $(second "$2") by vptq_digest.py"
}

"$BIN/vptq-hessian" -q -m "$hf" -c "$text" -n 4 -l 128 -o h >/dev/null
quantize() { "$BIN/vptq-quantize" -q -m "$hf" -H h --kmeans-iterations 3 --sweeps 1 --refits 1 "$@"; }

# Every form of a model: permutation absorbed, stored, outliers, another type.
for settings in "-v 4 -k 16" "-v 4 -k 16 -r 8 -g 2 --outliers 5:4:16 --codebook-grid int8" \
    "-v 6 -k 16 -r 8 -g 4 --outliers 5:4:16 --dtype bf16"; do
    rm -rf work dir shards renamed one.vptq head
    # shellcheck disable=SC2086 # several options
    quantize -o work $settings >/dev/null
    want=$(digest work)
    [[ $want =~ ^vptq1:[0-9a-f]{64}$ ]] || fail "not a digest: $want"
    pack work -o dir
    [ "$(second dir)" = "$want" ] || fail "vptq_digest.py: $(second dir), expected $want"
    [ "vptq1:$(second dir --text | sha256sum | cut -d' ' -f1)" = "$want" ] || fail "vptq_digest.py --text"
    pack work -o shards --shard-size 32K
    [ "$(find shards -name '*.safetensors' | wc -l)" -gt 2 ] || fail "two shards at most"
    pack work -o one.vptq --level 19
    pack work -o head --lm-head
    grep -a -q lm_head.weight head/model.safetensors || fail "no head is stored"
    cp -r shards renamed
    rm renamed/model.safetensors.index.json renamed/SHA256SUMS renamed/tokenizer.json
    n=99
    for file in renamed/*.safetensors; do
        mv "$file" "renamed/$((n--)).safetensors"
    done
    expect_digest "$want" work dir shards one.vptq head renamed
done
digest -t 1 work >one.txt
digest -t 2 work >two.txt
expect_same one.txt two.txt
digest dir --format json >out.json
[ "$(json_get digest out.json)" = "$want" ] || fail "digest in JSON"
[ "$(json_get matrices out.json)" = 35 ] || fail "35 matrices expected"
[ "$(json_get tensors out.json)" = "$(second dir --text | grep -c ^tensor)" ] || fail "tensors in JSON"
[ "$(json_get model out.json)" = dir ] || fail "model in JSON"
pack dir --dtype f16 -o f16 2>err.txt
expect_other "$want" f16

# Neither the order of keys nor other keys of config.json matter, nor the order of tensors.
python3 - <<'PY'
import json, struct
def turned(x):
    return dict(reversed([(k, turned(v)) for k, v in x.items()])) if isinstance(x, dict) else x
config = turned(json.load(open("dir/config.json")))
config["torch_dtype"], config["note"] = "float32", [1, 2]
import os; os.mkdir("turned")
json.dump(config, open("turned/config.json", "w"))
data = open("dir/model.safetensors", "rb").read()
size = struct.unpack("<Q", data[:8])[0]
header, body, out = json.loads(data[8:8 + size]), data[8 + size:], {"__metadata__": {"note": "other"}}
new = b""
for name in sorted((n for n in header if n != "__metadata__"), reverse=True):
    begin, end = header[name]["data_offsets"]
    out[name] = dict(header[name], data_offsets=[len(new), len(new) + end - begin])
    new += body[begin:end]
text = json.dumps(out).encode()
text += b" " * (-len(text) % 8)
open("turned/w.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + new)
PY
expect_digest "$want" turned

# A flipped bit anywhere in the weights, another name, another shape of the same bytes.
size=$(wc -c <turned/w.safetensors)
for at in 1 20000 $((size / 2)); do
    rm -rf other
    cp -r turned other
    byte=$(od -An -tu1 -j $((size - at)) -N 1 turned/w.safetensors)
    # shellcheck disable=SC2059
    printf "\\x$(printf %x $((byte ^ 1)))" | dd of=other/w.safetensors bs=1 seek=$((size - at)) conv=notrunc status=none
    expect_other "$want" other
done
# change PATTERN REPLACEMENT: in the header of other, with the same length.
change()
{
    rm -rf other
    cp -r turned other
    LC_ALL=C sed -i "s/$1/$2/" other/w.safetensors
    ! cmp -s turned/w.safetensors other/w.safetensors || fail "'$1' is not in the header"
    [ "$(wc -c <other/w.safetensors)" = "$size" ] || fail "another length"
}
change '"model.layers.1.input_layernorm\(.*\)"model.layers.0.input_layernorm' \
    '"model.layers.0.input_layernorm\1"model.layers.1.input_layernorm'
expect_other "$want" other
change '\("model.layers.0.self_attn.q_proj.weight_scale": {"dtype": "BF16", "shape":\) \[\([0-9]*\)\], ' '\1[1,\2],'
expect_other "$want" other

# Errors: one sentence, and no digest.
expect_sentence 1 "^vptq-pack: .*stories260K-hf is a Hugging Face directory, expected a packed directory, an archive or a work" \
    digest "$hf"
quantize -o part -v 4 -k 16 --layers 0-1 >/dev/null
expect_sentence 1 "^vptq-pack: part: 14 of 35 matrices are quantized; a digest needs all of them$" digest part
change '"model.norm.weight' '"model.nerm.weight'
expect_sentence 1 "^vptq-pack: other/w.safetensors: tensor 'model.norm.weight' is missing" digest other
rm -rf other
cp -r turned other
truncate -s -8 other/w.safetensors
expect_sentence 1 "^vptq-pack: other/w.safetensors: " digest other
cp one.vptq damaged.vptq
printf x | dd of=damaged.vptq bs=1 seek=5000 conv=notrunc status=none
expect_sentence 1 "^vptq-pack: damaged.vptq: " digest damaged.vptq
cp -r work bad
printf x | dd of=bad/layer_001_up_proj.safetensors bs=1 seek=2000 conv=notrunc status=none
expect_sentence 1 "^vptq-pack: bad/layer_001_up_proj.safetensors: " digest bad
expect_sentence 1 "^vptq-pack: .*nowhere" digest nowhere
expect_error 2 "^vptq-pack: --output does not go with --digest" digest work -o out
expect_error 2 "^vptq-pack: --unpack, --list, --check, --digest and --repair exclude each other" digest work --list
cp -r "$hf" moved
sed -i 's|"base_model": "[^"]*"|"base_model": "/no-such-model"|' work/quantize.json
reseal work/quantize.json digest work
expect_sentence 1 "^vptq-pack: work: its base model (--base names another): .*/no-such-model" digest work
[ "$(digest work --base moved)" = "$want" ] || fail "with --base"
