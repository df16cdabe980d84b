# The comparison of served models: the published report from its records, the formats of the default
# layout, and errors.
# shellcheck disable=SC2016 # the backticks are those of Markdown
records=$(data golden/serving/records.jsonl)
golden=$(data golden/serving/report_classic.md)
compare() { "$BIN/vptq-eval" compare "$@"; }

# --- the published layout: the same bytes except latencies whose runs were rounded ---
compare "$records" --layout classic --source-name result.jsonl >classic.md
[ "$(grep -c '^#### ' classic.md)" -eq 49 ] || fail "$(grep -c '^#### ' classic.md) groups"
[ "$(grep -c '^### Summary Table$' classic.md)" -eq 7 ] || fail "tables"
[ "$(grep -c '^### Configuration: ' classic.md)" -eq 7 ] || fail "rankings"
[ "$(grep -c '^| `.*` | 3 | ' classic.md)" -eq 49 ] || fail "rows"
[ "$(grep -c '^\(🥇\|🥈\|🥉\|[4-7]\.\) \*\*' classic.md)" -eq 49 ] || fail "places"
[ "$(tail -c 1 classic.md)" = s ] || fail "a newline at the end"
# lines that differ: name, our latency, the published one; each in a table and at its group
paste -d '\t' classic.md "$golden" | awk -F '\t' '
    function near(a, b, i, x, y) {
        split(a, x, " ± "); split(b, y, " ± ")
        for (i = 1; i <= 2; i++)
            if ((x[i] - y[i]) ^ 2 > 0.0101 ^ 2) { print "too far: " a " and " b; exit }
    }
    $1 ~ /^#### / { name = substr($1, 6) }
    $1 == $2 { next }
    $1 ~ /^\| `/ {
        n = split($1, ours, " [|] "); split($2, theirs, " [|] ")
        for (i = 1; i <= n; i++)
            if (i != 3 && ours[i] != theirs[i]) print "not a latency: " $0
        near(ours[3], theirs[3])
        gsub(/[|` ]/, "", ours[1])
        print ours[1], ours[3], theirs[3]
        next
    }
    $1 ~ /^  - Latency: / && $2 ~ /^  - Latency: / {
        sub("  - Latency: ", "", $1); sub("  - Latency: ", "", $2)
        near($1, $2)
        print name, $1, $2
        next
    }
    { print "not a latency: " $0 }' | sort | uniq -c | sed 's/^ *//' >differ.txt
sort >want.txt <<'END'
2 original_high_concurrency 1.93 ± 0.02 1.93 ± 0.01
2 original_medium_batch 1.07 ± 0.01 1.07 ± 0.00
2 w8a16_awq_base 0.74 ± 0.02 0.74 ± 0.01
2 w8a16_awq_long_context 1.49 ± 0.03 1.48 ± 0.03
2 w8a16_smooth_awq_base 0.75 ± 0.02 0.75 ± 0.01
2 w8a16_smooth_awq_interactive 0.40 ± 0.02 0.39 ± 0.02
2 w8a16_smooth_awq_long_context 1.48 ± 0.01 1.48 ± 0.00
2 w8a16_smooth_awq_medium_batch 0.91 ± 0.01 0.90 ± 0.00
2 w8a16_sparse_awq_interactive 0.40 ± 0.01 0.39 ± 0.01
2 w8a16_sparse_awq_long_context 1.47 ± 0.02 1.47 ± 0.01
2 w8a16_sparse_awq_prefill_bound 0.33 ± 0.01 0.32 ± 0.00
2 w8a8_smooth_gptq_interactive 0.39 ± 0.03 0.39 ± 0.02
2 w8a8_smooth_gptq_long_context 1.00 ± 0.01 0.99 ± 0.01
2 w8a8_smooth_gptq_medium_batch 0.81 ± 0.03 0.81 ± 0.02
2 w8a8_smooth_ptq_base 0.46 ± 0.01 0.46 ± 0.00
2 w8a8_smooth_ptq_medium_batch 0.81 ± 0.01 0.81 ± 0.00
2 w8a8_smooth_ptq_prefill_bound 0.26 ± 0.01 0.27 ± 0.01
2 w8a8_sparse_smooth_gptq_high_concurrency 1.54 ± 0.03 1.55 ± 0.03
2 w8a8_sparse_smooth_gptq_long_context 1.00 ± 0.01 0.99 ± 0.00
2 w8a8_sparse_smooth_gptq_medium_batch 0.80 ± 0.01 0.81 ± 0.01
END
sort differ.txt >sorted.txt
expect_same sorted.txt want.txt "in the latencies that differ"
compare "$records" --layout classic >named.md
expect_line named.md '^\*\*Generated from:\*\* `records.jsonl`$'

