# From a model to a packed one by one command: built-in text, model card, work directory.
model=$(data models/stories260K-hf)
convert() { "$BIN/vptq-quantize" -q -m "$model" -b 3 -n 4 -l 64 "$@" >out.txt; }
quick=(--allocate proxy) # without measuring every matrix, where the result does not matter
mkdir named
cp "$model"/config.json "$model"/model.safetensors "$model"/tokenizer.json named
printf -- '---\nlicense: apache-2.0\nlanguage: en\n---\n# Stories\n' >named/README.md

convert -o a/one.vptq
[ "$(ls a)" = one.vptq ] || fail "$(ls a)"
expect_line out.txt '^35 matrices, 2\.9'
"$BIN/vptq-eval" ppl -q -m a/one.vptq --text "$(data text/tinystories/tiny.utf8)" --windows 4 --format json >ppl.json
expect_number "$(json_get ppl ppl.json)" '<' 60
"$BIN/vptq-pack" -q a/one.vptq -o plain >out.txt 2>err.txt
[ ! -s err.txt ] || fail "$(cat err.txt)"
expect_line plain/README.md '^base_model: "stories260K-hf"$'
expect_line plain/README.md '^| license of the original | not found next to its weights'
expect_line plain/README.md '^| calibration | up to 4 windows of the built-in text, layer after layer |$'
expect_line plain/README.md "^    vptq-quantize -q -m $model -b 3 -n 4 -l 64 -o a/one.vptq\$"
digest=$("$BIN/vptq-pack" -q --digest a/one.vptq | cut -d ' ' -f 1)
grep -q "digest | .$digest" plain/README.md || fail "$digest: $(cat plain/README.md)"

# Report and card have the digest of the file that is written: a card with another one is not copied.
convert "${quick[@]}" -o q8.vptq --embeddings q8
expect_line out.txt "^digest $("$BIN/vptq-pack" -q --digest q8.vptq)\$"
"$BIN/vptq-pack" -q q8.vptq -o same.vptq >out.txt 2>err.txt
[ ! -s err.txt ] || fail "$(cat err.txt)"
"$BIN/vptq-pack" -q q8.vptq -o q8 >out.txt 2>err.txt # decoded
expect_line err.txt "warning: q8.vptq: README.md is not copied: it has the digest of another form of the model"
[ ! -e q8/README.md ] || fail "a card with another digest: $(cat q8/README.md)"
for arguments in "--dtype bf16" "--embeddings q8 --to archive" "--unpack" "--unpack --dtype f32"; do
    for input in a/one.vptq plain; do
        rm -rf other
        # shellcheck disable=SC2086 # several words
        "$BIN/vptq-pack" -q "$input" $arguments -o other >out.txt 2>err.txt
        expect_line err.txt "warning: $input: README.md is not copied: it has the digest of another form of the model"
        [ -f other ] || [ ! -e other/README.md ] || fail "$input $arguments: $(cat other/README.md)"
    done
done
"$BIN/vptq-pack" -q a/one.vptq --dtype f16 -o f16 >out.txt # its own type
expect_same plain/README.md f16/README.md

# With a text to measure, report and card have the figures of vptq-eval, of exactly the weights that are written.
tiny=$(data text/tinystories/tiny.utf8)
for form in "m.vptq --embeddings q8" "m --to hf"; do
    # shellcheck disable=SC2086 # several words
    convert "${quick[@]}" --measure "$tiny" --measure-windows 4 --format json -o $form
    "$BIN/vptq-eval" kld -q -m "${form%% *}" --base "$model" --text "$tiny" --windows 4 --format json >kld.json
    grep '"mean_kld"' out.txt >measured.json
    for key in ppl ppl_base mean_kld tokens windows context; do
        [ "$(json_get "$key" measured.json)" = "$(json_get "$key" kld.json)" ] || fail "$key: $(cat measured.json kld.json)"
    done
done
expect_line m/README.md "$(printf '^| perplexity | %.4f, of the original %.4f, on tiny.utf8 (4 windows of 512 tokens) |$' \
    "$(json_get ppl kld.json)" "$(json_get ppl_base kld.json)")"
