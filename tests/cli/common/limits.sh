# Every command of the tools under limits of the process (memory, file size, open files, stack) and in poor
# surroundings (a directory or disk that takes nothing, closed streams, no HOME, TMPDIR or /proc, other
# locales): an answer within 10 seconds, which is either success with the usual bytes or exit 1 with one
# sentence besides warnings, and no temporary files.  Each command meets a third of the conditions
# (instrumented ones a sixth); with VPTQ_LONG=1 (make check-long) all of them.
#   limits.log lists what was run.
needs_own_machine "the limits and the seconds would be those of the emulator"
of=3
! is_instrumented || of=6
model=$(data models/stories260K-hf)
tiny=$(data text/tinystories/tiny.utf8)

# An ordinary user reads this directory and the tools.
place=$(mktemp -d "/tmp/vptq-limits.XXXXXX")
trap 'chmod -R u+rwx "$place"; rm -rf "$place"' EXIT
chmod 755 "$place"
cd "$place" || exit
mkdir bin run want
cp "$BIN"/vptq-* bin
cp -rL "$model" model
head -c 6000 "$tiny" >text
cp "$SRC/tests/golden/tasks/copa.jsonl" .
echo '[{"name": "a", "settings": {"centroids": 16}}]' >rows.json
hessian=$place/bin/vptq-hessian quantize=$place/bin/vptq-quantize pack=$place/bin/vptq-pack eval=$place/bin/vptq-eval
{
    "$hessian" -m model -c text -n 2 -l 64 --layers 0-0 -t 2 -o h
    "$quantize" -m model -H h --layers 0-0 -k 16 -t 2 -o w
    "$pack" w -o p
    "$pack" w -o a.vptq
    "$hessian" --export h -o pt
    "$eval" serve -m m=a.vptq --config 2,4,2 --runs 1 --warmup 0 -o records.jsonl
} >made.txt 2>&1 || fail "$(cat made.txt)"
chmod -R a+rX .

# NAME KINDS COMMAND..: kinds are t (its figures contain times) and r (it goes on with an unfinished output).
commands="
collect rt $hessian -m ../model -c ../text -n 2 -l 64 --layers 0-0 -o out
merge - $hessian --merge ../h ../h -o out
show - $hessian --show ../h
import - $hessian --import ../pt -o out
export r $hessian --export ../h -o out
quantize rt $quantize -m ../model -H ../h --layers 0-0 -k 16 -o out
calibrate rt $quantize -m ../model -c ../text -n 2 -l 64 --layers 0-0 -k 16 -o out
tune rt $quantize --from ../w --tune e2e -c ../text -n 4 -l 64 --batch 1 --steps 2 -o out
tune-layer rt $quantize --from ../w --tune layer,e2e -c ../text -n 4 -l 16 --batch 1 --passes 1 --steps 1 \
--self-text 2 -o out
plan t $quantize -m ../model --dry-run
presets - $quantize --preset list
pack t $pack ../w -o out
archive t $pack ../w -o out.vptq
unpack t $pack --unpack ../p -o out
gguf t $pack --unpack ../w -o out.gguf
list - $pack --list ../a.vptq
check - $pack --check ../a.vptq
digest - $pack --digest ../a.vptq
repair t $pack --repair ../p -o out
version t $pack --version --verbose
help - $eval ppl --help
ppl t $eval ppl -m ../a.vptq --text ../text --context 64 --windows 2 --dump out
kld t $eval kld -m ../p --base ../model --text ../text --context 64 --windows 2
record t $eval kld --base ../model --text ../text --context 64 --windows 2 --save-base out
error - $eval error -m ../w --base ../model -H ../h --layers 0-0 --format csv -o out
tasks t $eval tasks -m ../a.vptq --task copa=../copa.jsonl --limit 2 --samples out
generate t $eval generate -m ../a.vptq -p Once -n 8
gemv t $eval gemv --shape 64x48 --books 16+4 --seconds 0.001
serve t $eval serve -m m=../a.vptq --config 2,4,2 --runs 1 --warmup 0
ablate r $eval ablate -m ../model -c ../text -n 2 -l 64 --layers 0-0 --text ../text \
--context 64 --text-windows 1 --table ../rows.json --no-seconds -o out
compare - $eval compare ../records.jsonl -o out"

# start SECONDS DIR PRELUDE COMMAND..: runs the command in DIR after the prelude; leaves status, stdout, stderr.
start()
{
    local dir=$2 prelude=$3
    local -a words=("${@:4}" -q)
    status=0
    # shellcheck disable=SC2016
    timeout -k 1 "$1" bash -c "cd $dir && $prelude"' && exec "$@"' limits "${words[@]}" </dev/null \
        >stdout 2>stderr || status=$?
}

# outputs DIR: checks that a run left nothing but its output there.
outputs()
{
    local found
    found=$(find "$1" -mindepth 1 -maxdepth 1 ! -name 'out*'
        find "$1" -name '*.tmp.*' -o -name '*.old.*')
    [ -z "$found" ] || fail "$what: left over: $found"
}

