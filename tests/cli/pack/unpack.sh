# Unpacks every kind of model to a plain Hugging Face directory.
hf=$(data models/stories260K-hf)
bin=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
data text/tinystories/tiny.utf8 > /dev/null
unpack() { "$BIN/vptq-pack" -q --unpack "$@"; }
ppl() { stories ppl -m "$@"; }

# Without rounding nothing changes, whatever the input was.
unpack "$bin" --tokenizer "$tok" -o from_bin --dtype f32 --format json > out.json
[ "$(json_get total_bytes out.json)" = "$(cat from_bin/* | wc -c)" ] || fail "total_bytes"
want=$(ppl "$bin" --tokenizer "$tok")
[ "$(ppl from_bin)" = "$want" ] || fail "unpacked llama2.c model: $(ppl from_bin), not $want"
unpack "$hf" -o f32 --dtype f32 > /dev/null
[ "$(ppl f32)" = "$(ppl "$hf")" ] || fail "unpacked as f32: $(ppl f32), not $(ppl "$hf")"
expect_same "$hf/tokenizer.json" f32/tokenizer.json
expect_line f32/config.json '"torch_dtype": "float32"'

# Types: f16 by default; f16 inputs stay unchanged.
unpack "$hf" -o f16 > /dev/null
expect_line f16/config.json '"torch_dtype": "float16"'
[ "$(ppl f16)" = "$(ppl "$hf")" ] || fail "an f16 model changed when unpacked to f16"
unpack f16 -o again > /dev/null
expect_same f16 again
unpack "$hf" -o bf16 --dtype bf16 > /dev/null
expect_near "$(ppl bf16)" "$want" 0.02
"$BIN/vptq-pack" -q --list bf16 --format json > list.json
! grep -q '"dtype": "F16"' list.json || fail "F16 tensors in a bf16 directory"

# A missing tensor is an error that names it; tensors that the architecture does not use go along.
cp -r "$hf" gap
sed -i 's/model.layers.3.mlp.up_proj.weight/model.layers.3.mlp.up_proj.weighs/' gap/model.safetensors
for plan in "" --dry-run; do
    # shellcheck disable=SC2086 # may be nothing
    expect_sentence 1 "gap/model.safetensors: tensor 'model.layers.3.mlp.up_proj.weight' is missing" \
        "$BIN/vptq-pack" -q $plan --unpack gap -o whole
done
[ ! -e whole ] || fail "a model with a gap was written"
cp -r "$hf" more
sed -i 's/"num_hidden_layers": *5/"num_hidden_layers": 4/' more/config.json
unpack more -o whole > /dev/null 2> err.txt
expect_line err.txt "warning: .*a model of this architecture does not use 9 of its tensors"
"$BIN/vptq-pack" -q --list whole > list.txt
expect_line list.txt "model.layers.4.mlp.up_proj.weight "

# GGUF files of every family: the same model, the rows of q and k back in their own order.
seq 0 15 | while read -r id; do
    printf '%b' "$(printf '\\x%02x\\x00\\x00\\x00' "$id")"
done > ids.i32
for family in llama qwen2 qwen3; do
    gguf=$SRC/tests/fuzz/corpus/gguf/$family
    unpack "$gguf" -o "from_$family" --dtype f32 > /dev/null 2> err.txt
    expect_line err.txt "warning: .*/$family has no tokenizer"
    for model in "$gguf" "from_$family"; do
        "$BIN/vptq-eval" ppl -q -m "$model" --tokens ids.i32 --context 16 --format json > ids.json
        json_get ppl ids.json
    done > both.txt
    [ "$(sort -u both.txt | wc -l)" = 1 ] || fail "$family: unpacked, it is another model: $(cat both.txt)"
done
no_leftovers .
