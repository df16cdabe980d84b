# Whole runs on a device with its own memory: Hessians, quantizing and perplexity agree with ref.
# (cpu uses other arithmetic, so that small matrices end in other local optima.)  Without a GPU the device is emulated; `make gpu-test` selects cuda.
device=${VPTQ_DEVICE-emu}
there=${VPTQ_DEVICE_BIN-none}
[ -x "$there/vptq-quantize" ] || skip "needs tools that have the device (make check-cli builds them)"
model=$SRC/tests/golden/tiny_mistral
for _ in 1 2 3 4 5 6 7 8; do cat "$model/ids.i32"; done > ids

for backend in ref "$device"; do
    "$there/vptq-hessian" -m "$model" --tokens ids -n 4 -l 12 --layers 0-0 \
        --weights attention -o "h.$backend" --backend "$backend" -qq > /dev/null
    "$BIN/vptq-hessian" --show "h.$backend" --format json > "show.$backend"
    # The same Hessian for both, so that the test compares quantizers only.
    "$there/vptq-quantize" -m "$model" -H h.ref -v 4 -k 16 -r 4 --layers 0-0 -o "work.$backend" \
        --kmeans-iterations 2 --joint 1 --retrain 0 --sweeps 1 --refits 1 \
        --backend "$backend" --format json -qq > "rows.$backend"
done
paste <(json_get trace show.ref) <(json_get trace "show.$device") |
    while read -r a b; do expect_near "$a" "$b" 1e-5; done
[ "$(json_get trace show.ref | wc -l)" -ge 4 ] || fail "too few Hessians"
paste <(json_get proxy_loss rows.ref) <(json_get proxy_loss "rows.$device") |
    while read -r a b; do expect_near "$a" "$b" 1e-4; done
[ "$(json_get proxy_loss rows.ref | wc -l)" -ge 7 ] || fail "too few matrices"

for backend in ref "$device"; do
    "$there/vptq-eval" ppl -m "work.$device" --tokens ids --context 48 \
        --windows 2 --backend "$backend" --format json -qq > "ppl.$backend"
done
expect_near "$(json_get ppl ppl.ref)" "$(json_get ppl "ppl.$device")" 1e-4
