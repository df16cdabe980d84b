#!/usr/bin/env bash
# make gpu-test: tests the CUDA backend on a GPU: op tests next to ref, cpu and the emulator, then on the device alone
# under every tool of compute-sanitizer, and whole runs whose losses are compared with cpu's.
# The last line is "N passed, N failed, N skipped"; exit 1 if a test failed or there is no GPU.
# usage: gpu_test.sh OPTEST..
# Environment: BIN (tools of a build with CUDA=), VPTQ_DATA.
set -u
export LC_ALL=C # decimal points

src=$(cd "$(dirname "$0")/.." && pwd)
BIN=${BIN:-$src/build/release-cuda/bin}
export TALLY
TALLY=$(mktemp)
trap 'rm -f "$TALLY"' EXIT

if ! "$BIN/vptq-pack" --version --verbose --backend cuda | grep '^backend cuda: .*compute capability'; then
    "$BIN/vptq-pack" --version --verbose --backend cuda >&2
    echo "gpu-test: no usable GPU" >&2
    exit 1
fi
count()
{
    echo "$1 $2 $3" >>"$TALLY"
}

echo "== op tests on the GPU"
JOBS=1 VPTQ_TEST_GPU=1 "$src/scripts/run_tests.sh" "$@"

echo "== compute-sanitizer"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -z "$sanitizer" ]; then
    echo "skip compute-sanitizer: not installed"
    count 0 0 1
else
    for tool in memcheck racecheck synccheck initcheck; do
        echo "-- $tool"
        api=
        [ "$tool" != memcheck ] || api='--report-api-errors no' # tests provoke some
        UNDER="$sanitizer --tool $tool $api --error-exitcode 9 --print-limit 5" VPTQ_TEST_GPU=only TEST_TIMEOUT=300 \
            "$src/scripts/run_tests.sh" "$@"
    done
fi

echo "== whole runs"
VPTQ_DEVICE_BIN=$BIN VPTQ_DEVICE=cuda JOBS=1 "$src/scripts/run_cli_tests.sh" --bin "$BIN" quantize/device

read -r passed failed skipped < <(awk '{ p += $1; f += $2; s += $3 } END { print p+0, f+0, s+0 }' "$TALLY")
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
