#!/usr/bin/env bash
# Builds the Debian packages from the source archive, and has lintian check them if it is installed.
# usage: deb.sh VERSION ARCHIVE.tar.gz OUT
set -euo pipefail
usage='usage: deb.sh VERSION ARCHIVE.tar.gz OUT'
version=${1:?$usage} archive=$(realpath "${2:?$usage}") out=$(realpath "${3:?$usage}")
command -v dh >/dev/null || { echo "deb: debhelper is not installed (scripts/deps.sh package)" >&2; exit 1; }
work=$out/debian
rm -rf "$work"
mkdir -p "$work"
cp "$archive" "$work/vptq_$version.orig.tar.gz"
tar -xzf "$archive" -C "$work"
cd "$work/vptq-$version"
mv packaging/debian debian
cat >debian/changelog <<END
vptq ($version-1) unstable; urgency=medium

  * Release $version; CHANGELOG.md lists the changes.

 -- $(sed -n 's/^Maintainer: //p' debian/control)  $(date -u -R -d "@$(scripts/commit.sh --date)")
END
# Make's variables of the caller are not those of the package.
env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL dpkg-buildpackage -us -uc -b >"$work/log" 2>&1 || { tail -n 30 "$work/log" >&2; exit 1; }
cd ..
if command -v lintian >/dev/null; then
    # The packages are not uploaded to Debian, so no bug of its tracker asks for them.
    lintian --allow-root --suppress-tags initial-upload-closes-no-bugs --fail-on error,warning ./*.changes
else
    echo "deb: lintian is not installed; the packages are not checked" >&2
fi
rm -f "$out"/*.deb
cp ./*.deb "$out/"
ls "$out"/*.deb
