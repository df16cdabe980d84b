# Invalid settings and inputs: one sentence, the right exit status, nothing lost.
model=$(data models/stories260K/stories260K.bin)
hf=$(data models/stories260K-hf)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 4 -l 256 -o h -q
run() { "$BIN/vptq-quantize" -m "$model" -H h -q "$@"; }

expect_error 2 "power of two" run -o w -k 100
expect_error 2 "layers 4-5" run -o w --layers 4-5
expect_error 2 "--embeddings needs --budget file or -o OUT.vptq" run -o w -b 3 --embeddings q8
expect_error 2 "missing option: -o/--output WORK" run
expect_error 1 "'nothing' is not a hessian directory" "$BIN/vptq-quantize" -m "$model" -H nothing -o w
expect_error 1 "another model" "$BIN/vptq-quantize" -m "$hf" -H h -o w
[ ! -e w ] || fail "a work directory was made"

# Options without effect.
for option in "--allocate kl" "--allocate-text x" "--allocate-tokens x" "--allocate-windows 2" "--allocate-length 64"; do
    # shellcheck disable=SC2086 # two words
    expect_error 2 "^vptq-quantize: ${option% *} needs -b BITS$" run -o w $option
done
for option in "--allocate-text x" "--allocate-windows 2"; do
    # shellcheck disable=SC2086 # two words
    expect_error 2 "^vptq-quantize: ${option% *} needs --allocate kl$" run -o w -b 3 $option
done
for option in "--windows 4" "--length 64" "--rows" "--holdout 0.1" "--weights plain" --lossy; do
    # shellcheck disable=SC2086 # two words
    expect_error 2 "^vptq-quantize: ${option% *} has no effect with -H: it belongs to a calibration text$" \
        run -o w $option
done
expect_error 2 "^vptq-quantize: --weights has no effect with -H" run -o w --tune e2e -c "$text" -n 4 --weights plain
expect_error 2 "^vptq-quantize: --correction needs --sequential$" run -o w --correction 1
expect_error 2 "^vptq-quantize: --correction needs --sequential$" \
    "$BIN/vptq-quantize" -m "$hf" -c "$text" -o w --correction 0
[ ! -e w ] || fail "a work directory was made"

# A budget that no setting can use up; the number in the message is one that can be given.
for mode in uniform proxy; do
    expect_error 2 "^vptq-quantize: a budget of 16 bits per weight is above the largest .* can use, [0-9.]*$" \
        run --dry-run -b 16 --allocate $mode
    largest=$(sed -n 's/.* can use, //p' err.txt)
    run --dry-run -b "$largest" --allocate $mode > out.txt
    expect_error 2 "is above the largest" run --dry-run -b "$(awk "BEGIN { print $largest + 0.0001 }")" --allocate $mode
done
expect_error 2 "a budget of 16 bits per weight of the file is above the largest" run --dry-run -b 16 --budget file
run --dry-run -b "$(sed -n 's/.* can use, //p' err.txt)" --budget file > out.txt

# A directory with something else in it is not touched.
mkdir other
touch other/config.json
expect_error 1 "'other' is not a work directory: it holds 'config.json'" run -o other -k 16
expect_error 1 "'other' is not a work directory: it holds 'config.json'" run -o other -k 16 --force
expect_error 1 "'other' is not a work directory: it holds 'config.json'" run -o other -k 16 --dry-run
[ "$(ls other)" = config.json ] || fail "something was written: $(ls other)"

# A work directory of another run: an error that names the key; --force starts over.
run -o w -k 16 --layers 0-0 > /dev/null
expect_error 1 "'settings.centroids' is 16, here it is 32" run -o w -k 32 --layers 0-0
expect_error 1 "'settings.seed' is 0" run -o w -k 16 --seed 5 --layers 0-0
expect_error 1 "'settings.norm' is .std., here it is .none." run -o w -k 16 --no-norm --layers 0-0
cp w/layer_000_q_proj.safetensors w/layer_009_q_proj.safetensors
run -o w -k 32 --layers 0-0 -f > /dev/null
[ ! -e w/layer_009_q_proj.safetensors ] || fail "a matrix of the other run is still there"
[ "$(sed -n 's/.*"k": \?\([0-9]*\).*/\1/p' w/report.jsonl | sort -u)" = 32 ] || fail "not redone"

