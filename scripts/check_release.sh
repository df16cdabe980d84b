#!/usr/bin/env bash
# Builds a release from the last commit and checks it where nothing else of the project is: the source archive, the
# wheel in a fresh Python environment, its tools in an empty root, and the Debian packages in a new Debian.
# usage: check_release.sh [--no-demo]
#   --no-demo   without the conversion of the demo model by the installed tools, which takes most of the time
# The new Debian is made by debootstrap, which needs root and packages from the network (MIRROR).  Without them the
# packages are unpacked into an empty folder.  Everything stays in build/release-check.
set -euo pipefail

demo=1
case ${1:-} in
'') ;;
--no-demo) demo=0 ;;
*) sed -n '4,5s/^# //p' "$0" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."
src=$PWD
version=$(sed -n 's/^#define VPTQ_VERSION "\([^"]*\)".*/\1/p' lib/vptq.h)
check=$src/build/release-check
rm -rf "$check"
mkdir -p "$check"

title() { echo "== $*"; }
fail() { echo "check_release: $*" >&2; exit 1; }
quietly() { "$@" >"$check/log" 2>&1 || { tail -n 20 "$check/log" >&2; fail "failed: $*"; }; }

# completes SHARE WORD..: what bash-completion's file offers for the last word, in a bash without settings
completes()
{
    # shellcheck disable=SC2016 # for the other shell
    env -i PATH=/usr/bin:/bin bash --norc -c '
        . "$1/bash-completion/completions/$2"; shift
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); "_${1/-/_}"; echo "${COMPREPLY[@]}"' bash "$@"
}

# installed BIN SHARE [COMMAND..]: checks versions, manual pages and completions; COMMAND enters the root
installed()
{
    local bin=$1 share=$2 root='' tool text
    shift 2
    [ $# -eq 0 ] || root=${*: -1}
    for tool in vptq-hessian vptq-quantize vptq-pack vptq-eval; do
        text=$("$@" "$bin/$tool" --version) || fail "$bin/$tool does not run"
        case $text in
        "$tool $version"$'\ncommit: '"$commit"$'\n'*) ;;
        *) fail "$bin/$tool --version prints '$text'" ;;
        esac
        man -l "$root$share/man/man1/$tool.1"* 2>"$check/log" | grep -q '^NAME' || fail "no manual page of $tool in $root$share"
    done
    [ "$(completes "$root$share" vptq-pack --format '')" = 'text json' ] || fail "no bash completion in $root$share"
    [ -s "$root$share/fish/vendor_completions.d/vptq-eval.fish" ] || fail "no fish completion in $root$share"
}

title "source archive"
commit=$(scripts/commit.sh)
commit=${commit%+}
quietly make -s dist
archive=$check/vptq-$version.tar.gz
cp "build/packages/vptq-$version.tar.gz" "$archive"
tar -xzf "$archive" -C "$check"
cd "$check/vptq-$version"
quietly make -s dist
cmp "$archive" "build/packages/vptq-$version.tar.gz" || fail "the unpacked archive makes another archive"
sha256sum "$archive"

title "wheel, Debian packages, documents"
quietly make -j"$(nproc)" wheel
wheel=$(echo build/packages/*.whl)
cp "$wheel" "$check/"
quietly make wheel
cmp "$wheel" "$check/$(basename "$wheel")" || fail "the wheel has other bytes the second time"
quietly make deb
quietly make docs
wheel=$check/$(basename "$wheel") debs=$PWD/build/packages

title "the wheel in a fresh Python environment"
python3 -m venv "$check/venv"
quietly "$check/venv/bin/pip" install --no-index "$wheel"
installed "$check/venv/bin" "$check/venv/share"
mkdir "$check/empty"
cp "$check/venv/bin/vptq-quantize" "$check/empty/"
unshare -r chroot "$check/empty" /vptq-quantize --version >"$check/log" || fail "the tool needs files of the system"

title "the packages in a new Debian"
suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
if [ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null &&
    debootstrap --variant=minbase "$suite" "$check/root" ${MIRROR:+"$MIRROR"} >"$check/debootstrap.log" 2>&1; then
    cp "$debs"/*.deb "$check/root/tmp/"
    quietly chroot "$check/root" sh -c 'apt-get update && apt-get install -y --no-install-recommends /tmp/vptq_*.deb \
        /tmp/libvptq0_*.deb /tmp/libvptq-dev_*.deb gcc libc6-dev pkg-config'
    installed /usr/bin /usr/share chroot "$check/root"
    # The library of the packages, by a program that is compiled there.
    cp "$src/examples/library/quantize.c" "$check/root/tmp/"
    # shellcheck disable=SC2016 # for the other shell
    quietly chroot "$check/root" sh -c 'cd /tmp && gcc quantize.c -o quantize $(pkg-config --cflags --libs vptq)'
    [ "$(chroot "$check/root" /tmp/quantize 2>&1)" = 'usage: quantize MODEL TEXT OUT.vptq' ] || fail "the program does not run"
    quietly chroot "$check/root" apt-get purge -y vptq libvptq0 libvptq-dev
    [ ! -e "$check/root/usr/bin/vptq-pack" ] || fail "purging leaves files"
else
    echo "check_release: no new Debian (debootstrap as root, see $check/debootstrap.log); unpacking the packages instead" >&2
    for deb in "$debs"/*.deb; do dpkg-deb -x "$deb" "$check/root"; done
    installed "$check/root/usr/bin" "$check/root/usr/share"
fi

if [ "$demo" = 1 ]; then
    title "the demo model, by the tools of the wheel"
    cd "$src"
    PATH=$check/venv/bin:$PATH BIN=$check/venv/bin DEMO_DIR=${DEMO_DIR:-$check/demo} scripts/demo.sh
fi
echo "release $version of $commit: good"
