# Layer-wise tuning: closer to the original at the same bits, on other text too; the same bytes for any thread count
# and after a kill; before an end-to-end run in one command as in two; what went in comes out if nothing is better.
long_if_instrumented
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
other=$(data text/tinystories/tinystories_v2_sample.txt)
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -c "$text" -n 16 -l 256 -o work -v 4 -k 64 --joint 0 --retrain 0 \
    --sweeps 1 --refits 0 -q >/dev/null
common=(-c "$text" -n 32 -l 128 --batch 4 --rate 0.01)
tune() { "$BIN/vptq-quantize" --from work --tune layer "${common[@]}" -q "$@"; }
both() { "$BIN/vptq-quantize" --from work --tune layer,e2e "${common[@]}" --passes 1 --steps 11 -q "$@"; }

tune -o one -t 1 --format json >one.json
tune -o two -t 4 >two.txt
expect_same one two
no_leftovers one
[ ! -e one/tune.state ] || fail "a finished run leaves its state"
[ "$(wc -l <one.json)" = 6 ] || fail "expected 5 layers and the sums"
for n in 1 2 3 4 5; do
    sed -n "${n}p" one.json >row.json
    [ "$(json_get layer row.json)" = $((n - 1)) ] || fail "row $n: $(cat row.json)"
    expect_number "$(json_get held_out_loss row.json)" '<' "$(json_get held_out_before row.json)"
    expect_number "$(json_get best_pass row.json)" '>=' 1
    expect_number "$(json_get best_pass row.json)" '<=' 4
done
tail -n 1 one.json >sums.json
for key in before loss; do
    [ $key = before ] && name=layer_loss_before || name=layer_loss
    mean=$(head -n 5 one.json | json_get "held_out_$key" | awk '{ s += $1 } END { printf "%.12g", s / NR }')
    expect_near "$(json_get "$name" sums.json)" "$mean" 1e-9
done
expect_number "$(json_get layer_loss sums.json)" '<' "$(json_get layer_loss_before sums.json | awk '{ print 0.9 * $1 }')"
[ "$(json_get layers sums.json)" = 5 ] || fail "$(cat sums.json)"
digest=$("$BIN/vptq-pack" -q --digest one)
[ "$(json_get digest sums.json)" = "$digest" ] || fail "$(cat sums.json), expected $digest"
[ "$(tail -n 1 two.txt)" = "digest $digest" ] || fail "$(tail -n 1 two.txt), expected digest $digest"

# Divergence and perplexity of another text; the same bits, in every form.
for w in work one; do
    "$BIN/vptq-eval" kld -m $w --base "$model" --tokenizer "$tok" --text "$other" --context 256 --format json -q >$w.kld
done
expect_number "$(json_get mean_kld one.kld)" '<' "$(json_get mean_kld work.kld | awk '{ print 0.9 * $1 }')"
expect_number "$(json_get ppl one.kld)" '<' "$(json_get ppl work.kld)"
"$BIN/vptq-pack" one -o one.hf -q >/dev/null
"$BIN/vptq-pack" work -o work.hf -q >/dev/null
expect_same work.hf/config.json one.hf/config.json
"$BIN/vptq-pack" --check one.hf -q >/dev/null
! grep -q loss one/report.jsonl || fail "a loss of the matrix before tuning"
[ "$(json_get tuned one/report.jsonl | sort -u)" = layer ] || fail "rows do not say that they are tuned"

# Finished: nothing is done again.
tune -o one --format json >again.json
expect_same one two
[ "$(wc -l <again.json)" = 1 ] || fail "layers of a finished run"

# Less memory than both streams of hidden states need, which then go to files: the same bytes.
"$BIN/vptq-quantize" --from work --tune layer "${common[@]}" -o small --mem 6M --verbose >/dev/null 2>err.txt
expect_line err.txt "hidden states (.* MiB) go to a file in 'small'"
expect_same one small

# Killed after a layer was finished, and interrupted: the same bytes in the end.
"$BIN/vptq-quantize" --from work --tune layer "${common[@]}" -o killed -t 1 -q >/dev/null &
pid=$!
wait_for 60 test -e killed/tune.state
kill_and_wait "$pid"
tune -o killed --format json >rest.json
expect_same one killed
[ "$(head -n 1 rest.json | json_get layer)" != 0 ] || fail "a finished layer is tuned again"
tail -n 1 rest.json >row.json
for key in layers layer_loss_before layer_loss changed; do
    [ "$(json_get $key row.json)" = "$(json_get $key sums.json)" ] || fail "$key of a resumed run: $(cat row.json)"
