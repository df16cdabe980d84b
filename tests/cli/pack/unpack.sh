# Any model to a plain Hugging Face directory.
hf=$(data models/stories260K-hf)
bin=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
unpack() { "$BIN/vptq-pack" -q --unpack "$@"; }
ppl()
{
    "$BIN/vptq-eval" ppl -q -m "$1" --text "$text" --documents '<|endoftext|>' \
        --document-limit 4 --context 512 --format json > ppl.json
    json_get ppl ppl.json
}

# Without rounding nothing changes, whatever the file was.
unpack "$bin" --tokenizer "$tok" -o from_bin --dtype f32 --format json > out.json
[ "$(json_get total_bytes out.json)" = "$(cat from_bin/* | wc -c)" ] || fail "total_bytes"
"$BIN/vptq-eval" ppl -q -m "$bin" --tokenizer "$tok" --text "$text" --documents '<|endoftext|>' \
    --document-limit 4 --context 512 --format json > ppl.json
want=$(json_get ppl ppl.json)
[ "$(ppl from_bin)" = "$want" ] || fail "unpacked llama2.c model: $(ppl from_bin), not $want"
unpack "$hf" -o f32 --dtype f32 > /dev/null
[ "$(ppl f32)" = "$(ppl "$hf")" ] || fail "unpacked as f32: $(ppl f32), not $(ppl "$hf")"
expect_same "$hf/tokenizer.json" f32/tokenizer.json
expect_line f32/config.json '"torch_dtype": "float32"'

# The types: f16 by default, and what was f16 stays what it was.
unpack "$hf" -o f16 > /dev/null
expect_line f16/config.json '"torch_dtype": "float16"'
[ "$(ppl f16)" = "$(ppl "$hf")" ] || fail "an f16 model changed when unpacked to f16"
unpack f16 -o again > /dev/null
expect_same f16 again
unpack "$hf" -o bf16 --dtype bf16 > /dev/null
expect_near "$(ppl bf16)" "$want" 0.02
"$BIN/vptq-pack" -q --list bf16 --format json > list.json
! grep -q '"dtype": "F16"' list.json || fail "F16 tensors in a bf16 directory"

# A GGUF with its own tokenizer.
gguf=$(find "$(dirname "$(dirname "$hf")")/golden/gguf" -name '*stories*f16*.gguf' 2> /dev/null |
    sort | head -n 1)
if [ -n "$gguf" ]; then
    unpack "$gguf" -o from_gguf > /dev/null
    "$BIN/vptq-pack" -q --check from_gguf > check.txt
    expect_line check.txt "0 errors"
fi
no_leftovers .
