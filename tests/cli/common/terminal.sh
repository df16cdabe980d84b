# Texts of files and command lines reach the terminal without control characters, bidirectional overrides
# or invalid UTF-8: errors, warnings, lists, tables and generated text.  A newline in a name forges no line.
hf=$(data models/stories260K-hf)
packed=$(data golden/vptq_model_stories260K)
items=$SRC/tests/golden/tasks
# The same characters as bytes and in JSON: ESC BEL DEL, C1, an override, a separator, and a forged line.
bad=$'x\e[2J\a\x7f\xc2\x9b31m\xe2\x80\xae\xe2\x80\xa8\xe2\x81\xa6\rnew\nforged: line'
json='x\u001b[2J\u0007\u007f\u009b31m\u202e\u2028\u2066\rnew\nforged: line'

# is_clean FILE: no control character but newlines and tabs
is_clean()
{
    ! LC_ALL=C grep -aqP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]|\xe2\x81[\xa6-\xa9]' "$1" &&
        iconv -f UTF-8 -t UTF-8 "$1" > /dev/null 2>&1
}
# clean STATUS NAME COMMAND..: what is printed is clean, shows the escapes, and no line is forged
clean()
{
    local status=$1 name=$2
    shift 2
    expect_exit "$status" "$@" > out.txt 2> err.txt
    cat out.txt err.txt > all.txt
    is_clean all.txt || fail "$name: raw characters: $(cat -v all.txt)"
    expect_line all.txt 'x\\\(x1b\|u001b\)\[2J'
    ! grep -q '^forged' all.txt || fail "$name: a forged line: $(cat all.txt)"
}
# sentence STATUS NAME COMMAND..: the same, and stderr is one line
sentence()
{
    clean "$@"
    [ "$(wc -l < err.txt)" -eq 1 ] || fail "$2: not one sentence: $(cat err.txt)"
}
# model [FROM]: a fresh model in ./m
model()
{
    rm -rf m
    cp -r "${1:-$hf}" m
    chmod -R u+w m
}
# with FILE OLD NEW: a fresh model in which the first OLD of a file is NEW
with()
{
    model
    OLD=$2 NEW=$3 perl -0pi -e 's/\Q$ENV{OLD}\E/$ENV{NEW}/' "m/$1"
    ! cmp -s "m/$1" "$hf/$1" || fail "no $2 in $1"
}
# safetensors HEADER [DATA]: the weights of ./m
safetensors()
{
    local n
    n=$(printf '%s' "$1" | wc -c)
    # shellcheck disable=SC2059 # octal bytes
    { printf "\\$(printf %03o $((n & 255)))\\$(printf %03o $((n >> 8)))\0\0\0\0\0\0"
        printf '%s' "$1"; printf "${2:-}"; } > m/model.safetensors
}
list() { "$BIN/vptq-pack" --list m; }
show() { "$BIN/vptq-eval" generate -q -m m --dry-run "$@"; }

# Settings of the model.
with config.json '"llama"' "\"$json\""
sentence 1 'model type' list
with config.json 'LlamaForCausalLM"' "$json\""
sed -i 's/"llama"/"other"/' m/config.json
sentence 1 architecture list
with config.json '"silu"' "\"$json\""
sentence 1 activation list
with config.json '"rope_scaling": null' "\"rope_scaling\": {\"rope_type\": \"$json\", \"factor\": 2}"
sentence 1 'rope type' list
model "$packed"
sed -i "s/\"model.layers.0.mlp.down_proj\"/\"$(printf %s "$json" | sed 's/\\/\\\\/g')\"/" m/config.json
clean 3 'packed layer' "$BIN/vptq-pack" --check m

# Weights.
model
safetensors "{\"a\":{\"dtype\":\"$json\",\"shape\":[1],\"data_offsets\":[0,2]}}" 'ab'
sentence 1 dtype list
safetensors "{\"$json\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,4]}}" 'abcd'
sentence 1 'tensor name' list
safetensors "{\"__metadata__\":{\"$json\":1},\"a\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]}}" 'ab'
sentence 1 'metadata key' list
rm m/model.safetensors
printf '{"weight_map": {"a": "%s"}}' "$json" > m/model.safetensors.index.json
sentence 1 'shard name' list
printf '{"weight_map": {"%s": 1}}' "$json" > m/model.safetensors.index.json
sentence 1 'tensor of the index' list

