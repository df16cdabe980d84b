# Collecting over several processes: the same bytes for any number of them, also after an interruption and another
# number of them.
needs_ranks
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
args=(-m "$model" --tokenizer "$tok" -c "$text" -n 20 -l 64 --holdout 0.2 -t 1 -q)
hessian=$BIN/vptq-hessian

# by N OUT OPTION..: collects in N processes.
by()
{
    local n=$1 out=$2
    shift 2
    ranks "$n" "$hessian" "${args[@]}" -o "$out" "$@" >out.txt 2>err.txt || fail "$out: $(cat err.txt)"
}

# compare NAME COUNTS OPTION..: one process and each number of them.
compare()
{
    local name=$1 counts=$2 n
    shift 2
    "$hessian" "${args[@]}" -o "$name" "$@" >one.txt
    for n in $counts; do
        by "$n" "$name-$n" "$@"
        expect_same "$name" "$name-$n"
        no_leftovers "$name-$n"
        [ "$(wc -l <out.txt)" = 1 ] || fail "not one line from $n processes: $(cat out.txt)"
    done
}

# 16 windows to learn from are two chunks: with more processes some have no windows.
compare sink "2 3 4 7" --weights sink
compare attention "2 3 4 7" --weights attention
compare guided "3" --weights guided
compare outputs "2" --weights plain --outputs 12

# Hidden states that memory cannot hold.
compare spilled "2" --weights plain -n 400 --mem 8M
by 2 spilled-log --weights plain -n 400 --mem 8M --log-dir logs -v
[ "$(cat logs/* | grep -c "hidden states (.* MiB) go to a file in 'spilled-log'")" = 2 ] ||
    fail "hidden states were not in files: $(cat logs/*)"

# Finished again, and the same from JSON; a rank that says nothing has no log.
by 3 sink-3 --weights sink --format json --log-dir quiet
[ "$(ls quiet)" = rank-0.log ] || fail "logs of ranks: $(ls quiet)"
[ "$(json_get layers_done out.txt)" = 0 ] || fail "a finished collection was run again: $(cat out.txt)"

# A plan, once.
ranks 2 "$hessian" "${args[@]}" --dry-run >out.txt 2>err.txt || fail "$(cat err.txt)"
expect_line out.txt '^plan: 16 windows of 64 tokens, 5 layers to do, '

# Whatever layers one number of processes has finished, another number continues with.
args=(-m "$model" --tokenizer "$tok" -c "$text" -n 40 -l 256 --holdout 0.2 -t 1 -q --weights sink)
"$hessian" "${args[@]}" -o whole >out.txt
next=(3 1 2 4)
for n in 2 4 1 3; do
    rm -rf cut
    # shellcheck disable=SC2154 # needs_ranks sets it
    "${launch[@]}" -n "$n" "$hessian" "${args[@]}" -o cut >out.txt 2>err.txt &
    pid=$!
    wait_for 60 test -e cut/layer_001_down.safetensors
    kill -TERM "$pid" 2>/dev/null || true
    wait "$pid" || true
    rest=("$hessian" "${args[@]}" -o cut --format json)
    [ "${next[n - 1]}" = 1 ] || rest=(ranks "${next[n - 1]}" "${rest[@]}")
    when_free "${rest[@]}"
    [ "$(json_get layers_reused out.txt)" -ge 1 ] || fail "finished layers were collected again"
    expect_same whole cut "after $n processes were interrupted"
    no_leftovers cut
done

# Refusals are one sentence, and status and text are those of one process.
for option in "--show whole" "--import whole -o x" "--export whole -o x" "--merge whole whole -o x"; do
    # shellcheck disable=SC2086 # words of the options
    expect_exit 2 ranks 2 "$hessian" $option >out.txt 2>err.txt
    expect_line err.txt "vptq-hessian: ${option%% *} runs in one process, not in 2"
done
expect_exit 1 ranks 2 "$hessian" "${args[@]}" --seed 3 -o whole >out.txt 2>err.txt
expect_line err.txt "'whole' holds hessians of another text, seed or window length: key "
[ "$(grep -c '^vptq-hessian: ' err.txt)" = 1 ] || fail "more than one sentence: $(cat err.txt)"
# A process that does not see the directory.
printf '#!/bin/sh\nmkdir -p "at-%s" && cd "at-%s" && exec "%s" "$@" -o unseen\n' "$RANK" "$RANK" "$hessian" >apart.sh
chmod +x apart.sh
expect_exit 1 ranks 2 ./apart.sh "${args[@]}" >out.txt 2>err.txt
expect_line err.txt "rank 1: does not see the directory 'unseen' of rank 0; put it where all see it"
# A process whose options differ.
printf '#!/bin/sh\nexec "%s" "$@" --seed "%s"\n' "$hessian" "$RANK" >other.sh
chmod +x other.sh
expect_exit 1 ranks 2 ./other.sh "${args[@]}" -o differ >out.txt 2>err.txt
expect_line err.txt 'the list of options differs between the processes of this run: ".* --seed 0" at rank 0, ".* --seed 1" at rank 1$'
