# Hessians exported to PyTorch files, imported again, and used by a quantization.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
hessian() { "$BIN/vptq-hessian" -q "$@"; }
hessian -m "$model" --tokenizer "$tok" -c "$text" -n 4 -l 64 --weights plain -o h
hessian --export h -o pt
[ "$(find pt -name '*.pt' | wc -l)" = 20 ] || fail "expected 20 files: $(find pt)"
hessian --import pt -o back --format json > back.json
[ "$(json_get tokens back.json)" = 256 ] || fail "tokens of the import"
[ "$(json_get last_layer back.json)" = 4 ] || fail "layers of the import"
for dir in h back; do hessian --show "$dir" --format json > "$dir.txt"; done
for key in trace max_diag mean_share; do
    paste <(json_get "$key" h.txt) <(json_get "$key" back.txt) |
        while read -r x y; do expect_near "$y" "$x" 1e-6; done
done

# Imported Hessians are exported and imported again bit by bit.
hessian --export back -o pt2
expect_same pt pt2
hessian --import pt2 -o back2
expect_same back back2
! grep -q covariance back/*.safetensors || fail "a covariance is kept without need"

# The model of the Hessians is unknown: only shapes are checked.
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H back -o w --layers 1-1 -k 16 -r 0 -q > out.txt
expect_exit 1 hessian --import pt -o back 2> err.txt
expect_line err.txt "directory 'back' already exists"
hessian --import pt -f -o back
expect_same back2 back

# bad STATUS PATTERN ARGUMENTS..
bad()
{
    expect_error "$1" "$2" hessian "${@:3}" -o x
    [ ! -e x ] || fail "an output was made: $*"
    no_leftovers .
}
bad 2 "exclude each other" --import pt --export h
bad 2 "exclude each other" --import pt --show h
bad 2 "has no --dry-run" --import pt --dry-run
bad 1 "'pt' is not a hessian directory" --export pt --dry-run
for form in --inverse ''; do
    # shellcheck disable=SC2086 # no argument
    hessian --export h $form -o x --dry-run --format json > plan.json
    [ ! -e x ] || fail "a dry run made an output"
    # shellcheck disable=SC2086
    hessian --export h $form -o x
    expect_near "$(json_get disk_needed_bytes plan.json)" "$(cat x/* | wc -c)" 0.1
    rm -r x
    # The estimated memory is enough, and three quarters of it are not.
    memory=$(json_get peak_memory_bytes plan.json)
    # shellcheck disable=SC2086
    hessian --export h $form -o x --mem "$memory"
    # shellcheck disable=SC2086
    expect_error 1 "--mem .* is too small" hessian --export h $form -o y --mem $((memory * 3 / 4))
    expect_error 1 "'x' already exists" hessian --export h -o x --dry-run
    expect_error 1 "cannot create directory 'plan.json': File exists" hessian --export h -o plan.json/y --dry-run
    rm -r x
done
bad 2 "has no --force" --export h -f
bad 1 "'pt' is not a hessian directory" --export pt
bad 1 "nothing" --import nothing
bad 1 "'h' has no Hessian files, expected 0_qkv.pt" --import h
expect_exit 2 hessian --import pt 2> err.txt
expect_line err.txt "needs -o HDIR"
rm pt2/3_up.pt
bad 1 "'pt2' has Hessians of layers 0-4, but 3_up.pt is missing" --import pt2
head -c 500 pt/3_up.pt > pt2/3_up.pt
bad 1 "pt2/3_up.pt: is not a zip file" --import pt2
cp pt/3_up.pt pt2/3_up.pt
printf '\377' | dd of=pt2/3_up.pt bs=1 seek=1000 conv=notrunc 2> dd.txt
bad 1 "pt2/3_up.pt: entry 'archive/data/0' is damaged" --import pt2
mkdir other
touch other/notes.txt
expect_exit 1 hessian --import pt -f -o other 2> err.txt
expect_line err.txt "'other' is not a hessian directory"
[ -e other/notes.txt ] || fail "what is not ours was removed"
