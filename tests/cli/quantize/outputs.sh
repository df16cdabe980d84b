# Output Hessians: a model that diverges less at the same bits, in one run as from a directory, sequentially too; the
# same bytes for any thread count and after a kill.
long_if_instrumented
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
other=$(data text/tinystories/tinystories_v2_sample.txt)
from=(-m "$model" --tokenizer "$tok")
text=(-c "$text" -n 24 -l 256)
quantize() { "$BIN/vptq-quantize" "${from[@]}" -v 2 -k 64 -q "$@" > /dev/null; }
divergence()
{
    "$BIN/vptq-eval" kld -m "$1" --base "$model" --tokenizer "$tok" --text "$other" --context 256 --windows 8 \
        --format json -q > kld.json
    json_get mean_kld kld.json
}

quantize "${text[@]}" -o plain
quantize "${text[@]}" --outputs 8 -o one -t 1
quantize "${text[@]}" --outputs 8 -o two -t 4
expect_same one two
no_leftovers one
[ ! -e one/outputs.safetensors ] || fail "a finished run leaves its output Hessians"
expect_number "$(divergence one)" '<' "$(divergence plain | awk '{ print 0.8 * $1 }')"
for w in plain one; do
    "$BIN/vptq-pack" -q --digest $w > $w.digest
    json_get bits_per_weight $w/report.jsonl > $w.bits
done
expect_same plain.bits one.bits
! cmp -s plain.digest one.digest || fail "no effect"
[ "$(json_get output_loss one/report.jsonl | wc -l)" = 35 ] || fail "rows without their loss"
! grep -q output plain/report.jsonl || fail "a loss without output Hessians"
! grep -q output plain/quantize.json || fail "output Hessians without the option"

# From a directory that has them: the same matrices.  --outputs 0 does without.
"$BIN/vptq-hessian" "${from[@]}" "${text[@]}" --outputs 8 -o h -q
quantize -H h -o from_h
quantize -H h --outputs 0 -o from_h0
[ "$("$BIN/vptq-pack" -q --digest from_h)" = "$(cat one.digest)" ] || fail "another model than in one run"
[ "$("$BIN/vptq-pack" -q --digest from_h0)" = "$(cat plain.digest)" ] || fail "--outputs 0 has no effect"
expect_error 1 "from_h/quantize.json belongs to another run: its key 'output_fingerprint' is \"[0-9a-f]*\", here it is missing.*" \
    quantize -H h --outputs 0 -o from_h

# Sequentially, after a kill.
sequential=("${text[@]}" --sequential --outputs 8)
quantize "${sequential[@]}" -o all
"$BIN/vptq-quantize" "${from[@]}" -v 2 -k 64 "${sequential[@]}" -o killed -t 1 -q > /dev/null &
pid=$!
wait_for 60 test -e killed/layer_001_q_proj.safetensors
kill_and_wait "$pid"
quantize "${sequential[@]}" -o killed
expect_same all killed
quantize "${text[@]}" --sequential -o without
expect_number "$(divergence all)" '<' "$(divergence without | awk '{ print 0.8 * $1 }')"

# Another number of windows is another run; settings without refits make no use of them.
expect_error 1 "one/quantize.json belongs to another run: its key 'output_fingerprint' is .*" \
    quantize "${text[@]}" --outputs 4 -o one
"$BIN/vptq-quantize" "${from[@]}" -v 2 -k 64 "${text[@]}" --outputs 2 --refits 0 --layers 0-0 -o norefits > /dev/null \
    2> err.txt
expect_line err.txt '7 matrices are quantized without refits: output Hessians have no effect on them'

"$BIN/vptq-quantize" "${from[@]}" -v 2 -k 64 -H h --dry-run --backend cuda > /dev/null 2> err.txt
expect_line err.txt 'the predicted time leaves out output Hessians and the steps under them'

# Bad input: an interrupted collection, the output Hessians of another model or run.
cp -r h damaged
rm damaged/outputs.safetensors
expect_error 1 "'damaged' has no output Hessians of 8 windows (outputs.safetensors is missing; .*" quantize -H damaged -o new
"$BIN/vptq-hessian" "${from[@]}" "${text[@]}" --outputs 3 -o h3 -q
cp h3/outputs.safetensors damaged
expect_error 1 'damaged/outputs.safetensors: has output Hessians of 3 windows, hessian.json expects 8 (.*' \
    quantize -H damaged -o new
expect_error 1 'damaged/outputs.safetensors: has output Hessians of 3 windows, .*' "$BIN/vptq-hessian" --show damaged
cp "$model" other.bin
printf x | dd of=other.bin bs=1 seek=5000 conv=notrunc 2> /dev/null
"$BIN/vptq-hessian" -m other.bin --tokenizer "$tok" "${text[@]}" --outputs 8 -o h_other -q
cp h_other/outputs.safetensors damaged
expect_error 1 'damaged/outputs.safetensors: is of another model: its model_fingerprint is .*' \
    quantize -H damaged -o new
sed 's/8262ec3d841f9595/8262ec3d841f9596/' h/outputs.safetensors > damaged/outputs.safetensors
expect_error 1 'damaged/outputs.safetensors: .*checksum.*' quantize -H damaged -o new
quantize -H damaged --outputs 0 --layers 0-0 -o without_k
expect_error 2 '--outputs needs a calibration text .*' "$BIN/vptq-eval" ablate -m "$model" -H h --outputs 2 --text "$other" -o new
expect_error 2 '--outputs needs a calibration text .*' quantize -H h --outputs 2 -o new
printf x | dd of=h/outputs.safetensors bs=1 seek=9000 conv=notrunc 2> /dev/null
expect_error 1 'h/outputs.safetensors: .*' quantize -H h -o new
