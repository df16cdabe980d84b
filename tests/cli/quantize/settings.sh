# Settings as options: every one takes effect, in any order; errors name the option.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
plan() { "$BIN/vptq-quantize" -m "$model" --dry-run --format json --layers 0-0 -qq "$@"; }

# settings_of OPTIONS..: the settings that differ from the defaults, from the first matrix's row.
settings_of() { plan "$@" | head -n 1 | sed -n 's/.*"settings": \({[^}]*}\).*/\1/p'; }

# same_settings JSON OPTIONS..
same_settings()
{
    local want=$1 got
    shift
    got=$(settings_of "$@")
    [ "$got" = "$want" ] || fail "$*: settings are $got, expected $want"
}

same_settings '{}'
same_settings '{"vector_length": 8}' -v 8
same_settings '{"vector_length": 8}' --vector-length 8
same_settings '{"centroids": 512}' -k 512
same_settings '{"centroids": 512}' --centroids=512
same_settings '{"residual": 16}' -r 16
same_settings '{"residual": 16}' --residual 16
same_settings '{"groups": 4}' -g 4
same_settings '{"groups": 4}' --groups 4
echo '{"rules": [{"match": "down_proj", "settings": {"group_size": 43}}]}' > r.json
same_settings '{"group_size": 32}' --group-size 32 --recipe r.json
same_settings '{"outliers": 2.5}' --outliers 2.5
same_settings '{"outliers": 1.0, "outlier_vector_length": 2, "outlier_centroids": 64}' \
    --outliers 1:2:64
same_settings '{"dtype": "bf16"}' --dtype bf16
same_settings '{"norm": "none"}' --norm none
same_settings '{"norm": "none"}' --no-norm
same_settings '{"norm": "minmax"}' --norm minmax
same_settings '{"metric": "raw"}' --metric raw
same_settings '{"perm": false}' --no-perm
same_settings '{"init": "random"}' --init random
same_settings '{"kmeans_iterations": 3}' --kmeans-iterations 3
same_settings '{"kmeans_tolerance": 0.01}' --kmeans-tolerance 0.01
same_settings '{"kmeans_shift": 1e-6}' --kmeans-shift 1e-6
same_settings '{"residual_from": "pass"}' --residual-from pass
same_settings '{"joint": 2}' --joint 2
same_settings '{"beam": 1}' --search greedy
same_settings '{}' --search beam
same_settings '{"beam": 5}' --search beam:5
same_settings '{"sweeps": 9}' --sweeps 9
same_settings '{"refits": 0}' --refits 0
same_settings '{"retrain": 2}' --retrain 2
same_settings '{"scales": false}' --scales false
same_settings '{"rounding": "end"}' --rounding end
same_settings '{"codebook_grid": "int8"}' --codebook-grid int8
same_settings '{}' --codebook-grid none
same_settings '{"ridge": 0.1}' --ridge 0.1
same_settings '{"damping": 0.002}' --damping 0.002
same_settings '{"seed": 7}' --seed 7
same_settings '{"seed": "18446744073709551615"}' --seed 18446744073709551615

# Encoder, then preset, then single settings, then rules, in any order of options.
echo '{"rules": [{"match": "q_proj", "settings": {"sweeps": 9, "centroids": 32}}]}' > r.json
settings_of --encoder upstream --preset ablation-v6 -k 16 --joint 1 --recipe r.json > one
settings_of --recipe r.json --joint 1 -k 16 --preset ablation-v6 --encoder upstream > two
expect_same one two
want='{"vector_length": 6, "centroids": 32, "norm": "minmax", "metric": "raw", "init": "random",'
want="$want"' "kmeans_iterations": 100, "kmeans_tolerance": 0.0, "kmeans_shift": 1e-5,'
want="$want"' "residual_from": "pass", "joint": 1, "beam": 1, "retrain": 0, "sweeps": 9,'
want="$want"' "refits": 0, "scales": false, "rounding": "end"}'
[ "$(cat one)" = "$want" ] || fail "settings are $(cat one), expected $want"
same_settings '{}' --encoder best

# bad PATTERN OPTIONS..: a usage error.
bad() { expect_error 2 "$1" plan "${@:2}"; }

