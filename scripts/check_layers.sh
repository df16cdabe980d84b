#!/usr/bin/env bash
# Checks includes against the table of modules in docs/design.md.  Includes of our own headers are
# written from the root; a module may include itself and the modules that its row names.
# usage: check_layers.sh [ROOT]       checks the sources below ROOT (default: the project)
#        check_layers.sh --self-test  plants violations and expects each to be found
set -u

# module_of PATH: prints the module of a source or header, nothing for other files.
module_of()
{
    case $1 in
    lib/vptq.h) echo public ;;
    lib/vptq*.[ch]) echo vptq ;;
    lib/*/*) cut -d/ -f1,2 <<<"$1" ;;
    formats/* | hessian/* | kmeans/* | cmd/* | tests/*) cut -d/ -f1 <<<"$1" ;;
    esac
}

# allowed MODULE: prints the other modules whose headers it may include.  Every module may include
# the public header, which itself includes nothing of ours.
allowed()
{
    local rank3="lib/base formats lib/backend kmeans lib/tokenizer lib/model hessian lib/chat"
    local rank5="$rank3 lib/encoder lib/uniform lib/tune lib/report lib/eval"
    local rank6="$rank5 lib/quantize lib/pack lib/bench"
    case $1 in
    lib/base) ;;
    formats | lib/backend) echo "lib/base" ;;
    kmeans) echo "lib/base lib/backend" ;;
    lib/tokenizer) echo "lib/base formats" ;;
    lib/model) echo "lib/base lib/backend formats lib/tokenizer" ;;
    hessian) echo "lib/base lib/backend formats lib/tokenizer lib/model" ;;
    lib/chat) echo "lib/base formats lib/tokenizer lib/model" ;;
    lib/encoder | lib/uniform) echo "lib/base lib/backend kmeans hessian" ;;
    lib/tune) echo "lib/base lib/backend kmeans hessian lib/model" ;;
    lib/report) echo "lib/base formats" ;;
    lib/eval) echo "$rank5" ;;
    lib/quantize | lib/pack | lib/bench) echo "$rank5" ;;
    lib/ablate | vptq) echo "$rank6 lib/ablate" ;;
    cmd) ;;
    tests) echo "$rank6 lib/ablate cmd" ;;
    esac
}

# complain FILE LINE TEXT
complain()
{
    echo "check_layers: $1:$2: $3" >&2
    bad=1
}

# check_include FILE LINE HEADER
check_include()
{
    local mine theirs
    if [ ! -f "$root/$3" ]; then
        complain "$1" "$2" "\"$3\" is not a path from the root"
        return
    fi
    mine=$(module_of "$1")
    theirs=$(module_of "$3")
    [ "$mine" != "$theirs" ] || return 0
    [ "$theirs" != public ] || return 0
    case " $(allowed "$mine") " in
    *" $theirs "*) ;;
    *) complain "$1" "$2" "$mine may not include $theirs (\"$3\")" ;;
    esac
}

# check_system FILE LINE HEADER: third-party headers stay in their modules.
check_system()
{
    local home
    case $3 in
    jansson.h | pcre2.h | zstd*.h | utf8proc.h) home="formats lib/tokenizer lib/chat lib/model lib/eval" ;;
    zlib.h) home="formats" ;;
    openssl/*.h) home="lib/pack" ;;
    cblas.h | lapacke.h | openblas*.h | dlfcn.h | cuda*.h) home="lib/backend" ;;
    omp.h) home="lib/base lib/backend kmeans hessian" ;;
    *) return 0 ;;
    esac
    case " $home tests " in
    *" $(module_of "$1") "*) ;;
    *) complain "$1" "$2" "<$3> belongs to $home" ;;
    esac
}

check_tree()
{
    root=$1
    bad=0
    local file line header
    while IFS=: read -r file line header; do
        [ -z "$header" ] || check_include "${file#"$root/"}" "$line" "$header"
    done < <(includes '"' '"')
    while IFS=: read -r file line header; do
        [ -z "$header" ] || check_system "${file#"$root/"}" "$line" "$header"
    done < <(includes '<' '>')
    return "$bad"
}

# includes OPEN CLOSE: prints "file:line:header" of every include with these quotes.
includes()
{
    local dirs=() d
    for d in lib formats hessian kmeans cmd tests; do
        [ ! -d "$root/$d" ] || dirs+=("$root/$d")
    done
    grep -r -n -E --include='*.[ch]' --include='*.cu' "^[[:space:]]*#[[:space:]]*include[[:space:]]*$1" \
        "${dirs[@]}" | sed -E "s/^([^:]*:[0-9]+):.*$1([^$2]*)$2.*/\1:\2/"
}

# Plants one violation of each kind in a small tree and expects its report.
self_test()
{
    local out want
    tree=$(mktemp -d)
    trap 'rm -rf "$tree"' EXIT
    mkdir -p "$tree"/{formats,cmd,lib/base,lib/backend,lib/encoder}
    touch "$tree"/formats/json.h "$tree"/lib/backend/backend.h "$tree"/lib/base/mem.h "$tree"/lib/vptq.h
    printf '#include "lib/base/mem.h"\n#include <stdio.h>\n' >"$tree/formats/good.c"
    printf '#include "lib/vptq.h"\n' | tee "$tree/cmd/good.c" >"$tree/lib/base/good.c"
    (check_tree "$tree") || { echo "check_layers: a clean tree was refused" >&2; exit 1; }
    printf '#include "lib/backend/backend.h"\n' >"$tree/formats/bad.c"
    printf '#include "formats/json.h"\n' >"$tree/lib/base/bad.c"
    printf '#include "formats/json.h"\n' >"$tree/lib/encoder/bad.c"
    printf '#include "lib/base/mem.h"\n' >"$tree/cmd/bad.c"
    printf '#  include "mem.h"\n' >"$tree/lib/base/path.c"
    printf '#include <jansson.h>\n' >"$tree/lib/backend/bad.c"
    printf '#include "lib/base/mem.h"\n' >"$tree/lib/vptq.h"
    out=$( (check_tree "$tree") 2>&1) && { echo "check_layers: violations were not found" >&2; exit 1; }
    for want in formats/bad.c lib/base/bad.c lib/encoder/bad.c cmd/bad.c lib/base/path.c lib/backend/bad.c \
        lib/vptq.h; do
        grep -q "$want:1:" <<<"$out" || { echo "check_layers: $want was not found" >&2; exit 1; }
    done
    [ "$(wc -l <<<"$out")" -eq 7 ] || { echo "check_layers: too many reports: $out" >&2; exit 1; }
}

if [ "${1:-}" = --self-test ]; then
    self_test
    exit 0
fi
check_tree "${1:-$(cd "$(dirname "$0")/.." && pwd)}"
