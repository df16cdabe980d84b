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

# Files that are not copied are named.
echo x > 'src/two words.txt'
truncate -s 17M src/huge.dat
"$BIN/vptq-pack" -q --unpack src -o named > out.txt 2> err.txt
expect_line err.txt "src/huge.dat is not copied: it is as large as weights"
expect_line err.txt "src/two words.txt is not copied: its name has characters"
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
