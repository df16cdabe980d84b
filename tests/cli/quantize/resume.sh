# The work directory: the same bytes for any thread count and after three kills; finished matrices
# are not quantized again.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 16 -l 256 -o h -q
args=(-m "$model" --tokenizer "$tok" -H h -k 64 -q)
quantize() { "$BIN/vptq-quantize" "${args[@]}" "$@"; }

quantize -o one -t 1 --format json > one.json
quantize -o two -t 2 > /dev/null
expect_same one two
[ "$(wc -l < one.json)" = 36 ] || fail "expected 35 matrices and the sums"
[ "$(wc -l < one/report.jsonl)" = 35 ] || fail "expected 35 rows in report.jsonl"
json_get proxy_loss one.json > loss.txt
json_get loss_kmeans one.json > kmeans.txt
paste loss.txt kmeans.txt | while read -r loss kmeans; do
    expect_number "$loss" '>' 0
    expect_number "$loss" '<' "$kmeans"
done

# The digest of the finished directory ends the report; a part of the layers has none.
want=$("$BIN/vptq-pack" -q --digest one)
[ "$(tail -n 1 one.json | json_get digest)" = "$want" ] || fail "digest in JSON: $(tail -n 1 one.json)"
[ "$(tail -n 1 one.json | json_get matrices)" = 35 ] || fail "matrices: $(tail -n 1 one.json)"
[ "$(tail -n 1 one.json | json_get work)" = one ] || fail "work: $(tail -n 1 one.json)"
quantize -o one > again.txt
[ "$(tail -n 1 again.txt)" = "digest $want" ] || fail "$(tail -n 1 again.txt), expected digest $want"
quantize -o layers --layers 0-1 > part.txt
! grep -q digest part.txt || fail "a digest of a part"
quantize -o layers --layers 2-4 --format json > rest.json
[ "$(tail -n 1 rest.json | json_get digest)" = "$want" ] || fail "digest of layers in turn"
quantize -o layers --layers 0-1 --dry-run > part.txt
! grep -q digest part.txt || fail "a digest of a dry run"

# Killed three times; each rerun continues.
for matrix in layer_000_k_proj layer_002_gate_proj layer_004_q_proj; do
    "$BIN/vptq-quantize" "${args[@]}" -o killed -t 1 > /dev/null &
    pid=$!
    wait_for 60 test -e "killed/$matrix.safetensors"
    kill_and_wait "$pid"
    expect_error 1 "'killed' holds an unfinished run .*" "$BIN/vptq-pack" -q killed -o x
done
quantize -o killed --format json > rest.json
[ "$(json_get reused rest.json | grep -c true)" -ge 29 ] || fail "finished matrices were made again"
expect_same one killed
no_leftovers killed

# A run that was killed between two layers, or before its first matrix, has no report of an earlier one.
"$BIN/vptq-quantize" "${args[@]}" -o layered --layers 0-1 > /dev/null
"$BIN/vptq-quantize" "${args[@]}" -o layered --layers 0-4 -t 1 > /dev/null &
pid=$!
wait_for 60 test ! -e layered/report.jsonl
kill_and_wait "$pid"
expect_error 1 "'layered' holds an unfinished run (matrix files: [0-9]*, rows of report.jsonl: 0); .*" \
    "$BIN/vptq-pack" -q layered -o x

# Interrupted: status 130, finished work is kept.
"$BIN/vptq-quantize" "${args[@]}" -o stopped -t 1 > /dev/null &
pid=$!
wait_for 60 test -e stopped/layer_000_q_proj.safetensors
interrupt "$pid" 0
quantize -o stopped > /dev/null
expect_same one stopped

# A damaged matrix is detected and quantized again.
printf x | dd of=stopped/layer_001_up_proj.safetensors bs=1 seek=900 conv=notrunc 2> /dev/null
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h -k 64 -o stopped > /dev/null 2> err.txt
expect_line err.txt "layer_001_up_proj.*quantized again"
expect_same one stopped

# So is an empty one; a file that cannot be read may be intact and is not replaced.
: > stopped/layer_001_up_proj.safetensors
quantize -o stopped > /dev/null
expect_same one stopped
mkdir moved
mv stopped/layer_003_o_proj.safetensors moved/
mkdir stopped/layer_003_o_proj.safetensors
expect_exit 1 "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h -k 64 -o stopped > /dev/null 2> err.txt
expect_line err.txt "cannot open 'stopped/layer_003_o_proj.safetensors': is a directory"
! grep -q "quantized again" err.txt || fail "a file that cannot be read counts as damaged"
rmdir stopped/layer_003_o_proj.safetensors
mv moved/layer_003_o_proj.safetensors stopped/
quantize -o stopped > /dev/null
expect_same one stopped

# Layers quantized in two runs equal those of one run.
quantize -o parts --layers 0-1 > /dev/null
[ "$(wc -l < parts/report.jsonl)" = 14 ] || fail "report of a part"
printf x | dd of=parts/layer_001_up_proj.safetensors bs=1 seek=900 conv=notrunc 2> /dev/null
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h -k 64 -o parts --layers 2-4 \
    > /dev/null 2> err.txt
expect_line err.txt "layer_001_up_proj.*report.jsonl leaves it out"
[ "$(wc -l < parts/report.jsonl)" = 34 ] || fail "report next to a damaged matrix"
quantize -o parts --layers 1-1 > /dev/null
expect_same one parts
