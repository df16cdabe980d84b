# Texts: compressed, through pipes, from standard input, with a byte order mark and without UTF-8, wherever a text,
# recipe, task or file of records is read.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
whole=$(data text/tinystories/tiny.utf8)
head -c 20000 "$whole" | iconv -f UTF-8 -t UTF-8 -c >text.txt
gzip -nc text.txt >text.gz
{ head -c 100 text.txt | gzip -nc; tail -c +101 text.txt | gzip -nc; } >members # no ending is needed
{ printf '\357\273\277' && cat text.txt; } >mark.txt
eval_=("$BIN/vptq-eval")
m=(-m "$model" --tokenizer "$tok")
zstd_text()
{
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$SRC/tests/hostile python3 -c 'import forge, sys
sys.stdout.buffer.write(forge.zstd(sys.stdin.buffer.read()))'
}

# --- the same ids from every form ---
ids() { "${eval_[@]}" ppl "${m[@]}" --tokens-only -q "$@"; }
ids --text text.txt >want.ids
[ "$(wc -l <want.ids)" -gt 4000 ] || fail "too few ids"
for file in text.gz members mark.txt; do
    ids --text "$file" >got.ids
    expect_same got.ids want.ids
done
ids --text - <text.gz >got.ids
expect_same got.ids want.ids
ids --text <(gzip -nc text.txt) >got.ids
expect_same got.ids want.ids
ids --text /dev/stdin < <(cat text.txt) >got.ids
expect_same got.ids want.ids
zstd_text <text.txt >text.zst
ids --text text.zst >got.ids
expect_same got.ids want.ids
mkfifo pipe
cat text.txt >pipe &
ids --text pipe >got.ids
wait
expect_same got.ids want.ids
# from where standard input is
{ head -c 1 >one && ids --text -; } <text.txt >got.ids
{ tail -c +2 text.txt; } >rest.txt
ids --text rest.txt >want_rest.ids
expect_same got.ids want_rest.ids

# --- token ids through a pipe ---
python3 -c 'import struct, sys; sys.stdout.buffer.write(b"".join(struct.pack("<i", int(x)) for x in sys.stdin))' \
    <want.ids >ids.i32
ids --tokens - <ids.i32 >got.ids
expect_same got.ids want.ids

# --- a Hessian directory depends on the decoded text only; collecting continues from a pipe ---
collect() { "$BIN/vptq-hessian" "${m[@]}" -n 8 -l 64 --weights plain -q "$@"; }
collect -c text.txt -o plain
gzip -nc text.txt | collect -c - -o piped
expect_same plain piped
collect -c <(cat text.gz) -o opened
expect_same plain opened
rm -r piped/layer_004*
collect -c - -o piped <mark.txt
expect_same plain piped

# --- what reads a text twice: texts measured one by one, two tokenizers, calibration with tuning ---
ppl=(ppl "${m[@]}" --context 64 --windows 4 --format csv -q)
"${eval_[@]}" "${ppl[@]}" --text text.txt --text text.txt | cut -d, -f 2-8 >want.csv
"${eval_[@]}" "${ppl[@]}" --text <(cat text.txt) --text - <text.gz | cut -d, -f 2-8 >got.csv
expect_same got.csv want.csv
kld() { "${eval_[@]}" kld "${m[@]}" --base "$model" --context 64 --windows 2 -q "$@" | head -n 10; }
kld --text text.txt >want.txt
kld --text - <text.gz >got.txt
expect_same got.txt want.txt
quantize() {
    "$BIN/vptq-quantize" "${m[@]}" -n 4 -l 32 -k 16 --layers 0-0 -q --tune e2e --steps 2 "$@" >log.txt
}
quantize -c text.txt -o work
quantize -c - -o work_piped <text.gz
expect_same work work_piped

# --- a recipe, tasks, records ---
echo '{"rules": [{"match": "*", "settings": {"centroids": 16}}]}' >recipe.json
# Without the totals, whose time is measured.
plan() { "$BIN/vptq-quantize" -m "$model" --dry-run --format json "$@" | sed -E '/"totals"/d; s/"seconds":[^,}]*//'; }
plan --recipe recipe.json >want.json
{ printf '\357\273\277' && cat recipe.json; } | gzip -nc | plan --recipe - >got.json
expect_same got.json want.json
plan --recipe <(cat recipe.json) >got.json
expect_same got.json want.json
task=$SRC/tests/golden/tasks/copa.jsonl
tasks() { "${eval_[@]}" tasks "${m[@]}" --format csv -q --limit 4 "$@" | cut -d, -f 1-6; }
tasks --task copa="$task" >want.csv
tasks --task copa=- <"$task" >got.csv
expect_same got.csv want.csv
gzip -nc "$task" >task.gz
tasks --task copa=task.gz >got.csv
expect_same got.csv want.csv
records=$(data golden/serving/records.jsonl)
"${eval_[@]}" compare "$records" --format csv >want.csv
"${eval_[@]}" compare - --format csv < <(gzip -nc "$records") >got.csv
expect_same got.csv want.csv
"${eval_[@]}" compare - <"$records" >got.md
expect_line got.md 'standard input'

# --- a table of settings, whose texts are hashed and read for every row ---
table=(ablate "${m[@]}" --context 64 --text-windows 2 -n 4 -l 32 --layers 0-0 --only 1-2 --no-seconds -q
    --set kmeans_iterations=1 --set sweeps=0)
