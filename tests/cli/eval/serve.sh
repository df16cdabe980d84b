# Serving: records and their figures, order of runs, resuming, errors, interruption.
model=$(data models/stories260K-hf)
serve() { "$BIN/vptq-eval" serve -q -t 2 "$@"; }

serve -m one="$model" -m two="$model" --config 3,20,5 --config 1,30,2 --runs 2 --seed 5 -o runs.jsonl >table.txt
[ "$(wc -l <runs.jsonl)" -eq 8 ] || fail "$(cat runs.jsonl)"
[ "$(json_get run_name runs.jsonl | tr '\n' ' ')" = "one_b3_i20_o5_run1 two_b3_i20_o5_run1 one_b3_i20_o5_run2 \
two_b3_i20_o5_run2 one_b1_i30_o2_run1 two_b1_i30_o2_run1 one_b1_i30_o2_run2 two_b1_i30_o2_run2 " ] ||
    fail "not in turns: $(json_get run_name runs.jsonl)"
head -n 1 runs.jsonl >first.json
expect() { [ "$(json_get "$1" first.json)" = "$2" ] || fail "$1 of $(cat first.json)"; }
expect group one_b3_i20_o5
expect model one
expect batch_size 3
expect input_len 20
expect output_len 5
expect kv f16
expect threads 2
expect backend cpu
expect seed 5
expect weight_bytes 520064
# two pages per sequence, 5 layers, keys and values of 4 heads of 8 in two bytes; 25 tokens take
# 75 / 32 = 2 pages and one more per sequence
expect cache_bytes $((5 * 32 * 5 * 2 * 4 * 8 * 2))
get() { json_get "$1" first.json; }
awk -v l="$(get latency)" -v t="$(get ttft)" -v o="$(get output_throughput)" -v a="$(get overall_throughput)" \
    -v i="$(get input_throughput)" 'function near(a, b) { return a > b * 0.9999 && a < b * 1.0001 }
    BEGIN { exit !(t > 0 && l > t && near(o, 15 / (l - t)) && near(a, 75 / l) && near(i, 60 / t)) }' ||
    fail "figures that do not belong together: $(cat first.json)"
[ "$(grep -c ' ± ' table.txt)" -eq 4 ] || fail "$(cat table.txt)"
expect_line table.txt '^one  *b3_i20_o5  *3  *20  *5  *2 '

# The mean of the runs, in every format.
serve -m one="$model" -m two="$model" --config 3,20,5 --config 1,30,2 --runs 2 --seed 5 -o runs.jsonl --format json >groups.json
[ "$(json_get group groups.json | tr '\n' ' ')" = "one_b3_i20_o5 two_b3_i20_o5 one_b1_i30_o2 two_b1_i30_o2 " ] ||
    fail "$(cat groups.json)"
mean=$(grep '"one_b3_i20_o5"' runs.jsonl | json_get latency | awk '{ s += $1 } END { printf "%.12g", s / NR }')
expect_near "$(head -n 1 groups.json | json_get latency_mean)" "$mean" 1e-9
[ "$(wc -l <runs.jsonl)" -eq 8 ] || fail "runs again: $(cat runs.jsonl)"
serve -m one="$model" --config 3,20,5 --runs 2 --seed 5 -o runs.jsonl --format csv >groups.csv
expect_line groups.csv '^model,config,batch_size,input_len,output_len,runs,latency_mean,latency_std,ttft_mean'
expect_line groups.csv '^one,b3_i20_o5,3,20,5,2,'
serve -m one="$model" --config 3,20,5 --runs 1 --seed 5 -o runs.jsonl --format md >groups.md
expect_line groups.md '^| one | b3_i20_o5 | 3 | 20 | 5 | 1 | [0-9.]* |'

# The half line of a killed run is dropped; finished runs are kept, a third one is added.
head -n 3 runs.jsonl >kept.jsonl
{ cat kept.jsonl && printf '{"run_name": "one_b3'; } >part.jsonl
serve -m one="$model" -m two="$model" --config 3,20,5 --runs 3 --seed 5 -o part.jsonl >/dev/null
[ "$(wc -l <part.jsonl)" -eq 6 ] || fail "$(cat part.jsonl)"
head -n 3 part.jsonl | cmp -s - kept.jsonl || fail "records have changed"

# Without --config, those published configurations that fit into the context.
"$BIN/vptq-eval" serve -m one="$model" --dry-run --no-progress --format json >plan.json 2>err.txt
[ "$(json_get config plan.json | tr '\n' ' ')" = "interactive medium_batch base high_concurrency " ] ||
    fail "$(cat plan.json)"
expect_line err.txt \
    '^vptq-eval: left out, .* (--allow-long runs them): decode_bound, prefill_bound, long_context$'
