/* Encodes any text with the pre-tokenizers of GGUF files: the first byte chooses one and what
 * goes with it, the rest is the text.  Without a normalizer the ids are the bytes of the text;
 * with one or with added tokens they are ids. */
#include <string.h>

#include "tests/fuzz/fuzz_encode.h"

static const char *const names[] = {"default", "gpt-2",  "smollm",
                                    "qwen2",   "tekken", "llama-bpe"};
enum { NAMES = sizeof names / sizeof names[0], NORMALIZED = 8, ADDED = 16, CHOICES = 32 };

/* Adds each kind of normalizer that needs no pattern of its own. */
static bool add_norms(vptq_vocab *v)
{
    static const vptq_norm norms[] = {
        {.kind = VPTQ_NORM_NFKC},
        {.kind = VPTQ_NORM_REPLACE, .pattern = "aa", .content = "bab"},
        {.kind = VPTQ_NORM_REGEX, .pattern = " {2,}|^x|y*$", .content = "z"},
        {.kind = VPTQ_NORM_STRIP, .left = true, .right = true},
        {.kind = VPTQ_NORM_LOWER},
        {.kind = VPTQ_NORM_NFD},
        {.kind = VPTQ_NORM_UNMARK},
        {.kind = VPTQ_NORM_PREPEND, .content = "."},
    };
    for (size_t i = 0; i < sizeof norms / sizeof norms[0]; i++)
        if (vptq_vocab_add_norm(v, norms[i], NULL))
            return false;
    return true;
}

/* The tokenizer of a first byte, made when it is first needed. */
static const vptq_tokenizer *tokenizer_of(unsigned choice, const vptq_vocab **vocab)
{
    static fuzz_bytes bytes;
    static vptq_vocab vocabs[CHOICES];
    static vptq_tokenizer *tokenizers[CHOICES];
    static bool failed[CHOICES];
    static vptq_added_token added[] = {
        {.id = 1, .text = "aa", .len = 2, .special = true},
        {.id = 2, .text = " ", .len = 1, .rstrip = true},
        {.id = 3, .text = "b", .len = 1, .lstrip = true, .normalized = true},
        {.id = 4, .text = "aab", .len = 3, .single_word = true},
    };
    vptq_vocab *v = &vocabs[choice];
    *vocab = v;
    if (tokenizers[choice] || failed[choice])
        return tokenizers[choice];
    const char *name = names[choice % 8 % NAMES];
    bool bos;
    if (vptq_vocab_begin(v, "fuzz", NULL, NULL))
        abort();
    fuzz_bytes_fill(&bytes, v);
    if (choice & ADDED) {
        v->added = added;
        v->added_count = sizeof added / sizeof added[0];
    }
    failed[choice] = vptq_vocab_pre(v, name, strlen(name), &bos, NULL) ||
                     ((choice & NORMALIZED) && !add_norms(v)) ||
                     vptq_tokenizer_open(NULL, v, &tokenizers[choice], NULL);
    return tokenizers[choice];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const vptq_vocab *v;
    const vptq_tokenizer *t = size ? tokenizer_of(data[0] % CHOICES, &v) : NULL;
    if (!t)
        return 0;
    const char *text = (const char *)data + 1;
    if (!v->norm_count && !v->added_count)
        fuzz_expect_bytes(t, text, size - 1);
    fuzz_encode(t, v, text, size - 1, VPTQ_ENCODE_SPECIAL);
    fuzz_encode(t, v, text, size - 1, 0);
    return 0;
}
