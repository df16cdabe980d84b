# Every wrong input is one sentence and the right status; nothing on stdout.
model=$(data models/stories260K-hf)
text=$(data text/tinystories/tiny.utf8)

# bad STATUS PATTERN COMMAND..: vptq-eval COMMAND
bad() { expect_error "$1" "$2" "$BIN/vptq-eval" "${@:3}"; }

bad 2 "unknown command 'pp'" pp
bad 2 "missing option: --text FILE or --tokens FILE" ppl -m "$model"
bad 2 "documents and --tokens exclude" ppl -m "$model" --documents x --text "$text" --tokens x
bad 2 "documents and --join exclude" ppl -m "$model" --documents x --text "$text" --join
bad 2 "exclude each other" ppl -m "$model" --documents x --text "$text" --rows
bad 2 "needs --documents" ppl -m "$model" --text "$text" --document-limit 3
bad 2 "dump and --tokens-only exclude" ppl -m "$model" --text "$text" --tokens-only --dump x
bad 2 "max-ppl and --tokens-only excl" ppl -m "$model" --text "$text" --tokens-only --max-ppl 9
bad 2 "takes no other --format" ppl -m "$model" --text "$text" --tokens-only --format json
bad 2 "\-\-rows needs --text" ppl -m "$model" --tokens x --rows
bad 2 "\-\-lossy needs --text" ppl -m "$model" --tokens x --lossy
for option in "--base $model" --partial; do
    for command in "ppl --text $text" "generate -p a" "serve --config 1,8,2"; do
        # shellcheck disable=SC2086 # several words
        bad 2 "${option%% *} is for work directories, and '$model' has no quantize.json" $command -m "$model" $option
    done
done
for command in "kld --base $model --text $text" "tasks --task a" "error --base $model"; do
    # shellcheck disable=SC2086 # several words
    bad 2 "partial is for work directories, and '$model' has no quantize.json" $command -m "$model" --partial
done
for option in "--top-p 0.5" "--seed 1"; do
    # shellcheck disable=SC2086 # two words
    bad 2 "${option% *} needs --temperature X above 0" generate -m "$model" -p a $option
done
bad 2 "\-\-rows needs --text" kld -m "$model" --base-file x --rows
bad 2 "\-\-lossy needs --text" kld -m "$model" --base "$model" --tokens x --lossy

# An output that is an input.
cp -r "$model" m
chmod -R u+w m
cp "$text" t.txt
echo '{"query": "a", "choices": ["b", "c"], "gold": 0}' >k.jsonl
bad 2 "the output 't.txt' is the input './t.txt'; give another file" ppl -q -m m --text ./t.txt --dump t.txt -f
bad 2 "the output 'k.jsonl' is the input 'k.jsonl'" tasks -q -m m --task n=k.jsonl --samples k.jsonl -f
bad 2 "the output 'm/model.safetensors' is a file of the model 'm'; give another file" \
    kld -q --base m --save-base m/model.safetensors --text t.txt -f
bad 2 "the output './m/tokenizer.json' is the input 'm/tokenizer.json'" ppl -q -m m --text t.txt --dump ./m/tokenizer.json -f
bad 2 "is a file of the model 'm'" tasks -q -m "$model" --base m --task n=k.jsonl --samples m/config.json -f
bad 2 "the output 't.txt' is the input 't.txt'" ablate -q -m m --text t.txt -c t.txt -o d --report t.txt -f
expect_same t.txt "$text"
expect_same m "$model"
head -c 2000 "$text" >m/short.txt
for _ in 1 2; do # other files in a model's directory may be replaced
    "$BIN/vptq-eval" ppl -q -m m --text m/short.txt --context 64 --dump m/losses -f >/dev/null
done
echo >taken
bad 1 "'taken' already exists" ppl -m "$model" --text "$text" --dump taken -q
bad 2 "unexpected argument 'x'" ppl -m "$model" --text "$text" x
bad 1 "no-such-text': No such file" ppl -m "$model" --text no-such-text -q
bad 1 "no-such-text': No such file" ppl -m "$model" --text no-such-text --documents x -q
echo 'One day.' >short
bad 1 "short: the text has [0-9]* tokens, one window needs 512" \
    ppl -m "$model" --text short -q
bad 1 "short: the text has [0-9]* tokens, one window needs 18446744073709551615" \
    ppl -m "$model" --text short --context 18446744073709551615 -q
bad 1 "short: none of 1 document has between 2 and 3 tokens" \
    ppl -m "$model" --text short --documents x --context 3 -q
bad 2 "empty" ppl -m "$model" --text short --documents '' -q
bad 2 "\-\-context 0: expected at least 2 tokens" ppl -m "$model" --text short --context 0 -q
bad 2 "\-\-context 0: expected at least 2 tokens" kld -m "$model" --base "$model" --text short --context 0 -q
bad 2 "context 1" ppl -m "$model" --text short --context 1 -q
bad 2 "stride 65 is longer than the context of 64" ppl -m "$model" --text "$text" --context 64 --stride 65 -q
bad 2 "stride 513 is longer than the context of 512" ppl -m "$model" --text "$text" --stride 513 -q
bad 2 "no stride" ppl -m "$model" --text "$text" --stride 8 --protocol llama.cpp -q
bad 2 "windows" ppl -m "$model" --text "$text" --documents x --windows 8 -q
printf 'abc' >odd.i32
bad 1 "odd.i32: 3 bytes" ppl -m "$model" --tokens odd.i32 -q
printf '\000\002\000\000' >outside.i32
bad 1 "outside.i32: token 0 has the id 512" ppl -m "$model" --tokens outside.i32 -q
bad 1 "--mem (200.0 KiB) is too small" ppl -m "$model" --text "$text" --mem 200K -q
bad 1 "tokenizer" generate -m "$SRC/tests/golden/tiny_qwen2" -p x -q
foreign=(-m "$SRC/tests/fuzz/corpus/gguf/llama" --tokenizer "$model/tokenizer.json" -q)
other="tokenizer.json: the tokenizer has 512 tokens, the model's vocabulary 16 entries; it belongs to another model"
bad 1 "$other" generate "${foreign[@]}" -p Once
bad 1 "$other" ppl "${foreign[@]}" --text "$text" --context 16
bad 2 "temperature" generate -m "$model" -p x --temperature=-1 -q
bad 2 "top-p" generate -m "$model" -p x --top-p 1.5 -q
bad 1 "no-such-model" error -m "$model" --base no-such-model -q
bad 1 "no-such-dir" error -m "$(data golden/vptq_model_stories260K)" --base "$model" \
    -H no-such-dir -q

# A weight that is not a number: the output is not either, and the window is named.
mkdir nan
cp "$model"/config.json "$model"/model.safetensors nan/
chmod u+w nan/*
size=$(od -An -tu8 -N8 nan/model.safetensors | tr -d ' ')
offset=$(head -c $((8 + size)) nan/model.safetensors | tail -c "$size" |
    sed -E 's/.*"model.norm.weight":\{[^}]*"data_offsets":\[([0-9]+),.*/\1/')
printf '\000\176' | dd of=nan/model.safetensors bs=1 seek=$((8 + size + offset)) conv=notrunc \
    2>dd.log
seq 3 66 | while read -r id; do
    printf '%b' "$(printf '\\x%02x\\x00\\x00\\x00' "$id")"
done >ids.i32
bad 1 "not finite in window 0" ppl -m nan --tokens ids.i32 --context 32 -q
