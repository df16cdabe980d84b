# Files that are not what the tools expect: links in their directories, a limit on file sizes, an input that is
# cut short while it is mapped.
model=$(data models/stories260K-hf)
tiny=$(data text/tinystories/tiny.utf8)
head -c 6000 "$tiny" > text
collect() { "$BIN/vptq-hessian" -q -m "$model" -c text -n 2 -l 64 --layers 0-0 -o "$@"; }

# A lock that is a link to somebody's file.
echo "my thesis" > thesis.tex
mkdir h
ln -s ../thesis.tex h/lock
expect_error 1 "vptq-hessian: 'h/lock' is a symbolic link, so it is not a lock of these tools" collect h
rm h/lock
ln thesis.tex h/lock
expect_error 1 "vptq-hessian: 'h/lock' has other names (hard links)" collect h
[ "$(cat thesis.tex)" = "my thesis" ] || fail "the lock of somebody else was overwritten"
rm -r h
collect h
"$BIN/vptq-quantize" -q -m "$model" -H h --layers 0-0 -k 16 -o w

# An output that is a link: a file is replaced itself, a directory is not.
ln -s thesis.tex out.vptq
expect_error 1 "vptq-pack: 'out.vptq' already exists (--force replaces it)" "$BIN/vptq-pack" -q w -o out.vptq
"$BIN/vptq-pack" -q w -o out.vptq --force
[ ! -L out.vptq ] || fail "the link is still there"
[ "$(cat thesis.tex)" = "my thesis" ] || fail "--force replaced the target of a link"
mkdir elsewhere
ln -s elsewhere packed
expect_error 1 "vptq-pack: 'packed' exists and is a symbolic link, which is not replaced" \
    "$BIN/vptq-pack" -q w -o packed --force
[ -z "$(ls elsewhere)" ] || fail "wrote through a link"

# Records of serving runs are changed in place.
ln -s thesis.tex records.jsonl
expect_error 1 "vptq-eval: 'records.jsonl' is a symbolic link; name the file of records itself" \
    "$BIN/vptq-eval" serve -q -m m=out.vptq --config 2,4,2 --runs 1 --warmup 0 -o records.jsonl
[ "$(cat thesis.tex)" = "my thesis" ] || fail "records were written through a link"

# A limit on file sizes is an error like a full disk.
limited() { (ulimit -f 8 && "$BIN/vptq-pack" -q --unpack "$model" -o limited); }
expect_error 1 "File too large" limited
[ ! -e limited ] || fail "an output after a failed write"
no_leftovers .

# A mapped file that is cut short ends the run with a sentence.
[ -e "${FAULTS:-}" ] || skip "needs FAULTS, the library of tests/faults"
cp -rL "$model" model
chmod -R u+w model
status=0
VPTQ_FAULT=mmap:cut:1 ASAN_OPTIONS=${ASAN_OPTIONS:-}:handle_sigbus=0 preloading \
    "$BIN/vptq-eval" ppl -q -m model --text text --context 64 --windows 2 > out.txt 2> err.txt || status=$?
[ "$status" = 1 ] || fail "status $status: $(cat err.txt)"
expect_line err.txt "vptq-eval: an input file was cut short, or could no longer be read, while it was in use"
