# The public header compiles alone as C and C++, its example compiles, and a program linked
# with the installed library, shared and static, gives the figures of the tools.
needs_own_machine "links a program with the library of this machine"
case $BIN in *address* | *coverage*) skip "an instrumented library is not installed" ;; esac
flags=(-Wall -Wextra -Werror -pedantic)
echo '#include "vptq.h"' >alone.c
echo '#include "vptq.h"' >alone.cc
cc -std=c11 "${flags[@]}" -I"$SRC/lib" -c alone.c
c++ -std=c++17 "${flags[@]}" -I"$SRC/lib" -c alone.cc

# The example in the header: the indented lines of the comment.
{
    printf '#include <stdio.h>\n#include "vptq.h"\nint main(void)\n{\n'
    sed -n '/^ \*     vptq_err/,/^ \*     vptq_ctx_close/s/^ \*//p' "$SRC/lib/vptq.h"
    printf '    return 0;\n}\n'
} >example.c
[ "$(wc -l <example.c)" -gt 12 ] || fail "the header has no example"
cc -std=c11 -Wall -Werror -Wno-unused-result -I"$SRC/lib" -c example.c

command -v pkg-config >stdout.tmp || skip "needs pkg-config"
env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -s -C "$SRC" install "PREFIX=$PWD/usr" >install.log 2>&1 ||
    fail "make install: $(tail -n 5 install.log)"
(cd usr && find . ! -type d ! -path './share/*' | sort) >installed
version=$("$BIN/vptq-pack" --version | sed -n '1s/.* //p')
sort >expected <<END
./bin/vptq-eval
./bin/vptq-hessian
./bin/vptq-pack
./bin/vptq-quantize
./include/vptq.h
./lib/libvptq.a
./lib/libvptq.so
./lib/libvptq.so.${version%%.*}
./lib/libvptq.so.$version
./lib/pkgconfig/vptq.pc
END
expect_same installed expected

model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
export PKG_CONFIG_PATH=$PWD/usr/lib/pkgconfig
read -ra cflags < <(pkg-config --cflags vptq)
read -ra shared < <(pkg-config --libs vptq)
read -ra static < <(pkg-config --static --libs vptq)
program=$SRC/tests/cli/common/library.c
cc -std=c11 "${flags[@]}" "${cflags[@]}" "$program" -o shared "${shared[@]}" "-Wl,-rpath,$PWD/usr/lib"
cc -std=c11 "${flags[@]}" "${cflags[@]}" "$program" -o static usr/lib/libvptq.a \
    -Wl,--as-needed "${static[@]}"
ldd shared | grep -q libvptq.so.0 || fail "not linked with the shared library"
! ldd static | grep -q libvptq || fail "not linked with the static library"
./shared "$model" "$tok" "$text" >first
mkdir again
(cd again && ../static "$model" "$tok" "$text") >second
expect_same first second
expect_same work again/work
expect_line first "^version $version bits [0-9.]* digest $("$BIN/vptq-pack" -q --digest out.vptq) ppl "
ppl=$(sed 's/.*ppl //' first)
"$BIN/vptq-eval" ppl -m out.vptq --text "$text" --context 256 --windows 2 --backend cpu -t 2 -q --format json >tool
expect_near "$(sed 's/.*"ppl": \([0-9.]*\).*/\1/' tool)" "$ppl" 1e-9

env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -s -C "$SRC" uninstall "PREFIX=$PWD/usr"
[ -z "$(find usr ! -type d)" ] || fail "uninstall leaves $(find usr ! -type d)"
