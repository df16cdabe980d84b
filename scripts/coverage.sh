#!/usr/bin/env bash
# What the tests that have run in a build with --coverage reached of a room (`make coverage`).
# usage: coverage.sh BUILD ROOM
# Prints lines per file and in all; BUILD/coverage.html shows which.
set -eu

build=$1
room=$2
command -v gcovr >/dev/null || { echo "coverage: gcovr is not installed; scripts/deps.sh coverage" >&2; exit 1; }
gcovr --root . --object-directory "$build" --filter "$room/" --sort-uncovered \
    --html-details "$build/coverage.html" --txt --print-summary "$build"