# --- several files are pooled; a single run has no deviation, missing values are N/A ---
head -n 70 "$records" >a.jsonl
tail -n +71 "$records" >b.jsonl
compare a.jsonl b.jsonl --layout classic --source-name result.jsonl >pooled.md
expect_same pooled.md classic.md "from two files"
echo '{"run_name": "m_run1", "batch_size": 1, "input_len": 2, "output_len": 3, "latency": 0.126,
"input_throughput": 9}' | tr -d '\n' >one.jsonl
compare one.jsonl --layout classic >one.md
expect_line one.md '^| `m` | 1 | 0.13 | 0.00 | 0.00 | 9.00 |$'
expect_line one.md '^    - Output Throughput: N/A$'
expect_line one.md '^    - Input Throughput: 9.00 tok/s$'
expect_line one.md '^  - Latency: 0.13$'

# --- the default layout ---
compare "$records" >default.md
expect_line default.md '^From records.jsonl: 147 runs of 7 models under 7 configurations.$'
expect_line default.md '^| w8a16_awq | 256 | 128 | 18.7: faster below | 26.9: faster below |$'
expect_line default.md '^| w8a8_smooth_ptq | 256 | 128 | none: faster from 8 to 64 | none: faster from 8 to 64 |$'
expect_line default.md '^| original_interactive | run3 (twice) | run2 | - |$'
expect_line default.md '| w8a16_sparse_awq_base_run1 | Decode throughput (tok/s) | 1526.74 | 3906.77 | -60.9 % |$'
# ranked by decoding, w8a16_sparse_awq would be first of prefill_bound; by latency it is fourth
awk '/^## prefill_bound/ { on = 1 } on' default.md >prefill.md
expect_line prefill.md '^| w8a16_sparse_awq | 4 | 0.330 | '
compare "$records" --format csv >rows.csv
[ "$(wc -l <rows.csv)" -eq 50 ] || fail "$(wc -l <rows.csv) lines"
head -n 1 rows.csv >head.csv
expect_line head.csv '^group,model,configuration,batch_size,input_len,output_len,runs,latency_runs,latency_median,'
compare "$records" --format json >rows.json
[ "$(wc -l <rows.json)" -eq 49 ] || fail "$(wc -l <rows.json) rows"
head -n 1 rows.json >row.json
[ "$(json_get latency_median row.json)" = 0.51 ] || fail "$(cat row.json)"
[ "$(json_get runs_missing row.json)" = run2 ] || fail "$(cat row.json)"
compare "$records" --format html -o page.html
expect_alone page.html
[ "$(grep -c '<svg ' page.html)" -eq 18 ] || fail "pictures"
compare "$records" --original w8a16_awq >other.md
expect_line other.md "^Speedups are over 'w8a16_awq'"
expect_line other.md '^| original | 256 | 128 | 18.7: faster above | 26.9: faster above |$'

# --- hostile names: no markup, no links, no rows of their own, no formulas ---
cat >hostile.jsonl <<'END'
{"run_name": "=x|`<script>alert(1)</script>", "batch_size": 1, "input_len": 2, "output_len": 3, "latency": 1}
{"run_name": "![i](https://x.y/z)", "batch_size": 1, "input_len": 2, "output_len": 3, "latency": 2}
{"run_name": "<img src=x>", "batch_size": 1, "input_len": 2, "output_len": 3, "latency": 3}
END
source=$'a\n\n<script>\n| `b` |'
compare hostile.jsonl --layout classic --source-name "$source" >hostile.classic
compare hostile.jsonl --source-name "$source" >hostile.md
for page in hostile.classic hostile.md; do
    ! grep -q '<\(script\|img\)' "$page" || fail "markup in $(cat $page)"
    # outside of backticks, where nothing is a link
    ! sed 's/`[^`]*`//g' "$page" | grep -q '!\[\|://' || fail "a link in $(cat $page)"
