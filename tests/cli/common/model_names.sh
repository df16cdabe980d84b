# Models as users have them: names on the Hugging Face hub, found in its local cache, and PyTorch files.
golden=$SRC/tests/golden
ids=$golden/tiny_mistral/ids.i32
score() { "$BIN/vptq-eval" ppl -q "$@" --tokens "$ids" --context 16 --format json > score.json && json_get nll score.json; }

# Fills the cache as `hf download` does.
repo=cache/models--tiny--mistral-1.0
mkdir -p $repo/refs $repo/blobs $repo/snapshots/0123abcd
for file in config.json model.safetensors; do
    hash=$(sha256sum < "$golden/tiny_mistral/$file" | cut -d" " -f1)
    cp "$golden/tiny_mistral/$file" "$repo/blobs/$hash"
    ln -s "../../blobs/$hash" "$repo/snapshots/0123abcd/$file"
done
printf 0123abcd > $repo/refs/main
export HF_HUB_CACHE=$PWD/cache
want=$(score -m "$golden/tiny_mistral")
for name in tiny/mistral-1.0 tiny/mistral-1.0@main tiny/mistral-1.0@0123abcd $repo $repo/; do
    [ "$(score -m "$name")" = "$want" ] || fail "another perplexity for $name"
    [ "$(json_get model score.json)" = "$PWD/$repo/snapshots/0123abcd" ] || [ "$name" = "${name#tiny}" ] ||
        fail "$name was read from $(json_get model score.json)"
done
"$BIN/vptq-pack" --list tiny/mistral-1.0 > list.txt
"$BIN/vptq-pack" --list "$golden/tiny_mistral" > same.txt
expect_same <(sed '$d' same.txt) <(sed '$d' list.txt)

# The work directory records the snapshot, and continues by any of its names.
cp "$ids" ids
"$BIN/vptq-quantize" -q -m tiny/mistral-1.0 --tokens ids -n 2 -l 16 -k 16 -o work --layers 0-0 > out.txt
"$BIN/vptq-quantize" -q -m $repo/snapshots/0123abcd --tokens ids -n 2 -l 16 -k 16 -o work > out.txt
expect_line work/quantize.json "\"base_model\": \"$PWD/$repo/snapshots/0123abcd\""
(unset HF_HUB_CACHE && "$BIN/vptq-pack" -q work -o packed) > out.txt
mkdir -p cache/models--tiny--packed/snapshots
cp -r packed cache/models--tiny--packed/snapshots/r1
"$BIN/vptq-pack" --check tiny/packed > out.txt
expect_line out.txt "^tiny/packed: 0 errors, 1 warning, 2 files agree with SHA256SUMS$"

# A path wins; an absent name is an error that says how to get it; nothing is downloaded.
mkdir -p tiny
cp -r "$golden/tiny_llama3" tiny/mistral-1.0
score -m tiny/mistral-1.0 > out.txt
[ "$(json_get model score.json)" = tiny/mistral-1.0 ] || fail "a name in the cache hides a path"
for tool in "vptq-hessian -c ids -o h -m" "vptq-quantize --dry-run -m" "vptq-eval ppl --text ids -m" "vptq-pack --list" \
    "vptq-pack --check"; do
    # shellcheck disable=SC2086 # words of the command
    expect_sentence 1 "cannot open 'no/such-model': No such file or directory, nor is it in the Hugging Face cache \
'$HF_HUB_CACHE'; download it with 'hf download no/such-model'$" "$BIN/"$tool no/such-model
done

# PyTorch files: the same numbers as their twins in safetensors.
mkdir shards tied
cp "$golden/tiny_mistral/config.json" "$golden"/torch/mistral-*.bin shards
cp "$golden/torch/mistral.index.json" shards/pytorch_model.bin.index.json
cp "$golden/tiny_qwen2/config.json" tied
cp "$golden/torch/qwen2.bin" tied/pytorch_model.bin
[ "$(score -m shards)" = "$want" ] || fail "another perplexity for shards"
[ "$(score -m tied)" = "$(score -m "$golden/tiny_qwen2")" ] || fail "another perplexity for one file"
for name in shards tied; do "$BIN/vptq-pack" -q --unpack $name -o plain_$name; done
"$BIN/vptq-pack" -q --unpack "$golden/tiny_mistral" -o plain
expect_same plain plain_shards
[ "$(ls plain_tied)" = "$(ls plain)" ] || fail "files: $(ls plain_tied)"
"$BIN/vptq-quantize" -q -m shards --tokens ids -n 2 -l 16 -k 16 -o work > out.txt # goes on with the same weights
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:12\n' > m.gguf
expect_sentence 1 "m.gguf: is a Git LFS pointer, not the weights; run 'git lfs pull'$" "$BIN/vptq-pack" --list m.gguf
# So is one in place of a text, token ids, a tokenizer, a recipe, or a Hessian and its description.
stories=$(data models/stories260K-hf)
pointer() { expect_sentence 1 "^[a-z-]*: $1: is a Git LFS pointer, not the $2; run 'git lfs pull'$" "${@:3}"; }
ln -s m.gguf p.json
quantize=("$BIN/vptq-quantize" -q -m "$golden/tiny_mistral")
pointer p.json 'token ids' "$BIN/vptq-eval" ppl -q -m "$golden/tiny_mistral" --tokens p.json
pointer p.json 'token ids' "${quantize[@]}" --tokens p.json -o w
pointer p.json 'JSON file' "${quantize[@]}" --recipe p.json --dry-run
pointer p.json 'JSON file' "${quantize[@]}" --config p.json
pointer p.json tokenizer "$BIN/vptq-eval" ppl -q -m plain --tokenizer p.json --text /dev/null
pointer p.json text "$BIN/vptq-eval" ppl -q -m "$stories" --text p.json
pointer p.json text "$BIN/vptq-eval" ppl -q -m "$stories" --text p.json --lossy
"$BIN/vptq-hessian" -q -m "$golden/tiny_mistral" --tokens ids -n 2 -l 16 -o h
cp m.gguf h/layer_000_o.safetensors
pointer h/layer_000_o.safetensors weights "${quantize[@]}" -H h -o w
cp m.gguf h/hessian.json
pointer h/hessian.json 'JSON file' "${quantize[@]}" -H h -o w
