# RTN and GPTQ over the same Hessians, recipes, reports and resume as VPTQ; every reader takes the result.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 16 -l 256 -o h -q
quantize() { "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h -qq "$@"; }
nll() { "$BIN/vptq-eval" ppl -m "$@" --tokenizer "$tok" --text "$text" --context 256 --windows 8 -qq --format json | json_get nll; }
mean() { json_get proxy_loss "$1/report.jsonl" | awk '{ s += $1 } END { printf "%.12g", s / NR }'; }

quantize -o rtn --method rtn --weight-bits 3 --group-size 32 > /dev/null
quantize -o gptq --method gptq --weight-bits 3 --group-size 32 > /dev/null
quantize -o order --method gptq --weight-bits 3 --group-size 32 --act-order > /dev/null
quantize -o row --method gptq --weight-bits 4 --group-size 0 --symmetric > /dev/null
expect_number "$(mean gptq)" '<' "$(mean rtn | awk '{ print 0.8 * $1 }')"
expect_number "$(mean order)" '<' "$(mean gptq)"
expect_number "$(nll gptq)" '<' "$(nll rtn)"

# Bits are those of the file: codes, scales, zero points in whole words, and the groups of columns.
row=$(grep -m 1 '"name": "q_proj"' rtn/report.jsonl)
[ "$(echo "$row" | json_get total_bits)" = $((64 * 64 * 3 + 2 * 64 * 16 + 2 * 64 * 3)) ] || fail "bits: $row"
[ "$(grep -m 1 '"name": "q_proj"' order/report.jsonl | json_get perm_bits)" = $((64 * 32)) ] || fail "groups do not count"
[ "$(echo "$row" | json_get method)" = rtn ] || fail "method: $row"
expect_line gptq/quantize.json '"method": "gptq"'
! grep -q '"centroids"\|"vector_length"' gptq/quantize.json || fail "settings of method vptq in the manifest"

# What the quantizer measures is what others read.
"$BIN/vptq-eval" error -m order --base "$model" -H h -qq --format json > error.jsonl
for key in proxy_loss relative_mse bits_per_weight; do
    json_get $key error.jsonl | awk '{ printf "%.12g\n", $1 }' | sort > found.txt
    json_get $key order/report.jsonl | awk '{ printf "%.12g\n", $1 }' | sort > wanted.txt
    cmp found.txt wanted.txt || fail "$key of vptq-eval error"
done
"$BIN/vptq-pack" --list order --format json -qq > list.jsonl
expect_number "$(tail -n 1 list.jsonl | json_get bits_per_weight)" '>' 3.9
"$BIN/vptq-pack" --check order -qq > check.txt
expect_line check.txt '^order: 0 errors, 0 warnings'

# The same bytes with other threads, and after an interruption.
quantize -o two --method gptq --weight-bits 3 --group-size 32 --act-order -t 2 > /dev/null
expect_same order two
rm two/layer_002_k_proj.safetensors two/layer_004_up_proj.safetensors
quantize -o two --method gptq --weight-bits 3 --group-size 32 --act-order > /dev/null
expect_same order two
expect_error 1 "its key 'settings.weight_bits' is 3, here it is 4" quantize -o two --method gptq --weight-bits 4 \
    --group-size 32 --act-order

# A plain copy, an archive and a directory are the same model.
quantize -o four --method gptq --weight-bits 3 --group-size 4 --act-order > /dev/null
want=$(nll four)
"$BIN/vptq-pack" --list four --format json -qq > list.json
"$BIN/vptq-pack" four -o four.vptq --to archive -qq > /dev/null
"$BIN/vptq-pack" four -o hf -qq --format json > packed.json
expect_number "$(json_get bits_per_weight packed.json)" '==' "$(tail -n 1 list.json | json_get bits_per_weight)"
expect_number "$(json_get file_bits_per_weight packed.json)" '<' 16
"$BIN/vptq-pack" --unpack four -o plain -qq > /dev/null
for form in four.vptq hf plain; do
    [ "$(nll $form)" = "$want" ] || fail "$form: nll $(nll $form), expected $want"
done
for form in four four.vptq hf; do
    "$BIN/vptq-pack" --check $form -qq > check.txt
    expect_line check.txt "^$form: 0 errors, 0 warnings"
done
expect_line hf/config.json '"quant_method": "compressed-tensors"'
digest=$("$BIN/vptq-pack" --digest four --format json -qq | json_get digest)
for form in four.vptq hf; do
    [ "$("$BIN/vptq-pack" --digest $form --format json -qq | json_get digest)" = "$digest" ] || fail "$form: another digest"
done
expect_sentence 1 "'model.layers.0.mlp.down_proj' cannot be written .*: groups of 32 columns do not divide 172 columns" \
    "$BIN/vptq-pack" order -o order.vptq -q

# Layers that were not chosen stay plain, and config.json says so.
quantize -o part --method rtn --group-size 4 --layers 1-2 > /dev/null
want=$(nll part)
for form in part.hf part.vptq again.hf; do
    input=part
    [ $form != again.hf ] || input=part.vptq
    "$BIN/vptq-pack" $input -o $form -qq > /dev/null
    [ "$(nll $form)" = "$want" ] || fail "$form: nll $(nll $form), expected $want"
done
expect_same part.hf/config.json again.hf/config.json
plain=$(grep -o '"model.layers.[0-9]' part.hf/config.json | sort | uniq -c | tr -d '"' | xargs)
[ "$plain" = "7 model.layers.0 7 model.layers.3 7 model.layers.4" ] || fail "ignored: $plain"
"$BIN/vptq-pack" --check part.hf -qq > check.txt
expect_line check.txt '^part.hf: 0 errors, 0 warnings'
expect_sentence 1 'has matrices of other methods than vptq, which cannot be tuned' \
    "$BIN/vptq-quantize" --from four --tune e2e -c "$text" -o tuned -q

# A recipe mixes methods; the budget counts what it fixes.
cat > mixed.json << 'R'
{"rules": [{"match": "v_proj", "settings": {"method": "gptq", "weight_bits": 8}},
           {"match": "down_proj", "settings": {"method": "rtn", "weight_bits": 4, "group_size": 86}}]}
R
quantize -o mixed -v 4 -k 32 --recipe mixed.json --layers 0-1 --format json > mixed.jsonl
[ "$(json_get method mixed.jsonl | sort | uniq -c | tr -s ' \n' ' ')" = ' 2 gptq 2 rtn ' ] || fail "methods of the recipe"
nll mixed > /dev/null
expect_sentence 1 "10 matrices are quantized by method vptq and 4 by others: no packed layout holds both" \
    "$BIN/vptq-pack" mixed -o mixed.vptq -q

# A budget chooses the bits of codes.
quantize -o budget --method gptq -b 4 --group-size 32 --format json > budget.jsonl
bits=$(tail -n 1 budget.jsonl | json_get bits_per_weight)
expect_number "$bits" '<=' 4
expect_number "$bits" '>' 3.95
[ "$(json_get weight_bits budget/report.jsonl | sort -u | wc -l)" -gt 1 ] || fail "the same bits for all matrices"
expect_number "$(nll budget)" '<' "$(nll gptq)"
quantize -o planned --method gptq -b 4 --group-size 32 --dry-run --format json > plan.jsonl
paste <(json_get predicted_loss plan.jsonl | head -n 35) <(json_get proxy_loss budget/report.jsonl) | \
    awk '{ s += log($1 / $2) } END { exit !(NR == 35 && s / NR > -0.5 && s / NR < 0.5) }' || fail "predicted losses"
quantize -o one --method gptq -b 3.66 --group-size 32 --allocate uniform > /dev/null
[ "$(nll one)" = "$(nll gptq)" ] || fail "--allocate uniform chose other bits than 3"

# Settings of other methods are refused.
expect_error 2 "vector_length has no effect with method rtn" quantize -o bad --method rtn -v 8
expect_error 2 "weight_bits has no effect with method vptq" quantize -o bad --weight-bits 4
expect_error 2 "act-order has no effect with method rtn" quantize -o bad --method rtn --act-order
expect_error 2 "act-order has no effect with method vptq" quantize -o bad --act-order
expect_error 2 "act-order has no effect with preset w8a16_awq" quantize -o bad --preset w8a16_awq --act-order
expect_error 2 "act-order and --no-perm exclude each other" quantize -o bad --method gptq --act-order --no-perm
expect_error 2 "preset 'ablation-outliers-1' is only for method vptq" quantize -o bad --method gptq --preset ablation-outliers-1
expect_error 2 '--method awful: expected vptq|sparse|rtn|gptq|awq|gptvq|aqlm|db-llm|quip#; smooth+' quantize -o bad --method awful
expect_error 2 "--bits and --weight-bits exclude each other" quantize -o bad --method gptq -b 3 --weight-bits 3
expect_error 2 "q_proj: a bit budget has nothing to choose of method sparse" quantize -o bad --method sparse -b 3
expect_error 2 "a budget of 2 bits per weight is below the smallest possible, 2.5904" quantize -o bad --method gptq -b 2 \
    --group-size 32
echo '{"rules": [{"match": "*", "settings": {"method": "gptq", "centroids": 16}}]}' > bad.json
expect_error 1 "rule 1: .*centroids has no effect with method gptq" quantize -o bad --recipe bad.json