"$BIN/vptq-quantize" -m "$model" -b 3 -n 4 -l 64 "${quick[@]}" -o i.vptq --measure "$tiny" --measure-windows 0 --progress \
    >/dev/null 2>err.txt &
pid=$!
wait_for 60 grep -q 'divergence .*windows' err.txt
interrupt "$pid"
expect_line err.txt '^vptq-quantize: interrupted; run the same command to continue$'
[ ! -e i.vptq.work/measured.vptq ] || fail "a copy of the model is left"
"$BIN/vptq-quantize" -m "$model" -b 3 -n 4 -l 64 "${quick[@]}" -o i.vptq --measure "$tiny" --measure-windows 4 >out.txt 2>err.txt
expect_line out.txt '^35 matrices (35 kept), '
expect_line out.txt '^perplexity [0-9.]*, of the original [0-9.]*; divergence [0-9.]* nats per token$'
[ "$(sort err.txt | uniq -d)" = "" ] || fail "says things twice: $(cat err.txt)"
# Another run that changes the matrices meanwhile is noticed, and a copy that a killed one left does not stay.
"$BIN/vptq-quantize" -m "$model" -b 3 -n 4 -l 64 "${quick[@]}" -o s.vptq --measure "$tiny" --measure-windows 200 --progress \
    >/dev/null 2>err.txt &
pid=$!
wait_for 60 grep -q 'divergence .*windows' err.txt
kill -STOP "$pid"
[ -e s.vptq.work/measured.vptq ] || fail "the copy is elsewhere"
"$BIN/vptq-quantize" -q -m "$model" -b 4 -n 4 -l 64 "${quick[@]}" -o s.vptq -f --keep-work >out.txt
[ ! -e s.vptq.work/measured.vptq ] || fail "a copy of the model is left"
cp s.vptq want.vptq
kill -CONT "$pid"
expect_exit 1 wait "$pid"
expect_line err.txt "another run changed 's.vptq.work' while this one measured; nothing is packed"
expect_same want.vptq s.vptq
rm -r s.vptq s.vptq.work
expect_line m/README.md "$(printf '^| divergence from the original | %.6f nats per token |$' "$(json_get mean_kld kld.json)")"

# An output that exists is not touched, and no work is done; --force replaces it.
cp a/one.vptq before
for plan in "" --dry-run; do
    # shellcheck disable=SC2086 # nothing or a word
    expect_error 1 "vptq-quantize: 'a/one.vptq' already exists (--force replaces it)" \
        "$BIN/vptq-quantize" -q -m "$model" -b 3 -n 4 -l 64 -o a/one.vptq $plan
    # shellcheck disable=SC2086
    expect_error 1 "vptq-quantize: directory 'plain' already exists (--force replaces it)" \
        "$BIN/vptq-quantize" -q -m "$model" -b 3 -n 4 -l 64 --to hf -o plain $plan
done
convert -o a/one.vptq --force --dry-run
convert --to hf -o plain --force --dry-run
[ "$(ls a)" = one.vptq ] || fail "$(ls a)"
expect_same before a/one.vptq
convert "${quick[@]}" -o a/one.vptq --force

# What cannot be written is an error before any work.
mkdir x.vptq
mkdir -p deep/inner/most
for plan in "" --dry-run; do
    # shellcheck disable=SC2086
    expect_error 1 "cannot replace 'x.vptq': is a directory" "$BIN/vptq-quantize" -q -m "$model" -b 3 -f -o x.vptq $plan
    # shellcheck disable=SC2086
    expect_error 1 "cannot replace directory 'deep': it holds 'inner' and no config.json" \
        "$BIN/vptq-quantize" -q -m "$model" -b 3 -f --to hf -o deep $plan
done
[ -d deep/inner/most ] || fail "somebody's files are gone"
expect_error 2 "named" "$BIN/vptq-quantize" -q -m named -b 3 -f --to hf -o named
expect_error 2 "the name of the output is empty" "$BIN/vptq-quantize" -q -m named -b 3 --to hf -o ''
expect_error 2 "a/: an archive is a file; --to hf writes a directory" \
    "$BIN/vptq-quantize" -q -m named -b 3 --to archive -o a/
