# A work directory, its packed directory and its archive are the same model to the last digit.
model=$(data models/stories260K-hf)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -m "$model" -c "$text" -n 8 -l 256 -o h -q > /dev/null
"$BIN/vptq-quantize" -m "$model" -H h -k 64 -v 4 --layers 0-2 -o work -q > /dev/null
"$BIN/vptq-pack" -q work -o dir -t 1 --format json > dir.json
"$BIN/vptq-pack" -q work -o dir2 -t 2 > /dev/null
expect_same dir dir2
"$BIN/vptq-pack" -q work -o one.vptq > /dev/null
"$BIN/vptq-pack" -q dir -o two.vptq > /dev/null
expect_same one.vptq two.vptq
[ "$(json_get matrices dir.json)" = 21 ] || fail "21 matrices expected"

nll() { stories nll -m "$@"; }
want=$(nll work)
[ "$(nll dir)" = "$want" ] || fail "packed directory: $(nll dir), work directory: $want"
[ "$(nll one.vptq)" = "$want" ] || fail "archive: $(nll one.vptq), work directory: $want"

"$BIN/vptq-pack" -q --check work > check.txt
expect_line check.txt "^warning: work: 21 of 35 matrices are quantized; the others are the original's$"
"$BIN/vptq-pack" -q --check dir > check.txt
expect_line check.txt "^dir: 0 errors, 0 warnings"

# Another storage type is rounded from the codebooks before rounding, with a warning.
"$BIN/vptq-pack" work -o bf16 --dtype bf16 > /dev/null 2> err.txt
expect_line err.txt "warning: .*rounding their codebooks to BF16"
"$BIN/vptq-pack" -q --list bf16 --format json > list.json
! grep -q '"dtype": "F16"' list.json || fail "F16 tensors in a bf16 directory"
expect_near "$(nll bf16)" "$want" 0.02

# A dry run: rows, and a size close to the result.
"$BIN/vptq-pack" -q work -o nowhere --dry-run --format json > plan.json
[ ! -e nowhere ] || fail "a dry run wrote something"
expect_near "$(json_get total_bytes plan.json | tail -n 1)" "$(json_get total_bytes dir.json)" 0.1

# The base model in another place.
cp -r "$model" moved
"$BIN/vptq-pack" -q work -o dir3 --base moved > /dev/null
expect_same dir dir3
cp -r work lost
sed -i 's|"base_model": "[^"]*"|"base_model": "/no-such-model"|' lost/quantize.json
expect_exit 1 "$BIN/vptq-pack" -q --list lost > out.txt 2> err.txt
expect_line err.txt "lost/quantize.json: the file is damaged: its checksum is .*, expected"
reseal lost/quantize.json "$BIN/vptq-pack" -q --list lost
for command in "vptq-pack -o out" "vptq-pack --list" "vptq-pack --check" "vptq-pack --unpack -o out" \
    "vptq-eval ppl --text $text"; do
    read -r -a words <<< "$command"
    expect_exit 1 "$BIN/${words[0]}" "${words[@]:1}" -q -m lost > out.txt 2> err.txt
    expect_line err.txt "lost: its base model (--base names another): .*/no-such-model.*No such file"
done
"$BIN/vptq-pack" -q --list lost --base moved > /dev/null
"$BIN/vptq-pack" -q --check lost --base moved > check.txt
expect_line check.txt "^lost: 0 errors"
[ "$(nll lost --base moved)" = "$want" ] || fail "with --base: $(nll lost --base moved)"

# A run that has not finished, which writes its report last: refused, also by --check, unless --partial is given.
cp -r work unfinished
rm unfinished/report.jsonl
cp -r work missing
rm missing/layer_001_q_proj.safetensors
for command in "vptq-pack -o out" "vptq-pack --unpack -o out" "vptq-pack --digest" "vptq-eval ppl --text $text" \
    "vptq-eval kld --base $model --text $text" "vptq-eval error --base $model" "vptq-eval serve --config 1,8,2" \
    "vptq-eval tasks --task copa=$SRC/tests/golden/tasks/copa.jsonl" "vptq-eval generate -p a"; do
    read -r -a words <<< "$command"
    expect_error 1 "'unfinished' holds an unfinished run (matrix files: 21, rows of report.jsonl: 0); .*" \
        "$BIN/${words[0]}" "${words[@]:1}" -q -m unfinished
done
expect_error 1 "'missing' holds an unfinished run (matrix files: 20, rows of report.jsonl: 21); .*" \
    "$BIN/vptq-pack" -q missing -o out
expect_exit 3 "$BIN/vptq-pack" -q --check unfinished > check.txt
expect_line check.txt "'unfinished' holds an unfinished run (matrix files: 21, .*); 14 of the model's 35 matrices are not quantized; run its"
[ "$("$BIN/vptq-pack" -q --list unfinished --format json | wc -l)" = \
    "$("$BIN/vptq-pack" -q --list work --format json | wc -l)" ] || fail "--list refuses an unfinished run"
"$BIN/vptq-pack" -q unfinished --partial -o partial > /dev/null
expect_same dir partial
[ "$(nll unfinished --partial)" = "$want" ] || fail "with --partial: $(nll unfinished --partial)"
expect_error 1 "'unfinished' holds an unfinished run .*" \
    "$BIN/vptq-quantize" --from unfinished --tune e2e -c "$text" -o out -q

# An invalid manifest is a bad file, not a usage error.
sed -i 's|"dtype": "f16"|"dtype": "q4"|' lost/quantize.json
expect_exit 1 "$BIN/vptq-pack" -q lost -o out --base moved 2> err.txt
expect_line err.txt "lost/quantize.json: key 'dtype' is 'q4', expected f16 or bf16"
