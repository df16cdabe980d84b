#!/usr/bin/env bash
# Runs the commands of docs/tutorial.md and takes its pictures from the pages that the tools write.
# usage: tutorial.sh MODEL CALIBRATION.txt EVALUATION.txt
# The pictures in docs/tutorial are of stories260K; that of serving is of the recorded runs in docs/results.
# Finished steps in build/tutorial are kept.  Environment: BIN (folder of the tools, default build/bin), PICTURES (folder
# of the pictures, default build/tutorial; docs/tutorial when they are to be committed).
set -euo pipefail
export LC_ALL=C # decimal points

usage='usage: tutorial.sh MODEL CALIBRATION.txt EVALUATION.txt'
src=$(cd "$(dirname "$0")/.." && pwd)
model=$(realpath "${1:?$usage}") calibration=$(realpath "${2:?$usage}") text=$(realpath "${3:?$usage}")
export BIN=${BIN:-$src/build/bin}
pictures=$(realpath -m "${PICTURES:-$src/build/tutorial}")
mkdir -p "$src/build/tutorial" "$pictures"
cd "$src/build/tutorial"

# picture PAGE N: prints the Nth chart of a page as a file of its own, with the rules of the page that it needs.
picture()
{
    awk -v wanted="$2" '
        /^:root|^@media screen and \(prefers-color|^svg [.t]|^\.f[0-7]/ { rules = rules $0 "\n" }
        /^<svg / && ++seen == wanted {
            sub(/^<svg /, "<svg xmlns=\"http://www.w3.org/2000/svg\" ")
            head = $0
            sub(/viewBox="0 0 380 [0-9]+"/, "& width=\"570\"", head)
            print head "\n<style>\n" rules "svg{background:var(--bg);font-family:sans-serif}\n</style>"
            inside = 1
            next
        }
        inside { print }
        /^<\/svg>/ { inside = 0 }' "$1"
}

"$BIN/vptq-hessian" -m "$model" -c "$calibration" -o hessians -n 16 -l 256 -f
"$BIN/vptq-quantize" -m "$model" -H hessians -o work -v 4 -k 256
"$BIN/vptq-pack" work -o model.vptq -f
"$BIN/vptq-eval" ppl -m "$model" --text "$text" --context 256 --windows 16
"$BIN/vptq-eval" ppl -m model.vptq --text "$text" --context 256 --windows 16
"$BIN/vptq-eval" error -m model.vptq --base "$model" -H hessians -o error.html -f
"$src/scripts/sweep.sh" -o sweep -v 4,8 -k 16,64,256 -r 0,64 -- \
    -m "$model" -H hessians --text "$text" --context 256 --text-windows 16 --no-seconds
"$BIN/vptq-eval" compare "$src/docs/results/AMD-EPYC-avx2/serve-methods.jsonl" -o serve.html -f

cp sweep/sweep.svg "$pictures/frontier.svg"
picture error.html 1 >"$pictures/errors.svg"
picture serve.html 2 >"$pictures/serving.svg"
