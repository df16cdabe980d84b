# INT, TERM, HUP and PIPE at seeded moments of every command, a moment being a system call (tests/faults): the
# status says which signal it was, no output is partial, finished work is kept, and after another run the outputs
# have the bytes of an undisturbed one.  VPTQ_SIGNAL_MOMENTS=N sets the moments per command, VPTQ_SIGNAL_SEED
# where they are.
needs_own_machine "hundreds of commands take hours"
[ -e "${FAULTS:-}" ] || skip "needs FAULTS, the library of tests/faults"
model=$(data models/stories260K-hf)
tiny=$(data text/tinystories/tiny.utf8)
moments=4
! is_instrumented || moments=2
moments=${VPTQ_SIGNAL_MOMENTS:-$moments}
seed=${VPTQ_SIGNAL_SEED:-1}
runs=0
head -c 6000 "$tiny" > text
head -c 1500 "$tiny" > short
grep -v '^$' short | head -n 3 |
    sed 's/["\\]//g; s/.*/{"query": "&", "choices": ["yes", "no"], "gold": 0}/' > items.jsonl

# seeded COUNT COMMAND: `moments` numbers within 1..COUNT.
seeded()
{
    awk -v n="$1" -v m="$moments" -v s="$seed$(cksum <<< "$2" | cut -c1-6)" \
        'BEGIN { srand(s); for (i = 0; i < m; i++) print int(rand() * n) + 1 }'
}

# finished DIR: the matrices in it, or the Hessians of layers that have all five, with the numbers of their inodes.
finished()
{
    find "$1" -name '*.safetensors' -printf '%P %i\n' 2> /dev/null | sort | awk -v hessians="$2" '
        hessians { layer = substr($1, 1, 9); n[layer]++; lines[layer] = lines[layer] $0 "\n"; next }
        { print }
        END { for (layer in n) if (n[layer] == 5) printf "%s", lines[layer] }' | sort
}

# signals NAME OUT COMMAND..: COMMAND writes OUT, or prints its results if that is "-"; "?" is for results that
# differ from run to run.
signals()
{
    local name=$1 out=$2 kinds=(INT TERM HUP PIPE) i=0 n kind status want
    shift 2
    rm -rf good again "$out"
    faulty any:none:1/1 "$@" > good.txt 2> err.txt || fail "$name: $(cat err.txt)"
    n=$(wc -l < faults.log)
    [ ! -e "$out" ] || mv "$out" good
    find . -name '*.seconds' -delete
    for n in $(seeded "$n" "$name"); do
        kind=${kinds[i++ % 4]}
        want=$((128 + $(kill -l "$kind")))
        rm -rf "$out"
        status=0
        faulty "any:$kind:$n" "$@" > out.txt 2> err.txt || status=$?
        [ "$status" = "$want" ] || [ "$status" = 0 ] ||
            fail "$name: status $status after $kind at call $n: $(tail -n 3 err.txt)"
        # before the handlers are there, a signal ends the process as it always does
        [ "$status" != 0 ] || [ "$kind" = PIPE ] || [ -e "$out" ] || [ ! -e good ] ||
            fail "$name: status 0 without an output after $kind at call $n"
        case $name in
        collect*) finished "$out" 1 > before.txt ;;
        quantize*) finished "$out" 0 > before.txt ;;
        ablate) finished "$out/work" 0 > before.txt ;;
        tune*) : > before.txt ;;
        *)
            [ "$status" = 0 ] || [ ! -e "$out" ] || expect_same "$out" good "after $kind at call $n of $name"
            : > before.txt
            ;;
        esac
        runs=$((runs + 1))
        # a single file or directory that is already there is complete
        [[ $name = collect* || $name = quantize* || $name = ablate || $name = tune* ]] || rm -rf "$out"
        "$@" > out.txt 2> err.txt || fail "$name after $kind at call $n: $(cat err.txt)"
        case $name in
        collect*) finished "$out" 1 > after.txt ;;
        quantize*) finished "$out" 0 > after.txt ;;
        ablate) finished "$out/work" 0 > after.txt ;;
        *) : > after.txt ;;
        esac
        [ -z "$(comm -23 before.txt after.txt)" ] || fail "$name: finished work was lost after $kind at call $n"
        find . -name '*.seconds' -delete
        (no_leftovers .) || fail "$name after $kind at call $n"
        [ ! -e good ] || [ "$out" = "?" ] || expect_same "$out" good "after $kind at call $n of $name"
        [ "$out" != - ] || expect_same out.txt good.txt "after $kind at call $n of $name"
    done
    rm -rf "$out"
}

