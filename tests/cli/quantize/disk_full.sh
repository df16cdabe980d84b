# A full disk: one sentence that names the file; the run continues once there is space.
[ "$(id -u)" = 0 ] || skip "needs root to mount a small tmpfs"
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
mkdir small
mount -t tmpfs -o size=160k tmpfs small 2> /dev/null || skip "cannot mount a tmpfs here"
trap 'umount small' EXIT
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 4 -l 256 -o h -q
expect_exit 1 "$BIN/vptq-quantize" -m "$model" -H h -o small/w -k 16 -q > /dev/null 2> err.txt
expect_line err.txt "'small/w/.*No space"
[ "$(wc -l < err.txt)" = 1 ] || fail "more than one sentence"
no_leftovers small
mount -o remount,size=16m small
"$BIN/vptq-quantize" -m "$model" -H h -o small/w -k 16 -q > /dev/null
"$BIN/vptq-quantize" -m "$model" -H h -o w -k 16 -q > /dev/null
expect_same small/w w
