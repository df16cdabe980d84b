# Codebooks on int8 grids: an archive and a work directory store them in 8 bits, the published layout in 16.
hf=$(data models/stories260K-hf)
text=$(data text/tinystories/tiny.utf8)
pack() { "$BIN/vptq-pack" "$@"; }
bits() { pack -q --list "$1" | sed -n 's/.* at \([0-9.]*\) bits per weight.*/\1/p'; }

"$BIN/vptq-hessian" -q -m "$hf" -c "$text" -n 4 -l 128 -o h >/dev/null
quantize() { "$BIN/vptq-quantize" -q -m "$hf" -H h --kmeans-iterations 3 --sweeps 1 --refits 1 "$@"; }
quantize -b 3 --codebook-grid int8 -o work >/dev/null
quantize -v 4 -k 64 -r 16 -g 2 --outliers 3:2:16 -o plain >/dev/null
quantize -v 4 -k 64 -r 16 -g 2 --outliers 3:2:16 --codebook-grid int8 -o groups >/dev/null

# The budget counts what the archive stores.
expect_number "$(bits work)" '<=' 3
pack -q work -o work.vptq >/dev/null
[ "$(bits work.vptq)" = "$(bits work)" ] || fail "archive: $(bits work.vptq), work: $(bits work)"
pack work -o dir >/dev/null 2>err.txt
expect_line err.txt "warning: work: codebooks of 8 bits take 16 in the published layout: $(bits dir) bits per weight instead of $(bits work) in an archive"
expect_number "$(bits dir)" '>' 3.05
pack -q work.vptq -o other >/dev/null 2>err.txt
expect_line err.txt "warning: work.vptq: codebooks of 8 bits"
expect_same dir other
pack -q dir -o again.vptq >/dev/null
expect_same work.vptq again.vptq

# Residual codebooks, groups and outlier columns: per matrix 3 codebooks, 2 of them for each of 2 groups.
pack -q groups -o groups.vptq >/dev/null
pack -q groups.vptq -o groups.hf >/dev/null
pack -q --list groups --format json | grep '"name": "model.layers.0.self_attn.q_proj"' >row.json
want=1.265625 # 2 groups of 64 + 16 centroids of 4, and 2 scales: 2 * (80 * 4 * 8 + 32) / 64 / 64
expect_near "$(json_get codebook_bits_per_weight row.json)" $want 1e-9
for model in groups.vptq groups.hf; do
    pack -q --check "$model" >check.txt
    expect_line check.txt "^$model: 0 errors, 0 warnings"
    [ "$("$BIN/vptq-eval" ppl -q -m "$model" --text "$text" --windows 2 --context 128 | head -1)" = \
        "$("$BIN/vptq-eval" ppl -q -m groups --tokenizer "$hf/tokenizer.json" --text "$text" --windows 2 --context 128 | head -1)" ] ||
        fail "$model: another perplexity"
done

# Another type rounds the grids away, and codebooks off the grid have 16 bits as ever.
pack -q groups -o bf16.vptq --dtype bf16 >/dev/null
expect_number "$(bits bf16.vptq)" '>' "$(bits groups.vptq)"
pack -q plain -o plain.vptq >/dev/null
[ "$(bits plain.vptq)" = "$(bits bf16.vptq)" ] || fail "plain: $(bits plain.vptq), bf16: $(bits bf16.vptq)"
