# Little device memory: smaller pieces with the same bytes; if no piece is small enough, one sentence
# with sizes.  Uses the emulated device with a chosen amount of memory.
there=${VPTQ_DEVICE_BIN-none}
[ "${VPTQ_DEVICE-emu}" = emu ] || skip "only the emulated device has adjustable memory"
[ -x "$there/vptq-quantize" ] || skip "needs tools that have the device (make check-cli builds them)"
model=$SRC/tests/golden/tiny_mistral
for _ in 1 2 3; do cat "$model/ids.i32"; done > ids
collect() {
    "$there/vptq-hessian" -m "$model" --tokens ids -n 4 -l 25 --weights attention --backend emu -q -o "$@"
}
quantize() {
    "$there/vptq-quantize" -m "$model" -H h -v 4 -k 8 --layers 0-0 --kmeans-iterations 2 --retrain 0 \
        --sweeps 1 --refits 0 --backend emu -q -o "$@" > /dev/null
}
ppl() {
    "$there/vptq-eval" ppl -m "$1" --tokens ids --context 24 --backend emu --format json -q |
        sed 's/"seconds".*//' # what follows is time
}
most() { sed -n 's/^memory //p' counts; }

# lack FILE: one sentence with the required bytes and their purpose.
lack()
{
    [ "$(wc -l < "$1")" = 1 ] || fail "not one sentence: $(cat "$1")"
    expect_line "$1" '[0-9]* bytes of device memory: [0-9]* of [0-9]* are free (other programs'
}

VPTQ_EMU_COUNTS=counts collect h
all=$(most)
VPTQ_EMU_MEMORY=$((all * 7 / 10)) VPTQ_EMU_COUNTS=counts collect small
[ "$(most)" -le $((all * 7 / 10)) ] || fail "more than there is"
expect_same h small
VPTQ_EMU_MEMORY=$((all / 10)) expect_exit 1 collect none 2> err.txt
lack err.txt
expect_line err.txt 'a hessian of [0-9]* columns: '

VPTQ_EMU_COUNTS=counts quantize work
VPTQ_EMU_MEMORY=$(most) quantize same
expect_same work same
VPTQ_EMU_MEMORY=$(($(most) / 2)) expect_exit 1 quantize lacking 2> err.txt
lack err.txt
expect_line err.txt 'model.layers.0.*_proj: '

for m in "$model" work; do
    VPTQ_EMU_COUNTS=counts ppl "$m" > ppl.all
    all=$(most)
    # so few rows of a packed model are not split: their number affects the bits
    enough=$all
    [ "$m" = work ] || enough=$((all / 2))
    VPTQ_EMU_MEMORY=$enough ppl "$m" > ppl.half
    expect_same ppl.all ppl.half
    if (set -o pipefail && VPTQ_EMU_MEMORY=$((all / 20)) ppl "$m" > /dev/null 2> err.txt); then
        fail "no error"
    fi
    lack err.txt
done
