# shellcheck disable=SC2016 # inner shells expand
# Runs scripts/slurm/job.sh on a cluster, and starts one of this machine if none runs: the bytes of one process, also
# after a stop and a requeue.  A job that is cancelled is not put into the queue again.
needs_ranks
case $("$BIN/vptq-quantize" --version) in *ompi*) ;; *) skip "mpirun is Open MPI's" ;; esac
command -v sbatch >/dev/null || skip "needs Slurm (slurm-wlm)"

cluster_is_idle() { timeout 10 sinfo -h -t idle,mix -o %n 2>/dev/null | grep -q .; }
daemons_ended() { [ ! -e slurm/slurmd.pid ] && [ ! -e slurm/slurmctld.pid ]; }
end_own_cluster()
{
    scancel -u root || true
    pkill -F slurm/slurmd.pid || true
    pkill -F slurm/slurmctld.pid || true
    wait_for 20 daemons_ended
}
# own_cluster: starts the daemons of a cluster of one node, which end with the test.
own_cluster()
{
    local host port
    [ "$(id -u)" = 0 ] || skip "no Slurm cluster runs here, and starting one needs root"
    command -v slurmctld >/dev/null || skip "no Slurm cluster runs here"
    host=$(hostname -s)
    port=$((20000 + $$ % 10000 * 2))
    mkdir -p slurm/state slurm/spool
    cat >slurm/slurm.conf <<EOF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
AuthType=auth/none
CredType=cred/none
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1
ReturnToService=2
StateSaveLocation=$PWD/slurm/state
SlurmdSpoolDir=$PWD/slurm/spool
SlurmctldPidFile=$PWD/slurm/slurmctld.pid
SlurmdPidFile=$PWD/slurm/slurmd.pid
SlurmctldLogFile=$PWD/slurm/slurmctld.log
SlurmdLogFile=$PWD/slurm/slurmd.log
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
EOF
    export SLURM_CONF=$PWD/slurm/slurm.conf
    trap end_own_cluster EXIT
    slurmctld
    slurmd
    wait_for 60 cluster_is_idle
}
cluster_is_idle || own_cluster

model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 8 -l 128 -o h -q
args=(-m "$model" --tokenizer "$tok" -qq -H h -v 8 -k 1024 -r 256 --retrain 16 --refits 16)
"$BIN/vptq-quantize" "${args[@]}" -o one >/dev/null
submit() { sbatch --parsable --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 "$@"; }
is_over() { ! squeue -h -j "$1" 2>/dev/null | grep -q .; }

id=$(submit -o job.out "$SRC/scripts/slurm/job.sh" "$BIN/vptq-quantize" "${args[@]}" -o work)
wait_for 60 sh -c 'ls work/*.safetensors >/dev/null 2>&1'
scancel --batch --signal=USR1 "$id"
wait_for 60 grep -q "goes on when it runs again" job.out
[ ! -e work/report.jsonl ] || fail "it was not stopped"
wait_for 60 sh -c 'squeue -h -t PD -j "$1" | grep -q .' sh "$id"
# The default is two minutes after a requeue.  A node does not start a job in the second in which it ended there.
scontrol update "jobid=$id" StartTime=now+2
for _ in $(seq 240); do
    ! is_over "$id" || break
    sleep 1
done
[ -e work/report.jsonl ] || fail "it did not go on: $(cat job.out)"
expect_same one work

id=$(submit -o cancelled.out "$SRC/scripts/slurm/job.sh" "$BIN/vptq-quantize" "${args[@]}" -o cancelled)
wait_for 60 sh -c 'ls cancelled/*.safetensors >/dev/null 2>&1'
scancel "$id"
wait_for 60 is_over "$id"
[ ! -e cancelled/report.jsonl ] || fail "it was not stopped"
scontrol show job "$id" >job.txt
expect_line job.txt "JobState=CANCELLED "
expect_line job.txt "Restarts=0 "
