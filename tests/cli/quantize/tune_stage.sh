# Tuning as a stage of a run: the bytes of two commands, also after interruptions in either stage.
long_if_instrumented
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
light=(-v 4 -k 64 --joint 0 --retrain 0 --sweeps 1 --refits 0 -q)
quantize() { "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -c "$text" -n 16 -l 256 "${light[@]}" "$@"; }

quantize -o work >/dev/null
"$BIN/vptq-quantize" --from work --tune e2e -c "$text" --steps 12 --batch 1 -o tuned -q >/dev/null
quantize --tune e2e --steps 12 --batch 1 -o one -t 1 --format json >one.json
cp -r one result
mv result/untuned .
expect_same work untuned
expect_same tuned result
digest=$("$BIN/vptq-pack" -q --digest tuned)
[ "$(tail -n 1 one.json | json_get digest)" = "$digest" ] || fail "$(tail -n 1 one.json)"
[ "$("$BIN/vptq-pack" -q --digest work)" != "$digest" ] || fail "tuning changes nothing"
"$BIN/vptq-eval" ppl -m one --text "$text" --context 128 --windows 2 -q >/dev/null

# Finished: nothing is done again.
quantize --tune e2e --steps 12 --batch 1 -o one >again.txt
[ "$(tail -n 1 again.txt)" = "digest $digest" ] || fail "$(cat again.txt)"
! grep -q 'held-out divergence' again.txt || fail "a finished run tunes again"

# Interrupted while it quantized, then killed while it tunes.
mkdir stopped
cp -r work stopped/untuned
rm stopped/untuned/report.jsonl stopped/untuned/layer_00[1-4]*
expect_error 1 "'stopped' is not a work directory: it holds 'untuned' and no quantize.json" quantize -o stopped
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -c "$text" -n 16 -l 256 "${light[@]}" --tune e2e --steps 12 \
    --batch 1 -o stopped -t 1 >stopped.txt &
pid=$!
wait_for 60 test -e stopped/tune.state
kill_and_wait "$pid"
quantize --tune e2e --steps 12 --batch 1 -o stopped >/dev/null
expect_same one stopped

# A model that has moved: tuning continues and begins, and the directories name the new place.
mkdir moved
cp "$model" "$tok" moved
moved=(--from work -m moved/stories260K.bin --tokenizer moved/tok512.bin)
"$BIN/vptq-quantize" --from work --tune e2e -c "$text" --steps 12 --batch 1 -o left -t 1 -q >/dev/null 2>&1 &
pid=$!
wait_for 60 test -e left/tune.state
kill_and_wait "$pid"
for out in left begun; do
    "$BIN/vptq-quantize" "${moved[@]}" --tune e2e -c "$text" --steps 12 --batch 1 -o $out -q >/dev/null
    expect_line $out/quantize.json "\"base_model\": \"$PWD/moved/stories260K.bin\""
    expect_line $out/quantize.json "\"tokenizer\": \"$PWD/moved/tok512.bin\""
    for file in tuned/layer_* tuned/report.jsonl; do expect_same "$file" "$out/${file##*/}"; done
done
"$BIN/vptq-quantize" --from work --tune e2e -c "$text" --steps 12 --batch 1 -o left -q >/dev/null
expect_same tuned left

# Given Hessians: the text is for tuning only, and so are its windows.
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 16 -l 256 -o h -q >/dev/null
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h "${light[@]}" -o given >/dev/null
"$BIN/vptq-quantize" --from given --tune layer -c "$text" -n 24 -l 64 --passes 1 -o layer -q >/dev/null
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h "${light[@]}" --tune layer -c "$text" -n 24 -l 64 --passes 1 \
    -o both >/dev/null
rm -r both/untuned
expect_same layer both

# A dry run has the bits, which tuning keeps.
quantize --dry-run | grep -v '^about' >plain.txt
quantize --dry-run --tune e2e | grep -v '^about' >dry.txt
expect_same plain.txt dry.txt

# What does not fit together; a directory of another run, which --force replaces.
expect_error 2 "--steps needs --tune METHOD" quantize --steps 3 -o new
expect_error 2 "--from WORK needs --tune METHOD" "$BIN/vptq-quantize" --from work -c "$text" -o new
expect_error 2 "missing option: -c/--calibration TEXT to train on" \
    "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h "${light[@]}" --tune e2e -o new
expect_error 2 "-H and a calibration text exclude each other, except with --tune" \
    "$BIN/vptq-quantize" -m "$model" -H h -c "$text" "${light[@]}" -o new
expect_error 2 "--sequential needs a calibration text (-c TEXT) and no -H" \
    "$BIN/vptq-quantize" -m "$model" -H h -c "$text" "${light[@]}" --sequential --tune e2e -o new
# What tuning will refuse is an error before anything is quantized, and of a plan, too.
refused() { # STATUS MESSAGE OPTION..
    local status=$1 message=$2
    shift 2
    expect_sentence "$status" "$message" "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h -q -o new "$@"
    expect_sentence "$status" "$message" "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h -q -o new --dry-run "$@"
}
for method in rtn gptq gptvq db-llm sparse; do
    refused 2 "layers.0.self_attn.q_proj: method is $method (35 matrices of other methods than vptq), which cannot be tuned$" \
        --method $method --tune e2e -c "$text"
done
echo '{"rules": [{"match": "v_proj", "settings": {"method": "gptq"}}]}' >gptq.json
refused 2 "layers.0.self_attn.v_proj: method is gptq (5 matrices of other methods than vptq), which cannot be tuned$" \
    "${light[@]}" --recipe gptq.json --tune layer -c "$text"
# without a warning of groups that cannot be packed
refused 2 "cannot be tuned$" --method gptq --group-size 32 --tune e2e -c "$text"
head -c 300 "$text" >short.txt
refused 1 "short.txt: the text has [0-9]* tokens, one window needs 512" "${light[@]}" --tune e2e -c short.txt
refused 1 "has [0-9]* windows of 512 tokens: too few for 17 held out and 4000 of a step" \
    "${light[@]}" --tune e2e -c "$text" --batch 4000
refused 2 "steps of 20 windows, expected at least 1 and at most all windows" \
    "${light[@]}" --tune layer -c "$text" -n 10 --batch 20
expect_error 2 "cannot be tuned" "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -c "$text" -n 16 -l 256 -q \
    --method gptq --tune e2e -o new
[ ! -e new ] || fail "a refused run leaves a directory"
expect_error 1 "'work' holds a run without --tune; tune it into another directory (--from), or start over with --force" \
    quantize --tune e2e --steps 12 --batch 1 -o work
expect_error 1 "one/untuned/quantize.json belongs to another run: its key 'settings.centroids' is 64, here it is 32" \
    quantize -k 32 --tune e2e --steps 12 --batch 1 -o one
expect_exit 1 quantize --tune e2e --steps 3 --batch 1 -o one >/dev/null 2>err.txt
expect_line err.txt "one/quantize.json belongs to another run: its key 'tune.windows' is 12, here it is 3"
# Tuning that has saved nothing claims nothing.
mkdir early
cp -r one/untuned one/quantize.json early
quantize --tune e2e --steps 3 --batch 1 -o early >/dev/null
expect_line early/quantize.json '"steps": 3'
quantize --tune e2e --steps 12 --batch 1 -o work --force >/dev/null
expect_same one work
mkdir foreign
echo x >foreign/file
expect_error 1 "'foreign' is not a work directory: it holds 'file' and no quantize.json" quantize --tune e2e -o foreign
