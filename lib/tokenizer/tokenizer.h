/* Internal: text to token ids and back with a vptq_vocab, by byte-level or SentencePiece-style
 * BPE. */
#ifndef VPTQ_TOKENIZER_TOKENIZER_H
#define VPTQ_TOKENIZER_TOKENIZER_H

#include "formats/vocab/vocab.h"
#include "lib/base/buf.h"
#include "lib/base/ctx.h"

typedef struct vptq_tokenizer vptq_tokenizer;

/* Prepares a vocabulary, which must outlive the tokenizer, as must memory and cancel flag of
 * ctx (NULL: plain allocation, no flag). VPTQ_E_FORMAT if it cannot encode (a byte without a
 * symbol, a pattern that does not compile). */
vptq_status vptq_tokenizer_open(const vptq_ctx *ctx, const vptq_vocab *vocab,
                                vptq_tokenizer **t, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_tokenizer_close(vptq_tokenizer *t); /* accepts NULL */

typedef struct vptq_ids {
    vptq_mem *mem;
    int32_t *data;
    size_t count, cap;
} vptq_ids;
void vptq_ids_init(vptq_ids *ids, vptq_mem *mem);
void vptq_ids_release(vptq_ids *ids);
vptq_status vptq_ids_add(vptq_ids *ids, const int32_t *more, size_t n,
                         vptq_err *err) VPTQ_MUST_CHECK;
/* Checks that all ids are below `vocab`. VPTQ_E_FORMAT with `file`, position and id otherwise:
 * a tokenizer or a token file of another model. */
vptq_status vptq_ids_check(const int32_t *ids, size_t n, uint32_t vocab, const char *file,
                           vptq_err *err) VPTQ_MUST_CHECK;

typedef enum {
    VPTQ_ENCODE_BOS = 1, /* BOS (and EOS) if the tokenizer adds them */
    VPTQ_ENCODE_SPECIAL =
        2 /* special tokens written in the text become their ids; without it they
             are plain text (non-special added tokens are always recognized) */
} vptq_encode_flags;

/* Appends the ids of text [len]. Any bytes are allowed; invalid UTF-8 is encoded as bytes. The
 * work and the text that normalizers make are bounded in proportion to len (VPTQ_E_FORMAT); the
 * flag of vptq_tokenizer_open stops the call (VPTQ_E_CANCELLED). */
vptq_status vptq_tokenizer_encode(const vptq_tokenizer *t, const char *text, size_t len,
                                  unsigned flags, vptq_ids *out, vptq_err *err) VPTQ_MUST_CHECK;

/* Appends the text of the ids: special tokens as their text if `special`, else as nothing.
 * While *start is true the text is still empty, and the space that encoding adds at the start
 * of a text is dropped; the call clears it, so that a text can be decoded id by id. The bytes
 * of an id may end inside a character. VPTQ_E_ARG for an id outside the vocabulary. */
vptq_status vptq_tokenizer_decode(const vptq_tokenizer *t, const int32_t *ids, size_t n,
                                  bool *start, bool special, vptq_buf *out,
                                  vptq_err *err) VPTQ_MUST_CHECK;

#endif
