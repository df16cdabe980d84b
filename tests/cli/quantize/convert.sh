# From a model to a packed one by one command: built-in text, model card, work directory.
model=$(data models/stories260K-hf)
convert() { "$BIN/vptq-quantize" -q -m "$model" -b 3 -n 4 -l 64 "$@" >out.txt; }
mkdir named
cp "$model"/config.json "$model"/model.safetensors "$model"/tokenizer.json named
printf -- '---\nlicense: apache-2.0\nlanguage: en\n---\n# Stories\n' >named/README.md

convert -o a/one.vptq
[ "$(ls a)" = one.vptq ] || fail "$(ls a)"
expect_line out.txt '^35 matrices, 2\.9'
"$BIN/vptq-eval" ppl -q -m a/one.vptq --text "$(data text/tinystories/tiny.utf8)" --windows 4 --format json >ppl.json
expect_number "$(json_get ppl ppl.json)" '<' 60
"$BIN/vptq-pack" -q --unpack a/one.vptq -o plain >out.txt
expect_line plain/README.md '^base_model: "stories260K-hf"$'
expect_line plain/README.md '^| license of the original | not stated where its weights were'
expect_line plain/README.md '^| calibration | up to 4 windows of builtin, layer after layer |$'
expect_line plain/README.md "^    vptq-quantize -q -m $model -b 3 -n 4 -l 64 -o a/one.vptq\$"
digest=$("$BIN/vptq-pack" -q --digest a/one.vptq | cut -d ' ' -f 1)
grep -q "digest | .$digest" plain/README.md || fail "$digest: $(cat plain/README.md)"

# An output that exists is not touched, and no work is done; --force replaces it.
cp a/one.vptq before
expect_error 1 "vptq-quantize: 'a/one.vptq' already exists (--force replaces it)" \
    "$BIN/vptq-quantize" -q -m "$model" -b 3 -n 4 -l 64 -o a/one.vptq
[ "$(ls a)" = one.vptq ] || fail "$(ls a)"
convert -o a/one.vptq --force

# With what an interrupted run left, the same command continues.
convert -o b.vptq --keep-work
[ -e b.vptq.work/report.jsonl ] || fail "no work directory"
rm b.vptq b.vptq.work/report.jsonl b.vptq.work/layer_004_*
"$BIN/vptq-quantize" -m "$model" -b 3 -n 4 -l 64 -o b.vptq --format json >rows.json 2>err.txt
[ ! -e b.vptq.work ] || fail "the work directory is still there"
[ "$("$BIN/vptq-pack" -q --digest b.vptq | cut -d ' ' -f 1)" = "$digest" ] || fail "another result"

# A packed directory, the license of the original, and a text of one's own.
head -c 9000 "$(data text/tinystories/tiny.utf8)" >"my text"
"$BIN/vptq-quantize" -q -m named -b 3 -c "my text" -n 4 -l 64 --to hf -o packed >out.txt
expect_line packed/README.md '^license: apache-2.0$'
expect_line packed/README.md '^| calibration | up to 4 windows of my text |$'
expect_line packed/README.md "^    vptq-quantize -q -m named -b 3 -c 'my text' -n 4 -l 64 --to hf -o packed\$"
"$BIN/vptq-pack" -q --check packed >out.txt

# The built-in text has a name, and one file may have it, too.
"$BIN/vptq-hessian" -q -m "$model" -n 4 -l 64 --layers 0-0 -o h1 >out.txt
"$BIN/vptq-hessian" -q -m "$model" -c builtin -n 4 -l 64 --layers 0-0 -o h2 >out.txt
expect_same h1/layer_000_o.safetensors h2/layer_000_o.safetensors
cp "my text" builtin
"$BIN/vptq-hessian" -q -m "$model" -c ./builtin -n 4 -l 64 --layers 0-0 -o h3 >out.txt
"$BIN/vptq-hessian" -q -m "$model" -c "my text" -n 4 -l 64 --layers 0-0 -o h4 >out.txt
expect_same h3/layer_000_o.safetensors h4/layer_000_o.safetensors
! cmp -s h1/layer_000_o.safetensors h3/layer_000_o.safetensors || fail "the built-in text was read instead"