expect_error 2 "--layers needs a work directory" "$BIN/vptq-quantize" -m named -b 3 -o y.vptq --layers 0-0
expect_error 2 "--keep-work needs a packed model" "$BIN/vptq-quantize" -m named -b 3 -o y --keep-work
expect_error 2 "--measure needs a packed model" "$BIN/vptq-quantize" -m named -b 3 -o y --measure builtin
expect_error 2 "--measure-windows needs --measure TEXT" "$BIN/vptq-quantize" -m named -b 3 -o y.vptq --measure-windows 3
for plan in "" --dry-run; do
    # shellcheck disable=SC2086 # nothing or a word
    expect_error 1 "cannot open 'missing.txt'" "$BIN/vptq-quantize" -q -m "$model" -b 3 -o y.vptq --measure missing.txt $plan
done
expect_error 2 "'y.gguf': a GGUF file is written from the result: -o OUT.vptq, then vptq-pack --unpack OUT.vptq -o y.gguf" \
    "$BIN/vptq-quantize" -m named -b 3 -o y.gguf
expect_error 2 "'y.gguf': .* -o WORK2, then vptq-pack --unpack WORK2 -o y.gguf" \
    "$BIN/vptq-quantize" --from w --tune e2e -c builtin -o y.gguf
[ ! -e y.gguf ] || fail "a directory y.gguf"
expect_error 2 "--from writes a work directory" \
    "$BIN/vptq-quantize" --from w --tune e2e -c builtin -o y.vptq
for work in *.work .work; do [ ! -e "$work" ] || fail "$work"; done

# What cannot be packed is an error before anything is quantized, and of a plan, too.
"$BIN/vptq-hessian" -q -m "$model" -c "$(data text/tinystories/tiny.utf8)" -n 8 -l 128 -o h >out.txt
printf 'caf\xe9 %.0s' {1..400} >latin1.txt
"$BIN/vptq-quantize" -q -m "$model" -H h -v 4 -k 16 -o latin1.vptq --measure latin1.txt --lossy >out.txt
expect_line out.txt '^perplexity '
rule() { echo "{\"rules\": [{\"match\": \"v_proj\", \"settings\": {\"method\": \"$1\"}}]}"; }
rule gptq >gptq.json
rule aqlm >aqlm.json
echo '{}' >tok.json
refused() { # STATUS MESSAGE OPTION..
    local status=$1 message=$2
    shift 2
    expect_error "$status" "$message" "$BIN/vptq-quantize" -q -m "$model" -H h "$@"
    expect_error "$status" "$message" "$BIN/vptq-quantize" -q -m "$model" -H h --dry-run "$@"
    for left in *.work z z.vptq; do [ ! -e "$left" ] || fail "$left"; done
}
for method in gptvq "aqlm -v 4" db-llm; do
    # shellcheck disable=SC2086
    refused 2 "35 matrices have additive codes, which no layout of directories holds; write an archive" \
        --method $method --to hf -o z
done
refused 2 "--embeddings: the published layout has one type for all numbers" -v 4 -k 16 --to hf --embeddings q8 -o z
refused 2 "30 matrices are quantized by method vptq and 5 by others: no packed layout holds both" \
    -v 4 -k 16 --recipe gptq.json -o z.vptq
refused 2 "30 matrices have uniform and 5 additive codes: no packed layout holds both" \
    --method rtn --group-size 4 --recipe aqlm.json -o z.vptq
refused 1 "tok.json: model is not an object" -v 4 -k 16 --tokenizer tok.json -o z.vptq
"$BIN/vptq-quantize" -m "$model" -H h -v 4 -k 16 --recipe gptq.json -o mixed >out.txt 2>err.txt
expect_line err.txt "warning: .*: 30 matrices are quantized by method vptq and 5 by others: no packed layout holds both"
"$BIN/vptq-quantize" -q -m "$model" -H h --method db-llm --dry-run --to archive >out.txt
expect_line out.txt '^35 matrices'

# A plan does not measure, and says so.
"$BIN/vptq-quantize" -m "$model" -b 3 -o y.vptq --dry-run >out.txt 2>err.txt
expect_line err.txt 'the run itself will choose by --allocate kl'
[ ! -e y.vptq ] || fail "a plan wrote something"

