# Rows of an ablation: the paper's, and invalid lists.
model=$(data models/stories260K-hf)
text=$(data text/tinystories/tinystories_v2_sample.txt)
ablate() { "$BIN/vptq-eval" ablate -q -m "$model" --text "$text" --context 128 --dry-run "$@"; }

# ---- Table 10 ----
ablate --format json >plan.jsonl 2>err.txt
sed '$d' plan.jsonl >paper.jsonl # the last line is an estimate
[ "$(wc -l <paper.jsonl)" -eq 19 ] || fail "$(wc -l <paper.jsonl) rows"
[ "$(json_get row paper.jsonl | tr '\n' ' ')" = \
    "#1 #2 #3 #4 #5 #6 #7 #8 #9 #10 #11 #12 #13 #14 #15 #16 #17 #18 #19 " ] || fail "$(cat paper.jsonl)"
[ "$(json_get paper_ppl paper.jsonl | tr '\n' ' ')" = \
    "4.57 14800 7.21 6.29 7.25 5.8 6.32 6.16 6.08 6.02 6.07 5.32 5.71 5.63 5.63 5.63 5.55 4.82 4.64 " ] ||
    fail "$(json_get paper_ppl paper.jsonl)"
[ "$(json_get groups paper.jsonl | tr '\n' ' ')" = \
    "null 1 1 1 1 1 1 1 1 1 1 1 1 1 2 4 8 1 1 " ] || fail "$(json_get groups paper.jsonl)"
[ "$(json_get finetune paper.jsonl | sed -n '10,12p;19p' | tr '\n' ';')" = \
    "no;layer-wise;layer-wise, e2e;layer-wise;" ] || fail "$(json_get finetune paper.jsonl)"
[ "$(json_get status paper.jsonl | sort -u)" = planned ] || fail "$(json_get status paper.jsonl)"
sed -n 5p paper.jsonl >five.json
[ "$(json_get channel_independent five.json)" = no ] || fail "$(cat five.json)"
expect_line err.txt "row 'v8': .* bits per weight, the original has 16.00"
ablate --only '#4' --only 8-9 --only 4-bit --format csv 2>/dev/null | cut -d, -f2 >names.txt
[ "$(tr '\n' ' ' <names.txt)" = "name v6 outliers-1 outliers-2 4-bit " ] || fail "$(cat names.txt)"

