# A full disk: one sentence, and no file is left.
[ "$(id -u)" = 0 ] || skip "needs root to mount a small tmpfs"
golden=$(data golden/vptq_model_stories260K)
mkdir small
mount -t tmpfs -o size=160k tmpfs small 2> /dev/null || skip "cannot mount a tmpfs here"
trap 'umount small' EXIT
for out in small/dir small/one.vptq; do
    expect_exit 1 "$BIN/vptq-pack" -q "$golden" -o "$out" > out.txt 2> err.txt
    expect_line err.txt "small/.*[Nn]o space"
    [ "$(wc -l < err.txt)" = 1 ] || fail "more than one sentence: $(cat err.txt)"
    [ ! -s out.txt ] || fail "something on stdout"
    [ -z "$(ls small)" ] || fail "left over: $(ls small)"
done
mount -o remount,size=16m small
"$BIN/vptq-pack" -q "$golden" -o small/dir > /dev/null
"$BIN/vptq-pack" -q "$golden" -o dir > /dev/null
expect_same small/dir dir
