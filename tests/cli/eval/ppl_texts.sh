# Several texts in one run: the same figures as alone, joined texts as one, the checks of all of
# them, tables, and bits per byte.
model=$(data models/stories260K-hf)
stories=$(data text/tinystories/tiny.utf8)
run() { "$BIN/vptq-eval" ppl -m "$model" --context 128 -q "$@"; }
head -c 4000 "$stories" >a.txt
head -c 150000 "$stories" >long.txt
tail -c 3000 "$stories" >'b, "c".txt'
run --text a.txt --format json >a.json
run --text 'b, "c".txt' --format json >b.json

# Rows in order with the same numbers; ids after texts.
run --text a.txt --tokens-only >ids.txt
while read -r id; do
    printf '%b' "$(printf '\\x%02x\\x%02x\\x00\\x00' $((id % 256)) $((id / 256)))"
done <ids.txt >ids.i32
run --tokens ids.i32 --text a.txt --text 'b, "c".txt' --format json --dump all.f64 >rows.json
[ "$(wc -l <rows.json)" = 3 ] || fail "rows: $(cat rows.json)"
for key in ppl ppl_stderr nll tokens windows bits_per_byte text; do
    want=$(json_get $key a.json; json_get $key b.json)
    [ "$(json_get $key rows.json | head -n 2)" = "$want" ] || fail "$key: $(cat rows.json)"
done
[ "$(json_get text rows.json | tail -n 1)" = ids.i32 ] || fail "text: $(cat rows.json)"
[ "$(json_get ppl rows.json | tail -n 1)" = "$(json_get ppl a.json)" ] || fail "ids: $(cat rows.json)"
[ "$(json_get bits_per_byte rows.json | tail -n 1)" = null ] || fail "bytes of ids: $(cat rows.json)"

# The losses of all tokens, text by text.
run --text a.txt --dump a.f64 >/dev/null
run --text 'b, "c".txt' --dump b.f64 >/dev/null
cat a.f64 b.f64 a.f64 >want.f64
expect_same all.f64 want.f64

# Joined: other windows, over all ids.
run --text a.txt --text 'b, "c".txt' --join --format json >joined.json
run --text a.txt --text 'b, "c".txt' --join --tokens-only >joined.txt
run --text a.txt --text 'b, "c".txt' --tokens-only >apart.txt
grep -v '^$' apart.txt | expect_same joined.txt -
[ "$(json_get windows joined.json)" = $(($(wc -l <joined.txt) / 128)) ] || fail "$(cat joined.json)"
[ "$(wc -l <joined.json)" = 1 ] || fail "rows: $(cat joined.json)"

# Bits per byte: in a text of one window all bytes come after BOS.
printf 'Once upon a time, there was a little girl named Lily. She ran.' >one.txt
n=$(run --text one.txt --tokens-only | wc -l)
run --text one.txt --context "$n" --format json >one.json
expect_near "$(json_get bits_per_byte one.json)" \
    "$(awk -v n="$(json_get nll one.json)" -v t="$(json_get tokens one.json)" -v b="$(wc -c <one.txt)" \
        'BEGIN { printf "%.12g", n * t / log(2) / b }')" 1e-9

# Tables.
run --text a.txt --text 'b, "c".txt' --format csv >rows.csv
expect_line rows.csv '^text,ppl,ppl_stderr,nll,bits_per_byte,tokens,windows,skipped,context,'
expect_line rows.csv ',seconds,tokens_per_second,bits_per_weight,model$'
expect_line rows.csv ",$model\$"
expect_line rows.csv "^a.txt,$(printf '%.4f' "$(json_get ppl a.json)"),"
expect_line rows.csv '^"b, ""c"".txt",[0-9.]*,'
run --text a.txt --format csv >one.csv
[ "$(wc -l <one.csv)" = 2 ] || fail "one row: $(cat one.csv)"
run --text a.txt --tokens ids.i32 --format md >rows.md
expect_line rows.md '^| a.txt | [0-9.]* |'
expect_line rows.md '^| ids.i32 | [0-9.]* | [0-9.]* | [0-9.]* | - |'
run --text a.txt --text 'b, "c".txt' >rows.txt
expect_line rows.txt '^a.txt        *[0-9.]* '
run --text a.txt --text 'b, "c".txt' --dry-run --format json >rows.jsonl
[ "$(wc -l <rows.jsonl)" -eq 2 ] || fail "$(cat rows.jsonl)"
[ "$(json_get text rows.jsonl | head -n 1)" = a.txt ] || fail "$(cat rows.jsonl)"
expect_number "$(json_get tokens rows.jsonl | head -n 1)" '>' 0
run --text a.txt --text 'b, "c".txt' --dry-run >rows.txt
expect_line rows.txt '^a.txt: would score [0-9]* tokens in [0-9]* windows$'

# Every text is measured, and every one above the limit is named; a missing or short one is found
# before any evaluation.
limit=$(printf '%s\n' "$(json_get ppl a.json)" "$(json_get ppl b.json)" | sort -g | head -n 1)
expect_exit 3 run --text a.txt --text 'b, "c".txt' --max-ppl "$limit" --format json >out.json 2>err.txt
[ "$(wc -l <out.json)" = 2 ] || fail "rows: $(cat out.json)"
[ "$(wc -l <err.txt)" = 1 ] || fail "one text is above the limit: $(cat err.txt)"
expect_line err.txt '^vptq-eval: [ab].*.txt: perplexity [0-9.]* is above --max-ppl '
expect_exit 3 run --text a.txt --text 'b, "c".txt' --max-ppl 1 >out.txt 2>err.txt
[ "$(wc -l <err.txt)" = 2 ] || fail "both texts are above the limit: $(cat err.txt)"
for last in one.txt missing.txt; do
    expect_exit 1 run --text a.txt --text $last --dump no.f64 >out.txt 2>err.txt
    expect_line err.txt "$last"
    [ ! -s out.txt ] || fail "something was measured: $(cat out.txt)"
    [ ! -e no.f64 ] || fail "losses were written"
done

# The perplexity so far, with -v and in the progress line.
"$BIN/vptq-eval" ppl -m "$model" --context 128 --text a.txt -v --no-progress >out.txt 2>err.txt
windows=$(json_get windows a.json)
expect_line err.txt "window $((windows - 1)): nll .*, so far $(printf '%.4f' "$(json_get ppl a.json)")$"
# Long enough for several redraws of the line after the first windows are scored.
cat long.txt long.txt long.txt long.txt >longer.txt
"$BIN/vptq-eval" ppl -m "$model" --context 512 --text longer.txt --windows 240 --progress \
    >out.txt 2>err.txt
expect_line err.txt 'left  ppl [0-9.]*, windows [0-9]*-[0-9]'

# Less memory: smaller batches, the same bits.
peak=
! command -v python3 >/dev/null || peak='with_peak peak.kib'
all() { $peak "$BIN/vptq-eval" ppl -m "$model" --context 64 --windows 600 --text long.txt -q --format json "$@"; }
all --dump free.f64 >free.json
free=$([ -z "$peak" ] || cat peak.kib)
all --dump tight.f64 --mem 16M >tight.json
expect_same free.f64 tight.f64
for key in ppl ppl_stderr nll bits_per_byte; do
    [ "$(json_get $key free.json)" = "$(json_get $key tight.json)" ] || fail "--mem changes $key"
done
[ -z "$peak" ] || expect_number "$(cat peak.kib)" '<' "$((free - 3072))"
