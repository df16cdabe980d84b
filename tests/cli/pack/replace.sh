# Outputs that exist: no spelling of a path has -f replace the input, its base model or other files.
hf=$(data models/stories260K-hf)
text=$(data text/tinystories/tiny.utf8)
cp -r "$hf" model
"$BIN/vptq-hessian" -q -m model -c "$text" -n 4 -l 64 -o h --layers 0-0 > out.txt
"$BIN/vptq-quantize" -q -m model -H h -v 4 -k 16 --layers 0-0 -o work > out.txt
"$BIN/vptq-pack" -q work -o packed > out.txt
"$BIN/vptq-pack" -q work -o packed.vptq > out.txt
"$BIN/vptq-pack" -q --unpack model -o model.gguf > out.txt
mkdir photos
echo mine > photos/beach.jpg
mkdir before
cp -r model work packed packed.vptq model.gguf photos before

# refused MESSAGE ARGUMENT..: the arguments are an error, also of a plan, and nothing changes.
refused()
{
    local message=$1 name
    shift
    expect_sentence 2 "$message" "$BIN/vptq-pack" -q -f --dry-run "$@"
    expect_sentence 2 "$message" "$BIN/vptq-pack" -q -f "$@"
    for name in model work packed packed.vptq model.gguf photos; do expect_same "before/$name" "$name"; done
    [ ! -e missing ] || fail "$* left a directory"
}

# A path through a folder that is created on the way.
refused "the output 'missing/../work': 'missing' is not a directory" work -o missing/../work
refused "the output 'missing/../model/': 'missing' is not a directory" work -o missing/../model/
refused "missing' is not a directory" work --base model -o missing/../model
refused "missing' is not a directory" --unpack model -o missing/../model
refused "missing' is not a directory" packed -o ./missing/../packed
refused "missing' is not a directory" packed.vptq -o missing/../packed.vptq --embeddings q8
refused "missing' is not a directory" --unpack model.gguf -o missing/../model.gguf --dtype q8
refused "'photos/missing' is not a directory" work -o photos/missing/../../photos
expect_sentence 2 "missing' is not a directory" "$BIN/vptq-quantize" -q -f -m model -v 4 -k 16 --to hf \
    -o missing/../model
expect_sentence 2 "missing' is not a directory" "$BIN/vptq-quantize" -q -f -m model -v 4 -k 16 --to hf --dry-run \
    -o missing/../model
expect_same before/model model
[ ! -e missing ] || fail "a directory is left"
refused "is the input itself" work -o photos/../work
"$BIN/vptq-pack" -q work -o 'photos/../..new' > out.txt
expect_same packed ..new

# An output that exists is found before the model is read, whose damage is found later, and of a plan.
cp packed.vptq damaged.vptq
size=$(wc -c < packed.vptq)
printf 'damaged!' | dd of=damaged.vptq bs=1 seek=$((size / 2)) conv=notrunc 2> /dev/null
expect_error 1 "damaged.vptq" "$BIN/vptq-pack" -q damaged.vptq -o new
echo old > old.vptq
echo old > old.gguf
for plan in "" --dry-run; do
    # shellcheck disable=SC2086 # may be nothing
    for model in packed damaged.vptq; do
        expect_sentence 1 "'old.vptq' already exists (--force replaces it)" \
            "$BIN/vptq-pack" -q $plan "$model" -o old.vptq
        expect_sentence 1 "directory 'before/packed' already exists (--force replaces it)" \
            "$BIN/vptq-pack" -q $plan "$model" -o before/packed
        expect_sentence 1 "directory 'before/packed' already exists" \
            "$BIN/vptq-pack" -q $plan --unpack "$model" -o before/packed
        expect_sentence 1 "'old.gguf' already exists" "$BIN/vptq-pack" -q $plan --unpack "$model" -o old.gguf
        expect_sentence 1 "cannot replace directory 'photos': it holds 'beach.jpg' and no config.json" \
            "$BIN/vptq-pack" -q $plan -f "$model" -o photos
    done
done
expect_same before/model model
"$BIN/vptq-pack" -q packed -o old.vptq --dry-run -f > out.txt
expect_line out.txt "^plan: old.vptq: archive"
expect_same old.vptq old.gguf
