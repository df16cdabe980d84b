#!/bin/sh
# Converts a model and refuses the result if it is worse than a limit: what a nightly job does with a checkpoint.
# usage: pipeline.sh MODEL CALIBRATION.txt EVALUATION.txt OUT.vptq [BITS [MAX-PPL]]
# Every stage resumes: after an interruption, run the same command again.
set -eu
model=${1:?usage: pipeline.sh MODEL CALIBRATION.txt EVALUATION.txt OUT.vptq [BITS [MAX-PPL]]}
calibration=${2:?} evaluation=${3:?} out=${4:?} bits=${5:-3.1} max_ppl=${6:-}
work=$out.work

vptq-hessian -m "$model" -c "$calibration" -o "$work/hessians" -n 16 -l 512
vptq-quantize -m "$model" -H "$work/hessians" -o "$work/matrices" -b "$bits"
vptq-pack "$work/matrices" -o "$out" --to archive --force
vptq-pack --check "$out"

# Exit status 3: the model works, but its perplexity is above the limit.
vptq-eval ppl -m "$out" --text "$evaluation" --context 512 --windows 8 --format json ${max_ppl:+--max-ppl "$max_ppl"}
rm -rf "$work"
