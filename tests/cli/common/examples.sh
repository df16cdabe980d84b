# The programs in examples/ run on a small model.
long_if_instrumented
model=$(data models/stories260K-hf)
calibration=$(data text/tinystories/tiny.utf8)
text=$(data text/tinystories/tinystories_v2_sample.txt)
examples=$SRC/examples
export PATH=$BIN:$PATH

# Exit status 3 above the limit: the last good model stays, and the next night begins anew.
expect_exit 0 "$examples/pipeline.sh" "$model" "$calibration" "$text" out.vptq 4.5 >out 2>err
expect_line out '"ppl": '
[ ! -e out.vptq.work ] || fail "pipeline.sh leaves its work"
cp out.vptq good.vptq
"$BIN/vptq-pack" -q --unpack out.vptq -o other >out
expect_exit 3 "$examples/pipeline.sh" other "$calibration" "$text" out.vptq 4.5 1.5 >out 2>err
expect_line err 'pipeline.sh: out.vptq is not replaced: the new model is refused'
expect_same good.vptq out.vptq
[ ! -e out.vptq.work ] || fail "pipeline.sh leaves the work of a refused model"
expect_exit 3 "$examples/pipeline.sh" other "$calibration" "$text" first.vptq 4.5 1.5 >out 2>err
[ ! -e first.vptq ] || fail "a refused model was published"
expect_exit 0 "$examples/pipeline.sh" other "$calibration" "$text" out.vptq 4 >out 2>err
! cmp -s good.vptq out.vptq || fail "the new model was not published"
expect_exit 2 "$examples/pipeline.sh" 2>err
expect_line err 'usage: pipeline.sh'

# The first run writes the table, the second agrees with it, and a row that was better before fails.
ablation()
{
    "$examples/ci-ablation/ablation.sh" "$model" "$calibration" "$text" baseline.csv
}
expect_exit 0 ablation >out 2>err
expect_line out 'wrote baseline.csv'
expect_line baseline.csv '^v8-k256-r256,'
expect_exit 0 ablation >out 2>err
expect_line out '^v4-k256  .* bits, was '
ppl=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "ppl") p = i } $1 == "v4-k256" { print $p }' baseline.csv)
sed -i "/^v4-k256,/s/$ppl/1.0/" baseline.csv
expect_exit 1 ablation >out 2>err
expect_line out '^v4-k256 .*  WORSE$'
sed -i '/^v4-k256,/s/^/gone-/' baseline.csv
expect_exit 1 ablation >out 2>err
expect_line out '^gone-v4-k256 is missing$'
if command -v python3 >python.path && python3 -c 'import yaml' 2>err; then
    python3 -c 'import sys, yaml; yaml.safe_load(open(sys.argv[1]))' "$examples/ci-ablation/workflow.yml"
fi

# What the cache of the workflow is named by: everything that figures depend on.
for input in 'vptq_tools-\*.whl' rows.json 'model/\*\*' calibration.txt evaluation.txt; do
    expect_line "$examples/ci-ablation/workflow.yml" "key: .*hashFiles(.*$input'"
done

# Tasks of an array, one by one.
"$BIN/vptq-hessian" -q -m "$model" -c "$calibration" -o hessians -n 4 -l 128
for task in 1 2; do
    SLURM_ARRAY_TASK_ID=$task SLURM_CPUS_PER_TASK=2 \
        "$examples/slurm-sweep.sh" "$model" hessians "$text" "$examples/ci-ablation/rows.json" sweep --context 256 2>err
done
"$examples/slurm-sweep.sh" --join sweep >joined.jsonl
[ "$(json_get row joined.jsonl | paste -sd ' ')" = 'original v4-k256' ] || fail "$(cat joined.jsonl)"
for key in ppl bits_per_weight archive_bytes; do
    [ "$(tail -n 1 joined.jsonl | json_get $key)" = "$(json_get $key sweep/2.json)" ] || fail "$key: $(cat joined.jsonl)"
done
[ "$(tail -n 1 joined.jsonl | json_get v)" = 4 ] || fail "$(cat joined.jsonl)"

case $BIN in *coverage*) skip "an instrumented library is not installed" ;; esac
needs_own_machine "links a program with the library of this machine"
command -v pkg-config >stdout.tmp || skip "needs pkg-config"
env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -s -C "$SRC" install-lib "PREFIX=$PWD/usr" >install.log 2>&1 ||
    fail "make install-lib: $(tail -n 5 install.log)"
cp "$examples/library/Makefile" "$examples/library/quantize.c" .
PKG_CONFIG_PATH=$PWD/usr/lib/pkgconfig CFLAGS='-Wall -Wextra -Werror' env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -s quantize
LD_LIBRARY_PATH=$PWD/usr/lib ./quantize "$model" "$calibration" c.vptq >out 2>err || fail "$(cat err)"
expect_line out '^[0-9.]* bits per weight, perplexity [0-9.]*$'