# A run that fails at its start claims nothing; anything that is saved stays, without --force.
head -c 20000 "$text" >brief.txt
start() { "$BIN/vptq-quantize" -q -m "$hf" -c brief.txt -n 8 --layers 0-0 -o start "$@"; }
fail_start()
{
    rm -rf start
    expect_error 1 "activations of .* (shorter windows need less): --mem (1.0 MiB) is too small" \
        start -l 256 -k 16 --mem 1M
    [ "$(echo start/*)" = "start/lock start/quantize.json" ] || fail "not only begun: $(ls start)"
}
fail_start
for saved in hidden.state sensitivity.json tune.state layer_000_q_proj.safetensors; do
    touch start/$saved
    expect_error 1 "start/quantize.json belongs to another run: its key" start -l 32 -k 16
    [ -e start/$saved ] || fail "$saved is gone"
    rm start/$saved
done
start -l 32 -k 16 >out.txt
fail_start
start -l 32 -k 16 --tune layer --passes 1 --batch 1 >out.txt
fail_start
start -l 32 -b 3 --allocate proxy --dry-run >out.txt # what it measures is not of the run that failed
start -l 32 -b 3 --allocate proxy >out.txt

# A path that quantize.json cannot record.
cp -r "$hf" "$(printf 'm\344')"
expect_error 1 "quantize.json: the model's path '.*m.xe4' is not valid UTF-8, as JSON must be" \
    "$BIN/vptq-quantize" -q -m "$(printf 'm\344')" -c "$text" -n 2 -l 64 --layers 0-0 -k 16 -o latin

# Another process is working in the directory.
flock w/lock sleep 20 &
pid=$!
sleep 0.5
expect_error 1 "'w'\|w/lock" run -o w -k 32 --layers 0-0
kill "$pid"

# A missing or damaged Hessian is named before the first matrix, unless what needs it is finished.
mv h/layer_002_o.safetensors o
expect_error 1 "layer_002_o.safetensors is missing" run -o v -k 16
[ ! -e v ] || fail "a run without all Hessians begins"
run -o v -k 16 --layers 0-1 > /dev/null
{ head -c 3000 o; printf x; tail -c +3002 o; } > h/layer_002_o.safetensors
expect_error 1 "layer_002_o.safetensors: .*checksum" run -o v -k 16
[ ! -e v/layer_002_q_proj.safetensors ] || fail "a run with a damaged Hessian begins"
mv o h/layer_002_o.safetensors
run -o v -k 16 > /dev/null
mv h/layer_002_o.safetensors o
run -o v -k 16 > /dev/null
mv o h/layer_002_o.safetensors

# Paths in the manifest are absolute.
cp "$tok" tokenizer.bin
run -o named -k 16 --layers 0-0 --tokenizer tokenizer.bin > /dev/null
expect_line named/quantize.json "\"tokenizer\": \"$PWD/tokenizer.bin\""
expect_error 1 "'no-such-tokenizer'" run -o x --tokenizer no-such-tokenizer

# A dry run.
run --dry-run -v 8 -k 4096 --format json > plan.json
[ "$(wc -l < plan.json)" = 36 ] || fail "rows and totals of the plan"
# q_proj 64 x 64: (4096 * 8 * 16 + 8 rows * 24 words * 32 + 64 * 32 bits) / 4096
expect_near "$(json_get bits_per_weight plan.json | head -n 1)" 130 1e-9
"$BIN/vptq-quantize" -m "$model" --dry-run -v 8 -k 4096 > out.txt 2> err.txt
expect_line err.txt "vectors for 4096 centroids"
