#!/usr/bin/env bash
# Checks that two builds write the same bytes, or one build at every SIMD level: for refactorings and changes of speed.
# usage: compare_builds.sh [--short] OLD_BIN NEW_BIN [DEMO_DIR]
#        compare_builds.sh [--short] --levels BIN [DEMO_DIR]
#   --short            one block with two settings, and less of DEMO_DIR, for a build that an emulator runs
#   OLD_BIN, NEW_BIN   folders with the four tools of each build
#   --levels BIN       one build with every VPTQ_SIMD of this kind of processor; levels that it lacks repeat the best
#   DEMO_DIR           what scripts/fetch_demo.sh downloaded; also compares blocks 0-2 of that model
# Each build collects Hessians, quantizes stories260K with eight settings, packs, unpacks and measures.
# All files are compared (work and packed directories, archives, GGUF files, reports; not SHA256SUMS, which
# old builds do not write), and all figures that the tools print except clocks.  Prints the files that differ
# and the number of equal ones.
set -euo pipefail
export LC_ALL=C

src=$(cd "$(dirname "$0")/.." && pwd)
data=$(realpath "${VPTQ_DATA:-$src/../shared/data}")
part=stories
if [ "${1-}" = --short ]; then
    part=one_block
    shift
fi
if [ $# -lt 2 ] || [ $# -gt 3 ]; then
    sed -n '3,9s/^# //p' "$0" >&2
    exit 2
fi
levels=()
if [ "$1" = --levels ]; then
    case $(uname -m) in
    x86_64) levels=(none avx2 avx512) ;;
    aarch64) levels=(none neon) ;;
    *) levels=(none) ;;
    esac
    builds=()
    for _ in "${levels[@]}"; do builds+=("$(realpath "$2")"); done
else
    builds=("$(realpath "$1")" "$(realpath "$2")")
fi
demo=${3:+$(realpath "$3")}
model=$data/models/stories260K/stories260K.bin
tok=$data/models/stories260K/tok512.bin

# tool NAME ARGUMENT..: one of the four tools of this build.
tool()
{
    "$bin/vptq-$1" "${@:2}"
}

# without_clocks: removes members that differ from run to run from lines of JSON.
without_clocks()
{
    sed -E -e 's/"step_seconds": \{[^}]*\},? ?//' \
        -e 's/"(seconds|tokens_per_second|[a-z_]*_seconds)": [-0-9.e+]+,? ?//g'
}

# measure NAME MODEL BASE OPTIONS..: perplexity and divergence of one model.
measure()
{
    local name=$1 packed=$2 base=$3
    shift 3
    tool eval ppl -m "$packed" "$@" --format json -qq | without_clocks >"$name.ppl"
    tool eval kld -m "$packed" --base "$base" "$@" --format json -qq | without_clocks >"$name.kld"
}

# pack WORK: as a directory and as an archive.
pack()
{
    tool pack "$1" -o "$1.hf" -qq >/dev/null
    tool pack "$1" -o "$1.vptq" --to archive -qq >/dev/null
}

# convert NAME OPTIONS..: one setting of stories260K through all tools.
convert()
{
    local name=$1
    shift
    tool quantize -m "$model" --tokenizer "$tok" -o "$name" -qq "$@" --format json |
        without_clocks >"$name.rows"
    pack "$name"
    tool pack --unpack "$name.hf" -o "$name.gguf" --to gguf -qq >/dev/null
    measure "$name" "$name.hf" "$model" --tokenizer "$tok" --text held.txt --context 256 --windows "$windows"
    tool eval error -m "$name.hf" --base "$model" -H hessians "${layers[@]}" --format json -qq |
        without_clocks >"$name.error"
    tool pack --list "$name.vptq" --format json -qq >"$name.list"
    tool pack --check "$name.vptq" --format json -qq >"$name.check"
}

# texts BYTES: to calibrate with and to measure on.
texts()
{
    local sample=$data/text/tinystories/tinystories_v2_sample.txt
    head -c "$1" "$sample" >calib.txt
    tail -c "$1" "$sample" >held.txt
}

# items TASK [N]: the first of a choice task.
items()
{
    head -n "${2:-40}" "$data/qa/$1.jsonl" >"$1.jsonl"
}

one_block()
{
    local layers=(--layers 0-0) effort=(--joint 2 --sweeps 1 --refits 1 --kmeans-iterations 8) windows=1
    texts 6000
    tool hessian -m "$model" --tokenizer "$tok" -c calib.txt -o hessians -n 2 -l 256 "${layers[@]}" -qq >/dev/null
    convert residual -H hessians -v 4 -k 64 -r 16 "${layers[@]}" "${effort[@]}"
    convert outliers -H hessians -v 8 -k 32 -g 2 --outliers 3:2:64 --dtype bf16 "${layers[@]}" "${effort[@]}"
    tool eval generate -m residual.vptq -p "Once upon a time" -n 16 -qq >generate.txt
}

