# shellcheck disable=SC2016 # ranks expand their number themselves
# Tuning over several processes: the bytes and rows of one, for any number of them and after interruptions.
needs_ranks
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
light=(-m "$model" --tokenizer "$tok" -v 4 -k 16 --joint 0 --retrain 0 --sweeps 1 --refits 0 -t 1 -q)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 8 -l 128 -o h -q >/dev/null
"$BIN/vptq-quantize" "${light[@]}" -H h -o work >/dev/null
tune=("$BIN/vptq-quantize" --from "$PWD/work" -c "$text" --holdout 0.25 --rate 0.01 -t 1 -q)

# figures FILE: the rows without what differs from run to run.
figures() { sed -E 's/"(seconds|work)": [^,}]*|"step_seconds": \{[^}]*\}//g' "$1"; }

# compare NAME COUNTS COMMAND..: from one process and from each number of them.
compare()
{
    local name=$1 counts=$2 n
    shift 2
    mkdir -p "$name"
    (cd "$name" && "$@" -o one --format json >one.json 2>one.txt)
    for n in $counts; do
        (cd "$name" && ranks "$n" "$@" -o "$n" --format json >"$n.json" 2>err.txt) ||
            fail "$name by $n ranks: $(cat "$name/err.txt")"
        expect_same "$name/one" "$name/$n" "$name by $n ranks"
        no_leftovers "$name/$n"
        figures "$name/one.json" >want.txt
        figures "$name/$n.json" >got.txt
        expect_same want.txt got.txt "rows of $name by $n ranks"
    done
}

# Open MPI would take --tune e2e for an option of its own.
# Steps have three groups of windows, the last one smaller; 3 held-out windows are two groups.
steps=(--tune=e2e -n 12 -l 700 --batch 5)
compare e2e "2 3 4" "${tune[@]}" "${steps[@]}" --steps 2
[ "$(wc -l <e2e/one.json)" = 4 ] || fail "expected the start, 2 steps and the sums: $(cat e2e/one.json)"
compare layer "4" "${tune[@]}" --tune=layer -n 12 -l 64 --batch 4 --passes 2
compare both "3" "${tune[@]}" --tune=layer,e2e -n 8 -l 64 --batch 34 --passes 1 --steps 2 --self-text 40
compare stage "2" "$BIN/vptq-quantize" "${light[@]}" -H ../h --tune=e2e -c "$text" --steps 2 --batch 3

# Finished: nothing is done again.
ranks 2 "${tune[@]}" "${steps[@]}" --steps 2 -o e2e/2 >again.txt
[ "$(tail -n 1 again.txt)" = "digest $(tail -n 1 e2e/one.json | json_get digest)" ] || fail "$(cat again.txt)"
! grep -q '^ *1 ' again.txt || fail "steps of a finished run"

# Hidden states that memory cannot hold, own text of an earlier run, and kept hidden states of the original.
spilled=("${tune[@]}" --tune=layer -n 40 -l 128 --batch 4 --passes 1 --mem 6M)
compare spilled "2" "${spilled[@]}" --log-dir logs --verbose
for i in 0 1; do
    grep -q "hidden states (.* MiB) go to a file in '2'" "spilled/logs/rank-$i.log" ||
        fail "rank $i: $(cat "spilled/logs/rank-$i.log")"
done
mkdir again
cp both/one/self_text.safetensors again
ranks 2 "${tune[@]}" --tune=layer,e2e -n 8 -l 64 --batch 34 --passes 1 --steps 2 --self-text 40 -o again >/dev/null
expect_same both/one again

# stop COUNT SIGNAL COMMAND..: SIGTERM to the launcher of COUNT processes, or SIGKILL to the last of them, once there is
# a state in stopped/, or a run that is finished.
stop()
{
    local n=$1 signal=$2 job
    shift 2
    rm -rf stopped pids
    mkdir pids
    ranks "$n" sh -c "echo \$\$ >pids/$RANK; "'exec "$@"' sh "$@" -o stopped >out.txt 2>err.txt &
    job=$!
    wait_for 120 test -e stopped/tune.state -o -e stopped/report.jsonl # a finished run has no state
    if [ "$signal" = TERM ]; then
        pkill -TERM -P "$job" || true # timeout's child
    else
        kill -9 "$(cat "pids/$((n - 1))")" 2>/dev/null || true
    fi
    wait "$job" || [ $? -ne 124 ] || fail "hangs: $(cat err.txt)"
}

# Whatever one number of processes leaves, another goes on with.
long=("${tune[@]}" --tune=e2e -n 16 -l 64 --batch 4 --steps 300)
compare long "" "${long[@]}"
for signal in KILL TERM; do
    stop 3 $signal "${long[@]}"
    late=$(find stopped -name report.jsonl) # the run was faster than the signal
    rest=(ranks 2 "${long[@]}" -o stopped --format json)
    [ $signal = KILL ] || rest=("${rest[@]:2}")
    when_free "${rest[@]}"
    expect_same long/one stopped "after SIG$signal"
    [ -n "$late" ] || [ "$(sed -n 2p out.txt | json_get step)" -ge 11 ] || fail "a state is not used: $(cat out.txt)"
done
layers=("${tune[@]}" --tune=layer -n 12 -l 128 --batch 4 --passes 4)
compare layers "" "${layers[@]}"
stop 2 TERM "${layers[@]}"
late=$(find stopped -name report.jsonl)
when_free ranks 4 "${layers[@]}" -o stopped --format json
expect_same layers/one stopped
[ -n "$late" ] || [ "$(head -n 1 out.txt | json_get layer)" != 0 ] ||
    fail "a finished layer is tuned again: $(cat out.txt)"

# What does not fit together.
expect_exit 1 on_rank 1 'set -- "$@" --seed 7' "${tune[@]}" "${steps[@]}" --steps 3 -o new >out.txt 2>err.txt
expect_line err.txt "vptq-quantize: the list of options differs between the processes of this run: .* --rate 0.01\" at rank 0, .* --seed 7\" at rank 1"
expect_exit 1 on_rank 2 'set -- "$@" --from nowhere' "${tune[@]}" "${steps[@]}" --steps 3 -o new >out.txt 2>err.txt
expect_line err.txt "vptq-quantize: rank 2: .*nowhere"
[ ! -e new ] || fail "a run that cannot begin makes its directory"
expect_exit 1 ranks 2 "$BIN/vptq-quantize" "${light[@]}" -H h --tune=e2e -c "$text" --no-shared-dir -o new >out.txt 2>err.txt
expect_line err.txt "vptq-quantize: --tune reads .* in every process and cannot run with --no-shared-dir; .*--from"

# A rank whose disk is full, where it keeps hidden states; one sentence.  A process without a fault goes on.
[ -e "${FAULTS:-}" ] || skip "needs FAULTS, the library of tests/faults"
expect_exit 1 on_rank 2 "export LD_PRELOAD=$FAULTS VPTQ_FAULT=pwrite:ENOSPC:30-" "${spilled[@]}" -o full >out.txt 2>err.txt
expect_line err.txt "vptq-quantize: rank 2: cannot write hidden states in 'full': No space left on device"
[ "$(grep -c '^vptq-quantize: ' err.txt)" = 1 ] || fail "not one sentence: $(cat err.txt)"
"${spilled[@]}" -o full >/dev/null
expect_same spilled/one full
