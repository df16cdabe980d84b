#!/usr/bin/env bash
# make gpu-kit: collects in one folder, and packs as FOLDER.tar.xz, what a machine with nothing but a GPU and its
# driver needs (bash, tar, the usual small tools): one program with all kernels, the libraries that it loads
# (cuBLAS and cuSOLVER are too large: they are searched for there), scripts and a small model.
# On that machine: FOLDER/run 1 .. FOLDER/run 4 (scripts/gpu_run.sh).
# Fails if the archive is larger than 48 MiB.
# usage: gpu_kit.sh FOLDER KIT PROGRAM..      KIT: the program; PROGRAM..: the names it is to have
# Environment: VPTQ_DATA, PACK=0 (folder only), MAX_BYTES (default 50331648).
set -eu
export LC_ALL=C # decimal points

src=$(cd "$(dirname "$0")/.." && pwd)
usage="usage: gpu_kit.sh FOLDER KIT PROGRAM.."
out=${1:?$usage}
kit=${2:?$usage}
shift 2
data=${VPTQ_DATA:-$src/../shared/data}
rm -rf "$out"
mkdir -p "$out/bin" "$out/ops" "$out/lib" "$out/scripts" "$out/docs/results" "$out/data"
strip -o "$out/bin/vptq-kit" "$kit"
for program in "$@"; do
    case $program in
    vptq-*) ln -s vptq-kit "$out/bin/$program" ;;
    *) ln -s ../bin/vptq-kit "$out/ops/$program" ;;
    esac
done
cp "$src/scripts/gpu_run.sh" "$out/run"
cp "$src"/scripts/{gemv_table,run_tests,test_pool}.sh "$out/scripts/"
cp "$src/docs/results/published-gemv.csv" "$out/docs/results/"
cp "$data/models/stories260K-hf/tokenizer.json" "$out/data/"

# libraries NAME..: those that these files load, without the machine's own libc.
libraries()
{
    ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | grep -v -E '/(libc|libm|ld-linux[^/]*)\.so' || true
}
blas=$(PATH=$PATH:/sbin ldconfig -p | awk '/libopenblas\.so\.0 / { print $NF; exit }')
{
    libraries "$out/bin/vptq-kit"
    [ -z "$blas" ] || { echo "$blas"; libraries "$blas"; }
} | sort -u | while read -r library; do
    cp -L "$library" "$out/lib/"
    strip --strip-unneeded "$out/lib/$(basename "$library")"
done

bytes=$(du -sb "$out" | cut -f 1)
echo "$out: $bytes bytes"
[ "${PACK-1}" != 0 ] || exit 0
tar -cJf "$out.tar.xz" -C "$(dirname "$out")" "$(basename "$out")"
packed=$(stat -c %s "$out.tar.xz")
echo "$out.tar.xz: $packed bytes"
if [ "$packed" -gt "${MAX_BYTES:-50331648}" ]; then
    echo "gpu-kit: $out.tar.xz has $packed bytes, expected at most ${MAX_BYTES:-50331648}" >&2
    exit 1
fi
