# A dry run takes little memory for a model of any size, and says how much the run takes.  The checkpoints are
# sparse files, whose weights are all 0, but for the last.
needs_own_machine "measures memory"
command -v python3 > /dev/null || skip "needs python3 to make the models and to measure memory"
! is_instrumented || skip "the memory would be that of the sanitizers"
truncate -s 1G hole
[ "$(du -k hole | cut -f1)" -lt 1024 ] || skip "the file system has no sparse files"
rm hole

cat > make.py << 'PY'
import json, os, random, struct, sys

HEAD, VOCAB = 128, 32000
path, layers, hidden, inter, heads, keys = sys.argv[1], *map(int, sys.argv[2:7])
shapes = {"model.embed_tokens": [VOCAB, hidden], "model.norm": [hidden], "lm_head": [VOCAB, hidden]}
for layer in range(layers):
    block = f"model.layers.{layer}."
    for norm in ("input_layernorm", "post_attention_layernorm"):
        shapes[block + norm] = [hidden]
    for name, shape in {
        "self_attn.q_proj": [heads * HEAD, hidden], "self_attn.k_proj": [keys * HEAD, hidden],
        "self_attn.v_proj": [keys * HEAD, hidden], "self_attn.o_proj": [hidden, heads * HEAD],
        "mlp.gate_proj": [inter, hidden], "mlp.up_proj": [inter, hidden], "mlp.down_proj": [hidden, inter],
    }.items():
        shapes[block + name] = shape
