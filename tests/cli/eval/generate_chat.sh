# Chats: the model's template in each of its forms, the messages, and the end of a reply.
hf=$(data models/stories260K-hf)
text=$(data text/tinystories/tiny.utf8)
mkdir src
cp "$hf"/{config.json,generation_config.json,model.safetensors,tokenizer.json,tokenizer_config.json} src
# shellcheck disable=SC2016 # Jinja
cat > src/chat_template.jinja <<'EOF'
{{ bos_token }}{% for m in messages %}
{{ m.role.title() }}: {{ m.content }}{{ eos_token if m.role == 'assistant' }}
{% endfor %}
{% if add_generation_prompt %}
Once upon a time{{ ', ' ~ name if name }}
{%- endif %}
EOF
# ids FILE: the ids of a dry run's object, separated by spaces
ids() { sed -n 's/.*"ids": \[\([^]]*\)\].*/\1/p' "$1" | tr -d ','; }
run() { "$BIN/vptq-eval" generate -q -m "$@"; }
# show MODEL ARGUMENT..: text and ids of a dry run, without the estimate, in which the time varies
show()
{
    run "$@" --chat --dry-run > shown.txt
    sed '/^about .* s, .* of memory$/d' shown.txt
}

printf '<s>System: Be kind.\nUser: Tell me.\nOnce upon a time\n' > want.txt
show src -p 'Tell me.' --system 'Be kind.' > out.txt
head -n 3 out.txt > prompt.txt
expect_same prompt.txt want.txt
expect_line out.txt '^[0-9]* tokens: 1 [0-9 ]*$'
show src -p 'Tell me.' --system 'Be kind.' --format json > out.json
[ "$(json_get prompt out.json)" = '<s>System: Be kind.\nUser: Tell me.\nOnce upon a time' ] || fail "$(cat out.json)"
expect_number "$(ids out.json | wc -w)" == "$(json_get prompt_tokens out.json)"

# The same prompt from a file and from stdin, without its final newline.
echo 'Tell me.' > q.txt
show src --prompt-file q.txt --system 'Be kind.' > file.txt
show src -p - --system 'Be kind.' < q.txt > stdin.txt
expect_same out.txt file.txt
expect_same out.txt stdin.txt

# Messages of a file come first; arguments and another template.
echo '[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]' > talk.json
show src --messages talk.json -p c --template-arg 'name="Tom"' > talk.txt
printf '<s>User: a\nAssistant: b</s>\nUser: c\nOnce upon a time, Tom\n' > want.txt
head -n 4 talk.txt > prompt.txt
expect_same prompt.txt want.txt
# shellcheck disable=SC2016
echo '{{ strftime_now("%d %B %Y") }}' > date.jinja
show src --chat-template date.jinja -p x --date 2026-02-03 | head -n 1 > date.txt
[ "$(cat date.txt)" = '03 February 2026' ] || fail "$(cat date.txt)"

# Every form of the model has the template.
"$BIN/vptq-hessian" -q -m src -c "$text" -n 2 -l 64 -o h > /dev/null
"$BIN/vptq-quantize" -q -m src -H h -o work -v 4 -k 16 -r 0 --layers 1-1 > /dev/null
"$BIN/vptq-pack" -q work -o packed > /dev/null
"$BIN/vptq-pack" -q packed -o packed.vptq > /dev/null
"$BIN/vptq-pack" -q --unpack src -o model.gguf > /dev/null
for model in work packed packed.vptq model.gguf; do
    show "$model" -p 'Tell me.' --system 'Be kind.' > form.txt
    expect_same out.txt form.txt "for $model"
done

# Only the reply is printed, and the reason of its end.
run src --chat -p 'Tell me.' -n 8 > reply.txt
run src --chat -p 'Tell me.' -n 8 --format json > reply.json
[ "$(json_get text reply.json)" = "$(cat reply.txt)" ] || fail "$(cat reply.json)"
[ "$(json_get stop_reason reply.json)" = length ] || fail "$(cat reply.json)"
[ "$(json_get new_tokens reply.json)" = 8 ] || fail "$(cat reply.json)"

