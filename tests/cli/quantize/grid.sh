# Codebooks on an int8 grid: every reader decodes the same numbers, at little loss; the setting identifies the run.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 8 -l 256 -o h -q
quantize() { "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h -v 4 -k 32 -r 16 -qq "$@"; }
nll() { "$BIN/vptq-eval" ppl -m "$@" --tokenizer "$tok" --text "$text" --context 256 --windows 8 -qq --format json | json_get nll; }

quantize -o none > /dev/null
quantize -o grid --codebook-grid int8 --format json > rows.json
[ "$(grep -c '"settings": {.*"codebook_grid": "int8"}' rows.json)" = 35 ] || fail "rows: $(head -n 1 rows.json)"
[ "$(json_get loss_grid rows.json | wc -l)" = 35 ] || fail "no loss of the step"
expect_line grid/quantize.json '"codebook_grid": "int8"'
! grep -q codebook_grid none/quantize.json || fail "the key is not needed without a grid"
mean() { json_get proxy_loss "$1/report.jsonl" | awk '{ s += $1 } END { printf "%.12g", s / NR }'; }
expect_number "$(mean grid)" '<' "$(mean none | awk '{ print 1.01 * $1 }')"
quantize -o two --codebook-grid int8 -t 2 > /dev/null
expect_same grid two

# The setting cannot change within a run, in either direction.
expect_error 1 "quantize.json belongs to another run: its key 'settings.codebook_grid' is \"int8\", here it is missing" \
    quantize -o grid
expect_error 1 "its key 'settings.codebook_grid' is missing, here it is \"int8\"" quantize -o none --codebook-grid int8

# A rule takes single matrices off the grid.
echo '{"rules": [{"match": "v_proj", "settings": {"codebook_grid": "none"}}]}' > rule.json
quantize -o rule --codebook-grid int8 --recipe rule.json --layers 0-0 --format json > rule.rows
[ "$(json_get loss_grid rule.rows | wc -l)" = 6 ] || fail "v_proj is on a grid"

# All forms are the same model.
"$BIN/vptq-pack" grid -o hf -qq > /dev/null
"$BIN/vptq-pack" grid -o grid.vptq --to archive -qq > /dev/null
"$BIN/vptq-pack" --check hf -qq > check.txt
expect_line check.txt '^hf: 0 errors, 0 warnings'
want=$(nll grid)
for form in hf grid.vptq; do
    [ "$(nll $form)" = "$want" ] || fail "$form: nll $(nll $form), expected $want"
done
