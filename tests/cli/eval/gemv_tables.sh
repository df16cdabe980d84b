# Tables and charts of gemv's records, from records with known figures.
record() # IN OUT K KRES TIME HALF LIBRARY
{
    awk -v i="$1" -v o="$2" -v k="$3" -v r="$4" -v t="$5" -v h="$6" -v l="$7" 'BEGIN {
        d = l != "null" && l < h ? l : h
        printf "{\"in_features\": %d, \"out_features\": %d, \"v\": 8, \"k\": %d, \"k_res\": %d, \"batch\": 1, ", i, o, k, r
        printf "\"dtype\": \"f16\", \"cache\": \"cold\", \"time_us\": %g, \"dense_us\": %g, ", t, d
        printf "\"dense_half_us\": %g, \"dense_library_us\": %s, \"ratio\": %.6f, ", h, l, t / d
        printf "\"gb_per_second\": 1.5, \"floor_fraction\": 0.25, \"dense_half_bytes\": %d}\n", 2 * i * o }'
}
{
    record 1024 1024 4096 256 90 100 200     # 0.9, 2 MB
    record 4096 4096 4096 256 400 1000 800   # 0.5
    record 4096 4096 8192 512 1000 1250 null # 0.8
} >rows.json
tables=$SRC/scripts/gemv_table.sh
"$tables" rows.json >table.txt
expect_line table.txt '^ *1 *1024 *1024 *8 *4096 *256 *90.0 *100.0 *200.0 *0.900 *1.5 *0.25 *24.9 *24.4 *1.020$'
expect_line table.txt '^ *1 *4096 *4096 *8 *8192 *512 *1000.0 *1250.0 *- *0.800 *1.5 *0.25 *[0-9.]* *[0-9.]* *[0-9.]*$'
expect_line table.txt 'geometric mean of 3 rows: 0.711$'  # (0.9 * 0.5 * 0.8) ^ (1 / 3)
expect_line table.txt '^ *4096+256 *0.671 (2 rows)$'      # (0.9 * 0.5) ^ (1 / 2)
expect_line table.txt '^ *8192+512 *0.800 (1 rows)$'
expect_line table.txt '^largest where 16-bit weights take 8 MB or more: 0.800$'
expect_line table.txt '^largest where they take less: 0.900$'
expect_line table.txt '^NO LIBRARY in 1 rows'
: >none.json
expect_exit 1 "$tables" none.json >out.txt
expect_line out.txt '^no records$'

if command -v gnuplot >/dev/null; then
    "$SRC/scripts/plot_gemv.sh" rows.json rows.svg
    expect_line rows.svg '4096+256'
    expect_line rows.svg '8192+512'
    expect_line rows.svg 'published kernel'
    points() { grep -c '<use ' "$1"; }
    [ "$(points rows.svg)" -ge 123 ] || fail "$(points rows.svg) points: 120 published ones and 3 of ours"
    head -n 2 rows.json >two.json
    "$SRC/scripts/plot_gemv.sh" two.json two.svg
    # the point and its series in the legend
    [ $(($(points rows.svg) - $(points two.svg))) -eq 2 ] || fail "$(points two.svg) of $(points rows.svg) points"
    expect_exit 1 "$SRC/scripts/plot_gemv.sh" none.json none.svg 2>err.txt
    expect_line err.txt "^plot-gemv: no records in 'none.json'"
    [ ! -e none.svg ] || fail "a picture of nothing"
fi
expect_exit 2 "$SRC/scripts/plot_gemv.sh" rows.json rows.pdf 2>err.txt
expect_line err.txt "^plot-gemv: 'rows.pdf', expected a name"