serve -m one="$model" --dry-run --allow-long --format json >plan.json
[ "$(wc -l <plan.json)" -eq 8 ] || fail "$(cat plan.json)"
mkdir short
cp "$model"/*.safetensors "$model"/tokenizer*.json short
sed 's/\("max_position_embeddings": \)512/\1100/' "$model/config.json" >short/config.json

# refused STATUS PATTERN OPTION..
refused() { expect_sentence "$1" "$2" serve "${@:3}"; }
refused 1 "runs.jsonl:1: run 'one_b3_i20_o5_run1' has seed 5, expected 6; use another file, or -f to replace this one" \
    -m one="$model" --config 3,20,5 --seed 6 -o runs.jsonl
packed=$(data golden/vptq_model_stories260K)
refused 1 "runs.jsonl:1: run 'one_b3_i20_o5_run1' has model_fingerprint" -m one="$packed" --config 3,20,5 --seed 5 \
    -o runs.jsonl
refused 2 "all published configurations are longer than a model's context; pass --config" -m "$model" -m short
refused 2 "configuration 'long_context' has sequences of 16416 tokens, the context of 'one' is 512; pass --allow-long" \
    -m one="$model" --config 1,8,2 --config long_context -o none.jsonl
refused 2 "configuration 'many', expected BATCH,INPUT,OUTPUT or one of interactive" -m "$model" --config many
refused 2 "two models have the name 'stories260K-hf'" -m "$model" -m "$model/" --config 1,8,2
refused 2 'nothing to measure' -m "$model" --config 1,8,2 --runs 0
refused 2 "expected NAME=MODEL" -m =x --config 1,8,2
refused 1 "needs .* MiB of cache" -m "$model" --config 64,256,128 --mem 8M -o none.jsonl
printf 'text\n' >text.txt
refused 1 'text.txt:1' -m "$model" --config 1,8,2 -o text.txt
[ "$(cat text.txt)" = text ] || fail "a file of something else was changed"
[ ! -e none.jsonl ] || fail "a refused run has made its output"
serve -m "$model" --config 1,600,2 --runs 1 --allow-long --kv f32 --format json >long.json 2>long.err
[ "$(json_get kv long.json)" = f32 ] || fail "$(cat long.json)"
serve -m "$model" --config 1,8,2 -o none.jsonl --dry-run --format json >plan.json
[ ! -e none.jsonl ] || fail "a dry run has made its output"
[ "$(json_get cache_bytes plan.json)" = $((32 * 5 * 2 * 4 * 8 * 2)) ] || fail "$(cat plan.json)"

# A dry run ends with time and memory of all runs: those of a thousand are longer than those of one.
# plan RUNS OPTION..: sets seconds and memory
plan()
{
    serve -m one="$model" --runs "$@" --dry-run --format json >plan.json
    tail -n 1 plan.json >totals.json
    expect_line totals.json '^{"totals": {"estimated_seconds": .*"seconds_left_out": "loading"'
    seconds=$(json_get estimated_seconds totals.json)
    memory=$(json_get peak_memory_bytes totals.json)
    expect_number "$seconds" '>' 0
}
plan 1 --config 4,32,16
one=$seconds
expect_number "$memory" '>=' $(($(head -n 1 plan.json | json_get cache_bytes) + $(head -n 1 plan.json | json_get working_bytes)))
plan 1000 --config 4,32,16
expect_number "$seconds" '>' "$one"
[ "$(json_get disk_needed_bytes totals.json)" = 0 ] || fail "$(cat totals.json)"
plan 2 -m packed="$(data golden/vptq_model_stories260K)" --config 1,1,1 --config 2,100,3
[ "$(wc -l <plan.json)" -eq 5 ] || fail "$(cat plan.json)"
serve -m one="$model" --config 1,8,2 --dry-run >plan.txt
expect_line plan.txt '^about .* without loading, .* of memory$'
serve -m one="$model" --config 1,8,2 --dry-run --format csv >plan.csv
[ "$(wc -l <plan.csv)" -eq 2 ] || fail "$(cat plan.csv)"

serve -m one="$model" --config 1,8,2 --runs 1 -o text.txt -f >/dev/null
[ "$(json_get run_name text.txt)" = one_b1_i8_o2_run1 ] || fail "$(cat text.txt)"

# SIGINT: status 130, and finished runs are kept.
"$BIN/vptq-eval" serve -q -t 2 -m one="$model" --config 8,64,64 --runs 100000 -o stopped.jsonl >/dev/null 2>err.txt &
pid=$!
begun() { [ -s stopped.jsonl ]; }
wait_for 60 begun
interrupt "$pid"
done=$(wc -l <stopped.jsonl)
expect_line err.txt "^vptq-eval: interrupted after $done of 100000 runs; run the same command to continue$"
serve -m one="$model" --config 8,64,64 --runs "$((done + 1))" -o stopped.jsonl --format json >groups.json
[ "$(json_get runs groups.json)" = "$((done + 1))" ] || fail "$(cat groups.json)"
"$BIN/vptq-eval" serve -t 2 -m one="$model" --config 8,64,64 --runs 100000 --warmup 0 --progress >out.txt 2>err.txt &
pid=$!
wait_for 60 grep -q 'run 1, ' err.txt
interrupt "$pid"
expect_line err.txt '^vptq-eval: interrupted after [0-9]* of 100000 runs; none is kept (-o FILE keeps them)$'
