# Help and version of every tool and command go to stdout and exit 0.
for words in vptq-hessian vptq-quantize vptq-pack "vptq-eval ppl" "vptq-eval kld" \
    "vptq-eval error" "vptq-eval generate"; do
    read -r tool command <<<"$words"
    expect_exit 0 "$BIN/$tool" ${command:+"$command"} --help >out 2>err
    [ ! -s err ] || fail "$words --help writes to stderr"
    expect_line out "^usage: $words"
    expect_line out '^Common options:$'
    expect_line out '^  -t, --threads N '
    ! grep -q '.\{97\}' out || fail "$words --help has lines over 96 columns"
    expect_exit 0 "$BIN/$tool" ${command:+"$command"} -h >short
    expect_same out short
    expect_exit 0 "$BIN/$tool" ${command:+"$command"} --version >out 2>err
    [ ! -s err ] || fail "$words --version writes to stderr"
    expect_line out "^$tool [0-9]*\.[0-9]*\.[0-9]*$"
    expect_line out '^commit: \([0-9a-f]\{12\}+\{0,1\}\|unknown\)$'
    expect_line out '^features: [a-z0-9]'
done
expect_exit 0 "$BIN/vptq-eval" --help >out
expect_line out '^  ppl '
expect_exit 0 "$BIN/vptq-eval" --version >out
expect_line out '^vptq-eval [0-9]'
expect_exit 0 "$BIN/vptq-hessian" --version --verbose >out
expect_line out '^compiler: '
expect_line out '^backend [a-z]* (automatic): '
