# Token weights, held-out windows and a memory cap: the same bytes in every case, and their
# treatment by --show and --merge.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
args=(-m "$model" --tokenizer "$tok" -c "$text" -n 24 -l 256 --weights attention:0.5 --holdout 0.1)
collect() { "$BIN/vptq-hessian" "${args[@]}" "$@"; }

collect -o one -t 1 -q --format json > one.json
[ "$(json_get windows one.json)" = 21 ] || fail "windows"
[ "$(json_get windows_held_out one.json)" = 3 ] || fail "held-out windows"
collect -o two -t 2 -q --mem 8M
expect_same one two
[ -z "$(find two -name '*spill*')" ] || fail "the hidden states' file is still there"

# A killed run continues and ends with the same bytes.
"$BIN/vptq-hessian" "${args[@]}" -o killed -t 1 -q &
pid=$!
wait_for 60 test -e killed/holdout/layer_001_kv.safetensors
kill_and_wait "$pid"
collect -o killed -q --format json > rest.json
[ "$(json_get layers_reused rest.json)" -ge 1 ] || fail "finished layers were collected again"
expect_same one killed

# Plain Hessians do not depend on the weights; each part has its own directory.
"$BIN/vptq-hessian" "${args[@]}" --weights plain -o plain -q
for file in plain/*.safetensors plain/holdout/*.safetensors; do
    cmp -s "$file" "one/${file#plain/}" || fail "$file is another one with weights"
done
for dir in one one/holdout; do
    "$BIN/vptq-hessian" --show "$dir" --format json > show.json
    [ "$(json_get input show.json | grep -c '^kv$')" = 5 ] || fail "rows of kv in $dir"
done
[ "$(json_get tokens show.json | sort -u)" = 768 ] || fail "held-out tokens"

# Another kind or share of weights is a different run, another factor is not.
expect_exit 1 collect -o one --weights sink -q 2> err.txt
expect_line err.txt "key 'weights' is attention, this run's is sink"
expect_exit 1 collect -o one --holdout 0.5 -q 2> err.txt
expect_line err.txt "768 tokens held out, this run holds out 3072"
collect -o two --weights attention:2 -q --format json > again.json
[ "$(json_get layers_done again.json)" = 0 ] || fail "a finished collection was run again"
expect_line two/hessian.json '"weights_factor": 2.0'

"$BIN/vptq-hessian" --merge one killed -o pooled -q
for file in pooled/*_kv.safetensors pooled/holdout/*_kv.safetensors; do
    [ -e "$file" ] || fail "$file is missing"
done
expect_exit 1 "$BIN/vptq-hessian" --merge one plain -o x 2> err.txt
expect_line err.txt "different token weights"

for bad in sinks sink:x plain:1 attention:-1; do
    expect_exit 2 collect -o x --weights "$bad" 2> err.txt
    expect_line err.txt "token weights"
done
expect_exit 2 collect -o x --holdout 1 2> err.txt
expect_line err.txt "share of 1"
[ ! -e x ] || fail "an output was made"
