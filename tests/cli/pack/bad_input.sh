# Every kind of wrong input: one sentence, the right status, no partial output.
golden=$(data golden/vptq_model_stories260K)
hf=$(data models/stories260K-hf)
pack() { "$BIN/vptq-pack" -q "$@"; }

# bad STATUS PATTERN COMMAND..
bad()
{
    expect_error "$@"
    no_leftovers .
}
# finds PATTERN MODEL: --check exits with 3 and prints the finding
finds()
{
    expect_exit 3 "$BIN/vptq-pack" -q --check "$2" > out.txt 2> err.txt
    expect_line out.txt "^error: .*$1"
    expect_line out.txt "^$2: [1-9][0-9]* errors*, "
}

# Usage.
bad 2 "missing option: -m/--model MODEL" pack
bad 2 "missing option: -m/--model MODEL" pack --list
bad 2 "expected one model, got 2" pack a b -o out
bad 2 "missing option: -o/--output OUT" pack "$golden"
bad 2 "exclude each other" pack --list --check "$golden"
bad 2 "exclude each other" pack --repair --unpack "$golden" -o out
bad 2 "to archive does not go with --unpack" pack --unpack "$golden" -o out --to archive
bad 2 "lm-head does not go with --unpack" pack --unpack "$golden" -o out --lm-head
bad 2 "shard-size does not go with an archive" pack "$golden" -o out.vptq --shard-size 1M
for reading in --list --check --digest; do
    for option in --force --dry-run "--tokenizer x"; do
        [ "$reading $option" != "--check --tokenizer x" ] || continue # which it reads
        # shellcheck disable=SC2086 # several words
        bad 2 "${option%% *} does not go with $reading" pack $reading "$golden" $option
    done
    for option in "--base $golden" --partial; do
        # shellcheck disable=SC2086
        bad 2 "${option%% *} is for work directories, and '$golden' has no quantize.json" pack $reading "$golden" $option
    done
done
for option in "--base $golden" --partial; do
    for what in "" --unpack --repair; do
        # shellcheck disable=SC2086
        bad 2 "${option%% *} is for work directories" pack $what "$golden" -o out $option
    done
    # shellcheck disable=SC2086
    bad 2 "${option%% *} is for work directories" pack --unpack "$golden" -o out.gguf $option
done
for option in "-o out" "--to hf" "--dtype f16" "--embeddings f16" "--shard-size 1M" "--level 3" --lm-head; do
    name=${option%% *}
    [ "$name" != -o ] || name=--output
    # shellcheck disable=SC2086 # option and value
    bad 2 "$name does not go with --list" pack --list "$golden" $option
    # shellcheck disable=SC2086
    bad 2 "$name does not go with --check" pack --check "$golden" $option
done
bad 2 ": --to zip: expected" pack "$golden" -o out --to zip
bad 2 "^vptq-pack: --dtype: packed models store f16 or bf16; --unpack writes GGUF files of other types" pack "$golden" -o out --dtype f32
bad 2 "packed models store f16 or bf16" pack "$golden" -o out.vptq --dtype q4
bad 2 "unknown storage type .q1. (expected f16, bf16 or f32, for a GGUF file also q8, q6, q5, q4, q3 or q2)" pack "$golden" -o out --dtype q1
bad 2 "^vptq-pack: --dtype: a directory stores f16, bf16 or f32; write a GGUF file (OUT.gguf or --to gguf)" pack --unpack "$golden" -o out --dtype q4_k

# Missing and invalid inputs.
bad 1 "nothing" pack nothing -o out
bad 1 "nothing" pack --list nothing
bad 1 "nothing" pack --check nothing
bad 1 "nothing" pack --unpack nothing -o out
bad 1 "no quantized matrices" pack "$hf" -o out
mkdir empty
bad 1 "empty is not a model" pack empty -o out
[ ! -e out ] || fail "an output was made"

