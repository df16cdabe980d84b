#!/usr/bin/env bash
# make demo: takes a real model through the four tools and prints a table of before and after.
# Finished stages are kept, so a second run takes seconds.
#   MODEL=PATH     another model (any kind that the tools read)
#   TEXT=FILE      another text: its first three quarters calibrate, the last quarter evaluates
#   SETTINGS=".."  options of vptq-quantize for one packed model instead of the two shown by
#                  default, at about 3 and about 4 bits per weight
#   RECORD=1       put the digests of the models into docs/results/digests.txt and README.md instead of
#                  comparing them; without MODEL, TEXT and SETTINGS only
set -euo pipefail
export LC_ALL=C # decimal points

src=$(cd "$(dirname "$0")/.." && pwd)
bin=${BIN:-$src/build/bin}
demo=${DEMO_DIR:-$src/build/demo}
effort=()
if [ -n "${SETTINGS-}" ]; then
    variants=("$SETTINGS")
else
    # settings per matrix by the effect of its errors on the output, measured once for both
    variants=("-b 3.1 --allocate kl" "-b 4.1 --allocate kl")
    # a fraction of the time for slightly more loss (docs/encoder.md, section 8)
    effort=(--joint 2 --retrain 0 --sweeps 1 --refits 1 --search beam:8 --kmeans-iterations 12)
    measured_on=256 # tokens
fi
windows=16 # of 2048 tokens for the Hessians
eval_windows=8
prompt="The capital of France is"

mkdir -p "$demo"

# ---- inputs ----

if [ -n "${MODEL-}" ]; then
    [ -e "$MODEL" ] || { echo "demo: MODEL=$MODEL does not exist" >&2; exit 1; }
    model=$MODEL
else
    "$src/scripts/fetch_demo.sh" --model-only "$demo"
    model=$demo/model.gguf
fi

if [ -n "${TEXT-}" ]; then
    [ -s "$TEXT" ] || { echo "demo: TEXT=$TEXT does not exist" >&2; exit 1; }
else
    "$src/scripts/fetch_demo.sh" --text-only "$demo"
fi

# One folder per combination of inputs (by content) and settings.
key=$({
    find -L "$model" -type f -printf '%p %s %T@\n' | sort
    [ -z "${TEXT-}" ] || sha256sum < "$TEXT"
    printf '%s|%s|%s\n' "${variants[*]} ${effort[*]}" "$windows" "$eval_windows"
} | sha256sum | cut -c1-12)
run=$demo/run-$key
mkdir -p "$run"
if [ -n "${TEXT-}" ]; then
    lines=$(wc -l < "$TEXT")
    head -n $((lines * 3 / 4)) "$TEXT" > "$run/calib.txt"
    tail -n +$((lines * 3 / 4 + 1)) "$TEXT" > "$run/eval.txt"
    calib=$run/calib.txt
    evaltext=$run/eval.txt
else
    calib=$demo/calib.txt
    evaltext=$demo/eval.txt
fi

# ---- stages ----

# stage NAME COMMAND..: runs a command once and keeps its seconds and stdout.  The tools resume, so
# an interrupted stage continues where it stopped.
stage() {
    local name=$1 begin end
    shift
    if [ -f "$run/$name.seconds" ]; then
        echo "demo: $name is already done" >&2
        return
    fi
    echo "demo: $name: $(basename "$1") ${*:2}" >&2
    begin=$(date +%s.%N)
    "$@" > "$run/$name.out.tmp"
    end=$(date +%s.%N)
    mv "$run/$name.out.tmp" "$run/$name.out"
    awk "BEGIN { printf \"%.1f\\n\", $end - $begin }" > "$run/$name.seconds.tmp"
    mv "$run/$name.seconds.tmp" "$run/$name.seconds"
}

stage hessian "$bin/vptq-hessian" -m "$model" -c "$calib" -o "$run/hessians" -n "$windows"
stage ppl-original "$bin/vptq-eval" ppl -m "$model" --text "$evaltext" \
    --windows "$eval_windows" --format json
stage text-original "$bin/vptq-eval" generate -m "$model" -p "$prompt" -n 32
# What the original takes in 16 bits: many models come in fewer, as this one.
stage size-float16 "$bin/vptq-pack" --unpack "$model" -o "$run/float16" --dtype f16 --dry-run -q --format json
measure=()
if [ -n "${measured_on-}" ]; then
    measure=(--allocate-text "$calib" --allocate-windows 1 --allocate-length "$measured_on")
