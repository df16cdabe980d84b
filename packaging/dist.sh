#!/usr/bin/env bash
# Writes the source archive of HEAD, the same bytes each time; in an unpacked archive, that archive again.
# usage: dist.sh VERSION OUT.tar.gz
set -euo pipefail
version=${1:?usage: dist.sh VERSION OUT.tar.gz} out=${2:?usage: dist.sh VERSION OUT.tar.gz}
cd "$(dirname "$0")/.."
out=$(realpath -m "$out")
name=vptq-$version
tmp=$(mktemp -d)
trap 'rm -rf "$tmp" "$out.tmp"' EXIT

mkdir -p "$(dirname "$out")" "$tmp/$name"
if [ -e .git ]; then
    git archive HEAD | tar -x -C "$tmp/$name"
    [ -z "$(git status --porcelain -uno)" ] || echo "dist: $(basename "$out") is without the changes since the last commit" >&2
else
    tar -c --exclude=./build --exclude=./debian --exclude=__pycache__ . | tar -x -C "$tmp/$name"
fi
date=$("$tmp/$name/scripts/commit.sh" --date)
tar -c -C "$tmp" --sort=name --format=gnu --owner=0 --group=0 --numeric-owner --mode=u+w,go=rX \
    --mtime="@$date" "$name" | gzip -9n >"$out.tmp"
mv "$out.tmp" "$out"
