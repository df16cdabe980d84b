# Recipes: settings for single matrices; errors are found before any work, with file, rule and key;
# the work directory records its recipe.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 4 -l 256 -o h -q
run() { "$BIN/vptq-quantize" -m "$model" -H h -k 16 --layers 0-1 -qq "$@"; }

cat > r.json <<'JSON'
{"rules": [
  {"match": "*.v_proj", "settings": {"centroids": 32, "sweeps": 0}},
  {"match": "layers.*.mlp.*", "layers": "1-3", "settings": {"vector_length": 2}},
  {"match": "model.layers.1.self_attn.v_proj", "settings": {"centroids": 64}},
  {"match": "o_proj", "layers": "0", "settings": {"residual": 4}},
  {"match": "k_proj", "settings": {"encoder": "upstream", "kmeans_iterations": 7}}]}
JSON
run -o w --recipe r.json --format json > rows.json
# row NUMBER KEY: the value of a key in row NUMBER, which is of layer NUMBER / 7
row() { sed -n "$(($1 + 1))p" rows.json | json_get "$2"; }
[ "$(json_get k rows.json | tr '\n' ' ')" = "16 16 32 16 16 16 16 16 16 64 16 16 16 16 " ] ||
    fail "k: $(json_get k rows.json | tr '\n' ' ')"
[ "$(json_get v rows.json | tr '\n' ' ')" = "4 4 4 4 4 4 4 4 4 4 4 2 2 2 " ] || fail "v"
[ "$(json_get k_res rows.json | tr '\n' ' ')" = "0 0 0 4 0 0 0 0 0 0 0 0 0 0 " ] || fail "k_res"
expect_line rows.json '"settings": {"centroids": 64, "sweeps": 0}'
expect_line rows.json '"settings": {"centroids": 16, "norm": "minmax", .*"kmeans_iterations": 7'
# Each object of the report but the last, the sums, equals a row of stdout without the keys of the run.
sed '$d; s/, "bytes": .*/}/' rows.json > report
expect_same report w/report.jsonl
expect_line w/quantize.json '"match": "\*.v_proj"'
expect_line w/quantize.json '"model.layers.1.self_attn.v_proj": {'

# Matrices without a rule are the same as in a run without a recipe.
run -o plain > /dev/null
for m in layer_000_q_proj layer_001_o_proj; do
    cmp <(head -c 2000 w/$m.safetensors | strings -n 40 | grep -o '"proxy_loss[^v]*') \
        <(head -c 2000 plain/$m.safetensors | strings -n 40 | grep -o '"proxy_loss[^v]*') ||
        fail "$m differs"
done

# The same recipe continues the run; another one is an error that names the difference.
run -o w --recipe r.json --format json > again.json
[ "$(grep -c '"reused": true' again.json)" = 14 ] || fail "made again"
expect_error 1 "key 'recipe' is .*, here it is missing (--force starts over)" run -o w
sed 's/"centroids": 32/"centroids": 128/' r.json > s.json
expect_error 1 "w/quantize.json belongs to another run: its key 'recipe' is" run -o w --recipe s.json
expect_error 1 "key 'settings.sweeps' is ., here it is 2" run -o w --recipe r.json --sweeps 2
expect_error 1 "key 'settings.encoder' \|key 'settings.norm' is \"std\", here it is \"minmax\"" \
    run -o w --recipe r.json --encoder upstream
expect_same report w/report.jsonl
run -o w --recipe s.json --force > /dev/null
expect_line w/report.jsonl '"name": "v_proj", .*"k": 128,'

# refused PATTERN JSON: exit status 1, no output.
refused()
{
    echo "$2" > bad.json
    expect_error 1 "$1" run -o x --recipe bad.json
    [ ! -e x ] || fail "a work directory was made"
}
refused "^vptq-quantize: bad.json: line 1, column .: not valid JSON" 'rules'
refused "bad.json: key 'rules' is missing or not a list" '{}'
refused "bad.json: key 'rule' is unknown" '{"rules": [], "rule": []}'
refused "bad.json: rule 1: key 'pattern' is unknown, expected match, layers, settings or skip" \
    '{"rules": [{"pattern": "*", "settings": {"beam": 1}}]}'
refused "bad.json: rule 2: key 'centroid' is not a setting" \
    '{"rules": [{"match": "*", "settings": {"beam": 1}},
                {"match": "*", "settings": {"centroid": 16}}]}'
refused "bad.json: rule 1: vector_length is '65', expected a whole number from 1 to 64" \
    '{"rules": [{"match": "*", "settings": {"vector_length": 65}}]}'
refused "bad.json: rule 1: key 'match' is '\*.w_proj', which matches no matrix of layers 0-4" \
    '{"rules": [{"match": "*.w_proj", "settings": {"beam": 1}}]}'
refused "bad.json: rule 1: key 'layers' is '3-9', expected layers from 0 to 4" \
    '{"rules": [{"match": "*", "layers": "3-9", "settings": {"beam": 1}}]}'
refused "duplicate key 'beam'" \
    '{"rules": [{"match": "*", "settings": {"beam": 1, "beam": 2}}]}'
refused "bad.json: rule 1: key 'dtype' applies to the whole model" \
    '{"rules": [{"match": "*", "settings": {"dtype": "bf16"}}]}'
expect_error 1 "no-such-recipe" run -o x --recipe no-such-recipe
# Settings that are valid, but not for this matrix.
echo '{"rules": [{"match": "layers.4.*.down_proj", "settings": {"groups": 5}}]}' > bad.json
expect_error 2 "model.layers.4.mlp.down_proj: groups is 5, which does not divide 172 columns" \
    run -o x --recipe bad.json
[ ! -e x ] || fail "a work directory was made"
