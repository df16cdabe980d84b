# Tuning on windows that the original writes itself: drawn from its own distribution, the same for any
# thread count, kept for other runs; a file of something else is not used. common/signals interrupts it.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -c "$text" -n 16 -l 256 -o work -v 4 -k 64 --joint 0 --retrain 0 \
    --sweeps 1 --refits 0 -q >/dev/null
args=(--from work --tune e2e -c "$text" -n 20 -l 32 --batch 4 --rate 0.01 --steps 3)
tune() { "$BIN/vptq-quantize" "${args[@]}" -q "$@"; }
file=self_text.safetensors

# The first windows of 32 tokens.
ids() { # DIR WINDOWS
    tail -c "$(($(json_shape "$1/$file") * 32 * 4))" "$1/$file" | head -c $(($2 * 32 * 4))
}
json_shape() { head -c 200 "$1" | grep -a -o '"shape":\[[0-9]*' | grep -o '[0-9]*$'; }

tune -o one -t 1 --self-text 8 --format json >one.json
tune -o two -t 4 --self-text 8 >/dev/null
expect_same one two
[ "$(tail -n 1 one.json | json_get windows)" = 26 ] || fail "$(tail -n 1 one.json): expected 20 - 2 + 8 windows"
[ "$(tail -n 1 one.json | json_get held_out_windows)" = 2 ] || fail "expected a sixteenth of 20 windows held out"
grep -q '"self_text": *8,' one/quantize.json || fail "not in the manifest"
tune -o without >/dev/null
! grep -q self_text without/quantize.json || fail "the manifest of a run without own text has it"
[ ! -e without/$file ] || fail "a run without own text writes it"
digest() { "$BIN/vptq-pack" -q --digest "$1"; }

# The model's own distribution: its perplexity on it is a little below that of its training text (loss 1.297,
# 3.66), since stories begin alike.
[ "$(json_shape one/$file)" = 32 ] || fail "expected a batch of 32 windows"
ids one 32 >own.i32
[ "$(od -A n -t d4 -w128 -v own.i32 | awk '{ print $17 }' | sort -u)" = 1 ] || fail "a sequence does not begin with BOS"
[ "$(od -A n -t d4 -w128 -v own.i32 | sort -u | wc -l)" = 32 ] || fail "windows come twice"
tail -c +65 own.i32 | head -c $((31 * 32 * 4)) >whole.i32 # from the middle of the first window on: whole sequences
"$BIN/vptq-eval" ppl -m "$model" --tokens whole.i32 --context 32 --format json -q >own.json
expect_number "$(json_get ppl own.json)" '>' 2.2
expect_number "$(json_get ppl own.json)" '<' 3.2

# More windows begin with the same ones; another seed has others.
tune -o more --self-text 40 >/dev/null
[ "$(json_shape more/$file)" = 64 ] || fail "expected two batches"
ids more 32 | cmp - own.i32 || fail "more windows begin with others"
tune -o seed --self-text 8 --seed 1 >/dev/null
ids seed 32 | cmp -s - own.i32 && fail "another seed writes the same"

# Kept: for a run with other steps in the directory, and for others by a copy. Fewer windows leave the file.
inode=$(stat -c %i more/$file)
tune -o more --self-text 8 -f >/dev/null
[ "$(stat -c %i more/$file)" = "$inode" ] || fail "the text is written again"
[ "$(digest more)" = "$(digest one)" ] || fail "the first windows of a longer text give other bytes"
mkdir copied
cp one/$file copied
tune -o copied --self-text 40 >/dev/null 2>err.txt
[ ! -s err.txt ] || fail "$(cat err.txt)"
tune -o fresh --self-text 40 >/dev/null
expect_same fresh copied

# A file of another seed, and damaged ones: made anew, with a warning.
replaced() { # MESSAGE
    rm -rf again
    mkdir again
    mv bad again/$file
    "$BIN/vptq-quantize" "${args[@]}" -o again --self-text 8 >/dev/null 2>err.txt
    expect_line err.txt "again/$file: $1; the text is made anew"
    expect_same one again
}
cp seed/$file bad
replaced 'is of another model, length, seed, backend or version'
cp one/$file bad
printf x | dd of=bad bs=1 seek=900 conv=notrunc 2>/dev/null
replaced 'the file is damaged: its checksum is .*'
head -c 1000 one/$file >bad
replaced '.*'
cp work/layer_000_q_proj.safetensors bad
replaced "is not a file of a model's own text"

# Without -n, own windows take the place of as many of the text; held-out ones are always of the text.
for own in 5 40; do
    "$BIN/vptq-quantize" --from work --tune e2e -c "$text" --steps 3 --batch 4 -l 32 --rate 0.01 --self-text $own \
        -o "n$own" -q --format json >n$own.json
done
[ "$(tail -n 1 n5.json | json_get windows)" = 12 ] || fail "$(tail -n 1 n5.json)"
[ "$(tail -n 1 n40.json | json_get windows)" = 40 ] || fail "$(tail -n 1 n40.json)"
for own in 5 40; do
    [ "$(tail -n 1 n$own.json | json_get held_out_windows)" = 1 ] || fail "$(tail -n 1 n$own.json)"
done

# Layers are tuned on it, too.
layer() { "$BIN/vptq-quantize" --from work --tune layer -c "$text" -n 20 -l 32 --batch 4 --passes 1 --self-text 8 "$@"; }
layer -o layer -q >/dev/null
ids layer 32 | cmp - own.i32 || fail "layers get other windows"
of_file() { rm -rf "$1" && mkdir "$1" && cp changed "$1/self_text.safetensors" && layer -o "$1"; } # reseal has its own $file
cp layer/$file changed
printf '\003' | dd of=changed bs=1 seek=$(($(stat -c %s changed) - 32 * 32 * 4)) conv=notrunc 2>/dev/null
reseal changed of_file tried
of_file other >/dev/null 2>err.txt
! grep -q 'made anew' err.txt || fail "$(cat err.txt)"
[ "$(digest other)" != "$(digest layer)" ] || fail "nothing is trained on what the file says"

# Bad input.
expect_error 2 '--self-text needs --tune METHOD' "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -c "$text" -o new \
    --self-text 4 -q
expect_error 2 '--self-text 1000001: expected at most 1000000' tune -o new --self-text 1000001
expect_error 1 "one/quantize.json belongs to another run: its key 'tune.self_text' is 8, here it is 41" tune -o one \
    --self-text 41
cp -rL "$(data models/stories260K-hf)" nameless
chmod -R u+w nameless
sed -i '/"[be]os_token_id"/d' nameless/config.json
"$BIN/vptq-quantize" -m nameless --tokens own.i32 -n 8 -l 32 -o of_nameless -v 4 -k 16 --joint 0 --retrain 0 --sweeps 1 \
    --refits 0 -q >/dev/null
expect_error 1 'nameless: has neither a BOS nor an EOS token, one of which --self-text begins with' "$BIN/vptq-quantize" --from of_nameless \
    --tune e2e --tokens own.i32 -n 20 -l 32 --batch 4 --self-text 4 -o new -q
[ ! -e new ] || fail "a run that cannot begin makes its directory"
