# shellcheck shell=bash
# Sourced by check.sh and check_arm.sh: parts of a check, which are counted in the file TALLY, and the last lines.
# A TALLY of the environment is that of a check of which this one is a part.
if [ -z "${TALLY:-}" ]; then
    TALLY=$(mktemp) || exit 1
    export TALLY
    trap 'rm -f "$TALLY"' EXIT
    whole_check=1
fi
: "${MAKE:=make}"

# part NAME COMMAND..: runs one check that passes or fails.
part()
{
    local name=$1
    shift
    if "$@"; then
        echo "ok $name"
        echo "1 0 0 $name" >>"$TALLY"
    else
        echo "not ok $name"
        echo "0 1 0 $name" >>"$TALLY"
    fi
}

# tool_part TOOL NAME COMMAND..: like part, but skipped if the tool is not installed.
tool_part()
{
    local tool=$1
    shift
    if command -v "$tool" >/dev/null; then
        part "$@"
    else
        echo "skip $1: $tool is not installed"
        echo "0 0 1 $1" >>"$TALLY"
    fi
}

# title TEXT: starts a part, with the minutes since the start of the check
title()
{
    printf '\n== %s (after %d min)\n' "$1" $((SECONDS / 60))
}

# counted NAME TARGET SETTING..: runs tests that count themselves; a runner that does not is a failed test.
counted()
{
    local name=$1 before
    before=$(wc -l <"$TALLY")
    title "$name ${*:3}"
    "$MAKE" -s "${@:2}"
    if [ "$(wc -l <"$TALLY")" -eq "$before" ]; then
        echo "not ok $name: ended without a result"
        echo "0 1 0 $name" >>"$TALLY"
    fi
}

# names COLUMN WORD: the entries of the tally that have a count in this column.
names()
{
    awk -v column="$1" -v word="$2" '
        $1 == "#" { suite = $2 == "" ? "" : " (" substr($0, 3) ")"; next }
        $column > 0 { n = $column; $1 = $2 = $3 = ""; print word ":" $0 suite (n > 1 ? ", " n " tests" : "") }' "$TALLY" |
        tr -s ' '
}

# finish: prints the names of tests that were skipped or failed, and the count; its status is 1 if a test failed.
finish()
{
    local passed failed skipped line
    [ -n "${whole_check:-}" ] || return 0
    echo
    names 3 skipped
    names 2 failed
    read -r passed failed skipped < <(
        awk '$1 != "#" { p += $1; f += $2; s += $3 } END { print p+0, f+0, s+0 }' "$TALLY")
    line="$passed passed, $failed failed"
    [ "$skipped" -eq 0 ] || line="$line, $skipped skipped"
    printf '\n%s\n' "$line"
    [ "$failed" -eq 0 ]
}
