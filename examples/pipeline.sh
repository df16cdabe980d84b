#!/bin/sh
# Converts a model and publishes it unless it is worse than a limit: what a nightly job does with a checkpoint.
# usage: pipeline.sh MODEL CALIBRATION.txt EVALUATION.txt OUT.vptq [BITS [MAX-PPL]]
# Every stage resumes: after an interruption, run the same command again.
set -eu
model=${1:?usage: pipeline.sh MODEL CALIBRATION.txt EVALUATION.txt OUT.vptq [BITS [MAX-PPL]]}
calibration=${2:?} evaluation=${3:?} out=${4:?} bits=${5:-3.1} max_ppl=${6:-}
work=$out.work
new=$work/packed.vptq # in the folder of OUT, so that mv replaces it at once

vptq-hessian -m "$model" -c "$calibration" -o "$work/hessians" -n 16 -l 512
vptq-quantize -m "$model" -H "$work/hessians" -o "$work/matrices" -b "$bits"
vptq-pack "$work/matrices" -o "$new" --to archive --force

# Exit status 3: the file is damaged, or the model works, but its perplexity is above the limit.
status=0
vptq-pack --check "$new" &&
    vptq-eval ppl -m "$new" --text "$evaluation" --context 512 --windows 8 --format json ${max_ppl:+--max-ppl "$max_ppl"} ||
    status=$?
case $status in
    0) mv -f "$new" "$out" ;;
    3) echo "pipeline.sh: $out is not replaced: the new model is refused" >&2 ;;
    *) exit $status ;;
esac
rm -rf "$work" # also of a refused model: the next checkpoint has other Hessians
exit $status
