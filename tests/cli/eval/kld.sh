# Divergence of a model from its original: 0 from itself, above 0 from a quantized one, the check
# that exits 3, models that do not belong together.
bin=$(data models/stories260K/stories260K.bin)
tokenizer=$(data models/stories260K/tok512.bin)
model=$(data models/stories260K-hf)
text=$(data text/tinystories/tiny.utf8)
run() { "$BIN/vptq-eval" kld --text "$text" --context 256 --windows 4 -q "$@"; }

run -m "$model" --base "$model" --format json >same.json
for key in mean_kld kld_stderr max_kld p99_kld p50_kld min_kld ppl_ratio_stderr ln_ppl_ratio \
    ppl_difference_stderr rms_delta_p p001_delta_p same_top1_stderr; do
    [ "$(json_get $key same.json)" = 0 ] || fail "$key of a model with itself: $(cat same.json)"
done
[ "$(json_get same_top1 same.json)" = 1 ] || fail "same_top1: $(cat same.json)"
[ "$(json_get tokens same.json)" = 1020 ] || fail "tokens: $(cat same.json)"
"$BIN/vptq-eval" ppl -m "$model" --text "$text" --context 256 --windows 4 -q --format json >ppl.json
expect_near "$(json_get ppl same.json)" "$(json_get ppl ppl.json)" 1e-6

run -m "$model" --base "$model" --protocol llama.cpp --format json >halves.json
"$BIN/vptq-eval" ppl -m "$model" --text "$text" --context 256 --windows 4 -q --format json \
    --protocol llama.cpp >ppl.json
expect_near "$(json_get ppl halves.json)" "$(json_get ppl ppl.json)" 1e-6
[ "$(json_get tokens halves.json)" = 508 ] || fail "tokens: $(cat halves.json)"
[ "$(json_get protocol halves.json)" = llama.cpp ] || fail "protocol: $(cat halves.json)"

# The llama2.c file has the same weights in float32: hardly any divergence, not none.
run -m "$model" --base "$bin" --tokenizer "$tokenizer" --format json >half.json
expect_number "$(json_get mean_kld half.json)" '>' 0
expect_number "$(json_get mean_kld half.json)" '<' 1e-5
run -m "$model" --base "$bin" --tokenizer "$tokenizer" -t 1 --format json >one.json
[ "$(json_get mean_kld half.json)" = "$(json_get mean_kld one.json)" ] || fail "-t changes it"
run -m "$model" --base "$bin" --tokenizer "$tokenizer" --backend ref --format json >ref.json
expect_near "$(json_get ppl ref.json)" "$(json_get ppl half.json)" 1e-6

# A requested check, and the text form.
expect_exit 3 run -m "$model" --base "$bin" --tokenizer "$tokenizer" --max-kld 1e-9 >out.txt \
    2>err.txt
expect_line out.txt '^mean     divergence  *0.00000[0-9] ± 0.00000[0-9]$'
expect_line out.txt '^99.9 %   divergence  *0.0000[0-9]*$'
expect_line out.txt '^rms      change  *0.0[0-9]* ± 0.0[0-9]* %$'
expect_line out.txt '^same likeliest token  *[0-9.]* ± [0-9.]* %$'
expect_line out.txt '^1020 tokens in 4 windows of 256, '
expect_line err.txt '^vptq-eval: divergence [0-9.]* is above --max-kld 1e-09$'
run -m "$model" --base "$model" --dry-run >out.txt
expect_line out.txt '^would compare 1020 tokens in 4 windows$'

# Not of one shape; no text.
head -c 4096 /dev/zero >ids.i32
expect_exit 1 "$BIN/vptq-eval" kld -m "$model" --base "$SRC/tests/golden/tiny_mistral" \
    --tokens ids.i32 --context 16 -q 2>err.txt
expect_line err.txt '(vocabulary of 512) is not a version of .*tiny_mistral (vocabulary of 48)$'
expect_exit 2 "$BIN/vptq-eval" kld -m "$model" --base "$model" 2>err.txt
expect_line err.txt 'give --text FILE or --tokens FILE'
expect_exit 2 "$BIN/vptq-eval" kld -m "$model" --tokens ids.i32 2>err.txt
expect_line err.txt '--base'
