#!/bin/sh
# Prints the commit of this tree, with + if files have changed since; "unknown" outside a repository.
# With --date its time in seconds since 1970, for archives that are the same every time (SOURCE_DATE_EPOCH).
# git archive fills in the next two lines (.gitattributes).
# shellcheck disable=SC2016
commit='$Format:%H$' date='$Format:%ct$'
cd "$(dirname "$0")/.." || exit 1
case ${1:-}$commit in
--date*Format*) { [ -e .git ] && git log -1 --format=%ct 2>/dev/null; } || echo 0 ;;
--date*) echo "$date" ;;
*Format*) { [ -e .git ] && git describe --always --abbrev=12 --exclude='*' --dirty=+ 2>/dev/null; } || echo unknown ;;
*) echo "$commit" | cut -c 1-12 ;;
esac
