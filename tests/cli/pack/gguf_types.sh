# Linear layers in GGUF's blocks (--dtype q8 to q2): types and fallbacks, what the report and the warnings say, the error
# against numbers read back, and values that blocks cannot hold.
hf=$(data models/stories260K-hf)
tok=$(data models/stories260K/tok512.bin)
golden=$(data golden/vptq_model_stories260K)
unpack() { "$BIN/vptq-pack" -q --unpack "$@"; }
# types FILE: number and type of its linear layers, most columns last
types() { "$BIN/vptq-pack" -q --list "$1" | awk '/proj/ { n[$3 " " $4]++ } END { for (t in n) print t, n[t] }' | sort -n; }
# file_type FILE: the value of general.file_type, 4 bytes after key and value type
file_type()
{
    local at
    at=$(LC_ALL=C grep -obUa general.file_type "$1" | head -n 1)
    od -An -tu4 -j $((${at%%:*} + 17 + 4)) -N 4 "$1" | tr -d ' '
}

# stories260K: five blocks, whose linear layers have 64 columns, and 172 in the last one.
f16=$(stories ppl -m "$hf")
# The bound of each perplexity is below that of the next type with fewer bits.
for case in q8:Q8_0:7:5e-3:8.5 q6:Q8_0:18:5e-3:8.5 q5:Q5_1:16:1.3e-2:6 q4:Q5_0:14:2e-2:5.5 q3:Q4_0:11:8e-2:4.5 \
    q2:Q4_0:10:8e-2:4.5 q5_1:Q5_1:9:1.3e-2:6 q5_0:Q5_0:8:2e-2:5.5 q4_1:Q4_1:3:6.5e-2:5 q4_0:Q4_0:2:8e-2:4.5; do
    IFS=: read -r name type number near bits <<< "$case"
    "$BIN/vptq-pack" --unpack "$hf" -o "$name.gguf" --dtype "$name" --format json > out.json 2> err.txt
    [ "$(types "$name.gguf" | tr '\n' ' ')" = "64 $type 30 172 F16 5 " ] || fail "$name: $(types "$name.gguf")"
    [ "$(json_get layer_type out.json)" = "$type" ] || fail "$name: $(cat out.json)"
    [ "$(file_type "$name.gguf")" = "$number" ] || fail "$name has file type $(file_type "$name.gguf")"
    [ "$(grep -c warning: err.txt)" = 1 ] || fail "$name: $(cat err.txt)"
    # 64 x 64 (q, o), 32 x 64 (k, v), 172 x 64 (gate, up) of blocks, 64 x 172 (down) of F16
    expect_near "$(json_get bits_per_weight out.json)" \
        "$(awk -v b="$bits" 'BEGIN { n = 2 * 64 * (64 + 32 + 172); m = 64 * 172; printf "%.12g", (n * b + m * 16) / (n + m) }')" 1e-9
    expect_near "$(stories ppl -m "$name.gguf")" "$f16" "$near"
    unpack "$hf" -o one.gguf --dtype "$name" -t 1 -f > out.txt 2> /dev/null
    expect_same "$name.gguf" one.gguf "with one thread"
done
unpack "$hf" -o q4.gguf -f --dtype q4 > q4.txt 2> err.txt
expect_line err.txt \
    "^vptq-pack: warning: $hf: the rows of 35 of 35 linear layers are not whole blocks of Q4_K (256 numbers); stored as Q5_0 (30) and F16 (5)$"
unpack "$hf" -o q8.gguf -f --dtype q8 > out.txt 2> err.txt
expect_line err.txt "the rows of 5 of 35 linear layers are not whole blocks of Q8_0 (32 numbers); stored as F16$"
expect_line q4.txt "^linear layers: quantized to Q5_0, 8\.0508 bits per weight, relative mean square error 0\.00[0-9]*$"
"$BIN/vptq-pack" -q --list q4.gguf > list.txt
[ "$(grep -c 'norm.* F32 ' list.txt)" = 11 ] || fail "norms: $(grep norm list.txt)"
expect_line list.txt "embed_tokens.* F16 "
unpack "$hf" -o q4_k.gguf --dtype q4_k > out.txt 2> /dev/null
expect_same q4.gguf q4_k.gguf "with GGUF's name"
unpack "$hf" -o both.gguf --dtype q4 --embeddings q8 > out.txt 2> /dev/null
"$BIN/vptq-pack" -q --list both.gguf > list.txt
expect_line list.txt "embed_tokens.* Q8_0 "
unpack "$hf" -o plan.gguf --dtype q4 --dry-run --format json 2> /dev/null | tail -n 1 > plan.json
[ ! -e plan.gguf ] || fail "a dry run wrote"
[ "$(json_get layer_type plan.json)" = Q5_0 ] || fail "$(cat plan.json)"
[ "$(json_get layer_relative_mse plan.json)" = null ] || fail "a plan has a loss: $(cat plan.json)"
unpack "$hf" -o f16.gguf --format json > out.json
[ "$(json_get layer_type out.json) $(json_get layer_relative_mse out.json)" = "null null" ] || fail "$(cat out.json)"

