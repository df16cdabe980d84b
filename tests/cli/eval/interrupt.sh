# SIGINT: status 130, a word, nothing on stdout.
model=$(data models/stories260K-hf)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-eval" ppl -m "$model" --text "$text" --context 512 --backend ref --progress \
    >out.txt 2>err.txt &
pid=$!
scoring() { grep -q 'windows 1-' err.txt; }
wait_for 60 scoring
interrupt "$pid"
expect_line err.txt 'interrupted'
[ ! -s out.txt ] || fail "something on stdout"
