#!/usr/bin/env bash
#SBATCH --job-name=vptq
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
# Runs a command in all tasks of a Slurm job, which share its work (tools of `make MPI=1`, docs/scale.md):
#     sbatch job.sh vptq-hessian -m MODEL -c TEXT -o hessians
#     sbatch --nodes=8 job.sh vptq-quantize -m MODEL -H hessians -b 2.2 -o work
#     sbatch --gpus-per-task=1 --ntasks-per-node=4 job.sh vptq-quantize -m MODEL -H hessians -k 65536 -v 8 -o work
# Two minutes before its time is over, Slurm sends SIGUSR1.  The command then ends and keeps all finished units, and
# the job is put into the queue again, where it goes on.  A job that failed stays failed, and `scancel JOB`, which sends
# SIGTERM, ends it for good, with all finished units kept, too.
set -uo pipefail
[ $# -gt 0 ] && [ -n "${SLURM_JOB_ID:-}" ] || {
    echo "usage: sbatch [OPTION..] job.sh COMMAND [ARGUMENT..]" >&2
    exit 2
}
threads=${SLURM_CPUS_PER_TASK:-1}
# Without the binding, all threads of a process would share one core.
mpirun --map-by "slot:PE=$threads" --bind-to core "$@" -t "$threads" --no-progress &
child=$!
stopped=
signalled=
trap 'stopped=1 signalled=1; kill -TERM "$child"' USR1
trap 'stopped= signalled=1; kill -TERM "$child"' TERM
status=0
wait "$child" || status=$?
while [ -n "$signalled" ]; do # the signal ended the wait, not the command
    signalled=
    status=0
    wait "$child" || status=$?
done
if [ -n "$stopped" ] && [ "$status" -ne 0 ]; then
    echo "job.sh: stopped by Slurm; the job goes on when it runs again" >&2
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
