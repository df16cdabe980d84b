#!/usr/bin/env bash
# `make check-arm`: compiles everything for ARM (aarch64) with Debian's cross compiler, runs the unit, op and
# command-line tests under qemu-user, and compares what the tools write there and here.
# usage: check_arm.sh [--short]
#   --short   what `make check` has of it: the tools, a few tests of arithmetic, and the comparison
# Everything is skipped where the packages cannot be installed.
set -u

cd "$(dirname "$0")/.." || exit 1
# shellcheck source=scripts/check_parts.sh
. scripts/check_parts.sh
jobs=-j$(nproc)
arm=(CROSS=aarch64-linux-gnu-)
export TEST_TIMEOUT="${TEST_TIMEOUT:-7200}" # an emulated program takes ten to fifty times as long

# skipped NAME REASON
skipped()
{
    echo "skip $1: $2"
    echo "0 0 1 $1" >>"$TALLY"
}

# The emulator is for tests on other machines.
packages()
{
    [ "$(uname -m)" != aarch64 ] && scripts/deps.sh arm && "$MAKE" -s "${arm[@]}" sysroot
}

# same_bytes: the comparison, if there is a model for it
same_bytes()
{
    if [ -d "${VPTQ_DATA:-../shared/data}/models/stories260K" ]; then
        "$MAKE" -s "$jobs" tools
        part "the same bytes on ARM" "$MAKE" -s "${arm[@]}" run-compare
    else
        skipped "the same bytes on ARM" "needs models/stories260K, which is not in the data directory (VPTQ_DATA)"
    fi
}

echo "# ${arm[*]}" >>"$TALLY"
if ! packages; then
    skipped ARM "cross compiler, qemu-user or the libraries cannot be installed"
elif [ "${1-}" = --short ]; then
    part "build ${arm[*]}" "$MAKE" -k "$jobs" "${arm[@]}" tools
    counted "unit tests" unit "${arm[@]}" TESTS=short
    counted "op tests" ops "${arm[@]}" TESTS=short
    same_bytes
else
    part "build ${arm[*]}" "$MAKE" -k "$jobs" "${arm[@]}" tools test-programs
    counted "unit tests" run-unit "${arm[@]}"
    counted "op tests" run-ops "${arm[@]}"
    counted "command-line tests" run-cli "${arm[@]}"
    same_bytes
fi
finish
