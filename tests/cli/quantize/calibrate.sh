# Calibration inside the run: the same as with a Hessian directory of the same windows;
# sequential runs give the same bytes for any thread count, memory cap and interruption.
long_if_instrumented
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
windows=(-c "$text" -n 24 -l 256)
quantize() { "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -k 64 -q "$@"; }

# Not sequential: the same bytes as with two commands.
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" "${windows[@]}" --weights sink --holdout 0.1 \
    -o h -q
quantize -H h --layers 0-1 -o two_steps > out.txt
quantize "${windows[@]}" --weights sink --holdout 0.1 --layers 0-1 -o one_step > out.txt
expect_same two_steps one_step
quantize "${windows[@]}" --weights sink --holdout 0.1 --layers 0-1 -o one_step > out.txt
expect_line out.txt "14 matrices (14 kept)"

# Sequential.
run=("${windows[@]}" --sequential --weights sink:0.2)
quantize "${run[@]}" -o one -t 1 > out.txt
others() { find "$1" -type f ! -name '*_proj*' -printf '%f\n' | sort | paste -s -d ' '; }
[ "$(others one)" = "lock quantize.json report.jsonl" ] || fail "left: $(others one)"
quantize "${run[@]}" -o two -t 2 --mem 16M > out.txt
expect_same one two
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -k 64 -q "${run[@]}" -o killed -t 1 > out.txt &
pid=$!
wait_for 60 test -e killed/layer_002_q_proj.safetensors
kill_and_wait "$pid"
rm -f killed/layer_001_up_proj.safetensors killed/layer_002_q_proj.safetensors # as if damaged
quantize "${run[@]}" -o killed > out.txt
expect_line out.txt "35 matrices ([0-9]* kept)"
expect_same one killed

# The first matrices have unquantized inputs; later ones gain from their corrected targets.
json_get alpha one/report.jsonl > alpha.txt
[ "$(wc -l < alpha.txt)" = 35 ] || fail "a row has no alpha"
[ "$(head -n 3 alpha.txt | sort -u)" = 0.0 ] || fail "targets of q, k and v of block 0"
expect_number "$(tail -n 7 alpha.txt | sort -n | head -n 1)" ">" 0
expect_number "$(json_get alpha_gain one/report.jsonl | tail -n 2 | sort -n | head -n 1)" ">" 0.01 # up, down
json_get alpha_damping one/report.jsonl | sort -u > damping.txt
grep -qvE '^(0.0|0.01|0.10*1?|1.0)$' damping.txt && fail "dampings: $(cat damping.txt)"

# Without held-out windows the correction cannot be chosen: targets are not corrected.
quantize "${windows[@]}" --sequential --holdout 0 --layers 0-1 -o none > out.txt
[ "$(json_get alpha none/report.jsonl | sort -u)" = 0.0 ] || fail "alpha without held-out windows"

# Sequential calibration lowers the divergence.
tail -c 10240 "$(data models/stories260K-hf/ppl_tokens.npy)" | od -An -v -t u2 -w2 |
    perl -ne 'print pack("l<", $_)' > ppl.i32
quantize "${windows[@]}" --weights sink:0.2 -o shot > out.txt
for work in shot one; do
    "$BIN/vptq-eval" ppl -m $work --tokens ppl.i32 --context 256 -q --format json > $work.json
done
expect_number "$(json_get ppl one.json)" "<" "$(json_get ppl shot.json)"
# Corrected targets lower it further than quantized inputs alone.
quantize "${run[@]}" --holdout 0.1 --correction 0 -o inputs > out.txt
[ "$(json_get alpha inputs/report.jsonl | sort -u)" = 0.0 ] || fail "alpha without correction"
"$BIN/vptq-eval" ppl -m inputs --tokens ppl.i32 --context 256 -q --format json > inputs.json
expect_number "$(json_get ppl one.json)" "<" "$(json_get ppl inputs.json)"

# A bit budget: measured on Hessians of the original model, as with a directory.
budget()
{
    "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -b 3.5 -q --allocate kl --allocate-text "$text" \
        --allocate-windows 1 --allocate-length 64 "$@"
}
budget -H h -o by_dir > out.txt
budget "${windows[@]}" --weights sink --holdout 0.1 --dry-run -o by_text > out.txt
expect_same by_dir/sensitivity.json by_text/sensitivity.json
[ "$(others by_text)" = "lock sensitivity.json" ] || fail "left: $(others by_text)"
budget "${windows[@]}" --weights sink --holdout 0.1 -o by_text > out.txt
expect_same by_dir by_text
budget "${windows[@]}" --weights sink --sequential --holdout 0.1 --layers 0-1 -o in_order > out.txt
expect_same by_dir/sensitivity.json in_order/sensitivity.json
cmp by_dir/layer_000_q_proj.safetensors in_order/layer_000_q_proj.safetensors > /dev/null &&
    fail "the first block is of the same run"
for key in v k k_res; do
    json_get "$key" by_dir/report.jsonl | head -n 14 > one.txt
    json_get "$key" in_order/report.jsonl > two.txt
    expect_same one.txt two.txt
done

# A run with another calibration is a different run; later layers need the earlier ones.
expect_exit 1 quantize "${windows[@]}" --weights sink:0.2 --holdout 0.1 -o one > out.txt 2> err.txt
expect_line err.txt "key 'calibration'"
expect_exit 1 quantize "${run[@]}" --layers 1-1 -o later > out.txt 2> err.txt
expect_line err.txt "layer_000_q_proj.safetensors is missing: sequential calibration"
quantize "${run[@]}" --layers 0-0 -o later > out.txt
quantize "${run[@]}" --layers 1-4 -o later > out.txt
cp -r later holes
rm holes/layer_002_up_proj.safetensors
expect_exit 1 quantize "${run[@]}" --layers 4-4 -o holes > out.txt 2> err.txt
expect_line err.txt "holes/layer_002_up_proj.safetensors is missing: sequential calibration"
expect_same later/report.jsonl holes/report.jsonl
for file in one/*_proj.safetensors; do
    cmp "$file" "later/${file#one/}" || fail "layers one after another: ${file#one/}"
done

expect_exit 2 quantize -H h "${windows[@]}" -o x 2> err.txt
expect_line err.txt "exclude each other"
expect_exit 2 quantize "${windows[@]}" --correction 0.5 -o x 2> err.txt
expect_line err.txt "--correction needs --sequential"
expect_exit 2 quantize -H h --sequential -o x 2> err.txt
expect_line err.txt "needs a calibration text"
expect_exit 2 quantize "${windows[@]}" --weights plain --kv-factor 1 -o x 2> err.txt
expect_line err.txt "needs --weights"
expect_exit 2 quantize "${windows[@]}" --weights sinks -o x 2> err.txt
expect_exit 2 quantize "${windows[@]}" -l 1 -o x 2> err.txt
expect_exit 1 quantize -c nothing -o x 2> err.txt
expect_line err.txt "nothing"
[ ! -e x ] || fail "an output was made"

# Lossless codes: the quantized hidden states equal the original ones bit by bit.
perl -e 'for my $i (1..4096) { print pack("l<", ($i * $i * 7 + $i * 3) % 47) }' > ids.i32
"$BIN/vptq-quantize" -m "$SRC/tests/golden/tiny_mistral" --tokens ids.i32 -l 32 --sequential -v 1 \
    -k 4096 --no-norm --dtype bf16 -o exact -q > out.txt 2> err.txt
[ "$(json_get proxy_loss exact/report.jsonl | sort -u)" = 0.0 ] || fail "something was lost"
[ "$(json_get alpha exact/report.jsonl | sort -u)" = 0.0 ] || fail "a target was moved"
[ "$(json_get alpha_gain exact/report.jsonl | sort -u)" = 0.0 ] || fail "a gain by nothing"

# A text that is too short is said once, although the run samples its windows again, for a budget a third time.
head -c 20000 "$text" >brief.txt
for options in "-k 16" "-k 16 --sequential" "-b 3 --allocate proxy" "-k 16 --dry-run" "-b 3 --allocate proxy --dry-run"; do
    rm -rf brief
    # shellcheck disable=SC2086 # words
    "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -c brief.txt -n 1000 -l 128 --layers 0-0 -o brief $options \
        >out.txt 2>err.txt
    [ "$(grep -c 'the text has only 75 of the 1000 windows of 128 tokens' err.txt)" = 1 ] || fail "$options: $(cat err.txt)"
done