# ---- lists ----
# refused STATUS PATTERN JSON [OPTION..]
refused()
{
    printf '%s' "$3" >rows.json
    expect_error "$1" "$2" ablate --table rows.json "${@:4}"
}
refused 1 'rows.json: is not a list of 1 to 1000 rows' '{"rows": []}'
refused 1 'rows.json: is not a list of 1 to 1000 rows' '[]'
refused 1 'rows.json: row 1: is not an object' '[3]'
refused 1 "rows.json: row 1: key 'name' is missing" '[{"settings": {}}]'
refused 1 "rows.json: row 1: key 'name' is missing or not" '[{"name": "../x"}]'
refused 1 "rows.json: row 1: key 'name' is missing or not" '[{"name": ".x"}]'
refused 1 "rows.json: row 2: key 'name' is the name of an earlier row" '[{"name": "a"}, {"name": "A"}]'
refused 1 "rows.json: row 1: key 'v' is unknown" '[{"name": "a", "v": 3}]'
refused 1 "rows.json: row 1: key 'bits' has no effect" '[{"name": "a", "original": true, "bits": 3}]'
refused 1 "rows.json: row 1: key 'original' is neither" '[{"name": "a", "original": 1}]'
refused 1 "rows.json: row 1: key 'optional' is neither" '[{"name": "a", "optional": 1}]'
refused 1 "rows.json: row 1: key 'optional' has no effect" '[{"name": "a", "original": true, "optional": true}]'
refused 1 "rows.json: row 1: no such setting: 'size'" '[{"name": "a", "settings": {"size": 3}}]'
refused 1 "rows.json: row 1: key 'centroids' is neither" '[{"name": "a", "settings": {"centroids": [1]}}]'
refused 1 "rows.json: row 1: centroids is 'many'" '[{"name": "a", "settings": {"centroids": "many"}}]'
refused 1 "rows.json: row 1: encoder is 'x'" '[{"name": "a", "encoder": "x"}]'
refused 1 "rows.json: row 1: preset is 'x'" '[{"name": "a", "preset": "x"}]'
refused 1 "rows.json: row 1: key 'bits' is not a number above 0" '[{"name": "a", "bits": 0}]'
refused 1 "rows.json: row 1: key 'allocate' needs key 'bits'" '[{"name": "a", "allocate": "proxy"}]'
refused 1 "rows.json: row 1: key 'allocate' is neither" '[{"name": "a", "bits": 3, "allocate": "kl"}]'
refused 1 "rows.json: row 1: key 'tune' is none of" '[{"name": "a", "tune": "all"}]'
refused 1 "rows.json: row 1: key 'tune' has no effect" '[{"name": "a", "original": true, "tune": "layer"}]'
refused 1 "cannot open 'none.json'" '[{"name": "a", "recipe": "none.json"}]'
refused 2 "vector_length is '3000'" '[{"name": "a"}]' --set vector_length=3000
refused 2 "row 'b': .*groups" '[{"name": "a"}, {"name": "b", "settings": {"groups": 7}}]'
refused 2 "--only 'c': expected the name of a row or a number from 1 to 1" '[{"name": "a"}]' --only c
refused 2 "--only '2': expected the name of a row or a number from 1 to 1" '[{"name": "a"}]' --only 2
# Other rows than those of --only need a name, and nothing else.
mixed='[{"name": "a"}, {"name": "b", "settings": {"method": "rtn"}}, {"name": "c", "v": 3}]'
refused 1 "rows.json: row 2: centroids has no effect with method rtn" "$mixed" --set centroids=16
refused 1 "rows.json: row 3: key 'v' is unknown" "$mixed" --set centroids=16 --only a --only c
refused 1 "rows.json: row 3: key 'name' is missing" '[{"name": "a"}, {"name": "b"}, {}]' --only a
refused 1 "rows.json: row 2: key 'name' is the name of an earlier row" '[{"name": "a"}, {"name": "a"}]' --only a
printf '%s' "$mixed" >rows.json
ablate --table rows.json --set centroids=16 --only a --format json >a.json
[ "$(json_get k a.json | head -n 1)" = 16 ] || fail "$(cat a.json)"
ablate --table methods --set centroids=256 --only vptq-3 --format csv >a.csv
expect_line a.csv "^vptq-3,3,2.99"
refused 2 "set x: expected KEY=VALUE" '[{"name": "a"}]' --set x
refused 2 "no such setting: 'x'" '[{"name": "a"}]' --set x=1
printf '[{"name": "a"}]' >rows.json
expect_exit 2 "$BIN/vptq-eval" ablate -m "$model" --table rows.json -o d --text "$text" 2>err.txt
expect_line err.txt 'missing option: -c/--calibration TEXT'
expect_exit 2 "$BIN/vptq-eval" ablate -m "$model" --table rows.json -o d -H h 2>err.txt
expect_line err.txt 'missing option: --text FILE'

# the seed of the run is used for the rows
ablate_seed() { "$BIN/vptq-eval" ablate -q -m "$model" -H own --text "$text" --context 128 --layers 0 \
    --table seed.json -o "$@" --no-seconds --format csv | tail -n 1; }
"$BIN/vptq-hessian" -q -m "$model" -c "$text" -n 4 -l 64 -o own
printf '[{"name": "a", "settings": {"centroids": 16, "kmeans_iterations": 1}}]' >seed.json
ablate_seed s0 >a.csv
ablate_seed s1 --seed 1 >b.csv
ablate_seed s2 --set seed=1 >c.csv
expect_same b.csv c.csv
cmp -s a.csv b.csv && fail "--seed changes nothing"

# Hessians of another model are detected before anything is measured
bin=$(data models/stories260K/stories260K.bin)
"$BIN/vptq-hessian" -q -m "$bin" --tokenizer "$model/tokenizer.json" -c "$text" -n 1 -l 64 -o h
expect_exit 1 "$BIN/vptq-eval" ablate -m "$model" --table rows.json -o d -H h --text "$text" 2>err.txt
expect_line err.txt "'h' has the Hessians of another model"
expect_exit 2 "$BIN/vptq-eval" ablate -m "$model" --table rows.json -o d -H own -c "$text" --text "$text" 2>err.txt
expect_line err.txt '-H and a calibration text exclude each other: no row is tuned on it'
printf '[{"name": "a"}, {"name": "b", "tune": "layer"}]' >rows.json
expect_exit 2 "$BIN/vptq-eval" ablate -m "$model" --table rows.json -o d -H own --text "$text" 2>err.txt
expect_line err.txt "row 'b': tuning needs a calibration text (-c TEXT), also with -H"
[ -z "$(ls d/rows)" ] || fail "a row was measured"
