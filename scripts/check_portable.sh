#!/usr/bin/env bash
# Checks what other systems depend on: 32-bit and big-endian processors are refused in one sentence, and sources
# compile without what only some systems have.  `make portable` sets CC and FLAGS.
set -u
cd "$(dirname "$0")/.." || exit 1
: "${CC:=gcc}" "${FLAGS:=-std=c11 -I.}"
bad=0

# errors FILE FLAG..: what the compiler says of the file
errors()
{
    # shellcheck disable=SC2086 # words of a command line
    $CC $FLAGS -Wno-builtin-macro-redefined -Wno-pedantic "${@:2}" -fsyntax-only -x c "$1" 2>&1 | grep -E 'error:|warning:'
}

# expect_errors PATTERN FILE FLAG..
expect_errors()
{
    local said
    said=$(errors "${@:2}")
    # shellcheck disable=SC2053 # a pattern
    [[ $said == $1 ]] || { echo "check_portable: ${*:2}: ${said:-compiles}" >&2; bad=1; }
}

refused='*: error: #error "vptq needs a 64-bit little-endian processor: *'
expect_errors "$refused" lib/base/target.h -U__SIZEOF_POINTER__ -D__SIZEOF_POINTER__=4
expect_errors "$refused" lib/base/target.h -U__BYTE_ORDER__ -D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__
expect_errors '' cmd/cli/spin.c -U__ELF__
# shellcheck disable=SC2086
! $CC $FLAGS -U__ELF__ -E cmd/cli/spin.c | grep -F 'section(' >&2 || bad=1
expect_errors '' lib/backend/ref/ref.c -include unistd.h -U_SC_LEVEL3_CACHE_SIZE
exit "$bad"
