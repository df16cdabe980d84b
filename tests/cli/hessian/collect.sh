# Collecting: a dry run, the same bytes for any thread count and after a kill, and --show.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
args=(-m "$model" --tokenizer "$tok" -c "$text" -n 24 -l 256 --weights plain)
collect() { "$BIN/vptq-hessian" "${args[@]}" "$@"; }

collect --dry-run --format json > plan.json
[ "$(json_get tokens plan.json)" = 6144 ] || fail "tokens of the plan"
[ "$(json_get layers_done plan.json) $(json_get layers_to_do plan.json)" = "0 5" ] || fail "layers of the plan"
[ "$(json_get dry_run plan.json)" = true ] || fail "$(cat plan.json)"
collect --dry-run --layers 1-3 > plan.txt
expect_line plan.txt ' 3 layers to do, '
collect -n 1 --layers 0-0 --dry-run > plan.txt
expect_line plan.txt '^plan: 1 window of 256 tokens, 1 layer to do, '
[ -z "$(find . -name '*.safetensors')" ] || fail "a dry run wrote Hessians"

# Windows are as long as the model's context where that is less than 2048.
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 4 --dry-run -q --format json > plan.json
[ "$(json_get window_length plan.json)" = 512 ] || fail "$(cat plan.json)"
[ "$(json_get tokens plan.json)" = 2048 ] || fail "$(cat plan.json)"

collect -n 2 -l 64 --layers 0-0 --holdout 0.5 -o single > single.txt 2> err.txt
expect_line single.txt '^single: 1 window of 64 tokens, 1 layer, .*, 1 window held out, '
expect_line err.txt '^hessian: 1 layer in '

collect -o one -t 1 -q
collect -o two -t 2 -q
expect_same one two
no_leftovers one

# The seed decides the sample.
collect -o seeded --seed 7 -q
if cmp -s one/layer_000_qkv.safetensors seeded/layer_000_qkv.safetensors; then
    fail "another seed drew the same windows"
fi

# A killed run continues and ends with the same bytes.
"$BIN/vptq-hessian" "${args[@]}" -o killed -t 1 -q &
pid=$!
wait_for 60 test -e killed/layer_001_down.safetensors
kill_and_wait "$pid"
# A dry run plans what is left, and writes nothing.
cp -r killed before
collect -o killed -q --dry-run --format json > plan.json
expect_same killed before
collect -o killed -q --format json > rest.json
[ "$(json_get layers_reused rest.json)" -ge 1 ] || fail "finished layers were collected again"
[ "$(json_get layers_to_do plan.json) $(json_get layers_reused plan.json)" = \
    "$(json_get layers_done rest.json) $(json_get layers_reused rest.json)" ] || fail "$(cat plan.json rest.json)"
expect_error 1 "^vptq-hessian: 'killed' holds hessians of another text" collect -o killed --seed 7 --dry-run
collect -o killed -f --seed 7 --dry-run > plan.txt
for plan in "" --dry-run; do
    # shellcheck disable=SC2086 # nothing or a word
    expect_error 1 "^vptq-hessian: cannot create directory 'plan.txt': File exists" collect -o plan.txt $plan
    # shellcheck disable=SC2086
    expect_error 1 "^vptq-hessian: cannot create directory 'plan.txt': File exists" collect -o plan.txt/x $plan
done
expect_line plan.txt ' 5 layers to do, '
expect_same one killed

# A finished directory is not touched.
collect -o one -q --format json > again.json
[ "$(json_get layers_done again.json)" = 0 ] || fail "a finished collection was run again"
collect -o one -q --dry-run > plan.txt
expect_line plan.txt ' 0 layers to do, .*, 5 layers kept$'
expect_line plan.txt '^about 0.0 s, [^,]* of memory$'

"$BIN/vptq-hessian" --show one --format json > show.json
[ "$(wc -l < show.json)" = 20 ] || fail "expected 20 rows"
[ "$(json_get tokens show.json | sort -u)" = 6144 ] || fail "tokens of the Hessians"
[ "$(json_get nan show.json | sort -u)" = 0 ] || fail "NaN"
"$BIN/vptq-hessian" --show one > show.txt
expect_line show.txt '20 of 20 hessians are good'

# Killed before the main hessian.json, which is written after the held-out one.
small=(-m "$model" --tokenizer "$tok" -c "$text" -n 8 -l 128 --layers 0-0 -q)
"$BIN/vptq-hessian" "${small[@]}" --holdout 0.25 -o whole
"$BIN/vptq-hessian" "${small[@]}" -o plain
begun() # OPTION..: a run in what was left
{
    mkdir -p early/holdout
    : > early/lock
    cp whole/holdout/hessian.json "early/$left"
    "$BIN/vptq-hessian" "${small[@]}" -o early "$@"
}
for left in holdout/hessian.json holdout/hessian.json.tmp.0123456789abcdef; do
    begun --holdout 0.25
    expect_same whole early "after $left"
    rm -r early
    begun
    expect_same plain early "after $left"
    rm -r early
done
mkdir -p early/holdout
cp whole/holdout/*.safetensors early/holdout
expect_error 1 "'early' is not a hessian directory: it holds 'holdout' and no hessian.json" \
    "$BIN/vptq-hessian" "${small[@]}" --holdout 0.25 -o early
cp whole/holdout/hessian.json early/holdout
expect_error 1 "'early' is not a hessian directory: it holds 'holdout' and no hessian.json" \
    "$BIN/vptq-hessian" "${small[@]}" -o early
