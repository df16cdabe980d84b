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

# refused MESSAGE ARGUMENT..: the arguments are an error, and nothing changes.
refused()
{
    local message=$1 name
    shift
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
