# Choice tasks: the harness's figures for the same items, tables, samples, a base, requested
# checks, a dry run, bad options.
model=$(data models/stories260K-hf)
bin=$(data models/stories260K/stories260K.bin)
items=$SRC/tests/golden/tasks
run() { "$BIN/vptq-eval" tasks -m "$model" -q "$@"; }
all=()
for task in arc_easy openbookqa piqa hellaswag winogrande copa boolq lambada_openai choices schema; do
    all+=(--task "$task=$items/$task.jsonl")
done
all+=(--task "endings=$items/endings.txt")

# Every figure of the harness, task by task.
run "${all[@]}" --format json --samples samples.jsonl >all.json
[ "$(wc -l <all.json)" = 11 ] || fail "rows: $(cat all.json)"
grep '"figures"' "$items/expected.jsonl" >want.json
[ "$(json_get task all.json)" = "$(json_get task want.json)" ] || fail "$(cat all.json)"
for key in acc acc_stderr acc_norm acc_norm_stderr; do
    sed -n -E 's/.*"task": "([a-z_]*)".*"'$key'": ([0-9.]*).*/\1 \2/p' want.json >figures.txt
    [ -s figures.txt ] || fail "no $key in want.json"
    while read -r task value; do
        grep "\"task\": \"$task\"" all.json >row.json
        expect_near "$(json_get $key row.json)" "$value" 1e-12
    done <figures.txt
done
grep lambada all.json >lambada.json
expect_near "$(json_get perplexity lambada.json)" 2748.313 1e-5
[ "$(json_get acc_norm lambada.json)" = null ] || fail "$(cat lambada.json)"

# One line per item, the same for any number of threads and with little memory; an existing file
# is replaced only with --force.
[ "$(wc -l <samples.jsonl)" = 35 ] || fail "samples: $(cat samples.jsonl)"
expect_line samples.jsonl '"task": "schema", "item": 1, "line": 2, "gold": 1, "choice": 0, "choice_norm": null'
run "${all[@]}" -t 1 --mem 12M --samples one.jsonl >one.txt
expect_same samples.jsonl one.jsonl "with one thread"
expect_exit 1 run "${all[@]}" --samples one.jsonl >out.txt 2>err.txt
expect_line err.txt "'one.jsonl' already exists"
run "${all[@]}" --samples one.jsonl -f >out.txt
expect_line out.txt '^Task  *Items  *acc  *±  *acc_norm'
expect_line out.txt '^copa  *3  *0.6667  *0.3333  *0.6667'
expect_line out.txt 'sharing saved 1340$'
run --task "arc_easy=$items/arc_easy.jsonl" --limit 2 --format csv >out.csv
expect_line out.csv '^task,items,acc,acc_stderr,acc_norm,acc_norm_stderr,perplexity'
expect_line out.csv '^arc_easy,2,0.5,0.5,0.5,0.5,,,7,85,158,'
# titles stand over the columns of a single task, too
run --task "winogrande=$items/winogrande.jsonl" >out.txt
expect_line out.txt '^Task        Items     acc       ±  Seconds$'
expect_line out.txt '^winogrande      4  0.5000  0.2887  *[0-9.]*$'
run --task "schema=$items/schema.jsonl" --format md >out.md
expect_line out.md '^| schema | *2 | *0.0000 | *0.0000 |'

# Against its original: the same model in float32 makes the same choices.
base=(--task "arc_easy=$items/arc_easy.jsonl" --task "lambada=$items/lambada_openai.jsonl"
    --base "$bin" --tokenizer "$(data models/stories260K/tok512.bin)")
run "${base[@]}" --format json --min-agreement 1 --min-acc 0.25 >base.json
[ "$(json_get agreement base.json | sort -u)" = 1 ] || fail "$(cat base.json)"
[ "$(json_get agreement_stderr base.json | sort -u)" = 0 ] || fail "$(cat base.json)"
[ "$(json_get acc_base base.json)" = "$(json_get acc base.json)" ] || fail "$(cat base.json)"
[ "$(json_get right_to_wrong base.json | sort -u)" = 0 ] || fail "$(cat base.json)"
expect_exit 3 run "${base[@]}" --min-acc 0.3 >out.txt 2>err.txt
expect_line out.txt '^arc_easy '
expect_line err.txt '^vptq-eval: arc_easy: accuracy 0.2500 is below --min-acc 0.3$'
[ "$(wc -l <err.txt)" = 1 ] || fail "$(cat err.txt)"

# A dry run.
run --task "piqa=$items/piqa.jsonl" --dry-run --format json >plan.json
[ "$(json_get task plan.json)" = piqa ] || fail "$(cat plan.json)"
expect_number "$(json_get rows plan.json)" '>' 0
run --task "piqa=$items/piqa.jsonl" --dry-run >out.txt
expect_line out.txt '^piqa: would score 3 items in 6 requests; [0-9]* tokens, [0-9]* without sharing$'
run --task "x=$items/choices.jsonl" --delimiter '\n\\ ->\t' --dry-run >out.txt
expect_line out.txt '^x: would score 4 items in 10 requests'
run --task "piqa=$items/piqa.jsonl" --limit 1 --dry-run >out.txt
expect_line out.txt '^piqa: would score 1 item in 2 requests; '

# bad STATUS PATTERN ARGUMENT..: vptq-eval tasks
bad() { expect_error "$1" "$2" run "${@:3}"; }
bad 2 '--task'
bad 2 "task arc: expected NAME=FILE" --task arc
bad 2 "task =x: expected NAME=FILE" --task =x
bad 2 'min-agreement needs --base' --task "x=$items/piqa.jsonl" --min-agreement 1
bad 2 "delimiter: unknown escape '.x'" --task "x=$items/piqa.jsonl" --delimiter '\x'
bad 2 "delimiter: unknown escape '.', expected" --task "x=$items/piqa.jsonl" --delimiter "x\\"
bad 1 "no-such-items" --task x=no-such-items
bad 1 'line 1 is an item of PIQA, not of copa' --task "copa=$items/piqa.jsonl"
printf '{"text": "a b"}\n{"text": "a b", "text": 1}\n' >twice.jsonl
bad 1 'twice.jsonl: line 2, column [0-9]*: duplicate key .text.' --task x=twice.jsonl
# A task that cannot be scored is found before the first one runs.
bad 1 'piqa.jsonl: line [0-9]: a continuation has [0-9]* tokens, more than the context of 8' \
    --task "lambada=$items/lambada_openai.jsonl" --task "piqa=$items/piqa.jsonl" --context 8
