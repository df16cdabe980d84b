# Windows and items over several processes: the figures, files and messages of one, for any number of them.
needs_ranks
model=$(data models/stories260K-hf)
packed=$(data golden/vptq_model_stories260K)
text=$(data text/tinystories/tiny.utf8)
arc=$(data qa/arc_easy.jsonl)
eval=("$BIN/vptq-eval")
head -n 40 "$arc" >items.jsonl

# figures FILE: without what differs from run to run.
figures() { sed -E 's/"(seconds|tokens_per_second)": [^,}]*//g' "$1"; }

# compare "COUNTS" FILE COMMAND OPTION..: prints the same from one process and from each number of them, which also
# leaves the same FILE ("" = none).
compare()
{
    local counts=$1 file=$2 n
    shift 2
    "${eval[@]}" "$@" -t 1 -q -f --format json >one.json
    figures one.json >want.txt
    [ -z "$file" ] || mv "$file" one.file
    for n in $counts; do
        ranks "$n" "${eval[@]}" "$@" -t 1 -q -f --format json >many.json 2>err.txt ||
            fail "$1 by $n ranks: $(cat err.txt)"
        [ ! -s err.txt ] || fail "$1 by $n ranks: $(cat err.txt)"
        figures many.json >got.txt
        expect_same want.txt got.txt "$1 by $n ranks"
        [ -z "$file" ] || expect_same one.file "$file" "$1 by $n ranks"
        no_leftovers .
    done
}

window=(--text "$text" --context 256)
compare "2 3 4 7" losses ppl -m "$packed" "${window[@]}" --windows 40 --dump losses
compare "4" "" ppl -m "$model" "${window[@]}" --stride 100 --windows 70
compare "3" losses ppl -m "$packed" --text "$text" --documents '<|endoftext|>' --document-limit 30 --context 512 \
    --dump losses
# several texts, one of them shorter than a unit for every rank
head -c 2000 "$text" >short.txt
compare "3" losses ppl -m "$packed" "${window[@]}" --text short.txt --windows 9 --dump losses
compare "2 3 4 7" "" kld -m "$packed" --base "$model" "${window[@]}" --windows 40
compare "3" base kld -m "$packed" --base "$model" "${window[@]}" --windows 12 --save-base base
compare "2 7" "" kld -m "$packed" --base-file base
compare "2 3 4 7" samples tasks -m "$packed" --base "$model" --task arc_easy=items.jsonl --samples samples
compare "2" "" ppl -m "$model" "${window[@]}" --windows 1
ranks 3 "${eval[@]}" ppl -m "$model" --text short.txt --tokens-only >got.txt
"${eval[@]}" ppl -m "$model" --text short.txt --tokens-only >want.txt
expect_same want.txt got.txt
# a limit that fails: one message
expect_exit 3 ranks 3 "${eval[@]}" ppl -m "$model" "${window[@]}" --windows 9 -q --max-ppl 1.5 >out.txt 2>err.txt
[ "$(grep -c 'above --max-ppl' err.txt)" = 1 ] || fail "$(cat err.txt)"
# the progress of all ranks ends when all are done
for command in "ppl -m $packed --windows 40 perplexity: 40 windows" \
    "kld -m $packed --base $model --windows 40 divergence: 40 windows"; do
    read -r -a words <<<"$command"
    end=${words[*]: -3}
    ranks 3 "${eval[@]}" "${words[@]:0:${#words[@]}-3}" "${window[@]}" -t 1 --log-dir "logs-${words[0]}" >out.txt 2>err.txt
    expect_line "logs-${words[0]}/rank-0.log" " $end in "
done
