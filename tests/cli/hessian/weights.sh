# Token weights, held-out windows and a memory cap: the same bytes in every case, and their
# treatment by --show and --merge.
long_if_instrumented
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

# Guided weights: a term for every linear layer.
gargs=(-m "$model" --tokenizer "$tok" -c "$text" -n 24 -l 256 --weights guided --holdout 0.1 -q)
guided() { "$BIN/vptq-hessian" "${gargs[@]}" "$@"; }
guided -o g1 -t 1
guided -o g2 -t 2 --mem 24M
expect_same g1 g2
for file in plain/*.safetensors plain/holdout/*.safetensors; do
    cmp -s "$file" "g1/${file#plain/}" || fail "$file is another one with guided weights"
done
for dir in g1 g1/holdout; do
    "$BIN/vptq-hessian" --show "$dir" --format json > show.json
    for name in q k v o gate up down; do
        [ "$(json_get input show.json | grep -c "^guided_$name\$")" = 5 ] || fail "guided_$name in $dir"
    done
done
[ ! -e g1/saliency.state ] || fail "the checkpoint of a finished run is still there"

# Killed while it measures saliencies, and again later.
for file in saliency.state layer_001_guided_q.safetensors; do
    "$BIN/vptq-hessian" "${gargs[@]}" -o gk -t 1 &
    pid=$!
    wait_for 60 test -e "gk/$file"
    kill_and_wait "$pid"
done
guided -o gk
expect_same g1 gk

# Labels are drawn: another seed measures other saliencies of the same text.
expect_exit 1 guided -o g2 --seed 5 2> err.txt
expect_line err.txt "another text, seed or window length"
"$BIN/vptq-hessian" --merge g1 gk -o gm -q
cmp -s g1/layer_002_guided_o.safetensors gm/layer_002_guided_o.safetensors &&
    fail "a merged term has twice the windows"
[ -e gm/holdout/layer_004_guided_down.safetensors ] || fail "the merged held-out terms are missing"
expect_exit 2 guided -o x --weights guided:1.5 2> err.txt
expect_line err.txt "guided weights is 1.5, expected 0 to 1"

# Quantizing minimizes them, one-shot from a directory or in the run, and reports plain losses.
quantize() { "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -v 4 -k 64 -q "$@"; }
quantize -H g1 -o wh
quantize -c "$text" -n 24 -l 256 --weights guided --holdout 0.1 -o wc
digest() { "$BIN/vptq-pack" --digest "$1"; }
[ "$(digest wh)" = "$(digest wc)" ] || fail "the same Hessians, other matrices"
quantize -H g1 --kv-factor 0 -o wp
quantize -H plain -o wq
[ "$(digest wp)" = "$(digest wq)" ] || fail "a factor of 0 is not plain"
[ "$(digest wh)" != "$(digest wq)" ] || fail "guided weights changed nothing"
expect_exit 2 quantize -H g1 --kv-factor 2 -o x 2> err.txt
expect_line err.txt "guided weights is 2, expected 0 to 1"
quantize -c "$text" -n 24 -l 256 --weights guided --sequential -o ws
[ ! -e ws/saliency.state ] || fail "the checkpoint of a finished run is still there"

# Measurements for a budget use them, too: killed between the two, the run goes on.
budget=(-m "$model" --tokenizer "$tok" -c "$text" -n 24 -l 256 --weights guided -b 3 -q \
    --allocate kl --allocate-text "$text" --allocate-windows 1 --allocate-length 64)
"$BIN/vptq-quantize" "${budget[@]}" -o b1
"$BIN/vptq-quantize" "${budget[@]}" -o b2 &
pid=$!
wait_for 60 test -e b2/saliency.state
kill_and_wait "$pid"
rm -f b2/sensitivity.json # as if killed before the first measurement
mkdir -p hd
cp g1/hessian.json b2/saliency.state hd/
expect_exit 1 "$BIN/vptq-quantize" "${budget[@]}" -o hd 2> err.txt
expect_line err.txt "'hd' is not a work directory"
"$BIN/vptq-quantize" "${budget[@]}" -o b2
[ "$(digest b1)" = "$(digest b2)" ] || fail "another model after a kill"
[ ! -e b2/saliency.state ] || fail "the checkpoint of a finished run is still there"