# tidy: removes what differs from run to run: the holder of a lock, timings.
tidy()
{
    [ ! -e run/out/lock ] || : >run/out/lock
    rm -f run/out/rows/*.seconds
}

# same DIR: the results are those in DIR.
same()
{
    expect_same run "$1/run" "$what"
    case $kinds in *t*) ;; *) [ -n "$deaf" ] || expect_same stdout "$1/stdout" "$what" ;; esac
}

# answer: checks the answer to a command under a condition that may stop it.
answer()
{
    local sentences
    outputs run
    tidy
    sentences=$(grep -a -v -c ': warning: ' stderr || true)
    case $status in
    0) same "$place/want/$name" ;;
    1)
        [ -z "$must" ] || fail "$what: $(cat stderr)"
        [ -n "$mute" ] || [ "$sentences" -eq 1 ] || fail "$what: not one sentence: $(head -c 2000 stderr)"
        [ -n "$mute" ] || grep -q -a '^vptq-[a-z]*: [^ ].*[^.]$' stderr || fail "$what: $(head -c 2000 stderr)"
        case $kinds in
        *r*) ;;
        *) [ -z "$(ls run)" ] || [ -n "$deaf" ] || fail "$what: failed, but left $(ls run)" ;;
        esac
        ;;
    124 | 137) fail "$what: no answer within 10 seconds" ;;
    *) fail "$what: exit status $status: $(head -c 2000 stderr)" ;;
    esac
}

# again: what the failed run left does not disturb the next one.
again()
{
    [ "$status" -ne 0 ] && [ -n "$(ls run)" ] || return 0
    what="$what, run again"
    start 20 run true "${command[@]}"
    [ "$status" -eq 0 ] || [ -n "$deaf" ] || fail "$what: $(cat stderr)"
    tidy
    [ -n "$deaf" ] || expect_same run "$place/want/$name/run" "$what"
}

# condition NAME KINDS DIR PRELUDE: every command whose turn it is; kinds: m (the command must succeed),
# d (it cannot print results), e (nor messages), c (not with instrumented programs, whose memory is another).
turn=0
condition()
{
    local what deaf='' mute='' must='' name kinds index=0 status
    local -a command
    case $2 in *c*) ! is_instrumented || return 0 ;; esac
    case $2 in *m*) must=1 ;; esac
    case $2 in *d*) deaf=1 ;; esac
    case $2 in *e*) mute=1 ;; esac
    turn=$((turn + 1))
    while read -r name kinds command; do
        [ -n "$name" ] || continue
        index=$((index + 1))
        [ -n "${VPTQ_LONG:-}" ] || [ $(((turn + index) % of)) -eq 0 ] || continue
        read -ra command <<<"$command"
        what="$name with $1"
        rm -rf run
        mkdir run
        start 10 "$3" "$4" "${command[@]}"
        echo "$status $what $(head -c 200 stderr | head -n 1)" >>limits.log
        answer
        again
    done <<<"$commands"
}

while read -r name kinds command; do
    [ -n "$name" ] || continue
    rm -rf run
    mkdir run
    read -ra command <<<"$command"
    start 60 run true "${command[@]}"
    [ "$status" -eq 0 ] || fail "$name: $(cat stderr)"
    what=$name
    outputs run
    tidy
    mkdir "want/$name"
    cp -a run stdout stderr "want/$name"
done <<<"$commands"

# ---- limits of the process ----
for kib in 40000 70000 150000 300000 ${VPTQ_LONG:+25000 55000 100000 220000 400000 480000 700000}; do
    condition "ulimit -v $kib" c run "ulimit -v $kib"
done
for kib in 1 ${VPTQ_LONG:+3 20 100}; do condition "ulimit -f $kib" - run "ulimit -f $kib"; done
condition "ulimit -n 16" - run "ulimit -n 16"
for files in ${VPTQ_LONG:+6 8}; do condition "ulimit -n $files" - run "ulimit -n $files"; done
for kib in 256 ${VPTQ_LONG:+128 1024}; do condition "ulimit -s $kib" cm run "ulimit -s $kib"; done

# ---- surroundings ----
condition "closed stdin" m run "exec <&-"
condition "closed stdout" d run "exec >&-"
condition "closed stderr" e run "exec 2>&-"
condition "closed streams" de run "exec <&- >&- 2>&-"
condition "no HOME and TMPDIR" m run "unset HOME TMPDIR"
condition "a missing TMPDIR" m run "export TMPDIR=/nonexistent"
for locale in C.UTF-8 tr_TR.UTF-8 x; do condition "LC_ALL=$locale" m run "export LC_ALL=$locale"; done

# ---- what needs root ----
if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then
    condition "a read-only directory" - run \
        "chmod 555 . && set -- setpriv --reuid 65534 --regid 65534 --clear-groups \"\$@\""
fi
if unshare -m umount -l /proc 2>/dev/null; then
    condition "no /proc" c run "set -- unshare -m sh -c 'umount -l /proc && exec \"\$@\"' sh \"\$@\""
fi

# A disk of 4 MiB with little room left; what the command leaves there is brought to run.
cat >small_disk <<'E'
exec 3<. && mount -t tmpfs -o size=4m small "$PWD" && cd "$PWD" || exit 100
head -c $((4096 - $1))K /dev/zero >filler
shift
status=0
"$@" || status=$?
rm filler
cp -a . /proc/self/fd/3 || exit 100
exit "$status"
E
if (cd run && unshare -m bash ../small_disk 64 true) 2>/dev/null; then
    for kib in 64 ${VPTQ_LONG:+16 256}; do
        condition "a disk of 4 MiB with $kib KiB left" - run "set -- unshare -m bash ../small_disk $kib \"\$@\""
    done
fi
