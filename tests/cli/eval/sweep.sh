# scripts/sweep.sh: the rows of a grid, skipped rows, the frontier, a growing grid.
model=$(data models/stories260K-hf)
calibration=$(data text/tinystories/tiny.utf8)
text=$(data text/tinystories/tinystories_v2_sample.txt)
only=()
sweep()
{
    "$SRC/scripts/sweep.sh" -o dir "$@" -- -m "$model" -c "$calibration" -n 4 -l 64 --text "$text" --context 128 \
        --layers 0 --encoder upstream --set kmeans_iterations=2 --no-seconds -q "${only[@]}"
}
sweep -v 4,8 -k 16 -r 0,16,32 >out.csv 2>err.txt
expect_line err.txt "row 'v4-k16-r32': .*; it is left out"
expect_same out.csv dir/sweep.csv
[ "$(cut -d, -f1 out.csv | tr '\n' ' ')" = "row original v4-k16 v4-k16-r16 v8-k16 v8-k16-r16 " ] || fail "$(cat out.csv)"
# the original has the lowest perplexity; the row with the fewest bits is on the frontier, too
awk -F, '
    NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
    { bits[NR] = $at["bits_per_weight"]; ppl[NR] = $at["ppl"]; on[NR] = $at["frontier"] }
    END {
        for (i = 2; i <= NR; i++) {
            best = 1
            for (j = 2; j <= NR; j++)
                if (j != i && bits[j] <= bits[i] && ppl[j] <= ppl[i]) best = 0
            if (best != on[i]) exit 1
            count += best
        }
        exit !(count >= 2)
    }' out.csv || fail "the frontier is another one: $(cat out.csv)"
if command -v gnuplot >/dev/null; then
    expect_line dir/sweep.svg '</svg>'
fi

# several rows at once: the same bytes, also after an interruption
mv dir alone
sweep -v 4,8 -k 16 -r 0,16,32 --jobs 2 >jobs.csv 2>err.txt
expect_same out.csv jobs.csv
expect_line err.txt "row 'v4-k16-r32': .*; it is left out"
cp -r dir jobs
find alone/ablation dir/ablation -name '*.seconds' -delete
expect_same alone/ablation dir/ablation
[ ! -e dir/jobs ] || fail "left: dir/jobs"
rm -r dir
"$SRC/scripts/sweep.sh" -o dir -v 4,8 -k 16,4096 -r 0,16 -j 3 -- -m "$model" -c "$calibration" -n 4 -l 64 --text "$text" \
    --context 128 --set kmeans_iterations=50 --no-seconds >out.txt 2>err.txt &
pid=$!
wait_for 60 test -e dir/jobs/v4-k4096/work/v4-k4096/quantize.json
kill -TERM "$pid"
expect_exit 143 wait "$pid"
[ ! -s out.txt ] || fail "a table of an interrupted sweep"
[ ! -e dir/jobs ] || fail "left: dir/jobs"
[ -e dir/ablation/work/v4-k4096/quantize.json ] || fail "$(find dir -maxdepth 4)"
rm -r dir

# a row that fails ends the sweep with its status, and other rows stay
mkdir -p dir/ablation/work
cp jobs/ablation/ablate.json dir/ablation
echo in the way >dir/ablation/work/v8-k16
expect_exit 1 sweep -v 4,8 -k 16 -r 0,16 --jobs 2 >out.txt 2>err.txt
expect_line err.txt "^vptq-eval: row 'v8-k16': .*/v8-k16"
[ ! -s out.txt ] || fail "a table of a failed sweep"
expect_line dir/ablation/work/v8-k16 'in the way'
[ -e dir/ablation/rows/v4-k16-r16.json ] || fail "$(find dir -maxdepth 3)"
for option in '--only v4-k16' -f '--serve 1,8,2'; do
    # shellcheck disable=SC2086 # some are two words
    expect_exit 2 "$SRC/scripts/sweep.sh" -o dir -j 2 -- -m "$model" $option 2>err.txt
    expect_line err.txt "^sweep.sh: ${option%% *} does not go with --jobs"
done
# inputs that can be read only once
mkfifo pipe
once() { expect_exit 2 "$SRC/scripts/sweep.sh" -o once -v 4 -k 16 "$@" </dev/null >out.txt 2>err.txt; }
for option in '-c -' -c- -qc- --calibration=- '--calib -' '--text -' '--task x=-' --task=x=- '--text pipe' --text-tokens=pipe; do
    # shellcheck disable=SC2086 # some are two words
    once -j 2 -- -m "$model" $option
    expect_line err.txt "^sweep.sh: $option does not go with --jobs: every row reads it; pass a file$"
done
for option in '--text -' --task=x=- '--text pipe'; do
    # shellcheck disable=SC2086 # some are two words
    once --max-bits 3 -- -m "$model" $option
    expect_line err.txt "^sweep.sh: $option does not go with --max-bits"
