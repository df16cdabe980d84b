# Methods with additive codes over the same Hessians, recipes, reports and resume; every reader takes the result.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 16 -l 256 -o h -q
quantize() { "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h -qq "$@"; }
nll() { "$BIN/vptq-eval" ppl -m "$@" --tokenizer "$tok" --text "$text" --context 256 --windows 8 -qq --format json | json_get nll; }
mean() { json_get proxy_loss "$1/report.jsonl" | awk '{ s += $1 } END { printf "%.12g", s / NR }'; }

# What every method must do: method NAME, options..
check_method() {
    name=$1
    shift
    quantize -o "$name" --method "$@" > /dev/null
    # What the quantizer measures is what others read.
    "$BIN/vptq-eval" error -m "$name" --base "$model" -H h -qq --format json > error.jsonl
    for key in proxy_loss relative_mse bits_per_weight; do
        json_get $key error.jsonl | awk '{ printf "%.12g\n", $1 }' | sort > found.txt
        json_get $key "$name/report.jsonl" | awk '{ printf "%.12g\n", $1 }' | sort > wanted.txt
        cmp found.txt wanted.txt || fail "$name: $key of vptq-eval error"
    done
    # The same bytes with other threads, and after an interruption.
    quantize -o two -f --method "$@" -t 2 > /dev/null
    expect_same "$name" two
    rm two/layer_002_k_proj.safetensors two/layer_004_up_proj.safetensors
    quantize -o two --method "$@" > /dev/null
    expect_same "$name" two
    # An archive and plain copies are the same model.
    want=$(nll "$name")
    "$BIN/vptq-pack" "$name" -o "$name.vptq" -qq --format json > packed.json
    "$BIN/vptq-pack" --unpack "$name" -o plain -f -qq > /dev/null
    "$BIN/vptq-pack" --unpack "$name.vptq" -o plain2 -f -qq > /dev/null
    "$BIN/vptq-pack" --unpack "$name" -o plain.gguf -f -qq > /dev/null
    cmp plain/model.safetensors plain2/model.safetensors || fail "$name: the archive unpacks to other weights"
    for form in "$name.vptq" plain plain.gguf; do
        [ "$(nll "$form")" = "$want" ] || fail "$form: nll $(nll "$form"), expected $want"
    done
    "$BIN/vptq-pack" "$name.vptq" -o again.vptq -f -qq > /dev/null
    cmp "$name.vptq" again.vptq || fail "$name: packing the archive again changes it"
    # Lists, checks and digests are of what is stored.
    for form in "$name" "$name.vptq"; do
        "$BIN/vptq-pack" --check "$form" -qq > check.txt
        expect_line check.txt "^$form: 0 errors, 0 warnings"
        "$BIN/vptq-pack" --list "$form" --format json -qq > list.jsonl
        [ "$(grep -c '"quantized": true' list.jsonl)" = 35 ] || fail "$form: quantized matrices in the list"
        expect_number "$(tail -n 1 list.jsonl | json_get bits_per_weight)" '==' "$(json_get bits_per_weight packed.json)"
    done
    digest=$("$BIN/vptq-pack" --digest "$name" --format json -qq | json_get digest)
    [ "$("$BIN/vptq-pack" --digest "$name.vptq" --format json -qq | json_get digest)" = "$digest" ] ||
        fail "$name: the archive has another digest"
    "$BIN/vptq-eval" kld -m "$name.vptq" --base "$model" --tokenizer "$tok" --text "$text" --context 256 --windows 2 \
        -qq --format json > kld.json
    expect_number "$(json_get mean_kld kld.json)" '>' 0
    "$BIN/vptq-eval" generate -m "$name.vptq" --tokenizer "$tok" -p 'Once upon a time' -n 8 --temperature 0 -qq > text.txt
    "$BIN/vptq-eval" generate -m plain --tokenizer "$tok" -p 'Once upon a time' -n 8 --temperature 0 -qq > text2.txt
    cmp text.txt text2.txt || fail "$name: generated text"
    # Directories have no layout for such codes.
    expect_sentence 1 "$name: 35 matrices have additive codes, which no layout of directories holds; write an archive" \
        "$BIN/vptq-pack" "$name" -o hf -q
}

quantize -o gptq --method gptq --weight-bits 2 --group-size 32 > /dev/null
check_method gptvq gptvq --codebook-rows 32
expect_number "$(mean gptvq)" '<' "$(mean gptq)"
expect_number "$(nll gptvq)" '<' "$(nll gptq)"
[ "$(json_get method gptvq/report.jsonl | sort -u)" = gptvq ] || fail "method of the report"
# 64 x 64: codes of 4 bits, two codebooks of 16 vectors of 2 bytes with a scale each
row=$(grep -m 1 '"name": "q_proj"' gptvq/report.jsonl)
[ "$(echo "$row" | json_get total_bits)" = $((64 * 32 * 4 + 2 * (32 * 8 + 16))) ] || fail "bits: $row"
expect_line gptvq/quantize.json '"method": "gptvq"'
expect_line gptvq/quantize.json '"codebook_rows": 32'
! grep -q '"centroids"\|"symmetric"' gptvq/quantize.json || fail "settings of other methods in the manifest"

# More bits, longer vectors, other codebooks.
quantize -o three --method gptvq --weight-bits 3 --codebook-rows 32 > /dev/null
expect_number "$(mean three)" '<' "$(mean gptvq | awk '{ print 0.5 * $1 }')"
quantize -o four -v 4 --method gptvq --codebook-rows 64 --codebook-grid none --dtype bf16 > /dev/null
[ "$(nll four)" = "$("$BIN/vptq-pack" four -o four.vptq -qq > /dev/null; nll four.vptq)" ] || fail "four.vptq"
expect_error 1 "its key 'settings.weight_bits' is 3, here it is 4" quantize -o three --method gptvq --weight-bits 4 \
    --codebook-rows 32

# Impossible settings and mixtures.
expect_sentence 2 'weight_bits is 5, expected 2 to 4' quantize -o x --method gptvq --weight-bits 5
expect_sentence 2 'vector_length (-v) is 3, which does not divide 64 columns, expected 1, 2, 4 or 8$' quantize -o x --method gptvq -v 3
expect_sentence 1 'codes of 32 bits are not in 1..16' quantize -o x --method gptvq -v 8 --weight-bits 4
expect_error 2 "expected vptq|sparse|" quantize -o x --method gptvq+gptq
expect_error 2 'centroids has no effect with method gptvq' quantize -o x --method gptvq -k 16
expect_error 2 'codebook_rows has no effect with method vptq' quantize -o x --codebook-rows 16
cat > mixed.json << 'R'
{"rules": [{"match": "v_proj", "settings": {"method": "gptvq", "weight_bits": 3}},
           {"match": "down_proj", "settings": {"method": "rtn", "weight_bits": 4, "group_size": 86}}]}
R
quantize -o mixed -v 4 -k 32 --recipe mixed.json --layers 0-1 --format json > mixed.jsonl
[ "$(grep -c '"method": "gptvq"' mixed/report.jsonl)" = 2 ] || fail "methods of the recipe"
expect_sentence 1 'matrices are quantized by method vptq and 4 by others: no packed layout holds both' \
    "$BIN/vptq-pack" mixed -o mixed.vptq -q
nll mixed > /dev/null
quantize --dry-run -b 3 --recipe mixed.json > plan.txt
expect_sentence 1 'has matrices of other methods than vptq, which cannot be tuned' \
    "$BIN/vptq-quantize" --from gptvq --tune e2e -c "$text" -o tuned -q

# Matrices of later layers see the decoded ones of earlier layers.
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -c "$text" -n 4 -l 64 --sequential --layers 0-1 --method gptvq \
    -o sequential -qq > /dev/null
expect_sentence 1 'fit no other type' "$BIN/vptq-pack" gptvq -o x.vptq --dtype bf16 -q

# AQLM: codebooks of the whole matrix and a scale for every row; 172 columns have no vectors of 8.
check_method aqlm aqlm -v 4 -k 16
expect_number "$(mean aqlm)" '<' "$(mean gptq)"
row=$(grep -m 1 '"name": "q_proj"' aqlm/report.jsonl)
[ "$(echo "$row" | json_get total_bits)" = $((2 * (64 * 16 * 4 + 16 * 4 * 16) + 64 * 16)) ] || fail "bits: $row"
quantize -o beam --method aqlm -v 4 -k 16 --search beam:4 > /dev/null
expect_number "$(mean beam)" '<' "$(mean aqlm)"
quantize -o one --method aqlm -v 4 -k 256 --codebooks 1 --dtype bf16 --kmeans-iterations 10 > /dev/null
expect_line one/quantize.json '"codebooks": 1'
quantize -o seed --method aqlm -v 4 -k 16 --seed 1 > /dev/null
[ "$(mean seed)" != "$(mean aqlm)" ] || fail "another seed has the same losses"
expect_sentence 2 'down_proj: vector_length (-v) is 8, which does not divide 172 columns, expected 1, 2 or 4$' quantize -o x --method aqlm
expect_sentence 2 'beam is 33, expected 1 to 32 of method aqlm' quantize -o x --method aqlm -v 4 --search beam:33
expect_error 2 "--codebooks 9: expected a whole number from 1 to 8" quantize -o x --method aqlm --codebooks 9
expect_error 2 'group_size has no effect with method aqlm' quantize -o x --method aqlm --group-size 16

# DB-LLM: two bits for every weight and two numbers for every group of a row; the last of 172 columns has 44.
check_method db-llm db-llm
expect_number "$(mean db-llm)" '<' "$(mean gptq)"
row=$(grep -m 1 '"name": "down_proj"' db-llm/report.jsonl)
[ "$(echo "$row" | json_get total_bits)" = $((2 * 64 * (6 * 32 + 3 * 16))) ] || fail "bits: $row"
quantize -o start --method db-llm --sweeps 0 > /dev/null
expect_number "$(mean db-llm)" '<' "$(mean start | awk '{ print 0.5 * $1 }')"
expect_error 2 'centroids has no effect with method db-llm' quantize -o x --method db-llm -k 16
cat > three.json << 'R'
{"rules": [{"match": "q_proj", "settings": {"method": "aqlm", "vector_length": 4, "centroids": 32}},
           {"match": "k_proj", "settings": {"method": "aqlm", "codebooks": 1, "centroids": 16}},
           {"match": "down_proj", "settings": {"method": "db-llm", "group_size": 32}}]}
R
quantize -o three2 --method gptvq --group-size 32 --codebook-rows 32 --recipe three.json > /dev/null
for method in aqlm:10 db-llm:5 gptvq:20; do
    [ "$(grep -c "\"method\": \"${method%:*}\"" three2/report.jsonl)" = "${method#*:}" ] || fail "matrices of $method"
done
"$BIN/vptq-pack" three2 -o three2.vptq -qq > /dev/null
[ "$(nll three2)" = "$(nll three2.vptq)" ] || fail "three2.vptq"

# QuIP#: codes of 16 and 8 bits for vectors of 8, a scale of each stage, and signs; 172 columns have no vectors of 8.
cat > down.json << 'R'
{"rules": [{"match": "down_proj", "settings": {"method": "gptvq", "group_size": 32, "codebook_rows": 32}}]}
R
check_method quip 'quip#' --recipe down.json
row=$(grep -m 1 '"name": "up_proj"' quip/report.jsonl)
[ "$(echo "$row" | json_get total_bits)" = $((172 * 8 * 16 + 32 + 6 * 32 + 2 * 32)) ] || fail "bits: $row"
expect_line quip/quantize.json '"method": "quip#"'
! grep -q '"centroids"\|"symmetric"' quip/quantize.json || fail "settings of other methods in the manifest"
loss() { grep '"method": "quip#"' "$1/report.jsonl" | json_get proxy_loss | awk '{ s += $1 } END { printf "%.12g", s / NR }'; }
for bits in 3 4; do
    quantize -o "quip$bits" --method 'quip#' --weight-bits $bits --recipe down.json > /dev/null
    "$BIN/vptq-pack" "quip$bits" -o "quip$bits.vptq" -qq > /dev/null
    [ "$(nll "quip$bits")" = "$(nll "quip$bits.vptq")" ] || fail "quip$bits.vptq"
done
expect_number "$(loss quip)" '<' "$(grep -v down_proj gptq/report.jsonl | json_get proxy_loss | awk '{ s += $1 } END { print s / NR }')"
expect_number "$(loss quip3)" '<' "$(loss quip | awk '{ print 0.4 * $1 }')"
expect_number "$(loss quip4)" '<' "$(loss quip3 | awk '{ print 0.4 * $1 }')"
quantize -o seed -f --method 'quip#' --seed 1 --recipe down.json > /dev/null
[ "$(loss seed)" != "$(loss quip)" ] || fail "another seed has the same losses"
expect_sentence 2 'down_proj: method quip# needs columns that 8 divides, found 172 columns$' quantize -o x --method 'quip#'
expect_sentence 2 'weight_bits is 5, expected 2 to 4 of method quip#' quantize -o x --method 'quip#' --weight-bits 5
expect_error 2 'group_size has no effect with method quip#' quantize -o x --method 'quip#' --group-size 16
