# Pooling two halves gives the whole.
model=$(data models/stories260K/stories260K.bin)
data models/stories260K-hf/ppl_tokens.npy > /dev/null
# 40 windows of 256 uint16 ids after the .npy header, as int32.
to_i32() { od -An -v -t u2 -w2 | perl -ne 'print pack("l<", $_)'; }
tail -c 20480 "$DATA/models/stories260K-hf/ppl_tokens.npy" | to_i32 > all.i32
head -c 10240 all.i32 > a.i32
tail -c +10241 all.i32 > b.i32
collect() { "$BIN/vptq-hessian" -m "$model" -l 256 -q "$@"; }
collect --tokens a.i32 -o a
collect --tokens b.i32 -o b
collect --tokens a.i32 --tokens b.i32 -o all
"$BIN/vptq-hessian" --merge a b -o pooled
for dir in all pooled; do "$BIN/vptq-hessian" --show "$dir" --format json > "$dir.json"; done
for key in trace max_diag mean_share abs_max; do
    json_get "$key" all.json > all.txt
    json_get "$key" pooled.json > pooled.txt
    paste all.txt pooled.txt | while read -r x y; do expect_near "$y" "$x" 1e-6; done
done
[ "$(json_get tokens pooled.json | sort -u)" = 10240 ] || fail "tokens of the pool"

expect_exit 1 "$BIN/vptq-hessian" --merge a b -o pooled 2> err.txt
expect_line err.txt "pooled"
expect_exit 2 "$BIN/vptq-hessian" --merge a -o x 2> err.txt
expect_error 1 "pooled' already exists" "$BIN/vptq-hessian" --merge a b -o pooled --dry-run
"$BIN/vptq-hessian" --merge a b -o x --dry-run > plan.txt
for plan in "" --dry-run; do
    # shellcheck disable=SC2086 # nothing or a word
    expect_error 1 "'plan.txt' exists and is not a directory" "$BIN/vptq-hessian" --merge a b -o plan.txt $plan
    # shellcheck disable=SC2086
    expect_error 1 "cannot create directory 'plan.txt': File exists" "$BIN/vptq-hessian" --merge a b -o plan.txt/x $plan
done
expect_line plan.txt '^x: to merge from 2 directories$'
expect_line plan.txt '^time not estimated, .* of memory, .* of disk (.* free)$'
"$BIN/vptq-hessian" --merge a b -o pooled -f --dry-run --format json > plan.json
expect_near "$(json_get disk_needed_bytes plan.json)" "$(cat pooled/*.safetensors | wc -c)" 0.01
[ "$(json_get estimated_seconds plan.json)" = null ] || fail "$(cat plan.json)"
memory=$(json_get peak_memory_bytes plan.json)
"$BIN/vptq-hessian" --merge a b -o enough -q --mem "$memory"
expect_same pooled enough
expect_error 1 "--mem .* is too small" "$BIN/vptq-hessian" --merge a b -o x --mem $((memory * 3 / 4))
expect_exit 2 "$BIN/vptq-hessian" --show a b 2> err.txt
expect_line err.txt "unexpected argument 'b'"
expect_exit 2 "$BIN/vptq-hessian" --show a --merge b 2> err.txt
[ ! -e x ] || fail "an output was made"
expect_exit 1 "$BIN/vptq-hessian" --merge a nothing -o x 2> err.txt
expect_line err.txt "'nothing' is not a hessian directory"

# Held-out parts are pooled if all inputs have one; -f replaces Hessians and theirs, nothing else.
collect --tokens a.i32 --holdout 0.2 -o a2
collect --tokens b.i32 --holdout 0.2 -o b2
"$BIN/vptq-hessian" --merge a2 b2 -o held
"$BIN/vptq-hessian" --show held/holdout --format json > held.json
[ "$(json_get tokens held.json | sort -u)" = 2048 ] || fail "tokens of the pooled held-out part"
cp -r held first
expect_exit 1 "$BIN/vptq-hessian" --merge a2 b2 -o held 2> err.txt
expect_line err.txt "directory 'held' already exists"
"$BIN/vptq-hessian" --merge a2 b2 -f -o held
expect_same first held
"$BIN/vptq-hessian" --merge a b -f -o held
expect_same pooled held
"$BIN/vptq-hessian" --merge a2 b2 -f -o a2
expect_same first a2
# A directory that a collection is writing into is not replaced.
"$BIN/vptq-hessian" --export a -o pt > out.txt
mkdir locked
exec 9> locked/lock
flock 9
expect_error 1 "'locked' is in use by another process" "$BIN/vptq-hessian" --merge a b -f -o locked
expect_error 1 "'locked' is in use by another process" "$BIN/vptq-hessian" --import pt -f -o locked
[ "$(ls locked)" = lock ] || fail "a locked directory was replaced"
no_leftovers .
exec 9>&-
"$BIN/vptq-hessian" --merge a b -f -o locked
expect_same pooled locked

mkdir -p other/holdout first/holdout/more
echo text > other/holdout/notes.txt
expect_exit 1 "$BIN/vptq-hessian" --merge a b -f -o other 2> err.txt
expect_line err.txt "'other' is not a hessian directory: it holds 'holdout' and no hessian.json"
cp a/hessian.json other
expect_exit 1 "$BIN/vptq-hessian" --merge a b -f -o other 2> err.txt
expect_line err.txt "'other/holdout' is not a hessian directory: it holds 'notes.txt' and no hessian.json"
expect_exit 1 "$BIN/vptq-hessian" --merge a b -f -o first 2> err.txt
expect_line err.txt "cannot replace directory 'first': it does not hold only plain files"
[ -e other/holdout/notes.txt ] || fail "what is not ours was removed"
[ -d first/holdout/more ] || fail "a folder that is not ours was removed"

# A missing file is reported before the first one is read.
cp -r a2 part
rm part/layer_004_down.safetensors
cp -r a2 part2
rm part2/holdout/layer_004_down.safetensors
cp -r pt ptpart
rm ptpart/4_down.pt
for first in part/layer_000_o.safetensors part2/layer_000_o.safetensors ptpart/0_o.pt; do echo broken > $first; done
missing() { expect_error 1 "$1" "$BIN/vptq-hessian" "${@:2}" -o x; }
missing "'part' has no hessian of layer 4 input down (layer_004_down.safetensors is missing" --merge part b2
missing "'part' has no hessian of layer 4 input down (layer_004_down.safetensors is missing" --merge b2 part
missing "'part' has no hessian of layer 4 input down (layer_004_down.safetensors is missing" --export part
missing "'part2/holdout' has no hessian of layer 4 input down (layer_004_down" --merge part2 b2
missing "'ptpart' has Hessians of layers 0-4, but 4_down.pt is missing" --import ptpart
