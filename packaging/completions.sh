#!/bin/sh
# Writes completions for bash, zsh and fish from the help of the tools, which is printed from their tables of options.
# usage: completions.sh BIN OUT     (BIN: folder of the tools; the files go to OUT/share as installed)
set -eu
bin=${1:?usage: completions.sh BIN OUT} share=${2:?usage: completions.sh BIN OUT}/share
here=$(dirname "$0")
mkdir -p "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d"

for tool in vptq-hessian vptq-quantize vptq-pack vptq-eval; do
    # One help text per command, each after a line with its name; tools without commands have one without a name.
    help=$("$bin/$tool" --help)
    commands=$(echo "$help" | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\)  *\(.*\)/\1 \2/p')
    {
        if [ -n "$commands" ]; then
            echo "$commands" | while read -r name summary; do
                echo "COMMAND $name $summary"
                "$bin/$tool" "$name" --help
            done
        else
            echo COMMAND
            echo "$help"
        fi
    } >"$share/help.tmp"
    for shell in bash zsh fish; do
        case $shell in
        bash) file=$share/bash-completion/completions/$tool ;;
        zsh) file=$share/zsh/site-functions/_$tool ;;
        fish) file=$share/fish/vendor_completions.d/$tool.fish ;;
        esac
        awk -v tool="$tool" -f "$here/completions.awk" -f "$here/completions-$shell.awk" "$share/help.tmp" >"$file.tmp"
        mv "$file.tmp" "$file"
    done
    rm "$share/help.tmp"
done