tensors, at = {}, 0
for name, shape in shapes.items():
    end = at + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    tensors[name + ".weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
    at = end
header = json.dumps(tensors).encode()
header += b" " * (-len(header) % 8)
os.mkdir(path)
with open(path + "/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(header)) + header)
    if len(sys.argv) > 7: # weights that are not 0; the numbers of a block repeat
        block = b"".join(struct.pack("<f", random.gauss(0, 0.03))[2:] for i in range(65537))
        f.write((block * (at // len(block) + 1))[:at])
    f.truncate(8 + len(header) + at)
with open(path + "/config.json", "w") as f:
    json.dump({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "hidden_act": "silu",
        "intermediate_size": inter, "num_hidden_layers": layers, "num_attention_heads": heads, "head_dim": HEAD,
        "num_key_value_heads": keys, "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16"}, f)
PY
head -c 16384 /dev/zero > ids # 4096 tokens
totals() { tail -n 1 plan.json | sed 's/.*"totals": //' | json_get "$1"; }

# ---- the shape of a Llama of 70 billion weights: a block has 1.7 GB, its Hessians take 12 GB ----
python3 make.py large 80 8192 28672 64 8
# plan LEAST TOOL..: a dry run takes less than 512 MiB and reports at least so many bytes.
plan()
{
    local least=$1 tool=$2
    shift 2
    with_peak peak "$BIN/$tool" "$@" -q -t 2 -m large --dry-run --format json > plan.json || fail "$tool $*"
    echo "$(cat peak) KiB, $(totals estimated_seconds) s, $(totals peak_memory_bytes) bytes: $tool $*" >&2
    expect_number "$(cat peak)" '<' 524288
    expect_number "$(totals estimated_seconds)" '>' 60
    expect_number "$(totals peak_memory_bytes)" '>=' "$least"
    expect_number "$(totals peak_memory_bytes)" '<' $((10 * least))
}
sums=$((12 * (3 * 8192 * 8192 + 28672 * 28672)))
plan $sums vptq-hessian --tokens ids -n 2 -l 2048
plan $sums vptq-hessian --tokens ids -n 2 -l 2048 --weights plain
plan $sums vptq-quantize --tokens ids -n 2 -l 2048 -v 8 -k 256
plan $sums vptq-quantize --tokens ids -n 2 -l 2048 -v 8 -k 256 --sequential
activations=$((4 * 2048 * (2 * 8192 + 2 * 1024 + 2 * 28672)))
plan $activations vptq-eval ppl --tokens ids
plan $activations vptq-eval kld --base large --tokens ids
cp "$(data models/stories260K-hf)/tokenizer.json" large # for the ids of prompts, whatever they stand for
plan $((80 * 2 * 2 * 1024 * 96)) vptq-eval serve --config 1,64,32 --runs 1
cat > rows.json << 'JSON'
[{"name": "original", "original": true}, {"name": "gptq", "settings": {"method": "gptq"}},
 {"name": "gptvq", "settings": {"method": "gptvq", "weight_bits": 3, "vector_length": 4, "codebook_rows": 4096}},
 {"name": "aqlm", "settings": {"method": "aqlm", "codebooks": 1, "centroids": 65536}},
 {"name": "db-llm", "settings": {"method": "db-llm"}}, {"name": "quip", "settings": {"method": "quip#"}},
 {"name": "2-bits", "bits": 2}]
JSON
plan $((8 * 28672 * 28672)) vptq-eval ablate --text-tokens ids --context 1024 --table rows.json

# ---- a model that is just too large to be measured whole: the run takes the memory that was said ----
python3 make.py model 2 1024 5120 8 2
collect() { "$BIN/vptq-hessian" -q -t 2 -m model --tokens ids -n 4 -l 64 --layers 0-0 "$@"; }
for weights in plain attention; do
    collect --weights $weights --dry-run --format json > plan.json
    memory=$(totals peak_memory_bytes)
    collect --weights $weights -o $weights --mem "$memory" || fail "needs more than $memory bytes"
    expect_exit 1 collect --weights $weights -o less --mem $((memory * 9 / 10)) 2> err.txt
    rm -r $weights less
done

# ---- and matrices take what was said, by each method: not more, nor less than three quarters ----
python3 make.py noisy 1 512 4096 4 2 random
printf '%s\n' $(seq 4096) | python3 -c "
import struct, sys
sys.stdout.buffer.write(b''.join(struct.pack('<i', int(line) * 7919 % 32000) for line in sys.stdin))" > noise
"$BIN/vptq-hessian" -q -m noisy --tokens noise -n 8 -l 512 --holdout 0.25 -o h
cheap=(-v 8 --kmeans-iterations 2 --retrain 0 --sweeps 1 --refits 0)
# takes ARGUMENT..: of vptq-quantize
takes()
{
    local memory
    encode() { "$BIN/vptq-quantize" -q -t 2 -m noisy "$@"; }
    encode "$@" --dry-run --format json > plan.json
    memory=$(totals peak_memory_bytes)
    encode "$@" -o enough --mem "$memory" || fail "$* needs more than $memory bytes"
    expect_exit 1 encode "$@" -o less --mem $((memory * 3 / 4)) 2> err.txt
    grep -q 'is too small' err.txt || fail "$* without memory: $(cat err.txt)"
    rm -r enough less
    [ "$1" = -H ] || return 0 # a calibration makes do with less, and how much is not known
    # nor does a plan say that less suffices
    encode "$@" --mem $((memory * 3 / 4)) --dry-run --format json > plan.json 2> err.txt
    grep -q 'warning: --mem (.*) is probably too small: the run takes about ' err.txt || fail "$(cat err.txt)"
    expect_number "$(totals peak_memory_bytes)" '>=' $((memory * 9 / 10))
}
takes -H h --method gptq --weight-bits 4
seconds=$(totals estimated_seconds)
"$BIN/vptq-quantize" -q -t 2 -m noisy -H h --method awq --dry-run --format json > plan.json
expect_number "$(totals estimated_seconds)" '>' "$(python3 -c "print(2 * $seconds)")" # scales and ranges are tried
takes -H h "${cheap[@]}" -k 256
takes -H h "${cheap[@]}" -k 256 -r 256
takes --tokens noise -n 8 -l 512 --holdout 0.25 "${cheap[@]}" -k 256
