# All methods in one table: rows, figures of the other commands, interruption and resuming.
model=$(data models/stories260K-hf)
calibration=$(data text/tinystories/tiny.utf8)
text=$(data text/tinystories/tinystories_v2_sample.txt)
eval="$BIN/vptq-eval"
for i in 0 1 2; do
    echo "{\"query\": \"Once upon a\", \"choices\": [\" time\", \" dog\"], \"gold\": 0}"
    echo "{\"query\": \"Lily was very\", \"choices\": [\" on\", \" sad\"], \"gold\": 1}"
    echo "{\"query\": \"They went to the $i\", \"choices\": [\" park\", \" the\"], \"gold\": $((i % 2))}"
done > items.jsonl
options=(-m "$model" -c "$calibration" -n 8 -l 128 --text "$text" --context 128 --text-windows 8 --table methods
    --task choices=items.jsonl --task-limit 8 --kld --set seed=3)
ablate() { "$eval" ablate "${options[@]}" "$@"; }
# row NAME FILE: the row of the table as line.json
row() { grep "\"row\": \"$1\"" "$2" > line.json || fail "no row $1"; }

# ---- the rows ----
ablate -q --dry-run --format json > plan.jsonl 2> plan.err
want='original rtn-4 gptq-4 awq-4 gptvq-4 vptq-4 rtn-3 gptq-3 awq-3 gptvq-3 vptq-3 rtn-2 gptq-2 awq-2 gptvq-2 db-llm vptq-2'
expect_line plan.err "row 'aqlm-2': .*down_proj: .* 172 columns.*; it is left out"
[ "$(grep -c 'it is left out' plan.err)" = 6 ] || fail "$(cat plan.err)"
want="$want $("$BIN/vptq-quantize" --preset list --format json | grep '"serving benchmark"' | json_get name | tr '\n' ' ')"
[ "$(json_get row plan.jsonl | tr '\n' ' ')" = "$want" ] || fail "rows: $(json_get row plan.jsonl)"
row rtn-4 plan.jsonl
# groups of 64 of 64 columns, rows of 172 columns: 4 bits, and 20 per group
bits=$(awk 'BEGIN { w = 64 * 64 * 2 + 32 * 64 * 2 + 172 * 64 * 3; g = 64 * 2 + 32 * 2 + 172 * 2 + 64; print 4 + 20 * g / w }')
expect_near "$(json_get bits_per_weight line.json)" "$bits" 0.01
[ "$(json_get method line.json)" = rtn ] || fail "$(cat line.json)"
row vptq-3 plan.jsonl
[ "$(json_get bits line.json)" = 3 ] || fail "$(cat line.json)"
[ "$(json_get method line.json)" = vptq ] || fail "$(cat line.json)"
row w8a8_sparse_smooth_gptq plan.jsonl
[ "$(json_get method line.json)" = smooth+sparse+gptq ] || fail "$(cat line.json)"

# ---- the figures are those of the tools ----
some=(--only original --only gptq-3 --only vptq-3 --only w8a8_smooth_gptq)
ablate -q -o whole "${some[@]}" --no-seconds --keep-packed --format json > whole.jsonl
[ "$(wc -l < whole.jsonl)" = 4 ] || fail "$(cat whole.jsonl)"
for name in gptq-3 vptq-3 w8a8_smooth_gptq; do
    row $name whole.jsonl
    packed=whole/packed/$name.vptq
    "$eval" kld -q -m $packed --base "$model" --text "$text" --context 128 --windows 8 --format json > kld.json
    for key in mean_kld kld_stderr; do
        [ "$(json_get $key line.json)" = "$(json_get $key kld.json)" ] || fail "$name: $key of $(cat line.json kld.json)"
    done
    "$eval" ppl -q -m $packed --text "$text" --context 128 --windows 8 --format json > ppl.json
    [ "$(json_get ppl line.json)" = "$(json_get ppl ppl.json)" ] || fail "$name: ppl of $(cat line.json ppl.json)"
    "$eval" tasks -q -m $packed --task choices=items.jsonl --limit 8 --format json > task.json
    [ "$(json_get acc_choices line.json)" = "$(json_get acc task.json)" ] || fail "$name: $(cat line.json task.json)"
    [ "$(json_get archive_bytes line.json)" = "$(stat -c %s $packed)" ] || fail "$(cat line.json)"
done
row original whole.jsonl
[ "$(json_get mean_kld line.json)" = null ] || fail "$(cat line.json)"
! grep -q 'tokens_per_second\|seconds\|"v"' whole.jsonl || fail "columns without values: $(cat whole.jsonl)"

