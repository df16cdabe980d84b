# shellcheck shell=bash
# Helpers of the command-line tests; sourced by scripts/run_cli_tests.sh before each test.

# Messages of the helpers go to the test's own stderr even where a call's is redirected.
exec 3>&2

# fail MESSAGE: the test has failed.
fail()
{
    echo "FAIL: $*" >&3
    exit 1
}

# skip REASON: the test cannot run here.
skip()
{
    echo "SKIP: $*" >&3
    exit 77
}

# data NAME: path of a file of the data directory; skips the test where it is not there.
#     text=$(data text/wikitext2/wiki.test.raw)
data()
{
    [ -e "$DATA/$1" ] || skip "needs $1, which is not in the data directory (VPTQ_DATA)"
    echo "$DATA/$1"
}

# expect_exit STATUS COMMAND..: runs the command, whose output passes through.
expect_exit()
{
    local want=$1 status=0
    shift
    "$@" || status=$?
    [ "$status" -eq "$want" ] || fail "exit status $status, expected $want: $*"
}

# expect_line FILE PATTERN: some line of the file matches the basic regular expression.
expect_line()
{
    grep -q -e "$2" "$1" || fail "no line of $1 matches '$2': $(head -c 2000 "$1")"
}

# expect_same A B: two files, or two directories with all they hold, are the same bytes.
expect_same()
{
    diff -r "$1" "$2" >/dev/null || fail "$1 and $2 differ: $(diff -rq "$1" "$2" | head -n 5)"
}

# expect_number A OP B: compares numbers, OP one of < <= > >= == !=.
expect_number()
{
    awk -v a="$1" -v b="$3" "BEGIN { exit !(a + 0 $2 b + 0) }" || fail "not so: $1 $2 $3"
}

# expect_near A B RELATIVE: |A - B| <= RELATIVE * |B|
expect_near()
{
    awk -v a="$1" -v b="$2" -v r="$3" 'BEGIN {
        d = a - b; if (d < 0) d = -d; if (b < 0) b = -b
        exit !(d <= r * b) }' || fail "$1 is not within $3 of $2"
}

# json_get KEY [FILE]: the value of a key in the objects that our tools print, one a line; the
# quotes of a string are taken off.  Keys that are not there fail the test.
json_get()
{
    local value
    value=$(sed -n -E 's/.*[{,] ?"'"$1"'": ("([^"\\]|\\.)*"|[^],}]*).*/\1/p' "${2:--}")
    [ -n "$value" ] || fail "no key $1"
    echo "$value" | sed -E 's/^"(.*)"$/\1/'
}

# no_leftovers DIR: no temporary of ours in it.
no_leftovers()
{
    local found
    found=$(find "$1" -name '*.tmp.*' -o -name '*.old.*')
    [ -z "$found" ] || fail "left behind: $found"
}

# wait_for SECONDS COMMAND..: repeats the command until it succeeds, at most so long.
wait_for()
{
    local tries=$(($1 * 20))
    shift
    until "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "waited in vain for: $*"
        sleep 0.05
    done
}
