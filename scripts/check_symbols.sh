#!/usr/bin/env bash
# Every external symbol that the library defines begins with vptq_, and no object of it prints,
# exits or aborts; lib/base/status.c alone may, for VPTQ_BUG_IF.
# usage: check_symbols.sh LIBVPTQ.A
set -u

lib=${1:?usage: check_symbols.sh LIBVPTQ.A}
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
exit "$bad"
