# scripts/fetch_demo.sh: the texts of the demo, from a package with 24 small chapters instead of the real one.
command -v dpkg-deb >/dev/null || skip "needs dpkg-deb"
pages=package/usr/share/doc/debian-handbook/html/en-US
mkdir -p package/DEBIAN "$pages" bin
printf '%s\n' 'Package: debian-handbook' 'Version: 1' 'Architecture: all' 'Maintainer: nobody <nobody@example.org>' \
    'Description: chapters' >package/DEBIAN/control
for n in $(seq 11 34); do
    printf '<html><h1 id="x">Chapter %s</h1><div class="para">One &amp;\n two<b>&#33;</b></div></html>\n' "$n" \
        >"$pages/$n.html"
done
dpkg-deb --root-owner-group -b package handbook.deb >/dev/null
printf '#!/bin/sh\nexec cp "%s" debian-handbook_1_all.deb\n' "$PWD/handbook.deb" >bin/apt-get
chmod +x bin/apt-get

PATH=$PWD/bin:$PATH "$SRC/scripts/fetch_demo.sh" --text-only demo 2>err.txt || fail "$(cat err.txt)"
[ "$(ls demo)" = "$(printf 'calib.txt\neval.txt')" ] || fail "demo has $(ls demo)"
# every fourth chapter evaluates
for n in $(seq 14 4 34); do
    printf 'Chapter %s\n\nOne & two!\n\n' "$n"
done >eval.txt
expect_same eval.txt demo/eval.txt
[ "$(grep -c '^One & two!$' demo/calib.txt)" -eq 18 ] || fail "$(cat demo/calib.txt)"

# a package with fewer chapters is not the one expected, and leaves nothing
rm "$pages"/2?.html
dpkg-deb --root-owner-group -b package handbook.deb >/dev/null
PATH=$PWD/bin:$PATH expect_error 1 '^fetch_demo.sh: debian-handbook has only 14 English chapters$' \
    "$SRC/scripts/fetch_demo.sh" --text-only few
[ -z "$(ls few)" ] || fail "few has $(ls few)"
