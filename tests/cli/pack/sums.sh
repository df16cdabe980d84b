# SHA256SUMS: written next to the weights, understood by sha256sum, and what --check compares a directory with.
hf=$(data models/stories260K-hf)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -q -m "$hf" -c "$text" -n 2 -l 64 --layers 0-0 -o h >/dev/null 2>&1
"$BIN/vptq-quantize" -q -m "$hf" -H h -o work -v 4 -k 16 -r 0 --layers 0-0 >/dev/null
"$BIN/vptq-pack" -q work -o packed --shard-size 100K >/dev/null
"$BIN/vptq-pack" -q --unpack "$hf" -o plain >/dev/null
"$BIN/vptq-pack" -q --repair packed -o repaired >/dev/null
for dir in packed plain repaired; do
    (cd "$dir" && sha256sum --check --strict --quiet SHA256SUMS) || fail "$dir: sha256sum disagrees"
    count=$(find "$dir" -type f ! -name SHA256SUMS | wc -l)
    [ "$(wc -l <"$dir/SHA256SUMS")" -eq "$count" ] || fail "$dir: not all files are listed"
    "$BIN/vptq-pack" -q --check "$dir" >out.txt || fail "$(cat out.txt)"
    expect_line out.txt "^$dir: 0 errors, .*, $count files agree with SHA256SUMS$"
done
[ "$(find packed -name '*.safetensors' | wc -l)" -gt 1 ] || fail "one shard only"
"$BIN/vptq-pack" -q --check packed --format json >out.txt
expect_line out.txt "\"digests\": $(wc -l <packed/SHA256SUMS)"
"$BIN/vptq-pack" -q packed -o model.vptq >/dev/null
"$BIN/vptq-pack" -q --check model.vptq >out.txt
expect_line out.txt '^model.vptq: 0 errors, [0-9]* warnings$'

# expect_finding KIND TEXT: --check of damaged reports it, an error as a failure.
expect_finding()
{
    local status=0
    "$BIN/vptq-pack" -q --check damaged >out.txt 2>err.txt || status=$?
    [ ! -s err.txt ] || fail "$(cat err.txt)"
    expect_line out.txt "^$1: $2"
    [ "$1" = warning ] || [ "$status" -eq 3 ] || fail "exit status $status: $(cat out.txt)"
}

# A flipped bit in any file is found: 20 places, spread over all bytes of the directory.
mapfile -t files < <(cd packed && printf '%s\n' *)
for i in $(seq 0 19); do
    file=${files[$((i % ${#files[@]}))]}
    size=$(wc -c <"packed/$file")
    at=$(((i * 7919 + 31) % size))
    rm -rf damaged
    cp -r packed damaged
    byte=$(od -An -tu1 -j "$at" -N 1 "packed/$file")
    # shellcheck disable=SC2059
    printf "\\x$(printf %x $((byte ^ 4)))" | dd of="damaged/$file" bs=1 seek="$at" conv=notrunc status=none
    if [ "$file" = SHA256SUMS ]; then
        expect_finding error 'damaged/'
    else
        expect_finding error "damaged/$file: does not match SHA256SUMS: damaged or changed"
    fi
done

# Missing and additional files.
renew() { rm -rf damaged && cp -r packed damaged; }
renew && rm damaged/generation_config.json
expect_finding error "cannot open 'damaged/generation_config.json'"
renew && cp "damaged/$(cd packed && echo *00001-of*)" damaged/more.safetensors
expect_finding error "damaged: 'more.safetensors' is not in SHA256SUMS"
renew && echo '# A model' >damaged/NOTES.md
expect_finding warning "damaged: 'NOTES.md' is not in SHA256SUMS"
renew && rm damaged/SHA256SUMS
"$BIN/vptq-pack" -q --check damaged >out.txt || fail "$(cat out.txt)"
expect_line out.txt '^damaged: 0 errors, .*, no SHA256SUMS$'

# Lists that nobody wrote.
zeros=$(printf '%064d' 0)
bad()
{
    renew
    # shellcheck disable=SC2059 # the format has the bytes
    printf "$2" >damaged/SHA256SUMS
    expect_finding error "damaged/SHA256SUMS: $1"
}
bad 'line 1 is not 64' "$zeros  ../../secret\n"
bad 'line 1 is not 64' "$zeros  /etc/passwd\n"
bad 'line 1 is not 64' "$zeros  \n"
bad 'line 1 is not 64' "${zeros%0}x  config.json\n"
bad 'line 1 is not 64' "$zeros config.json\n"
bad 'line 2 is cut short or has a NUL byte' "$zeros  config.json\n$zeros  tokenizer.json"
bad 'line 1 is cut short or has a NUL byte' "$zeros  a\\0b\n"
bad "'config.json' appears twice" "$zeros  config.json\n$zeros  config.json\n"
renew && truncate -s 2M damaged/SHA256SUMS
expect_finding error "'damaged/SHA256SUMS' has 2097152 bytes"
renew && printf '%s  a\033[31mb\n' "$zeros" >damaged/SHA256SUMS
expect_finding error "cannot open 'damaged/a\\\\x1b\[31mb'"
