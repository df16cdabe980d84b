# Archives, checked with the second implementation of their format (scripts/vptq_archive.py): each
# reads and checks what the other writes, and both find the same damage.
python=
for candidate in python3 /usr/bin/python3; do
    [ -n "$python" ] || ! "$candidate" -c 'import numpy, zstandard' 2> /dev/null || python=$candidate
done
[ -n "$python" ] || skip "needs python3 with numpy and zstandard"
golden=$(data golden/vptq_model_stories260K)
pack() { "$BIN/vptq-pack" -q "$@"; }
other() { "$python" -B "$SRC/scripts/vptq_archive.py" "$@"; }

pack "$golden" -o dir > /dev/null
pack dir -o ours.vptq > /dev/null
other verify ours.vptq > verify.txt
expect_line verify.txt "^ours.vptq: .* entries, 0 damaged"
other extract ours.vptq -o extracted
pack extracted -o back > /dev/null
expect_same dir back
for file in dir/*.json; do expect_same "$file" "extracted/$(basename "$file")"; done

# one tensor of many, and the list
other list ours.vptq --json > list.json
expect_number "$(wc -l < list.json)" '>' 150
other extract ours.vptq model.norm.weight -o one
[ "$(ls one)" = model.safetensors ] || fail "extracted: $(ls one)"
expect_line one/model.safetensors '"model.norm.weight":{"dtype":"F16","shape":\[64\],"data_offsets":\[0,128\]}'

# archives of the second implementation, from one file and from shards, at any level
pack dir -o shards --shard-size 64K > /dev/null
other write dir -o theirs.vptq
other write shards -o shards.vptq --level 19
for archive in theirs.vptq shards.vptq; do
    pack --check "$archive" > check.txt
    expect_line check.txt "^$archive: 0 errors, 0 warnings"
    rm -rf back
    pack "$archive" -o back > /dev/null
    expect_same dir back
done

# Names that are not valid in an archive, folders, and weights in other formats are left out and named.
cp -r shards strange
mkdir strange/onnx
echo x > strange/.gitattributes
echo x > "strange/a b.txt"
echo x > strange/pytorch_model.bin
other write strange -o strange.vptq 2> err.txt
for name in .gitattributes 'a b.txt' onnx pytorch_model.bin; do
    expect_line err.txt "strange/$name does not go along"
done
expect_same theirs.vptq strange.vptq
expect_exit 1 other list nothing.vptq 2> err.txt
[ "$(wc -l < err.txt)" = 1 ] || fail "more than a sentence: $(cat err.txt)"
expect_line err.txt "nothing.vptq"

# --level: the same content; levels are those of zstd, and only for archives
pack dir -o hard.vptq --level 19 > /dev/null
other extract hard.vptq -o hard
expect_same extracted hard
expect_number "$(wc -c < hard.vptq)" '!=' "$(wc -c < ours.vptq)"
expect_exit 2 "$BIN/vptq-pack" -q dir -o x.vptq --level 23 2> err.txt
expect_line err.txt "level is 23, expected 1 to 22"
expect_exit 2 "$BIN/vptq-pack" -q dir -o x --level 3 2> err.txt
expect_line err.txt "level is for archives"

# damage in one byte of a tensor, the index, the footer, the header, a small file
size=$(wc -c < ours.vptq)
at_of() # NAME: where the first frame of the entry begins
{
    awk -v name="\"name\": \"$1\"" -F '"archived_bytes": ' 'BEGIN { at = 16 }
        index($0, name) { print at; exit } { split($2, n, ","); at += n[1] }' list.json
}
flip() # OFFSET
{
    cp ours.vptq bad.vptq
    "$python" - "$1" << 'PY'
import sys
with open("bad.vptq", "r+b") as f:
    f.seek(int(sys.argv[1]))
    byte = f.read(1)[0]
    f.seek(int(sys.argv[1]))
    f.write(bytes([byte ^ 16]))
PY
}
module=model.layers.3.mlp.down_proj
for place in "model.norm.weight:tensor 'model.norm.weight' is damaged: frame 1 of 1" \
    "$module.indices:tensor '$module.indices' is damaged" \
    "tokenizer.json:file 'tokenizer.json' is damaged" \
    "$((size - 80)):the index does not match its checksum" \
    "$((size - 40)):the footer does not match its checksum" \
    "9:the header does not match its checksum" "0:its header is damaged" "$((size - 1)):its end is missing"; do
    at=${place%%:*}
    [ -z "${at//[0-9]/}" ] || at=$(($(at_of "$at") + 5))
    flip "$at"
    status=0
    pack --check bad.vptq > check.txt 2>&1 || status=$?
    [ "$status" = 3 ] || fail "status $status of --check after a flip at $place"
    expect_line check.txt "bad.vptq: .*${place#*:}"
    expect_line check.txt "^bad.vptq: 1 error,"
    expect_exit 1 "$python" -B "$SRC/scripts/vptq_archive.py" verify bad.vptq > out.txt 2>&1
    expect_line out.txt "bad.vptq: .*${place#*:}"
    # and --repair does not accept it
    expect_exit 1 "$BIN/vptq-pack" -q --repair bad.vptq -o fixed 2> err.txt
    [ ! -e fixed ] || fail "an output from a damaged archive"
done
no_leftovers .
