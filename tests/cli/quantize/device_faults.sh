# A device that fails during a run: one sentence with the matrix (or layer) and the device's message,
# exit status 1.  Finished work is kept, and the same command again gives the bytes of an undisturbed
# run.  Uses the emulated device, which fails at a chosen call.
there=${VPTQ_DEVICE_BIN-none}
[ "${VPTQ_DEVICE-emu}" = emu ] || skip "only the emulated device fails on request"
[ -x "$there/vptq-quantize" ] || skip "needs tools that have the device (make check-cli builds them)"
model=$SRC/tests/golden/tiny_mistral
for _ in 1 2 3 4 5 6 7 8; do cat "$model/ids.i32"; done > ids
quantize() {
    "$there/vptq-quantize" -m "$model" -H h -v 4 -k 8 --layers 0-0 --kmeans-iterations 2 --retrain 0 \
        --sweeps 1 --refits 0 --backend emu -q -o "$@"
}
collect() {
    "$there/vptq-hessian" -m "$model" --tokens ids -n 4 -l 12 --weights attention --backend emu -q -o "$@"
}

# one_sentence FILE PATTERN: FILE is one line that matches.
one_sentence()
{
    [ "$(wc -l < "$1")" = 1 ] || fail "not one sentence: $(cat "$1")"
    expect_line "$1" "$2"
}
refused='too many resources requested for launch'
died='an illegal memory access was encountered'
spoilt='uncorrectable ECC error encountered'
none='device memory'

# Hessians: the first call of each kind fails, then one during the run.
VPTQ_EMU_COUNTS=counts collect good
for fault in "launch $refused" "kernel $died" "copy $spoilt" "alloc $none"; do
    kind=${fault%% *}
    total=$(sed -n "s/^${kind/kernel/launch} //p" counts)
    middle=$((total / 2))
    [ "$kind" != alloc ] || middle=$((total * 3 / 4)) # after those of sums and activations
    for n in 1 "$middle"; do
        rm -rf h
        # Later allocations hold weights; a weight that does not fit is uploaded in tiles.
        if [ "$n" != 1 ] && [ "$kind" = alloc ]; then
            VPTQ_EMU_FAIL=$kind:$n collect h
            expect_same h good "after $kind:$n"
            continue
        fi
        VPTQ_EMU_FAIL=$kind:$n expect_exit 1 collect h 2> err.txt
        one_sentence err.txt "vptq-hessian: .*${fault#* }"
        # sums and activations are allocated before the first layer
        [ "$n" = 1 ] || expect_line err.txt 'layer [01]: '
        collect h
        expect_same h good "after $kind:$n"
    done
done

# Matrices: two thirds into the run.
VPTQ_EMU_COUNTS=counts quantize one > /dev/null
for fault in "launch $refused" "kernel $died" "copy $spoilt" "alloc $none"; do
    kind=${fault%% *}
    total=$(sed -n "s/^${kind/kernel/launch} //p" counts)
    rm -rf work
    VPTQ_EMU_FAIL=$kind:$((total * 2 / 3)) expect_exit 1 quantize work > /dev/null 2> err.txt
    one_sentence err.txt "vptq-quantize: model.layers.0.*_proj: .*${fault#* }"
    no_leftovers work
    finished=0
    for file in work/layer_*.safetensors; do
        expect_same "$file" "one/${file#work/}"
        finished=$((finished + 1))
    done
    case $finished in
    [2-6]) ;;
    *) fail "$finished matrices were finished" ;;
    esac
    quantize work --format json > rows.json
    [ "$(json_get reused rows.json | grep -c true)" = "$finished" ] || fail "matrices were made again"
    expect_same one work "after $kind"
done

# Interrupted: status 130, finished work is kept.
"$there/vptq-quantize" -m "$model" -H h -v 4 -k 8 --layers 0-0 --kmeans-iterations 2 --retrain 0 --sweeps 1 \
    --refits 0 --backend emu -q -o stopped > /dev/null 2> err.txt &
pid=$!
wait_for 60 test -e stopped/layer_000_q_proj.safetensors
interrupt "$pid" 0
quantize stopped > /dev/null
expect_same one stopped "after SIGINT"
