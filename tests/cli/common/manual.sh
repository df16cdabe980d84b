# The manual page names every option of --help and no other.
for tool in vptq-hessian vptq-quantize vptq-pack vptq-eval; do
    if [ "$tool" = vptq-eval ]; then
        commands=$("$BIN/$tool" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p')
        [ "$(wc -w <<<"$commands")" -ge 4 ] || fail "$tool --help lists the commands '$commands'"
        for command in $commands; do "$BIN/$tool" "$command" --help; done >help
    else
        "$BIN/$tool" --help >help
    fi
    grep -oE '^ +(-[a-zA-Z], )?--[a-z-]+' help | grep -oE -e '--[a-z-]+' | sort -u >in_help
    sed 's/--\[no-\]progress/--progress --no-progress/' "$SRC/docs/man/$tool.1.scd" |
        grep -oE -e '--[a-z][a-z-]*' | sort -u >in_page
    [ "$(wc -l <in_help)" -gt 10 ] || fail "$tool --help lists $(wc -l <in_help) options"
    diff in_help in_page >difference ||
        fail "$tool: --help (<) and its manual page (>): $(grep '^[<>]' difference | tr '\n' ' ')"
done
