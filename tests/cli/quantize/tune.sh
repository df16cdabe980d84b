# End-to-end tuning: closer to the original at the same bits, on other text too; the same bytes for any
# thread count and after a kill; what went in comes out if nothing is better.
long_if_instrumented
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
other=$(data text/tinystories/tinystories_v2_sample.txt)
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -c "$text" -n 16 -l 256 -o work -v 4 -k 64 --joint 0 --retrain 0 \
    --sweeps 1 --refits 0 -q >/dev/null
args=(--from work --tune e2e -c "$text" -n 64 -l 128 --batch 4 --rate 0.01)
tune() { "$BIN/vptq-quantize" "${args[@]}" -q "$@"; }

tune -o one -t 1 --steps 20 --format json >one.json
tune -o two -t 4 --steps 20 >two.txt
expect_same one two
no_leftovers one
for state in tune original; do
    [ ! -e one/$state.state ] || fail "a finished run leaves $state.state"
done
[ "$(wc -l <one.json)" = 22 ] || fail "expected the start, 20 steps and the sums"
expect_near "$(head -n 1 one.json | json_get held_out_loss)" "$(tail -n 1 one.json | json_get held_out_before)" 0
expect_number "$(tail -n 1 one.json | json_get held_out_loss)" '<' \
    "$(tail -n 1 one.json | json_get held_out_before | awk '{ print 0.7 * $1 }')"
[ "$(sed -n 11p one.json | json_get step)" = 10 ] || fail "row 11 is not step 10"
expect_number "$(sed -n 2p one.json | json_get loss)" '>' "$(sed -n 21p one.json | json_get loss)"
digest=$("$BIN/vptq-pack" -q --digest one)
[ "$(tail -n 1 two.txt)" = "digest $digest" ] || fail "$(tail -n 1 two.txt), expected digest $digest"

# A dry run plans all of it, or what is left, refuses what a run refuses, and writes nothing.
cp -r one before
tune --steps 20 --dry-run >plan.txt
expect_line plan.txt '^plan: 0 layers and 20 steps to do, 60 windows to train on, 4 held out$'
expect_line plan.txt '^about .* s, .* of memory, .* of disk$'
tune -o new --steps 20 --dry-run --format json >plan.json
for key in estimated_seconds peak_memory_bytes disk_needed_bytes disk_free_bytes; do
    expect_number "$(json_get $key plan.json)" '>' 0
done
[ "$(json_get steps plan.json) $(json_get dry_run plan.json)" = "20 true" ] || fail "$(cat plan.json)"
expect_number "$(du -sb one | cut -f 1)" '<=' "$(json_get disk_needed_bytes plan.json)"
tune -o one --steps 20 --dry-run >plan.txt
expect_line plan.txt '^one: 0 layers and 0 steps to do, '
expect_error 1 "one/quantize.json belongs to another run: its key 'tune.steps' is 20, here it is 3" tune -o one --steps 3 --dry-run
tune -o one --steps 3 --dry-run -f >plan.txt
expect_line plan.txt '^one: 0 layers and 3 steps to do, '
expect_same one before
[ ! -e new ] || fail "a dry run made a directory"
expect_error 1 "cannot create directory 'plan.txt': File exists" tune -o plan.txt --steps 3 --dry-run

# Divergence and perplexity of another text; the same bits, in every form.
for w in work one; do
    "$BIN/vptq-eval" kld -m $w --base "$model" --tokenizer "$tok" --text "$other" --context 256 --format json -q >$w.kld
done
expect_number "$(json_get mean_kld one.kld)" '<' "$(json_get mean_kld work.kld | awk '{ print 0.8 * $1 }')"
expect_number "$(json_get ppl one.kld)" '<' "$(json_get ppl work.kld)"
"$BIN/vptq-pack" one -o one.hf -q >/dev/null
"$BIN/vptq-pack" work -o work.hf -q >/dev/null
expect_same work.hf/config.json one.hf/config.json
"$BIN/vptq-pack" --check one.hf -q >/dev/null
"$BIN/vptq-eval" kld -m one.hf --base "$model" --tokenizer "$tok" --text "$other" --context 256 --format json -q >hf.kld
[ "$(json_get mean_kld hf.kld)" = "$(json_get mean_kld one.kld)" ] || fail "packed, it is another model"

# The rows lose the losses of the quantized matrices, nothing else.
[ "$(wc -l <one/report.jsonl)" = 35 ] || fail "expected 35 rows in report.jsonl"
! grep -q loss one/report.jsonl || fail "a loss of the matrix before tuning"
[ "$(json_get tuned one/report.jsonl | sort -u)" = e2e ] || fail "rows do not say that they are tuned"
[ "$(json_get total_bits one/report.jsonl)" = "$(json_get total_bits work/report.jsonl)" ] || fail "other bits"

