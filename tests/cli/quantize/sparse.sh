# SparseGPT alone and with codes: zeros are kept, resumed runs have the same bytes, every reader takes the result.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 16 -l 256 -o h -q
quantize() { "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h -qq "$@"; }
nll() { "$BIN/vptq-eval" ppl -m "$@" --tokenizer "$tok" --text "$text" --context 256 --windows 8 -qq --format json | json_get nll; }
mean() { json_get proxy_loss "$1/report.jsonl" | awk '{ s += $1 } END { printf "%.12g", s / NR }'; }
sparsity() { json_get sparsity "$1/report.jsonl" | sort -n | sed -n "$2p"; }

quantize -o half --method sparse > /dev/null
quantize -o four --method sparse --sparsity-pattern 2:4 > /dev/null
echo '{"rules": [{"match": "down_proj", "settings": {"sparsity_pattern": "2:4"}}]}' > down.json
quantize -o eight --method sparse --sparsity-pattern 4:8 --layers 0-0 --recipe down.json > /dev/null
quantize -o rtn --method sparse+rtn --group-size 4 > /dev/null
quantize -o gptq --method sparse+gptq --group-size 4 > /dev/null
quantize -o both --method sparse+gptq --group-size 4 --sparsity-pattern 2:4 > /dev/null

# Half of the weights and few more: one in a block of 128 columns, and kept ones that are rounded to 0.
for work in half four rtn gptq both; do
    expect_number "$(sparsity $work 1)" '>=' 0.5
    expect_number "$(sparsity $work '$')" '<' 0.65
done
expect_number "$(sparsity four '$')" '<' 0.501
expect_number "$(mean half)" '<' "$(mean four)"
expect_number "$(mean four)" '<' "$(mean both)"
expect_number "$(mean half)" '<' "$(mean gptq)"
for method in rtn gptq; do
    quantize -o $method.3 --method sparse+$method --group-size 32 --weight-bits 3 > /dev/null
done
expect_number "$(mean gptq.3)" '<' "$(mean rtn.3 | awk '{ print 0.95 * $1 }')"
row=$(grep -m 1 '"name": "q_proj"' half/report.jsonl)
[ "$(echo "$row" | json_get total_bits)" = $((64 * 64 * 16)) ] || fail "bits: $row"
[ "$(echo "$row" | json_get method)" = sparse ] || fail "method: $row"
[ "$(json_get method gptq/report.jsonl | sort -u)" = sparse+gptq ] || fail "method of gptq"
! grep -q weight_bits half/report.jsonl || fail "codes of a dense matrix"

# What the quantizer measures is what others read.
for work in half both; do
    "$BIN/vptq-eval" error -m $work --base "$model" -H h -qq --format json > error.jsonl
    for key in proxy_loss relative_mse bits_per_weight; do
        json_get $key error.jsonl | awk '{ printf "%.12g\n", $1 }' | sort > found.txt
        json_get $key $work/report.jsonl | awk '{ printf "%.12g\n", $1 }' | sort > wanted.txt
        cmp found.txt wanted.txt || fail "$work: $key of vptq-eval error"
    done
    "$BIN/vptq-pack" --check $work -qq > check.txt
    expect_line check.txt "^$work: 0 errors, 0 warnings"
done

# The same bytes with other threads, and after an interruption.
quantize -o two --method sparse -t 2 > /dev/null
expect_same half two
rm two/layer_002_k_proj.safetensors two/layer_004_up_proj.safetensors
quantize -o two --method sparse > /dev/null
expect_same half two
expect_error 1 "its key 'settings.sparsity' is 0.5, here it is 0.6" quantize -o two --method sparse --sparsity 0.6

# A plain copy, an archive and a directory are the same model; none has a quantization_config without codes.
for work in half both; do
    want=$(nll $work)
    rm -rf out.vptq out plain
    "$BIN/vptq-pack" $work -o out.vptq --to archive -qq > /dev/null
    "$BIN/vptq-pack" $work -o out -qq > /dev/null
    "$BIN/vptq-pack" --unpack $work -o plain -qq > /dev/null
    for form in out.vptq out plain; do
        [ "$(nll $form)" = "$want" ] || fail "$work, $form: nll $(nll $form), expected $want"
        "$BIN/vptq-pack" --check $form -qq > check.txt
        expect_line check.txt "^$form: 0 errors, 0 warnings"
        "$BIN/vptq-pack" --list $form -qq > /dev/null
    done
    [ $work = half ] || continue
    ! grep -q quantization_config out/config.json || fail "a quantization_config without codes"
    cmp out/model.safetensors plain/model.safetensors || fail "packed and unpacked weights differ"
    [ "$("$BIN/vptq-pack" -q --digest half)" = "$("$BIN/vptq-pack" -q --digest out.vptq)" ] || fail "another digest"
    expect_error 1 "out is a Hugging Face directory, expected a packed directory" "$BIN/vptq-pack" -q --digest out
done

# A recipe leaves some matrices dense: the config ignores them.
cat > mixed.json << 'R'
{"rules": [{"match": "v_proj", "settings": {"method": "sparse", "sparsity": 0.3}}]}
R
quantize -o mixed --method gptq --group-size 4 --recipe mixed.json > /dev/null
want=$(nll mixed)
"$BIN/vptq-pack" mixed -o mixed.hf -qq > /dev/null
[ "$(nll mixed.hf)" = "$want" ] || fail "mixed: nll $(nll mixed.hf), expected $want"
expect_line mixed.hf/config.json '"model.layers.3.self_attn.v_proj"'
expect_sentence 1 'has matrices of other methods than vptq, which cannot be tuned' \
    "$BIN/vptq-quantize" --from half --tune e2e -c "$text" -o tuned -q
expect_sentence 1 "'half' is quantized already (35 matrices)" "$BIN/vptq-quantize" -m half -H h -o again -q

# In a run that calibrates block by block, later blocks see the pruned weights before them.
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -c "$text" -n 8 -l 128 --sequential --method sparse -o seq -qq > /dev/null
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -c "$text" -n 8 -l 128 --sequential --method sparse+gptq \
    --group-size 4 -o seq4 -qq > /dev/null
expect_number "$(nll seq)" '<' 3.5
expect_number "$(nll seq4)" '<' 3.6

# Settings that do not fit.
expect_error 2 '--method sparse+vptq: expected vptq|sparse|rtn|gptq|awq|gptvq|aqlm|db-llm|quip#; smooth+' quantize -o bad --method sparse+vptq
expect_error 2 "weight_bits has no effect with method sparse" quantize -o bad --method sparse --weight-bits 4
expect_error 2 "sparsity has no effect with method gptq" quantize -o bad --method gptq --sparsity 0.5
expect_error 2 'expected a number from 0.01 to 0.99' quantize -o bad --method sparse --sparsity 1
expect_error 2 'sparsity is 0.3, but sparsity_pattern 2:4 prunes half' quantize -o bad --method sparse --sparsity 0.3 \
    --sparsity-pattern 2:4
expect_error 2 'sparsity_pattern is 4:8, which does not divide 172 columns' quantize -o bad --method sparse --sparsity-pattern 4:8
expect_error 2 'does not divide groups of 6 columns' quantize -o bad --method sparse+gptq --group-size 6 --sparsity-pattern 2:4
expect_error 2 'needs columns in their own order' quantize -o bad --method sparse+gptq --act-order --sparsity-pattern 2:4