done
expect_line hostile.classic '^| =x\\|\\`&lt;script>alert(1)&lt;/script> | 1 |'
expect_line hostile.classic '^\*\*Generated from:\*\* a  &lt;script> \\| \\`b\\` \\|$'
expect_line hostile.classic '^#### !\\\[i\\\](https&#58;//x.y/z)$'
compare hostile.jsonl --format csv >hostile.csv
expect_line hostile.csv "^'=x|\`<script>alert(1)</script>,'=x|"

# --- runs of other settings in one group ---
run='"batch_size": 1, "input_len": 2, "output_len": 3, "latency": 1, "model_fingerprint": null'
for x in '1 f16 2' '2 f32 2' '3 f16 4'; do
    read -r n kv threads <<<"$x"
    echo "{\"run_name\": \"m_run$n\", $run, \"kv\": \"$kv\", \"threads\": $threads, \"seed\": 7}"
done >mixed.jsonl
echo "{\"run_name\": \"m_run4\", $run}" >>mixed.jsonl
compare mixed.jsonl >mixed.md 2>err.txt
expect_line err.txt "warning: group 'm': its runs differ in kv, threads and are not comparable$"
expect_line mixed.md '^m: its runs differ in kv, threads and are not comparable\.$'
compare mixed.jsonl --format json 2>err.txt >mixed.json
[ "$(json_get runs_differ_in mixed.json)" = 'kv, threads' ] || fail "$(cat mixed.json)"
sed -n '1p;4p' mixed.jsonl >same.jsonl
compare same.jsonl --format json 2>err.txt >same.json
[ "$(json_get runs_differ_in same.json)" = null ] || fail "$(cat same.json)"
[ ! -s err.txt ] || fail "$(cat err.txt)"

# --- errors ---
# refused STATUS PATTERN OPERAND..
refused() { expect_error "$1" "$2" compare "${@:3}"; }
refused 2 'expected files of records'
refused 2 'layout classic is Markdown' "$records" --layout classic --format html
refused 2 "--original 'none': no records of such a model" "$records" --original none
refused 1 "cannot open 'none.jsonl'" none.jsonl
refused 1 "page.html" "$records" --format html -o page.html
ln a.jsonl linked.jsonl
refused 2 "the output 'a.jsonl' is the input 'linked.jsonl'; give another file" linked.jsonl -o a.jsonl -f
[ "$(wc -l <a.jsonl)" = 70 ] || fail "the records are gone"
sed '2s/"latency": [0-9.]*/"latency": -1/' "$records" >bad.jsonl
refused 1 "bad.jsonl: line 2: key 'latency': found -1, expected a number above 0" bad.jsonl
sed '3s/}/,}/' "$records" >bad.jsonl
refused 1 'bad.jsonl: line 3, column [0-9]*: not valid JSON' "$records" bad.jsonl
cp page.html before.html
compare "$records" --format html -o page.html -f
expect_same page.html before.html
no_leftovers .

# --- a dry run: the size of the report, and nothing written ---
compare "$records" -o taken.html
compare "$records" -o new.html --dry-run >plan.txt
expect_line plan.txt '^about .* s, .* of memory, .* of disk (.* free)$'
[ ! -e new.html ] || fail "a dry run wrote a report"
compare "$records" -o new.json --dry-run >plan.json
compare "$records" --format json >rows.json
[ "$(json_get disk_needed_bytes plan.json)" = "$(stat -c %s rows.json)" ] || fail "$(cat plan.json)"
expect_number "$(json_get disk_free_bytes plan.json)" '>' 0
for to in "" "-o -"; do
    # shellcheck disable=SC2086 # nothing or two words
    compare "$records" $to --dry-run >plan.txt
    expect_line plan.txt '^about .* s, .* of memory$'
    # shellcheck disable=SC2086
    compare "$records" $to --format json --dry-run >plan.json
    [ "$(json_get disk_needed_bytes plan.json)" = 0 ] || fail "$(cat plan.json)"
done
compare "$records" --format csv --dry-run >plan.txt
[ ! -s plan.txt ] || fail "in a table for programs: $(cat plan.txt)"
expect_error 1 "'taken.html' already exists" compare "$records" -o taken.html --dry-run
expect_error 2 "no records of such a model" compare "$records" --original none --dry-run