# With what an interrupted run left, the same command continues.
convert -o b.vptq --keep-work
[ -e b.vptq.work/report.jsonl ] || fail "no work directory"
rm b.vptq b.vptq.work/report.jsonl b.vptq.work/layer_004_*
"$BIN/vptq-quantize" -m "$model" -b 3 -n 4 -l 64 -o b.vptq --format json >rows.json 2>err.txt
[ ! -e b.vptq.work ] || fail "the work directory is still there"
[ "$("$BIN/vptq-pack" -q --digest b.vptq | cut -d ' ' -f 1)" = "$digest" ] || fail "another result"

# Files of the user in the work directory stay, and so does the directory.
convert "${quick[@]}" -o b.vptq -f --keep-work
echo notes >b.vptq.work/notes.txt
mkdir b.vptq.work/untuned
echo more >b.vptq.work/untuned/more.txt
: >b.vptq.work/layer_004_o.safetensors.tmp.0123456789abcdef
kept() { expect_line err.txt "warning: '$1' is kept: it holds '$2'"; }
"$BIN/vptq-quantize" -m "$model" -b 3 -n 4 -l 64 "${quick[@]}" -o b.vptq -f >out.txt 2>err.txt
kept b.vptq.work/untuned more.txt
kept b.vptq.work untuned
[ "$(ls b.vptq.work)" = $'notes.txt\nuntuned' ] || fail "$(ls b.vptq.work)"
[ "$(cat b.vptq.work/notes.txt b.vptq.work/untuned/more.txt)" = $'notes\nmore' ] || fail "the user's files changed"
rm -r b.vptq.work

# The same after a kill at any moment.  A run that was faster may have been about to remove its work directory.
for seconds in 0.2 0.6 1.2; do
    [ -e "it's.vptq" ] || timeout -s KILL "$seconds" "$BIN/vptq-quantize" -q -m "$model" -b 3 -n 4 -l 64 -o "it's.vptq" >out.txt 2>err.txt || true
