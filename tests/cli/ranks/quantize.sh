# shellcheck disable=SC2016 # ranks expand their number themselves
# Matrices over several processes: the same bytes for any number of them, with and without a directory that all see.
needs_ranks
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 8 -l 128 -o h -q
args=(-m "$model" --tokenizer "$tok" -t 1 -q --format json)
text_args=(-c "$text" -n 8 -l 128 --holdout 0.25)

# figures FILE: the rows without what differs from run to run.
figures() { sed -E 's/"(seconds|steps)": (\{[^}]*\}|[^,}]*)//g' "$1"; }

# compare NAME COUNTS OPTION..: from one process and from each number of them.
compare()
{
    local name=$1 counts=$2 n
    shift 2
    mkdir -p "$name"
    (cd "$name" && "$BIN/vptq-quantize" "${args[@]}" "$@" -o one >one.json)
    for n in $counts; do
        (cd "$name" && ranks "$n" "$BIN/vptq-quantize" "${args[@]}" "$@" -o "$n" >"$n.json" 2>err.txt) ||
            fail "$name by $n ranks: $(cat "$name/err.txt")"
        expect_same "$name/one" "$name/$n"
        [ "$(tail -n 1 "$name/one.json" | json_get digest)" = "$(tail -n 1 "$name/$n.json" | json_get digest)" ] ||
            fail "$name: another digest from $n ranks"
        json_get proxy_loss "$name/one.json" >want.txt
        json_get proxy_loss "$name/$n.json" >got.txt
        expect_same want.txt got.txt
    done
}

compare vptq "2 3 4 7" -H ../h -k 64
compare budget "3" -H ../h -b 3
# Measurements of one run go into one file: ranks that do not measure the same never begin it.
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 4 -l 128 -o other -q
allocate=(-b 3 --allocate kl --allocate-text "$text" --allocate-windows 1 --allocate-length 32)
for options in "-H other" "-H h --seed 7"; do
    what="the model, its Hessians or a setting"
    [ "$options" = "-H other" ] || what="the list of options"
    expect_exit 1 ranks 2 sh -c "[ $RANK = 1 ] && set -- "'"$@"'" $options; "'exec "$@"' sh \
        "$BIN/vptq-quantize" "${args[@]}" "${allocate[@]}" -H h -o measured >out.txt 2>err.txt
    expect_line err.txt "vptq-quantize: $what differs between the processes of this run: .* at rank 1"
    [ ! -e measured/sensitivity.json ] || fail "measured with $options"
done
compare awq "2 4" -H ../h --method awq --group-size 32
compare calibrated "2 3" "${text_args[@]}" -k 64
compare sequential "2 3 4 7" "${text_args[@]}" -k 64 --sequential
compare outputs "2" "${text_args[@]}" -k 64 --outputs 4

# A packed model with its card; every rank may have its own SIMD level.
for n in one 3; do
    mkdir "packed-$n"
    run=("$BIN/vptq-quantize" "${args[@]}" -H ../h -k 64 --measure "$text" --measure-windows 3 -o m.vptq)
    [ "$n" = one ] || run=(ranks 3 sh -c "[ $RANK = 1 ] && export VPTQ_SIMD=none; "'exec "$@"' sh "${run[@]}")
    (cd "packed-$n" && "${run[@]}" >/dev/null)
done
expect_same packed-one packed-3

# Nothing is left to do.
ranks 2 "$BIN/vptq-quantize" "${args[@]}" --format text -H h -k 64 -o vptq/3 >again.txt
expect_line again.txt "35 matrices (35 kept), .*"
expect_same vptq/one vptq/3

