# A missing model: every tool exits with 1 and one sentence that names it.
missing()
{
    expect_exit 1 "$@" >out 2>err
    [ ! -s out ] || fail "an error writes to stdout: $*"
    [ "$(wc -l <err)" -eq 1 ] || fail "not one line: $(cat err)"
    expect_line err "^${1##*/}: .*no-such-model.*No such file or directory$"
}

echo text >text
missing "$BIN/vptq-hessian" -m no-such-model -c text -o h
missing "$BIN/vptq-pack" --list no-such-model
missing "$BIN/vptq-eval" ppl -m no-such-model --text text
[ ! -e h ] || fail "the output exists after an error"
