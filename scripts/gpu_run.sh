#!/usr/bin/env bash
# The program `run` of the GPU kit (scripts/gpu_kit.sh), for a machine with nothing but a driver.
# usage: run 1|2|3|4       one call each, below ten minutes
#   1  versions, limits of the device, codebook search, op tests on it alone with every kernel forced, five shapes
#   2  the 120 rows of the published tables from cold caches, 30 from warm ones, against cuBLAS and cuBLASLt
#      (1 and 2: with float16 codebooks, and with those on an int8 grid)
#   3  a model with the shape of Llama-2-7B and random weights: Hessians, quantizing, tokens per second
#   4  profiler counters of the packed products of five shapes; memcheck, racecheck, synccheck and initcheck over
#      the op tests
# Every step has a time limit of its own and gets no more than what is left of the call; what did not fit is
# listed.  Everything comes back as one archive, OUT/vptq-call-N.tar.gz.  The last line is
# "N passed, N failed, N did not fit"; exit 1 if a step failed.
# Environment: OUT (default: results next to this script), BUDGET (seconds of the call, default 570), LAYERS (of
# call 3, default 2), SANITIZERS (of call 4, default all four), DEVICE (default cuda; emu, the emulator, does
# everything with tiny sizes, to test this script).
set -u
export LC_ALL=C # decimal points

here=$(cd "$(dirname "$0")" && pwd)
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} BIN=$here/bin VPTQ_DATA=$here/data
out=${OUT:-$here/results}
device=${DEVICE:-cuda}
patience=1
[ "$device" != emu ] || patience=5 # the emulator shares a processor with others
budget=${BUDGET:-$((570 * patience))}
call=${1-}
# Libraries from Python packages are searched for in an environment that is active.
if [ -z "${VIRTUAL_ENV:-}" ] && command -v python3 >/dev/null; then
    VIRTUAL_ENV=$(python3 -c 'import sys; print(sys.prefix)')
    export VIRTUAL_ENV
fi
case $call in
[1-4]) ;;
*) sed -n 's/^# \(usage: .*\)/\1/p; s/^#   \([1-4]  .*\)/  \1/p' "$0" >&2; exit 2 ;;
esac
work=$(mktemp -d "${TMPDIR:-/tmp}/vptq-kit.XXXXXX")
dir=$work/vptq-call-$call
mkdir -p "$dir" "$out" || exit 1
passed=0
failed=0
unfit=0

# Packs what there is, however the call ends.
finish()
{
    local line="$passed passed, $failed failed, $unfit did not fit" archive=$out/vptq-call-$call.tar.gz
    echo "$line" >>"$dir/summary.txt"
    if tar -czf "$archive.new" -C "$work" "vptq-call-$call" && mv "$archive.new" "$archive"; then
        rm -rf "$work"
        echo "$archive"
        echo "$line"
    else
        echo "gpu-kit: cannot write $archive; the results are in $dir" >&2
        exit 1
    fi
}
trap finish EXIT
child=
trap 'say "interrupted after $SECONDS s"; [ -z "$child" ] || kill "$child"; exit 1' INT TERM

say()
{
    echo "$*" | tee -a "$dir/summary.txt"
}

# step SECONDS NAME COMMAND..: runs the command, whose output becomes NAME.log.
step()
{
    local limit=$(($1 * patience)) name=$2 left=$((budget - SECONDS)) start=$SECONDS status
    shift 2
    [ "$left" -ge "$limit" ] || limit=$left
    if [ "$limit" -lt 5 ]; then
        say "did not fit: $name"
        unfit=$((unfit + 1))
        return 1
    fi
    timeout -k 5 "$limit" "$@" >"$dir/$name.log" 2>&1 & # a trap waits for a command, not for a job
    child=$!
    wait "$child"
    status=$?
    child=
    [ "$status" -ne 137 ] || [ $((SECONDS - start)) -lt "$limit" ] || status=124 # it had to be killed
    case $status in
    0)
        say "ok $name, $((SECONDS - start)) s"
        passed=$((passed + 1))
        ;;
    124)
        say "did not fit: $name, stopped after $limit s"
        unfit=$((unfit + 1))
        ;;
    *)
        say "not ok $name, status $status: $(grep -v '^ *$' "$dir/$name.log" | tail -n 1)"
        failed=$((failed + 1))
        ;;
    esac
    return "$status"
}

