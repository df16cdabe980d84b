#!/usr/bin/env bash
#SBATCH --job-name=vptq-sweep
#SBATCH --array=1-4
#SBATCH --cpus-per-task=16
#SBATCH --mem=32G
#SBATCH --time=12:00:00
# Measures one row of a table of settings per task of a Slurm array, all with the same Hessians.
#     vptq-hessian -m MODEL -c CALIBRATION.txt -o hessians
#     sbatch --array=1-4 slurm-sweep.sh MODEL hessians EVALUATION.txt rows.json sweep
#     slurm-sweep.sh --join sweep > sweep.jsonl
# A task that was stopped continues where it was: submit it again.
set -euo pipefail
usage='usage: slurm-sweep.sh MODEL HDIR EVALUATION.txt ROWS.json OUT [ABLATE-OPTION..] | --join OUT'
if [ "${1:-}" = --join ]; then
    cat "${2:?$usage}"/*.json # an object per row, whose keys depend on its settings
    exit 0
fi
model=${1:?$usage} hessians=${2:?$usage} text=${3:?$usage} rows=${4:?$usage} out=${5:?$usage}
task=${SLURM_ARRAY_TASK_ID:?run it with sbatch --array, or set SLURM_ARRAY_TASK_ID}
shift 5
mkdir -p "$out"
vptq-eval ablate -m "$model" -H "$hessians" --text "$text" --table "$rows" --only "$task" -o "$out/$task" \
    -t "${SLURM_CPUS_PER_TASK:-0}" --no-progress --format json "$@" >"$out/$task.json.tmp"
mv "$out/$task.json.tmp" "$out/$task.json"
