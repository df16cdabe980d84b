# Mixtures of experts: the same bytes for any number of threads, also where each block sees quantized ones
# before it; names in reports and recipes, budgets, and what is refused.
long_if_instrumented
golden=$SRC/tests/golden
model=$golden/tiny_qwen2moe
cp "$model/ids.i32" ids
for t in 1 2; do
    "$BIN/vptq-hessian" -m "$model" --tokens ids -n 2 -l 20 --holdout 0.5 -t $t -o h$t -q 2> warnings$t.txt
    "$BIN/vptq-quantize" -m "$model" -H h$t -v 4 -k 16 -r 4 -t $t -o experts$t -q > out.txt 2>> warnings$t.txt
    "$BIN/vptq-quantize" -m "$model" --tokens ids -n 2 -l 20 --sequential -v 4 -k 16 -t $t -o sequential$t -q \
        > out.txt 2>> warnings$t.txt
    sed -i "s/h$t/h/g" warnings$t.txt
    grep -c "12 of 12 experts saw fewer calibration tokens than they have columns" warnings$t.txt > count.txt
    expect_number "$(cat count.txt)" "==" 3
done
for name in h experts sequential; do
    (cd ${name}1 && find . -name '*.safetensors' | sort) > names.txt
    [ "$(wc -l < names.txt)" -ge 60 ] || fail "$name: $(cat names.txt)"
    while read -r file; do
        cmp ${name}1/"$file" ${name}2/"$file" || fail "$name: $file depends on the number of threads"
    done < names.txt
done
cmp warnings1.txt warnings2.txt || fail "$(diff warnings1.txt warnings2.txt)"
"$BIN/vptq-hessian" --show h1 > out.txt
grep -q "^ *2 expert3_down  *16 " out.txt || fail "$(cat out.txt)"
grep -q "^ *0 shared_down  *24 " out.txt || fail "$(cat out.txt)"
"$BIN/vptq-eval" error -m experts1 --base "$model" -H h1 --format json -q > out.txt
[ "$(grep -c '"name": *"experts\.[0-3]\.[a-z]*_proj"' out.txt)" = 36 ] || fail "$(cat out.txt)"
[ "$(grep -c '"name": *"shared_expert\.[a-z]*_proj"' out.txt)" = 9 ] || fail "$(cat out.txt)"
cat > recipe.json <<'RECIPE'
{"rules": [{"match": "mlp.experts.*.down_proj", "settings": {"centroids": 8, "residual": 0}},
           {"match": "shared_expert.*", "layers": "0", "settings": {"method": "rtn"}}]}
RECIPE
"$BIN/vptq-quantize" -m "$model" -v 4 -k 16 -r 4 --recipe recipe.json --dry-run --format json > out.txt
[ "$(grep -c '"k": *8,' out.txt)" = 12 ] || fail "$(cat out.txt)"
[ "$(grep -c '"method": *"rtn"' out.txt)" = 3 ] || fail "$(cat out.txt)"
"$BIN/vptq-quantize" -m "$model" -H h1 -b 4.5 -o budget -q > out.txt 2> err.txt
"$BIN/vptq-pack" --check budget > out.txt 2>&1 || fail "$(cat out.txt)"

# Routers and shared gates stay plain, also for other readers of uniform codes.
"$BIN/vptq-quantize" -m "$model" -H h1 --method gptq -o codes -q > out.txt 2> err.txt
"$BIN/vptq-pack" codes -o codes_hf --to hf -q > out.txt 2> err.txt
for module in mlp.gate mlp.shared_expert_gate; do
    [ "$(grep -c "\"model\.layers\.[023]\.$module\"" codes_hf/config.json)" = 3 ] ||
        fail "$module: $(cat codes_hf/config.json)"
done

# One command from a model to a packed one allocates by predicted losses, since divergences are not measured.
mkdir named
cp "$SRC"/tests/golden/tiny_mixtral/config.json "$SRC"/tests/golden/tiny_mixtral/model.safetensors named
cat > named/tokenizer.json <<'TOKENIZER'
{"model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "merges": [], "vocab":
    {"<unk>": 0, "<s>": 1, "</s>": 2, "e": 3, "t": 4, "a": 5, "o": 6, "i": 7, "n": 8, "s": 9, "r": 10, "h": 11}},
 "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}}
TOKENIZER
one() { "$BIN/vptq-quantize" -m named -b 4.5 -n 2 -l 32 -o one.vptq "$@"; }
reason="named: allocates by predicted losses (--allocate proxy), because divergences are not measured for models of type mixtral"
for dry in --dry-run ''; do
    one $dry > out.txt 2> err.txt || fail "$(cat err.txt)"
    [ "$(grep -cF "$reason" err.txt)" = 1 ] || fail "$(cat err.txt)"
    ! grep -q "allocate kl" err.txt || fail "$(cat err.txt)"
done
"$BIN/vptq-pack" --check one.vptq > out.txt 2>&1 || fail "$(cat out.txt)"
expect_error 1 "divergences are not measured for models of type mixtral; allocate by predicted losses" \
    one -f --allocate kl -q

# Options that are refused for models with experts.
gradients="tiny_qwen2moe: gradients are not computed for models of type qwen2_moe"
for method in awq smooth+gptq; do
    expect_error 1 "awq and smooth are not supported for models of type qwen2_moe, whose experts share a norm" \
        "$BIN/vptq-quantize" -m "$model" -H h1 --method $method -o refused -q
done
expect_error 1 "$gradients" "$BIN/vptq-hessian" -m "$model" --tokens ids -n 1 -l 40 --outputs 1 -o refused_h -q
expect_error 1 "$gradients" "$BIN/vptq-hessian" -m "$model" --tokens ids -n 1 -l 40 --weights guided -o refused_g -q
expect_error 1 "$gradients" "$BIN/vptq-quantize" --from experts1 --tune e2e --tokens ids -o refused -q
expect_error 1 "divergences are not measured for models of type qwen2_moe; allocate by predicted losses" \
    "$BIN/vptq-quantize" -m "$model" -H h1 -b 4.5 --allocate kl --allocate-tokens ids --allocate-length 20 \
    -o refused -q
expect_error 1 "'h1' has Hessians of experts, which other programs have no names for" \
    "$BIN/vptq-hessian" --export h1 -o refused_pt -q
[ ! -e refused ] || fail "left: $(ls -R refused)"
