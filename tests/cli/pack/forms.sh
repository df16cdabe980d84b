# The same model as a directory, an archive and in shards: the same bytes for any number of threads
# and any order of conversions.
golden=$(data golden/vptq_model_stories260K)
data text/tinystories/tiny.utf8 > /dev/null
pack() { "$BIN/vptq-pack" -q "$@"; }
nll() { stories nll -m "$@"; }

pack "$golden" -o dir -t 1 --format json > out.json
[ "$(json_get matrices out.json)" = 35 ] || fail "35 matrices expected"
[ "$(json_get tensors out.json)" = 12 ] || fail "12 plain tensors expected"
[ "$(json_get total_bytes out.json)" = "$(cat dir/* | wc -c)" ] || fail "total_bytes"
pack "$golden" -o one.vptq -t 1 > /dev/null
pack "$golden" -o two.vptq -t 2 > /dev/null
expect_same one.vptq two.vptq
pack dir -o three --to archive > /dev/null
pack one.vptq -o dir2 -t 2 > /dev/null
expect_same dir dir2
pack three -o dir3 > /dev/null
expect_same dir dir3
expect_same "$golden/tokenizer.json" dir/tokenizer.json
expect_number "$(wc -c < one.vptq)" '<' "$(cat dir/* | wc -c)"

# In shards with an index; packed again it is the same.
pack dir -o shards --shard-size 64K > /dev/null
[ -e shards/model.safetensors.index.json ] || fail "no index"
[ ! -e shards/model.safetensors ] || fail "a single file next to the shards"
pack shards -o dir4 > /dev/null
expect_same dir dir4

# Every form has the same perplexity to the last bit, and so has the model unpacked without rounding.
pack --unpack one.vptq -o plain --dtype f32 > /dev/null
want=$(nll "$golden")
for model in dir one.vptq shards plain; do
    [ "$(nll "$model")" = "$want" ] || fail "$model: nll $(nll "$model"), expected $want"
done

# The defects of the golden model's config are gone, and nothing is lost.
pack --check "$golden" > check.txt
expect_line check.txt "5 more\|4 more"
pack --check dir > check.txt
expect_line check.txt "^dir: 0 errors, 0 warnings"
pack --check one.vptq > check.txt
expect_line check.txt "^one.vptq: 0 errors, 0 warnings"
no_leftovers .
