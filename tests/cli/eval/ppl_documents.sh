# Stories one by one: the perplexity of an independent float64 forward pass.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
run() { "$BIN/vptq-eval" ppl -m "$model" --tokenizer "$tok" --text "$text" -q "$@"; }

run --documents '<|endoftext|>' --document-limit 100 --context 512 --format json >out.json
expect_near "$(json_get ppl out.json)" 4.09054831944706 1e-6
[ "$(json_get tokens out.json)" = 34434 ] || fail "tokens: $(cat out.json)"
[ "$(json_get windows out.json)" = 95 ] || fail "windows: $(cat out.json)"
[ "$(json_get context out.json)" = 512 ] || fail "context: $(cat out.json)"
[ "$(json_get bits_per_weight out.json)" = 32 ] || fail "bits: $(cat out.json)"
[ "$(json_get model out.json)" = "$model" ] || fail "model: $(cat out.json)"
for key in ppl_stderr nll seconds tokens_per_second; do
    expect_number "$(json_get $key out.json)" '>' 0
done

run --documents '<|endoftext|>' --document-limit 3 --context 512 >out.txt
expect_line out.txt '^ppl [0-9.]* ± [0-9.]*$'
expect_line out.txt '^nll [0-9.]* over 1083 tokens in 3 documents of at most 512$'
run --documents '<|endoftext|>' --document-limit 3 --context 330 --dry-run >out.txt
expect_line out.txt '^would score 319 tokens in 1 document$'