# Ends: tokens of generation_config.json and of a text, a string across tokens, the context.
run src -p 'Once upon a' -n 8 --format json > raw.json
[ "$(json_get text raw.json)" = ' time, there was a little gir' ] || fail "$(cat raw.json)"
"$BIN/vptq-eval" generate -q -m src -p 'Once upon a time' --dry-run --format json > ids.json
ids ids.json | awk '{ printf "{\"eos_token_id\": [2, %d]}\n", $NF }' > src/generation_config.json
run src -p 'Once upon a' -n 8 --format json > end.json
[ "$(json_get stop_reason end.json) $(json_get new_tokens end.json)" = 'end_of_text 1' ] || fail "$(cat end.json)"
run src -p 'Once upon a' -n 8 --ignore-eos --stop 'no such' --stop 's a litt' --format json > stop.json
[ "$(json_get text stop.json)" = ' time, there wa' ] || fail "$(cat stop.json)"
[ "$(json_get stop_reason stop.json)" = stop ] || fail "$(cat stop.json)"
run src -p 'Once upon a' -n 4 --ignore-eos --stop 'there was nothing' --format json > held.json
[ "$(json_get text held.json)" = ' time, there was' ] || fail "what was held back is lost: $(cat held.json)"
run src -p 'Once upon a' -n 0 --ignore-eos --format json > all.json
[ "$(json_get tokens all.json) $(json_get stop_reason all.json)" = '512 length' ] || fail "$(cat all.json)"

# bad STATUS TEXT ARGUMENT..: exit status, and one sentence with the text.
bad() { expect_error "$1" "$2" "$BIN/vptq-eval" generate -q "${@:3}"; }
bad 2 '\-\-system needs --chat' -m src -p x --system y
bad 2 '\-\-chat needs --prompt' -m src --chat
bad 2 'exclude each other' -m src -p x --prompt-file q.txt
bad 2 'a stop string is empty' -m src -p x --stop ''
bad 2 "'today' is not a date" -m src --chat -p x --date today
bad 1 'has no chat template; pass --chat-template FILE' -m "$hf" --chat -p x
bad 1 'nowhere.jinja' -m src --chat -p x --chat-template nowhere.jinja
echo "{{ raise_exception('only system messages') }}" > no.jinja
bad 1 'no.jinja: line 1: the template refuses: only system messages' -m src --chat -p x --chat-template no.jinja
head -c 4000 "$text" > long.txt
bad 2 "the prompt has [0-9]* tokens and fills the model's context of 512" -m src --prompt-file long.txt
bad 2 "the prompt has [0-9]* tokens and fills the model's context of 512" -m src --prompt-file long.txt --dry-run

# A dry run works within the memory that the text needs, where measuring a batch does not fit.
tight() { run "$hf" -p 'Once upon a time' -n 64 -t 1 "$@"; }
tight --dry-run --format json > out.json
memory=$(json_get peak_memory_bytes out.json)
expect_number "$(json_get estimated_seconds out.json)" '>' 0
tight --mem $((memory * 21 / 20)) > out.txt
expect_exit 1 tight --mem $((memory * 9 / 10)) > out.txt 2> err.txt
expect_line err.txt 'is too small'
tight --mem $((memory * 21 / 20)) --dry-run > out.txt
expect_line out.txt '^time not estimated, .* of memory$'

# An interrupted text ends with a newline, and status 130.
"$BIN/vptq-eval" generate -q -m src --backend ref -p 'Once upon' -n 60000 --ignore-eos > cut.txt 2> err.txt &
pid=$!
begun() { [ "$(wc -c < cut.txt)" -gt 60 ]; }
wait_for 30 begun
interrupt "$pid"
expect_line cut.txt '^Once upon a time, there was'
[ -z "$(tail -c 1 cut.txt)" ] || fail "the text has no end of line"
