# Matrices that a recipe skips stay in 16 bits: they have no file, and need no Hessian; budgets, reports, packed
# models and digests go without them.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 8 -l 64 -o h -q
run() { "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -q -k 16 "$@"; }
sums() { (cd "$1" && sha256sum layer_*); }

cat > r.json <<'JSON'
{"rules": [
  {"match": "down_proj", "skip": true},
  {"match": "layers.2.mlp.down_proj", "settings": {"centroids": 32}},
  {"match": "*", "layers": "4", "skip": true}]}
JSON
rm h/layer_000_down.safetensors h/layer_004_*.safetensors # which nothing reads
run -H h -o w --recipe r.json > out.txt
expect_line out.txt "^25 matrices, 10 skipped, .* bits per weight"
[ "$(sums w | wc -l)" = 25 ] || fail "$(ls w)"
[ ! -e w/layer_000_down_proj.safetensors ] || fail "a matrix that is skipped has a file"
[ -e w/layer_002_down_proj.safetensors ] || fail "a later rule has settings for it"
expect_line w/quantize.json '"model.layers.0.mlp.down_proj": {'
run -H h -o w --recipe r.json --format json | tail -n 1 > end.json
[ "$(json_get matrices end.json) $(json_get matrices_skipped end.json)" = "25 10" ] || fail "$(cat end.json)"

# The other matrices are those of a run without the rules.
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 8 -l 64 -o all -q
run -H all -o plain > out.txt
cmp <(tail -c 1024 w/layer_001_o_proj.safetensors) <(tail -c 1024 plain/layer_001_o_proj.safetensors) ||
    fail "o_proj differs"

# Complete for every reader: packed, and with a digest that the packed forms share.
digest=$("$BIN/vptq-pack" -q --digest w)
expect_line end.json "\"digest\": \"$digest\""
"$BIN/vptq-pack" -q --check w > check.txt
expect_line check.txt "^w: 0 errors, 0 warnings"
"$BIN/vptq-pack" -q w -o w.vptq > out.txt
"$BIN/vptq-pack" -q w --to hf -o w.hf > out.txt
"$BIN/vptq-eval" ppl -m w --text "$text" --windows 2 -q --format json > w.json
for form in w.vptq w.hf; do
    [ "$("$BIN/vptq-pack" -q --digest $form)" = "$digest" ] || fail "$form has another digest"
    "$BIN/vptq-eval" ppl -m $form --text "$text" --windows 2 -q --format json > form.json
    [ "$(json_get ppl form.json)" = "$(json_get ppl w.json)" ] || fail "$form: $(cat form.json)"
done
"$BIN/vptq-pack" -q --list w.vptq > list.txt
expect_line list.txt "^model.layers.0.mlp.down_proj.weight *64 *172 F16"

# All but one.
cat > one.json <<'JSON'
{"rules": [
  {"match": "*", "skip": true},
  {"match": "layers.0.self_attn.q_proj", "settings": {"centroids": 16}}]}
JSON
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H all -o one --recipe one.json > out.txt 2> err.txt
expect_line out.txt "^1 matrix, 34 skipped, "
expect_line err.txt "^quantize: 1 matrix in "
"$BIN/vptq-pack" -q one -o one.vptq > out.txt
expect_line out.txt "^one.vptq: archive, 1 matrix at "
"$BIN/vptq-pack" -q --list one.vptq > out.txt
expect_line out.txt "^one.vptq: 1 quantized matrix at "

# So do other codes: the config of uniform ones lists what is plain, here o_proj, layer 1 and the head.
echo '{"rules": [{"match": "o_proj", "skip": true}, {"match": "*", "layers": "1", "skip": true}]}' > o.json
for method in rtn gptvq; do
    [ $method = gptvq ] && groups=() || groups=(--group-size 4)
    "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -q -H all --method $method "${groups[@]}" --recipe o.json -o $method > out.txt
    digest=$("$BIN/vptq-pack" -q --digest $method)
    "$BIN/vptq-pack" -q $method -o $method.vptq > out.txt
    [ "$("$BIN/vptq-pack" -q --digest $method.vptq)" = "$digest" ] || fail "$method.vptq has another digest"
done
"$BIN/vptq-pack" -q rtn --to hf -o rtn.hf > out.txt
[ "$("$BIN/vptq-pack" -q --digest rtn.hf)" = "$("$BIN/vptq-pack" -q --digest rtn)" ] || fail "rtn.hf has another digest"
plain=$(sed -n '/"ignore"/,/]/p' rtn.hf/config.json | grep -c '"model.layers.*_proj"\|"lm_head"')
[ "$plain" = 12 ] || fail "$(cat rtn.hf/config.json)"

# A sequential calibration runs them as they are, and goes on after any layer.
sequential() { run -c "$text" -n 8 -l 64 --sequential --recipe r.json "$@"; }
sequential -o s > out.txt
sequential -o t --layers 0-1 > out.txt
sequential -o t > out.txt
[ "$(sums s)" = "$(sums t)" ] || fail "the second part differs"

# A budget is one of the others; a budget for the file counts 16 bits for them.
"$BIN/vptq-quantize" -m "$model" -q -H all -b 3 --recipe r.json --dry-run --format json | sed -n "s/.*\"totals\": //p" > plan.json
awk -v b="$(json_get bits_per_weight plan.json)" 'BEGIN { exit !(b > 2.8 && b <= 3) }' || fail "$(cat plan.json)"
"$BIN/vptq-quantize" -m "$model" -q -H all -b 8 --budget file --recipe r.json --dry-run --format json | sed -n "s/.*\"totals\": //p" > plan.json
awk -v b="$(json_get file_bits_per_weight plan.json)" 'BEGIN { exit !(b > 7.5 && b <= 8) }' || fail "$(cat plan.json)"
"$BIN/vptq-quantize" -m "$model" -q --tokenizer "$tok" -c "$text" -n 8 -l 64 -b 3 --allocate kl --recipe r.json -o kl > out.txt
expect_line out.txt "^25 matrices, 10 skipped"

# The least and the largest budget for the file, which messages name, count them too.
echo '{"rules": [{"match": "mlp.*", "skip": true}]}' > mlp.json
file() { "$BIN/vptq-quantize" -m "$model" -q -H all --budget file --recipe mlp.json --dry-run -b "$@"; }
expect_error 2 "of the file leaves 0.0000 for the matrices, .*; the file needs 12.6921" file 3
file 12.6922 > out.txt
expect_error 2 "of the file is above the largest that the settings to choose from can use, 14.8974" file 15
file 14.8974 > out.txt

# A model card and the table of an ablation name them.
run -c "$text" -n 8 -l 64 --recipe r.json -o card --to hf > out.txt
expect_line card/README.md "^| matrices in 16 bits | 10 |"
echo '[{"name": "all"}, {"name": "skips", "recipe": "r.json"}]' > rows.json
ablate() { "$BIN/vptq-eval" ablate -q -m "$model" --tokenizer "$tok" --text "$text" --table rows.json --dry-run "$@"; }
ablate > out.txt
expect_line out.txt "^recipe: matrices that it skips stay in 16 bits and count only in archive bytes"
ablate --only all > out.txt
! grep -q '^recipe' out.txt || fail "$(cat out.txt)"

# Tuning leaves them alone, without a warning of missing ones.
"$BIN/vptq-quantize" -q --tokenizer "$tok" -c "$text" -n 12 -l 64 --from w --tune e2e --steps 2 -o tuned > out.txt 2> err.txt
[ ! -s err.txt ] || fail "$(cat err.txt)"
[ "$(sums tuned | wc -l)" = 25 ] || fail "$(ls tuned)"
expect_line out.txt "^digest vptq1:"

# Refused before any work.
echo '{"rules": [{"match": "*", "skip": true}]}' > all.json
expect_error 1 "all.json: skips all matrices of layers 0-4" run -H all -o x --recipe all.json
echo '{"rules": [{"match": "up_proj", "skip": true}]}' > up.json
expect_error 2 "layers.0.mlp.up_proj: a recipe cannot skip single matrices of a layer with awq or smooth" \
    "$BIN/vptq-quantize" -m "$model" -q -H all --method awq -o x --recipe up.json
[ ! -e x ] || fail "a work directory was made"
echo '{"rules": [{"match": "*", "layers": "1-4", "skip": true}]}' > most.json
"$BIN/vptq-quantize" -m "$model" -q -H all --method awq --fit-groups true --group-size 32 -o awq --recipe most.json > out.txt
expect_line out.txt "^7 matrices, 28 skipped"
