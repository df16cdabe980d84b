# shellcheck shell=bash
# Helpers of the command-line tests; sourced by scripts/run_cli_tests.sh before each test.

# Messages of the helpers go to the stderr of the test, even if that of a call is redirected.
exec 3>&2

# fail MESSAGE: ends the test as failed.
fail()
{
    echo "FAIL: $*" >&3
    exit 1
}

# skip REASON: ends the test as skipped.
skip()
{
    echo "SKIP: $*" >&3
    exit 77
}

# needs_own_machine REASON: skips the test where qemu runs the tools (UNDER).
needs_own_machine()
{
    case ${UNDER:-} in *qemu*) skip "not under qemu: $1" ;; esac
}

# is_instrumented: the tools are instrumented, and a few times slower; tests of many similar cases take fewer of them.
is_instrumented()
{
    case $BIN in *address* | *thread*) ;; *) return 1 ;; esac
}

# long_if_instrumented: skips a test that takes minutes in instrumented builds, where unit tests run its code.
# VPTQ_LONG=1 runs it.
long_if_instrumented()
{
    ! is_instrumented || [ -n "${VPTQ_LONG:-}" ] || skip "takes minutes when instrumented (VPTQ_LONG=1 runs it)"
}

# data NAME: prints the path of a file in the data directory; skips the test if it is missing.
#     text=$(data text/wikitext2/wiki.test.raw)
data()
{
    [ -e "$DATA/$1" ] || skip "needs $1, which is not in the data directory (VPTQ_DATA)"
    echo "$DATA/$1"
}

# needs_ranks: skips the test in builds without MPI, and where its launcher is missing.
needs_ranks()
{
    local features
    features=$("$BIN/vptq-quantize" --version)
    case $features in
    *ompi*) launcher=$(command -v mpirun.openmpi || command -v mpirun) ;;
    *mpich*) launcher=$(command -v mpiexec.mpich || command -v mpiexec) ;;
    *) skip "this build has no MPI (make MPI=1)" ;;
    esac || skip "the launcher of MPI is missing"
    launch=("$launcher")
    case $features in
    *ompi*)
        launch+=(--oversubscribe --bind-to none)
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
        export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_orte_base_help_aggregate=1
        ;;
    esac
}

# ranks N COMMAND..: runs N processes of the command, which share the work; needs_ranks comes first.
ranks()
{
    local n=$1 own
    shift
    # Open MPI keeps its sockets there, and one run that ends removes the folder that the next one begins to use.
    own=$(mktemp -d "${TMPDIR:-/tmp}/ranks.XXXXXX")
    TMPDIR=$own timeout 300 "${launch[@]}" -n "$n" "$@"
}

# The number of a rank, in a script that it runs; ranks expand it themselves.
# shellcheck disable=SC2016,SC2034
RANK='${OMPI_COMM_WORLD_RANK:-$PMI_RANK}'

# on_rank N WHAT COMMAND..: three processes of the command, of which rank N alone does WHAT first.
on_rank()
{
    local n=$1 what=$2
    shift 2
    ranks 3 sh -c "[ $RANK = $n ] && $what; "'exec "$@"' sh "$@"
}

# when_free COMMAND..: runs the command, whose output the ranks of a stopped run may hold a moment longer than their
# launcher lives.  Leaves what it prints in out.txt and err.txt.
when_free()
{
    local tries
    for ((tries = 0; tries < 120; tries++)); do
        ! "$@" >out.txt 2>err.txt || return 0
        grep -q 'is in use by' err.txt || break
        sleep 0.5
    done
    fail "$(cat err.txt)"
}

# expect_exit STATUS COMMAND..: runs the command, whose output passes through.
expect_exit()
{
    local want=$1 status=0
    shift
    "$@" || status=$?
    [ "$status" -eq "$want" ] || fail "exit status $status, expected $want: $*"
}

