# An ablation that continues with another tokenizer or number of threads, or without an option: figures that are
# measured again, archives that are kept.
model=$(data models/stories260K-hf)
text=$(data text/tinystories/tinystories_v2_sample.txt)
eval="$BIN/vptq-eval"
cp -r "$model" m
chmod -R u+w m
cp m/tokenizer.json own.json
sed '/"merges"/{n;N;N;N;d}' own.json > other.json # without the first merge
! cmp -s own.json other.json || fail "the tokenizer did not change"
echo '[{"name": "v8", "settings": {"vector_length": 8, "centroids": 16}}]' > rows.json
echo '{"query": "Once upon a", "choices": [" time", " dog"], "gold": 0}' > items.jsonl
for _ in $(seq 200); do printf '\005\001\000\000'; done > ids.i32
"$BIN/vptq-hessian" -q -m m -c "$text" -n 2 -l 64 -o h
plain() { "$eval" ablate -q -m m -H h --table rows.json --layers 0 --set kmeans_iterations=1 --format json "$@"; }
ablate() { plain --text "$text" --context 64 --text-windows 4 --task quiz=items.jsonl --no-seconds "$@"; }
entries() { [ "$(grep -o "$1" d/rows/v8.json | wc -l)" = "$2" ] || fail "not $2 of '$1': $(cat d/rows/v8.json)"; }

# ---- the tokenizer ----
ablate -o d --keep-packed > first.jsonl
cp d/packed/v8.vptq kept.vptq
cp other.json m/tokenizer.json
ablate -o d > second.jsonl
"$eval" ppl -q -m d/packed/v8.vptq --text "$text" --context 64 --windows 4 --format json > ppl.json
expect_near "$(json_get ppl second.jsonl)" "$(json_get ppl ppl.json)" 1e-12
[ "$(json_get ppl first.jsonl)" != "$(json_get ppl second.jsonl)" ] || fail "the figures of another tokenizer"
entries '"task": "quiz"' 2
! cmp -s kept.vptq d/packed/v8.vptq || fail "the archive has the old tokenizer"
cp own.json m/tokenizer.json
ablate -o d --tokenizer other.json > third.jsonl
[ "$(json_get ppl third.jsonl)" = "$(json_get ppl second.jsonl)" ] || fail "with the tokenizer from elsewhere: $(cat third.jsonl)"
ablate -o d > fourth.jsonl
expect_same fourth.jsonl first.jsonl "with the first tokenizer again"
entries '"task": "quiz"' 2

# ---- archives ----
plain -o ids --text-tokens ids.i32 --context 64 --keep-packed > /dev/null
cp ids/packed/v8.vptq kept.vptq
inode=$(stat -c %i ids/packed/v8.vptq)
plain -o ids --text-tokens ids.i32 --context 64 > /dev/null
plain -o ids --text-tokens ids.i32 --context 64 --keep-packed > /dev/null
[ "$inode" = "$(stat -c %i ids/packed/v8.vptq)" ] || fail "packed again"
cp other.json m/tokenizer.json
plain -o ids --text-tokens ids.i32 --context 64 --keep-packed > /dev/null
! cmp -s kept.vptq ids/packed/v8.vptq || fail "the archive has the old tokenizer"
"$eval" ppl -q -m ids/packed/v8.vptq --text "$text" --context 64 --windows 4 --format json > again.json
[ "$(json_get ppl again.json)" = "$(json_get ppl ppl.json)" ] || fail "$(cat again.json ppl.json)"
ablate -o short > /dev/null
[ -z "$(ls short/packed)" ] || fail "an archive was left"
cp kept.vptq short/packed/v8.vptq # as by a run that was killed before it removed its own
ablate -o short > /dev/null
[ -z "$(ls short/packed)" ] || fail "the archive of a killed run was left"

# ---- speeds ----
plain -o ids --text-tokens ids.i32 --context 64 --serve 1,4,2 -t 1 > one.jsonl
plain -o ids --text-tokens ids.i32 --context 64 --serve 1,4,2 -t 2 > two.jsonl
plain -o ids --text-tokens ids.i32 --context 64 --serve 1,4,2 -t 1 > again.jsonl
expect_same one.jsonl again.jsonl "served once"
for n in 1 2; do
    expect_line ids/rows/v8.json "\"1,4,2 kv F16, $n threads, cpu, [0-9.]*\": {$"
done