# table NAME SECONDS OPTION..: one run of vptq-eval gemv as records and as a table.
table()
{
    local name=$1 limit=$2
    shift 2
    # shellcheck disable=SC2016 # expanded by the inner shell
    step "$limit" "$name" bash -c '"$BIN/vptq-eval" gemv -q --backend "$@"' _ "$device" --format json "$@"
    grep '^{.*}$' "$dir/$name.log" >"$dir/$name.json"
    "$here/scripts/gemv_table.sh" "$dir/$name.json" >"$dir/$name.txt"
    tail -n 12 "$dir/$name.txt"
}

# The device and the libraries, or the reason why one is missing; without the device nothing is done.
versions()
{
    local text
    text=$(timeout -k 5 60 "$BIN/vptq-pack" --version --verbose --backend "$device" 2>&1)
    echo "$text" >"$dir/versions.txt"
    command -v nvidia-smi >/dev/null && nvidia-smi >>"$dir/versions.txt" 2>&1
    if ! grep -q "^backend $device: .*compute capability" "$dir/versions.txt"; then
        say "$text"
        say "gpu-kit: no usable GPU"
        failed=$((failed + 1))
        exit 1
    fi
    say "$(grep "^backend $device: " "$dir/versions.txt")"
    if grep -q 'no cu[A-Z]' <<<"$text"; then
        say "not ok libraries: $(grep 'no cu[A-Z]' <<<"$text")"
        failed=$((failed + 1))
    fi
}

tests()
{
    local program
    for program in "$here"/ops/test_*; do
        VPTQ_TEST_GPU=$only step 75 "${program##*/}" env JOBS=1 TEST_TIMEOUT=60 "$here/scripts/run_tests.sh" "$program"
    done
}

call_1()
{
    VPTQ_CUDA_GEMV=gemv-smem step 60 limits "$here/ops/bench_device" "$device" "$mebibytes"
    step 60 columns "$here/ops/bench_columns" "$device" "${columns[@]}"
    tests
    table five 60 --seconds 0.3 "${five[@]}"
    table five-grid 60 --seconds 0.3 --codebook-grid int8 "${five[@]}"
}

# cold NAME OPTION..: the rows from cold caches, each pair of codebooks in a run of its own, which may fail alone.
cold()
{
    local name=$1 pair
    shift
    for pair in "${pairs[@]}"; do
        table "$name-$pair" 70 --seconds 0.2 --books "$pair" "$@" "${rows[@]}"
        cat "$dir/$name-$pair.json" >>"$dir/$name.json"
    done
    "$here/scripts/gemv_table.sh" "$dir/$name.json" >"$dir/$name.txt"
}

call_2()
{
    cold cold
    cold cold-grid --codebook-grid int8
    table warm 60 --seconds 0.1 --cache warm "${warm_rows[@]}"
}

# stage NAME SECONDS COMMAND..: a step whose time counts for the whole model.
stage()
{
    local name=$1 limit=$2 begin
    shift 2
    begin=$(date +%s.%N)
    step "$limit" "$name" "$@" || return 0
    awk -v n="$name" -v a="$begin" -v b="$(date +%s.%N)" -v l="$layers" 'BEGIN {
        printf "%-10s %8.1f s, times 32 / %d: %8.1f s\n", n, b - a, l, (b - a) * 32 / l }' | tee -a "$dir/stages.txt"
}

