# The GPU kit without a GPU: its calls with the emulated device, a missing device, tools and time, and the limit on
# its size.
kit=${VPTQ_DEVICE_BIN-none}/../kit/vptq-kit
[ -x "$kit" ] || skip "needs the program of the kit (make check-cli builds it)"
data models/stories260K-hf/tokenizer.json > /dev/null

PACK=0 VPTQ_DATA=$DATA "$SRC/scripts/gpu_kit.sh" kit "$kit" vptq-eval vptq-pack vptq-quantize vptq-hessian \
    test_measure bench_device bench_columns synthetic > made.txt
expect_line made.txt '^kit: [0-9]* bytes$'
content() { tar -xzOf "out/vptq-call-$1.tar.gz" "vptq-call-$1/$2"; }
run() { OUT=out kit/run "$@"; }

# One program with many names.
expect_exit 2 kit/bin/vptq-kit 2> err.txt
expect_line err.txt 'vptq_quantize$'
kit/bin/vptq-kit vptq-eval --version | grep -q '^vptq-eval ' || fail "a program named by the first argument"

expect_exit 2 run 5 2> err.txt
expect_line err.txt '^usage: run 1|2|3|4'

# Without a device, nothing is tried; the archive says why.
if ! kit/bin/vptq-eval --version --verbose --backend cuda | grep -q 'compute capability'; then
    expect_exit 1 run 1 > run.txt
    expect_line run.txt '^gpu-kit: no usable GPU$'
    expect_line run.txt '^0 passed, 1 failed, 0 did not fit$'
    content 1 versions.txt | grep -q '^backend cuda: ' || fail "no reason in the archive"
fi

# Every call comes back as one archive.
DEVICE=emu run 1 > run.txt || fail "$(cat run.txt)"
expect_line run.txt '^ok limits, '
expect_line run.txt '^ok test_measure, '
expect_line run.txt '^5 passed, 0 failed, 0 did not fit$'
[ "$(content 1 columns.log | grep -c -E '^(search|vq_descend|vq_pass) +8 +1 ')" = 3 ] || fail "$(content 1 columns.log)"
content 1 limits.log | grep -q '^launch in a graph ' || fail "$(content 1 limits.log)"
content 1 test_measure.log | grep -q '^5 passed, 0 failed$' || fail "$(content 1 test_measure.log)"
content 1 five.json > rows.json
[ "$(json_get in_features rows.json)" = 64 ] || fail "$(cat rows.json)"
expect_number "$(json_get dense_library_us rows.json)" '>' 0
content 1 five-grid.json > rows.json
[ "$(json_get codebook_grid rows.json)" = int8 ] || fail "$(cat rows.json)"
DEVICE=emu run 3 > run.txt || fail "$(cat run.txt)"
[ "$(content 3 stages.txt | wc -l)" = 3 ] || fail "$(content 3 stages.txt)"
expect_line run.txt '^5 passed, 0 failed, 0 did not fit$'

# An archive that cannot be written keeps the results and is an error; an interrupted call has one.
mkdir -p full/vptq-call-2.tar.gz.new
expect_exit 1 env TMPDIR="$PWD" OUT=full DEVICE=emu BUDGET=4 kit/run 2 > run.txt 2> err.txt
expect_line err.txt '^gpu-kit: cannot write full/vptq-call-2.tar.gz; the results are in '
[ -s "$(sed -n 's/.*the results are in //p' err.txt | tail -n 1)/summary.txt" ] || fail "$(cat err.txt)"
rm -rf out run.txt
DEVICE=emu OUT=out kit/run 1 > run.txt &
for _ in $(seq 300); do
    grep -q '^backend emu' run.txt 2> /dev/null && break
    sleep 0.1
done
kill "$!"
expect_exit 1 wait "$!"
content 1 summary.txt | grep -q '^interrupted after ' || fail "$(cat run.txt)"

# Steps that do not fit are listed.
DEVICE=emu BUDGET=4 run 2 > run.txt
expect_line run.txt '^did not fit: cold-16+4$'
expect_line run.txt '^did not fit: cold-grid-16$'
expect_line run.txt '^0 passed, 0 failed, 5 did not fit$'

# Tools that are missing are named; those that are there run every op test.
mkdir tools
if ! type -P compute-sanitizer > /dev/null && [ -z "$(compgen -G '/usr/local/cuda*/bin/compute-sanitizer')" ] &&
    [ ! -d /opt/nvidia ]; then
    expect_exit 1 env DEVICE=emu OUT=out kit/run 4 > run.txt 2> err.txt
    expect_line err.txt '^not ok compute-sanitizer: it is neither in PATH nor in '
fi
# The inner script expands this.
# shellcheck disable=SC2016
printf '#!/bin/sh\necho "$*" >> %s\n' "$PWD/calls.txt" > tools/compute-sanitizer
cp tools/compute-sanitizer tools/ncu
# shellcheck disable=SC2016
echo 'for last; do :; done; exec "$last"' >> tools/compute-sanitizer
chmod +x tools/*
PATH=$PWD/tools:$PATH DEVICE=emu run 4 > run.txt || fail "$(cat run.txt)"
for tool in memcheck racecheck synccheck initcheck; do
    expect_line calls.txt "^--tool $tool .*/ops/test_measure$"
done
expect_line calls.txt '^--set full --kernel-name regex:^vq_ .*vptq-eval gemv .*--books 16+4 --shape 64x48$'
expect_line calls.txt '^--set full .*vptq-eval gemv .*--codebook-grid int8 .*--shape 64x48$'
rm calls.txt
PATH=$PWD/tools:$PATH SANITIZERS=initcheck DEVICE=emu run 4 > run.txt || fail "$(cat run.txt)"
expect_line calls.txt '^--tool initcheck .*/ops/test_measure$'
! grep -q -e '--tool [^i]' calls.txt || fail "$(cat calls.txt)"

# The archive must fit.
command -v xz > /dev/null || exit 0
expect_exit 1 env XZ_OPT=-0 MAX_BYTES=1000 VPTQ_DATA="$DATA" "$SRC/scripts/gpu_kit.sh" small "$(type -P true)" vptq-eval \
    > made.txt 2> err.txt
expect_line err.txt '^gpu-kit: small.tar.xz has [0-9]* bytes, expected at most 1000$'
