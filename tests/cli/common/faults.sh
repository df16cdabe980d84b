# File system calls that fail or are incomplete: every command reports one sentence, leaves no
# partial output, and repeats interrupted or short calls.
needs_own_machine "thousands of commands take hours"
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
# compressed: it is read in pieces
gzip -nc "$(data text/tinystories/tiny.utf8)" >text.gz

collect=("$BIN/vptq-hessian" -m "$model" --tokenizer "$tok" -c text.gz -n 4 -l 256 --layers 0-0
    --mem 6M -t 2 -qq)
"${collect[@]}" -o h > /dev/null
expect_faults out h "${collect[@]}" -o out -f

quantize=("$BIN/vptq-quantize" -m "$model" -H h --layers 0-0 -k 16 -t 2 -qq)
"${quantize[@]}" -o w > /dev/null
expect_faults out w "${quantize[@]}" -o out
