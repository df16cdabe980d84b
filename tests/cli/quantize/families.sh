# Families with arithmetic or tensors of their own: perplexity against transformers, and every form of
# a quantized model.
long_if_instrumented
golden=$SRC/tests/golden
ppl() { # DIR OPTIONS..
    local model=$1
    shift
    "$BIN/vptq-eval" ppl -m "$model" --tokens ids --context 40 -q --format json "$@" | json_get ppl
}

# Tokens of one letter each.
vocab=$(printf '%s\n' {A..Z} {a..v} | awk '{ printf "%s\"%s\": %d", (NR > 1 ? ", " : ""), $1, NR - 1 }')
echo "{\"model\": {\"type\": \"BPE\", \"vocab\": {$vocab}, \"merges\": []}}" > tokenizer.json

# perplexity of transformers' float32 logits over the 40 tokens of the model
while read -r family want architecture; do
    rm -rf -- work* hf archive.vptq plain* h seq
    model=$golden/tiny_$family
    cp "$model/ids.i32" ids
    expect_near "$(ppl "$model")" "$want" 1e-5
    "$BIN/vptq-eval" ppl -m "$model" --tokens ids --context 40 > out.txt 2> err.txt
    ! grep -q warning err.txt || fail "$family: $(cat err.txt)" # all tensors are known
    "$BIN/vptq-hessian" -m "$model" --tokens ids -n 1 -l 40 -o h -q
    "$BIN/vptq-quantize" -m "$model" -H h -v 4 -k 16 -r 4 -o work -q > out.txt
    quantized=$(ppl work)
    for to in hf archive; do
        [ $to = hf ] && out=hf || out=archive.vptq
        "$BIN/vptq-pack" work -o "$out" --to $to -q > out.txt 2> err.txt
        [ "$(ppl "$out")" = "$quantized" ] || fail "$family: $out has another perplexity than $quantized"
        "$BIN/vptq-pack" --check "$out" > out.txt 2>&1 || fail "$family: $(cat out.txt)"
    done
    [ "$(grep -A 1 architectures hf/config.json | tail -n 1 | tr -d ' "')" = "$architecture" ] ||
        fail "$family: $(cat hf/config.json)"
    "$BIN/vptq-eval" error -m hf --base "$model" -H h -q > out.txt
    "$BIN/vptq-quantize" -m "$model" --tokens ids -n 2 -l 20 --sequential -v 4 -k 16 -r 4 -o seq -q > out.txt
    expect_number "$(ppl seq)" ">" 1

    # A plain directory has the tensors of the original, and their bytes if nothing was quantized.
    "$BIN/vptq-pack" --unpack "$model" -o plain --dtype bf16 -q > out.txt 2> err.txt
    for dir in "$model" plain; do
        head -c 16384 "$dir/model.safetensors" | grep -a -o '"model[^"]*":{"dtype":"BF16","shape":\[[^]]*\]' |
            sort > "$(basename "$dir").names"
    done
    cmp "tiny_$family.names" plain.names || fail "$family: other tensors"
    [ "$(ppl plain)" = "$(ppl "$model")" ] || fail "$family: unpacking changed the perplexity"
    "$BIN/vptq-pack" --unpack archive.vptq -o plain_quantized --dtype bf16 -q > out.txt 2> err.txt
    expect_near "$(ppl plain_quantized)" "$quantized" 0.02

    # Uniform codes, which have a layout of their own.
    "$BIN/vptq-quantize" -m "$model" -H h --method gptq -o work_gptq -q > out.txt
    rm -rf -- hf
    "$BIN/vptq-pack" work_gptq -o hf --to hf -q > out.txt 2> err.txt
    [ "$(ppl hf)" = "$(ppl work_gptq)" ] || fail "$family: uniform codes"

    # Steps with a cache, and many sequences at once.
    "$BIN/vptq-eval" generate -m archive.vptq --tokenizer tokenizer.json -p ABCDEFGHIJ -n 20 --ignore-eos -q \
        > out.txt
    [ "$(wc -c < out.txt)" -ge 30 ] || fail "$family: $(cat out.txt)"
    "$BIN/vptq-eval" serve -m archive.vptq --tokenizer tokenizer.json --config 2,8,8 --runs 1 --warmup 0 -q \
        > out.txt
    expect_error 1 "of type [a-z0-9_]* with this configuration cannot be written as GGUF" \
        "$BIN/vptq-pack" --unpack "$model" -o out.gguf --to gguf -q
done <<'ROWS'
phi3 79.787662 MistralForCausalLM
phi4 85543123.569166 Phi3ForCausalLM
mixtral 107.588250 MixtralForCausalLM
qwen2moe 571866.255842 Qwen2MoeForCausalLM
qwen3moe 24139641.147805 Qwen3MoeForCausalLM
gemma2 137.017717 Gemma2ForCausalLM
gemma3 61.893848 Gemma3ForCausalLM
starcoder2 14004318.936900 Starcoder2ForCausalLM
ROWS

# Options that are refused because of the norms, caps and activations of these families.
while read -r family type norms; do
    model=$golden/tiny_$family
    cp "$model/ids.i32" ids
    rm -rf -- work h
    "$BIN/vptq-hessian" -m "$model" --tokens ids -n 1 -l 40 -o h -q
    "$BIN/vptq-quantize" -m "$model" -H h -v 4 -k 16 -o work -q > out.txt
    for method in awq smooth+gptq; do
        expect_error 1 "awq and smooth move scales into norms, $norms" \
            "$BIN/vptq-quantize" -m "$model" -H h --method $method -o refused -q
    done
    no_gradients="tiny_$family: gradients are not computed for models of type $type"
    for more in --outputs=1 --weights=guided; do
        expect_error 1 "$no_gradients" "$BIN/vptq-hessian" -m "$model" --tokens ids -n 1 -l 40 "$more" -o refused -q
    done
    expect_error 1 "$no_gradients" "$BIN/vptq-quantize" --from work --tune e2e --tokens ids -o refused -q
    expect_error 1 "$no_gradients" \
        "$BIN/vptq-quantize" -m "$model" --tokens ids -n 1 -l 40 -v 4 -k 16 --tune layer -o refused -q
    [ ! -e refused ] || fail "left: $(ls -R refused)"
done <<'ROWS'
gemma3 gemma3_text which models of type gemma3_text store
starcoder2 starcoder2 but not into those of models of type starcoder2, which have biases
ROWS

# A block of StarCoder2 has six matrices, which have names of their own.
model=$golden/tiny_starcoder2
six="q_proj k_proj v_proj o_proj c_fc c_proj"
[ "$(json_get name work/report.jsonl | xargs)" = "$six $six" ] || fail "$(cat work/report.jsonl)"
for weights in sink attention; do
    "$BIN/vptq-hessian" -m "$model" --tokens ids -n 2 -l 20 --weights $weights -o h_$weights -q
done
echo '{"rules": [{"match": "mlp.c_*", "settings": {"centroids": 32}}]}' > recipe.json
"$BIN/vptq-quantize" -m "$model" -H h_attention -v 4 -k 16 --recipe recipe.json -o work_recipe -q > out.txt
grep '"k": 32' work_recipe/report.jsonl > wide.jsonl
[ "$(json_get name wide.jsonl | xargs)" = "c_fc c_proj c_fc c_proj" ] || fail "$(cat work_recipe/report.jsonl)"
"$BIN/vptq-quantize" -m "$model" --tokens ids -n 2 -l 20 --sequential --weights sink -v 4 -k 16 -o work_sink -q > out.txt
for source in measured read; do # sensitivities
    rm -rf -- work_kl
    [ $source = measured ] || { mkdir work_kl && cp sensitivity.json work_kl; }
    "$BIN/vptq-quantize" -m "$model" --tokens ids -n 2 -l 20 -b 4.5 --allocate kl --allocate-tokens ids \
        --allocate-length 20 -o work_kl -q > out.txt
    [ $source = measured ] || cmp sensitivity.json work_kl/sensitivity.json || fail "measured again"
    cp work_kl/sensitivity.json .
    json_get k work_kl/report.jsonl > $source.k
done
cmp measured.k read.k || fail "other settings with the same sensitivities"
[ "$(wc -l < read.k)" = 12 ] || fail "$(cat work_kl/report.jsonl)"
echo '{"rules": [{"match": "mlp.gate_proj", "settings": {"centroids": 32}}]}' > recipe.json
expect_error 1 "rule 1: key 'match' is 'mlp.gate_proj', which matches no matrix of layers 0-1" \
    "$BIN/vptq-quantize" -m "$model" -H h -v 4 -k 16 --recipe recipe.json -o refused -q
