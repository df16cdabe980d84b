# Options from a file, and those of a run into a file.
model=$(data models/stories260K-hf)
text=$(data text/tinystories/tiny.utf8)
quantize() { "$BIN/vptq-quantize" "$@" >out.txt 2>err.txt; }
bad() {
    want=$1 sentence=$2
    shift 2
    expect_exit "$want" "$BIN/vptq-quantize" --config run.json "$@" >out.txt 2>err.txt
    expect_line err.txt "$sentence"
}

# The file that a run writes does the same again; the card has the whole command.
cp "$text" "a text"
head -c 2000 "$text" >b
quantize -q -m "$model" -c "a text" -c b -n 4 -l 64 --encoder upstream -v 4 -k 64 --no-norm --holdout 0.25 -o first.vptq \
    --save-config run.json
cat >want.json <<EOF
{
  "quiet": true,
  "model": "$model",
  "calibration": ["a text", "b"],
  "windows": 4,
  "length": 64,
  "encoder": "upstream",
  "vector_length": 4,
  "centroids": 64,
  "no_norm": true,
  "holdout": 0.25,
  "output": "first.vptq"
}
EOF
python3 - <<'EOF'
import json
assert json.load(open("run.json")) == json.load(open("want.json")), open("run.json").read()
EOF
digest() { "$BIN/vptq-pack" -q --digest "$1" | cut -d ' ' -f 1; }
quantize --config run.json -o second.vptq
[ "$(digest first.vptq)" = "$(digest second.vptq)" ] || fail "another result"
"$BIN/vptq-pack" -q second.vptq -o packed >out.txt
expect_line packed/README.md "^    vptq-quantize --quiet --model=$model '--calibration=a text' --calibration=b --windows=4"
expect_line packed/README.md ' -o second.vptq$'

# The command line overrides the file, lists as a whole, wherever --config is; prefixes of its name will do.
quantize -c b --conf=run.json -k 32 --output third.vptq --save-config new/third.json
mv new/third.json .
python3 - <<'EOF'
import json
want = json.load(open("want.json"))
want.update(calibration="b", centroids=32, output="third.vptq")
assert json.load(open("third.json")) == want, open("third.json").read()
EOF
[ "$(digest first.vptq)" != "$(digest third.vptq)" ] || fail "the command line is ignored"

# The same options again leave the file alone, others do not replace it without --force.
cp third.json before.json
quantize -c b --config run.json -k 32 --output third.vptq --save-config third.json -f
expect_same before.json third.json
sentence="'third.json' already exists with other options (--force replaces it)"
expect_error 1 "$sentence" "$BIN/vptq-quantize" --config run.json -o fourth --save-config third.json
[ ! -e fourth ] || fail "work was done"
expect_error 1 "cannot write 'no/where/'" "$BIN/vptq-quantize" --config run.json -o fourth --save-config no/where/
expect_error 2 "exclude each other" "$BIN/vptq-quantize" --config run.json --dry-run --save-config fourth.json

# true and false mean the same as their texts to an option that takes one of them, and false is the opposite of a flag.
"$BIN/vptq-hessian" -q -m "$model" -c b -n 4 -l 64 -o hess
small() { quantize -m "$model" -H hess -o "$@"; }
run() { printf '{"model": "%s", "hessians": "hess", "vector_length": 4, "centroids": 16, %s}' "$model" "$1" >some.json; }
small off.vptq -v 4 -k 16 --scales false
small on.vptq -v 4 -k 16
[ "$(digest off.vptq)" != "$(digest on.vptq)" ] || fail "--scales changes nothing"
run '"scales": false, "no_progress": false, "progress": false, "sequential": false'
quantize --config some.json -o file.vptq --save-config saved.json
[ "$(digest off.vptq)" = "$(digest file.vptq)" ] || fail "the file's false is another one"
expect_line saved.json '"scales": "false"'
expect_line saved.json '"no_progress": true'
! grep -q sequential saved.json || fail "false of a flag is saved"
quantize --config saved.json -o again.vptq
[ "$(digest off.vptq)" = "$(digest again.vptq)" ] || fail "the saved file is another run"
quantize --config some.json --scales true -o over.vptq
[ "$(digest on.vptq)" = "$(digest over.vptq)" ] || fail "the command line is ignored"
quantize --config some.json --progress -o over.vptq -f
expect_line err.txt 'quantize: [0-9]* matrices'
for on in true false; do
    run "\"scales\": false, \"progress\": $on"
    quantize --config some.json -o "p$on.vptq"
    grep -c 'quantize: [0-9]* matrices' err.txt >"$on.count" || true