done
if [ -e "it's.vptq" ]; then rm -rf "it's.vptq.work"; else convert -o "it's.vptq"; fi
[ ! -e "it's.vptq.work" ] || fail "the work directory is still there"
[ "$("$BIN/vptq-pack" -q --digest "it's.vptq" | cut -d ' ' -f 1)" = "$digest" ] || fail "another result"
"$BIN/vptq-pack" -q "it's.vptq" -o its >out.txt
expect_line its/README.md "^    vptq-quantize -q -m $model -b 3 -n 4 -l 64 -o 'it'.''s.vptq'\$"

# A packed directory, the license of the original, and a text of one's own.
head -c 9000 "$(data text/tinystories/tiny.utf8)" >"my text"
"$BIN/vptq-quantize" -q -m named -b 3 "${quick[@]}" -c "my text" -n 1 -l 64 --to hf -o packed >out.txt
expect_line packed/README.md '^license: apache-2.0$'
expect_line packed/README.md '^| calibration | up to 1 window of my text |$'
expect_line packed/README.md "^    vptq-quantize -q -m named -b 3 ${quick[*]} -c 'my text' -n 1 -l 64 --to hf -o packed\$"
"$BIN/vptq-pack" -q --check packed >out.txt

# A license by its file alone.
rm named/README.md
echo "Do as you like." >named/LICENSE
"$BIN/vptq-quantize" -q -m named "${quick[@]}" -b 3 -n 4 -l 64 --to hf -o licensed >out.txt
expect_line licensed/README.md '^| license of the original | see LICENSE |$'

# Names and licenses: a snapshot in a cache, a long page with other line ends.
snapshot=hub/models--some--stories/snapshots/0123abc
mkdir -p "$snapshot"
cp named/config.json named/model.safetensors named/tokenizer.json "$snapshot"
{ printf -- '---\r\nlicense: "mit"\r\n---\r\n'; head -c 100000 "$(data text/tinystories/tiny.utf8)"; } >"$snapshot/README.md"
(cd "$snapshot" && "$BIN/vptq-quantize" -q -m . -b 3 "${quick[@]}" -n 4 -l 64 --to hf -o "$OLDPWD/here" >"$OLDPWD/out.txt")
HF_HUB_CACHE=$PWD/hub "$BIN/vptq-quantize" -q -m some/stories -b 3 "${quick[@]}" -n 4 -l 64 --to hf -o cached >out.txt
expect_same <(grep -v '^    vptq' here/README.md) <(grep -v '^    vptq' cached/README.md)
expect_line cached/README.md '^base_model: "some/stories"$'
expect_line cached/README.md '^license: mit$'

# The built-in text has a name, and one file may have it, too.
"$BIN/vptq-hessian" -q -m "$model" -n 4 -l 64 --layers 0-0 -o h1 >out.txt
"$BIN/vptq-hessian" -q -m "$model" -c builtin -n 4 -l 64 --layers 0-0 -o h2 >out.txt
expect_same h1/layer_000_o.safetensors h2/layer_000_o.safetensors
cp "my text" builtin
"$BIN/vptq-hessian" -q -m "$model" -c ./builtin -n 4 -l 64 --layers 0-0 -o h3 >out.txt
"$BIN/vptq-hessian" -q -m "$model" -c "my text" -n 4 -l 64 --layers 0-0 -o h4 >out.txt
expect_same h3/layer_000_o.safetensors h4/layer_000_o.safetensors
! cmp -s h1/layer_000_o.safetensors h3/layer_000_o.safetensors || fail "the built-in text was read instead"

# A GGUF file of another family: the tokenizer and the biases of Qwen2.5 come from the file.
if command -v python3 >/dev/null; then
    mkdir qwen
    cp "$model"/{tokenizer,tokenizer_config}.json qwen
    sed 's/LlamaForCausalLM/Qwen2ForCausalLM/; s/"model_type": *"llama"/"model_type": "qwen2"/' "$model/config.json" >qwen/config.json
    python3 - "$model/model.safetensors" qwen/model.safetensors <<'END'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
size, = struct.unpack("<Q", data[:8])
head, body = json.loads(data[8:8 + size]), data[8 + size:]
for layer in range(5):
    for name in "qkv":
        rows = head[f"model.layers.{layer}.self_attn.{name}_proj.weight"]["shape"][0]
        head[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = {
            "dtype": "F32", "shape": [rows], "data_offsets": [len(body), len(body) + 4 * rows]}
        body += struct.pack(f"<{rows}f", *(0.25 * ((i * 7) % 11 - 5) for i in range(rows)))
text = json.dumps(head).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + body)
END
    "$BIN/vptq-pack" -q --unpack qwen -o qwen.gguf >out.txt
    rm -r qwen
    # with a license, whose key and value take a multiple of 32 bytes
    python3 - qwen.gguf <<'END'
import struct, sys
data = open(sys.argv[1], "rb").read()
count, = struct.unpack("<Q", data[16:24])
key, value = b"general.license", b"license-with-exactly-29-chars"
entry = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(value)) + value
open(sys.argv[1], "wb").write(data[:16] + struct.pack("<Q", count + 1) + entry + data[24:])
END
    "$BIN/vptq-quantize" -q -m qwen.gguf -v 4 -k 256 -n 4 -l 64 -o qwen.vptq >out.txt
    score() {
        "$BIN/vptq-eval" ppl -q -m "$1" --text "$(data text/tinystories/tiny.utf8)" --context 64 --windows 4 \
            --format json >ppl.json
        json_get ppl ppl.json
    }
    original=$(score qwen.gguf) ours=$(score qwen.vptq) stories=$(score "$model")
    [ "$original" != "$stories" ] || fail "the biases have no effect"
    expect_number "$ours" '<' "$(awk "BEGIN { print 1.5 * $original }")"
    "$BIN/vptq-pack" -q qwen.vptq -o qwen >out.txt
    grep -q '"model_type": "qwen2"' qwen/config.json || fail "$(cat qwen/config.json)"
    expect_line qwen/README.md '^base_model: "qwen.gguf"$'
    expect_line qwen/README.md '^license: license-with-exactly-29-chars$'
fi
