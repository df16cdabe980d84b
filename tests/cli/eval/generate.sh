# Greedy text is the golden text byte for byte; samples depend on the seed only.
model=$(data models/stories260K/stories260K.bin)
tok=$(data models/stories260K/tok512.bin)
golden=$(data golden/stories260K_greedy200.txt)
run() { "$BIN/vptq-eval" generate -m "$model" --tokenizer "$tok" -q "$@"; }

run -n 200 >out.txt
{ cat "$golden"; echo; } >want.txt
expect_same out.txt want.txt

# The prompt is printed, then the continuation.
run -p 'Once upon a time' -n 190 >prompt.txt
head -c 300 want.txt >a
head -c 300 prompt.txt >b
expect_same a b

run -n 40 --temperature 0.9 --seed 1 >one.txt
run -n 40 --temperature 0.9 --seed 1 -t 1 >again.txt
run -n 40 --temperature 0.9 --seed 2 >two.txt
expect_same one.txt again.txt
! cmp -s one.txt two.txt || fail "the seed changes nothing"

run -p 'Once upon' -n 5 --format json >out.json
[ "$(json_get prompt out.json)" = 'Once upon' ] || fail "$(cat out.json)"
[ "$(json_get text out.json)" = ' a time, there was' ] || fail "$(cat out.json)"
[ "$(json_get tokens out.json)" = 8 ] || fail "$(cat out.json)"
expect_number "$(json_get tokens_per_second out.json)" '>' 0
