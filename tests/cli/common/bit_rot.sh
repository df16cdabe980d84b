# Every kind of file that the tools write, with bits flipped and cut short at seeded places: whoever reads it
# reports the file by name, makes it again, or gives the same results.  A file that no row names fails the test,
# and so does a source file that begins to write.  VPTQ_ROT_PLACES=N sets the flips, and the cuts, per row;
# VPTQ_ROT_SEED where they are.  bit_rot.log counts the answers.
needs_own_machine "hundreds of commands take hours, and slow ones print their progress"
model=$(data models/stories260K-hf)
tiny=$(data text/tinystories/tiny.utf8)
[ -e "${FAULTS:-}" ] || skip "needs FAULTS, the library of tests/faults"
places=9
! is_instrumented || places=2
[ -z "${VPTQ_LONG:-}" ] || places=200
here=$PWD
places=${VPTQ_ROT_PLACES:-$places}
seed=${VPTQ_ROT_SEED:-1}
trap ': >"$here/stop"; wait' EXIT
cc -std=c11 -Wall -Wextra -Werror -O1 -o rot "$SRC/tests/cli/common/bit_rot.c"

hessian=$BIN/vptq-hessian quantize=$BIN/vptq-quantize pack=$BIN/vptq-pack eval=$BIN/vptq-eval
cp -rL "$model" model
head -c 9000 "$tiny" >text
head -c 1500 "$tiny" >short
cp "$SRC/tests/golden/tasks/copa.jsonl" .
echo '[{"name": "a", "settings": {"centroids": 16}}]' >rows.json

# ---- what the tools write, in good/ ----
collect="$hessian -m $here/model -c $here/text -n 4 -l 64 --holdout 0.5 --layers 0-0 -t 1"
settings="-m $here/model --kmeans-iterations 2 -k 16 -t 1"
work="$quantize $settings -H h --layers 0-0"
budget="$quantize -m $here/model -H h5 -b 2 --encoder upstream --kmeans-iterations 1 -t 1 \
--allocate kl --allocate-text $here/short --allocate-windows 1 --allocate-length 32"
tune="$quantize --from w --tune e2e -c $here/text -n 4 -l 64 --batch 1 --steps 12 -t 1"
layer="$quantize --from w --tune layer,e2e -c $here/text -n 4 -l 16 --batch 1 --passes 1 --steps 12 --self-text 2 -t 1"
sequential="$quantize $settings -c $here/text -n 2 -l 64 --sequential --layers 0-1"
ablate="$eval ablate -m $here/model -c $here/text -n 2 -l 64 --layers 0-0 --text $here/short --context 64 \
--text-windows 1 --table $here/rows.json --set kmeans_iterations=2 --keep-packed -t 1"
serve="$eval serve -m m=a.vptq --config 2,4,2 --runs 3 --warmup 0 --format json -t 1"
ppl="$eval ppl --text $here/short --context 64 --windows 1 --format json -t 1"
samples="$eval tasks -m a.vptq --task copa=$here/copa.jsonl --limit 2 -t 1"
errors="$eval error -m w --base $here/model -H h --layers 0-0 --format csv -t 1"

# interrupted DIR STATE COMMAND..: interrupts the command as late as it leaves its checkpoint, which it writes every
# minute or when it is interrupted.
interrupted()
{
    local dir=$1 state=$2 n
    shift 2
    local -x VPTQ_FAULT_CLOCK=61
    faulty any:none:1/1 "$@" -o "$dir" >/dev/null 2>&1
    n=$(wc -l <faults.log)
    until [ -e "$dir/$state" ]; do
        n=$((n * 9 / 10))
        [ "$n" -gt 0 ] || fail "$dir: an interrupted run leaves no $state"
        rm -rf "$dir"
        faulty "any:INT:$n" "$@" -o "$dir" >/dev/null 2>&1 || true
    done
    rm faults.log
}

