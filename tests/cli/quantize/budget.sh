# --budget file: the bits per weight of the whole file, embedding and norms included, as it is packed with the same
# --embeddings; never exceeded, and refused where the matrices cannot make up for the rest.
model=$(data models/stories260K-hf)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -q -m "$model" -c "$text" -n 8 -l 128 -o h
quantize() { "$BIN/vptq-quantize" -q -m "$model" -H h "$@"; }

# file_bits FILE: bits per weight of everything that is listed, from shapes, types and the bits of the matrices.
file_bits()
{
    "$BIN/vptq-pack" -q --list "$1" --format json | awk -F'[:,]' '
        BEGIN { bits["F16"] = 16; bits["Q8_0"] = 8.5; bits["Q6_K"] = 6.5625 }
        { b = ""
          for (i = 1; i < NF; i++) {
            if ($i ~ /"rows"/) r = $(i + 1)
            if ($i ~ /"columns"/) c = $(i + 1)
            if ($i ~ /"dtype"/) { type = $(i + 1); gsub(/[ "]/, "", type) }
            if ($i ~ /"bits_per_weight"/) b = $(i + 1) }
          if (/"total_bytes"/) next
          w += r * c; s += r * c * (/"quantized": true/ ? b : bits[type]) }
        END { print s / w }'
}

for type in f16 q8 q6; do
    quantize -o $type -b 5 --budget file --embeddings $type --format json > $type.json
    "$BIN/vptq-pack" -q $type -o $type.vptq --embeddings $type > out.txt
    bits=$(json_get file_bits_per_weight $type.json)
    expect_near "$bits" "$(file_bits $type.vptq)" 1e-5
    expect_number "$bits" '<=' 5
    expect_number "$bits" '>' 4.95
done
# what the embedding saves goes to the matrices
matrices() { tail -n 1 "$1" | json_get bits_per_weight; }
expect_number "$(matrices q8.json)" '>' "$(matrices f16.json)"
expect_number "$(matrices q6.json)" '>' "$(matrices q8.json)"
quantize --dry-run -b 5 --budget file --allocate uniform > plan.txt
expect_number "$(sed -n 's/.*weights file about .* at \([0-9.]*\),.*/\1/p' plan.txt)" '<=' 5

expect_sentence 2 "a budget of 3 bits per weight of the file leaves 1.07.* for the matrices, below the smallest possible, 1.5" \
    quantize --dry-run -b 3 --budget file
need=$(sed -n 's/.*the file needs //p' err.txt)
quantize --dry-run -b "$(awk "BEGIN { print $need + 0.001 }")" --budget file > plan.txt
expect_error 2 "^vptq-quantize: --budget file needs -b BITS" quantize --dry-run --budget file
expect_error 2 "^vptq-quantize: --embeddings needs --budget file" quantize --dry-run -b 4 --embeddings q8
expect_error 2 "a budget for the file with layers 0-1 of 0-4: expected all layers" \
    quantize --dry-run -b 4 --budget file --allocate uniform --layers 0-1
expect_error 2 "^vptq-quantize: --embeddings needs --budget file" quantize --dry-run -b 4 --embeddings f16

# A head that a tied checkpoint stores all the same is packed, so it counts.
if command -v python3 >/dev/null; then
    cp -rL "$model" tied
    chmod -R u+w tied
    python3 - tied/model.safetensors <<'END'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
size, = struct.unpack("<Q", data[:8])
head, body = json.loads(data[8:8 + size]), data[8 + size:]
e = head["model.embed_tokens.weight"]
first, end = e["data_offsets"]
head["lm_head.weight"] = e | {"data_offsets": [len(body), len(body) + end - first]}
text = json.dumps(head).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + body + body[first:end])
END
    "$BIN/vptq-hessian" -q -m tied -c "$text" -n 8 -l 128 -o ht
    "$BIN/vptq-quantize" -q -m tied -H ht -o wt -b 5 --budget file --embeddings q8 --format json > tied.json
    "$BIN/vptq-pack" -q wt -o tied.vptq --embeddings q8 > out.txt
    expect_near "$(json_get file_bits_per_weight tied.json)" "$(file_bits tied.vptq)" 1e-5
    expect_number "$(file_bits tied.vptq)" '<=' 5
fi
