# A number that is not finite, in a weight or inside the model, gives the same sentence on every
# device: tensor, layer and input, or window and token.
there=${VPTQ_DEVICE_BIN-none}
device=${VPTQ_DEVICE-emu}
[ -x "$there/vptq-quantize" ] || skip "needs tools that have the device (make check-cli builds them)"
command -v python3 > /dev/null || skip "needs python3"
model=$SRC/tests/golden/tiny_mistral
for _ in 1 2 3; do cat "$model/ids.i32"; done > ids

# spoil NAME TENSOR VALUE: the model with the sixth number of a BF16 tensor replaced.
spoil()
{
    cp -r "$model" "$1"
    python3 - "$1/model.safetensors" "$2" "$3" << 'END'
import json, struct, sys
data = bytearray(open(sys.argv[1], 'rb').read())
head = 8 + struct.unpack('<Q', data[:8])[0]
tensor = json.loads(data[8:head])[sys.argv[2]]
assert tensor['dtype'] == 'BF16'
at = head + tensor['data_offsets'][0] + 2 * 5
data[at:at + 2] = struct.pack('<f', float(sys.argv[3]))[2:]
open(sys.argv[1], 'wb').write(data)
END
}
spoil weight model.layers.1.self_attn.k_proj.weight nan
spoil large model.layers.0.mlp.down_proj.weight inf
spoil norm model.layers.1.post_attention_layernorm.weight nan

# same PATTERN COMMAND..: fails with the same matching line on cpu and on the device.
same()
{
    local pattern=$1
    shift
    expect_exit 1 "$@" --backend cpu -qq > /dev/null 2> cpu.txt
    expect_exit 1 "$@" --backend "$device" -qq > /dev/null 2> device.txt
    expect_line device.txt "$pattern"
    expect_same cpu.txt device.txt
}
windows=(--tokens ids -n 4 -l 25)
small=(-v 4 -k 8 --kmeans-iterations 1 --retrain 0 --sweeps 0 --refits 0)
collect() { same "$1" "$there/vptq-hessian" -m "$2" "${windows[@]}" -o h -f; }
quantize() { same "$1" "$there/vptq-quantize" -m "$2" "${windows[@]}" "${small[@]}" -o work -f; }
ppl() { same "$1" "$there/vptq-eval" ppl -m "$2" --tokens ids --context 24; }

collect 'layer 1: the input of o has a value that is not finite in column 0' weight
collect 'layer 1: the input of qkv has a value that is not finite' large
collect 'layer 1: the input of up has a value that is not finite in column 5' norm
quantize "tensor 'model.layers.1.self_attn.k_proj.weight' holds a number that is not finite at row 0, column 5" weight
quantize "tensor 'model.layers.0.mlp.down_proj.weight' holds a number that is not finite at row 0, column 5" large
quantize 'layer 1: the input of up has a value that is not finite in column 5' norm
for m in weight large norm; do
    ppl "$m: the model's output is not finite in window 0 at token 0" "$m"
done
