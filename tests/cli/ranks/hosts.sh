# shellcheck disable=SC2016 # ranks expand their number themselves
# Four ranks on two hosts, which are network namespaces: the same bytes, and an end when the link is cut.
needs_ranks
case $("$BIN/vptq-quantize" --version) in *ompi*) ;; *) skip "hosts are set up for Open MPI" ;; esac
[ "$(id -u)" = 0 ] || skip "needs root to make network namespaces"
command -v ip >/dev/null || skip "needs ip (iproute2)"
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
tag=$$
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
on_hosts()
{
    ranks 4 --mca plm_rsh_agent "$PWD/agent" --mca oob_tcp_if_include "$net.0/24" --mca btl_tcp_if_include "$net.0/24" \
        --mca btl tcp,self --mca pml ob1 --mca oob_tcp_keepalive_time 2 --mca oob_tcp_keepalive_intvl 1 \
        --mca oob_tcp_keepalive_probes 3 --hostfile hosts "$@"
}
args=(-m "$model" --tokenizer "$tok" -t 1 -q)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 8 -l 128 -o h -q
on_hosts sh -c hostname | sort >names.txt
[ "$(uniq names.txt | wc -l)" = 2 ] || fail "not two hosts: $(cat names.txt)"

"$BIN/vptq-quantize" "${args[@]}" -H h -k 64 -o one >/dev/null
on_hosts "$BIN/vptq-quantize" "${args[@]}" -H "$PWD/h" -k 64 -o "$PWD/four" >/dev/null
expect_same one four

# The link between the hosts is cut while they work: Open MPI notices by its keepalive messages and ends the run.
args+=(-v 8 -k 1024 -r 256)
"$BIN/vptq-quantize" "${args[@]}" -H h -o large >/dev/null
on_hosts "$BIN/vptq-quantize" "${args[@]}" -H "$PWD/h" -o "$PWD/cut" >out.txt 2>&1 &
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
wait_for 60 sh -c '"$@" >/dev/null 2>&1' sh "$BIN/vptq-quantize" "${args[@]}" -H h -o cut
expect_same large cut
