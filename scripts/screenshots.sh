#!/usr/bin/env bash
# Shows HTML pages in a headless Chromium: at desktop (1280 pixels) and phone width (360), light and dark,
# and printed.
# usage: screenshots.sh OUTDIR PAGE.html..   takes screenshots, and prints to PDF
#        screenshots.sh --check PAGE.html..  checks that no page is wider than its window, and that no
#                                            text in its figures is cut off or overlaps another
set -euo pipefail

if [ $# -lt 2 ]; then
    sed -n '2,7s/^# //p' "$0" >&2
    exit 2
fi
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
    echo "screenshots: Chromium is not in PATH" >&2
    exit 1
}
out=$1
shift
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# browse URL OPTION..: opens an address.
browse()
{
    local url=$1
    shift
    "$browser" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --allow-file-access-from-files \
        --user-data-dir="$tmp/profile" "$@" "$url" 2>"$tmp/log" || {
        tail -n 5 "$tmp/log" >&2
        exit 1
    }
}

# frame PAGE WIDTH HEIGHT: puts the page into a frame, since windows have at least 500 pixels.
frame()
{
    printf '<!doctype html><style>:root{color-scheme:light dark}body{margin:0}iframe{border:0;display:block}</style>'
    printf '<iframe width="%s" height="%s" src="file://%s"></iframe>' "$2" "$3" "$(realpath "$1")"
}

# check PAGE WIDTH: prints the faults of the rendered page.
check()
{
    {
        frame "$1" "$2" 2000
        cat <<'END'
<script>
onload = () => {
    const page = document.querySelector('iframe').contentDocument, found = []
    const root = page.documentElement
    if (root.scrollWidth > root.clientWidth)
        found.push(`is ${root.scrollWidth} pixels wide`)
    const meet = (a, b, by) => a.left < b.right - by && b.left < a.right - by && a.top < b.bottom - by && b.top < a.bottom - by
    for (const svg of page.querySelectorAll('svg')) {
        const edge = svg.getBoundingClientRect(), seen = []
        for (const text of svg.querySelectorAll('text')) {
            const box = text.getBoundingClientRect()
            if (box.left < edge.left - 1 || box.right > edge.right + 1 || box.top < edge.top - 2 || box.bottom > edge.bottom + 2)
                found.push(`cuts off '${text.textContent}'`)
            for (const other of seen)
                if (meet(box, other.box, 3))
                    found.push(`has '${text.textContent}' on '${other.text}'`)
            seen.push({box, text: text.textContent})
        }
    }
    document.body.textContent = found.length ? found.map(x => `WRONG ${x} END`).join('\n') : 'RIGHT'
}
</script>
END
    } >"$tmp/frame.html"
    browse "file://$tmp/frame.html" --dump-dom >"$tmp/dom"
    if ! grep -q '>RIGHT<' "$tmp/dom"; then
        echo "screenshots: $1 at $2 pixels:" >&2
        grep -o 'WRONG .* END' "$tmp/dom" | sed 's/^WRONG //; s/ END$//' >&2
        return 1
    fi
    echo "$1: good at $2 pixels"
}

if [ "$out" = --check ]; then
    status=0
    for page in "$@"; do
        for width in 360 800 1280; do
            check "$page" "$width" || status=1
        done
    done
    exit "$status"
fi

mkdir -p "$out"
height=${HEIGHT:-2400}
for page in "$@"; do
    name=$out/$(basename "$page" .html)
    for form in wide:1280 phone:360; do
        width=${form#*:}
        frame "$page" "$width" "$height" >"$tmp/frame.html"
        for scheme in dark light; do # 0 and 1 in Chromium
            picture=$name-${form%:*}-$scheme.png
            browse "file://$tmp/frame.html" --blink-settings=preferredColorScheme="$([ $scheme = dark ] && echo 0 || echo 1)" \
                --window-size="$((width > 500 ? width : 500)),$height" --screenshot="$picture" >&2
            echo "$picture"
        done
    done
    browse "file://$(realpath "$page")" --no-pdf-header-footer --print-to-pdf="$name.pdf" >&2
    echo "$name.pdf"
done
