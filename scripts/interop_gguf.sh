#!/usr/bin/env bash
# make interop-gguf: runs our GGUF files with llama.cpp's Python package.  Tiny models of every family
# in F32 must give the logits that transformers computed (tests/golden).  The demo model must give the
# same token ids and the perplexity of vptq-eval: within 0.1 % for the original in F16 and for a model
# with three quantized blocks, within 0.5 % with the embedding in Q8_0 (llama.cpp then also rounds
# activations to 8 bits); and all figures of vptq-eval kld between the two by llama.cpp's protocol,
# within 0.1 %.  Its linear layers in Q8_0 and Q6_K to Q2_K must have the types and numbers of llama.cpp's
# own quantizer.
#
# Builds the package once from source (C++ compiler, some minutes) in build/interop/gguf.  If that is
# impossible, prints one line and exits with 0.  The last line is "N passed, N failed, N skipped"; exits
# with 1 if a check failed.
# Environment: BIN (tools), INTEROP_DIR (default build/interop), PYTHON (creates the environment), INTEROP_PYTHON (an interpreter that has the package), VPTQ_DEMO_GGUF (the demo model),
# TEXT (default: the WikiText-2 test text of VPTQ_DATA), CONTEXT (256), WINDOWS (8).
set -euo pipefail
export LC_ALL=C # decimal points

src=$(cd "$(dirname "$0")/.." && pwd)
dir=${INTEROP_DIR:-$src/build/interop}/gguf
export BIN=${BIN:-$src/build/bin} PYTHONDONTWRITEBYTECODE=1
data=${VPTQ_DATA:-$src/../shared/data}
text=${TEXT:-$data/text/wikitext2/wiki.test.raw}
context=${CONTEXT:-256}
windows=${WINDOWS:-8}
package=llama-cpp-python==0.3.36
passed=0 failed=0

skip()
{
    echo "skip interop-gguf: $*"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}

python=${INTEROP_PYTHON:-$dir/venv/bin/python}
make_environment()
{
    rm -rf "$dir/venv"
    "${PYTHON:-python3}" -m venv "$dir/venv" &&
        "$dir/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$package" numpy
}
mkdir -p "$dir"
[ -e "$text" ] || skip "there is no text '$text' (TEXT=FILE)"
if ! "$python" -c 'import llama_cpp, numpy' 2>/dev/null; then
    echo "building $package"
    make_environment >"$dir/pip.log" 2>&1 || skip "$package cannot be installed (see $dir/pip.log)"
fi

# logits FAMILY MODEL TOKENS: compares the logits of a golden model for its first tokens.
logits()
{
    local golden=$src/tests/golden/tiny_$1 error
    "$BIN/vptq-pack" -q --unpack "$2" --tokenizer "$dir/tokenizer.json" -o "$dir/$1.gguf" --dtype f32 -f >/dev/null
    if error=$("$python" "$src/tests/interop/gguf_logits.py" "$dir/$1.gguf" "$golden/ids.i32" \
        "$golden/logits.npy" "$3" 2>"$dir/llama.log"); then
        echo "ok logits of $1: within $error"
        passed=$((passed + 1))
    else
        echo "not ok logits of $1: $error (see $dir/llama.log)"
        failed=$((failed + 1))
    fi
}

