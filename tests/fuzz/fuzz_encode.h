/* Encodes and decodes with an accepted vocabulary, for the targets that read one. */
#ifndef VPTQ_TESTS_FUZZ_FUZZ_ENCODE_H
#define VPTQ_TESTS_FUZZ_FUZZ_ENCODE_H

#include "formats/vocab/internal.h"
#include "lib/base/utf8.h"
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

/* A vocabulary of the 256 byte symbols, whose ids are the bytes. */
typedef struct fuzz_bytes {
    vptq_piece pieces[256];
    char text[256][5];
} fuzz_bytes;

static inline void fuzz_bytes_fill(fuzz_bytes *f, vptq_vocab *v)
{
    for (int b = 0; b < 256; b++) {
        size_t len = vptq_utf8_encode(vptq_byte_symbol((uint8_t)b), f->text[b]);
        f->text[b][len] = 0;
        f->pieces[b] = (vptq_piece){f->text[b], (uint32_t)len, 0, VPTQ_PIECE_NORMAL};
    }
    v->kind = VPTQ_VOCAB_BYTE_BPE;
    v->pieces = f->pieces;
    v->count = 256;
    v->bos = v->eos = v->unk = -1;
}

/* Aborts unless the text becomes its bytes, or encoding fails. */
static inline void fuzz_expect_bytes(const vptq_tokenizer *t, const char *text, size_t len)
{
    vptq_ids ids;
    vptq_ids_init(&ids, NULL);
    if (!vptq_tokenizer_encode(t, text, len, 0, &ids, NULL)) {
        if (ids.count != len)
            abort();
        for (size_t i = 0; i < len; i++)
            if (ids.data[i] != (unsigned char)text[i])
                abort();
    }
    vptq_ids_release(&ids);
}

#endif