fi
for i in "${!variants[@]}"; do
    # Measurements made for the first budget serve the others as well.
    if [ "$i" -gt 0 ] && [ -f "$run/work-0/sensitivity.json" ] && [ ! -d "$run/work-$i" ]; then
        mkdir "$run/work-$i"
        cp "$run/work-0/sensitivity.json" "$run/work-$i/"
    fi
    # shellcheck disable=SC2086 # the settings are several words
    stage "quantize-$i" "$bin/vptq-quantize" -m "$model" -H "$run/hessians" -o "$run/work-$i" \
        ${variants[i]} "${measure[@]}" "${effort[@]}"
    stage "pack-$i" "$bin/vptq-pack" "$run/work-$i" -o "$run/packed-$i" -f
    stage "ppl-packed-$i" "$bin/vptq-eval" ppl -m "$run/packed-$i" --text "$evaltext" \
        --windows "$eval_windows" --format json
    stage "text-packed-$i" "$bin/vptq-eval" generate -m "$run/packed-$i" -p "$prompt" -n 32
done

# ---- the table ----

field() { sed -n "s/.*\"$2\": *\\([-0-9.eE+]*\\).*/\\1/p" "$run/$1.out"; }
seconds() { cat "$run/$1.seconds"; }
size() {
    local bytes
    if [ -d "$1" ]; then
        bytes=$(cat "$1"/*.safetensors | wc -c)
    else
        bytes=$(wc -c < "$1")
    fi
    awk "BEGIN { printf \"%.1f MB\", $bytes / 1e6 }"
}
row() {
    printf '%-22s %10.3f ± %-7.3f %8.3f %12s %9.0f\n' "$1" "$(field "ppl-$2" ppl)" \
        "$(field "ppl-$2" ppl_stderr)" "$(field "ppl-$2" bits_per_weight)" "$(size "$3")" \
        "$(field "ppl-$2" tokens_per_second)"
}
# The original in 16 bits, with which packed sizes compare.
float16_row() {
    local bytes
    bytes=$(tail -n 1 "$run/size-float16.out" | sed 's/.*"total_bytes": \([0-9]*\).*/\1/')
    printf '%-22s %20s %8.3f %12s\n' "original in float16" "the same" 16 \
        "$(awk "BEGIN { printf \"%.1f MB\", $bytes / 1e6 }")"
}
first_words() { head -c 300 "$run/text-$1.out" | tr '\n' ' '; }

echo
echo "$(basename "$model"), Hessians from $windows windows${effort[*]:+, ${effort[*]}}"
echo "perplexity over $(field ppl-original windows) windows of $(field ppl-original context) tokens of held-out text"
echo
printf '%-22s %20s %8s %12s %9s\n' "" perplexity "bits/w" "weights" "tokens/s"
row original original "$model"
float16_row
for i in "${!variants[@]}"; do
    row "${variants[i]}" "packed-$i" "$run/packed-$i"
done
echo
echo "seconds: hessian $(seconds hessian), perplexity of the original $(seconds ppl-original)"
for i in "${!variants[@]}"; do
    echo "${variants[i]}: quantize $(seconds "quantize-$i"), pack $(seconds "pack-$i")," \
        "perplexity $(seconds "ppl-packed-$i")"
done
echo
echo "original: $(first_words original)"
for i in "${!variants[@]}"; do
    echo "${variants[i]}: $(first_words "packed-$i")"
done
echo
echo "The packed models are in $run/packed-*"

# ---- digests ----

recorded=$src/docs/results/digests.txt

# expected SETTINGS: the recorded digest.
expected() { awk -v want="$1" '/^vptq1:/ { d = $1; sub(/^[^ ]* /, ""); if ($0 == want) print d }' "$recorded"; }

# record SETTINGS DIGEST: replaces the recorded digest, in the README as well.
record()
{
    local old
    old=$(expected "$1")
    [ -n "$old" ] || { echo "demo: $recorded has no line for $1" >&2; exit 1; }
    sed -i "s/$old/$2/" "$recorded" "$src/README.md"
}

text_sum=$(sha256sum < "$calib" | cut -d' ' -f1)
if [ -n "${MODEL-}${TEXT-}${SETTINGS-}" ]; then
    compare=no
elif [ -n "${RECORD-}" ]; then
    compare=record
    sed -i "s/^text .*/text $text_sum/" "$recorded"
elif grep -qx "text $text_sum" "$recorded"; then
    compare=yes
else
    compare=no
    echo "demo: the recorded digests are of another text (docs/results/digests.txt)" >&2
fi
differ=0
for i in "${!variants[@]}"; do
    digest=$("$bin/vptq-pack" -q --digest "$run/packed-$i")
    note=
    if [ "$compare" = record ]; then
        record "${variants[i]}" "$digest"
        note=", recorded"
    elif [ "$compare" = yes ] && [ "$digest" = "$(expected "${variants[i]}")" ]; then
        note=", as recorded"
    elif [ "$compare" = yes ]; then
        note=", EXPECTED $(expected "${variants[i]}")"
        differ=1
    fi
    echo "${variants[i]}: $digest$note"
done
if [ "$differ" = 1 ]; then
    echo "demo: these are not the bytes that docs/results/digests.txt records; if the models are of an earlier" \
        "build, remove $run and run it again" >&2
    exit 1
fi
