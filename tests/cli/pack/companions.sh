# The small files of a model are copied through every form.
hf=$(data models/stories260K-hf)
text=$(data text/tinystories/tiny.utf8)
mkdir src src/folder
cp "$hf"/* src
echo 'all rights reversed' > src/LICENSE
echo '{{ messages }}' > src/chat_template.jinja
echo 'use well' > src/USE_POLICY.md
echo 'model card' > src/README.md
echo '{}' > src/preprocessor_config.json
: > src/empty.txt
ln -s LICENSE src/LINK.txt
echo other > src/.gitattributes
echo weights > src/pytorch_model.bin
echo '{}' > src/pytorch_model.bin.index.json
echo inside > src/folder/notes.txt
going="LICENSE LINK.txt USE_POLICY.md README.md chat_template.jinja empty.txt generation_config.json
    preprocessor_config.json special_tokens_map.json tokenizer.json tokenizer_config.json"

# expect_companions DIR: has exactly these files, unchanged.
expect_companions()
{
    local name
    for name in $going; do expect_same "src/$name" "$1/$name"; done
    for name in .gitattributes pytorch_model.bin pytorch_model.bin.index.json folder logits_f16.npy; do
        [ ! -e "$1/$name" ] || fail "$name went along"
    done
    expect_line "$1/config.json" '"model_type": "llama"'
}

"$BIN/vptq-pack" -q --unpack src -o plain > out.txt 2> err.txt
expect_companions plain
[ ! -s err.txt ] || fail "warnings: $(cat err.txt)"
"$BIN/vptq-hessian" -q -m src -c "$text" -n 2 -l 64 -o h > out.txt
"$BIN/vptq-quantize" -q -m src -H h -o work -v 4 -k 16 -r 0 --layers 1-1 > out.txt
"$BIN/vptq-pack" -q work -o packed > out.txt
expect_companions packed
"$BIN/vptq-pack" -q packed -o model.vptq > out.txt
"$BIN/vptq-pack" -q model.vptq -o again > out.txt
expect_same packed again
"$BIN/vptq-pack" -q --repair again -o repaired > out.txt
expect_companions repaired

# Another tokenizer replaces the files of the model's own, and no others.
tok=$(data models/stories260K/tok512.bin)
for model in src model.vptq; do
    rm -rf foreign
    "$BIN/vptq-pack" -q --unpack "$model" --tokenizer "$tok" -o foreign > out.txt
    [ ! -e foreign/special_tokens_map.json ] || fail "$model: the old tokenizer's files are there"
    [ ! -e foreign/chat_template.jinja ] || fail "$model: the old tokenizer's template is there"
    expect_same src/LICENSE foreign/LICENSE
    expect_same src/generation_config.json foreign/generation_config.json
done

# Naming the model's own tokenizer, in any spelling, changes nothing.
for own in src/tokenizer.json src/folder/../tokenizer.json ./src; do
    for model in src work; do
        rm -rf own
        "$BIN/vptq-pack" -q --unpack "$model" --tokenizer "$own" -o own > out.txt
        expect_companions own
    done
done
"$BIN/vptq-quantize" -q -m src -H h -v 4 -k 16 -r 0 --tokenizer src/tokenizer.json -o w > out.txt
"$BIN/vptq-pack" -q w -o two > out.txt
"$BIN/vptq-quantize" -q -m src -H h -v 4 -k 16 -r 0 --tokenizer src/tokenizer.json --to hf -o one > out.txt
rm {one,two}/{README.md,SHA256SUMS} # a model card of its own
expect_same two one
expect_same src/chat_template.jinja one/chat_template.jinja

# One from another directory brings its template.
mkdir other
cp src/tokenizer.json other
echo '{{ other }}' > other/chat_template.jinja
for model in src work packed model.vptq; do
    rm -rf brought brought.gguf from_gguf
    "$BIN/vptq-pack" -q --unpack "$model" --tokenizer other/tokenizer.json -o brought > out.txt
    expect_same other/chat_template.jinja brought/chat_template.jinja
    [ ! -e brought/special_tokens_map.json ] || fail "$model: the old tokenizer's files are there"
    "$BIN/vptq-pack" -q --unpack "$model" --tokenizer other -o brought.gguf > out.txt
    "$BIN/vptq-pack" -q --unpack brought.gguf -o from_gguf > out.txt
    expect_line from_gguf/tokenizer_config.json '"chat_template": "{{ other }}\\n"'
done

# Files that are not copied are named.
echo x > 'src/two words.txt'
truncate -s 17M src/huge.txt
"$BIN/vptq-pack" --unpack src -o named > out.txt 2> err.txt
expect_line err.txt "src/huge.txt is not copied: it is as large as weights"
expect_line err.txt "src/two words.txt is not copied: it is neither config, tokenizer nor text"
! grep -q 'model.safetensors is not copied' err.txt || fail "the weights were converted: $(cat err.txt)"
"$BIN/vptq-pack" --unpack named/ -o anew > out.txt 2> err.txt
! grep -q 'is not copied' err.txt || fail "weights and sums are written anew: $(cat err.txt)"
expect_companions named

# A GGUF file gets the chat template of chat_template.jinja, unless the tokenizer is another one.
for model in src work packed model.vptq; do
    "$BIN/vptq-pack" -q --unpack "$model" -o model.gguf -f > out.txt 2> err.txt
    rm -rf from_gguf
    "$BIN/vptq-pack" -q --unpack model.gguf -o from_gguf > out.txt
    expect_line from_gguf/tokenizer_config.json '"chat_template": "{{ messages }}\\n"'
    "$BIN/vptq-pack" -q --unpack "$model" --tokenizer "$tok" -o model.gguf -f > out.txt 2> err.txt
    rm -rf from_gguf
    "$BIN/vptq-pack" -q --unpack model.gguf -o from_gguf > out.txt
    ! grep -q chat_template from_gguf/tokenizer_config.json || fail "$model: the old tokenizer's template is there"
done

# Links that leave the model are not copied; the output might be published with somebody's secret.
echo "the secret" > secret
for name in chat_template.jinja merges.txt special_tokens_map.json notes.txt generation_config.json; do
    rm -f "src/$name"
    ln -s ../secret "src/$name"
done
mv src/tokenizer.json elsewhere.json
ln -s "$PWD/elsewhere.json" src/tokenizer.json
rm -rf plain
"$BIN/vptq-pack" -q --unpack src -o plain > out.txt 2> err.txt
"$BIN/vptq-pack" -q --unpack src -o plain.gguf > out.txt 2>> err.txt
! grep -rq "the secret" plain plain.gguf || fail "the secret is in the output"
for name in chat_template.jinja merges.txt special_tokens_map.json notes.txt generation_config.json; do
    [ ! -e "plain/$name" ] || fail "$name was copied"
    expect_line err.txt "warning: src/$name is not copied: it is a link to '$PWD/secret', outside the model"
done
# what the tokenizer says goes into the output, the file does not
expect_line err.txt "warning: src/tokenizer.json is not copied"
"$BIN/vptq-eval" ppl -m plain --text "$text" --tokens-only > got.txt
"$BIN/vptq-eval" ppl -m "$hf" --text "$text" --tokens-only > want.txt
expect_same want.txt got.txt

# The cache of Hugging Face consists of links.
mkdir -p cache/snapshots/main cache/blobs
for file in "$hf"/*; do
    hash=$(sha1sum < "$file" | cut -d" " -f1)
    cp "$file" "cache/blobs/$hash"
    ln -s "../../blobs/$hash" "cache/snapshots/main/$(basename "$file")"
done
ln -s "../../../secret" "cache/snapshots/main/notes.txt"
rm -rf plain
"$BIN/vptq-pack" -q --unpack cache/snapshots/main -o plain > out.txt 2> err.txt
for name in generation_config.json special_tokens_map.json tokenizer.json; do expect_same "$hf/$name" "plain/$name"; done
[ ! -e plain/notes.txt ] || fail "a link out of the cache was followed"

# A file of an archive can be nothing that changes what the weights next to it mean.
python=
for candidate in python3 /usr/bin/python3; do
    [ -n "$python" ] || ! "$candidate" -c 'import numpy, zstandard' 2> /dev/null || python=$candidate
done
[ -n "$python" ] || skip "needs python3 with numpy and zstandard"
for name in model.safetensors.index.json pytorch_model.bin model.safetensors quantize.json lock modeling.py SHA256SUMS \
    adapter_config.json ../up.txt; do
    "$python" -B - "$SRC/scripts" "$name" packed bad.vptq << 'END'
import os, sys
sys.path.insert(0, sys.argv[1])
import vptq_archive as v
with open(sys.argv[4], "wb") as f:
    w = v.Writer(f, 0)
    for name in v.files_of(sys.argv[3]):
        w.add(0, name, "", [], 1, v.read_pieces(f"{sys.argv[3]}/{name}", 0, os.path.getsize(f"{sys.argv[3]}/{name}")))
    w.add(0, sys.argv[2], "", [], 1, [b"{}"])
    for name, dtype, shape, source, offset, n in v.tensors_of(sys.argv[3]):
        w.add(1, name, dtype, shape, 1, v.read_pieces(source, offset, n))
    w.finish()
END
    message="bad.vptq: file '$name' does not belong in an archive, expected config, tokenizer and texts"
    "$BIN/vptq-pack" --check bad.vptq > out.txt 2> err.txt && fail "$name passes --check"
    expect_line out.txt "$message"
    for command in "--list bad.vptq" "--unpack bad.vptq -o bad" "--repair bad.vptq -o bad" "bad.vptq -o bad"; do
        # shellcheck disable=SC2086 # several words
        expect_sentence 1 "$message" "$BIN/vptq-pack" -q $command
        [ ! -e bad ] || fail "$command wrote something"
    done
    expect_exit 1 "$python" -B "$SRC/scripts/vptq_archive.py" verify bad.vptq > out.txt 2>&1
done
