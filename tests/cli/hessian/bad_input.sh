# Every wrong input: one sentence, the right status, and no output.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
run() { "$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" --weights plain -q "$@"; }

expect_error 2 "missing option: -m/--model MODEL" "$BIN/vptq-hessian" -c "$text" -o x
expect_error 2 "missing option: -o/--output HDIR" run -c "$text"
expect_error 2 "'-l'\|--length\|window" run -c "$text" -o x -l 1
expect_error 2 "model does not go with --show" "$BIN/vptq-hessian" --show h -m "$model"
expect_error 2 "output does not go with --show" "$BIN/vptq-hessian" --show h -o x
expect_error 2 "calibration does not go with --merge" "$BIN/vptq-hessian" --merge h h -o x -c "$text"
expect_error 2 "length does not go with --import" "$BIN/vptq-hessian" --import h -o x -l 16
expect_error 2 "weights does not go with --export" "$BIN/vptq-hessian" --export h -o x --weights plain
expect_error 1 "no-such-text" run -c no-such-text -o x
echo "One day" > short.txt
expect_error 1 "short.txt: the text has .* 256$" run -c short.txt -o x -l 256
expect_error 1 "short.txt: the text has .* 18446744073709551615$" run -c short.txt -o x -l 18446744073709551615
printf 'abc' > odd.i32
expect_error 1 "odd.i32" run --tokens odd.i32 -o x -l 16
printf '\377\377\377\177%.0s' $(seq 64) > outside.i32
expect_error 1 "2147483647" run --tokens outside.i32 -o x -l 16
expect_error 1 "no-such-model" "$BIN/vptq-hessian" -m no-such-model -c "$text" -o x
expect_error 2 "layers 3-9" run -c "$text" -o x -l 64 --layers 3-9
[ ! -e x ] || [ -z "$(find x -name '*.safetensors')" ] || fail "an output was made"

# A directory with something else in it is not touched.
mkdir other
touch other/quantize.json
expect_error 1 "'other' is not a hessian directory: it holds 'quantize.json'" run -c "$text" -o other -n 2 -l 64 -f
[ "$(ls other)" = quantize.json ] || fail "something was written: $(ls other)"

# A directory of another run: an error that names the key; --force replaces it.
run -c "$text" -o h -n 2 -l 64
expect_error 1 "key 'fingerprint'" run -c "$text" -o h -n 4 -l 64
run -c "$text" -o h -n 4 -l 64 -f
expect_error 1 "layers 0-4" run -c "$text" -o h -n 4 -l 64 --layers 0-1

# A run that fails at its start claims nothing: the fix that it names is accepted, also by a dry run.  A directory
# that has anything else needs --force.
head -c 20000 "$text" >brief.txt
brief() { run -c brief.txt -n 8 "$@"; }
brief -l 16 -o fresh >out.txt
for part in 0 0.2; do
    rm -rf start
    expect_error 1 "activations of 2048 tokens (shorter windows need less): --mem (1.0 MiB) is too small" \
        brief -l 256 --holdout $part -o start --mem 1M
    [ -e start/hessian.json ] || fail "the run fails before it begins: $(ls start)"
    touch start/hidden.state
    expect_error 1 "'start' holds hessians of another text\|'start' is a collection with 512 tokens held out" \
        brief -l 16 -o start
    [ -e start/hidden.state ] || fail "a checkpoint is gone"
    rm start/hidden.state
    brief -l 16 -o start --dry-run >out.txt
    brief -l 16 -o start >out.txt
    expect_same fresh start
done

# Another process is working in the directory.
flock h/lock sleep 20 &
pid=$!
sleep 0.5
expect_error 1 "'h'\|h/lock" run -c "$text" -o h -n 4 -l 64
kill "$pid"

# --show reports a NaN in a Hessian; every use of it is an error.
cp h/layer_001_o.safetensors good.bin
size=$(stat -c %s good.bin)
printf '\377\377\377\377' |
    dd of=h/layer_001_o.safetensors bs=1 seek=$((size - 4)) conv=notrunc 2> dd.txt
expect_exit 1 "$BIN/vptq-hessian" --show h > out.txt 2> err.txt
expect_line err.txt "h/layer_001_o.safetensors: the file is damaged: its checksum is .*, expected"
reseal h/layer_001_o.safetensors "$BIN/vptq-hessian" --show h
"$BIN/vptq-hessian" --show h --format json > nan.json
[ "$(json_get nan nan.json | paste -s -d +)" = "0+0+0+0+0+1+0+0+0+0+0+0+0+0+0+0+0+0+0+0" ] ||
    fail "the NaN of layer 1, input o was not counted"
[ "$(json_get verdict nan.json | grep -c broken)" = 1 ] || fail "expected one verdict 'broken'"
expect_exit 1 "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h -o w --layers 1-1 -k 16 -q \
    > out.txt 2> err.txt
expect_line err.txt "layer_001_o.*of the max is -*nan, expected a finite number below 1e24"
# A number that is finite, but with which nothing can be computed.
printf '\377\377\177\177' | dd of=h/layer_001_o.safetensors bs=1 seek=$((size - 4)) conv=notrunc 2> dd.txt
reseal h/layer_001_o.safetensors "$BIN/vptq-hessian" --show h
"$BIN/vptq-hessian" --show h --format json > huge.json
[ "$(json_get verdict huge.json | grep -c broken)" = 1 ] || fail "a value of 3.4e38 is not 'broken'"
expect_exit 1 "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h -o w --layers 1-1 -k 16 -q \
    > out.txt 2> err.txt
expect_line err.txt "layer_001_o.*of the max is 3.40282e+38, expected a finite number below 1e24"
cp good.bin h/layer_001_o.safetensors

# Damaged Hessians.
head -c 2000 h/layer_002_up.safetensors > cut.bin
cp cut.bin h/layer_002_up.safetensors
expect_exit 1 "$BIN/vptq-hessian" --show h > out.txt 2> err.txt
expect_line err.txt "layer_002_up"
rm h/layer_002_up.safetensors
expect_exit 1 "$BIN/vptq-hessian" --show h > out.txt 2> err.txt
expect_line err.txt "layer_002_up.safetensors is missing"