# Every rank in a directory of its own.
in_own_dirs() { ranks 3 sh -c "mkdir -p own$RANK && cd own$RANK && "'exec "$@"' sh "$BIN/vptq-quantize" "${args[@]}" "$@"; }
expect_exit 1 in_own_dirs -H "$PWD/h" -k 64 -o w >out.txt 2>err.txt
expect_line err.txt "vptq-quantize: rank 1: does not see the directory 'w' of rank 0; .* --no-shared-dir"
in_own_dirs -H "$PWD/h" -k 64 -o w --no-shared-dir >/dev/null
expect_same vptq/one own0/w
rm -r own0/w # as after an interruption, where rank 1 lost one of its matrices
find own1/w -name "*.safetensors" | sort | head -n 1 | xargs -r rm
in_own_dirs -H "$PWD/h" -k 64 -o w --no-shared-dir >/dev/null
expect_same vptq/one own0/w
# matrices go to rank 0, and to others only where they calibrate with them
in_own_dirs "${text_args[@]}" -k 64 -o c --no-shared-dir >/dev/null
expect_same calibrated/one own0/c
[ "$(find own1/c own2/c -name "*.safetensors" | wc -l)" -le 35 ] || fail "a matrix was sent to another rank than 0"
in_own_dirs "${text_args[@]}" -k 64 --sequential -o s --no-shared-dir >/dev/null
expect_same sequential/one own0/s
# layers before those of a run, which only rank 0 has
(cd own0 && "$BIN/vptq-quantize" "${args[@]}" "${text_args[@]}" -k 64 --sequential --layers 0-1 -o later >/dev/null)
later=("${text_args[@]}" -k 64 --sequential --layers 2-4 -o later)
expect_exit 1 in_own_dirs "${later[@]}" >out.txt 2>err.txt
expect_line err.txt "vptq-quantize: rank 1: does not see the directory 'later' of rank 0; .* --no-shared-dir"
in_own_dirs "${later[@]}" --no-shared-dir >/dev/null
expect_same sequential/one own0/later
rm own0/later/layer_000_q_proj.safetensors
expect_exit 1 in_own_dirs "${later[@]}" --no-shared-dir >out.txt 2>err.txt
expect_line err.txt "vptq-quantize: later/layer_000_q_proj.safetensors is missing: .*"
# output Hessians, which rank 0 measures and writes, reach ranks that do not see them
in_own_dirs "${text_args[@]}" -k 64 --outputs 4 -o k --no-shared-dir >/dev/null
expect_same outputs/one own0/k

# What cannot be shared, and ranks that do not fit together.
expect_exit 2 ranks 2 "$BIN/vptq-pack" --list vptq/one >out.txt 2>err.txt
expect_line err.txt "vptq-pack: this command runs in one process, not in 2"
expect_exit 1 ranks 2 sh -c "[ $RANK = 1 ] && set -- "'"$@"'" -H other; "'exec "$@"' sh \
    "$BIN/vptq-quantize" "${args[@]}" -H h -k 64 -o differs >out.txt 2>err.txt
expect_line err.txt "vptq-quantize: the fingerprint .* differs between the processes of this run: .* at rank 1"
# Other options would make a rank wait for what never comes: other layers, or none after a usage error of its own.
for option in "--layers 0-0" "--kv-factor -1" "--no-shared-dir" "--seed 7"; do
    # shellcheck disable=SC2086 # several words
    expect_exit 1 ranks 2 timeout 60 sh -c "[ $RANK = 1 ] && set -- "'"$@"'" $option; "'exec "$@"' sh \
        "$BIN/vptq-quantize" "${args[@]}" -H h -k 64 -o differs >out.txt 2>err.txt
    expect_line err.txt "vptq-quantize: the list of options differs between the processes of this run: \".*\" at rank 0, \".*$option.*\" at rank 1\$"
    [ ! -e differs ] || fail "begun with $option on one rank"
done
# Those of a machine may differ.
ranks 2 sh -c "[ $RANK = 1 ] && set -- "'"$@"'" -t 2 --mem 1G --verbose; "'exec "$@"' sh \
    "$BIN/vptq-quantize" "${args[@]}" -H h -k 64 -o same >/dev/null

# One progress line, of the whole run: its counts never go back, as those of several ranks would.
ranks 3 "$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -t 1 --progress -H h -k 64 -o shown --log-dir logs \
    >/dev/null 2>err.txt
tr '\r' '\n' <err.txt >lines.txt
[ "$(grep -c 'quantize: 35 matrices in ' lines.txt)" = 1 ] || fail "not one end: $(cat lines.txt)"
grep -o 'quantize .*[0-9]*/35 matrices' lines.txt | sed 's/.* \([0-9]*\)\/35 .*/\1/' >counts.txt
[ -s counts.txt ] || fail "no progress: $(cat lines.txt)"
sort -c -n counts.txt || fail "not the counts of one line: $(cat counts.txt)"
expect_line logs/rank-0.log ' quantize: 35 matrices in '
