# --embeddings: embedding and output head in blocks of 8 or 6 bits, by every command that reads them, by the second
# implementation, and on the way to other forms.
golden=$(data golden/vptq_model_stories260K)
text=$(data text/tinystories/tiny.utf8)
pack() { "$BIN/vptq-pack" -q "$@"; }
evaluate() { "$BIN/vptq-eval" "$@" -q --text "$text" --context 256 --windows 2 --format json > eval.json; }
ppl_of() { evaluate ppl -m "$1" && json_get ppl eval.json; }
type_of() { pack --list "$1" | awk '$1 == "model.embed_tokens.weight" { print $4 }'; }

pack "$golden" -o f16.vptq > out.txt
f16=$(ppl_of f16.vptq)
size=$(wc -c < f16.vptq)
for case in q8:Q8_0:1e-2 q6:Q6_K:5e-2; do
    IFS=: read -r name type near <<< "$case"
    pack "$golden" -o "$name.vptq" --embeddings "$name" --format json > "$name.json"
    [ "$(json_get embedding_type "$name.json")" = "$type" ] || fail "$(cat "$name.json")"
    bytes=$(pack --list "$name.vptq" | awk '$1 == "model.embed_tokens.weight" { print $5 }')
    [ "$(json_get embedding_bytes "$name.json")" = "$bytes" ] || fail "embedding of $bytes bytes: $(cat "$name.json")"
    # stories260K has 260,032 weights, of which 32,768 are the embedding
    expect_near "$(json_get file_bits_per_weight "$name.json")" \
        "$(awk -v n="$(wc -c < "$name.vptq")" 'BEGIN { print 8 * n / 260032 }')" 1e-5
    [ "$(type_of "$name.vptq")" = "$type" ] || fail "type of $name: $(type_of "$name.vptq")"
    expect_number "$(wc -c < "$name.vptq")" '<' "$size"
    size=$(wc -c < "$name.vptq")
    pack "$golden" -o one.vptq --embeddings "${type,,}" -t 1 -f > out.txt
    expect_same "$name.vptq" one.vptq "with GGUF's name and one thread"
    pack --check "$name.vptq" > check.txt
    expect_line check.txt "^$name.vptq: 0 errors, 0 warnings"
    expect_near "$(ppl_of "$name.vptq")" "$f16" "$near"
    [ "$(ppl_of "$name.vptq")" != "$f16" ] || fail "$name changes nothing"
    evaluate kld -m "$name.vptq" --base f16.vptq
    expect_number "$(json_get mean_kld eval.json)" '>' 0
    "$BIN/vptq-eval" generate -q -m "$name.vptq" -p Once -n 4 --temperature 0 > text.txt
    [ -s text.txt ] || fail "no text"
    "$BIN/vptq-eval" serve -q -m "$name.vptq" --config 1,8,2 -o "$name.jsonl" > table.txt
    expect_line "$name.jsonl" "\"output_len\": *2"

    # An archive keeps the blocks; a directory cannot, and says so.
    pack "$name.vptq" -o again.vptq -f > out.txt
    expect_same "$name.vptq" again.vptq
    "$BIN/vptq-pack" "$name.vptq" -o "$name-dir" > out.txt 2> err.txt
    expect_line err.txt "$name.vptq: tensor 'model.embed_tokens.weight' is stored as $type; decoding it to F16"
    [ "$(type_of "$name-dir")" = F16 ] || fail "type in a directory: $(type_of "$name-dir")"
    pack "$name.vptq" -o back.vptq --embeddings f16 -f > out.txt
    [ "$(pack --digest back.vptq)" = "$(pack --digest "$name-dir")" ] || fail "decoded to two models"
    pack --unpack "$name.vptq" -o "$name-plain" --dtype f32 > out.txt
    [ "$(ppl_of "$name-plain")" = "$(ppl_of "$name.vptq")" ] || fail "unpacked to another model"
