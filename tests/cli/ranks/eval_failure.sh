# shellcheck disable=SC2016 # ranks expand their number themselves
# An evaluation ends on all ranks when one of them fails, in one sentence; what cannot be shared is refused.
needs_ranks
model=$(data models/stories260K-hf)
packed=$(data golden/vptq_model_stories260K)
text=$(data text/tinystories/tiny.utf8)
eval=("$BIN/vptq-eval")
window=(--text "$text" --context 256)

run=("${eval[@]}" ppl -q -t 1 -m "$model" --text text.txt --context 256)
for n in 0 1 2; do
    mkdir -p "cwd$n"
    cp "$text" text.txt
    expect_exit 1 on_rank "$n" "cd cwd$n" "${run[@]}" >out.txt 2>err.txt
    where="rank $n: "
    [ "$n" != 0 ] || where=
    expect_line err.txt "^vptq-eval: ${where}cannot open 'text.txt': No such file or directory$"
    [ "$(grep -c '^vptq-eval: ' err.txt)" = 1 ] || fail "not one sentence: $(cat err.txt)"
    ! grep ppl out.txt || fail "figures of a failed run: $(cat out.txt)"
done
head -c 30000 "$text" >cwd1/text.txt
expect_exit 1 on_rank 1 "cd cwd1" "${run[@]}" >out.txt 2>err.txt
expect_line err.txt '^vptq-eval: the text to measure on differs between the processes of this run: ".*" at rank 0, ".*" at rank 1$'
expect_exit 1 on_rank 2 "set -- $(printf "'%s' " "${eval[@]}" ppl -q -m "$packed" "${window[@]}")" \
    "${eval[@]}" ppl -q -m "$model" "${window[@]}" >out.txt 2>err.txt
expect_line err.txt '^vptq-eval: the model differs between the processes of this run: '
for base in "$model" "$packed"; do
    "${eval[@]}" kld -q --base "$base" "${window[@]}" --windows 4 --save-base base >out.txt
    mkdir -p saved
    [ "$base" = "$packed" ] || mv base saved
done
expect_exit 1 on_rank 1 "cd saved" "${eval[@]}" kld -q -m "$packed" --base-file base >out.txt 2>err.txt
expect_line err.txt '^vptq-eval: the saved base differs between the processes of this run: '
# memory that is not enough on one rank, in the middle of a run
expect_exit 1 on_rank 1 'set -- "$@" --mem 4M' "${eval[@]}" kld -q -t 1 -m "$packed" --base "$model" "${window[@]}" \
    >out.txt 2>err.txt
expect_line err.txt '^vptq-eval: rank 1: '

# a model that cannot be opened: no rank goes on to the limits
expect_exit 1 ranks 2 "${eval[@]}" tasks -q -m nowhere --task "arc=$(data qa/arc_easy.jsonl)" --min-acc 0.5 --log-dir logs \
    >out.txt 2>err.txt
expect_line err.txt "^vptq-eval: .*nowhere"
! grep -q 'ignal\|below' err.txt logs/* || fail "after the failure: $(cat err.txt logs/*)"

# ---- refused ----

# tools of another commit: a copy with another text of the same length
commit=$("$BIN/vptq-eval" --version | sed -n 's/^commit: //p')
other=$(echo "$commit" | tr 0-9a-f 1-9a-f0)
sed "s/$commit/$other/g" "$BIN/vptq-eval" >other-eval
chmod +x other-eval
expect_exit 1 on_rank 1 'shift && set -- ./other-eval "$@"' "${eval[@]}" ppl -q -m "$model" "${window[@]}" >out.txt 2>err.txt
expect_line err.txt "^vptq-eval: the version of the tools differs between the processes of this run: \".* of commit $commit\" at rank 0, \".* of commit $other\" at rank 1\$"
expect_exit 2 ranks 2 "${eval[@]}" ppl -q -m "$model" --text - --context 256 >out.txt 2>err.txt
expect_line err.txt 'vptq-eval: --text -: standard input reaches one of 2 processes only; give a file$'
expect_exit 2 ranks 2 "${eval[@]}" generate -m "$model" -n 4 >out.txt 2>err.txt
expect_line err.txt 'vptq-eval: this command runs in one process, not in 2'
