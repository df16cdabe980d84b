# Losses on held-out tokens, and the term that k and v add to their Hessian.
model=$(data models/stories260K/stories260K.bin)
hf=$(data models/stories260K-hf)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
collect() { "$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -l 256 -qq "$@" > /dev/null; }
collect -n 8 --holdout 0.25 --weights sink:0.5 -o h
collect -n 6 --seed 1 --weights plain -o other
run() { "$BIN/vptq-quantize" -m "$model" -k 16 --layers 0-0 -qq "$@"; }

# The held-out part of HDIR is used by default; it does not affect any code.
run -H h -o w --format json > w.json
[ "$(grep -c '"proxy_loss_held_out": ' w.json)" = 7 ] || fail "no held-out losses"
for key in loss_kmeans loss_pass; do
    json_get "${key}_held_out" w.json > /dev/null
done
run -H h --held-out other -o o --format json > o.json
[ "$(json_get proxy_loss w.json)" = "$(json_get proxy_loss o.json)" ] || fail "losses differ"
[ "$(json_get proxy_loss_held_out w.json)" != "$(json_get proxy_loss_held_out o.json)" ] ||
    fail "the same held-out losses"
# Its loss is the one that vptq-eval measures with these Hessians.
"$BIN/vptq-eval" error -m w --base "$model" -H h/holdout --format json > e.json
paste <(json_get proxy_loss_held_out w.json) <(head -n 7 e.json | json_get proxy_loss) |
    while read -r ours theirs; do expect_near "$ours" "$theirs" 1e-6; done
fingerprint=$(sed -n 's/^ *"fingerprint": "\(.*\)",$/\1/p' h/holdout/hessian.json)
expect_line w/quantize.json "\"held_out_fingerprint\": \"$fingerprint\""
run -H other -o p --format json > p.json
! grep -q held_out p.json || fail "held-out losses out of nothing"
expect_line p/quantize.json '"held_out_fingerprint": null'

# The seconds of a matrix add up over its steps; reused matrices took none.  The last object has the sums.
sed -E '$d; s/.*"seconds": ([0-9.]+), "step_seconds": \{([^}]*)\}.*/\1 \2/; s/"[a-z]+": //g; s/,//g' w.json |
    awk '{ s = 0; for (i = 2; i <= NF; i++) s += $i; d = s - $1 }
        NF < 8 || d > 0.006 || d < -0.006 { exit 1 }' || fail "seconds by step do not add up"
for key in kmeans pass retrain sweeps scales refit storage rest; do
    grep -q "step_seconds.*\"$key\": " w.json || fail "no seconds of $key"
done

# The table has a column for held-out losses, and their mean.
run -H h -o w > rows.txt
expect_line rows.txt ' held-out '
expect_line rows.txt '^7 matrices (7 kept), '
expect_line rows.txt '^mean loss 0\..*, held-out 0\.'
! grep -q '.\{101\}' rows.txt || fail "lines over 100 columns"
! grep -q '^time: ' rows.txt || fail "time of what was kept"
run -H h -o fresh -v 8 -r 16 > fresh.txt
expect_line fresh.txt '^time: k-means [0-9]* %, residual [0-9]* %, joint [0-9]* %, pass [0-9]* %'
[ "$(sed -n '/^time: /,$p' fresh.txt | tr ', ' '\n' | grep -c '^[0-9]')" = 10 ] || fail "steps are missing"
! grep -q '.\{101\}' fresh.txt || fail "lines over 100 columns"

# k and v minimize H + c T: only they change, and only they have a weighted loss.
[ "$(grep -c proxy_loss_weighted w.json)" = 2 ] || fail "weighted losses"
expect_line w/quantize.json '"kv_factor": 0.5'
run -H h --kv-factor 0 -o zero --format json > zero.json
! grep -q weighted zero.json || fail "weighted losses without a term"
expect_line zero/quantize.json '"kv_factor": 0.0'
paste -d'|' <(json_get name w.json) <(json_get proxy_loss w.json) \
    <(json_get proxy_loss zero.json) | while IFS='|' read -r name a b; do
    case $name in
    k_proj | v_proj) [ "$a" != "$b" ] || fail "$name does not change" ;;
    *) [ "$a" = "$b" ] || fail "$name changes" ;;
    esac
done
run -H h --kv-factor 0.5 -o w --format json > again.json
[ "$(grep -c '"reused": true' again.json)" = 7 ] || fail "made again"

expect_error 1 "key 'kv_factor' is 0.5, here it is 0.25" run -H h --kv-factor 0.25 -o w
expect_error 1 "key 'held_out_fingerprint' is" run -H h --held-out other -o w
expect_error 1 "'other' has no token weights for the factor of 0.1" \
    run -H other --kv-factor 0.1 -o x
expect_error 2 ": --kv-factor -1: expected" run -H h --kv-factor -1 -o x
expect_error 2 "held-out needs -H" run --dry-run --held-out other
expect_error 1 "'h' and 'h' have the Hessians of the same tokens" run -H h --held-out h -o x
"$BIN/vptq-hessian" -m "$hf" -c "$text" -n 2 -l 64 -o alien -qq > /dev/null
expect_error 1 "'alien' has the Hessians of another model" run -H h --held-out alien -o x
collect -n 4 --layers 1-2 -o part
expect_error 1 "'part' has layers 1-2, expected layers 0-0" run -H h --held-out part -o x
[ ! -e x ] || fail "a work directory was made"

# Few tokens: a warning with the numbers, and a result.
collect -n 1 -l 100 -o few
"$BIN/vptq-quantize" -m "$model" -H few -k 16 --layers 0-0 -o f > /dev/null 2> err.txt
expect_line err.txt "few: only 100 calibration tokens for 172 columns"