# A quantized model is quantized again, with a warning; its own error is not counted.
unpack "$golden" -o again.gguf --dtype q8 > out.txt 2> err.txt
expect_line err.txt "^vptq-pack: warning: $golden: [0-9]* linear layers are quantized already; quantizing their weights again, to Q8_0, adds to the error$"
expect_near "$(stories ppl -m again.gguf)" "$(stories ppl -m "$golden")" 2e-3
unpack q4.gguf -o again.gguf -f --dtype q8 > out.txt 2> err.txt
expect_line err.txt "^vptq-pack: warning: q4.gguf: 30 linear layers are quantized already"

# Rows of whole blocks: one block of 256 columns, random weights with the spread of a trained model's.
# model FILE [WEIGHT]: WEIGHT becomes row 1, column 2 of wq
model()
{
    python3 - "$@" << 'PY'
import array, random, struct, sys
random.seed(7)
dim, hidden, vocab, seq = 256, 512, 512, 64
def weights(n, size): return [random.gauss(0, size) for _ in range(n)]
wq = weights(dim * dim, 0.06)
if len(sys.argv) > 2:
    wq[dim + 2] = float(sys.argv[2])
x = weights(vocab * dim, 1) + [1] * dim + wq + weights(3 * dim * dim, 0.06) + [1] * dim
x += weights(3 * dim * hidden, 0.06) + [1] * dim + [0] * (seq * dim // 4)
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<7i", dim, hidden, 1, 4, 4, vocab, seq) + array.array("f", x).tobytes())
PY
}
model wide.bin
"$BIN/vptq-pack" -q --unpack wide.bin --tokenizer "$tok" -o wide --dtype f32 > out.txt
# bits per weight and error, which is that of normally distributed numbers
for case in q6:Q6_K:6.5625 q5:Q5_K:5.5 q4:Q4_K:4.5 q3:Q3_K:3.4375 q2:Q2_K:2.625 q8:Q8_0:8.5 q4_0:Q4_0:4.5; do
    IFS=: read -r name type bits <<< "$case"
    "$BIN/vptq-pack" --unpack wide -o "wide-$name.gguf" --dtype "$name" --format json > "$name.json" 2> err.txt
    [ ! -s err.txt ] || ! grep warning: err.txt || fail "a warning: $(cat err.txt)"
    [ "$(types "wide-$name.gguf" | tr '\n' ' ')" = "256 $type 6 512 $type 1 " ] || fail "$(types "wide-$name.gguf")"
    [ "$(json_get bits_per_weight "$name.json")" = "$bits" ] || fail "$(cat "$name.json")"
    [ "$(json_get layer_type "$name.json")" = "$type" ] || fail "$(cat "$name.json")"
    "$BIN/vptq-pack" -q --unpack "wide-$name.gguf" -o "wide-$name" --dtype f32 > out.txt
    expect_near "$(json_get layer_relative_mse "$name.json")" "$(python3 - wide "wide-$name" << 'PY'
import array, json, struct, sys
def layers(path):
    data = open(path + "/model.safetensors", "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    x = array.array("f")
    for name, t in sorted(json.loads(data[8:8 + size]).items()):
        if "proj" in name:
            x.frombytes(data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
    return x
x, y = map(layers, sys.argv[1:])
print(sum((b - a) ** 2 for a, b in zip(x, y)) / sum(a * a for a in x))
PY
)" 1e-6
done
# each type has its own error: at least 2.5 times that of the next better one
last=0
for name in q8 q6 q5 q4 q3 q2; do
    error=$(json_get layer_relative_mse "$name.json")
    expect_number "$error" '>' "$(awk -v e="$last" 'BEGIN { print 2.5 * e }')"
    last=$error
done
expect_number "$(json_get layer_relative_mse q8.json)" '>' 1e-5
expect_number "$last" '<' 0.12

# Values that blocks cannot hold.
for case in "70000:is 70000, too large for Q4_K (choose another --dtype)" "nan:is nan" "-inf:is -inf"; do
    model bad.bin "${case%%:*}"
    expect_sentence 1 "tensor '.*': row 1, column 2 ${case#*:}" unpack bad.bin --tokenizer "$tok" -o bad.gguf --dtype q4
    [ ! -e bad.gguf ] || fail "an output was made"
done
no_leftovers .