"${eval_[@]}" "${table[@]}" -c text.txt --text text.txt -o ab --format csv >want.csv
"${eval_[@]}" "${table[@]}" -c <(cat text.txt) --text - -o ab_piped --format csv <text.gz >got.csv
[ "$(wc -l <got.csv)" -eq 3 ] || fail "rows of the table: $(cat got.csv)"
# the hashes are the same: nothing is measured again
"${eval_[@]}" "${table[@]}" -c text.txt --text text.txt -o ab_piped --format csv >again.csv
cut -d, -f 1-9 got.csv | tail -n +2 >a.csv
cut -d, -f 1-9 again.csv | tail -n +2 >b.csv
expect_same a.csv b.csv

# --- what is not a text ---
bad() { expect_sentence 1 "$1" "${eval_[@]}" ppl "${m[@]}" --tokens-only -q --text "$2"; }
{ cat text.txt && printf 'caf\351\n'; } >latin1.txt
at=$(($(wc -c <text.txt) + 3))
bad "^vptq-eval: latin1.txt: byte $at (0xe9) is not UTF-8; convert the text with iconv -t UTF-8, or replace such bytes with --lossy" \
    latin1.txt
printf 'a\0b' >zero.txt
bad "zero.txt: byte 1 is zero, expected UTF-8 text; --lossy replaces such bytes" zero.txt
iconv -f UTF-8 -t UTF-16 text.txt >utf16.txt
bad "utf16.txt: looks like UTF-16, expected UTF-8 text; convert it with iconv -f UTF-16 -t UTF-8" utf16.txt
bad "is a safetensors file, expected UTF-8 text" plain/layer_000_qkv.safetensors
head -c 3000 text.gz >cut.gz
bad "cut.gz: the gzip data is incomplete" cut.gz
expect_sentence 1 "latin1.txt: byte $at " "$BIN/vptq-hessian" "${m[@]}" -c latin1.txt -o no -q
expect_sentence 1 "latin1.txt: byte $at " "$BIN/vptq-quantize" "${m[@]}" -c latin1.txt -o no2 -q
expect_sentence 1 "standard input: byte $at " "${eval_[@]}" generate "${m[@]}" -p - -q <latin1.txt
expect_sentence 1 "latin1.txt: byte $at " "${eval_[@]}" kld "${m[@]}" --base "$model" --text latin1.txt -q
expect_sentence 1 "standard input: line 1, column 2" "$BIN/vptq-quantize" -m "$model" --dry-run --recipe - <<<'{x}'
expect_sentence 1 "cannot open 'standard input': is a directory" "${eval_[@]}" ppl "${m[@]}" --text - -q <.

# --lossy: what Python's errors="replace" gives, and one warning, however often the text is read.
{ cat text.txt && printf 'caf\357\277\275\n'; } >repaired.txt
ids --text repaired.txt >want.ids
"${eval_[@]}" ppl "${m[@]}" --tokens-only --lossy --text latin1.txt >got.ids 2>err.txt
expect_same got.ids want.ids
expect_line err.txt "^vptq-eval: warning: latin1.txt: replaced 1 part that is not UTF-8 with U+FFFD$"
[ "$(grep -c warning err.txt)" -eq 1 ] || fail "warnings: $(cat err.txt)"
"${eval_[@]}" kld "${m[@]}" --base "$model" --lossy --text latin1.txt --context 64 --windows 1 >out.txt 2>err.txt
[ "$(grep -c 'warning: latin1' err.txt)" -eq 1 ] || fail "warnings: $(cat err.txt)"
collect -c repaired.txt -o repaired
collect -c latin1.txt --lossy -o lossy
expect_same repaired lossy
printf 'Once\377' | "${eval_[@]}" generate "${m[@]}" -p - --lossy -n 1 -qq --dry-run --format json >out.txt
expect_line out.txt '"prompt": *"Once�"'
"$BIN/vptq-quantize" "${m[@]}" -c latin1.txt --lossy -n 4 -l 32 -k 16 --layers 0-0 -q -o lossy_work >out.txt 2>&1

# --- standard input is read by one option ---
use() { expect_error 2 "$@"; }
use "^vptq-eval: --text -: standard input is already read by --text" "${eval_[@]}" ppl "${m[@]}" --text - --text - \
    </dev/null
use "^vptq-quantize: --recipe -: standard input is already read by --calibration" \
    "$BIN/vptq-quantize" -m "$model" -c - --recipe - -o no </dev/null
use "^vptq-eval: --task b=-: standard input is already read by --task" \
    "${eval_[@]}" tasks "${m[@]}" --task a=- --task b=- </dev/null
use "^vptq-eval: standard input ('-') is given more than once" "${eval_[@]}" compare - - </dev/null
[ ! -e no ] || fail "an output was made"

# A pipe without a writer waits; an interruption ends it.
mkfifo idle
"$BIN/vptq-hessian" "${m[@]}" -c idle -o waits -q 2>err.txt &
pid=$!
sleep 0.5
kill -INT "$pid"
status=0
wait "$pid" || status=$?
[ "$status" -eq 130 ] || fail "status $status after an interruption: $(cat err.txt)"
