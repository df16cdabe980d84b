# Rows of an ablation over several processes: the same table and files as from one.
needs_ranks
model=$(data models/stories260K-hf)
text=$(data text/tinystories/tiny.utf8)
sample=$(data text/tinystories/tinystories_v2_sample.txt)
head -n 12 "$(data qa/arc_easy.jsonl)" >items.jsonl

cat >rows.json <<'EOT'
[
 {"name": "original", "original": true},
 {"name": "v4", "settings": {"vector_length": 4, "centroids": 16, "retrain": 1, "kmeans_iterations": 2}},
 {"name": "residual", "settings": {"vector_length": 4, "centroids": 16, "residual": 8, "kmeans_iterations": 2}},
 {"name": "v2", "settings": {"vector_length": 2, "centroids": 8, "kmeans_iterations": 2}}
]
EOT
ablate=("$BIN/vptq-eval" ablate -t 1 -m "$model" -c "$text" -n 4 -l 128 --text "$sample" --context 256
    --text-windows 4 --kld --task arc_easy=items.jsonl --table rows.json --layers 1-1 --no-seconds)
"${ablate[@]}" -q -o one --keep-packed --format json >one.json
for n in 2 3 4 7; do
    ranks "$n" "${ablate[@]}" -q -o "many$n" --keep-packed --format json >many.json 2>err.txt ||
        fail "$n ranks: $(cat err.txt)"
    expect_same one.json many.json "by $n ranks"
    for part in packed hessians rows; do
        diff -r -x '*.seconds' -x lock -x report.json "one/$part" "many$n/$part" >diff.txt ||
            fail "$part by $n ranks: $(head -n 5 diff.txt)"
    done
    no_leftovers "many$n"
done
# again, and a table in a file, by rank 0 alone
ranks 3 "${ablate[@]}" -q -o many2 --keep-packed --report table.md
"${ablate[@]}" -q -o one --keep-packed --format md >one.md
expect_same one.md table.md
ranks 2 "${ablate[@]}" -q --dry-run --format json >plan.json
[ "$(wc -l <plan.json)" = 5 ] || fail "$(cat plan.json)"

# ---- one rank fails, and the run continues ----
mkdir elsewhere
cp rows.json items.jsonl elsewhere
expect_exit 1 on_rank 2 'cd elsewhere' "${ablate[@]}" -q -o far >out.txt 2>err.txt
expect_line err.txt "^vptq-eval: rank 2: does not see the directory 'far' of rank 0; put it where all see it$"
for change in 's/"centroids": 16/"centroids": 32/' 's/"retrain": 1/"retrain": 2/'; do # with other bits, and the same
    sed "$change" rows.json >elsewhere/rows.json
    expect_exit 1 on_rank 1 'cd elsewhere' "${ablate[@]}" -q -o other >out.txt 2>err.txt
    expect_line err.txt '^vptq-eval: the table, the Hessians or a text differs between the processes of this run: '
    [ ! -e other ] || fail "begun with other rows"
done
if [ -e "${FAULTS:-}" ]; then
    # all collect the Hessians: a rank fails there, and with these finished the one that first writes six files of rows
    full="export LD_PRELOAD=$FAULTS VPTQ_FAULT=rename:ENOSPC"
    expect_exit 1 on_rank 1 "$full:1-" "${ablate[@]}" -q -o full >out.txt 2>err.txt
    expect_line err.txt "^vptq-eval: rank 1: .*hessians.*: No space left on device$"
    ranks 3 "${ablate[@]}" -q -o full --keep-packed --format json >many.json
    rm -r full/work/* full/rows/* full/packed/*
    expect_exit 1 ranks 3 sh -c "$full:6-; "'exec "$@"' sh "${ablate[@]}" -q -o full >out.txt 2>err.txt
    expect_line err.txt "^vptq-eval: \(rank [12]: \)\?row '.*: No space left on device$"
    ranks 3 "${ablate[@]}" -q -o full --keep-packed --format json >many.json
    expect_same one.json many.json "after a full disk"
fi
