# The 8-bit presets: each packs into a compressed-tensors directory and an archive that evaluate alike.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 16 -l 256 -o h -q
quantize() { "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h -qq "$@"; }
nll() { "$BIN/vptq-eval" ppl -m "$@" --tokenizer "$tok" --text "$text" --context 256 --windows 8 -qq --format json | json_get nll; }

# setting KEY: its values in the settings of all matrices, without repetitions
setting() { sed -n "s/.*\"$1\": \([^,}]*\).*/\1/p" rows.json | sort -u | tr '\n' ' '; }

original=$(nll "$model")
"$BIN/vptq-quantize" --preset list --format json | grep '"paper": "serving benchmark"' > presets.json
[ "$(wc -l < presets.json)" = 6 ] || fail "$(cat presets.json)"
for name in $(json_get name presets.json); do
    quantize -o "$name" --preset "$name" --format json > rows.json
    [ "$(setting method | wc -w)" = 1 ] || fail "$name: methods $(setting method)"
    "$BIN/vptq-pack" "$name" -o "$name.hf" -qq > /dev/null
    "$BIN/vptq-pack" "$name" -o "$name.vptq" -qq > /dev/null
    expect_line "$name.hf/config.json" '"quant_method": "compressed-tensors"'
    "$BIN/vptq-pack" --check "$name.hf" -qq > check.txt
    expect_line check.txt "^$name.hf: 0 errors, 0 warnings"
    want=$(nll "$name")
    for form in hf vptq; do
        [ "$(nll "$name.$form")" = "$want" ] || fail "$name.$form: nll $(nll "$name.$form"), expected $want"
    done
    case $name in
        *sparse*) expect_number "$want" '<' 5 ;;
        *) expect_near "$want" "$original" 0.02 ;;
    esac
    case $name in
        w8a8*) expect_line "$name.hf/config.json" '"format": "int-quantized"' ;;
        *) expect_line "$name.hf/config.json" '"format": "pack-quantized"' ;;
    esac
    rm -r "$name.hf" "$name.vptq"
done

# Groups fit the columns: 64 are fewer than a group, 172 divide by no power of two from 32 on.
groups() { sed 's/"settings": .*//' "$1/report.jsonl" | sed -n 's/.*"group_size": \([0-9]*\).*/\1/p' | sort -nu | tr '\n' ' '; }
[ "$(groups w8a16_awq)" = '64 172 ' ] || fail "groups of 128 columns became $(groups w8a16_awq)"
quantize -o small --preset w8a16_awq --group-size 32 > /dev/null
[ "$(groups small)" = '32 172 ' ] || fail "groups of 32 columns became $(groups small)"
quantize -o plain --preset w8a16_awq --group-size 32 --fit-groups false > /dev/null
[ "$(groups plain)" = '32 ' ] || fail "groups without --fit-groups: $(groups plain)"
expect_sentence 1 "'model.layers.0.mlp.down_proj' cannot be written .*: groups of 32 columns do not divide 172 columns" \
    "$BIN/vptq-pack" plain -o plain.vptq -q

# That is said before the first matrix: a warning for a work directory, an error where the run packs.
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h --method rtn --group-size 32 --dry-run -q > /dev/null 2> err.txt
expect_line err.txt "warning: model.layers.0.mlp.down_proj: group_size is 32, which does not divide 172 columns \
(5 such matrices), so that they cannot be packed; --fit-groups true takes groups that divide$"
expect_error 2 "group_size is 32, which does not divide 172 columns (5 such matrices)" \
    quantize -o packs.vptq --method rtn --group-size 32
[ ! -e packs.vptq.work ] || fail "matrices were quantized that cannot be packed"
quantize -o packs.vptq --method rtn --group-size 32 --fit-groups true > /dev/null
"$BIN/vptq-pack" --check packs.vptq -qq > check.txt
echo '[{"name": "rtn", "settings": {"method": "rtn", "group_size": 32}}]' > rows.json
expect_error 2 "row 'rtn': model.layers.0.mlp.down_proj: group_size is 32, which does not divide 172 columns" \
    "$BIN/vptq-eval" ablate -m "$model" --tokenizer "$tok" -H h --table rows.json --text "$text" -o ablation -qq
quantize -o rtn --method rtn --group-size 32 --fit-groups true > /dev/null
expect_line rtn/quantize.json '"fit_groups": true'
expect_error 1 "its key 'settings.fit_groups' is true, here it is missing" quantize -o rtn --method rtn --group-size 32

# Single options win, and a preset is for its kind of method.
quantize -o four --preset w8a8_smooth_gptq --weight-bits 4 --activation-bits 0 --smooth-alpha 0.6 --format json > rows.json
expect_line four/quantize.json '"weight_bits": 4'
expect_line four/quantize.json '"smooth_alpha": 0.6'
! grep -q activation_bits four/quantize.json || fail "activation_bits in the manifest"
expect_error 2 "preset 'w8a16_awq' is not for method vptq" quantize -o bad --preset w8a16_awq --method vptq
expect_error 2 "an encoder is for method vptq only" quantize -o bad --preset w8a16_awq --encoder best
expect_error 2 "vector_length has no effect with method awq" quantize -o bad --preset w8a16_awq -v 8
expect_error 2 "fit_groups has no effect with method vptq" quantize -o bad --fit-groups true

# A dampening of 0 is used where the Hessian factors, and reported where it does not.
expect_line w8a8_smooth_ptq/quantize.json '"ridge": 0.0'
cmp -s w8a8_smooth_ptq/report.jsonl w8a8_smooth_gptq/report.jsonl && fail "the dampening changes nothing"
[ "$(json_get damping_added w8a8_smooth_ptq/report.jsonl | sort -u)" = 0.0 ] || fail "Hessians of 4,096 tokens do not factor"
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 1 -l 32 -o few -q
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H few -qq -o few.work --preset w8a8_smooth_ptq > /dev/null
expect_number "$(json_get damping_added few.work/report.jsonl | sort -g | tail -n 1)" '>' 0
nll few.work > /dev/null
