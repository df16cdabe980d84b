#!/usr/bin/env bash
# Prints what the tools consist of, as SPDX 2.3 in JSON: this project, and the libraries that static tools contain, in
# the versions that pkg-config and the compiler name.
# usage: sbom.sh VERSION COMMIT PACKAGE..     (CC, PKG: compiler and pkg-config with its settings)
set -euo pipefail
version=${1:?usage: sbom.sh VERSION COMMIT PACKAGE..} commit=${2:?usage: sbom.sh VERSION COMMIT PACKAGE..}
shift 2
date=$(date -u -d "@${SOURCE_DATE_EPOCH:-0}" +%Y-%m-%dT%H:%M:%SZ)
read -ra pkg <<<"${PKG:-pkg-config}"

# package ID NAME VERSION LICENSE WHERE
package()
{
    printf '    {"SPDXID": "SPDXRef-%s", "name": "%s", "versionInfo": "%s", "licenseConcluded": "%s", ' "$1" "$2" "$3" "$4"
    printf '"licenseDeclared": "%s", "downloadLocation": "%s", "filesAnalyzed": false, ' "$4" "$5"
    printf '"copyrightText": "NOASSERTION"}'
}

# library NAME VERSION LICENSE WHERE: a package that the tools contain
library()
{
    printf ',\n'
    package "$1" "$@"
    contained+=("$1")
}

contained=()
cat <<END
{
  "spdxVersion": "SPDX-2.3",
  "dataLicense": "CC0-1.0",
  "SPDXID": "SPDXRef-DOCUMENT",
  "name": "vptq-$version",
  "documentNamespace": "https://spdx.org/spdxdocs/vptq-$version-$commit",
  "creationInfo": {"created": "$date", "creators": ["Tool: packaging/sbom.sh"]},
  "packages": [
END
package vptq vptq "$version" MIT NOASSERTION
for name in "$@"; do
    case $name in
    jansson) facts=(jansson MIT https://github.com/akheron/jansson) ;;
    libpcre2-8) facts=(pcre2 BSD-3-Clause https://github.com/PCRE2Project/pcre2) ;;
    libzstd) facts=(zstd BSD-3-Clause https://github.com/facebook/zstd) ;;
    zlib) facts=(zlib Zlib https://github.com/madler/zlib) ;;
    libxxhash) facts=(xxhash BSD-2-Clause https://github.com/Cyan4973/xxHash) ;;
    libutf8proc) facts=(utf8proc MIT https://github.com/JuliaStrings/utf8proc) ;;
    libcrypto) facts=(openssl Apache-2.0 https://github.com/openssl/openssl) ;;
    *) echo "sbom: no license is known of the library $name" >&2; exit 1 ;;
    esac
    library "${facts[0]}" "$("${pkg[@]}" --modversion "$name")" "${facts[@]:1}"
done
library libgomp "$("${CC:-gcc}" -dumpfullversion -dumpversion)" 'GPL-3.0-or-later WITH GCC-exception-3.1' https://gcc.gnu.org
glibc=$(printf '#include <gnu/libc-version.h>\n__GLIBC__.__GLIBC_MINOR__\n' | "${CC:-gcc}" ${SYSROOT:+"--sysroot=$SYSROOT"} -E -P - | tail -n 1 | tr -d ' ')
library glibc "$glibc" LGPL-2.1-or-later https://sourceware.org/git/glibc.git
printf '\n  ],\n  "relationships": [\n'
printf '    {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-vptq"}'
for name in "${contained[@]}"; do
    printf ',\n    {"spdxElementId": "SPDXRef-vptq", "relationshipType": "STATIC_LINK", "relatedSpdxElement": "SPDXRef-%s"}' "$name"
done
printf '\n  ]\n}\n'
