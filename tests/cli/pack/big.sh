# A model several times larger than the memory limit: checked, listed, packed and repaired, as a
# directory and as an archive; an interrupted archive writer leaves nothing.
needs_own_machine "measures memory"
command -v python3 > /dev/null || skip "needs python3, to make the model and to measure memory"
! grep -q __asan_init "$BIN/vptq-pack" || skip "AddressSanitizer keeps freed memory"

# Random indices and numbers, which hardly compress: 281 MiB, of which the embedding has 96.
cat > make.py << 'PY'
import json, os, random, struct, sys

LAYERS, HIDDEN, FFN, VOCAB, V, K = 8, 2048, 8192, 24576, 8, 65536
finite = bytes(b & 0xBF for b in range(256))  # F16 below 2
rng = random.Random(5)


def numbers(n):
    return rng.randbytes(2 * n).translate(finite)


def tensors():
    yield "model.embed_tokens.weight", "F16", [VOCAB, HIDDEN], lambda: numbers(VOCAB * HIDDEN)
    yield "model.norm.weight", "F16", [HIDDEN], lambda: numbers(HIDDEN)
    for layer in range(LAYERS):
        block = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{block}{norm}.weight", "F16", [HIDDEN], lambda: numbers(HIDDEN)
        for name, (out, inn) in SHAPES.items():
            words = out // V * inn // 2
            yield f"{block}{name}.indices", "I32", [1, out // V, inn // 2], lambda n=words: rng.randbytes(4 * n)
            yield f"{block}{name}.centroids.weight", "F16", [1, K * V], lambda: numbers(K * V)
            for part in ("weight_scale", "weight_bias"):
                yield f"{block}{name}.{part}", "F16", [inn], lambda n=inn: numbers(n)


SHAPES = {f"self_attn.{x}_proj": (HIDDEN, HIDDEN) for x in "qkvo"}
SHAPES |= {"mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN), "mlp.down_proj": (HIDDEN, FFN)}
os.mkdir(sys.argv[1])
layers = {
    f"model.layers.{layer}.{name}": {
        "in_features": inn, "out_features": out, "vector_lens": [-1, V], "num_centroids": [-1, K], "num_res_centroids": [-1, -1],
        "group_num": 1, "group_size": inn, "outlier_size": 0, "indices_as_float": False, "enable_norm": True,
        "enable_perm": False, "is_indice_packed": True, "bias": False}
    for layer in range(LAYERS) for name, (out, inn) in SHAPES.items()}
config = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": FFN,
    "num_hidden_layers": LAYERS, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": VOCAB,
    "tie_word_embeddings": True, "torch_dtype": "float16",
    "quantization_config": {"quant_method": "vptq", "config_for_layers": layers}}
with open(sys.argv[1] + "/config.json", "w") as f:
    json.dump(config, f)
header, at = {}, 0
for name, dtype, shape, _ in tensors():
    n = {"F16": 2, "I32": 4}[dtype]
    for size in shape:
        n *= size
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
    at += n
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(sys.argv[1] + "/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    for _, _, _, data in tensors():
        f.write(data())
PY
python3 make.py big
size=$(wc -c < big/model.safetensors)

# measured COMMAND..: runs it; its peak memory must stay below LIMIT KiB, and the model several times that
# Without a fixed threshold, which freed blocks glibc keeps depends on sizes that have nothing to do with the model.
LIMIT=69632
export MALLOC_MMAP_THRESHOLD_=131072
expect_number "$size" '>' $((3 * LIMIT * 1024))
measured()
{
    with_peak peak.txt "$@"
    peak=$(cat peak.txt)
    expect_number "$peak" '>' 2000
    expect_number "$peak" '<' "$LIMIT"
}
pack() { measured "$BIN/vptq-pack" -q -t 2 "$@"; }

pack --list big > list.txt
expect_line list.txt "^big: 56 quantized matrices"
pack --check big > check.txt
expect_line check.txt "^big: 0 errors"
pack --repair big -o fixed > /dev/null
pack big -o big.vptq > /dev/null
expect_number "$(wc -c < big.vptq)" '>' $((3 * LIMIT * 1024))
pack --list big.vptq > list.txt
expect_line list.txt "^big.vptq: 56 quantized matrices"
pack --check big.vptq > check.txt
expect_line check.txt "^big.vptq: 0 errors"
pack --digest big > one.txt
pack --digest big.vptq > two.txt
expect_same one.txt two.txt
pack --repair big.vptq -o again > /dev/null
expect_same fixed again
pack --repair big.vptq -o again.vptq > /dev/null
expect_same big.vptq again.vptq
rm -r fixed again again.vptq

# Interrupted while writing an archive.
started() { compgen -G "$1.tmp.*" > /dev/null; }
begin()
{
    "$BIN/vptq-pack" -q -t 1 big -o "$1" > out.txt 2> err.txt &
    pid=$!
    wait_for 60 started "$1"
}
begin stopped.vptq
interrupt "$pid"
expect_line err.txt "interrupted"
[ ! -e stopped.vptq ] || fail "an archive after SIGINT"
no_leftovers .
# the old output stays until the new one is complete
echo old > killed.vptq
"$BIN/vptq-pack" -q -t 1 -f big -o killed.vptq > out.txt 2> err.txt &
pid=$!
wait_for 60 started killed.vptq
kill_and_wait "$pid"
[ "$(cat killed.vptq)" = old ] || fail "an archive after SIGKILL"
# and the next writer of the same output removes the temporary file
pack -f big -o killed.vptq > /dev/null
expect_same big.vptq killed.vptq
no_leftovers .
