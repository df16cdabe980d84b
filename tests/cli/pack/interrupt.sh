# SIGINT and SIGKILL while writing: no partial output.  The model is one large tensor of zeros in a
# sparse file.
config=$(data models/stories260K-hf/config.json)
mkdir big
cp "$config" big/config.json
chmod u+w big/config.json
bytes=$((262144 * 1024 * 2))
header='{"model.embed_tokens.weight":{"dtype":"F16","shape":[262144,1024],"data_offsets":[0,'$bytes']}}'
while [ $((${#header} % 8)) -ne 0 ]; do header="$header "; done
{ printf '%b' "\\$(printf %03o ${#header})\\0\\0\\0\\0\\0\\0\\0"; printf %s "$header"; } \
    > big/model.safetensors
truncate -s $((8 + ${#header} + bytes)) big/model.safetensors

old=none # the temporary directory of a killed run
started() { compgen -G "$1.tmp.*/model.safetensors*" | grep -qv "^$old/"; }
# begin OUT: starts a run in the background and waits until it writes
begin()
{
    "$BIN/vptq-pack" -q --unpack big -o "$1" --dtype f32 > out.txt 2> err.txt &
    pid=$!
    wait_for 60 started "$1"
}

begin stopped
interrupt "$pid"
expect_line err.txt "interrupted"
[ ! -e stopped ] || fail "an output after SIGINT"
no_leftovers .

begin killed
kill_and_wait "$pid"
[ ! -e killed ] || fail "an output after SIGKILL"
# the next run with the same output cleans up
old=$(compgen -G 'killed.tmp.*')
begin killed
[ "$(find . -maxdepth 1 -name 'killed.tmp.*' | wc -l)" = 1 ] || fail "the old temporary is there"
interrupt "$pid"
no_leftovers .