collect=("$BIN/vptq-hessian" -qq -m "$model" -c text -n 2 -l 64 -t 2)
quantize=("$BIN/vptq-quantize" -qq -m "$model" --layers 0-1 -k 16 --kmeans-iterations 2 -t 2)
"${collect[@]}" -o h > /dev/null
"${collect[@]}" -o g --seed 2 > /dev/null
"$BIN/vptq-hessian" -qq --export h -o pt > /dev/null
"${quantize[@]}" -H h -o w > /dev/null
"$BIN/vptq-pack" -qq w -o packed > /dev/null
echo '[{"name": "a", "settings": {"vector_length": 4, "centroids": 16}, "tune": "layer"}]' > rows.json

signals collect out "${collect[@]}" -o out
signals collect-spilled out "${collect[@]}" -o out --mem 3M
signals merge out "$BIN/vptq-hessian" -qq --merge h g -o out
signals export out "$BIN/vptq-hessian" -qq --export h -o out
signals import out "$BIN/vptq-hessian" -qq --import pt -o out
signals show - "$BIN/vptq-hessian" --show h
signals quantize out "${quantize[@]}" -H h -o out
signals quantize-sequential out "${quantize[@]}" -c text -n 2 -l 64 --sequential -o out
signals tune out "$BIN/vptq-quantize" -qq --from w --tune e2e -c text -n 4 -l 64 --batch 1 --steps 12 -t 2 -o out
signals tune-layer out "$BIN/vptq-quantize" -qq --from w --tune layer,e2e -c text -n 4 -l 16 --batch 1 --passes 1 \
    --steps 2 --self-text 2 -t 2 -o out
signals ablate out "$BIN/vptq-eval" ablate -qq -m "$model" --table rows.json -c text -n 2 -l 64 --text short \
    --context 64 --layers 0-0 --set kmeans_iterations=2 -o out
signals pack out "$BIN/vptq-pack" -qq w -o out
signals pack-archive out "$BIN/vptq-pack" -qq w -o out --to archive
signals unpack out "$BIN/vptq-pack" -qq --unpack packed -o out
signals unpack-gguf out.gguf "$BIN/vptq-pack" -qq --unpack packed -o out.gguf
signals repair out "$BIN/vptq-pack" -qq --repair packed -o out
signals list - "$BIN/vptq-pack" --list packed
signals check - "$BIN/vptq-pack" --check packed
signals ppl dump "$BIN/vptq-eval" ppl -q -m packed --text short --context 64 --dump dump
signals kld "?" "$BIN/vptq-eval" kld -q -m packed --base "$model" --text short --context 64
signals tasks "?" "$BIN/vptq-eval" tasks -q -m packed --task a=items.jsonl
signals error - "$BIN/vptq-eval" error -q -m packed --base "$model" -H h --layers 0-1
signals generate - "$BIN/vptq-eval" generate -q -m packed -p once -n 8 --temperature 0
signals gemv "?" "$BIN/vptq-eval" gemv -q --shape 64x64 --seconds 0.01
signals serve "?" "$BIN/vptq-eval" serve -q -m m=packed --config 2,4,2 --runs 1 --warmup 0 -o records.jsonl
echo "$runs moments"
