# Models as GGUF files: the same model from every form, and errors.
hf=$(data models/stories260K-hf)
bin=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
unpack() { "$BIN/vptq-pack" -q --unpack "$@"; }
ppl() { stories ppl -m "$@"; }

# The name's ending decides, or --to.
unpack "$hf" -o model.gguf --format json > out.json
[ "$(json_get form out.json)" = gguf ] || fail "form"
[ "$(json_get total_bytes out.json)" = "$(wc -c < model.gguf)" ] || fail "total_bytes"
unpack "$hf" --to gguf -o other -t 1 > out.txt
expect_same model.gguf other
expect_line out.txt "other: gguf, 47 plain tensors"
[ "$(ppl model.gguf)" = "$(ppl "$hf")" ] || fail "an f16 model changed"
unpack model.gguf -o again.gguf > out.txt
expect_same model.gguf again.gguf
unpack model.gguf -o back > out.txt
[ "$(ppl back)" = "$(ppl "$hf")" ] || fail "a Hugging Face directory of the GGUF file"
unpack "$bin" --tokenizer "$tok" -o f32.gguf --dtype f32 > out.txt
[ "$(ppl f32.gguf)" = "$(ppl "$bin" --tokenizer "$tok")" ] || fail "a llama2.c model as f32"
unpack "$hf" -o q8.gguf --embeddings q8 > out.txt
"$BIN/vptq-pack" -q --list q8.gguf > list.txt
[ "$(grep -c ' Q8_0 ' list.txt)" = 1 ] || fail "one embedding is Q8_0: $(grep Q8_0 list.txt)"
expect_near "$(ppl q8.gguf)" "$(ppl "$hf")" 0.01

# A quantized model, from its work directory and from its archive.
"$BIN/vptq-hessian" -q -m "$hf" -c "$text" -n 4 -l 64 -o h > out.txt
"$BIN/vptq-quantize" -q -m "$hf" -H h -o work -v 4 -k 16 -r 0 --layers 1-2 > out.txt
"$BIN/vptq-pack" -q work -o model.vptq > out.txt
unpack work -o work.gguf > out.txt
unpack model.vptq -o archive.gguf > out.txt
expect_same work.gguf archive.gguf
expect_near "$(ppl work.gguf)" "$(ppl work)" 1e-3

unpack "$hf" -o plan.gguf --dry-run --format json > out.json
[ ! -e plan.gguf ] || fail "a dry run wrote"

# An estimate has a piece of every kind of tensor, however late the clock says it is.
late()
{
    VPTQ_FAULT_CLOCK=1 preloading "$BIN/vptq-pack" -q --dry-run --format json "$@" > late.json
    expect_number "$(json_get estimated_seconds late.json)" '>' 0
}
if [ -e "${FAULTS:-}" ]; then
    for form in plan.gguf plan; do
        for type in f16 f32; do
            late --unpack "$hf" -o $form --dtype $type
        done
    done
    late work -o plan.vptq
fi
expect_exit 1 unpack "$hf" -o model.gguf 2> err.txt
expect_line err.txt "'model.gguf' already exists"
unpack "$hf" -o model.gguf -f > out.txt
expect_exit 2 unpack model.gguf -o model.gguf -f 2> err.txt
expect_line err.txt "is the input itself"
expect_exit 1 unpack "$bin" -o none.gguf 2> err.txt
expect_line err.txt "pass --tokenizer FILE"
expect_exit 2 unpack "$hf" -o none.gguf --embeddings q4_0 2> err.txt
expect_line err.txt "expected f16, bf16, f32, q8 or q6"
expect_exit 2 unpack "$hf" -o none.gguf --shard-size 1M 2> err.txt
expect_line err.txt "does not go with a GGUF file"
expect_exit 2 unpack "$hf" -o none --to archive 2> err.txt
expect_exit 2 "$BIN/vptq-pack" -q work -o none --to gguf 2> err.txt
expect_line err.txt "goes with --unpack only"
# a directory with a name ending in .gguf is an error
expect_exit 2 "$BIN/vptq-pack" -q work -o none.gguf 2> err.txt
expect_line err.txt "'none.gguf': a GGUF file is written with --unpack; --to hf makes a directory of that name"
expect_exit 2 unpack work -o none.vptq 2> err.txt
expect_line err.txt "'none.vptq': an archive is written without --unpack; --to hf makes a directory of that name"
unpack "$hf" -o dir.vptq --to hf > out.txt
[ -e dir.vptq/config.json ] || fail "--to hf decides"
[ ! -e none.vptq ] || fail "an output was made"
[ ! -e none ] || fail "an output was made"
[ ! -e none.gguf ] || fail "a GGUF file was made"
no_leftovers .
