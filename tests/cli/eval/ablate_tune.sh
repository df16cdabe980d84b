# Rows of an ablation that are tuned: as by vptq-quantize --tune, on the calibration text; kills and other settings.
long_if_instrumented
model=$(data models/stories260K-hf)
calibration=$(data text/tinystories/tiny.utf8)
text=$(data text/tinystories/tinystories_v2_sample.txt)
cat >rows.json <<'EOR'
[
 {"name": "plain", "settings": {"vector_length": 4, "centroids": 64}},
 {"name": "layer", "settings": {"vector_length": 4, "centroids": 64}, "tune": "layer"},
 {"name": "all", "settings": {"vector_length": 4, "centroids": 64}, "tune": "layer,e2e"},
 {"name": "e2e", "settings": {"vector_length": 4, "centroids": 64}, "tune": "e2e"}
]
EOR
options=(-m "$model" -c "$calibration" -n 16 -l 64 --text "$text" --context 256 --text-windows 8
    --table rows.json --set kmeans_iterations=4 --set sweeps=1 --set refits=0 --set joint=0 --set retrain=0 --no-seconds)
ablate() { "$BIN/vptq-eval" ablate "${options[@]}" "$@"; }

ablate -q -o whole -t 1 --format json >whole.jsonl
[ "$(json_get finetune whole.jsonl | tr '\n' ';')" = 'no;layer-wise;layer-wise, e2e;e2e;' ] || fail "$(cat whole.jsonl)"
[ "$(json_get status whole.jsonl | sort -u)" = "done" ] || fail "$(cat whole.jsonl)"
[ "$(json_get bits_per_weight whole.jsonl | sort -u | wc -l)" = 1 ] || fail "tuning changes the bits: $(cat whole.jsonl)"
[ "$(json_get mean_loss whole.jsonl | tail -n 3 | sort -u)" = null ] || fail "losses from before tuning: $(cat whole.jsonl)"
ppl=$(head -n 1 whole.jsonl | json_get ppl)
for n in 2 3 4; do
    expect_number "$(sed -n ${n}p whole.jsonl | json_get ppl)" '<' "$ppl"
done
expect_number "$(sed -n 3p whole.jsonl | json_get ppl)" '<' "$(sed -n 2p whole.jsonl | json_get ppl)"

# The same by hand.
"$BIN/vptq-quantize" --from whole/work/layer --tune layer -c "$calibration" -n 16 -l 64 -o hand -q >hand.txt
[ "$(tail -n 1 hand.txt)" = "digest $(sed -n 2p whole.jsonl | json_get digest)" ] || fail "$(cat hand.txt)"

# Killed while a row is tuned: the same figures, and nothing that was finished is done again.
"$BIN/vptq-eval" ablate "${options[@]}" -q -o parts -t 1 >/dev/null 2>&1 &
pid=$!
wait_for 60 test -e parts/tuned/all/tune.state
kill_and_wait "$pid"
before=$(stat -c %i parts/tuned/layer/layer_000_q_proj.safetensors)
ablate -q -o parts --format json >parts.jsonl
expect_same whole.jsonl parts.jsonl
[ "$(stat -c %i parts/tuned/layer/layer_000_q_proj.safetensors)" = "$before" ] || fail "a finished row is tuned again"

# Another text to tune on, with the same Hessians: refused, or computed again with --force.
hessians() { "$BIN/vptq-eval" ablate -m "$model" -H whole/hessians "${options[@]:4}" -q -o whole "$@"; }
tail -c 50000 "$calibration" >rest.txt
hessians -c "$calibration" --only layer --format json >again.jsonl
[ "$(json_get digest again.jsonl)" = "$(sed -n 2p whole.jsonl | json_get digest)" ] || fail "$(cat again.jsonl)"
expect_error 1 "row 'layer': .*tuned/layer/quantize.json belongs to another run: its key 'tune.ids'" hessians -c rest.txt \
    --only layer
hessians -c rest.txt --only layer -f --format json >other.jsonl
[ "$(json_get digest other.jsonl)" != "$(json_get digest again.jsonl)" ] || fail "the text of tuning changes nothing"
[ "$(json_get ppl other.jsonl)" != "$(json_get ppl again.jsonl)" ] || fail "a row that was tuned again is not measured again"
