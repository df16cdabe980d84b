# Saved base logits are complete or absent, whichever file-system call fails.
model=$(data models/stories260K-hf)
head -c 1200 "$(data text/tinystories/tiny.utf8)" >text
record() { "$BIN/vptq-eval" kld --base "$model" --text text --context 32 --windows 2 --base-top 8 -q -t 1 "$@"; }
record --save-base good >/dev/null
expect_faults out good "$BIN/vptq-eval" kld --base "$model" --text text --context 32 --windows 2 \
    --base-top 8 -q -t 1 --save-base out -f
