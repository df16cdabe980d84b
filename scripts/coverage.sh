#!/usr/bin/env bash
# Prints the lines of a module that the tests run in a --coverage build have reached, per file and
# in total; BUILD/coverage.html shows which (`make coverage`).
# usage: coverage.sh BUILD MODULE
set -eu

build=$1
module=$2
command -v gcovr >/dev/null || { echo "coverage: gcovr is not installed; scripts/deps.sh coverage" >&2; exit 1; }
gcovr --root . --object-directory "$build" --filter "$module/" --sort-uncovered \
    --html-details "$build/coverage.html" --txt --print-summary "$build"
