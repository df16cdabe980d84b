#!/usr/bin/env bash
# make gpu-kit: collects in one folder what `make gpu-test` and `make gpu-bench` need on a machine
# with only a GPU and its driver: programs, the libraries they load, scripts and small models.
# On that machine: build/gpu-kit/run test, build/gpu-kit/run bench.
# usage: gpu_kit.sh OUT BIN OPTEST..
# Environment: VPTQ_DATA.
set -eu

src=$(cd "$(dirname "$0")/.." && pwd)
out=${1:?usage: gpu_kit.sh OUT BIN OPTEST..}
bin=$2
shift 2
data=${VPTQ_DATA:-$src/../shared/data}
rm -rf "$out"
mkdir -p "$out/bin" "$out/ops" "$out/lib" "$out/scripts" "$out/tests/cli/quantize" "$out/data"
cp "$bin"/vptq-* "$out/bin/"
cp "$@" "$out/ops/"
cp "$src"/scripts/{gpu_test,device_bench,gemv_table,plot_gemv,test_pool,run_tests,run_cli_tests}.sh "$out/scripts/"
mkdir -p "$out/docs/results"
cp "$src/docs/results/published-gemv.csv" "$out/docs/results/"
cp "$src/tests/cli/lib.sh" "$out/tests/cli/"
cp "$src/tests/cli/quantize/device.sh" "$out/tests/cli/quantize/"
mkdir -p "$out/data/models" "$out/data/text"
cp -r "$data/models/stories260K" "$out/data/models/"
cp -r "$data/text/tinystories" "$out/data/text/"

# The machine's own libc is used; OpenBLAS is loaded by name.
{
    ldd "$out"/bin/* "$out"/ops/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }'
    PATH=$PATH:/sbin ldconfig -p | awk '/libopenblas\.so\.0 / { print $NF; exit }'
} | sort -u | grep -v -E '/(libc|libm|ld-linux[^/]*)\.so' | while read -r library; do
    cp -L "$library" "$out/lib/"
done
ldd "$out"/lib/libopenblas.so.0 | awk '$2 == "=>" && $3 ~ /gfortran|quadmath|gomp/ { print $3 }' |
    while read -r library; do cp -L "$library" "$out/lib/"; done

cat >"$out/run" <<'END'
#!/usr/bin/env bash
# usage: run test | run bench [STEP..]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} BIN=$here/bin VPTQ_DATA=$here/data
export OUT=${OUT:-$here/results}
what=${1:?usage: run test | run bench [STEP..]}
shift
case $what in
test) exec "$here/scripts/gpu_test.sh" "$here"/ops/* ;;
bench) exec "$here/scripts/device_bench.sh" cuda "$@" ;;
*) echo "usage: run test | run bench [STEP..]" >&2; exit 2 ;;
esac
END
chmod +x "$out/run"
du -sh "$out"
