# shellcheck disable=SC2016 # ranks expand their number themselves
# Four ranks on two hosts, which are network namespaces: the bytes of one process, traffic as docs/scale.md computes it,
# and an end when the link is cut.
needs_ranks
case $("$BIN/vptq-quantize" --version) in *ompi*) ;; *) skip "hosts are set up for Open MPI" ;; esac
[ "$(id -u)" = 0 ] || skip "needs root to make network namespaces"
command -v ip >/dev/null || skip "needs ip (iproute2)"
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
packed=$(data golden/vptq_model_stories260K)
original=$(data models/stories260K-hf)
tag=$$
top=$PWD
net=10.77.$((tag % 250))

clean()
{
    local i
    for i in 1 2; do
        ip netns pids "vptq$tag-$i" 2>/dev/null | xargs -r kill -9 2>/dev/null
        ip netns del "vptq$tag-$i" 2>/dev/null
    done
    ip link del "vb$tag" 2>/dev/null
    true
}
trap clean EXIT
ip link add "vb$tag" type bridge 2>/dev/null || skip "cannot make a bridge here"
ip addr add "$net.254/24" dev "vb$tag"
ip link set "vb$tag" up
for i in 1 2; do
    ip netns add "vptq$tag-$i" || skip "cannot make network namespaces here"
    ip link add "v$tag-$i" type veth peer name eth0 netns "vptq$tag-$i"
    ip link set "v$tag-$i" master "vb$tag" up
    ip -n "vptq$tag-$i" addr add "$net.$i/24" dev eth0
    ip -n "vptq$tag-$i" link set eth0 up
    ip -n "vptq$tag-$i" link set lo up
    echo "$net.$i slots=2" >>hosts
done

