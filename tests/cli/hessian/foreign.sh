# Hessians of other programs: the inverse form exported and imported, an imatrix in a quantization.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
hessian() { "$BIN/vptq-hessian" -q "$@"; }
hessian -m "$model" --tokenizer "$tok" -c "$text" -n 8 -l 128 --weights plain -o h

hessian --export h --inverse -o inv > out.txt
expect_line out.txt "pytorch inverse, hessians of layers 0-4, 1024 tokens"
expect_line out.txt "inverted with 0.0201 of the mean diagonal added"
hessian --import inv -o back > out.txt
expect_line out.txt "unknown number of tokens"
expect_line out.txt "the ridge of 0.0201 was subtracted, the mean diagonal is 1"
expect_line back/hessian.json '"imported_from": "pytorch inverse"'
expect_line back/hessian.json '"divided_by_mean_diagonal": true'
for dir in h back; do hessian --show "$dir" --format json > "$dir.txt"; done
paste <(json_get max_diag h.txt) <(json_get mean_diag h.txt) <(json_get max_diag back.txt) |
    while read -r most mean relative; do
        expect_near "$relative" "$(awk "BEGIN { printf \"%.9g\", $most / $mean }")" 1e-4
    done
[ "$(json_get tokens back.txt | sort -u)" = null ] || fail "tokens of an inverse"
hessian --show back > out.txt
expect_line out.txt '^ *0 qkv .* ? .* ? .* ?'
# It is as good as the original: the same loss up to the rounding of the float factor.
for dir in h back; do
    "$BIN/vptq-quantize" -q -m "$model" --tokenizer "$tok" -H $dir -o "w_$dir" --layers 1-1 -v 4 -k 16 -r 0 > q.txt
done
"$BIN/vptq-eval" error -q -m w_back --base "$model" -H h --format json --layers 1-1 > e_back.txt
"$BIN/vptq-eval" error -q -m w_h --base "$model" -H h --format json --layers 1-1 > e_h.txt
paste <(json_get proxy_loss e_h.txt) <(json_get proxy_loss e_back.txt) |
    while read -r x y; do expect_near "$y" "$x" 0.05; done

# little N..: 32-bit numbers
little() { for n; do printf "%b" "$(printf '\\x%02x\\x%02x\\x%02x\\x%02x' $((n & 255)) $((n >> 8 & 255)) $((n >> 16 & 255)) $((n >> 24 & 255)))"; done; }
# entry NAME COLUMNS: one call; the mean square of column c is 1 or 4
entry()
{
    local name=$1 columns=$2 c
    little ${#name}
    printf '%s' "$name"
    little 1 "$columns"
    for ((c = 0; c < columns; c++)); do printf '\x00\x00\x80'; [ $((c % 2)) = 0 ] && printf '\x3f' || printf '\x40'; done
}
{
    little 20
    for layer in 0 1 2 3 4; do
        for input in attn_k attn_output ffn_gate; do entry "blk.$layer.$input.weight" 64; done
        entry "blk.$layer.ffn_down.weight" 172
    done
    little 1 0
} > imatrix.dat
hessian --import imatrix.dat -o diag --format json > out.txt
[ "$(json_get form out.txt)" = imatrix ] || fail "form of an imatrix"
[ "$(json_get diagonal out.txt)" = true ] || fail "an imatrix is diagonal"
hessian --show diag > out.txt
expect_line out.txt '^ *4 down .* diagonal only'
expect_line out.txt "only diagonals are known"
hessian --show diag --format json > out.txt
[ "$(json_get max_diag out.txt | sort -u)" = 4 ] || fail "diagonals of the imatrix"
for plan in "" --dry-run; do
    # shellcheck disable=SC2086 # nothing or a word
    expect_error 1 "'diag' holds only the diagonals of Hessians, which cannot be exported" hessian --export diag -o nowhere $plan
done
[ ! -e nowhere ] || fail "an export of diagonals was begun"
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H diag -o w_diag --layers 1-1 -v 4 -k 16 -r 0 > q.txt 2> err.txt
expect_line err.txt "'diag' has only the diagonals of Hessians"
expect_line q.txt "of the diagonals of Hessians"
[ "$(json_get hessian w_diag/report.jsonl | sort -u)" = diagonal ] || fail "report.jsonl says nothing of diagonals"
! grep -q '"hessian"' w_h/report.jsonl || fail "a whole Hessian is called diagonal"
"$BIN/vptq-eval" error -m w_diag --base "$model" -H diag --layers 1-1 > q.txt 2> err.txt
expect_line err.txt "'diag' has only the diagonals of Hessians"
# A dry run has no losses, so no note on their kind.
"$BIN/vptq-quantize" -q -m "$model" --tokenizer "$tok" -H diag --layers 1-1 -v 4 -k 16 -r 0 --dry-run > q.txt
[ "$(tail -n 2 q.txt | sed 's/^about .*/about/; s/^.*, weights file .*/file/' | paste -s -d ' ')" = "file about" ] ||
    fail "a plan ends with: $(tail -n 2 q.txt)"
# Losses under diagonals and under full Hessians are never mixed.
expect_exit 1 "$BIN/vptq-quantize" -q -m "$model" --tokenizer "$tok" -H h --held-out diag -o x -v 4 -k 16 -r 0 2> err.txt
expect_line err.txt "'diag' has diagonals of Hessians, expected full Hessians as in 'h'"
expect_exit 1 "$BIN/vptq-quantize" -q -m "$model" --tokenizer "$tok" -H diag --held-out h -o x -v 4 -k 16 -r 0 2> err.txt
expect_line err.txt "'h' has full Hessians, expected diagonals as in 'diag'"

expect_exit 1 hessian --merge diag diag -o x 2> err.txt
expect_line err.txt "'diag' holds only the diagonals of Hessians, which cannot be pooled"
expect_exit 1 hessian --merge back back -o x 2> err.txt
expect_line err.txt "'back' does not record its number of tokens"
expect_exit 1 hessian --export diag -o x 2> err.txt
expect_line err.txt "holds only the diagonals of Hessians"
for mode in "--import inv" "--merge h h" "--show h" "-m $model -c $text"; do
    # shellcheck disable=SC2086 # several words
    expect_exit 2 hessian $mode --inverse -o x 2> err.txt
    expect_line err.txt "inverse goes with --export"
done
sed 's/"diagonal": true/"diagonal": false/' diag/hessian.json > j && mv j diag/hessian.json
reseal diag/hessian.json hessian --show diag
expect_exit 1 "$BIN/vptq-quantize" -q -m "$model" --tokenizer "$tok" -H diag -o x2 --layers 1-1 -v 4 -k 16 -r 0 > q.txt 2> err.txt
expect_line err.txt "is a diagonal, hessian.json expects a full matrix"
head -c 400 imatrix.dat > short.dat
expect_exit 1 hessian --import short.dat -o x 2> err.txt
expect_line err.txt "short.dat: the imatrix file has 64 values in its last"
[ ! -e x ] || fail "an output was made"
