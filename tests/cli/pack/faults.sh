# Failing file-system calls while outputs are written (tests/cli/common/faults.sh).
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
text=$(data text/tinystories/tiny.utf8)
"$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c "$text" -n 2 -l 256 -o h -qq > /dev/null
"$BIN/vptq-quantize" -m "$model" --tokenizer "$tok" -H h -o w -k 16 --kmeans-iterations 2 --refits 0 \
    --retrain 0 --sweeps 0 -qq > /dev/null

pack=("$BIN/vptq-pack" w --tokenizer "$tok" -qq)
"${pack[@]}" -o packed > /dev/null
expect_faults out packed "${pack[@]}" -o out
"${pack[@]}" -o packed.vptq --to archive > /dev/null
expect_faults out.vptq packed.vptq "${pack[@]}" -o out.vptq --to archive
unpack=("$BIN/vptq-pack" --unpack packed.vptq -qq)
"${unpack[@]}" -o plain > /dev/null
expect_faults out plain "${unpack[@]}" -o out