done
[ ! -e once ] || fail "a refused sweep has begun"
expect_exit 2 "$SRC/scripts/sweep.sh" -o dir --jobs 0 -- -m "$model" 2>err.txt
expect_line err.txt "^sweep.sh: --jobs '0': expected a number from 1 to 9999"
rm -rf dir
mv jobs dir

# plot ROWS ARGUMENT..: sweeps, and checks that the rows are plotted without a word
plot()
{
    sweep "${@:2}" >few.csv 2>err.txt || fail "$(cat err.txt)"
    [ "$(cut -d, -f1 few.csv | tr '\n' ' ')" = "row $1 " ] || fail "$(cat few.csv)"
    [ ! -s err.txt ] || fail "messages with -q: $(cat err.txt)"
    ! command -v gnuplot >/dev/null || expect_line dir/sweep.svg '</svg>'
}
plot 'original v4-k16 v8-k16' -v 4,8 -k 16 # all on the frontier
plot 'original v4-k16' -v 4 -k 16
# without the original
only=(--only v4-k16 --only v8-k16)
plot 'v4-k16 v8-k16' -v 4,8 -k 16
only=(--only v4-k16)
plot v4-k16 -v 4 -k 16
! command -v gnuplot >/dev/null || ! grep -q 'original' dir/sweep.svg || fail "a line of the original"
only=(--only original)
sweep -v 4 -k 16 >few.csv 2>err.txt
if command -v gnuplot >/dev/null; then
    [ "$(cat err.txt)" = "sweep: no rows but the original; no plot" ] || fail "$(cat err.txt)"
    [ ! -e dir/sweep.svg ] || fail "a plot of nothing"
fi
only=()

# a finished table stays
cp dir/sweep.csv before.csv
for option in --dry-run '--report x' --format=md '--form md'; do
    # shellcheck disable=SC2086 # some are two words
    expect_exit 2 "$SRC/scripts/sweep.sh" -o dir -v 4 -k 16 -- -m "$model" $option 2>err.txt
    expect_line err.txt "^sweep.sh: ${option%% *} is not for a sweep"
done
for option in '-o other' -oother '-qo other' '--output other' --output=other '--outp other' --outp=other; do
    # shellcheck disable=SC2086 # some are two words
    expect_exit 2 "$SRC/scripts/sweep.sh" -o dir -v 4 -k 16 -- -m "$model" $option 2>err.txt
    expect_line err.txt "^sweep.sh: ${option%% *} is not for a sweep: it writes to DIR/ablation$"
done
for option in '--table methods' --table=x '--tab x'; do
    # shellcheck disable=SC2086 # some are two words
    expect_exit 2 "$SRC/scripts/sweep.sh" -o dir -v 4 -k 16 -- -m "$model" $option 2>err.txt
    expect_line err.txt "^sweep.sh: ${option%% *} is not for a sweep: its rows are those of the lists$"
done
if command -v flock >/dev/null; then
    expect_exit 1 flock dir/sweep.lock "$SRC/scripts/sweep.sh" -o dir -v 4 -k 16 -- -m "$model" 2>err.txt
    expect_line err.txt "^sweep.sh: 'dir': another sweep is writing to it"
fi
expect_same dir/sweep.csv before.csv

sweep -v 4,8 -k 16 -r 0,16 -g 1,2 --max-bits 3 >more.csv 2>err.txt
expect_line err.txt '^sweep: .* is left out: more than 3 bits per weight'
awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
    NR > 2 && $at["bits_per_weight"] > 3 { exit 1 }' more.csv || fail "$(cat more.csv)"
sweep -v 4,8 -k 16 -r 0,16 -g 1,2 --max-bits 30 >all.csv
[ "$(wc -l <all.csv)" = 10 ] || fail "a limit that no row exceeds: $(cat all.csv)"
[ -z "$(find dir -name '*.tmp')" ] || fail "left: $(find dir -name '*.tmp')"
# rows of both grids are the same
grep '^v8-k16,' out.csv | sed 's/,[01]$//' >a.txt
grep '^v8-k16,' more.csv | sed 's/,[01]$//' >b.txt
expect_same a.txt b.txt
[ -s a.txt ] || fail "no row v8-k16"
expect_exit 2 "$SRC/scripts/sweep.sh" -o dir -v x -- -m "$model" 2>err.txt
expect_line err.txt "'x' is not a list of whole numbers"
expect_exit 2 "$SRC/scripts/sweep.sh" -o dir -k 0.5 -- -m "$model" 2>err.txt
expect_line err.txt "'0.5' is not a list of whole numbers"
expect_exit 2 "$SRC/scripts/sweep.sh" -o dir --max-bits 3,4 -- -m "$model" 2>err.txt
expect_line err.txt "'3,4' is not a number"
