# Scripts that compute or print fractions do so with decimal points, whatever the user's locale.
for script in "$SRC"/scripts/*.sh "$SRC"/examples/*/*.sh "$SRC"/tests/bench/*.sh; do
    if grep -q 'printf.*%[-0-9.]*f' "$script"; then
        grep -q '^ *export LC_ALL=C' "$script" || fail "$script: sets no LC_ALL"
    fi
done
"$SRC/scripts/sweep.sh" -o d --help >out.txt
expect_line out.txt '^usage: sweep.sh -o DIR'

# The same in a locale with decimal commas, where the system has one.
localedef -i de_DE -f UTF-8 ./de_DE.UTF-8 2>/dev/null || skip "needs a locale with decimal commas"
export LOCPATH=$PWD LC_ALL=de_DE.UTF-8
[ "$(bash -c "printf '%.1f' 1,5" 2>/dev/null)" = 1,5 ] || skip "the locale is not used"
mkdir bin
cat >bin/vptq-eval <<'END'
#!/bin/sh
echo "name,bits_per_weight,ppl"
echo "a,2.1,9.5"
END
chmod +x bin/vptq-eval
printf 'name,bits_per_weight,ppl\na,2.1,9.499\n' >baseline.csv
PATH=$PWD/bin:$PATH "$SRC/examples/ci-ablation/ablation.sh" m c e baseline.csv >out.txt
expect_line out.txt '^a *2.1000 bits, was *2.1000; perplexity *9.5000, was *9.4990$'
printf 'name,bits_per_weight,ppl\na,2.1,9.4\n' >baseline.csv
expect_exit 1 env "PATH=$PWD/bin:$PATH" "$SRC/examples/ci-ablation/ablation.sh" m c e baseline.csv >out.txt
expect_line out.txt 'WORSE$'
