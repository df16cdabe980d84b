# --log-file: messages and progress with times in UTC, appended, whatever stderr shows.
model=$SRC/tests/golden/tiny_mistral
cp "$model/ids.i32" ids
time='^[0-9]\{4\}-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9]Z'
score() { "$BIN/vptq-eval" ppl -m "$model" --tokens ids --context 16 --log-file log "$@"; }

score -qq > out.txt 2> err.txt
[ ! -s err.txt ] || fail "-qq writes to stderr: $(cat err.txt)"
[ "$(grep -c -v "$time [^ ]" log)" = 0 ] || fail "lines without a time: $(cat log)"
expect_line log "$time perplexity: .* \.\.\.$"
expect_line log "$time perplexity: .* in .* s"
! grep -q "$(cut -c1-20 out.txt | head -n 1)" log || fail "the log has the results"
lines=$(wc -l < log)
score > out.txt 2> err.txt
[ "$(wc -l < log)" = $((2 * lines)) ] || fail "not appended: $(cat log)"
sed "s/$time //" log | tail -n "$lines" > same.txt
[ "$(sed 's/ in .*//' same.txt)" = "$(sed 's/ in .*//' err.txt)" ] || fail "stderr has other lines: $(cat err.txt)"

# Errors and warnings; control characters are escaped.
expect_exit 1 "$BIN/vptq-pack" --list $'no\nmodel' --log-file log 2> err.txt
expect_line log "$time vptq-pack: cannot open 'no\\\\nmodel': No such file or directory$"
"$BIN/vptq-pack" -qq "$model" --unpack -o out --log-file log 2> err.txt
expect_line log "$time vptq-pack: warning: .* has no tokenizer"

expect_exit 2 "$BIN/vptq-pack" --list a b --log-file log 2> err.txt
expect_line log "$time vptq-pack: "
expect_exit 3 score -qq --max-ppl 1 > out.txt 2> err.txt
expect_line log "$time vptq-eval: perplexity .* is above --max-ppl 1$"

# A file that cannot be opened is an error before the work; a link is refused.
mkdir folder
expect_sentence 1 "cannot open the log file 'folder': Is a directory$" score --log-file folder
ln -s log link
expect_sentence 1 "cannot open the log file 'link': it is a link$" score --log-file link

# A full disk loses the log, not the run.
if [ -e /dev/full ]; then
    score -q | head -n 3 > want.txt
    expect_exit 0 score -q --log-file /dev/full > out.txt 2> err.txt
    expect_same want.txt <(head -n 3 out.txt)
    expect_line err.txt "^vptq-eval: warning: the log file '/dev/full' is incomplete: No space left on device$"
fi
(ulimit -f 0 && "$BIN/vptq-eval" ppl -q -m "$model" --tokens ids --context 16 --log-dir logs) 2>&1 > /dev/null | cat > err.txt
expect_line err.txt "^vptq-eval: warning: the log file 'logs/rank-0.log' is incomplete: File too large$"