bad "^vptq-quantize: --vector-length 65: expected a whole number from 1 to 64" -v 65
bad "^vptq-quantize: --vector-length 0: expected" -v 0
bad "^vptq-quantize: --vector-length 4.5: expected" -v 4.5
bad "^vptq-quantize: --centroids 131072: expected" -k 131072
bad "^vptq-quantize: --centroids 100: must be a power of two from 2 to 65536 (nearest: 64, 128)" -k 100
bad "^vptq-quantize: --residual -1: expected" -r -1
bad "^vptq-quantize: --residual 3: must be a power of two from 2 to 65536 (nearest: 2, 4)" -r 3
bad "^vptq-quantize: --groups 0: expected" -g 0
bad "layers.0.self_attn.q_proj: groups is 3, which does not divide 64 columns" -g 3
bad "layers.0.self_attn.q_proj: groups is 65, which leaves an empty group" -g 65
bad "groups is 2 and group_size is 32, expected only one" -g 2 --group-size 32
bad "^vptq-quantize: --outliers 101: expected a number from 0 to 100" --outliers 101
bad "outliers is 100 percent, which leaves none of 64 columns" --outliers 100
bad "^vptq-quantize: --outliers 1:4: expected PERCENT\[:V:K\]" --outliers 1:4
bad "^vptq-quantize: --outliers 1:4:8:2: expected" --outliers 1:4:8:2
bad "^vptq-quantize: --outliers 65: expected" --outliers 1:65:8
bad "^vptq-quantize: --outliers '': expected" --outliers 1:4:
bad "^vptq-quantize: --outliers 9: must be a power of two from 2 to 65536 (nearest: 8, 16)" --outliers 1:4:9
bad "^vptq-quantize: --norm max: expected none|std|minmax" --norm max
bad "norm and --no-norm exclude each other" --norm std --no-norm
bad "^vptq-quantize: --metric '': expected" --metric ''
bad "^vptq-quantize: --init best: expected" --init best
bad "^vptq-quantize: --residual-from all: expected" --residual-from all
bad "^vptq-quantize: --retrain 1001: expected" --retrain 1001
bad "^vptq-quantize: --scales no: expected true or false" --scales no
bad "^vptq-quantize: --rounding up: expected" --rounding up
bad "^vptq-quantize: --codebook-grid int4: expected none|int8" --codebook-grid int4
bad "^vptq-quantize: --joint x: expected" --joint x
bad "^vptq-quantize: --search wide: expected greedy|beam\[:N\]" --search wide
bad "^vptq-quantize: --search 0: expected" --search beam:0
bad "^vptq-quantize: --sweeps 1e9: expected" --sweeps 1e9
bad "^vptq-quantize: --refits 17: expected a whole number from 0 to 16" --refits 17
bad "^vptq-quantize: --kmeans-iterations 0: expected" --kmeans-iterations 0
bad "^vptq-quantize: --kmeans-tolerance nan: expected" --kmeans-tolerance nan
bad "^vptq-quantize: --kmeans-shift inf: expected" --kmeans-shift inf
bad "^vptq-quantize: --ridge -1: expected a number from 0 to 1" --ridge -1
bad "^vptq-quantize: --damping 0: expected" --damping 0
bad "^vptq-quantize: --dtype f32: expected f16|bf16" --dtype f32
bad "encoder is 'fast', expected best|upstream" --encoder fast
bad "preset is 'llama9', expected a name of --preset list" --preset llama9

# Presets: the table needs no model; each name in it is a preset.
"$BIN/vptq-quantize" --preset list > list.txt
"$BIN/vptq-quantize" --preset list --format json > list.json
[ "$(wc -l < list.json)" = 31 ] || fail "presets"
! grep -q '.\{101\}' list.txt || fail "lines over 100 columns"
expect_line list.txt '^llama2-7b-v12  *12  4096  4096   4     1  4 8192 '
json_get name list.json | while read -r name; do
    grep -q "^$name " list.txt || fail "$name is not in both tables"
done
# 4096 x 4096: v = 6, 12 bits per index, computed by hand for Llama-2-7B (test_matrix_settings)
expect_near "$(head -n 1 list.json | json_get bits_per_weight)" 2.0199 1e-4
same_settings '{"vector_length": 12, "centroids": 4096, "residual": 4096, "groups": 4, "outliers": 1.0}' \
    --preset ablation-groups-4

# The same settings give the same bytes in any spelling.
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 4 -l 256 -o h -q
quantize() { "$BIN/vptq-quantize" -m "$model" -H h --layers 0-0 -q "$@" > /dev/null; }
quantize -o a -v 4 -k 16 --sweeps 1 --encoder best
quantize --sweeps 1 -k 16 -v 4 -o b
expect_same a b
"$BIN/vptq-quantize" -m "$model" -H h -o a --layers 0-0 -k 16 --sweeps 1 > rows.txt 2> err.txt
! grep -q '.\{101\}' rows.txt || fail "lines over 100 columns"
expect_line rows.txt ' k_res grp outl '