mkdir good
cd good || exit
{
    $collect --outputs 1 -o h
    ${collect/--layers 0-0/} -o h5
    "$hessian" --export h -o pt
    "$hessian" --export h -o pt-inverse --inverse
    "$hessian" --import pt -o imported
    $work -o w --save-config run.json
    $budget -o wb
    $sequential -o ws
    $tune -o t
    $layer -o tl
    "$pack" w -o p --shard-size 200K
    "$pack" w -o a.vptq
    "$pack" --unpack a.vptq -o u.gguf
    "$pack" --unpack u.gguf -o u
    $ppl -m a.vptq --dump losses
    "$eval" kld --base "$here/model" --text "$here/short" --context 64 --windows 1 --save-base base -t 1
    $samples --samples samples.jsonl
    $errors -o errors.csv
    $serve -o records.jsonl
    "$eval" compare records.jsonl --format html -o page.html
    $ablate -o abl --report table.md
} >../made.txt 2>&1 || fail "$(tail -n 5 ../made.txt)"
read -ra words <<<"${collect/--layers 0-0/--layers 0-1}"
interrupted hs hidden.state "${words[@]}"
interrupted hg saliency.state "${words[@]}" --weights guided
read -ra words <<<"$sequential"
interrupted wi hidden.state "${words[@]}"
read -ra words <<<"$tune"
interrupted ti tune.state "${words[@]}"
read -ra words <<<"$layer"
interrupted tli tune.state "${words[@]}"
cd ..
find good -name lock -exec truncate -s 0 {} +
mapfile -t everything < <(ls good)

# ---- rows ----
# try: runs the command of the row; leaves status, stdout, stderr.
try()
{
    status=0
    # shellcheck disable=SC2086
    timeout -k 1 60 $command </dev/null >stdout 2>stderr || status=$?
    # times, and the holder of a lock, differ from run to run
    [ ! -e "$top/lock" ] || : >"$top/lock"
    [ ! -d abl ] || : | tee abl/hessians/lock abl/work/a/lock
    case $command in *json*) sed -i -E 's/"(seconds|tokens_per_second)": [^,}]*/"\1": 0/g' stdout ;; esac
}

# restore PATH..: the undamaged files or directories of good/, as links where the tools do not write in place.
restore()
{
    local path lock
    for path in "$@"; do
        cp -al "$here/good/$path" "$path"
        find "$path" \( -name lock -o -name records.jsonl \) | while read -r lock; do
            cp --remove-destination "$here/good/$lock" "$lock"
        done
    done
}

# named NAME: the name is in what was printed.
named()
{
    grep -a -q -F -e "$1" stdout stderr
}

# canonical FILE: indented JSON whose last line break, and digits of numbers that change no bit, do not count.
canonical()
{
    awk 'match($0, /: -?[0-9][-+0-9.eE]*,?$/) {
            printf "%s%.17g\n", substr($0, 1, RSTART + 1), substr($0, RSTART + 2)
            next
        }
        { print }' "$1"
}

# answer: checks what the command did with the damaged file; prints a word for the log.
answer()
{
    local name=${file##*/} word=reported
    case $status in
    0) word=passed ;;
    1 | 3) [ "$kind" = free ] || named "$name" || fail "$what: does not name the file: $(head -c 1000 stderr)" ;;
    *) # 2: options that are wrong
        [ "$status$name" = 2run.json ] || fail "$what: exit status $status: $(head -c 2000 stderr)" ;;
    esac
    case $word.$kind in
    passed.read)
        local result=stdout # which has times of commands that write
        [ ! -e ../want/out ] || result=out
        diff -r $result "../want/$result" >diff.txt || fail "$what: passed, with other results: $(head -n 5 diff.txt)"
        ;;
    passed.told)
        ! named "$name" || word=warned
        [ $word = warned ] || cmp -s stdout ../want/stdout || fail "$what: passed, with other results"
        ;;
    passed.strict) fail "$what: not reported" ;;
    passed.heal)
        rm -f abl/rows/a.seconds
        case $file in *.json)
            [ "$(canonical "$file")" != "$(canonical "../want/$file")" ] || cp "../want/$file" "$file"
            ;;
        esac
        diff -r "$top" "../want/$top" >/dev/null ||
            fail "$what: passed, and is not healed: $(diff -rq "$top" "../want/$top" | head -n 5)"
        ! named "$name" || word=healed
        ;;
    passed.redo)
        sed -n 's/.*"run_name": "\([^"]*\)".*/\1/p' "$file" | sort | cmp -s - ../names ||
            fail "$what: runs are missing"
        ;;
    esac
    echo "$word $kind $pattern" >>"$here/answers.$id"
}

