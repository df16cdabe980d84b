#!/usr/bin/env bash
# Every external symbol that the library defines begins with vptq_, and no object of it prints,
# exits or aborts; lib/base/status.c alone may, for VPTQ_BUG_IF.
# The shared library exports exactly the functions that the public header declares.
# A tool, if one is given, and the shared library are hardened as the Makefile says (HARDEN).
# usage: check_symbols.sh LIBVPTQ.A LIBVPTQ.SO VPTQ.H [TOOL]
set -u

usage='usage: check_symbols.sh LIBVPTQ.A LIBVPTQ.SO VPTQ.H [TOOL]'
lib=${1:?$usage} shared=${2:?$usage} header=${3:?$usage} tool=${4:-}
[ -f "$lib" ] || { echo "check_symbols: '$lib' is not there" >&2; exit 1; }

# nm -A prints "archive:object:value type name"; undefined symbols have no value.
table=$(nm -A -g "$lib") || exit 1
alien=$(awk '$(NF-1) ~ /^[A-TV-Zi]$/ && $NF !~ /^vptq_/ { print $1, $NF }' <<<"$table")
# AddressSanitizer and coverage add symbols of their own.
alien=$(grep -v -E ' (__asan|__odr_asan|__ubsan|__sanitizer|asan\.)' <<<"$alien" || true)
banned='^_?(printf|puts|putchar|perror|exit|_exit|quick_exit|abort|__assert_fail|__printf_chk|gets|strcpy|strcat|sprintf|vsprintf|strtok|strncpy|strncat|alloca|system|setlocale)$'
calls=$(awk -v banned="$banned" '$(NF-1) == "U" && $NF ~ banned { print $1, $NF }' <<<"$table")
calls=$(grep -v -E ':status\.o:.* ?abort$' <<<"$calls" || true)
streams=$(awk '$(NF-1) == "U" && $NF ~ /^(stdout|stderr)$/ { print $1, $NF }' <<<"$table")
streams=$(grep -v -E ':status\.o:' <<<"$streams" || true)

bad=0
complain()
{
    [ -n "$2" ] || return 0
    bad=1
    while read -r where symbol; do
        echo "check_symbols: ${where#*:} $1 '$symbol'" >&2
    done <<<"$2"
}
complain "defines an external symbol without the prefix vptq_:" "$alien"
complain "calls what a library must not:" "$calls"
complain "uses a standard stream:" "$streams"

# A declaration begins with VPTQ_API or VPTQ_CALL at the start of a line; its name is the last
# word before the first parenthesis, on this line or the next.
declared=$(sed '/^#/d' "$header" | tr '\n' ' ' | grep -o -E 'VPTQ_(API|CALL) [^;({]*\(' |
    sed -E 's/.*[ *](vptq_[a-z0-9_]+)[[:space:]]*\($/\1/' | sort)
exported=$(nm -D --defined-only "$shared" | awk '{ print $NF }' | sort)
differences=$(diff <(echo "$declared") <(echo "$exported") | grep '^[<>]')
if [ -n "$differences" ]; then
    echo "check_symbols: declared in $header (<) and exported by $shared (>) differ:" >&2
    echo "$differences" >&2
    bad=1
fi

# lacks FILE WHAT PATTERN: complains unless readelf's view of the file matches.
lacks()
{
    grep -q -E "$3" <<<"$view" || { echo "check_symbols: $1 is not hardened: $2" >&2; bad=1; }
}
for file in ${tool:+"$shared" "$tool"}; do
    view=$(readelf -hlW --dyn-syms -d "$file")
    lacks "$file" "its addresses are fixed" 'Type: +DYN'
    lacks "$file" "its relocations stay writable" 'GNU_RELRO'
    lacks "$file" "its functions are bound late" 'BIND_NOW'
    lacks "$file" "its stack is executable" 'GNU_STACK .* RW '
    lacks "$file" "no stack protector" '__stack_chk_fail'
    lacks "$file" "no checked copies" '__(memcpy|memset|snprintf|vsnprintf)_chk'
done
exit "$bad"
