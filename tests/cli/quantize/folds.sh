# AWQ and SmoothQuant: scales of columns in norms and in the rows of other matrices.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
collect() { "$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 16 -l 256 -q "$@"; }
collect -o h
quantize() { "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h -qq "$@"; }
nll() { "$BIN/vptq-eval" ppl -m "$@" --tokenizer "$tok" --text "$text" --context 256 --windows 8 -qq --format json | json_get nll; }
original=$(nll "$model")

# With codes of 8 bits the scaled model computes what the original does.
for method in awq smooth+rtn smooth+awq smooth+gptq; do
    quantize -o 8-$method --method $method --weight-bits 8 --group-size 32 > /dev/null
    expect_number "$(nll 8-$method)" '<' "$(echo "$original" | awk '{ print $1 + 0.002 }')"
    expect_number "$(nll 8-$method)" '>' "$(echo "$original" | awk '{ print $1 - 0.002 }')"
    [ "$(json_get method 8-$method/report.jsonl | sort -u)" = $method ] || fail "method of 8-$method"
done

# With 3 bits AWQ loses less than RTN, and its exponents say that it scales.
quantize -o rtn --method rtn --weight-bits 3 --group-size 32 > /dev/null
quantize -o awq --method awq --weight-bits 3 --group-size 32 > /dev/null
expect_number "$(nll awq)" '<' "$(nll rtn)"
expect_number "$(json_get awq_alpha awq/report.jsonl | sort -g | tail -n 1)" '>' 0
[ "$(json_get awq_alpha awq/report.jsonl | wc -l)" = 30 ] || fail 'awq_alpha of q, k, v, gate, up and down'
! grep -q awq_alpha 8-smooth+rtn/report.jsonl || fail 'awq_alpha without AWQ'

# Pruned weights stay pruned under the ranges of AWQ.
quantize -o sparse --method smooth+sparse+awq --sparsity 0.3 --weight-bits 4 --group-size 32 > /dev/null
for share in $(json_get sparsity sparse/report.jsonl); do
    expect_number "$share" '>' 0.2999
done
expect_number "$(nll sparse)" '<' "$(echo "$original" | awk '{ print $1 + 1 }')"

# The same bytes with other threads, from a calibration during the run, and after an interruption.
quantize -o two --method awq --weight-bits 3 --group-size 32 -t 2 > /dev/null
expect_same awq two
rm two/layer_002_k_proj.safetensors two/layer_004_up_proj.safetensors two/layer_004_q_proj.safetensors
quantize -o two --method awq --weight-bits 3 --group-size 32 > /dev/null
expect_same awq two

# An unfinished layer is that of the original.
quantize -o part --method awq --weight-bits 3 --group-size 4 --layers 0-1 > /dev/null
want=$(nll part)
quantize -o part --method awq --weight-bits 3 --group-size 4 --layers 2-2 > /dev/null
rm part/layer_002_down_proj.safetensors
[ "$(nll part --partial)" = "$want" ] || fail "an unfinished layer counts: $(nll part --partial), expected $want"
"$BIN/vptq-pack" part --partial -o part.vptq -q > /dev/null
[ "$(nll part.vptq)" = "$want" ] || fail "packed: $(nll part.vptq), expected $want"

# Packed and plain copies have the changed norms.
quantize -o four --method smooth+awq --weight-bits 4 --group-size 4 > /dev/null
want=$(nll four)
"$BIN/vptq-pack" four -o four.vptq --to archive -qq > /dev/null
"$BIN/vptq-pack" four -o hf -qq > /dev/null
"$BIN/vptq-pack" --unpack four -o plain -qq > /dev/null
for form in four.vptq hf plain; do
    [ "$(nll $form)" = "$want" ] || fail "$form: nll $(nll $form), expected $want"
done
"$BIN/vptq-pack" --check four -qq > check.txt
expect_line check.txt '^four: 0 errors, 0 warnings'
for form in four hf; do
    expect_sentence 1 "$form: the norms of layer 0 are not those of .*vptq-eval kld" \
        "$BIN/vptq-eval" error -m $form --base "$model" -H h -q
done

# A recipe: matrices of other methods are scaled with those that read the same input.
cat > mixed.json << 'R'
{"rules": [{"match": "q_proj", "settings": {"method": "awq", "weight_bits": 8, "group_size": 32}},
           {"match": "up_proj", "settings": {"method": "smooth+rtn", "weight_bits": 8, "smooth_alpha": 0.5}}]}
R
quantize -o mixed -v 2 -k 256 --recipe mixed.json > /dev/null
quantize -o plain_mix -v 2 -k 256 > /dev/null
expect_number "$(nll mixed)" '<' "$(nll plain_mix | awk '{ print $1 + 0.05 }')"

# Bad input.
expect_error 2 '--method sparse+vptq: expected vptq|sparse|rtn|gptq|awq|gptvq|aqlm|db-llm|quip#; smooth+' quantize -o bad --method sparse+vptq
expect_error 2 'smooth_alpha has no effect with method awq' quantize -o bad --method awq --smooth-alpha 0.5
expect_error 2 'do not go with a sequential calibration' "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -c "$text" \
    -n 4 -l 64 --sequential -o bad --method awq -q
"$BIN/vptq-hessian" --export h -o flat -q
"$BIN/vptq-hessian" --import flat -o imported -q
expect_error 1 "'imported': the Hessians of layer 0 have no channel ranges" "$BIN/vptq-quantize" -m "$model" \
    --tokenizer "$tok" -H imported -o bad --method awq -q
echo '{"rules": [{"match": "*", "layers": "4", "settings": {"method": "awq", "group_size": 0}}]}' > last.json
expect_error 1 "'imported': the Hessians of layer 4 have no channel ranges" "$BIN/vptq-quantize" -m "$model" \
    --tokenizer "$tok" -H imported -o bad --recipe last.json -q
expect_error 2 'default of -b without -H and -c; -c builtin calibrates' "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" \
    -b 4 --method awq -n 4 -l 64 -o bad -q
[ ! -e bad ] || fail "begun: $(ls bad)"