call_3()
{
    local data=$work/model hessians=$work/hessians one
    step 120 synthetic "$here/ops/synthetic" "$data" "$layers" "${model[@]}" || return
    stage hessian 200 "$BIN/vptq-hessian" -m "$data" --tokens "$data/tokens.i32" "${windows[@]}" -o "$hessians" \
        --backend "$device" --no-progress
    for one in best upstream; do
        stage "$one" 200 "$BIN/vptq-quantize" -m "$data" -H "$hessians" -o "$work/$one" --encoder "$one" \
            "${codebooks[@]}" --backend "$device" --no-progress --format json
    done
    step 100 tokens "$BIN/vptq-eval" serve -m original="$data" -m packed="$work/best" --config "$config" --runs 2 \
        --tokenizer "$VPTQ_DATA/tokenizer.json" --backend "$device" -q
}

# find_tool NAME: the path of a program of the toolkit, or nothing.
find_tool()
{
    local path
    command -v "$1" && return
    for path in /usr/local/cuda*/bin/"$1" /opt/nvidia/*/*/"$1" /opt/nvidia/*/*/target/*/"$1"; do
        [ -x "$path" ] && echo "$path" && return
    done
    say "not ok $1: it is neither in PATH nor in /usr/local/cuda*/bin nor in /opt/nvidia" >&2
    return 1
}

# counters NAME NCU OPTION..: counters of the first two kernels of packed products.
counters()
{
    local name=counters-$1 profiler=$2
    shift 2
    step 20 "$name" "$profiler" --set full --kernel-name 'regex:^vq_' --launch-count 2 "$BIN/vptq-eval" gemv -q \
        --backend "$device" --seconds 0.001 --cache warm "$@"
}

call_4()
{
    local shape tool api sanitizer profiler
    profiler=$(find_tool ncu) &&
        for shape in "${profiled[@]}"; do
            counters "$shape" "$profiler" "${profiled_books[@]}" --shape "$shape"
            counters "grid-$shape" "$profiler" --codebook-grid int8 "${profiled_books[@]}" --shape "$shape"
        done
    sanitizer=$(find_tool compute-sanitizer) &&
        for tool in ${SANITIZERS:-memcheck racecheck synccheck initcheck}; do
            api=
            [ "$tool" != memcheck ] || api='--report-api-errors no' # tests provoke some
            VPTQ_TEST_GPU=$only TEST_TIMEOUT=150 JOBS=8 \
                UNDER="$sanitizer --tool $tool $api --error-exitcode 9 --print-limit 5" \
                step 160 "$tool" "$here/scripts/run_tests.sh" "$here"/ops/test_*
        done
    [ -n "$profiler" ] || failed=$((failed + 1))
    [ -n "$sanitizer" ] || failed=$((failed + 1))
}

only=only
mebibytes=256
columns=(128 2048 4096 11008)
profiled_books=(--books 4096+256)
profiled=(1024x1024 4096x4096 4096x14336 16384x1024 8192x28672)
pairs=(4096+256 8192+256 4096+512 8192+512)
rows=()
warm_rows=(--books 4096+256)
layers=${LAYERS:-2}
model=(4096 11008 32 32000 262144)
windows=(-n 128)
codebooks=(-v 8 -k 4096 -r 256)
config=1,16,64
if [ "$device" = emu ]; then
    only=only:emu
    mebibytes=1
    columns=(1 8)
    profiled_books=(--books 16+4)
    profiled=(64x48)
    pairs=(16+4 16)
    rows=(--shape 64x48)
    warm_rows=("${rows[@]}" --books 16+4)
    layers=1
    model=(16 24 2 512 256)
    windows=(-n 2 -l 16)
    codebooks=(-v 4 -k 16 -r 4 --kmeans-iterations 3 --joint 1 --sweeps 1 --retrain 0 --refits 0)
    config=1,4,3
fi
five=("${profiled_books[@]}" "${profiled[@]/#/--shape=}")
versions
"call_$call"
[ "$failed" -eq 0 ]
