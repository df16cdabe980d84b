# README.md shows the recorded digests of the demo's models, and the demo compares, fails and records.  Tools that
# only pretend stand in for the real ones: DIGESTS says what vptq-pack --digest prints.
grep '^vptq1:' "$SRC/docs/results/digests.txt" >recorded.txt
[ "$(wc -l <recorded.txt)" = 2 ] || fail "not two digests"
while read -r digest settings; do
    [[ $digest =~ ^vptq1:[0-9a-f]{64}$ ]] || fail "not a digest: $digest"
    grep -q -x -F "| \`$settings\` | \`$digest\` |" "$SRC/README.md" || fail "README.md does not show $digest"
done <recorded.txt
[ "$(grep -c 'vptq1:' "$SRC/README.md")" = 2 ] || fail "README.md shows others"

mkdir -p tree/scripts tree/docs/results tree/bin demo
cp "$SRC"/scripts/{demo,fetch_demo}.sh tree/scripts
cp "$SRC/docs/results/digests.txt" tree/docs/results
cp "$SRC/README.md" tree
echo model >demo/model.gguf
echo calibrate >demo/calib.txt
echo evaluate >demo/eval.txt
cat >tree/bin/tool <<'TOOL'
#!/usr/bin/env bash
last=${*: -1}
case "$(basename "$0") $*" in
*--digest*) sed -n "$((${last##*-} + 1))p" <<<"$DIGESTS" ;;
*" ppl "*) echo '{"ppl": 20.0, "ppl_stderr": 0.1, "windows": 8, "bits_per_weight": 3.0, "tokens_per_second": 9.0}' ;;
*--unpack*) echo '{"total_bytes": 269030550, "seconds": 0}' ;;
vptq-pack*) mkdir -p "$3" && echo weights >"$3/model.safetensors" ;;
esac
TOOL
chmod +x tree/bin/tool
for tool in hessian quantize pack eval; do
    ln -s tool "tree/bin/vptq-$tool"
done
sed -i "s/^text .*/text $(sha256sum <demo/calib.txt | cut -d' ' -f1)/" tree/docs/results/digests.txt
demo() { BIN=$PWD/tree/bin DEMO_DIR=$PWD/demo MODEL='' TEXT='' SETTINGS='' DIGESTS=$1 tree/scripts/demo.sh >out.txt 2>err.txt; }
one=$(sed -n '1s/ .*//p' recorded.txt)
two=$(sed -n '2s/ .*//p' recorded.txt)
other=vptq1:$(printf '%064d' 7)

demo "$one"$'\n'"$two" || fail "the recorded digests: $(cat err.txt)"
expect_line out.txt '^original in float16  *the same  *16.000  *269.0 MB$'
expect_line out.txt "^-b 3.1 --allocate kl: $one, as recorded$"
expect_line out.txt "^-b 4.1 --allocate kl: $two, as recorded$"
expect_exit 1 demo "$one"$'\n'"$other"
expect_line out.txt "^-b 3.1 --allocate kl: $one, as recorded$"
expect_line out.txt "^-b 4.1 --allocate kl: $other, EXPECTED $two$"
expect_line err.txt '^demo: these are not the bytes that docs/results/digests.txt records'
RECORD=1 demo "$one"$'\n'"$other" || fail "RECORD=1: $(cat err.txt)"
expect_line out.txt "^-b 4.1 --allocate kl: $other, recorded$"
sed "s/$two/$other/" "$SRC/README.md" >want.md
expect_same want.md tree/README.md
expect_line tree/docs/results/digests.txt "^$other -b 4.1 --allocate kl$"
demo "$one"$'\n'"$other" || fail "after recording: $(cat err.txt)"
# Another text: nothing to compare with.
sed -i "s/^text .*/text $(printf '%064d' 0)/" tree/docs/results/digests.txt
demo "$two"$'\n'"$one" || fail "another text: $(cat err.txt)"
expect_line err.txt '^demo: the recorded digests are of another text'
expect_line out.txt "^-b 3.1 --allocate kl: $two$"
