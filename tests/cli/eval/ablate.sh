# A table of settings from one command: its figures, interruption and resuming.
model=$(data models/stories260K-hf)
calibration=$(data text/tinystories/tiny.utf8)
text=$(data text/tinystories/tinystories_v2_sample.txt)

cat >rows.json <<'EOF'
[
 {"name": "original", "original": true},
 {"name": "v4", "settings": {"vector_length": 4, "centroids": 64, "retrain": 8}},
 {"name": "residual", "label": "v4 + residual", "encoder": "upstream",
  "settings": {"vector_length": 4, "centroids": 64, "residual": 16, "pass_columns": 2}},
 {"name": "outliers", "settings": {"vector_length": 4, "centroids": 32, "outliers": 5, "outlier_centroids": 16,
  "retrain": 8}},
 {"name": "budget", "bits": 3.5, "allocate": "uniform"}
]
EOF
options=(-m "$model" -c "$calibration" -n 8 -l 128 --text "$text" --context 256
    --table rows.json --layers 1-2 --set kmeans_iterations=4 --no-seconds)
ablate() { "$BIN/vptq-eval" ablate "${options[@]}" "$@"; }

# ---- the figures are those of the tools ----
ablate -q --dry-run --format json >plan.jsonl
[ "$(wc -l <plan.jsonl)" -eq 6 ] || fail "$(cat plan.jsonl)"
ablate -q -o whole --keep-packed --format json >whole.jsonl
# the directory's work is of these layers
"$BIN/vptq-eval" ablate "${options[@]}" --layers 0-4 -q -o whole >out.txt 2>err.txt && fail "layers were mixed"
expect_line err.txt "whole/ablate.json: its key 'layers' is '1-2', here it is 'all'; give another directory$"
expect_error 1 "its key 'layers' is '1-2', here it is '1-3'" ablate --layers 1-3 -q -o whole --force

# Seconds, too, are those of the first run in every table.
timed=("${options[@]/--no-seconds/-q}")
for n in 1 2; do
    "$BIN/vptq-eval" ablate "${timed[@]}" --only v4 --only residual -o timed --format json >timed.$n
done
expect_number "$(head -n 1 timed.1 | json_get seconds)" '>' 0
expect_same timed.1 timed.2

# ---- what cannot be measured is found before anything is quantized ----
printf 'Once' >short.txt
echo '{"question": "What?", "choices": ["a", "b"], "gold": "c"}' >broken.jsonl
expect_error 1 "short.txt: the text has" ablate -q -o early --text short.txt
expect_error 1 "broken.jsonl: line 1: " ablate -q -o early --task quiz=broken.jsonl
expect_error 2 "'1,600,4': sequences have 604 tokens, the model's context has 512" ablate -q -o early --serve 1,600,4
expect_error 1 "broken.jsonl: line 1: " ablate -q --dry-run --task quiz=broken.jsonl
[ ! -e early ] || fail "begun: $(ls early)"

line() { sed -n "$1p" "$2" >line.json; }
for n in 2 3 4; do
    line $n whole.jsonl
    made=$(json_get bits_per_weight line.json)
    line $n plan.jsonl
    [ "$made" = "$(json_get bits_per_weight line.json)" ] || fail "bits of row $n: $made in $(cat line.json)"
done
line 1 whole.jsonl
[ "$(json_get bits_per_weight line.json)" = 16 ] || fail "$(cat line.json)"
[ "$(json_get v line.json)" = null ] || fail "$(cat line.json)"
[ "$(json_get digest line.json)" = null ] || fail "$(cat line.json)"
line 3 whole.jsonl
[ "$(json_get row line.json)" = 'v4 + residual' ] || fail "$(cat line.json)"
[ "$(json_get name line.json)" = residual ] || fail "$(cat line.json)"
[ "$(json_get channel_independent line.json)" = no ] || fail "$(cat line.json)"
[ "$(json_get k_res line.json)" = 16 ] || fail "$(cat line.json)"
"$BIN/vptq-eval" ppl -q -m whole/packed/residual.vptq --text "$text" --context 256 --format json >ppl.json
for key in ppl ppl_stderr; do
    expect_near "$(json_get $key line.json)" "$(json_get $key ppl.json)" 1e-12
done
mean=$(json_get proxy_loss whole/work/residual/report.jsonl | awk '{ s += $1 } END { printf "%.12g", s / NR }')
expect_near "$(json_get mean_loss line.json)" "$mean" 1e-9
[ "$(json_get archive_bytes line.json)" = "$(stat -c %s whole/packed/residual.vptq)" ] || fail "$(cat line.json)"
digest=$("$BIN/vptq-pack" -q --digest whole/packed/residual.vptq)
[ "$(json_get digest line.json)" = "$digest" ] || fail "$(cat line.json), expected $digest"
expect_line whole/rows/residual.json "\"digest\": \"$digest\""
[ "$(json_get digest whole.jsonl | sort -u | wc -l)" = 5 ] || fail "rows with the same digest"
line 5 whole.jsonl
expect_number "$(json_get bits_per_weight line.json)" '<=' 3.5
expect_number "$(json_get bits_per_weight line.json)" '>' 3
[ "$(json_get bits line.json)" = 3.5 ] || fail "$(cat line.json)"

