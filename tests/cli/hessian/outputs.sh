# Output Hessians: the same bytes for any thread count, after a kill and after damage; a directory without them is as
# ever; --show, --merge and -f.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
args=(-m "$model" --tokenizer "$tok" -c "$text" -n 24 -l 256 --weights plain --holdout 0.1 -q)
collect() { "$BIN/vptq-hessian" "${args[@]}" "$@"; }

collect -o one -t 1 --outputs 6
collect -o two -t 4 --outputs 6
expect_same one two
no_leftovers one
expect_line one/hessian.json '"outputs": 6'

# Everything else is as without them.
collect -o plain
[ ! -e plain/outputs.safetensors ] || fail "output Hessians that nobody wanted"
! grep -q outputs plain/hessian.json || fail "a setting that nobody gave"
collect -o plain --outputs 6 --format json > rest.json
[ "$(json_get layers_done rest.json)" = 0 ] || fail "a finished collection was run again"
expect_same one plain

# Killed while they are measured.  More windows than there are to learn from mean all of them.
"$BIN/vptq-hessian" "${args[@]}" -o killed -t 1 --outputs 21 &
pid=$!
wait_for 60 test -e killed/holdout/layer_004_down.safetensors
kill_and_wait "$pid"
collect -o killed --outputs 99
collect -o all --outputs 21
expect_same all killed

# Another number of windows continues the directory, without the option they stay; a damaged file is made again.
collect -o killed --outputs 6
expect_same one killed
collect -o killed
expect_same one killed
truncate -s -1 killed/outputs.safetensors
collect -o killed --outputs 6 2> err.txt
expect_line err.txt 'killed/outputs.safetensors: .*; it is measured again'
expect_same one killed

"$BIN/vptq-hessian" --show one > show.txt
expect_line show.txt 'output Hessians of 6 windows'
"$BIN/vptq-hessian" --show one --format json > show.json
[ "$(json_get output_windows show.json | sort -u)" = 6 ] || fail "output windows"
"$BIN/vptq-hessian" --show one/holdout > show.txt
! grep -q 'output Hessians' show.txt || fail "the held-out part has output Hessians"

"$BIN/vptq-hessian" --merge one two -o pooled 2> err.txt
expect_line err.txt 'two/outputs.safetensors: output Hessians are not merged'
[ ! -e pooled/outputs.safetensors ] || fail "merged output Hessians"

# Those of another run go with its Hessians.
collect -o two --seed 7 -f
[ ! -e two/outputs.safetensors ] || fail "output Hessians of another run"
! grep -q outputs two/hessian.json || fail "a setting of another run"

expect_exit 2 "$BIN/vptq-quantize" --from w --tune e2e -c "$text" -o x --outputs 2 2> err.txt
expect_line err.txt "--outputs and --from exclude each other"
