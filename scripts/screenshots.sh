#!/usr/bin/env bash
# Pictures of the pages that vptq-eval writes, by a headless Chromium: as on a desk (1280 pixels) and as
# on a phone (360), light and dark.  Dark is forced in a copy of the page.
# usage: screenshots.sh OUTDIR PAGE.html..
set -euo pipefail

if [ $# -lt 2 ]; then
    sed -n '2,4s/^# //p' "$0" >&2
    exit 2
fi
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
    echo "screenshots: no Chromium in PATH" >&2
    exit 1
}
out=$1
shift
mkdir -p "$out"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# shoot HTML PNG WIDTH HEIGHT: windows are no narrower than 500 pixels, so the page is in a frame.
shoot()
{
    printf '<!doctype html><style>body{margin:0}iframe{border:0;display:block}</style><iframe src="file://%s" width="%s" height="%s"></iframe>' \
        "$1" "$3" "$4" >"$tmp/frame.html"
    "$browser" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$tmp/profile" \
        --window-size="$(($3 > 500 ? $3 : 500)),$4" --screenshot="$2" "file://$tmp/frame.html" >"$tmp/log" 2>&1 || {
        tail -n 5 "$tmp/log" >&2
        exit 1
    }
    echo "$2"
}

for page in "$@"; do
    name=$(basename "$page" .html)
    cp "$page" "$tmp/light.html"
    sed 's/@media(prefers-color-scheme:dark){:root{\([^}]*\)}}/:root{\1}/' "$page" >"$tmp/dark.html"
    for scheme in light dark; do
        shoot "$tmp/$scheme.html" "$out/$name-wide-$scheme.png" 1280 "${HEIGHT:-2400}"
        shoot "$tmp/$scheme.html" "$out/$name-phone-$scheme.png" 360 "${HEIGHT:-2400}"
    done
done
