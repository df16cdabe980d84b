/* Byte-level pre-tokenizers by the names that GGUF files use (tokenizer.ggml.pre). */
#include <string.h>

#include "formats/vocab/internal.h"
#include "lib/base/text.h"

#define GPT2                                                                                   \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

#define LLAMA3                                                                                 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"                  \
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

#define QWEN2                                                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"                       \
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define TEKKEN                                                                                 \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER        \
    "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

typedef struct pre_row {
    const char *name;
    const char *patterns[4]; /* one isolating split after the other */
    bool digits;             /* every digit alone before the patterns */
    bool nfc, ignore_merges, add_bos;
} pre_row;

static const pre_row rows[] = {
    /* what llama.cpp falls back to when a file names none */
    {"default",
     {"[\\p{P}\\$\\+<=>\\^\\~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"},
     .add_bos = false},
    {"gpt-2", {GPT2}, .add_bos = false},
    {"smollm", {GPT2}, .digits = true},
    {"starcoder", {GPT2}, .digits = true},
    {"refact", {GPT2}, .digits = true},
    {"llama-bpe", {LLAMA3}, .ignore_merges = true, .add_bos = true},
    {"llama3", {LLAMA3}, .ignore_merges = true, .add_bos = true},
    {"llama-v3", {LLAMA3}, .ignore_merges = true, .add_bos = true},
    {"qwen2", {QWEN2}, .nfc = true},
    {"deepseek-r1-qwen", {QWEN2}, .nfc = true},
    {"tekken", {TEKKEN}, .ignore_merges = true, .add_bos = true},
};

const char *vptq_pattern_gpt2(void)
{
    return GPT2;
}

vptq_status vptq_vocab_pre(vptq_vocab *v, const char *name, size_t len, bool *bos,
                           vptq_err *err)
{
    const pre_row *row = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (vptq_text_is(name, len, rows[i].name))
            row = &rows[i];
    }
    if (!row)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: the pre-tokenizer '%.*s' is not known; known are default, gpt-2, "
                         "smollm, starcoder, refact, llama-bpe, llama3, llama-v3, qwen2, "
                         "deepseek-r1-qwen, tekken",
                         v->source, len < 100 ? (int)len : 100, name);
    v->ignore_merges = row->ignore_merges;
    *bos = row->add_bos;
    if (row->nfc)
        VPTQ_CHECK(vptq_vocab_add_norm(v, (vptq_norm){.kind = VPTQ_NORM_NFC}, err));
    if (row->digits)
        VPTQ_CHECK(vptq_vocab_add_split(
            v, (vptq_split){.kind = VPTQ_SPLIT_DIGITS, .individual = true}, err));
    for (size_t i = 0; i < 4 && row->patterns[i]; i++)
        VPTQ_CHECK(vptq_vocab_add_split(
            v, (vptq_split){.kind = VPTQ_SPLIT_ISOLATED, .pattern = row->patterns[i]}, err));
    return VPTQ_OK;
}