# ---- time, memory and disk of a dry run ----
# totals OPTION..: the estimate as totals.json
totals()
{
    "$BIN/vptq-eval" ablate -q -m "$model" --text "$text" --context 256 --table rows.json --dry-run --format json "$@" |
        tail -n 1 >totals.json
    expect_line totals.json '^{"totals": {"estimated_seconds"'
    expect_number "$(json_get estimated_seconds totals.json)" '>' 0
    expect_number "$(json_get peak_memory_bytes totals.json)" '>' 0
}
left_out() { [ "$(json_get seconds_left_out totals.json)" = "$1" ] || fail "$(cat totals.json)"; }
totals --only v4
left_out 'calibration, packing'
disk=$(json_get disk_needed_bytes totals.json)
totals --only v4 --only residual
[ "$(json_get disk_needed_bytes totals.json)" -gt "$disk" ] || fail "a second row takes no disk: $(cat totals.json)"
totals --only v4 --keep-packed -c "$calibration" -n 8 -l 128 --serve 1,8,2
left_out 'packing, serving'
[ "$(json_get disk_needed_bytes totals.json)" -gt "$disk" ] || fail "Hessians take no disk: $(cat totals.json)"
totals --only original
left_out null
[ "$(json_get disk_needed_bytes totals.json)" = 0 ] || fail "$(cat totals.json)"
original=$(json_get estimated_seconds totals.json)
totals # all rows
expect_number "$(json_get estimated_seconds totals.json)" '>' "$original"
ablate -q --dry-run >plan.txt
expect_line plan.txt '^about .* without packing, .* of memory, .* of disk'
ablate -q --dry-run --format csv >plan.csv
[ "$(wc -l <plan.csv)" -eq 6 ] || fail "$(cat plan.csv)"

# ---- interrupted and resumed: the same bytes ----
# stopped SIGNAL STATUS PATTERN: sends the signal when the log matches
stopped()
{
    local status=0 signal=$1 want=$2 pattern=$3
    "$BIN/vptq-eval" ablate "${options[@]}" -o parts >/dev/null 2>err.txt &
    local pid=$!
    there() { grep -q "$pattern" err.txt; }
    wait_for 60 there
    kill "-$signal" "$pid"
    wait "$pid" || status=$?
    [ "$status" -eq "$want" ] || fail "status $status after $signal"
}
stopped INT 130 'row 2 of 5: v4$'
expect_line err.txt 'interrupted; 1 of 5 rows finished, run the same command to continue$'
stopped KILL 137 'row 4 of 5: outliers$'
for format in md csv json html; do
    ablate -q -o whole --format $format >whole.$format
    ablate -q -o parts --format $format >parts.$format
    expect_same whole.$format parts.$format "after interruptions"
done
expect_line whole.html '<svg'
expect_alone whole.html
[ "$(grep -c '</figure>' whole.html)" -ge 2 ] || fail "pictures are missing"
[ -e whole/packed/v4.vptq ] || fail "an archive to keep was removed"
[ ! -e parts/packed/v4.vptq ] || fail "an archive was kept"
ablate -q -o parts -t 1 --only v4 --only 4-5 --format json >some.jsonl
sed -n '2p;4,5p' whole.jsonl | sed 's/"name": "[a-z0-9]*", //' >want.jsonl
sed 's/"name": "[a-z0-9]*", //' some.jsonl >got.jsonl
expect_same got.jsonl want.jsonl
ablate -q -o parts --report table.md --format md >out.txt
expect_same table.md whole.md
[ ! -s out.txt ] || fail "a report in a file is not printed"
expect_exit 1 ablate -q -o parts --report table.md --format md 2>err.txt
expect_line err.txt "table.md.* exists"

# A row file without the digest or the size of its archive gets one; its scores stay.
for key in digest archive_bytes; do
    sed -i "s/\"$key\": /\"old_$key\": /" parts/rows/v4.json
    rm -rf copy
    cp -r parts copy
    reseal parts/rows/v4.json ablate -o copy --only v4 --format json
    ablate -o parts --format json >again.jsonl 2>err.txt
    ! grep -q 'measured again' err.txt || fail "$(cat err.txt)"
    expect_same again.jsonl whole.jsonl
done

# ---- an output of another run ----
sed 's/"centroids": 32/"centroids": 16/' rows.json >other.json
expect_exit 1 ablate -q -o parts --table other.json 2>err.txt
expect_line err.txt "row 'outliers': .*settings.centroids"
expect_exit 1 ablate -q -o parts -n 4 2>err.txt
expect_line err.txt "parts/hessians.*key 'fingerprint'"
ablate -q -o parts --table other.json -f --format json >other.jsonl
grep -v '"name": "outliers"' other.jsonl >got.jsonl
grep -v '"name": "outliers"' whole.jsonl >want.jsonl
expect_same got.jsonl want.jsonl "but for the row that was made again"
grep '"name": "outliers"' other.jsonl >line.json
[ "$(json_get k line.json)" = 16 ] || fail "$(cat line.json)"
mkdir foreign
echo x >foreign/file
expect_exit 1 ablate -q -o foreign 2>err.txt
expect_line err.txt "'foreign' is not an ablation: it holds 'file'"
