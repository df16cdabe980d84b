# Models of AutoGPTQ and AutoAWQ are read as the plain models of the same weights, by every command.
perl -e 'for my $i (1..256) { print pack("l<", ($i * $i * 7 + $i * 3) % 47) }' > ids.i32
golden=$SRC/tests/golden/gptq_awq
nll() { "$BIN/vptq-eval" ppl -m "$1" --tokens ids.i32 --context 32 -qq --format json | json_get nll; }

for kind in gptq awq; do
    cp -r "$golden/$kind" "$golden/${kind}_plain" .
    want=$(nll ${kind}_plain)
    "$BIN/vptq-pack" $kind -o packed_$kind -qq > out.txt
    "$BIN/vptq-pack" $kind -o $kind.vptq -qq > out.txt
    "$BIN/vptq-pack" --unpack $kind -o unpacked_$kind -qq > out.txt
    digest=$("$BIN/vptq-pack" --digest $kind -qq)
    for form in $kind packed_$kind $kind.vptq unpacked_$kind; do
        [ "$(nll "$form")" = "$want" ] || fail "$form: nll $(nll "$form"), expected $want"
    done
    for form in packed_$kind $kind.vptq; do
        [ "$("$BIN/vptq-pack" --digest "$form" -qq)" = "$digest" ] || fail "$form: another digest"
    done
    for form in $kind packed_$kind $kind.vptq; do
        "$BIN/vptq-pack" --check "$form" -qq > check.txt
        expect_line check.txt "^$form: 0 errors"
    done
    expect_line packed_$kind/config.json '"quant_method": "compressed-tensors"'
done

# A layer that the checkpoint leaves plain stays so, and bits are those of codes, scales, zero points and groups.
"$BIN/vptq-pack" --list gptq -qq --format json > list.json
row=$(grep '"model.layers.0.mlp.up_proj.weight"' list.json)
[ "$(echo "$row" | json_get bytes)" = $((64 * 32 / 2 + 64 * 2 * 2 + 64 * 2 / 2 + 32 * 4)) ] || fail "bytes: $row"
expect_line packed_gptq/config.json '"model.layers.0.self_attn.o_proj"'
[ "$(grep -c '"quantized": true' list.json)" = 6 ] || fail "$(cat list.json)"

# Hessians are those of the decoded weights.
for model in awq awq_plain; do
    "$BIN/vptq-hessian" -m $model --tokens ids.i32 -n 8 -l 32 -o h_$model -qq
done
expect_same h_awq/layer_000_down.safetensors h_awq_plain/layer_000_down.safetensors
expect_error 1 "'awq' is quantized already" "$BIN/vptq-quantize" -m awq -H h_awq -o w --method rtn

cp -r awq other
sed -i 's/"quant_method": "awq"/"quant_method": "marlin"/' other/config.json
expect_error 1 "is quantized by 'marlin', expected vptq, compressed-tensors, gptq or awq" "$BIN/vptq-pack" --list other

# Damage of a matrix is one error, and progress counts all matrices.
poison()
{
    python3 - "$1" <<'PY'
import json, struct, sys
path = sys.argv[1]
data = bytearray(open(path, "rb").read())
size = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8 : 8 + size])
name = min(n for n in header if n.endswith(("weight_scale", ".scales")))
at = 8 + size + header[name]["data_offsets"][0]
data[at : at + 2] = b"\xff\x7f"
open(path, "wb").write(data)
PY
}
command -v python3 >/dev/null || skip "needs python3"
for form in packed_gptq gptq; do
    "$BIN/vptq-pack" --check $form --progress >check.txt 2>err.txt
    grep -q 'check: 7 matrices' err.txt || fail "$form: $(cat err.txt)"
    poison $form/model.safetensors
    rm -f $form/SHA256SUMS
    expect_exit 3 "$BIN/vptq-pack" --check $form -q >check.txt 2>err.txt
    expect_line check.txt "^$form: 1 error, 1 warning"
    [ "$(wc -l <check.txt)" = 3 ] || fail "$(cat check.txt)" # and no tokenizer
done
printf '\x55' | dd of=gptq.vptq bs=1 seek=$(($(wc -c <gptq.vptq) * 6 / 10)) conv=notrunc status=none
expect_exit 3 "$BIN/vptq-pack" --check gptq.vptq --progress >check.txt 2>err.txt
expect_line check.txt "weight_[a-z]*' is damaged"
expect_line check.txt "^gptq.vptq: 1 error, 1 warning"
expect_line err.txt 'check: 7 matrices'
