# Residual codebook, groups and outlier columns together, on rows that v does not divide: both
# encoders store what readers decode with the reported loss, the same for any -t.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 4 -l 256 -o h -qq > /dev/null
for encoder in best upstream; do
    run() {
        "$BIN/vptq-quantize" -m "$model" -H h --encoder $encoder -v 6 -k 32 -r 8 -g 4 \
            --outliers 5:2:16 --layers 0-0 --format json -qq "$@"
    }
    run -o $encoder -t 1 > rows.json
    run -o two -t 2 > /dev/null
    expect_same $encoder two
    rm -r two
    # 172 columns: 9 of 5 percent, and 3 more so that the rest is 4 groups of 40
    outliers=$(head -n 7 rows.json | sed 's/.*"outliers": \([0-9]*\), "v0": 2,.*/\1/' | tr '\n' ' ')
    [ "$outliers" = "4 4 4 4 4 4 12 " ] || fail "outlier columns: $outliers"
    "$BIN/vptq-eval" error -m $encoder --base "$model" -H h --format json -qq > error.json
    paste <(json_get proxy_loss rows.json) <(head -n 7 error.json | json_get proxy_loss) |
        while read -r ours theirs; do expect_near "$ours" "$theirs" 1e-6; done
    "$BIN/vptq-pack" $encoder --tokenizer "$tok" -o packed -f -qq > /dev/null
    "$BIN/vptq-pack" --check packed -qq > /dev/null
    json_get proxy_loss rows.json > $encoder.loss
done
paste best.loss upstream.loss |
    awk '{ s += log($1 / $2) } END { exit !(s < 0) }' || fail "best is not better in the mean"
