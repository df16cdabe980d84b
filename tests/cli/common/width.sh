# Tables on a terminal fit into it, and name the columns that do not; pipes and files have all columns at any
# width, and nothing prints colours.
command -v script > /dev/null || skip "needs script of util-linux for a terminal"
model=$(data models/stories260K-hf)
packed=$(data golden/vptq_model_stories260K)
cp "$(data text/tinystories/tinystories_v2_sample.txt)" text.txt
"$BIN/vptq-hessian" -q -m "$model" -c text.txt -n 2 -l 64 -o hessians > /dev/null

# show COLUMNS COMMAND..: what a terminal of this width shows, in tty.txt
show()
{
    local columns=$1
    shift
    printf '%q ' "$@" > command.sh
    script -qec "stty cols $columns; . ./command.sh" /dev/null < /dev/null 2> err.txt | tr -d '\r' > tty.txt
    ! grep -q $'\e' tty.txt || fail "$*: escape sequences: $(cat -v tty.txt)"
}
# The time that a dry run says is measured anew each time.
without_time() { sed 's/^about [^,]*/about/'; }
# fits PATTERN COMMAND..: lines from the head, which the pattern matches, to the last of the table fit
fits()
{
    local pattern=$1 columns
    shift
    "$@" | without_time > pipe.txt
    COLUMNS=60 "$@" | without_time > again.txt
    expect_same pipe.txt again.txt
    expect_line pipe.txt "$pattern"
    for columns in 60 80; do
        show $columns "$@"
        expect_line tty.txt '^not shown for lack of width: '
        grep -A 4 "$pattern" tty.txt > table.txt || fail "$*: $(cat tty.txt)"
        [ "$(wc -L < table.txt)" -le $columns ] || fail "$* at $columns: $(cat tty.txt)"
    done
    show 200 "$@"
    expect_same <(without_time < tty.txt) pipe.txt
}
fits '^name .*bits/w' "$BIN/vptq-pack" --list "$packed"
fits '^layer .*verdict$' "$BIN/vptq-hessian" --show hessians
fits '^layer .*total' "$BIN/vptq-quantize" -q -m "$model" --dry-run -v 4 -k 64 -r 16
fits '^layer .*weight error  *bits' "$BIN/vptq-eval" error -q -m "$packed" --base "$model" --top 5
fits '^ .* bits  .*' "$BIN/vptq-eval" ablate -qq -m "$model" --text text.txt --table methods --dry-run
# rows that are printed one by one, each with its time
show 60 "$BIN/vptq-eval" ppl -q -m "$model" --text text.txt --text text.txt --context 64 --windows 2
expect_line tty.txt '^text  *ppl  *ppl_stderr'
[ "$(grep -c 'not shown' tty.txt)" = 1 ] || fail "the note is not there once: $(cat tty.txt)"
[ "$(grep '^text' tty.txt | wc -L)" -le 60 ] || fail "$(cat tty.txt)"
# COLUMNS precedes the width of the window
show 200 env COLUMNS=60 "$BIN/vptq-pack" --list "$packed"
[ "$(sed -n 2p tty.txt | wc -L)" -le 60 ] || fail "$(cat tty.txt)"
