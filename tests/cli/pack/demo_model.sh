# The tokenizer unpacked from a real GGUF file is the one in it.
[ -n "${VPTQ_DEMO_GGUF-}${VPTQ_DEMO_F16-}" ] ||
    skip "VPTQ_DEMO_GGUF and VPTQ_DEMO_F16 do not name the demo model"
text=$(data text/wikitext2/wiki.test.raw)
ids() { "$BIN/vptq-eval" ppl -q -m "$1" --text "$text" --tokens-only; }
ids "$VPTQ_DEMO_GGUF" > gguf.ids
ids "$VPTQ_DEMO_F16" > f16.ids
[ "$(wc -l < gguf.ids)" -gt 200000 ] || fail "$(wc -l < gguf.ids) ids"
expect_same gguf.ids f16.ids