cat >"$dir/tokenizer.json" <<'EOF'
{"added_tokens": [], "normalizer": null, "post_processor": null, "decoder": {"type": "ByteLevel"},
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
 "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}}
EOF
# llama.cpp has no sliding window for these architectures, and we refuse one that starts at a later
# layer: those two are compared up to the length of their windows.
rm -rf "$dir/tiny_qwen2"
cp -r "$src/tests/golden/tiny_qwen2" "$dir/tiny_qwen2"
sed -i 's/"use_sliding_window": true/"use_sliding_window": false/' "$dir/tiny_qwen2/config.json"
logits llama3 "$src/tests/golden/tiny_llama3" 40
logits mistral "$src/tests/golden/tiny_mistral" 8
logits qwen2 "$dir/tiny_qwen2" 6
logits qwen3 "$src/tests/golden/tiny_qwen3" 40

model=${VPTQ_DEMO_GGUF:-$dir/model.gguf}
[ -e "$model" ] || "$src/scripts/fetch_demo.sh" --model-only "$dir" || skip "the demo model cannot be fetched"

# same NAME MODEL FILE WITHIN: compares token ids and perplexity of the text on both sides.
same()
{
    local name=$1 ours theirs
    "$BIN/vptq-eval" ppl -q -m "$2" --text "$text" --tokens-only >"$dir/ours.ids"
    ours=$("$BIN/vptq-eval" ppl -q -m "$2" --text "$text" --context "$context" --windows "$windows" \
        --format json | sed -E 's/.*"ppl": ([^,]*),.*/\1/')
    if ! theirs=$("$python" "$src/tests/interop/gguf_ppl.py" "$3" "$text" "$context" "$windows" \
        "$dir/theirs.ids" 2>"$dir/llama.log"); then
        echo "not ok $name: llama.cpp failed (see $dir/llama.log)"
        failed=$((failed + 1))
    elif ! cmp -s "$dir/ours.ids" "$dir/theirs.ids"; then
        echo "not ok $name: other token ids: $(diff "$dir/ours.ids" "$dir/theirs.ids" | head -n 3)"
        failed=$((failed + 1))
    elif awk -v a="$ours" -v b="$theirs" -v w="$4" 'BEGIN { d = b / a - 1; exit !(d < w && d > -w) }'; then
        echo "ok $name: $ours, llama.cpp $theirs"
        passed=$((passed + 1))
    else
        echo "not ok $name: perplexity $ours, llama.cpp $theirs"
        failed=$((failed + 1))
    fi
}

unpack() { "$BIN/vptq-pack" -q --unpack "$@" -f >/dev/null; }
unpack "$model" -o "$dir/f16.gguf"
same original "$model" "$dir/f16.gguf" 1e-3

head -c 200000 "$text" >"$dir/calibration.txt"
"$BIN/vptq-quantize" -q -f -m "$model" -c "$dir/calibration.txt" -n 4 -l 256 --layers 0-2 \
    -v 4 -k 256 -r 0 --sweeps 0 --refits 1 -o "$dir/work" >"$dir/quantize.txt" 2>&1
unpack "$dir/work" -o "$dir/quantized.gguf"
same quantized "$dir/work" "$dir/quantized.gguf" 1e-3

# In F32, since with F16 weights llama.cpp rounds activations to F16 as well.
unpack "$model" -o "$dir/original.gguf" --dtype f32
unpack "$dir/work" -o "$dir/changed.gguf" --dtype f32
if "$python" "$src/tests/interop/evaluation.py" llama.cpp "$dir/original.gguf" "$dir/changed.gguf" "$text" \
    "$context" "$windows" "$model" "$dir/work" >"$dir/figures.md" 2>"$dir/llama.log"; then
    echo "ok figures of kld: $(grep -c '^| `' "$dir/figures.md") within 0.1 % (see $dir/figures.md)"
    passed=$((passed + 1))
else
    echo "not ok figures of kld: $(tail -n 1 "$dir/llama.log") (see $dir/figures.md)"
    failed=$((failed + 1))
fi

unpack "$model" -o "$dir/q8_0.gguf" --embeddings q8
same "Q8_0 embedding" "$dir/q8_0.gguf" "$dir/q8_0.gguf" 5e-3

# blocks DTYPE FILE_TYPE: linear layers quantized by both from the same file, types and numbers.
blocks()
{
    local name
    unpack "$dir/f16.gguf" -o "$dir/ours.gguf" --dtype "$1" 2>/dev/null
    if ! "$python" "$src/tests/interop/gguf_quantize.py" "$dir/f16.gguf" "$dir/theirs.gguf" "$2" >"$dir/llama.log" 2>&1; then
        echo "not ok $1: llama.cpp failed (see $dir/llama.log)"
        failed=$((failed + 1))
        return
    fi
    for name in ours theirs; do
        "$BIN/vptq-pack" -q --list "$dir/$name.gguf" | grep -v "^$dir" >"$dir/$name.list"
        rm -rf "${dir:?}/$name"
        unpack "$dir/$name.gguf" -o "$dir/$name" --dtype f32
    done
    if cmp "$dir/ours.list" "$dir/theirs.list" && cmp "$dir/ours/model.safetensors" "$dir/theirs/model.safetensors"; then
        echo "ok $1: the types and numbers of llama.cpp's quantizer"
        passed=$((passed + 1))
    else
        echo "not ok $1: other types or numbers than llama.cpp's quantizer ($dir/ours, $dir/theirs)"
        failed=$((failed + 1))
    fi
}
for type in q8:7 q6:18 q5:16 q4:14 q3:11 q2:10; do
    blocks "${type%:*}" "${type#*:}"
done

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