done
[ "$(pack --digest f16.vptq)" != "$(pack --digest q8.vptq)" ] || fail "one digest of two models"
pack "$golden" -o x.vptq --embeddings q8 --dry-run --format json | tail -n 1 > plan.json
[ "$(json_get embedding_bytes plan.json)" = $((512 * 64 * 34 / 32)) ] || fail "plan: $(cat plan.json)"
[ "$(json_get embedding_relative_mse plan.json)" = null ] || fail "a plan has a loss: $(cat plan.json)"
pack q8.vptq -o again.vptq -f --format json > again.json
[ "$(json_get embedding_relative_mse again.json)" = 0 ] || fail "a copy has a loss: $(cat again.json)"
pack --unpack "$golden" -o q8.gguf --embeddings q8 > out.txt
expect_line out.txt "^embedding: Q8_0, 34.0 KiB, relative mean square error [0-9.e-]*; whole file: [0-9.]* bits per weight"
"$BIN/vptq-pack" --unpack q8.vptq -o f16.gguf > out.txt 2> err.txt
expect_line err.txt "tensor 'model.embed_tokens.weight' is stored as Q8_0; decoding it to F16"
[ "$(type_of q8.gguf) $(type_of f16.gguf)" = "Q8_0 F16" ] || fail "types in GGUF"
expect_near "$(ppl_of q8.gguf)" "$(ppl_of q8.vptq)" 1e-3

# A head of its own as well, and a stored copy of a tied one.
pack "$SRC/tests/golden/packed_mistral" -o own.vptq --embeddings q8 > out.txt 2>&1
pack "$golden" -o tied.vptq --embeddings q6 --lm-head > out.txt
for model in own tied; do
    pack --list "$model.vptq" | awk '$4 ~ /^Q/ { print $1 }' > list.txt
    [ "$(tr '\n' ' ' < list.txt)" = "lm_head.weight model.embed_tokens.weight " ] || fail "$model: $(cat list.txt)"
done

expect_sentence 2 "^vptq-pack: --embeddings: the published layout has one type for all" pack "$golden" -o x --embeddings q8
expect_sentence 2 "^vptq-pack: --embeddings: a directory has one type" pack --unpack "$golden" -o x --embeddings f16
expect_sentence 2 "^vptq-pack: --embeddings q4: expected f16, bf16, f32, q8 or q6" pack "$golden" -o x.vptq --embeddings q4
expect_sentence 1 "rows of 64 numbers, Q6_K needs a multiple of 256" pack --unpack "$golden" -o x.gguf --embeddings q6
for output in x x.vptq x.gguf; do [ ! -e "$output" ] || fail "an output was made: $output"; done

# The second implementation decodes the blocks to the same numbers.
python=
for candidate in python3 /usr/bin/python3; do
    [ -n "$python" ] || ! "$candidate" -c 'import numpy, zstandard' 2> /dev/null || python=$candidate
done
[ -n "$python" ] || skip "needs python3 with numpy and zstandard"
pack --unpack f16.vptq -o f16-plain --dtype f32 > out.txt
for name in q8 q6; do
    "$python" -B "$SRC/scripts/vptq_archive.py" verify "$name.vptq" > out.txt
    "$python" -B "$SRC/scripts/vptq_archive.py" extract "$name.vptq" -o "$name-other"
    [ "$(type_of "$name-other")" = F32 ] || fail "type after extracting: $(type_of "$name-other")"
    pack --unpack "$name-other" -o "$name-other-plain" --dtype f32 > out.txt
    expect_same "$name-plain/model.safetensors" "$name-other-plain/model.safetensors"
    expect_near "$(json_get embedding_relative_mse "$name.json")" "$("$python" - "$name" << 'PY'
import json, struct, sys
import numpy as np
def embedding(path):
    data = open(path + "/model.safetensors", "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + size])["model.embed_tokens.weight"]["data_offsets"]
    return np.frombuffer(data[8 + size + begin:8 + size + end], "<f4").astype(float)
x, y = embedding("f16-plain"), embedding(sys.argv[1] + "-other")
print(((y - x) ** 2).sum() / (x ** 2).sum())
PY
)" 1e-9
done
no_leftovers .
