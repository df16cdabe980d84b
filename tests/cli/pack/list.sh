# --list: one row per matrix and tensor, as text and as JSON.
golden=$(data golden/vptq_model_stories260K)
"$BIN/vptq-pack" -q --list "$golden" > list.txt
[ "$(wc -l < list.txt)" = 49 ] || fail "header, 47 rows and a summary expected"
# 4 columns with an outlier codebook: 16 vector rows * 4 + 32 * 4 numbers of 16 bits over 64 x 172
expect_line list.txt "layers.0.mlp.down_proj  *64  *172 F16  *7624  *4  *256  *16  *1  *4  5.5407"
expect_line list.txt "35 quantized matrices at 7.*, 12 plain tensors"
"$BIN/vptq-pack" -q --list "$golden" --format json > list.json
[ "$(wc -l < list.json)" = 48 ] || fail "48 objects expected"
grep '"quantized": true' list.json > quantized.json
[ "$(json_get v quantized.json | wc -l)" = 35 ] || fail "35 matrices expected"
# the parts of a matrix add up to its bytes in the file
sum=$(json_get bytes list.json | awk '{ s += $1 } END { print s }')
expect_number "$sum" '<' "$(wc -c < "$golden/model.safetensors")"
expect_number "$sum" '>' "$(($(wc -c < "$golden/model.safetensors") - 40000))"
paste <(json_get bits_per_weight quantized.json) <(json_get rows quantized.json) \
    <(json_get columns quantized.json) <(json_get bytes quantized.json) |
    awk '{ d = $1 * $2 * $3 / 8 - $4; if (d > 1e-6 || d < -1e-6) exit 1 }' ||
    fail "bits per weight and bytes do not agree"
# every kind of model can be listed
"$BIN/vptq-pack" -q --list "$(data models/stories260K/stories260K.bin)" > list.txt
expect_line list.txt "0 quantized matrices, 48 plain\|0 quantized matrices, 47 plain"
"$BIN/vptq-pack" -q --list "$(data models/stories260K/stories260K.bin)" --format json | tail -n 1 > last.json
[ "$(json_get bits_per_weight last.json)" = null ] || fail "bits per weight of a plain model: $(cat last.json)"
"$BIN/vptq-pack" -q -m "$golden" --list --format json | tail -n 1 > last.json
[ "$(json_get matrices last.json)" = 35 ] || fail "-m names the model, too"

# In an archive they are the archived bytes for all kinds of codes: the rest is config, tokenizer and index.
model=$(data models/stories260K-hf)
"$BIN/vptq-hessian" -q -m "$model" -n 4 -l 64 --layers 0-1 -o h > out.txt
rest=
for method in "vptq -v 4 -k 64" "rtn --group-size 4" "aqlm -v 4" gptvq db-llm; do
    rm -rf work one.vptq
    # shellcheck disable=SC2086 # several words
    "$BIN/vptq-quantize" -q -m "$model" -H h --layers 0-1 -o work --method $method > out.txt
    "$BIN/vptq-pack" -q work -o one.vptq > out.txt
    "$BIN/vptq-pack" -q --list one.vptq --format json > list.json
    sum=$(json_get bytes list.json | awk '{ s += $1 } END { print s }')
    left=$(($(wc -c < one.vptq) - sum))
    expect_near "$left" "${rest:-$left}" 0.1
    rest=${rest:-$left}
done
