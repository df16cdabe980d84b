# shellcheck disable=SC2016 # inner shells expand
# scripts/slurm/job.sh on a cluster that runs here: the bytes of one process, also after a stop and a requeue.
needs_ranks
case $("$BIN/vptq-quantize" --version) in *ompi*) ;; *) skip "mpirun is Open MPI's" ;; esac
command -v sbatch >/dev/null || skip "needs Slurm (slurm-wlm)"
timeout 10 sinfo -h -t idle,mix -o %n 2>/dev/null | grep -q . || skip "no Slurm cluster runs here"
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 8 -l 128 -o h -q
args=(-m "$model" --tokenizer "$tok" -qq -H h -v 8 -k 1024 -r 256)
"$BIN/vptq-quantize" "${args[@]}" -o one >/dev/null
submit() { sbatch --parsable --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 "$@"; }
is_over() { ! squeue -h -j "$1" 2>/dev/null | grep -q .; }

id=$(submit -o job.out "$SRC/scripts/slurm/job.sh" "$BIN/vptq-quantize" "${args[@]}" -o work)
wait_for 60 sh -c 'ls work/*.safetensors >/dev/null 2>&1'
scancel --batch --signal=TERM "$id"
wait_for 60 grep -q "goes on when it runs again" job.out
[ ! -e work/report.jsonl ] || fail "it was not stopped"
wait_for 60 sh -c 'squeue -h -t PD -j "$1" | grep -q .' sh "$id"
scontrol update "jobid=$id" StartTime=now # the default is two minutes after a requeue
for _ in $(seq 240); do
    ! is_over "$id" || break
    sleep 1
done
[ -e work/report.jsonl ] || fail "it did not go on: $(cat job.out)"
expect_same one work