done
[ "$(cat true.count)" != 0 ] || fail "no progress"
[ "$(cat false.count)" = 0 ] || fail "progress"
printf '{"model": "%s", "hessians": "hess", "method": "rtn", "group_size": 64, "fit_groups": true}' "$model" >fit.json
small fit --method rtn --group-size 64 --fit-groups true
quantize --config fit.json -o fit.file
expect_same fit/layer_000_down_proj.safetensors fit.file/layer_000_down_proj.safetensors

# Files that are none, and options that are none.
rm run.json
bad 1 "cannot open 'run.json'"
printf '{"model": "x"' >run.json
bad 1 "run.json"
printf '["model"]' >run.json
bad 1 'run.json: expected a JSON object of options'
printf '{"model": "x", "model": "y"}' >run.json
bad 1 "run.json: line 1, column 22: duplicate key 'model'"
printf '{"model": {"a": 1}}' >run.json
bad 1 "run.json: the value of 'model' is not a text, a number"
printf '{"calibration": [["a"]]}' >run.json
bad 1 "run.json: the value of 'calibration' is not a text, a number"
printf '{"centriods": 4}' >run.json
bad 2 "run.json: unknown option 'centriods'; did you mean 'centroids'?"
printf '{"vector-length": 4}' >run.json
bad 2 "run.json: unknown option 'vector-length'; did you mean 'vector_length'?"
printf '{"config": "run.json"}' >run.json
bad 2 "run.json: a file of options cannot have the option 'config'"
for value in true false; do
    printf '{"model": %s}' $value >run.json
    bad 2 "run.json: 'model' expects a value"
    printf '{"norm": %s}' $value >run.json
    bad 2 "run.json: 'norm' expects a value"
done
printf '{"sequential": "false"}' >run.json
bad 2 "run.json: 'sequential' expects true or false"
printf '{"sequential": 1}' >run.json
bad 2 "run.json: 'sequential' expects true or false"
printf '{"windows": "many", "model": null, "sequential": false}' >run.json
bad 2 'windows many: expected a whole number'
# Standard input, a pipe and a compressed file.
printf '{"config": "run.json"}' >bad.json
for file in - /dev/stdin; do
    expect_error 2 "a file of options cannot have the option 'config'" "$BIN/vptq-quantize" --config $file <bad.json
done
expect_line err.txt '^vptq-quantize: /dev/stdin: a file'
expect_error 2 '^vptq-quantize: standard input: a file of' "$BIN/vptq-quantize" --config - <bad.json
expect_error 2 '^vptq-quantize: standard input: a file of' "$BIN/vptq-quantize" --config - < <(gzip <bad.json)
expect_error 2 "a file of options cannot have the option 'config'" "$BIN/vptq-quantize" --config <(cat bad.json)
gzip bad.json
expect_error 2 "^vptq-quantize: bad.json.gz: a file of" "$BIN/vptq-quantize" --config bad.json.gz
expect_error 2 "\-\-recipe -: standard input is already read by --config" "$BIN/vptq-quantize" --config - --recipe - <<<'{}'
bad 2 'run.json: a second file of options' --config run.json
expect_exit 2 "$BIN/vptq-quantize" --config >out.txt 2>err.txt
expect_line err.txt "option '--config' needs a value"