# ---- interrupted and resumed: the same bytes ----
# stopped SIGNAL STATUS PATTERN: sends the signal when the log matches
stopped()
{
    local status=0 signal=$1 want=$2 pattern=$3
    "$eval" ablate "${options[@]}" "${some[@]}" --no-seconds -o parts > /dev/null 2> err.txt &
    local pid=$!
    there() { grep -q "$pattern" err.txt; }
    wait_for 60 there
    kill "-$signal" "$pid"
    wait "$pid" || status=$?
    [ "$status" -eq "$want" ] || fail "status $status after $signal"
}
stopped KILL 137 'row 2 of 4: gptq-3$'
stopped INT 130 'row 3 of 4: vptq-3$'
for format in md csv json html; do
    ablate -q -o whole "${some[@]}" --no-seconds --format $format > whole.$format
    ablate -q -o parts "${some[@]}" --no-seconds -t 2 --format $format > parts.$format
    expect_same whole.$format parts.$format "after interruptions"
done
expect_line whole.html 'Divergence over bits'
expect_line whole.html 'smooth+gptq'
# a method has the same colour in the bars of perplexity and divergence
for name in gptq-3 vptq-3 w8a8_smooth_gptq; do
    colors=$(grep -A 2 ">$name</text>" whole.html | sed -n 's/^<rect class="\(f[0-7]\)".*/\1/p')
    case $(tr '\n' ' ' <<< "$colors") in
    'f0 f0 ' | 'f1 f1 ' | 'f2 f2 ' | 'f3 f3 ') ;;
    *) fail "colours of $name: $colors" ;;
    esac
done
expect_alone whole.html

# Figures that an older run did not measure are added; those that it did are kept.
"$eval" ablate -q "${options[@]:0:16}" -o parts --only gptq-3 --no-seconds --set seed=3 --format json > plain.jsonl
! grep -q 'kld\|acc_' plain.jsonl || fail "$(cat plain.jsonl)"
ablate -o parts --only gptq-3 --serve 2,16,4 --format json > served.jsonl 2> err.txt
! grep -q 'measured again' err.txt || fail "$(cat err.txt)"
expect_number "$(json_get tokens_per_second served.jsonl)" '>' 0
expect_number "$(json_get peak_memory_bytes served.jsonl)" '>' 100000
ablate -q -o parts --only gptq-3 --serve 2,16,4 --format json > again.jsonl
[ "$(json_get tokens_per_second again.jsonl)" = "$(json_get tokens_per_second served.jsonl)" ] || fail "served again"
ablate -q -o parts "${some[@]}" --serve 2,16,4 --no-seconds --format json > parts.jsonl
expect_same parts.jsonl whole.json "speeds are times"

# A damaged row file is measured again.
sed -i 's/"mean_kld": [0-9]/"mean_kld": 7/' parts/rows/gptq-3.json
ablate -o parts "${some[@]}" --no-seconds --format json > parts.jsonl 2> err.txt
expect_line err.txt "gptq-3.json.*; the row is measured again"
expect_same parts.jsonl whole.json

# ---- refused ----
expect_error 2 'a divergence is measured on windows without overlap, but stride is 64 and context 128' \
    ablate -q --dry-run --stride 64
expect_error 2 'stride 129 is longer than the context of 128' ablate -q --dry-run --stride 129
expect_error 2 'stride 513 is longer than the context of 512' \
    "$eval" ablate -q -m "$model" --text "$text" --dry-run --stride 513
expect_error 2 '^vptq-eval: --weights has no effect with -H' ablate -q --dry-run -H h --weights plain
expect_error 2 '^vptq-eval: --windows has no effect with -H' \
    "$eval" ablate -q -m "$model" --text "$text" -o x -H h -n 4
expect_error 2 "two tasks with the name 'choices'" ablate -q --dry-run --task choices=items.jsonl
expect_error 2 'task choices: expected NAME=FILE with a name of at most 63 bytes' ablate -q --dry-run --task choices
expect_error 2 "at least 2 tokens of output" ablate -q --dry-run --serve 1,4,1
expect_error 1 "cannot open 'none.jsonl'" ablate -q --dry-run --task other=none.jsonl
expect_error 1 "methods: row 2: sweeps has no effect with method rtn" ablate -q --dry-run --set sweeps=1
ablate -q --dry-run --encoder upstream --format json > plan.jsonl
