# --repair: what upstream's algorithm branch writes becomes loadable by every reader.
golden=$(data golden/vptq_model_stories260K)
pack() { "$BIN/vptq-pack" -q "$@"; }

# The same model with the config of the algorithm branch, and with shared entries.
for form in algorithm_raw shared; do
    mkdir "$form"
    cp "$golden"/*.json "$golden"/model.safetensors "$form"
    cp "$golden/config_$form.json" "$form/config.json"
    chmod -R u+w "$form"
    rm "$form"/config_*.json "$form"/expected.json "$form"/prompt_ids.json
done
pack --check algorithm_raw > check.txt
expect_line check.txt "norm_dim"
expect_line check.txt "lacks key 'indices_as_float'"

pack --repair algorithm_raw -o fixed > out.txt
expect_line out.txt "^35 matrices: keys 'norm_dim' and 'enable_proxy_error' removed"
expect_line out.txt "^35 matrices: 'indices_as_float' set to false"
expect_line out.txt "^10 matrices: permutation absorbed"
expect_line out.txt "^5 matrices: scale 1 and bias 0 added"
expect_line out.txt "^fixed: hf, 35 matrices"
pack --check fixed > check.txt
expect_line check.txt "^fixed: 0 errors, 0 warnings"
# the same bytes as from the portable config, which upstream's loaders accept
pack "$golden" -o portable > out.txt
expect_same portable/model.safetensors fixed/model.safetensors
pack --repair shared -o fixed2 > out.txt
expect_same portable/model.safetensors fixed2/model.safetensors
entries() { sed -n '/"quantization_config"/,$p' "$1/config.json"; }
[ "$(entries fixed | grep -c '"in_features"')" = 35 ] || fail "35 entries expected"
! grep -e norm_dim -e enable_proxy_error -e shared_layer_config fixed/config.json \
    fixed2/config.json || fail "a key that is refused is still there"

# In shards and as an archive; repairing again changes nothing.
pack --repair fixed -o shards --shard-size 64K --format json > out.json
[ -e shards/model.safetensors.index.json ] || fail "no shards"
! grep '"repair"' out.json || fail "repaired what was sound"
[ "$(json_get matrices out.json)" = 35 ] || fail "35 matrices expected"
pack --repair algorithm_raw -o one.vptq --format json > out.json
[ "$(grep -c '"repair"' out.json)" = 4 ] || fail "4 kinds of repair expected"
pack --check one.vptq > check.txt
expect_line check.txt "^one.vptq: 0 errors, 0 warnings"

# A model card with the digest of the old bytes is not copied; one with that of the output is.
card() { echo "| digest | \`$(pack --digest "$1")\` |" > "$1/README.md"; }
card algorithm_raw
for out in anew anew.vptq; do
    pack --repair algorithm_raw -o $out > out.txt 2> err.txt
    expect_line err.txt "warning: algorithm_raw: README.md is not copied: it has the digest of another form of the model"
done
[ ! -e anew/README.md ] || fail "a card with another digest: $(cat anew/README.md)"
card fixed
pack --repair fixed -o kept > out.txt
expect_same fixed/README.md kept/README.md

# Inputs that cannot be repaired.
expect_exit 2 "$BIN/vptq-pack" -q --repair --check fixed 2> err.txt
expect_line err.txt "exclude each other"
expect_exit 2 "$BIN/vptq-pack" -q --repair fixed 2> err.txt
expect_line err.txt "missing option: -o/--output OUT"
expect_exit 2 "$BIN/vptq-pack" -q --repair fixed -o fixed -f 2> err.txt
expect_line err.txt "is the input itself"
expect_exit 1 "$BIN/vptq-pack" -q --repair "$(data models/stories260K-hf)" -o plain 2> err.txt
expect_line err.txt "no quantized matrices"
no_leftovers .
