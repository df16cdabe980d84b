/* Encodes and decodes with an accepted vocabulary, for the targets that read one. */
#ifndef VPTQ_TESTS_FUZZ_FUZZ_ENCODE_H
#define VPTQ_TESTS_FUZZ_FUZZ_ENCODE_H

#include "lib/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz_input.h"

static inline void fuzz_encode(const vptq_tokenizer *t, const vptq_vocab *v, const char *text,
                               size_t len, unsigned flags)
{
    vptq_err err;
    vptq_ids ids;
    vptq_buf back;
    bool start = true;
    vptq_ids_init(&ids, NULL);
    vptq_buf_init(&back, NULL);
    if (!vptq_tokenizer_encode(t, text, len, flags, &ids, &err)) {
        for (size_t i = 0; i < ids.count; i++)
            if (ids.data[i] < 0 || (uint32_t)ids.data[i] >= v->count)
                abort();
        if (vptq_tokenizer_decode(t, ids.data, ids.count, &start, true, &back, &err))
            abort();
    }
    vptq_buf_release(&back);
    vptq_ids_release(&ids);
}

/* Encodes a text with all kinds of characters and the beginning of the input; releases v. */
static inline void fuzz_use_vocab(vptq_vocab *v, const uint8_t *data, size_t size)
{
    static const char text[] = "the <s>then</s>  a 123 e\xcc\x81\xe2\x96\x81\xff\xf0 in.\r\n\n";
    vptq_err err;
    vptq_tokenizer *t = NULL;
    if (!vptq_tokenizer_open(NULL, v, &t, &err)) {
        fuzz_encode(t, v, text, sizeof text, VPTQ_ENCODE_BOS);
        fuzz_encode(t, v, text, sizeof text, VPTQ_ENCODE_BOS | VPTQ_ENCODE_SPECIAL);
        fuzz_encode(t, v, (const char *)data, size < 256 ? size : 256, VPTQ_ENCODE_SPECIAL);
    }
    vptq_tokenizer_close(t);
    vptq_vocab_release(v);
}

#endif
