# SIGINT: status 130, a word, nothing on stdout.
model=$(data models/stories260K-hf)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-eval" ppl -m "$model" --text "$text" --context 512 --backend ref --progress \
    >out.txt 2>err.txt &
pid=$!
scoring() { grep -q 'windows 1-' err.txt; }
wait_for 60 scoring
interrupt "$pid"
expect_line err.txt 'interrupted'
[ ! -s out.txt ] || fail "something on stdout"

# ids that nobody reads any further: the pipe takes 64 KiB
mkfifo ids
for _ in 1 2 3 4 5 6 7 8; do cat "$text"; done >texts
"$BIN/vptq-eval" ppl -m "$model" --text texts --tokens-only >ids 2>err.txt &
pid=$!
{
    read -r _
    kill -INT "$pid"
    cat >rest
} <ids
expect_exit 130 wait "$pid"
expect_line err.txt 'interrupted'
[ "$(wc -l <rest)" -lt 100000 ] || fail "went on to $(wc -l <rest) ids"

# The same signal twice at once, as timeout(1) sends it to process and group, is one request; later it ends the
# process at once.
blocked() { grep -q '^State:.S' "/proc/$pid/status"; } # the pipe is full
"$BIN/vptq-eval" ppl -m "$model" --text texts --tokens-only >ids 2>err.txt &
pid=$!
{
    read -r _
    wait_for 60 blocked
    kill -TERM "$pid"
    sleep 0.1
    kill -TERM "$pid"
    cat >rest
} <ids
expect_exit 143 wait "$pid"
expect_line err.txt 'interrupted'
"$BIN/vptq-eval" ppl -m "$model" --text texts --tokens-only >ids 2>err.txt &
pid=$!
{
    read -r _
    wait_for 60 blocked
    kill -TERM "$pid"
    sleep 1.2
    kill -TERM "$pid"
    expect_exit 143 wait "$pid"
} <ids
[ ! -s err.txt ] || fail "$(cat err.txt)"

# What was finished before the interruption stays: rows, losses, samples.
head -c 3000 "$text" >short
"$BIN/vptq-eval" ppl -q -m "$model" --text short --context 64 --dump want.f64 >/dev/null
"$BIN/vptq-eval" ppl -m "$model" --text short --text texts --context 64 --dump got.f64 >out.txt 2>err.txt &
pid=$!
first_text() { grep -q '^short' out.txt; }
wait_for 60 first_text
interrupt "$pid"
expect_same want.f64 got.f64
[ "$(wc -l <out.txt)" = 2 ] || fail "not a head and a row: $(cat out.txt)"

"$BIN/vptq-eval" kld -m "$model" --base "$model" --text texts --context 64 --backend ref --progress >out.txt 2>err.txt &
pid=$!
wait_for 60 grep -q 'windows 1-' err.txt
interrupt "$pid"
expect_line err.txt '^vptq-eval: interrupted; nothing is kept, run the same command to start again$'
[ ! -s out.txt ] || fail "something on stdout"

items=$SRC/tests/golden/tasks/copa.jsonl
for _ in {1..500}; do cat "$items"; done >many
"$BIN/vptq-eval" tasks -q -m "$model" --task a="$items" --samples want.jsonl >want.txt
"$BIN/vptq-eval" tasks -m "$model" --task a="$items" --task b=many --backend ref --samples got.jsonl >out.txt 2>err.txt &
pid=$!
second_task() { grep -q 'tasks: 42500' err.txt; }
wait_for 60 second_task
interrupt "$pid"
expect_line out.txt '^a  *3 '
[ "$(wc -l <got.jsonl)" = "$(wc -l <want.jsonl)" ] || fail "samples: $(wc -l <got.jsonl)"