# places_of KIND..: the row's command at every place.
places_of()
{
    local damage file n what at=0
    for damage in "$@"; do
        for ((n = 0; n < few; n++)); do
            [ ! -e "$here/stop" ] || exit
            file=${files[at % ${#files[@]}]} # each in turn, or as many as there are places
            at=$((at + (2 * few < ${#files[@]} ? ${#files[@]} / (2 * few) : 1)))
            what="$kind $file, $("$here/rot" "$here/good/$file" "$file" "$damage" "$seed$id" "$n"): $command"
            try
            answer
            rm -rf out "$top" # whose files may have been made again
            restore "$top"
        done
    done
}

# row KIND FILES COMMAND..: the command with the files damaged, one at a time.  KIND is
#     read    it reports the file, or its output and ./out are the same
#     heal    it reports the file, or the directory of the file is as without damage
#     told    it reports the file or warns of it, or its output is the same
#     redo    it reports the file, or all runs are in it afterwards
#     strict  it reports the file
#     free    the format has no checksum: it ends with a result or a sentence
# with _flip or _cut after it if only those are meant, in the middle of a line: without its end the last one is a
# record that a killed run left.
id=0
row()
{
    local kind=${1%_*} pattern=$2 command="${*:3}" damage=(flip cut) status top few=$places
    local -a files
    id=$((id + 1))
    mapfile -t files < <(cd good && compgen -G "$pattern" | while read -r top; do [ -d "$top" ] || echo "$top"; done)
    printf '%s\n' "${files[@]}" >>covered
    [ "${#files[@]}" -gt 0 ] || fail "the tools wrote no $pattern"
    # slow ones
    case $2 in abl/* | w[bsi]/* | hs/*) [ -n "${VPTQ_LONG:-}" ] || few=$(((places + 2) / 3)) ;; esac
    case $1 in *_flip) damage=(text) ;; *_cut) damage=(line) ;; esac
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || exit; done # whose message is printed
    (
        mkdir -p "row.$id/want" "row.$id/run"
        cd "row.$id/run" || exit
        restore "${everything[@]}"
        cd ../want || exit
        restore "${everything[@]}"
        top=${pattern%%/*}
        try
        [ "$status" = 0 ] || fail "$kind $pattern: $command: $(cat stderr)"
        rm -f abl/rows/a.seconds
        sed -n 's/.*"run_name": "\([^"]*\)".*/\1/p' records.jsonl | sort >../names
        cd ../run || exit
        places_of "${damage[@]}"
        rm -rf "$here/row.$id"
        : >"$here/done.$id"
    ) &
}

# again FILE COMMAND..: no tool reads the file; the command makes it again.
again()
{
    echo "$1" >>covered
    local command="${*:2}" status top=$1
    cp -a good run
    (
        cd run || exit
        head -c 7 "../good/$1" >"$1"
        try
        [ "$status" = 0 ] || fail "$1: $(cat stderr)"
        cmp "$1" "../good/$1" || fail "not made again: $*"
    ) || exit
    rm -rf run
    echo "made again $1" >>answers.again
}

row heal h/hessian.json "$collect -o h"
row heal 'h/layer_*' "$collect -o h"
row heal h/outputs.safetensors "$collect --outputs 1 -o h"
row heal 'h/holdout/*' "$collect -o h"
row heal h/lock "$collect -o h"
row heal hs/hidden.state "${collect/--layers 0-0/--layers 0-1} -o hs"
row heal hg/saliency.state "${collect/--layers 0-0/--layers 0-1} --weights guided -o hg"
row read 'h5/*.*' "$hessian" --show h5
row read 'h5/holdout/*' "${budget/-H h5/-H h5/holdout}" --dry-run
row read h5/lock "$hessian" --show h5
row read 'imported/*.*' "$hessian" --export imported -o out
row read 'h/*.*' "$work -o out"
row read 'pt/*' "$hessian" --import pt -o out
row read 'pt-inverse/*' "$hessian" --import pt-inverse -o out
row heal w/quantize.json "$work -o w"
row heal 'w/layer_*' "$work -o w"
row heal w/report.jsonl "$work -o w"
row heal w/lock "$work -o w"
row heal 'wb/*.*' "$budget -o wb"
row heal wb/sensitivity.json "$budget -o wb"
row heal wb/lock "$budget -o wb"
row heal 'ws/*' "$sequential -o ws"
row heal 'wi/*' "$sequential -o wi"
row heal wi/hidden.state "$sequential -o wi"
row heal 't/*' "$tune -o t"
row heal 'ti/*' "$tune -o ti"
row heal 'tl/[!s]*' "$layer -o tl"
row read tl/self_text.safetensors "$layer -o tl"
row heal 'tli/*' "$layer -o tli"
row read 'w/layer_*' "$tune -o out"
row heal 'hs/*' "${collect/--layers 0-0/--layers 0-1} -o hs"
row heal 'hg/*' "${collect/--layers 0-0/--layers 0-1} --weights guided -o hg"
row heal 'hg/holdout/*' "${collect/--layers 0-0/--layers 0-1} --weights guided -o hg"
row heal 'hs/holdout/*' "${collect/--layers 0-0/--layers 0-1} -o hs"
row read w/quantize.json "$pack" w -o out
row read 'w/layer_*' "$pack" w -o out
row read a.vptq "$pack" a.vptq -o out
row strict a.vptq "$pack" --check a.vptq
row read base "$eval" kld -m a.vptq --base-file base --format json -t 1
row read_flip records.jsonl "$eval" compare records.jsonl --format json
row read_cut records.jsonl "$eval" compare records.jsonl --format json
row read_flip records.jsonl "$serve -o records.jsonl"
row redo_cut records.jsonl "$serve -o records.jsonl"
row read abl/ablate.json "$ablate -o abl"
row heal abl/lock "$ablate -o abl"
row heal abl/rows/a.json "$ablate -o abl"
row told abl/rows/a.seconds "$ablate -o abl --format json"
row heal 'abl/hessians/*' "$ablate -o abl"
row heal 'abl/work/a/*' "$ablate -o abl"
row read 'abl/packed/*' "$pack" abl/packed/a.vptq -o out
row strict 'p/[!S]*' "$pack" --check p
row told p/SHA256SUMS "$pack" --check p
row strict 'u/[!S]*' "$pack" --check u
row free 'p/*' "$ppl" -m p
row free 'u/*' "$ppl" -m u
row free u.gguf "$ppl" -m u.gguf
row free run.json "$quantize" --config run.json -o w
wait
for ((n = 1; n <= id; n++)); do [ -e "done.$n" ] || exit 1; done
again losses "$ppl" -m a.vptq --dump losses -f
again samples.jsonl "$samples" --samples samples.jsonl -f
again errors.csv "$errors" -o errors.csv -f
again page.html "$eval" compare records.jsonl --format html -o page.html -f
again table.md "$ablate" -o abl --report table.md -f

# ---- nothing without a row ----
sort -u covered >rows.txt
(cd good && find . -type f -printf '%P\n') | sort | comm -23 - rows.txt >new
[ ! -s new ] || fail "no row for what the tools wrote: $(cat new)"
# What the pipeline above does not write shows here: a source file that begins to write needs a row, then its name.
# (No tool reads what cmd/cli/log.c appends to.)
cat >writers <<'END'
cmd/cli/log.c
cmd/cli/print.c
formats/gguf/write.c
formats/hf/safetensors_write.c
formats/json.c
formats/torch/zip.c
formats/vocab/write.c
formats/vptq/archive_write.c
formats/vptq/kld_base.c
hessian/dir.c
hessian/hidden_states.c
lib/ablate/ablate.c
lib/ablate/figures.c
lib/bench/serve_log.c
lib/eval/task_table.c
lib/eval/texts.c
lib/pack/pack.c
lib/pack/package.c
lib/pack/sums.c
lib/quantize/manifest.c
lib/quantize/rows.c
lib/quantize/sensitivity.c
lib/quantize/share.c
lib/quantize/tune_files.c
lib/vptq.c
lib/vptq_config.c
END
(cd "$SRC" && grep -rlE '(_file_writer|vptq_writer)_open\(|vptq_file_(replace|unnamed)\(|vptq_json_save|O_CREAT|fopen\([^)]*"[wa]' \
    --include='*.c' cmd formats hessian kmeans lib | grep -v '^lib/base/' | LC_ALL=C sort) | diff writers - >new ||
    fail "other sources write files than those with rows: $(grep '^[<>]' new)"
sort answers.* | uniq -c >bit_rot.log
