# Speed of products with packed matrices: rows, formats, derived figures, errors.
run() { "$BIN/vptq-eval" gemv -q --seconds 0.001 "$@"; }

# The stored bytes: 6 vector rows of 64 entries of 6 bits, 20 centroids of 8 halves, 64 scales and biases.
run --shape 64x48 --books 16+4 --books 16 --batch 1 --batch 5 --format json >rows.json
[ "$(wc -l <rows.json)" -eq 4 ] || fail "$(cat rows.json)"
head -n 1 rows.json >first.json
expect() { [ "$(json_get "$1" first.json)" = "$2" ] || fail "$1 of $(cat first.json)"; }
expect in_features 64
expect out_features 48
expect v 8
expect k 16
expect k_res 4
expect batch 1
expect dtype f16
expect cache cold
expect packed_bytes 864
expect dense_half_bytes 6144
[ "$(json_get batch rows.json | tr '\n' ' ')" = "1 5 1 5 " ] || fail "$(cat rows.json)"
[ "$(json_get k_res rows.json | tr '\n' ' ')" = "4 4 0 0 " ] || fail "$(cat rows.json)"
for key in time_us time_p10_us time_p90_us dense_us dense_half_us dense_library_us ratio gb_per_second floor_fraction; do
    expect_number "$(json_get $key first.json)" '>' 0
done
get() { json_get "$1" first.json; }
awk -v t="$(get time_us)" -v d="$(get dense_us)" -v h="$(get dense_half_us)" -v l="$(get dense_library_us)" \
    -v r="$(get ratio)" -v g="$(get gb_per_second)" 'function near(a, b) { return a > b * 0.999 && a < b * 1.001 }
    BEGIN { exit !(near(r, t / d) && near(g, 864 / t / 1000) && near(d, h < l ? h : l)) }' ||
    fail "figures that do not belong together: $(cat first.json)"

# Without OpenBLAS the other products are compared; the reference backend never has it.
mkdir libraries
echo "not a library" | tee libraries/libopenblas.so.0 >libraries/libopenblas.so
LD_LIBRARY_PATH=$PWD/libraries run --shape 64x48 --books 16+4 --format json >first.json 2>err.txt
expect dense_library_us null
expect_line err.txt 'warning: no product to compare with: OpenBLAS cannot be loaded (Debian: .*libopenblas.so'
run --backend ref --shape 64x48 --books 16+4 --dtype bf16 --cache warm --codes sequential --format json >first.json
expect dense_library_us null
expect dtype bf16
expect cache warm
expect codebook_grid none

# The same with codebooks on an int8 grid; every product is checked against the decoded matrix.
run --shape 64x48 --books 16+4 --books 4096+256 --batch 1 --batch 40 --codebook-grid int8 --format json >rows.json
[ "$(json_get codebook_grid rows.json | tr '\n' ' ')" = "int8 int8 int8 int8 " ] || fail "$(cat rows.json)"

run --shape 64x48 --books 16+4 --format csv >rows.csv
expect_line rows.csv '^batch_size,in_features,out_features,main_centroids,residual_centroids,vptq (ms),dense (ms),ratio,GB/s,floor$'
expect_line rows.csv '^1,64,48,16,4,0\.'
run --shape 64x48 --books 16+4 -v 6 --format md >rows.md
expect_line rows.md '^| 1 | 64 | 48 | 16 | 4 | 0\.'
run --shape 64x48 --books 16+4 >rows.txt
expect_line rows.txt '^geometric mean of the ratio .* (1 rows, cold caches)$'

# A block of a model: 4 matrices of 16 x 16, 2 of 32 x 16, 1 of 16 x 32.
run --cache chain --shape 16x32 --books 16 --format json >first.json
expect cache chain
expect in_features 16
expect out_features 32
expect dense_half_bytes $((2 * (4 * 16 * 16 + 3 * 16 * 32)))
# 2 or 4 vector rows of 16 or 32 entries of 4 bits, 16 centroids of 8 halves, scales and biases
expect packed_bytes $((4 * (2 * 16 / 2 + 256 + 64) + 2 * (4 * 16 / 2 + 256 + 64) + (2 * 32 / 2 + 256 + 128)))
run --cache chain --shape 16x32 --books 16 >rows.txt
expect_line rows.txt '^geometric mean of the ratio .* (1 rows, chain)$'

# refused PATTERN OPTION..
refused() { expect_error 2 "$1" run "${@:2}"; }
refused "^vptq-eval: --shape 64: expected INxOUT" --shape 64
refused "^vptq-eval: --shape 64x: expected INxOUT" --shape 64x
refused "^vptq-eval: --books 16+x: expected K+KRES or K" --books 16+x
refused "^vptq-eval: --batch two: expected a whole number" --batch two
refused '^vptq-eval: --batch is 0, expected 1 to 1024' --batch 0 --shape 64x48
refused '^vptq-eval: a matrix has 0 rows, expected at least 1' --shape 64x0
refused '^vptq-eval: .*100' --shape 64x48 --books 100
refused '^vptq-eval: .*65' --shape 64x48 -v 65
refused '^vptq-eval: --seconds is 0, expected more than 0' --seconds 0 --shape 64x48
refused "dtype.*f32" --dtype f32
refused "codebook-grid.*int4" --codebook-grid int4

# On a device products are recorded, for which all working memory must be there: more tokens than one launch takes, and
# so many that the matrix is decoded.
there=${VPTQ_DEVICE_BIN-none}
[ -x "$there/vptq-eval" ] || exit 0
for row in "256x16 32" "64x24 300"; do
    "$there/vptq-eval" gemv -q --seconds 0.001 --backend emu --cache warm --shape "${row% *}" --books 16+4 \
        --batch "${row#* }" --format json >first.json
    expect batch "${row#* }"
    expect_number "$(json_get dense_library_us first.json)" '>' 0
done
