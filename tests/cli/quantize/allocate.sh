# A bit budget: never exceeded, more bits never predict more loss; measurements are saved, and a
# killed run ends with the same bytes.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 16 -l 256 -o h -q
quantize() { "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -q "$@"; }
kl=(-H h --allocate kl --allocate-text "$text" --allocate-length 128)

# bits FILE: bits per weight of all rows; predicted FILE: sum of their predicted losses.
bits()
{
    awk -F'[:,]' '/"layer"/ { for (i = 1; i < NF; i++) {
            if ($i ~ /"rows"/) r = $(i + 1)
            if ($i ~ /"columns"/) c = $(i + 1)
            if ($i ~ /"total_bits"/) b = $(i + 1) }
        w += r * c; s += b } END { print s / w }' "$1"
}
predicted() { json_get predicted_loss "$1" | awk '{ s += $1 } END { print s }'; }

# A budget that no settings meet is an error before divergences are measured.
for bits in 1 14; do
    expect_error 2 "a budget of $bits bits per weight is" quantize -o refused -b $bits "${kl[@]}"
    [ ! -e refused ] || fail "a refused run leaves $(ls -A refused)"
done

# One setting for all, chosen without Hessians.
quantize --dry-run -b 3 --allocate uniform --format json >uniform.json
[ "$(json_get v uniform.json | sort -u | wc -l)" = 1 ] || fail "uniform has several v"
[ "$(json_get k uniform.json | sort -u | wc -l)" = 1 ] || fail "uniform has several k"
expect_number "$(bits uniform.json)" '<=' 3

for mode in proxy kl; do
    options=(-H h --allocate proxy)
    [ "$mode" = proxy ] || options=("${kl[@]}")
    last=1e9
    for budget in 2 2.5 3 4; do
        quantize --dry-run -o "$mode" -b "$budget" "${options[@]}" --format json >row.json
        expect_number "$(bits row.json)" '<=' "$budget"
        expect_number "$(bits row.json)" '>' "$(awk "BEGIN { print 0.9 * $budget }")"
        [ "$mode" = kl ] || continue
        # the sum that allocation minimizes
        quantize --dry-run -o "$mode" -b "$budget" "${options[@]}" >row.txt
        now=$(sed -n 's/.*, divergence //p' row.txt)
        expect_number "$now" '<=' "$last"
        last=$now
    done
    [ "$(json_get k row.json | sort -u | wc -l)" -gt 1 ] || fail "$mode gives all the same k"
    [ -e "$mode/sensitivity.json" ] || fail "no measurement is kept"
    [ ! -e "$mode/quantize.json" ] || fail "a dry run begins a work directory"
done

# By size the settings are the same with and without Hessians, and nothing is measured in a run.  They lose less of the
# model than one setting for all: k and v, which several heads read, get more bits than their size would.
quantize --dry-run -b 4 --format json >without.json
quantize -o by_size -b 4 -H h --format json >by_size.json
for key in v k k_res; do
    json_get $key without.json >want.txt
    head -n 35 by_size.json | json_get $key >got.txt
    expect_same want.txt got.txt
done
mean_bits() { grep "\"$1\"" without.json | json_get bits_per_weight | awk '{ s += $1 } END { print s / NR }'; }
expect_number "$(mean_bits k_proj)" '>' "$(mean_bits q_proj)"
expect_number "$(mean_bits v_proj)" '>' "$(mean_bits o_proj)"
[ ! -e by_size/sensitivity.json ] || fail "an allocation by size measures"
quantize -o same -b 4 -H h --allocate uniform >/dev/null
for w in by_size same; do
    "$BIN/vptq-eval" ppl -m $w --tokenizer "$tok" --text "$text" --context 256 --windows 16 -q --format json >$w.ppl
done
expect_number "$(json_get ppl by_size.ppl)" '<' "$(json_get ppl same.ppl)"

# A real run has the settings of the dry run, and its losses are close to the prediction.
quantize --dry-run -o kl -b 3 "${kl[@]}" --format json >plan.json
quantize -o kl -b 3 "${kl[@]}" --format json >run.json
json_get k plan.json >want.txt
json_get k run.json >got.txt
expect_same want.txt got.txt
json_get proxy_loss run.json | paste - <(json_get predicted_loss run.json) |
    awk '{ s += log($2 / $1) } END { m = exp(s / NR); exit !(m > 0.5 && m < 2) }' ||
    fail "predictions are far off: $(predicted run.json)"
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -o kl -b 3.2 "${kl[@]}" -q 2>err.txt &&
    fail "another budget goes on in the same directory"
