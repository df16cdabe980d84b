# Windows of a text, their limit, the check that exits with 3, the ids.
model=$(data models/stories260K-hf)
text=$(data text/tinystories/tiny.utf8)
run() { "$BIN/vptq-eval" ppl -m "$model" -q "$@"; }

# The figures of transformers (expected.json of the model).
run --text "$text" --context 256 --windows 40 --format json >out.json
expect_near "$(json_get ppl out.json)" 6.960573688407105 1e-5
[ "$(json_get tokens out.json)" = 10200 ] || fail "tokens: $(cat out.json)"

# The ids, written and read again, are the same text.
run --text "$text" --tokens-only >ids.txt
[ "$(wc -l <ids.txt)" -eq 134727 ] || fail "$(wc -l <ids.txt) ids"
[ "$(head -n 1 ids.txt)" = 1 ] || fail "no BOS first"
head -n 10240 ids.txt | while read -r id; do
    printf '%b' "$(printf '\\x%02x\\x%02x\\x00\\x00' $((id % 256)) $((id / 256)))"
done >ids.i32
run --tokens ids.i32 --context 256 --format json >again.json
[ "$(json_get ppl out.json)" = "$(json_get ppl again.json)" ] || fail "ids give another number"

# The losses of all tokens give the mean.
run --text "$text" --context 256 --windows 40 --dump nll.f64 >/dev/null
[ "$(wc -c <nll.f64)" -eq $((8 * 10200)) ] || fail "$(wc -c <nll.f64) bytes of losses"
mean=$(od -An -v -t f8 -w8 nll.f64 | awk '{ s += $1 } END { printf "%.12f", s / NR }')
expect_near "$mean" "$(json_get nll out.json)" 1e-12
run --text "$text" --context 256 --windows 1 --dump nll.f64 -f >/dev/null
[ "$(wc -c <nll.f64)" -eq $((8 * 255)) ] || fail "nll.f64 is not replaced"
rm nll.f64
run --text "$text" --context 256 --windows 1 --dump nll.f64 --dry-run >/dev/null
[ ! -e nll.f64 ] || fail "a dry run writes"

# The default context is the model's where that is less than 2048.
run --tokens ids.i32 --windows 2 --format json >default.json
[ "$(json_get context default.json)" = 512 ] || fail "context: $(cat default.json)"
[ "$(json_get tokens default.json)" = 1022 ] || fail "tokens: $(cat default.json)"
run --tokens ids.i32 --windows 2 --context 512 --format json >given.json
[ "$(json_get ppl default.json)" = "$(json_get ppl given.json)" ] || fail "another context than 512"
run --tokens ids.i32 --windows 1 --context 600 --dry-run --format json >longer.json
[ "$(json_get context longer.json)" = 600 ] || fail "a given context is changed: $(cat longer.json)"
"$BIN/vptq-eval" kld -m "$model" --base "$model" --tokens ids.i32 --windows 1 --dry-run -q --format json >kld.json
[ "$(json_get context kld.json)" = 512 ] || fail "context: $(cat kld.json)"

# One thread and two, and another backend.
run --tokens ids.i32 --context 256 -t 1 --format json >one.json
[ "$(json_get ppl out.json)" = "$(json_get ppl one.json)" ] || fail "-t changes the number"
run --tokens ids.i32 --context 64 --windows 4 --format json >cpu.json
run --tokens ids.i32 --context 64 --windows 4 --backend ref --format json >ref.json
expect_near "$(json_get ppl cpu.json)" "$(json_get ppl ref.json)" 1e-5

# A requested check.
run --tokens ids.i32 --context 64 --windows 2 --max-ppl 1000 >out.txt
expect_exit 3 "$BIN/vptq-eval" ppl -m "$model" --tokens ids.i32 --context 64 --windows 2 \
    --max-ppl 1.5 -q >out.txt 2>err.txt
expect_line out.txt '^ppl '
expect_line err.txt '^vptq-eval: perplexity [0-9.]* is above --max-ppl 1.5$'

# Per-window lines.
run --tokens ids.i32 --context 64 --windows 2 --protocol llama.cpp >out.txt
expect_line out.txt ' over 62 tokens in 2 windows of 64$'
"$BIN/vptq-eval" ppl -m "$model" --tokens ids.i32 --context 64 --windows 1 >out.txt 2>err.txt
expect_line out.txt ' over 63 tokens in 1 window of 64$'
expect_line err.txt '^perplexity: 1 window in '
"$BIN/vptq-eval" ppl -m "$model" --tokens ids.i32 --context 64 --stride 32 --windows 2 -v \
    --no-progress >out.txt 2>err.txt
expect_line err.txt 'window 0: nll .* over 63 tokens, so far '
expect_line err.txt 'window 1: nll .* over 32 tokens, so far '
