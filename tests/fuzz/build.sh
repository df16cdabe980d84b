#!/usr/bin/env bash
# Builds every fuzz target as OSS-Fuzz does: with $CC, $CXX, $CFLAGS and $CXXFLAGS of its environment, linked with
# $LIB_FUZZING_ENGINE, into $OUT, each with its dictionary and its corpus as a zip.
#   SRC   folder of the sources (default: two folders up)
#   OUT   output folder (required)
set -eu

src=$(cd "$(dirname "$0")/../.." && pwd)
[ -z "${SRC:-}" ] || [ ! -f "$SRC/vptq/Makefile" ] || src=$SRC/vptq
: "${OUT:?the folder for the programs}" "${CC:=clang}" "${CXX:=clang++}"
engine=${LIB_FUZZING_ENGINE:--fsanitize=fuzzer}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
cd "$src"

${MAKE:-make} -s -j"$(nproc)" CC="$CC" HARDEN= EXTRA_CFLAGS="${CFLAGS:--g -O1 -fsanitize=address,fuzzer-no-link}" \
    LIBFUZZER="$engine" FUZZ_OUT="$OUT" fuzz-oss
for dict in tests/fuzz/dict/*.dict; do
    name=$(basename "$dict" .dict)
    cp "$dict" "$OUT/fuzz_$name.dict"
    (cd "tests/fuzz/corpus/$name" && python3 -m zipfile -c "$OUT/fuzz_${name}_seed_corpus.zip" ./*)
done
