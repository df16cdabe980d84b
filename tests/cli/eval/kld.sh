# Divergence of a model from its original: 0 from itself, above 0 from a quantized one, the check
# that exits with 3, models that do not match.
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

# The llama2.c file has the same weights in float32: a tiny divergence, but not 0.
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
run -m "$model" --base "$model" --dry-run --format json >plan.json
expect_number "$(json_get tokens plan.json)" '>' 0
run -m "$model" --base "$model" --dry-run >out.txt
expect_line out.txt '^would compare 1020 tokens in 4 windows$'
run -m "$model" --base "$model" --windows 1 --dry-run >out.txt
expect_line out.txt '^would compare 255 tokens in 1 window$'
run -m "$model" --base "$model" --windows 1 >out.txt
expect_line out.txt '^255 tokens in 1 window of 256, '
run --base "$model" --windows 1 --save-base one.base >out.txt
expect_line out.txt '^saved 255 tokens in 1 window of 256 in one.base, '

# Models of different shape; no text.
head -c 4096 /dev/zero >ids.i32
expect_exit 1 "$BIN/vptq-eval" kld -m "$model" --base "$SRC/tests/golden/tiny_mistral" \
    --tokens ids.i32 --context 16 -q 2>err.txt
expect_line err.txt '(vocabulary of 512) is not a version of .*tiny_mistral (vocabulary of 48)$'
expect_exit 2 "$BIN/vptq-eval" kld -m "$model" --base "$model" 2>err.txt
expect_line err.txt 'missing option: --text FILE or --tokens FILE'
expect_exit 2 "$BIN/vptq-eval" kld -m "$model" --tokens ids.i32 2>err.txt
expect_line err.txt '--base'

# The original's logits saved once, and used without it.
perturbed=$(data golden/vptq_model_stories260K)
words=(--text "$text" --context 256 --windows 4 -q)
kld() { "$BIN/vptq-eval" kld "$@"; }
kld -m "$perturbed" --base "$model" "${words[@]}" --format json >run.json
kld --base "$model" "${words[@]}" --save-base full --base-precision full >out.txt
expect_line out.txt '^saved 1020 tokens in 4 windows of 256 in full, '
kld --base "$model" "${words[@]}" --save-base top --base-top 64 --format json >out.json
[ "$(json_get base_file out.json)" = top ] || fail "base_file: $(cat out.json)"
kld -m "$perturbed" --base "$model" "${words[@]}" --save-base both --base-top 64 -t 1 --format json >both.json
expect_same top both "with or without a second model"
[ "$(json_get mean_kld both.json)" = "$(json_get mean_kld run.json)" ] || fail "recording changes it"
for name in full top; do
    kld -m "$perturbed" --base-file $name -q --format json >$name.json
    for key in ppl same_top1 tokens context protocol; do
        [ "$(json_get $key $name.json)" = "$(json_get $key run.json)" ] || fail "$name: $key"
    done
    for key in ppl_base ppl_ratio; do
        expect_near "$(json_get $key $name.json)" "$(json_get $key run.json)" 1e-6
    done
    [ "$(json_get base $name.json)" = stories260K-hf ] || fail "base: $(cat $name.json)"
done
expect_near "$(json_get mean_kld full.json)" "$(json_get mean_kld run.json)" 1e-4
# the file identifies its original by the fingerprint that other files use
"$BIN/vptq-eval" serve -q -m m="$model" --config 1,4,2 --runs 1 --warmup 0 -o served.jsonl >/dev/null
[ "$(json_get base_fingerprint full.json)" = "$(json_get model_fingerprint served.jsonl)" ] ||
    fail "fingerprint: $(cat full.json)"
[ "$(json_get base_fingerprint run.json)" = null ] || fail "fingerprint: $(cat run.json)"
expect_number "$(json_get mean_kld top.json)" '<' "$(json_get mean_kld run.json)"
expect_number "$(json_get base_tail top.json)" '>' 0
kld -m "$perturbed" --base-file top -q >out.txt
expect_line out.txt '^the divergence is a lower bound: '
kld -m "$perturbed" --base-file top --text "$text" --windows 2 -q --format json >out.json
[ "$(json_get tokens out.json)" = 510 ] || fail "tokens: $(cat out.json)"

# Not with another text, context, protocol or vocabulary; not over an existing file; not from a
# file of another kind.
expect_exit 1 kld -m "$model" --base-file top --tokens ids.i32 -q 2>err.txt
expect_line err.txt "^vptq-eval: top: saved from another text: ids.i32 has other tokens from token 0 on$"
expect_exit 1 kld -m "$model" --base-file top --context 128 -q 2>err.txt
expect_line err.txt 'top: saved with a context of 256 tokens, not of 128$'
kld -m "$model" --base-file top --windows 4 -q >out.txt
expect_exit 1 kld -m "$model" --base-file top --windows 5 -q 2>err.txt
expect_line err.txt '^vptq-eval: top: saved 4 windows, not 5$'
expect_exit 1 kld -m "$model" --base-file top --protocol llama.cpp -q 2>err.txt
expect_line err.txt 'top: saved by the gptq protocol, not by llama.cpp$'
expect_exit 1 kld -m "$SRC/tests/golden/tiny_mistral" --base-file top -q 2>err.txt
expect_line err.txt 'top: saved over a vocabulary of 512 ids, .*tiny_mistral has 48$'
expect_exit 1 kld --base "$model" "${words[@]}" --save-base top 2>err.txt
expect_line err.txt "'top' already exists"
kld --base "$model" --tokens ids.i32 --context 64 --windows 1 -q --save-base top -f >out.txt
expect_exit 1 kld -m "$model" --base-file ids.i32 -q 2>err.txt
expect_line err.txt 'ids.i32: is not a file of saved base logits, as --save-base writes it$'
head -c 5000 full >short.base
expect_exit 1 kld -m "$model" --base-file short.base -q 2>err.txt
expect_line err.txt 'short.base: the file has 5000 bytes, but 4 windows of 256 tokens need [0-9]*$'
sed 's/"▁with"/"@"/; s/"▁said"/"▁with"/; s/"@"/"▁said"/' "$model/tokenizer.json" >tokenizer.json
expect_exit 1 kld -m "$model" --tokenizer tokenizer.json --base-file full --text "$text" -q 2>err.txt
expect_line err.txt 'full: saved with another tokenizer: .* gives .*tiny.utf8 other tokens from token [0-9]* on$'

# Conflicting options.
usage() { expect_exit 2 kld "${@:2}" 2>err.txt; expect_line err.txt "$1"; }
usage 'missing option: --base MODEL or --base-file FILE' -m "$model" --text "$text"
usage 'missing option: --base MODEL or --base-file FILE' -m "$model" --base "$model" --base-file full --text "$text"
usage 'save-base needs --base MODEL' -m "$model" --base-file full --save-base x
usage 'missing option: -m/--model MODEL or --save-base FILE' --base "$model" --text "$text"
usage 'need --save-base' -m "$model" --base-file full --base-top 8
usage 'not with full' --base "$model" --text "$text" --save-base x --base-precision full --base-top 8
usage 'max-kld needs --model' --base "$model" --text "$text" --save-base x --max-kld 1
usage 'the number of likeliest ids to save is 0' --base "$model" "${words[@]}" --save-base x --base-top 0
[ ! -e x ] || fail "a refused run writes"