# GGUF: version 3, no tensors, one key of type string.
# gguf KEY VALUE
gguf()
{
    local part n
    printf 'GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0'
    for part in "$1" "$2"; do
        n=$(printf %s "$part" | wc -c)
        [ "$part" != "$2" ] || printf '\10\0\0\0'
        # shellcheck disable=SC2059 # an octal byte
        printf "\\$(printf %03o "$n")\0\0\0\0\0\0\0"
        printf %s "$part"
    done
}
gguf general.architecture "$bad" > m.gguf
sentence 1 'gguf architecture' "$BIN/vptq-pack" --list m.gguf
gguf $'x\xe2\x80\xae' a > m.gguf
expect_exit 1 "$BIN/vptq-pack" --list m.gguf > all.txt 2>&1
is_clean all.txt || fail "gguf key: $(cat -v all.txt)"

# Tokenizers.
with tokenizer.json '"Prepend"' "\"$json\""
sentence 1 normalizer show
with tokenizer.json '"pre_tokenizer": null' "\"pre_tokenizer\": {\"type\": \"$json\"}"
sentence 1 pre-tokenizer show
with tokenizer.json '"pre_tokenizer": null' \
    "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"($json\"}, \"behavior\": \"Isolated\", \"invert\": false}"
clean 1 'regular expression' show
with tokenizer.json '"BPE"' "\"$json\""
sentence 1 'tokenizer model' show
with tokenizer.json '"vocab": {' "\"vocab\": { \"$json\": 0,"
sentence 1 piece show
with tokenizer.json '"id": "<s>"' "\"id\": \"$json\""
sentence 1 'token of the template' show

# Templates.
model
# template TEXT
template()
{
    printf '%s' "$1" > m/chat_template.jinja
    sentence 1 "template $1" show --chat -p "$bad"
}
template "{{ raise_exception('$bad') }}"
template "{{ raise_exception(messages) }}"
template "{{ messages[0]['$bad'].x }}"
sentence 2 'template argument' show --chat -p a --template-arg "$bad"
sentence 2 'template date' show --chat -p a --date "$bad"

# Recipes, tasks, records, rows of an ablation.
printf '{"rules": [{"match": "%s", "settings": {"centroids": 32}}]}' "$json" > r.json
plan() { "$BIN/vptq-quantize" -m "$hf" --dry-run --recipe r.json; }
clean 1 'recipe pattern' plan
printf '{"rules": [{"match": "*", "settings": {"%s": 32}}]}' "$json" > r.json
sentence 1 'recipe key' plan
tasks() { "$BIN/vptq-eval" tasks -q -m "$hf" "$@"; }
for format in text json csv md; do
    expect_exit 0 tasks --task "$bad=$items/choices.jsonl" --limit 1 --format $format > all.txt 2>&1
    is_clean all.txt || fail "task name in $format: $(cat -v all.txt)"
done
clean 0 'task name, plan' tasks --task "$bad=$items/choices.jsonl" --limit 1 --dry-run
clean 3 'task below its minimum' tasks --task "$bad=$items/choices.jsonl" --limit 1 --min-acc 2
printf '{"%s": 1}\n' "$json" > t.jsonl
expect_exit 1 tasks --task t=t.jsonl > all.txt 2>&1
is_clean all.txt || fail "task record: $(cat -v all.txt)"
head -n 3 "$(data golden/serving/records.jsonl)" | sed 's/"\(group\|group_name\|model\)": "[^"]*"/"\1": "x\\u202e\\u2028\\u009b"/' > records.jsonl
for format in json csv md html; do
    for layout in "" --layout=classic; do
        [ -z "$layout" ] || [ $format = md ] || continue
        "$BIN/vptq-eval" compare records.jsonl $layout --format $format > all.txt 2>&1 || fail "$(cat all.txt)"
        is_clean all.txt || fail "record in $format $layout: $(head -c 900 all.txt | cat -v)"
    done
done
printf '[{"name": "a", "settings": {"%s": 0}}]' "$json" > rows.json
ablate() { "$BIN/vptq-eval" ablate -q -m "$hf" --text "$items/choices.jsonl" --dry-run "$@"; }
clean 1 'row of an ablation' ablate --table rows.json

# Names of files and words of the command line.
sentence 1 'model of vptq-hessian' "$BIN/vptq-hessian" -m "$bad" -c text -o out
sentence 1 'text of vptq-hessian' "$BIN/vptq-hessian" -q -m "$hf" -c "$bad" -o out
sentence 1 'model of vptq-quantize' "$BIN/vptq-quantize" -m "$bad" -H h -o out
clean 1 'Hessians of vptq-quantize' "$BIN/vptq-quantize" -m "$hf" -H "$bad" -o out
sentence 1 'model of vptq-pack' "$BIN/vptq-pack" -m "$bad" -o out
sentence 1 'bytes that are not UTF-8' "$BIN/vptq-pack" --list $'x\e[2J\xff\xc3'
expect_line err.txt '\[2J\\xff\\xc3'
sentence 1 'name of a prompt file' "$BIN/vptq-eval" generate -q -m "$hf" --prompt-file "$bad"
cp -r "$hf" "$bad"
clean 0 'file name in a list' "$BIN/vptq-pack" --list "$bad"
clean 0 'file name in a list as JSON' "$BIN/vptq-pack" --list "$bad" --format json
clean 0 'file name of an output' "$BIN/vptq-pack" "$packed" -o "$bad-out"
clean 0 'file name in findings' "$BIN/vptq-pack" --check "$bad"
clean 1 'progress' "$BIN/vptq-pack" --progress -v --unpack "$bad" -o "$bad-out"
clean 2 'unknown command' "$BIN/vptq-eval" "$bad"
clean 2 'unknown option' "$BIN/vptq-pack" "--$bad"
clean 2 'bad value' "$BIN/vptq-pack" --threads "$bad"
clean 2 'unexpected argument' "$BIN/vptq-hessian" "$bad"
clean 1 'backend' "$BIN/vptq-eval" generate -m "$hf" --backend "$bad"
clean 0 'version' "$BIN/vptq-pack" --version --verbose --backend "$bad"
clean 0 'default in help' "$BIN/vptq-pack" --help --backend "$bad"

# Generated text: bytes as they are in a pipe, escaped on a terminal, as they are there with --raw.
generate() { "$BIN/vptq-eval" generate -q -m "$hf" --temperature 50 --seed 3 -n 300 --ignore-eos "$@"; }
generate -p "$bad" > pipe.txt
! is_clean pipe.txt || fail "the text of this seed has no control characters"
grep -aq -F "$(printf '%s' "$bad" | head -n 1)" pipe.txt || fail "the prompt is not as it was given"
command -v script > /dev/null || skip "needs script of util-linux for a terminal"
printf '%s' "$bad" > prompt.txt
# terminal [OPTION..]: stdout of generate is a terminal; its output goes to tty.txt
terminal()
{
    script -qec "'$BIN/vptq-eval' generate -q -m '$hf' --temperature 50 --seed 3 -n 300 --ignore-eos \
        --prompt-file prompt.txt $* 2> err.txt" /dev/null < /dev/null | tr -d '\r' > tty.txt
    [ ! -s err.txt ] || fail "$(cat err.txt)"
}
terminal
is_clean tty.txt || fail "raw characters on a terminal: $(cat -v tty.txt)"
[ "$(head -n 1 tty.txt)" = 'x\x1b[2J\x07\x7f\u009b31m\u202e\u2028\u2066\rnew' ] || fail "$(head -n 2 tty.txt)"
terminal --raw
expect_same tty.txt <(tr -d '\r' < pipe.txt)
terminal --dry-run
is_clean tty.txt || fail "the prompt of a dry run: $(cat -v tty.txt)"
terminal --format json
is_clean tty.txt || fail "JSON: $(cat -v tty.txt)"
