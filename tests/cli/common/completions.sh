# Completions for bash, zsh and fish, written from the help of the tools: options, choices, files, commands.
"$SRC/packaging/completions.sh" "$BIN" out
for tool in vptq-hessian vptq-quantize vptq-pack vptq-eval; do
    bash -n "out/share/bash-completion/completions/$tool"
    # shellcheck disable=SC1090 # written above
    . "out/share/bash-completion/completions/$tool"
done
touch 'a model.gguf' b.txt

# words TOOL WORD..: what bash offers for the last word, sorted, on one line
words()
{
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    COMPREPLY=()
    "_${1/-/_}"
    printf '%s\n' "${COMPREPLY[@]}" | LC_ALL=C sort | paste -sd ' '
}

# offers EXPECTED TOOL WORD..
offers()
{
    local want=$1 got
    shift
    got=$(words "$@")
    [ "$got" = "$want" ] || fail "'$*' offers '$got', expected '$want'"
}

offers 'json text' vptq-pack --format ''
offers 'csv' vptq-eval ppl --format c
offers 'json' vptq-pack --format = j
offers 'json text' vptq-pack --format =
offers 'auto cpu cuda ref' vptq-hessian --backend ''
offers '2:4 4:8 none' vptq-quantize --sparsity-pattern ''
offers 'beam greedy' vptq-quantize --search ''
offers '' vptq-hessian -n ''
offers 'a model.gguf' vptq-eval ppl -m a
offers 'a model.gguf b.txt out' vptq-pack ''
offers 'ppl' vptq-eval p
offers 'ablate' vptq-eval a
offers '--tokenizer --tokens --tokens-only' vptq-eval ppl --toke
offers '--kmeans-iterations --kmeans-shift --kmeans-tolerance' vptq-quantize --kmeans

# Every option of the help is offered.
"$BIN/vptq-eval" serve --help | grep -oE '^ +(-[a-zA-Z], )?--[a-z-]+' | grep -oE -e '--[a-z-]+' | LC_ALL=C sort -u >in_help
words vptq-eval serve -- | tr ' ' '\n' | LC_ALL=C sort -u >offered
expect_same in_help offered

missing=
if command -v zsh >zsh.path; then
    for file in out/share/zsh/site-functions/*; do zsh -n "$file"; done
else
    missing="zsh is not installed"
fi
if command -v fish >fish.path; then
    for file in out/share/fish/vendor_completions.d/*; do fish --no-execute "$file"; done
    PATH=$BIN:$PATH fish -c "source out/share/fish/vendor_completions.d/vptq-eval.fish; complete -C 'vptq-eval ppl --format '" |
        cut -f 1 | paste -sd ' ' >fish.words
    expect_line fish.words '^csv json md text$'
else
    missing="${missing:+$missing, }fish is not installed"
fi
[ -z "$missing" ] || skip "$missing"
