# SIGINT and SIGKILL while writing: no partial output.  The model is one large tensor of zeros in a
# sparse file.
config=$(data models/stories260K-hf/config.json)
mkdir big
sed 's/"hidden_size": 64/"hidden_size": 1024/; s/"vocab_size": 512/"vocab_size": 262144/
    s/"num_hidden_layers": 5/"num_hidden_layers": 1/' "$config" > big/config.json
header='{' bytes=0
# add NAME ROWS [COLUMNS]: adds a tensor of F16 to the header
add()
{
    local end=$((bytes + $2 * ${3:-1} * 2))
    header="$header\"model.$1.weight\":{\"dtype\":\"F16\",\"shape\":[$2${3:+,$3}],\"data_offsets\":[$bytes,$end]},"
    bytes=$end
}
add embed_tokens 262144 1024
add layers.0.self_attn.q_proj 64 1024
add layers.0.self_attn.k_proj 32 1024
add layers.0.self_attn.v_proj 32 1024
add layers.0.self_attn.o_proj 1024 64
add layers.0.mlp.gate_proj 172 1024
add layers.0.mlp.up_proj 172 1024
add layers.0.mlp.down_proj 1024 172
add layers.0.input_layernorm 1024
add layers.0.post_attention_layernorm 1024
add norm 1024
header=${header%,}'}'
while [ $((${#header} % 8)) -ne 0 ]; do header="$header "; done
{
    for shift in 0 8 16 24; do printf '%b' "\\$(printf %03o $((${#header} >> shift & 255)))"; done
    printf '\0\0\0\0%s' "$header"
} > big/model.safetensors
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
