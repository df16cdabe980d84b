# Dry runs tell bits, bytes, time, memory and disk of the run, and the run then has these bits and bytes.
hf=$(data models/stories260K-hf)
text=$SRC/README.md
run() { "$BIN/vptq-quantize" -q -m "$hf" "$@"; }
# totals KEY: of the last line of plan.json
totals() { tail -n 1 plan.json | sed 's/.*"totals": //' | json_get "$1"; }

run -c "$text" -n 4 -l 128 --sequential -o work --dry-run --format json > plan.json
[ ! -e work ] || fail "a dry run wrote a work directory"
run -c "$text" -n 4 -l 128 --sequential -o work --format json > run.json
[ "$(totals matrices)" = 35 ] || fail "$(tail -n 1 plan.json)"
[ "$(totals bits_per_weight)" = "$(tail -n 1 run.json | json_get bits_per_weight)" ] || fail "other bits than planned"
[ "$(totals seconds_left_out)" = null ] || fail "$(tail -n 1 plan.json)"
expect_number "$(totals estimated_seconds)" '>' 0
expect_number "$(totals disk_free_bytes)" '>' 0
# Within the disk that was said to be needed, and close to it without the checkpoints of hidden states.
written=$(du -sb work | cut -f 1)
states=$((2 * 2 * 4 * 128 * 64 * 4))
expect_number "$written" '<=' "$(totals disk_needed_bytes)"
expect_number $((2 * written)) '>=' $(($(totals disk_needed_bytes) - states))
# The run fits into the memory that was said to be its peak, and not into a fourth of it.
memory=$(totals peak_memory_bytes)
run -c "$text" -n 4 -l 128 --sequential -o small --mem "$memory" > small.txt
expect_same work small
expect_exit 1 run -c "$text" -n 4 -l 128 --sequential -o smaller --mem $((memory / 8)) 2> err.txt
expect_line err.txt "is too small"
# The directory of another run is refused, as the run refuses it, unless that starts over.
refused() { expect_error 1 "work/quantize.json belongs to another run: its key '$1'" run -o work --dry-run "${@:2}"; }
refused settings.centroids -c "$text" -n 4 -l 128 --sequential -k 16
refused hessian_fingerprint -c "$text" -n 5 -l 128 --sequential
run -c "$text" -n 5 -l 128 --sequential -o work -f --dry-run > plan.txt
run -c "$text" -n 4 -l 128 --sequential -o work --dry-run > plan.txt

# The packed file is as large as said, but for its header, configuration and tokenizer.
run -c "$text" -n 4 -l 128 -o out.vptq --dry-run --format json > plan.json
run -c "$text" -n 4 -l 128 -o out.vptq --format json > run.json
[ ! -e out.vptq.work ] || fail "out.vptq.work was left"
expect_near "$(stat -c %s out.vptq)" "$(totals packed_bytes)" 0.15
expect_number "$(totals disk_needed_bytes)" '>' "$(totals packed_bytes)"
run -c "$text" -n 4 -l 128 -o q8.vptq --embeddings q8 --dry-run --format json > plan.json
run -c "$text" -n 4 -l 128 -o q8.vptq --embeddings q8 --format json > run.json
expect_near "$(stat -c %s q8.vptq)" "$(totals packed_bytes)" 0.15

# What the time leaves out is said.
"$BIN/vptq-quantize" -q -m "$hf" --dry-run > plan.txt
expect_line plan.txt "^about .* s without calibration, .* of memory, .* of disk$"
"$BIN/vptq-quantize" -q -m "$hf" -c "$text" -n 4 -l 128 -o out --weights guided --tune layer --dry-run > plan.txt
expect_line plan.txt "^about .* s without guided calibration, tuning, .* of disk (.* free)$"

# The other tools.
"$BIN/vptq-hessian" -q -m "$hf" -c "$text" -n 4 -l 128 -o h --dry-run --format json > plan.json
expect_number "$(totals estimated_seconds)" '>' 0
memory=$(totals peak_memory_bytes)
bytes=$(json_get bytes plan.json)
"$BIN/vptq-hessian" -q -m "$hf" -c "$text" -n 4 -l 128 -o h --mem "$memory"
written=$(cat h/*.safetensors | wc -c)
expect_near "$written" "$bytes" 0.05
expect_number "$(totals disk_needed_bytes)" '>=' "$bytes"
# Hidden states make do with less.
"$BIN/vptq-hessian" -q -m "$hf" -c "$text" -n 16 -l 128 --mem $((memory * 5 / 4)) --dry-run --format json > plan.json
expect_number "$(totals peak_memory_bytes)" '<=' $((memory * 5 / 4))
# Packing, in every form.
for form in "work -o packed" "work -o packed.vptq" "--unpack work -o plain" "--unpack $hf -o plain.gguf --dtype q4"; do
    # shellcheck disable=SC2086 # words
    "$BIN/vptq-pack" -q $form --dry-run > plan.txt
    expect_line plan.txt "^about .* s without the disk, .* of memory, .* of disk (.* free)$"
    # shellcheck disable=SC2086
    "$BIN/vptq-pack" -q $form --dry-run --format json > plan.json
    expect_number "$(totals estimated_seconds)" '>' 0
    expect_number "$(totals peak_memory_bytes)" '>' 10000
    [ "$(totals seconds_left_out)" = "the disk" ] || fail "$(tail -n 1 plan.json)"
done
[ -z "$(find . -name 'p*ed*' -o -name 'plain*' -o -name '*.tmp.*')" ] || fail "a dry run wrote a model"
for command in "ppl -m $hf --text $text" "generate -m $hf -p Once -n 300" "kld -m $hf --base $hf --text $text" \
    "tasks -m $hf --task choices=$SRC/tests/golden/tasks/choices.jsonl"; do
    # shellcheck disable=SC2086 # words
    "$BIN/vptq-eval" $command -q --dry-run --format json > plan.json
    expect_number "$(totals estimated_seconds)" '>' 0
    expect_number "$(totals peak_memory_bytes)" '>' 100000
    # shellcheck disable=SC2086
    "$BIN/vptq-eval" $command -q --dry-run | grep -q "^about .* s, .* of memory$" || fail "no estimate of $command"
done