# Existing outputs.
cp -r "$golden" model
chmod -R u+w model
pack model -o dir > /dev/null
pack model -o one.vptq > /dev/null
bad 1 "'dir' already exists" pack model -o dir
bad 1 "one.vptq.*exists" pack model -o one.vptq
pack model -o dir -f > /dev/null
pack model -o one.vptq -f > /dev/null
bad 2 "is the input itself" pack model -o model -f
bad 2 "is the input itself" pack --unpack model -o ./model/ -f
[ -e model/model.safetensors ] || fail "the input is gone"
mkdir holder
cp "$(data models/stories260K/stories260K.bin)" holder/model.bin
bad 2 "'holder' is the directory of the input" pack --unpack holder/model.bin -o holder -f
[ -e holder/model.bin ] || fail "the input is gone"
mkdir -p deep/inside
touch deep/inside/file
sentence="cannot replace directory 'deep': it holds 'inside' and no config.json"
bad 1 "$sentence" pack model -o deep -f
bad 1 "$sentence" pack --unpack model -o deep -f
[ -e deep/inside/file ] || fail "somebody's files are gone"

# Only what packing writes and copies is replaced.
mkdir thesis void
touch thesis/thesis.txt
sentence="cannot replace directory 'thesis': it holds 'thesis.txt' and no config.json"
bad 1 "$sentence" pack model -o thesis
bad 1 "$sentence" pack model -o thesis -f
bad 1 "$sentence" pack one.vptq --unpack -o thesis -f
[ -e thesis/thesis.txt ] || fail "somebody's files are gone"
for name in thesis.tex weights.safetensors pytorch_model.bin .hidden; do
    touch "dir/$name"
    bad 1 "cannot replace directory 'dir': it holds '$name', which is not a file of a model" pack model -o dir -f
    rm "dir/$name"
done
mkdir dir/LICENSES
bad 1 "cannot replace directory 'dir': it does not hold only plain files" pack model -o dir -f
rmdir dir/LICENSES
touch dir/model-00001-of-00001.safetensors dir/model.safetensors.index.json dir/LICENSE
pack model -o dir -f > /dev/null
[ ! -e dir/LICENSE ] || fail "the directory was not replaced"
pack model -o void -f > /dev/null

# Damaged archives: each is an error of every command, a finding of --check.
size=$(wc -c < one.vptq)
for at in 3 40 $((size / 2)) $((size - 60)) $((size - 10)); do
    cp one.vptq bad.vptq
    byte=$(od -An -tu1 -j "$at" -N 1 one.vptq | tr -d ' ')
    printf '%b' "\\$(printf %03o $((byte ^ 8)))" |
        dd of=bad.vptq bs=1 seek="$at" conv=notrunc 2> /dev/null
    bad 1 "bad.vptq" pack bad.vptq -o out
    [ ! -e out ] || fail "output from a damaged archive"
done
cp one.vptq bad.vptq
printf XX | dd of=bad.vptq bs=1 seek=$((size / 2)) conv=notrunc 2> /dev/null
finds "damaged" bad.vptq
head -c $((size / 2)) one.vptq > bad.vptq
bad 1 "its end is missing" pack --list bad.vptq

# A truncated directory, a missing tensor, a missing entry.
head -c 200000 model/model.safetensors > t && mv t model/model.safetensors
bad 1 "model/model.safetensors.*bytes" pack model -o out
finds "bytes" model
cp "$golden/model.safetensors" model/model.safetensors
chmod u+w model/model.safetensors
sed -i 's/model.layers.3.mlp.up_proj.perm/model.layers.3.mlp.up_proj.prem/
    s/model.layers.3.mlp.up_proj.indices/model.layers.3.mlp.up_proj.endices/' \
    model/model.safetensors
finds "'model.layers.3.mlp.up_proj.indices' is missing" model
finds "has no tensor 'model.layers.3.mlp.up_proj.endices'" model
cp "$golden/model.safetensors" model/model.safetensors
sed 's/"model.layers.2.mlp.up_proj"/"model.layers.9.mlp.up_proj"/' "$golden/config.json" \
    > model/config.json
finds "'model.layers.2.mlp.up_proj.*' is part of a quantized matrix" model
sed 's/"group_size": 168/"group_size": 167/' "$golden/config.json" > model/config.json
finds "layer 'model.layers.0.mlp.down_proj'" model