# Finished: nothing is done again.  Tuned again from the result.
tune -o one --steps 20 >again.txt
expect_same one two
[ "$(tail -n 1 again.txt)" = "digest $digest" ] || fail "$(cat again.txt)"
! grep -q '^ *1 ' again.txt || fail "steps of a finished run"
"$BIN/vptq-quantize" --from one --tune e2e -c "$text" -n 64 -l 128 --batch 4 --rate 0.003 --steps 10 -o more -q \
    --format json >more.json
expect_number "$(tail -n 1 more.json | json_get held_out_loss)" '<=' "$(tail -n 1 one.json | json_get held_out_loss)"

# Killed after a state was saved, and interrupted: the same bytes in the end.
"$BIN/vptq-quantize" "${args[@]}" -o killed --steps 20 -t 1 -q >/dev/null &
pid=$!
wait_for 60 test -e killed/tune.state
kill_and_wait "$pid"
tune -o killed --steps 20 --format json >rest.json
expect_same one killed
[ "$(tail -n 1 rest.json | json_get best_step)" = 20 ] || fail "$(tail -n 1 rest.json)"
[ "$(sed -n 2p rest.json | json_get step)" != 1 ] || fail "a state is not used"
"$BIN/vptq-quantize" "${args[@]}" -o stopped --steps 20 -t 1 -q >stopped.txt &
pid=$!
wait_for 60 grep -q '^ *3 ' stopped.txt
interrupt "$pid" 0
[ -e stopped/tune.state ] || fail "an interrupted run saves no state"
[ ! -e stopped/layer_000_q_proj.safetensors ] || fail "an interrupted run leaves matrices"
"$BIN/vptq-quantize" "${args[@]}" -n 4000 -o at_once --steps 20 --backend ref --progress >/dev/null 2>err.txt &
pid=$!
wait_for 60 grep -q 'original: ' err.txt
interrupt "$pid"
expect_line err.txt '^vptq-quantize: interrupted; run the same command to continue$'
cp -r stopped damaged
steps=$(sed -n '/^ *[0-9][0-9]* /p' stopped.txt | tail -n 1 | awk '{ print $1 }')
tune -o stopped --steps 20 --dry-run >plan.txt # the last step may have been taken and not printed
expect_line plan.txt "^stopped: 0 layers and \($((20 - steps))\|$((19 - steps))\) steps\? to do, "
cp -r stopped again
mkdir other
cp stopped/original.state other
"$BIN/vptq-quantize" "${args[@]}" -o stopped --steps 20 --verbose >/dev/null 2>err.txt
expect_line err.txt "the original's hidden states are read from 'stopped/original.state'"
expect_same one stopped
"$BIN/vptq-quantize" "${args[@]}" -o other --steps 3 --verbose >/dev/null 2>err.txt
expect_line err.txt "the original's hidden states are read from 'other/original.state'"
tune -o three --steps 3 >/dev/null
expect_same three other
printf x | dd of=again/original.state bs=1 seek=900 conv=notrunc 2>/dev/null
"$BIN/vptq-quantize" "${args[@]}" -o again --steps 20 --verbose >/dev/null 2>err.txt
! grep -q 'hidden states are read' err.txt || fail "a damaged original.state is read"
expect_same one again

# A damaged state: from the first step, with a warning.  A matrix that is missing: made again.
printf x | dd of=damaged/tune.state bs=1 seek=900 conv=notrunc 2>/dev/null
"$BIN/vptq-quantize" "${args[@]}" -o damaged --steps 20 >/dev/null 2>err.txt
expect_line err.txt 'tune.state is damaged or from another run; tuning starts at the first step'
expect_same one damaged
rm damaged/layer_002_up_proj.safetensors
tune -o damaged --steps 20 >/dev/null
expect_same one damaged

# Less memory than the hidden states of the original need, which then go to a file: the same bytes.
"$BIN/vptq-quantize" "${args[@]}" --verbose -o small --steps 20 --mem 10M >/dev/null 2>err.txt
expect_line err.txt "hidden states (2 MiB) go to a file in 'small'"
expect_same one small

# Started over without need: a finished run of the same settings is kept.
tune -o one --steps 20 -f >again.txt
! grep -q '^ *1 ' again.txt || fail "steps of a finished run"

# Started over with another rate: as if it had been the first.
printf x >one/layer_099_q_proj.safetensors
tune -o one --steps 20 --rate 0.005 -f >/dev/null
tune -o fresh --steps 20 --rate 0.005 >/dev/null
expect_same fresh one

