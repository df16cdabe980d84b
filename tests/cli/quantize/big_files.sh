# A checkpoint several times larger than the memory limit is listed, checked and measured, and one
# layer is quantized and packed.  The test makes it in sparse shards: only that layer and the
# embeddings in use have numbers, so that it takes little disk space.
# VPTQ_BIG=1 makes it 20 GB, in the shape of a TinyLlama of 227 layers, instead of 4 GB.
needs_own_machine "measures memory"
command -v python3 > /dev/null || skip "needs python3 to measure memory"
truncate -s 1G hole
[ "$(du -k hole | cut -f1)" -lt 1024 ] || skip "the file system has no sparse files"
rm hole

limit=1048576 # KiB
layers=181 hidden=1024 inter=2816 kv=128
if [ -n "${VPTQ_BIG-}" ]; then
    layers=227 hidden=2048 inter=5632 kv=256
fi
# Sanitizers need memory and time of their own.
if grep -q __asan_init "$BIN/vptq-pack"; then
    layers=23 hidden=256 inter=704 kv=64 limit=
fi
vocab=32000
used=2       # the layer with numbers; those before it are run through
shard=10     # layers in a file
last=$(((layers + shard - 1) / shard)) # the file with embeddings and norm

mkdir model
cat > model/config.json << END
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16",
 "hidden_act": "silu", "hidden_size": $hidden, "intermediate_size": $inter,
 "num_hidden_layers": $layers, "num_attention_heads": $((hidden / 64)),
 "num_key_value_heads": $((kv / 64)), "head_dim": 64, "vocab_size": $vocab,
 "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2}
END

# Per file: its length without the header, and the header; the begin and end of the layer in use.
awk -v L="$layers" -v H="$hidden" -v I="$inter" -v K="$kv" -v V="$vocab" -v S="$shard" \
    -v used="$used" -v last="$last" '
function file(i) { return sprintf("model-%05d-of-%05d.safetensors", i + 1, last + 1) }
function add(name, rows, cols) {
    n = (rows ? rows : 1) * cols * 2
    header = header sprintf("%s\"%s\":{\"dtype\":\"F16\",\"shape\":[%s%d],\"data_offsets\":[%.0f,%.0f]}",
        header == "" ? "{" : ",", name, rows ? rows "," : "", cols, at, at + n)
    map = map sprintf("%s\"%s\": \"%s\"", map == "" ? "" : ",\n", name, file(f))
    at += n
}
function finish() {
    header = header "}"
    while (length(header) % 8) header = header " "
    printf "%.0f\n%s", at, header > ("header." f)
    close("header." f); total += at; at = 0; header = ""; f++
}
BEGIN {
    f = 0
    for (l = 0; l < L; l++) {
        p = "model.layers." l "."
        if (l == used) begin = at
        add(p "input_layernorm.weight", 0, H)
        add(p "mlp.down_proj.weight", H, I)
        add(p "mlp.gate_proj.weight", I, H)
        add(p "mlp.up_proj.weight", I, H)
        add(p "post_attention_layernorm.weight", 0, H)
        add(p "self_attn.k_proj.weight", K, H)
        add(p "self_attn.o_proj.weight", H, H)
        add(p "self_attn.q_proj.weight", H, H)
        add(p "self_attn.v_proj.weight", K, H)
        if (l == used) printf "%.0f %.0f\n", begin, at - begin > "used"
        if (l % S == S - 1 || l == L - 1) finish()
    }
    add("model.embed_tokens.weight", V, H)
    add("model.norm.weight", 0, H)
    finish()
    printf "{\"metadata\": {\"total_size\": %.0f}, \"weight_map\": {%s}}\n", total, map \
        > "model/model.safetensors.index.json"
    printf "%.0f\n", total > "total"
}'

# Bytes that make halves of +-2^-7 to +-2^-3 however they are paired; the period is prime, so that
# rows do not repeat.
awk 'BEGIN { for (x = 1; n < 1000003; n++) { x = (16807 * x) % 2147483647; printf "%c", 65 + x % 32 } }' |
    tr 'A-`' '\040-\057\240-\257' > round
numbers() # BYTES
{
    local left=$1
    while [ "$left" -gt 0 ]; do
        head -c "$left" round
        left=$((left - 1000003))
    done
}

read -r begin bytes < used
for f in $(seq 0 "$last"); do
    file=$(printf 'model/model-%05d-of-%05d.safetensors' $((f + 1)) $((last + 1)))
    size=$(tail -n 1 "header.$f" | wc -c)
    { printf '%b' "$(printf '\\x%02x\\x%02x\\x%02x\\0\\0\\0\\0\\0' $((size % 256)) \
        $((size / 256 % 256)) $((size / 65536)))"
      tail -n 1 "header.$f"; } > "$file"
    truncate -s $((8 + size + $(head -n 1 "header.$f"))) "$file"
    case $f in
    "$((used / shard))") numbers "$bytes" |
        dd of="$file" oflag=seek_bytes seek=$((8 + size + begin)) bs=64k conv=notrunc 2> dd.txt ;;
    "$last") numbers $((256 * hidden * 2)) |
        dd of="$file" oflag=seek_bytes seek=$((8 + size)) bs=64k conv=notrunc 2> dd.txt ;;
    esac
done
# 8 windows of 128 tokens; all bytes are ids that have embeddings
head -c 1024 round | tr '\040-\057\240-\257' 'A-`' | sed 's/./&@@@/g' | tr -d '\n' |
    tr '@' '\0' > ids
[ "$(wc -c < ids)" = 4096 ] || fail "$(wc -c < ids) bytes of ids"
[ -z "$limit" ] || expect_number "$(cat total)" '>' $((3 * limit * 1024))

# within TOOL..: runs a tool; its peak memory must be within the limit
within()
{
    local tool=$1
    shift
    with_peak peak "$BIN/$tool" -q -t 2 "$@" || fail "$tool $*"
    [ -z "$limit" ] || expect_number "$(cat peak)" '<' "$limit"
    echo "$(cat peak) KiB: $tool $*" >&2
}

tensors=$((9 * layers + 2))
within vptq-pack --list model > list.txt
expect_line list.txt "^model: 0 quantized matrices, $tensors plain tensors"
within vptq-pack --check model > check.txt
expect_line check.txt "^model: 0 errors"
within vptq-quantize -m model --dry-run > plan.txt
expect_line plan.txt "^$((7 * layers)) matrices"
within vptq-hessian -m model --tokens ids -l 128 -o hdir --layers $used-$used > hdir.txt
expect_line hdir.txt "^hdir: 8 windows of 128 tokens, 1 layer,"
within vptq-quantize -m model -H hdir -o work --layers $used-$used --encoder upstream -v 8 \
    -k 64 --kmeans-iterations 3 --format json > rows.txt
[ "$(json_get layer rows.txt | grep -c "^$used\$")" = 7 ] || fail "not 7 matrices of layer $used"
within vptq-pack --check work > check.txt
expect_line check.txt "^warning: work: 7 of $((7 * layers)) matrices are quantized"
expect_line check.txt "^work: 0 errors"
# packing leaves the other layers unchanged
within vptq-pack --list work > list.txt
expect_line list.txt "^work: 7 quantized matrices at .*, $((tensors - 7)) plain tensors"
within vptq-pack work -o out.vptq > out.txt
expect_line out.txt "^out.vptq: archive, 7 matrices at .*, $((tensors - 7)) plain tensors"
