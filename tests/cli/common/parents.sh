# Every command creates the folder of its output with its parents, except in a dry run.
model=$(data models/stories260K-hf)
tiny=$(data text/tinystories/tiny.utf8)
head -c 6000 "$tiny" >text

# creates PATH COMMAND..
creates()
{
    local path=$1
    shift
    "$@" >out.txt
    [ -e "$path" ] || fail "not created: $path"
}

creates a/b/h "$BIN/vptq-hessian" -q -m "$model" -c text -n 2 -l 64 --layers 0-0 -o a/b/h
"$BIN/vptq-hessian" -q -m "$model" -c text -n 1 -l 32 --layers 0-0 --seed 1 -o a/b/h2
creates c/d/h "$BIN/vptq-hessian" -q --merge a/b/h a/b/h2 -o c/d/h
creates e/f/pt "$BIN/vptq-hessian" -q --export a/b/h -o e/f/pt
creates g/h/h "$BIN/vptq-hessian" -q --import e/f/pt -o g/h/h
"$BIN/vptq-quantize" -q -m "$model" -H a/b/h --layers 0-0 -k 16 -o i/j/w --dry-run >out.txt
[ ! -e i ] || fail "a dry run created a directory"
creates i/j/w "$BIN/vptq-quantize" -q -m "$model" -H a/b/h --layers 0-0 -k 16 -o i/j/w
"$BIN/vptq-pack" -q i/j/w -o k/l/a.vptq --dry-run >out.txt
[ ! -e k ] || fail "a dry run created a directory"
creates k/l/a.vptq "$BIN/vptq-pack" -q i/j/w -o k/l/a.vptq
creates m/n/packed "$BIN/vptq-pack" -q i/j/w -o m/n/packed/
creates o/p/plain "$BIN/vptq-pack" -q --unpack i/j/w -o o/p/plain
creates q/r/x.gguf "$BIN/vptq-pack" -q --unpack i/j/w -o q/r/x.gguf
creates s/t/ids "$BIN/vptq-eval" ppl -q -m "$model" --text text --context 64 --windows 1 --dump s/t/ids
creates u/v/base "$BIN/vptq-eval" kld -q --base "$model" --text text --context 64 --windows 1 --save-base u/v/base
creates w/x/e.csv "$BIN/vptq-eval" error -q -m i/j/w -o w/x/e.csv --base "$model"
creates y/z/r.jsonl "$BIN/vptq-eval" serve -q -m m="$model" --config 1,4,2 --runs 1 --warmup 0 -o y/z/r.jsonl
creates 1/2/r.html "$BIN/vptq-eval" compare -q y/z/r.jsonl --original m -o 1/2/r.html
creates 3/4/log "$BIN/vptq-pack" -q --list i/j/w --log-file 3/4/log
creates 5/6/rank-0.log "$BIN/vptq-pack" -q --list i/j/w --log-dir 5/6

# The ending of the file chooses the format, unless --format is given.
grep -q '<!doctype html>' 1/2/r.html || fail "$(head -n 1 1/2/r.html)"
[ "$(head -n 1 w/x/e.csv | cut -c 1-11)" = layer,name, ] || fail "$(head -n 1 w/x/e.csv)"
report() { "$BIN/vptq-eval" error -q -m i/j/w --base "$model" "$@"; }
report -o e.html
grep -q '<!doctype html>' e.html || fail "$(head -n 1 e.html)"
report -o e.md
grep -q '^| layer | name' e.md || fail "$(head -n 3 e.md)"
report -o e.json
[ "$(head -n 1 e.json | cut -c 1)" = '{' ] || fail "$(head -n 1 e.json)"
report -o f.html --format csv
expect_same f.html w/x/e.csv
report -o e.txt
report >stdout
expect_same e.txt stdout
expect_error 2 "--layout classic is Markdown" "$BIN/vptq-eval" compare y/z/r.jsonl --layout classic -o r.html