# expect_error STATUS PATTERN COMMAND..: the command ends with the status, prints nothing on stdout, and a line
# of its stderr matches.  Leaves both in out.txt and err.txt.
expect_error()
{
    local status=$1 pattern=$2
    shift 2
    expect_exit "$status" "$@" >out.txt 2>err.txt
    expect_line err.txt "$pattern"
    [ ! -s out.txt ] || fail "something on stdout: $*"
}

# expect_sentence STATUS PATTERN COMMAND..: the same, and stderr has only that line.
expect_sentence()
{
    expect_error "$@"
    [ "$(wc -l <err.txt)" -eq 1 ] || fail "not one sentence: $(cat err.txt)"
}

# reseal FILE COMMAND..: puts the checksum into a changed file that the command's complaint names.
reseal()
{
    local file=$1 words
    shift
    words=$("$@" 2>&1 | sed -n 's/.*its checksum is \([0-9a-f]*\), expected \([0-9a-f]*\).*/\2 \1/p' | head -n 1)
    [ -n "$words" ] || fail "$*: does not find that $file was changed"
    LC_ALL=C sed -i "s/${words% *}/${words#* }/" "$file"
}

# expect_line FILE PATTERN: a line of the file matches the basic regular expression.
expect_line()
{
    grep -q -e "$2" "$1" || fail "no line of $1 matches '$2': $(head -c 2000 "$1")"
}

# expect_same A B [WHEN]: two files, or two directories with everything in them, are equal.
expect_same()
{
    diff -r "$1" "$2" >/dev/null ||
        fail "$1 and $2 differ${3:+ $3}: $(diff -rq "$1" "$2" | head -n 5)"
}

# expect_number A OP B: compares numbers; OP is < <= > >= == or !=.
expect_number()
{
    awk -v a="$1" -v b="$3" "BEGIN { exit !(a + 0 $2 b + 0) }" || fail "expected $1 $2 $3"
}

# expect_near A B RELATIVE: |A - B| <= RELATIVE * |B|
expect_near()
{
    awk -v a="$1" -v b="$2" -v r="$3" 'BEGIN {
        d = a - b; if (d < 0) d = -d; if (b < 0) b = -b
        exit !(d <= r * b) }' || fail "$1 is not within $3 of $2"
}

# expect_alone PAGE: the HTML page is self-contained: no scripts, no addresses, only internal links.
expect_alone()
{
    if grep -n -i -E '<script|<link|<iframe|<img|@import|url\(|//|(src|srcset|data)=' "$1" >outside.txt; then
        fail "$1 refers to other files: $(head -c 500 outside.txt)"
    fi
    if grep -o -E 'href="[^"]*"' "$1" | grep -v '^href="#' >outside.txt; then
        fail "$1 has an external link: $(head -c 500 outside.txt)"
    fi
}

# json_get KEY [FILE]: prints the values of a key in the JSON objects of a tool, one per line, strings
# without quotes.  Fails the test if there are none.
json_get()
{
    local value
    value=$(sed -n -E 's/.*[{,] ?"'"$1"'": ("([^"\\]|\\.)*"|[^],}]*).*/\1/p' "${2:--}")
    [ -n "$value" ] || fail "no key $1"
    echo "$value" | sed -E 's/^"(.*)"$/\1/'
}

# stories KEY -m MODEL..: prints a value that vptq-eval ppl reports for the first four stories of
# text/tinystories.
stories()
{
    local key=$1
    shift
    "$BIN/vptq-eval" ppl -q "$@" --text "$DATA/text/tinystories/tiny.utf8" --documents '<|endoftext|>' \
        --document-limit 4 --context 512 --format json > stories.json
    json_get "$key" stories.json
}

