# A result that cannot be written is reported as an error.
for tool in vptq-hessian vptq-quantize vptq-pack vptq-eval; do
    expect_exit 1 "$BIN/$tool" --help >/dev/full 2>err
    expect_line err "^$tool: cannot write to standard output: No space left on device$"
done
