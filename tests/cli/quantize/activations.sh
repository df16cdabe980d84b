# 8-bit activations: what --activation-bits 8 stores, and every reader and runner of it.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 16 -l 256 -o h -q
quantize() { "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h -qq "$@"; }
ppl() { "$BIN/vptq-eval" ppl -m "$@" --tokenizer "$tok" --text "$text" --context 256 --windows 8 -qq --format json; }
nll() { ppl "$@" | json_get nll; }
bytes=(--weight-bits 8 --group-size 0 --symmetric)

quantize -o a16 --method rtn "${bytes[@]}" > /dev/null
quantize -o a8 --method rtn "${bytes[@]}" --activation-bits 8 > /dev/null
quantize -o gptq --method gptq "${bytes[@]}" --act-order --activation-bits 8 -t 2 > /dev/null

# The same weights, losses and bits; the inputs cost something, but not much.
for key in proxy_loss relative_mse total_bits; do
    json_get $key a16/report.jsonl > wanted.txt
    json_get $key a8/report.jsonl | cmp - wanted.txt || fail "$key with 8-bit activations"
done
[ "$(json_get activation_bits a8/report.jsonl | sort | uniq -c | tr -s ' \n' ' ')" = ' 35 8 ' ] || fail "activation_bits in the report"
! grep -q activation_bits a16/report.jsonl a16/quantize.json || fail "activation_bits where there are none"
expect_line a8/quantize.json '"activation_bits": 8'
want=$(nll a8)
expect_number "$want" '!=' "$(nll a16)"
expect_number "$want" '<' "$(nll a16 | awk '{ print $1 + 0.01 }')"
expect_number "$(nll gptq)" '<' "$(nll "$model" | awk '{ print $1 + 0.01 }')"

# An archive and a directory are the same model, also packed again, and for any threads and instructions.
"$BIN/vptq-pack" a8 -o a8.vptq -qq > /dev/null
"$BIN/vptq-pack" a8 -o hf -qq > /dev/null
"$BIN/vptq-pack" hf -o again -qq > /dev/null
cmp hf/model.safetensors again/model.safetensors || fail "packing again changes bytes"
cmp hf/config.json again/config.json || fail "packing again changes the config"
for form in a8.vptq hf again; do
    [ "$(nll $form)" = "$want" ] || fail "$form: nll $(nll $form), expected $want"
    "$BIN/vptq-pack" --check $form -qq > check.txt
    expect_line check.txt "^$form: 0 errors, 0 warnings"
done
[ "$(nll hf -t 3)" = "$want" ] || fail "another nll with 3 threads"
[ "$(VPTQ_SIMD=none nll hf)" = "$want" ] || fail "another nll without SIMD"
expect_line hf/config.json '"format": "int-quantized"'
expect_line hf/config.json '"strategy": "token"'
digest=$("$BIN/vptq-pack" --digest a8 --format json -qq | json_get digest)
[ "$("$BIN/vptq-pack" --digest hf --format json -qq | json_get digest)" = "$digest" ] || fail "another digest"

# Plain copies have the weights and lose the quantization of activations, which is said.
"$BIN/vptq-pack" --unpack hf -o plain -q > /dev/null 2> unpack.txt
expect_line unpack.txt 'warning: hf: 35 linear layers have 8-bit activations; the output keeps their weights'
[ "$(nll plain)" = "$(nll a16)" ] || fail "an unpacked model has other weights"
"$BIN/vptq-pack" --unpack a8 -o a8.gguf -q > /dev/null 2> unpack.txt
expect_line unpack.txt 'warning: a8: 35 linear layers have 8-bit activations'

# Everything that runs a model runs it.
"$BIN/vptq-eval" kld -m hf --base "$model" --tokenizer "$tok" --text "$text" --context 128 --windows 4 -qq --format json > kld.json
expect_number "$(json_get mean_kld kld.json)" '<' 0.01
expect_number "$(json_get mean_kld kld.json)" '>' 0
"$BIN/vptq-eval" generate -m hf --tokenizer "$tok" -p 'Once upon a time' -n 12 --temperature 0 -qq > text.txt
expect_line text.txt '^Once upon a time'
"$BIN/vptq-eval" serve -m hf --tokenizer "$tok" --config 2,16,4 --runs 1 --warmup 0 -qq > /dev/null
"$BIN/vptq-eval" error -m hf --base "$model" -H h -qq --format json > error.jsonl
json_get proxy_loss error.jsonl | awk '{ printf "%.12g\n", $1 }' | sort > found.txt
json_get proxy_loss a8/report.jsonl | awk '{ printf "%.12g\n", $1 }' | sort > wanted.txt
cmp found.txt wanted.txt || fail "losses of vptq-eval error"
"$BIN/vptq-hessian" -m hf --tokenizer "$tok" -c "$text" -n 2 -l 64 -o h8 -q
expect_sentence 1 'hf: has linear layers with 8-bit activations, through which gradients are not computed' \
    "$BIN/vptq-hessian" -m hf --tokenizer "$tok" -c "$text" -n 2 -l 64 --weights guided -o guided -q
expect_sentence 1 "'hf' is quantized already" "$BIN/vptq-quantize" -m hf --tokenizer "$tok" -H h8 -o twice -q

# Sequential calibration sees the finished layers as they will run.
sequential() { "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -c "$text" -n 4 -l 64 --sequential --method rtn "${bytes[@]}" -qq "$@"; }
sequential -o seq16 > /dev/null
sequential -o seq8 --activation-bits 8 > /dev/null
[ "$(json_get proxy_loss seq16/report.jsonl | head -1)" = "$(json_get proxy_loss seq8/report.jsonl | head -1)" ] ||
    fail "the first matrix has another input"
[ "$(json_get proxy_loss seq16/report.jsonl | tail -1)" != "$(json_get proxy_loss seq8/report.jsonl | tail -1)" ] ||
    fail "later layers do not see 8-bit activations"

# A recipe gives single matrices 8-bit activations; the config then has groups with formats.
cat > some.json << 'R'
{"rules": [{"match": "mlp.*", "settings": {"activation_bits": 8}}]}
R
quantize -o some --method rtn "${bytes[@]}" --recipe some.json > /dev/null
"$BIN/vptq-pack" some -o some-hf -qq > /dev/null
expect_line some-hf/config.json '"format": "mixed-precision"'
[ "$(nll some)" = "$(nll some-hf)" ] || fail "a mixed model: nll $(nll some-hf), expected $(nll some)"
expect_number "$(nll some)" '!=' "$want"

# Settings that do not fit, and a directory that is continued with others.
expect_error 2 'activation_bits 8 needs weight_bits 8, group_size 0 and symmetric true; they are 4, 0 and true' \
    quantize -o bad --method rtn --weight-bits 4 --group-size 0 --symmetric --activation-bits 8
expect_error 2 'they are 8, 128 and false' quantize -o bad --method gptq --weight-bits 8 --activation-bits 8
expect_error 2 'activation_bits is 4, expected 0 or 8' quantize -o bad --method rtn "${bytes[@]}" --activation-bits 4
expect_error 2 'activation_bits has no effect with method vptq' quantize -o bad --activation-bits 8
expect_error 1 "key 'settings.activation_bits'" quantize -o a16 --method rtn "${bytes[@]}" --activation-bits 8
