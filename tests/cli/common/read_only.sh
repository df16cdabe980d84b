# Outputs in a directory that this user may not write to: a dry run fails as the run does, and writes nothing.
user=()
if [ "$(id -u)" = 0 ]; then # who may write anywhere
    user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    "${user[@]}" true 2>/dev/null || skip "root cannot become another user here"
fi
model=$(data models/stories260K-hf)
head -c 6000 "$(data text/tinystories/tiny.utf8)" >text
"$BIN/vptq-hessian" -q -m "$model" -c text -n 2 -l 64 -o h
"$BIN/vptq-hessian" -q -m "$model" -c text -n 1 -l 64 --seed 1 -o h2
"$BIN/vptq-quantize" -q -m "$model" -H h -k 16 -o w >out.txt 2>&1
mkdir -p ro/empty open
cp -r h w ro
cp -r h own
cp -r w written
printf '{}' >ro/old.vptq
touch ro/r.jsonl
trap 'chmod -R u+w .' EXIT # so that the directory of the test can be removed
chmod 777 open
chmod -R a-w,a+rX ro h h2 w written
chmod a+w written/lock
chmod a+x .
find ro | sort >before
if ! "${user[@]}" "$BIN/vptq-eval" --version >out.txt 2>&1 || ! "${user[@]}" test -r ro/w/quantize.json; then
    skip "another user cannot run the tools here"
fi

# refused MESSAGE COMMAND..: of the run, and of the dry run.
refused()
{
    expect_error 1 "$1: Permission denied\$" "${user[@]}" "$BIN/$2" "${@:3}"
    expect_error 1 "$1: Permission denied\$" "${user[@]}" "$BIN/$2" "${@:3}" --dry-run
}
hessian=(vptq-hessian -q -m "$model" -c text -n 2 -l 64)
refused "cannot create directory 'ro/x'" "${hessian[@]}" -o ro/x
refused "cannot create directory 'ro/x'" "${hessian[@]}" -o ro/x/y/z
refused "cannot open 'ro/empty/lock'" "${hessian[@]}" -o ro/empty
refused "cannot create directory 'ro/x'" vptq-hessian -q --merge h h2 -o ro/x
refused "cannot create directory 'ro/x'" vptq-hessian -q --export h -o ro/x
refused "cannot create directory 'ro/h'" vptq-hessian -q --merge h h2 -o ro/h -f
quantize=(vptq-quantize -q -m "$model" -H h -k 16)
refused "cannot create directory 'ro/x'" "${quantize[@]}" -o ro/x
refused "cannot open 'ro/empty/lock'" "${quantize[@]}" -o ro/empty
refused "cannot open 'ro/w/lock'" "${quantize[@]}" -o ro/w
refused "cannot open 'ro/h/lock'" "${hessian[@]}" -o ro/h
refused "cannot create 'written/quantize.json'" "${quantize[@]}" -o written
refused "cannot create 'ro/x.vptq'" "${quantize[@]}" -o ro/x.vptq
refused "cannot create directory 'ro/y'" "${quantize[@]}" -o ro/y/x.vptq
refused "cannot create directory 'ro/x'" vptq-quantize -q --from w -m "$model" --tune layer -c text \
    --passes 1 --batch 1 -o ro/x
refused "cannot create 'ro/p.vptq'" vptq-pack -q w -o ro/p.vptq
refused "cannot create 'ro/old.vptq'" vptq-pack -q w -f -o ro/old.vptq
refused "cannot create directory 'ro/p'" vptq-pack -q w -o ro/p/
refused "cannot create directory 'ro/p'" vptq-pack -q w -o ro/p/q/
refused "cannot create 'ro/p.gguf'" vptq-pack -q --unpack w -o ro/p.gguf
ppl=(vptq-eval ppl -q -m "$model" --text text --context 64 --windows 1)
refused "cannot create 'ro/x.f64'" "${ppl[@]}" --dump ro/x.f64
refused "cannot create directory 'ro/x'" "${ppl[@]}" --dump ro/x/x.f64
refused "cannot create 'ro/base'" vptq-eval kld -q --base "$model" --text text --context 64 --windows 1 \
    --save-base ro/base
serve=(vptq-eval serve -q -m m="$model" --config "1,4,2" --runs 1 --warmup 0)
refused "cannot write 'ro/new.jsonl'" "${serve[@]}" -o ro/new.jsonl
refused "cannot write 'ro/r.jsonl'" "${serve[@]}" -o ro/r.jsonl
refused "cannot create directory 'ro/x'" "${serve[@]}" -o ro/x/r.jsonl
refused "cannot create 'ro/e.csv'" vptq-eval error -q -m w --base "$model" -o ro/e.csv
refused "cannot create directory 'ro/x'" vptq-eval ablate -q -m "$model" -H h --text text --context 64 --layers 0 \
    --only v4 -o ro/x
find ro | sort >after
expect_same before after

# Where files may be created, a dry run succeeds; nor does it accept what the run would not replace.
"${user[@]}" "$BIN/${hessian[0]}" "${hessian[@]:1}" -o open/a/h --dry-run >out.txt
"${user[@]}" "$BIN/${ppl[0]}" "${ppl[@]:1}" --dump open/x.f64 --dry-run >out.txt
[ -z "$(ls open)" ] || fail "a dry run wrote $(ls open)"
touch open/x.f64
expect_error 1 "'open/x.f64' already exists" "$BIN/${ppl[0]}" "${ppl[@]:1}" --dump open/x.f64 --dry-run
# A finished directory of Hessians is not written to again, unless it lacks some.
chmod a+w own/lock
chmod a-w own
"${user[@]}" "$BIN/${hessian[0]}" "${hessian[@]:1}" -o own >out.txt
"${user[@]}" "$BIN/${hessian[0]}" "${hessian[@]:1}" -o own --dry-run >out.txt
chmod a+w own
rm own/layer_001_qkv.safetensors
chmod a-w own
expect_error 1 "cannot create 'own/[a-z0-9_.]*': Permission denied" "${user[@]}" "$BIN/${hessian[0]}" "${hessian[@]:1}" -o own
expect_error 1 "cannot create 'own/hessian.json': Permission denied" \
    "${user[@]}" "$BIN/${hessian[0]}" "${hessian[@]:1}" -o own --dry-run