# What Open MPI calls in place of ssh: HOST COMMAND.. in the namespace, with a host name of its own.
cat >agent <<EOF
#!/bin/sh
host=\${1##*.}; shift
exec ip netns exec vptq$tag-\$host unshare -u sh -c "hostname host\$host; \$*"
EOF
chmod +x agent
keepalive=() # by default after minutes: no traffic in short runs
on_hosts()
{
    ranks 4 --mca plm_rsh_agent "$top/agent" --mca oob_tcp_if_include "$net.0/24" --mca btl_tcp_if_include "$net.0/24" \
        --mca btl tcp,self --mca pml ob1 "${keepalive[@]}" --hostfile "$top/hosts" "$@"
}
# compare NAME TOOL ARGUMENT..: prints and writes the same in both ways, each in a directory of its own.
compare()
{
    local name=$1 way
    shift
    mkdir -p "one/$name" "four/$name"
    for way in one four; do
        [ "$way" = one ] || set -- on_hosts "$@"
        (cd "$way/$name" && "$@" >printed 2>err.txt) || fail "$name, $way: $(cat "$way/$name/err.txt")"
        sed -i -E 's/"([a-z_]*seconds|tokens_per_second)": (\{[^}]*\}|[^,}]*)//g' "$way/$name/printed"
        rm -rf "$way/$name/err.txt" "$way/$name"/out/{lock,report.json,rows/*.seconds}
    done
    expect_same "one/$name" "four/$name"
}

# traffic TOOL ARGUMENT..: sets `bytes` to those that the link of host 2 carries, both ways together.
traffic()
{
    local statistics=/sys/class/net/v$tag-2/statistics before
    before=$(($(cat "$statistics"/[rt]x_bytes | paste -s -d +)))
    on_hosts "$@" >/dev/null
    bytes=$(($(cat "$statistics"/[rt]x_bytes | paste -s -d +) - before))
}

# traffic_of_run TOOL ARGUMENT..: sets `bytes` to what a run sends beyond a start, which is that of a finished run.
traffic_of_run()
{
    local run
    traffic "$@"
    run=$bytes
    traffic "$@"
    bytes=$((run - bytes))
}

on_hosts sh -c hostname | sort >names.txt
[ "$(uniq names.txt | wc -l)" = 2 ] || fail "not two hosts: $(cat names.txt)"

args=(-m "$model" --tokenizer "$tok" -t 1 -q)
calibrate=(-c "$text" -n 40 -l 64 --holdout 0.2) # 32 windows to learn from: a chunk for every rank
hessian=("$BIN/vptq-hessian" "${args[@]}" "${calibrate[@]}" --format json)
quantize=("$BIN/vptq-quantize" "${args[@]}" --format json)
eval=(-m "$model" --tokenizer "$tok" -t 1 -q --format json --text "$text")
compare hessian "${hessian[@]}" -o out
hessians=$PWD/one/hessian/out
compare quantize "${quantize[@]}" -k 64 -H "$hessians" -o out
compare sequential "${quantize[@]}" "${calibrate[@]}" --sequential -k 64 -o out
compare budget "${quantize[@]}" -H "$hessians" -b 3 --allocate kl --allocate-text "$text" --allocate-windows 1 \
    --allocate-length 64 -o out
compare ppl "$BIN/vptq-eval" ppl "${eval[@]}" --context 64 --windows 40 --dump losses
compare kld "$BIN/vptq-eval" kld -m "$packed" --base "$original" -t 1 -q --format json --text "$text" --context 64 \
    --windows 20
cat >rows.json <<'EOT'
[{"name": "original", "original": true}, {"name": "v4", "settings": {"vector_length": 4, "centroids": 16}},
 {"name": "v2", "settings": {"vector_length": 2, "centroids": 8}}]
EOT
compare ablate "$BIN/vptq-eval" ablate "${eval[@]}" -H "$hessians" --table "$PWD/rows.json" --context 64 \
    --text-windows 4 --no-seconds -o out

# Each host sends the other two triangles of every sum, 8 n^2 + 8 n bytes, twice the sums of inputs and of their
# absolute values, 32 n, and twice the ranges of four chunks, 128 n; the weighted sum of k and v has no ranges.
# Headers, acknowledgements and agreements add 2 or 3 percent.
calibrate=(-c "$text" -n 32 -l 64)
traffic_of_run "$BIN/vptq-hessian" "${args[@]}" "${calibrate[@]}" -o "$PWD/h"
want=0
for n in 64 64 64 172; do
    want=$((want + 5 * 2 * (8 * n * n + 168 * n)))
done
want=$((want + 5 * 2 * (8 * 64 * 64 + 40 * 64)))
expect_number "$bytes" ">=" "$want"
expect_number "$bytes" "<=" "$((want + want / 10))"
# A matrix is a request and an answer of 8 bytes: two messages with their headers and acknowledgements, some KB in all.
# Two starts do not send quite the same; the files of matrices would be far more.
traffic_of_run "${quantize[@]}" -k 64 -H "$hessians" -o "$PWD/q"
expect_number "$bytes" "<=" "$(($(cat q/*.safetensors | wc -c) / 3))"

# The link between the hosts is cut while they work: Open MPI notices by its keepalive messages and ends the run.
keepalive=(--mca oob_tcp_keepalive_time 2 --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 3)
args+=(-v 8 -k 1024 -r 256)
"$BIN/vptq-quantize" "${args[@]}" -H "$hessians" -o large >/dev/null
on_hosts "$BIN/vptq-quantize" "${args[@]}" -H "$hessians" -o "$PWD/cut" >out.txt 2>&1 &
job=$!
wait_for 60 sh -c 'ls cut/*.safetensors >/dev/null 2>&1'
ip link set "v$tag-2" down
status=0
wait "$job" || status=$?
[ "$status" -ne 124 ] || fail "hangs without the link: $(cat out.txt)"
[ "$status" -ne 0 ] || [ -e cut/report.jsonl ] || fail "status 0 without a report"
for i in 1 2; do
    ip netns pids "vptq$tag-$i" | xargs -r kill -9 2>/dev/null || true
done
when_free "$BIN/vptq-quantize" "${args[@]}" -H "$hessians" -o cut
expect_same large cut
