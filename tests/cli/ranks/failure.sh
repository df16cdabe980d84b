# shellcheck disable=SC2016 # ranks expand their number themselves
# A rank that dies, is interrupted or cannot write ends the run; the rerun, with another number of ranks, has the bytes
# of one process.
needs_ranks
# what is freed goes back to the system or is overwritten: a run that stops must not leave memory to messages under way
export MALLOC_PERTURB_=165 MALLOC_MMAP_THRESHOLD_=4096
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 8 -l 128 -o h -q
args=(-m "$model" --tokenizer "$tok" -t 1 -q -H h -v 8 -k 256 -r 64)
"$BIN/vptq-quantize" "${args[@]}" -o one >/dev/null

# wait_for_files DIR COUNT: until the running job has finished so many matrices.
wait_for_files()
{
    local enough='[ "$(ls "$1"/*.safetensors 2>/dev/null | wc -l)" -ge "$2" ]'
    wait_for 60 sh -c "$enough || ! kill -0 $job 2>/dev/null" sh "$@"
    sh -c "$enough" sh "$@" || fail "the run has ended: $(cat out.txt err.txt 2>/dev/null)"
}

# kill_rank VICTIM FILES OUT COMMAND..: kill -9 of a rank of 3 once OUT has so many files.
kill_rank()
{
    local victim=$1 files=$2 out=$3
    shift 3
    rm -rf "$out" pids
    mkdir pids
    ranks 3 sh -c "echo \$\$ >pids/$RANK; "'exec "$@"' sh "$@" -o "$out" >out.txt 2>&1 &
    job=$!
    wait_for_files "$out" "$files"
    kill -9 "$(cat "pids/$victim")" 2>/dev/null || true # it may have ended
    status=0
    wait "$job" || status=$?
    [ "$status" -ne 124 ] || fail "hangs without rank $victim: $(cat out.txt)"
}

# Collecting, once some layers are finished; the first moment of several.
collect=("$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 40 -l 256 --weights sink -t 1 -q)
"${collect[@]}" -o collected >/dev/null
RANDOM=24
kill_rank $((RANDOM % 3)) $((1 + RANDOM % 20)) interrupted "${collect[@]}"
when_free ranks 2 "${collect[@]}" -o interrupted
expect_same collected interrupted

# Quantizing, once some matrices are finished, at seeded moments (VPTQ_RANK_MOMENTS=20 takes more).
for ((moment = 1; moment < ${VPTQ_RANK_MOMENTS:-6}; moment++)); do
    kill_rank $((RANDOM % 3)) $((1 + RANDOM % 33)) killed "$BIN/vptq-quantize" "${args[@]}"
    for f in killed/*.safetensors; do
        [ ! -e "$f" ] || expect_same "$f" "one/${f##*/}"
    done
    [ "$status" -ne 0 ] || [ -e killed/report.jsonl ] || fail "status 0 without a report"
    when_free ranks 2 "$BIN/vptq-quantize" "${args[@]}" -o killed
    expect_same one killed
done

# expect_end OUT: the job ends, with status 0 only if it has written its report.  MPICH's launcher may also end with 0,
# the status of all ranks but the first, which says that it was interrupted.
expect_end()
{
    status=0
    wait "$job" || status=$?
    [ "$status" -ne 124 ] || fail "hangs after SIGTERM: $(cat err.txt)"
    [ "$status" -ne 0 ] || [ -e "$1/report.jsonl" ] || grep -q ': interrupted; ' err.txt ||
        fail "status 0 without a report: $(cat err.txt)"
}

# SIGTERM to the launcher, as batch systems send it before they kill.
ranks 3 "$BIN/vptq-quantize" "${args[@]}" -o term >out.txt 2>err.txt &
job=$!
wait_for 60 sh -c 'ls term/*.safetensors >/dev/null 2>&1'
pkill -TERM -P "$job" || true # timeout's child
expect_end term
when_free "$BIN/vptq-quantize" "${args[@]}" -o term
expect_same one term

# The same while ranks send their matrices to the first one.
for files in 1 6 14; do
    sent=sent$files # of its own: ranks of the run before may still be writing
    ranks 3 "$BIN/vptq-quantize" "${args[@]}" -o "$sent" --no-shared-dir >out.txt 2>err.txt &
    job=$!
    wait_for_files "$sent" "$files"
    pkill -TERM -P "$job" || true
    expect_end "$sent"
done
when_free "$BIN/vptq-quantize" "${args[@]}" -o "$sent"
expect_same one "$sent"

# Ranks whose disk is full from the sixth file on, which one of them writes, whoever gets how many matrices.
[ -e "${FAULTS:-}" ] || skip "needs FAULTS, the library of tests/faults"
full="export LD_PRELOAD=$FAULTS VPTQ_FAULT=rename:ENOSPC:6-"
expect_exit 1 ranks 3 sh -c "$full; "'exec "$@"' sh "$BIN/vptq-quantize" "${args[@]}" -o full >out.txt 2>err.txt
expect_line err.txt "^vptq-quantize: \(rank [12]: \)\?model.layers.*: cannot .*: No space left on device"
ranks 4 "$BIN/vptq-quantize" "${args[@]}" -o full >/dev/null
expect_same one full
# One of them, which is sent every matrix.
sequential=(-m "$model" --tokenizer "$tok" -t 1 -q -c "$text" -n 4 -l 64 -v 4 -k 16 --sequential --layers 0-1)
expect_exit 1 on_rank 2 "$full" "$BIN/vptq-quantize" "${sequential[@]}" --no-shared-dir -o spread >out.txt 2>err.txt
expect_line err.txt "^vptq-quantize: rank 2: .*: No space left on device"
when_free ranks 4 "$BIN/vptq-quantize" "${sequential[@]}" -o spread
"$BIN/vptq-quantize" "${sequential[@]}" -o alone >/dev/null
expect_same alone spread