# Without -n, the steps see every window once.
"$BIN/vptq-quantize" --from work --tune e2e -c "$text" --steps 3 --batch 4 --rate 0.01 -o once -q >/dev/null
for key in '"windows": *12' '"held_out": *1' '"length": *512'; do
    grep -q "${key}[,}]" once/quantize.json || fail "not $key in $(cat once/quantize.json)"
done

# Nothing better: what went in comes out.
want=$("$BIN/vptq-pack" -q --digest work)
tune -o zero --steps 3 --rate 0 >zero.txt
[ "$(tail -n 1 zero.txt)" = "digest $want" ] || fail "rate 0 changes the model"
tune -o wild --steps 3 --rate 1 >wild.txt
[ "$(tail -n 1 wild.txt)" = "digest $want" ] || fail "a worse model is kept: $(cat wild.txt)"

# Products of bfloat16 numbers: other bytes, as near, and the same for any instructions.
grep -q '"precision": *"float"' one/quantize.json || fail "float is not the default"
tune -o short --steps 20 -t 1 --precision bf16 --format json >short.json
grep -q '"precision": *"bf16"' short/quantize.json || fail "the manifest does not have bf16"
cmp -s short/layer_000_q_proj.safetensors two/layer_000_q_proj.safetensors && fail "bf16 gives the bytes of float"
expect_near "$(tail -n 1 short.json | json_get held_out_loss)" "$(tail -n 1 one.json | json_get held_out_loss)" 0.02
few() { "$BIN/vptq-quantize" --from work --tune e2e -c "$text" -n 6 -l 32 --batch 2 --rate 0.01 --steps 2 --precision bf16 -q "$@"; }
few -o few -t 1 >/dev/null
[ "$("$BIN/vptq-pack" -q --digest few)" != "$want" ] || fail "two steps change nothing"
for level in none avx2 avx512; do # without SIMD one multiplication takes a hundred times as long
    VPTQ_SIMD=$level few -o "few_$level" -t 2 >/dev/null
    expect_same few "few_$level"
done

# Bad input.
expect_error 1 "one/quantize.json belongs to another run: its key 'tune.steps' is 20, here it is 21" tune -o one \
    --steps 21
expect_error 1 "one/quantize.json belongs to another run: its key 'tune' is" "$BIN/vptq-quantize" -m "$model" \
    --tokenizer "$tok" -c "$text" -n 16 -l 256 -o one -v 4 -k 64 --joint 0 --retrain 0 --sweeps 1 --refits 0 -q
expect_error 2 "'one.hf' is a packed VPTQ directory, expected a work directory" "$BIN/vptq-quantize" --from one.hf \
    --tune e2e -c "$text" -o new -q
head -c 600 "$text" >short.txt
expect_error 1 'short.txt has [0-9]* windows of 128 tokens: too few for 1 held out and 4 of a step' "$BIN/vptq-quantize" \
    --from work --tune e2e -c short.txt -l 128 --batch 4 -o new -q
expect_error 1 'has fingerprint .*, but the matrices were made from' "$BIN/vptq-quantize" --from work --tune e2e \
    -m "$(data models/stories260K-hf)" -c "$text" -l 128 -o new -q
expect_error 2 "'work' is the directory to tune and cannot be the output" "$BIN/vptq-quantize" --from work --tune e2e -c "$text" \
    -n 64 -l 128 --batch 4 -o work -f -q
[ ! -e new ] || fail "a run that cannot begin makes its directory"
cp -r work part
rm part/layer_004_*
grep -v '"layer": 4,' work/report.jsonl >part/report.jsonl
"$BIN/vptq-quantize" --from part --tune e2e -c "$text" -n 64 -l 128 --batch 4 --steps 1 -o of_part >/dev/null 2>err.txt
expect_line err.txt "'part' has 28 of 35 matrices; the others stay as the original's"
for bad in '--from work' '--tune e2e' '--from work --tune e2e -H h' '--from work --tune e2e -b 2' \
    '--from work --dry-run' '--from work --tune e2e --rate 2' '--from work --tune e2e --holdout 0' \
    '--from work --tune e2e --steps 0' '--from work --tune e2e -n 64 --batch 500' '--from work --tune e2e -v 8' \
    '--from work --tune e2e --layers 0-1' '--from work --tune e2e --weights plain' '-m model --steps 3' '-m model --precision bf16' '--from work --tune e2e --precision f16'; do
    # shellcheck disable=SC2086
    expect_exit 2 "$BIN/vptq-quantize" $bad -c "$text" -o new -q 2>/dev/null
done
