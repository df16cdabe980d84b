#!/usr/bin/env bash
# Writes manual pages and documents as plain HTML, without network; fails if a link leads nowhere.
# usage: docs.sh MAN OUT     (MAN: folder of the built manual pages)
# OUT mirrors the source tree: OUT/index.html is README.md.
set -euo pipefail
usage='usage: docs.sh MAN OUT'
man=$(realpath "${1:?$usage}") out=$(realpath -m "${2:?$usage}")
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
for tool in cmark-gfm mandoc; do
    command -v $tool >/dev/null || { echo "docs: $tool is not installed (scripts/deps.sh package)" >&2; exit 1; }
done

# page TITLE DEPTH: makes a page of the body on stdin.
page()
{
    local up=''
    for ((i = 0; i < $2; i++)); do up=../$up; done
    printf '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
    printf '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    printf '<title>%s</title>\n<link rel="stylesheet" href="%sstyle.css">\n' "$1" "$up"
    printf '<nav><a href="%sindex.html">vptq</a></nav>\n<main>\n' "$up"
    cat
    printf '</main>\n</html>\n'
}

# depth FILE: the number of folders above it
depth()
{
    tr -cd / <<<"$1" | wc -c
}

# body FILE.md: HTML with an id per heading, as GitHub names them, and links to pages instead of sources
body()
{
    cmark-gfm --unsafe -e table -e autolink "$1" | awk '
        /^<h[1-6]>/ {
            id = tolower(substr($0, 5, length($0) - 9))
            gsub(/<[^>]*>|&[a-z]*;/, "", id)
            gsub(/[^a-z0-9 _-]/, "", id)
            gsub(/ /, "-", id)
            $0 = substr($0, 1, 3) " id=\"" id (seen[id]++ ? "-" seen[id] - 1 : "") "\"" substr($0, 4)
        }
        { print }' | sed -E '/https?:/!s/(href="[^"#]*)README\.md/\1index.html/; /https?:/!s/(href="[^"#]*)\.md(["#])/\1.html\2/g'
}

rm -rf "$out"
mkdir -p "$out/docs/man"
# The style sheet of vptq-eval's pages, and what these pages have besides.
{
    sed -n '/^static const char style/,/;$/s/^ *"\(.*\)";*$/\1/p' lib/report/html.c | sed 's/\\n//g; s/\\"/"/g'
    cat "$here/docs.css"
} >"$out/style.css"
sources=(README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md examples/README.md share/README.md)
mapfile -t -O "${#sources[@]}" sources < <(find docs -name '*.md' | LC_ALL=C sort)
for source in "${sources[@]}"; do
    target=$out/${source%.md}.html
    case $source in *README.md) target=${target%README.html}index.html ;; esac
    mkdir -p "$(dirname "$target")"
    body "$source" | page "$(sed -n '/^# /{s/^# //p;q}' "$source")" "$(depth "$source")" >"$target"
done
for source in "$man"/*.1; do
    name=$(basename "$source" .1)
    mandoc -T html -O fragment "$source" |
        sed -E "s|<b>(vptq-[a-z]+)</b>\(1\)|<a href=\"\1.1.html\"><b>\1</b>(1)</a>|g" | page "$name(1)" 2 >"$out/docs/man/$name.1.html"
done

# Copies files of the source tree that pages refer to; every other link must lead to a page and a heading on it.
broken=0
while IFS=: read -r file link; do
    link=${link#*\"} link=${link%\"}
    case $link in http:* | https:* | mailto:*) continue ;; esac
    path=${link%%#*} anchor=''
    case $link in *'#'*) anchor=${link#*#} ;; esac
    target=$file
    [ -z "$path" ] || target=$(realpath -m "$(dirname "$file")/$path")
    origin=${target#"$out"/}
    if [ ! -e "$target" ] && [ "$origin" != "$target" ] && [ -e "$origin" ]; then
        mkdir -p "$(dirname "$target")"
        cp -R "$origin" "$target"
    fi
    if [ ! -e "$target" ] || { [ -n "$anchor" ] && ! grep -q " id=\"$anchor\"" "$target"; }; then
        echo "docs: ${file#"$out"/} links to $link, which does not exist" >&2
        broken=1
    fi
done < <(find "$out" -name '*.html' -exec grep -o -H -E '(href|src)="[^"]*"' {} +)
[ "$broken" = 0 ] || exit 1
echo "$out/index.html"