# with_peak FILE COMMAND..: runs the command and writes its peak memory in KiB to FILE; needs python3.
with_peak()
{
    python3 -c 'import resource, subprocess, sys
code = subprocess.run(sys.argv[2:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=open(sys.argv[1], "w"))
sys.exit(code)' "$@"
}

# no_leftovers DIR: the directory has no temporary files of the tools.
no_leftovers()
{
    local found
    found=$(find "$1" -name '*.tmp.*' -o -name '*.old.*')
    [ -z "$found" ] || fail "left over: $found"
}

# A test that signals a background program must start the program directly ("$BIN/..." ... &). A
# function would run in a subshell, which gets the signal and does not pass it on.

# interrupt PID [STATUS]: sends SIGINT to a background program and waits for it.  Its status must be 130, or
# STATUS if it may have ended before.
interrupt()
{
    local status=0
    kill -INT "$1" 2>/dev/null || true
    wait "$1" || status=$?
    [ "$status" = 130 ] || [ "$status" = "${2-130}" ] || fail "status $status after SIGINT"
}

# kill_and_wait PID: kills a background program, which may have ended before.
kill_and_wait()
{
    kill -9 "$1" 2>/dev/null || true
    wait "$1" || true
}

# wait_for SECONDS COMMAND..: repeats the command until it succeeds; fails the test after SECONDS.
wait_for()
{
    local tries=$(($1 * 20))
    shift
    case ${UNDER:-} in *qemu*) tries=$((tries * 20)) ;; esac # which takes so much longer
    until "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "timed out waiting for: $*"
        sleep 0.05
    done
}

# preloading COMMAND..: runs the command with FAULTS preloaded; qemu (UNDER) passes variables on.
preloading()
{
    env "${UNDER:+QEMU_SET_ENV=}LD_PRELOAD=$FAULTS" "$@"
}

# faulty CALL:HOW:WHEN COMMAND..: runs the command while file system calls fail (tests/faults/faults.c);
# every fault adds a line to ./faults.log.
faulty()
{
    local fault=$1
    shift
    : > faults.log
    VPTQ_FAULT=$fault VPTQ_FAULT_LOG=$PWD/faults.log preloading "$@"
}

# expect_faults OUT GOOD COMMAND..: COMMAND writes OUT, which must equal GOOD.  Makes the first
# file system calls of every kind fail in turn, and some of the later ones. The command must either report the failure in one sentence and leave no partial
# output, or recover. After it is run again, OUT must equal GOOD.
expect_faults()
{
    local out=$1 good=$2 fault n status each=6
    shift 2
    ! is_instrumented || each=2
    [ -e "${FAULTS:-}" ] || skip "needs FAULTS, the library of tests/faults"
    for fault in write:ENOSPC pwrite:EIO fsync:EIO close:EIO rename:EACCES link:ENOSPC mkdir:ENOSPC \
        open:EMFILE mmap:ENOMEM read:EIO pread:EIO ftruncate:ENOSPC; do
        for ((n = 1; ; n += n < each ? 1 : n / 2)); do
            rm -rf "$out"
            status=0
            faulty "$fault:$n" "$@" > /dev/null 2> fault.err || status=$?
            [ -s faults.log ] || break
            (no_leftovers .) || fail "$fault:$n"
            case $status in
            0) ;;
            1) [ "$(wc -l < fault.err)" = 1 ] || fail "$fault:$n: not one sentence: $(cat fault.err)" ;;
            *) fail "$fault:$n: exit status $status: $(tail -n 5 fault.err)" ;;
            esac
            [ "$status" = 0 ] || "$@" > /dev/null 2> fault.err || fail "after $fault:$n: $(cat fault.err)"
            [ ! -e "$out/lock" ] || : > "$out/lock" # may still name its holder
            expect_same "$out" "$good" "after $fault:$n"
        done
    done
    for fault in write:short:1/1 write:EINTR:1/2 pwrite:short:1/1 pwrite:EINTR:1/2 read:short:1/1 \
        read:EINTR:1/2 pread:short:1/1 pread:EINTR:1/2 link:EPERM:1/1; do
        rm -rf "$out"
        faulty "$fault" "$@" > /dev/null || fail "$fault"
        expect_same "$out" "$good" "with $fault"
    done
}
