#!/usr/bin/env bash
# Fetches the libraries that a cross build links and its programs load, without root: Debian's packages for
# another processor, unpacked into a directory.
# usage: sysroot.sh DEBIAN_ARCHITECTURE DIR    (make sysroot CROSS=aarch64-linux-gnu-)
# apt-get keeps lists and packages of its own in DIR.new meanwhile; those of the system stay as they are.
# DIR appears when it is complete.  Exits with 1 and one sentence if the packages cannot be fetched.
set -euo pipefail

[ $# -eq 2 ] || { sed -n '4s/^# //p' "$0" >&2; exit 2; }
arch=$1 dir=$(realpath -m "$2")
[ ! -d "$dir" ] || exit 0
packages=(libc6-dev libopenblas0-openmp libjansson-dev libpcre2-dev libzstd-dev libxxhash-dev libutf8proc-dev
    libssl-dev zlib1g-dev libcmocka-dev)

# fail SENTENCE: also shows what the last command said.
fail()
{
    sed 's/^/    /' "$dir.new/log" >&2
    echo "sysroot: $*" >&2
    exit 1
}

for tool in apt-get dpkg-deb; do
    command -v "$tool" >/dev/null || { echo "sysroot: $tool is not installed; pass SYSROOT=DIR to make" >&2; exit 1; }
done
rm -rf "$dir.new"
trap 'rm -rf "$dir.new"' EXIT
state=$dir.new/apt
mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$dir.new/root/usr/lib"
: >"$state/status"
# An empty list of what is installed makes apt-get fetch the C library and all else as well.
apt=(apt-get -qq -o "APT::Architecture=$arch" -o "APT::Architectures::=$arch" -o "Dir::State=$state"
    -o "Dir::State::status=$state/status" -o "Dir::Cache=$state/cache" -o Acquire::Languages=none
    -o Acquire::Retries=2 -o "APT::Sandbox::User=$(id -un)")
"${apt[@]}" update >"$dir.new/log" 2>&1 || true # fails also if a list of no use here is missing
"${apt[@]}" install -y --no-install-recommends --download-only "${packages[@]}" >>"$dir.new/log" 2>&1 ||
    fail "the packages for $arch cannot be fetched"

# Newer releases have everything in /usr only.
ln -s usr/lib "$dir.new/root/lib"
for package in "$state/cache/archives"/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$dir.new/root" --keep-directory-symlink --no-same-owner ||
        fail "$(basename "$package") cannot be unpacked"
done
# What the installation of OpenBLAS would do.
for library in "$dir.new"/root/usr/lib/*/openblas-openmp/libopenblas.so.0; do
    ln -s openblas-openmp/libopenblas.so.0 "${library%/*/*}/libopenblas.so.0"
done
find "$dir.new/root" -lname '/*' -printf '%p %l\n' | while read -r link target; do
    ln -srfn "$dir.new/root$target" "$link"
done
# Documents are most of the files.
rm -rf "$dir.new/root/usr/share"
mv "$dir.new/root" "$dir"