expect_line err.txt 'kl/quantize.json belongs to another run'

# A directory of other Hessians is refused before it is measured for, and keeps its measurements.
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 8 -l 128 -o other -q
cp kl/sensitivity.json kept.json
for plan in "" --dry-run; do # shellcheck disable=SC2086 # none or one
    expect_error 1 "kl/quantize.json belongs to another run: its key 'hessian_fingerprint'" \
        quantize $plan -o kl -b 3 "${kl[@]}" -H other
    expect_same kept.json kl/sensitivity.json
done

# All Hessians are read before the first is measured with, also for a run of some layers.
cp -r h holes
rm holes/layer_004_down.safetensors
expect_error 1 "'holes' has no hessian of layer 4 input down" quantize -o few -b 3 "${kl[@]}" -H holes --layers 0-0
[ ! -e few ] || fail "measured without a Hessian: $(ls few)"
# A plan finds missing ones, as far as the run will need them.
expect_sentence 1 "'holes' has no hessian of layer 4 input down" quantize -o few -v 4 -k 16 -H holes --dry-run
quantize -o few -v 4 -k 16 -H holes --layers 0-3 --dry-run > out.txt

# Killed while measuring: the same bytes in the end, for any thread count.
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -o killed -b 3 "${kl[@]}" -t 1 -q >/dev/null &
pid=$!
wait_for 60 test -e killed/sensitivity.json
kill_and_wait "$pid"
quantize -o killed -b 3 "${kl[@]}" -t 2 >/dev/null
expect_same kl killed
no_leftovers killed

# Damaged measurements are repeated; a file that cannot be read may be intact and is an error.
mkdir unread damaged
mkdir unread/sensitivity.json
expect_exit 1 quantize --dry-run -o unread -b 3 "${kl[@]}" >/dev/null 2>err.txt
expect_line err.txt "cannot open 'unread/sensitivity.json': is a directory"
! grep -q "measured again" err.txt || fail "a file that cannot be read counts as damaged"
head -c 1000 kl/sensitivity.json >damaged/sensitivity.json
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" --dry-run -o damaged -b 3 "${kl[@]}" >/dev/null 2>err.txt
expect_line err.txt "sensitivities are measured again"
expect_same kl/sensitivity.json damaged/sensitivity.json

# Recipe rules are kept, the other matrices share the remaining bits.
echo '{"rules": [{"match": "*.v_proj", "settings": {"vector_length": 2, "centroids": 16}}]}' >recipe.json
quantize --dry-run -o kl -b 3 "${kl[@]}" --recipe recipe.json --format json >pinned.json
grep '"v_proj"' pinned.json >v.json
[ "$(json_get v v.json | sort -u)" = 2 ] || fail "a pinned matrix was changed"
expect_number "$(bits pinned.json)" '<=' 3

# Impossible budgets and settings.
expect_exit 2 quantize --dry-run -b 0.1 --allocate uniform 2>err.txt
expect_line err.txt 'a budget of 0.1 bits per weight is below the smallest possible, [0-9.]*$'
least=$(sed 's/.*possible, //' err.txt)
quantize --dry-run -b "$(awk "BEGIN { print $least + 0.001 }")" --allocate uniform >/dev/null
expect_exit 2 quantize -o kl -b 0.1 -H h 2>err.txt
expect_line err.txt 'below the smallest possible, '
expect_exit 2 quantize --dry-run -b 3 --allocate kl --allocate-text "$text" 2>err.txt
expect_line err.txt '^vptq-quantize: --allocate kl needs -H HDIR, or -c TEXT and -o WORK (--allocate proxy needs neither)$'
expect_exit 2 quantize --dry-run -b 3 -k 64 --allocate uniform 2>err.txt
expect_line err.txt 'bits and --centroids exclude each other'
expect_exit 2 quantize --dry-run -b 0 --allocate uniform 2>err.txt
expect_line err.txt "--bits 0: expected more than 0"
