# Wrong command lines: exit 2, nothing on stdout, a hint on stderr.
refused()
{
    local message=$1
    shift
    expect_exit 2 "$@" >out 2>err
    [ ! -s out ] || fail "a usage error writes to stdout: $*"
    expect_line err "$message"
    expect_line err "^try '.* --help'$"
}

for tool in vptq-hessian vptq-quantize vptq-pack vptq-eval; do
    refused "^$tool: " "$BIN/$tool"
    refused "^$tool: unknown " "$BIN/$tool" --nonsense
done
refused "unknown command 'nonsense'" "$BIN/vptq-eval" nonsense
refused "invalid value for --threads: 'x'" "$BIN/vptq-hessian" -t x
refused "invalid value for --mem: '1Q'" "$BIN/vptq-quantize" --mem 1Q
refused "invalid value for --layers: '9-3'" "$BIN/vptq-quantize" --layers 9-3
refused "invalid value for --format: 'xml'" "$BIN/vptq-pack" --format xml
refused "option '-m' needs a value" "$BIN/vptq-eval" ppl -m
