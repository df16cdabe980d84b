# Mixtures of experts over several processes: the same bytes for any number of them, also where chunks of windows
# have no token of an expert, or an expert has none at all.
needs_ranks
golden=$SRC/tests/golden

# Chunks of 8 windows of 8 tokens, all of them the same in a chunk.
for token in '\0003' '\0003' '\0021' '\0036' '\0051'; do
    for ((i = 0; i < 64; i++)); do printf '%b\0\0\0' "$token"; done
done > ids

# compare NAME COUNTS COMMAND..: one process and each number of them.
compare()
{
    local name=$1 counts=$2 n
    shift 2
    "$@" -o "$name" > out.txt 2> one.txt
    for n in $counts; do
        ranks "$n" "$@" -o "$name-$n" > out.txt 2> err.txt || fail "$name by $n ranks: $(cat err.txt)"
        expect_same "$name" "$name-$n"
        expect_same one.txt err.txt # warnings
    done
}

for family in mixtral qwen2moe qwen3moe; do
    args=(-m "$golden/tiny_$family" --tokens ids -n 40 -l 8 --holdout 0.2 -t 1 -q)
    quantize=("$BIN/vptq-quantize" "${args[@]}" -v 4 -k 16)
    compare "h_$family" "2 3 7" "$BIN/vptq-hessian" "${args[@]}"
    compare "calibrated_$family" "2" "${quantize[@]}"
    compare "sequential_$family" "3" "${quantize[@]}" --sequential
done

# A recipe that skips some or all matrices of an input.
cat > recipe.json <<'RECIPE'
{"rules": [{"match": "*experts.2.*", "skip": true}, {"match": "*experts.*.w2", "skip": true},
           {"match": "self_attn.*", "layers": "1", "skip": true}]}
RECIPE
skips=("$BIN/vptq-quantize" -m "$golden/tiny_mixtral" --tokens ids -n 40 -l 8 -t 1 -q -v 4 -k 16 --recipe recipe.json)
compare skipped "2" "${skips[@]}"
compare skipped_sequential "3" "${skips[@]}" --sequential
"$BIN/vptq-hessian" --show h_mixtral > out.txt
expect_line out.txt ' *0 expert2_up  *32  *\? .* no tokens'
expect_line out.txt ' *1 expert2_up  *32  *64 .*'

# Every rank in a directory of its own.
# shellcheck disable=SC2016 # ranks expand their number themselves
ranks 3 sh -c "mkdir -p own$RANK && cp ids own$RANK && cd own$RANK && "'exec "$@"' sh "${quantize[@]}" --sequential \
    --no-shared-dir -o w > out.txt 2> err.txt || fail "$(cat err.txt)"
expect_same sequential_qwen3moe own0/w
