# Errors of a packed model against its original, in every format, and invalid input.
packed=$(data golden/vptq_model_stories260K)
base=$(data models/stories260K-hf)
text=$(data text/tinystories/tiny.utf8)
run() { "$BIN/vptq-eval" error -m "$packed" --base "$base" -q "$@"; }

run --format json >rows.json
[ "$(wc -l <rows.json)" -eq 35 ] || fail "$(wc -l <rows.json) rows"
head -n 7 rows.json | tail -n 1 >down.json
[ "$(json_get name down.json)" = down_proj ] || fail "$(cat down.json)"
[ "$(json_get rows down.json)" = 64 ] || fail "$(cat down.json)"
[ "$(json_get columns down.json)" = 172 ] || fail "$(cat down.json)"
[ "$(json_get outliers down.json)" = 4 ] || fail "$(cat down.json)"
[ "$(json_get proxy_loss down.json)" = null ] || fail "a loss without Hessians"
for key in relative_mse bits_per_weight v k k_res groups layer worst_row worst_row_mse; do
    json_get $key down.json >/dev/null
done

"$BIN/vptq-hessian" -m "$base" -c "$text" -o h -n 2 -l 128 -q
run -H h --layers 1-2 --format json >rows.json
[ "$(wc -l <rows.json)" -eq 14 ] || fail "$(wc -l <rows.json) rows"
json_get proxy_loss rows.json | while read -r loss; do
    expect_number "$loss" '>' 0
    expect_number "$loss" '<' 1
done
run -H h --layers 0 --format csv >rows.csv
head -n 1 rows.csv >head.csv
echo "layer,name,rows,columns,proxy_loss,relative_mse,bits_per_weight,v,k,k_res,groups,outliers,worst_row,worst_row_mse" \
    >want.csv
expect_same head.csv want.csv
[ "$(wc -l <rows.csv)" -eq 8 ] || fail "$(cat rows.csv)"
run --layers 0 --format md >rows.md
expect_line rows.md '^| 0 | q_proj | 64 | 64 | - |'
run --layers 0 >rows.txt
expect_line rows.txt '^layer  name'

# text has the worst first, CSV and JSON go by layer; --sort and --top change both
worst() { json_get "$1" "$2" | sort -g -r; }
run -H h --sort worst --format json >worst.json
run -H h --format json >layers.json
[ "$(sort worst.json)" = "$(sort layers.json)" ] || fail "other rows"
[ "$(json_get proxy_loss worst.json)" = "$(worst proxy_loss layers.json)" ] || fail "not the worst first"
run --format json >plain.json
run --sort worst --top 3 --format json >top.json
[ "$(json_get relative_mse top.json)" = "$(worst relative_mse plain.json | head -n 3)" ] || fail "not the worst 3"
run -H h >sorted.txt
first=$(head -n 1 worst.json)
expect_line sorted.txt '^Matrices, worst first$'
sed -n 3p sorted.txt >first.txt
expect_line first.txt "^ *$(json_get layer <<<"$first")  $(json_get name <<<"$first") "
expect_line sorted.txt '^all  *35  '
run -H h --sort layer --top 1 >layer.txt
sed -n 3p layer.txt >first.txt
expect_line first.txt '^ *0  q_proj '
run -H h --format html -o error.html
expect_alone error.html
expect_line error.html '<caption>The 20 worst matrices</caption>'
[ "$(grep -c '<svg ' error.html)" -eq 3 ] || fail "pictures"

expect_sentence 1 "Hessians are of a model with fingerprint" \
    "$BIN/vptq-eval" error -m "$packed" --base "$packed" -H h -q
expect_sentence 1 "no quantized matrix" "$BIN/vptq-eval" error -m "$base" --base "$base" -q
expect_sentence 1 "is not a version of" \
    "$BIN/vptq-eval" error -m "$packed" --base "$SRC/tests/golden/tiny_qwen2" -q
expect_sentence 1 "'error.html' already exists" \
    "$BIN/vptq-eval" error -m "$packed" --base "$base" -q --format html -o error.html
run --format html -o error.html -f
expect_sentence 2 "--layers 9-9: .* has layers 0 to 4" "$BIN/vptq-eval" error -m "$packed" --base "$base" --layers 9 -q

# A dry run estimates, refuses what a run refuses, and writes nothing.
run -H h --dry-run -o plan.html >plan.txt
expect_line plan.txt '^about .* s, .* of memory$'
run -H h --dry-run --format json >plan.json
for format in csv md html; do
    run -H h --dry-run --format $format >plan.txt
    [ ! -s plan.txt ] || fail "$format: $(cat plan.txt)"
done
for key in estimated_seconds peak_memory_bytes; do
    expect_number "$(json_get $key plan.json)" '>' 0
done
[ "$(json_get seconds_left_out plan.json) $(json_get disk_needed_bytes plan.json)" = "null 0" ] || fail "$(cat plan.json)"
[ ! -e plan.html ] || fail "a dry run wrote a report"
expect_sentence 1 "'error.html' already exists" run -o error.html --dry-run
expect_sentence 1 "no quantized matrix" "$BIN/vptq-eval" error -m "$base" --base "$base" -q --dry-run
expect_sentence 2 "--layers 9-9: .* has layers 0 to 4" run --layers 9 --dry-run
