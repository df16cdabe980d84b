# Wrong command lines: exit 2, nothing on stdout, a hint on stderr.
# refused PATTERN COMMAND..: a usage error with a hint.
refused()
{
    expect_error 2 "$@"
    expect_line err.txt "^try '.* --help'$"
}

for tool in vptq-hessian vptq-quantize vptq-pack vptq-eval; do
    refused "^$tool: " "$BIN/$tool"
    refused "^$tool: unknown " "$BIN/$tool" --nonsense
done
refused "unknown command 'nonsense'" "$BIN/vptq-eval" nonsense
refused ": --threads x: expected 0 to 4096" "$BIN/vptq-hessian" -t x
refused ": --mem 1Q: expected" "$BIN/vptq-quantize" --mem 1Q
refused ": --layers 9-3: expected" "$BIN/vptq-quantize" --layers 9-3
refused ": --format xml: expected text|json" "$BIN/vptq-pack" --format xml
refused "option '-m' needs a value" "$BIN/vptq-eval" ppl -m