done
"$BIN/vptq-quantize" --from work --tune layer "${common[@]}" -o stopped -t 1 -q >stopped.txt 2>err.txt &
pid=$!
wait_for 60 grep -q '^ *1 ' stopped.txt
interrupt "$pid" 0
expect_line err.txt 'interrupted after [1-4] of 5 layers; run the same command to continue'
[ ! -e stopped/layer_000_q_proj.safetensors ] || fail "an interrupted run leaves matrices"
cp -r stopped damaged
tune -o stopped >/dev/null
expect_same one stopped

# A damaged state: from the first layer, with a warning.  A matrix that is missing: made again.
printf x | dd of=damaged/tune.state bs=1 seek=900 conv=notrunc 2>/dev/null
tune -o damaged >/dev/null 2>err.txt
expect_line err.txt 'tune.state is damaged or from another run; tuning starts at the first step'
expect_same one damaged
rm damaged/layer_002_up_proj.safetensors
tune -o damaged >/dev/null
expect_same one damaged

# Both methods in one run are as one after the other.
both -o both -t 1 --format json >both.json
tune -o first --passes 1 --format json >first.json
"$BIN/vptq-quantize" --from first --tune e2e "${common[@]}" --steps 11 -o second -q --format json >second.json
[ "$(tail -n 1 both.json | json_get digest)" = "$(tail -n 1 second.json | json_get digest)" ] ||
    fail "another model than in two runs: $(tail -n 1 both.json)"
[ "$(tail -n 1 both.json | json_get layer_loss)" = "$(tail -n 1 first.json | json_get layer_loss)" ] ||
    fail "$(tail -n 1 both.json)"
for key in held_out_before held_out_loss best_step; do
    [ "$(tail -n 1 both.json | json_get $key)" = "$(tail -n 1 second.json | json_get $key)" ] ||
        fail "$key: $(tail -n 1 both.json)"
done
[ "$(json_get tuned both/report.jsonl | sort -u)" = layer,e2e ] || fail "rows do not say how they are tuned"

# Killed within either, they end with the same bytes.
for moment in '^ *0 .* 1 ' '^ *10 '; do
    rm -rf parts
    "$BIN/vptq-quantize" --from work --tune layer,e2e "${common[@]}" --passes 1 --steps 11 -t 1 -o parts -q >parts.txt &
    pid=$!
    wait_for 60 grep -q "$moment" parts.txt
    kill_and_wait "$pid"
    both -o parts -t 2 --format json >rest.json
    expect_same both parts "after a kill at $moment"
    ! head -n 1 rest.json | grep -q '"layer": 0' || fail "finished layers are tuned again"
done
! grep -q '"layer": ' rest.json || fail "layers are tuned again within the steps: $(cat rest.json)"

# Nothing better: what went in comes out.
want=$("$BIN/vptq-pack" -q --digest work)
for rate in 0 1; do
    tune -o "same$rate" --passes 1 --rate $rate >same.txt
    [ "$(tail -n 1 same.txt)" = "digest $want" ] || fail "rate $rate changes the model: $(cat same.txt)"
done

# A part of the matrices: layers without any stay as they are, and have no row.
cp -r work part
rm part/layer_001_* part/layer_004_* part/layer_002_[gkqv]*
grep -v -E '"layer": ([14],|2, "name": "[gkqv])' work/report.jsonl >part/report.jsonl
"$BIN/vptq-quantize" --from part --tune layer "${common[@]}" --passes 1 -o of_part -q --format json >part.json 2>/dev/null
[ "$(head -n 3 part.json | json_get layer | tr '\n' ' ')" = '0 2 3 ' ] || fail "$(cat part.json)"
[ "$(tail -n 1 part.json | json_get layers)" = 3 ] || fail "$(cat part.json)"

# Bad input.
expect_error 1 "one/quantize.json belongs to another run: its key 'tune.passes' is 4, here it is 2" tune -o one --passes 2
expect_error 1 "one/quantize.json belongs to another run: its key 'tune.method' is \"layer\", here it is \"e2e\"" \
    "$BIN/vptq-quantize" --from work --tune e2e "${common[@]}" -o one -q
expect_error 2 '--steps needs --tune e2e; a layer takes --passes' tune -o new --steps 3
expect_error 2 '--passes needs --tune layer' "$BIN/vptq-quantize" --from work --tune e2e --passes 3 -c "$text" -o new -q
for bad in '--passes 0' '--passes 1001' '--batch 500' '--rate 2'; do
    # shellcheck disable=SC2086
    expect_exit 2 tune -o new $bad 2>/dev/null
done
[ ! -e new ] || fail "a run that cannot begin makes its directory"
