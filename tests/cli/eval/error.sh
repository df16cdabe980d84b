# Errors of a packed model against its original, in every format, and what is refused.
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
for key in relative_mse bits_per_weight v k k_res groups layer; do
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
echo "layer,name,rows,columns,proxy_loss,relative_mse,bits_per_weight,v,k,k_res,groups,outliers" \
    >want.csv
expect_same head.csv want.csv
[ "$(wc -l <rows.csv)" -eq 8 ] || fail "$(cat rows.csv)"
run --layers 0 --format md >rows.md
expect_line rows.md '^| 0 | q_proj | 64 | 64 | - |'
run --layers 0 >rows.txt
expect_line rows.txt '^layer  name'

# refused STATUS PATTERN COMMAND..
refused()
{
    local status=$1 pattern=$2
    shift 2
    expect_exit "$status" "$@" >out.txt 2>err.txt
    [ ! -s out.txt ] || fail "something on stdout: $*"
    [ "$(wc -l <err.txt)" -eq 1 ] || fail "not one line: $(cat err.txt)"
    expect_line err.txt "$pattern"
}
refused 1 "Hessians are of a model with fingerprint" \
    "$BIN/vptq-eval" error -m "$packed" --base "$packed" -H h -q
refused 1 "no quantized matrix" "$BIN/vptq-eval" error -m "$base" --base "$base" -q
refused 1 "is not a version of" \
    "$BIN/vptq-eval" error -m "$packed" --base "$SRC/tests/golden/tiny_qwen2" -q
refused 2 "layers 9 to 9" "$BIN/vptq-eval" error -m "$packed" --base "$base" --layers 9 -q