stories()
{
    local windows=6 layers=() task
    texts 60000
    cat >recipe.json <<'JSON'
{"rules": [{"match": "*.v_proj", "settings": {"centroids": 64}},
           {"match": "down_proj", "settings": {"group_size": 43, "residual": 16}}]}
JSON
    tool hessian -m "$model" --tokenizer "$tok" -c calib.txt -o hessians -n 24 -l 256 --holdout 0.2 -qq >/dev/null
    tool hessian -m "$model" --tokenizer "$tok" -c calib.txt -o attention -n 8 -l 256 \
        --weights attention -qq >/dev/null
    tool hessian --show hessians --format json >show.json
    convert plain -H hessians -v 4 -k 256
    convert residual -H hessians -v 8 -k 256 -r 64 -g 4 --seed 3
    convert outliers -H hessians -v 4 -k 128 --outliers 3:2:64
    convert budget -H hessians -b 2.6 --allocate kl --allocate-text calib.txt --allocate-windows 1 \
        --allocate-length 256
    convert sequential -c calib.txt -n 16 -l 256 --sequential -v 4 -k 256
    convert upstream -H hessians --encoder upstream -v 4 -k 256 -r 16
    convert bf16 -H attention --dtype bf16 --norm minmax --pass-columns 4 -v 8 -k 128 -g 2
    convert recipe -H hessians --recipe recipe.json --search beam:4 -v 2 -k 16 --scales false --refits 1
    tool pack --unpack plain.hf -o plain.f32 --dtype f32 -qq >/dev/null
    for task in arc_easy piqa winogrande; do
        items "$task"
        tool eval tasks -m plain.hf --base "$model" --tokenizer "$tok" --task "$task=$task.jsonl" \
            --samples "$task.samples" --format json -qq | without_clocks >"$task.tasks"
    done
    tool eval generate -m residual.vptq -p "Once upon a time" -n 64 -qq >generate.txt
    tool eval generate -m plain.gguf -p "Once upon a time" -n 64 --temperature 0.8 --seed 5 -qq >sample.txt
}

demo_blocks()
{
    local effort=(--joint 2 --retrain 1 --sweeps 2 --refits 1 --kmeans-iterations 8) windows=2 context=512 count=40
    [ "$part" = stories ] || { windows=1 context=256 count=8; }
    tool hessian -m "$demo/model.gguf" -c "$demo/calib.txt" -o demo.hessians -n "$windows" -l "$context" -qq >/dev/null
    tool quantize -m "$demo/model.gguf" -H demo.hessians -o demo --layers 0-2 -v 4 -k 256 "${effort[@]}" \
        --format json -qq | without_clocks >demo.rows
    pack demo
    tool pack --unpack demo.hf -o demo.gguf --to gguf -qq >/dev/null
    measure demo demo.hf "$demo/model.gguf" --text "$demo/eval.txt" --context "$context" --windows "$windows"
    items piqa "$count"
    tool eval tasks -m demo.hf --task piqa=piqa.jsonl --format json -qq | without_clocks >demo.tasks
    [ "$part" != stories ] ||
        tool quantize -m "$demo/model.gguf" -H demo.hessians -o demo.bits --layers 0-2 -b 2.6 --allocate proxy \
            "${effort[@]}" --format json -qq | without_clocks >demo.bits.rows
}

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
for i in "${!builds[@]}"; do
    bin=${builds[i]}
    [ ${#levels[@]} -eq 0 ] || export VPTQ_SIMD=${levels[i]}
    # The same path for both, since work directories name their base model.
    mkdir "$tmp/run" && cd "$tmp/run"
    "$part"
    [ -z "$demo" ] || demo_blocks
    find . -type f ! -name SHA256SUMS -print0 | xargs -0 sha256sum | sort >"$tmp/sums.$i"
    cd "$tmp" && rm -rf "$tmp/run"
done
failed=0
for i in "${!builds[@]}"; do
    comm -3 "$tmp/sums.0" "$tmp/sums.$i" | awk -v level="${levels[i]:+ (${levels[i]-})}" \
        '{ print "differs" level ": " $2 }' | sort -u >"$tmp/differing"
    cat "$tmp/differing"
    [ -s "$tmp/differing" ] || continue
    failed=1
    echo "$(comm -12 "$tmp/sums.0" "$tmp/sums.$i" | wc -l) files are the same bytes"
done
[ $failed -eq 0 ] || exit 1
echo "all $(wc -l <"$tmp/sums.0") files are the same bytes"
