/* Text <-> ids with a vptq_vocab: byte-level BPE and SentencePiece-style BPE. */
#ifndef VPTQ_TOKENIZER_TOKENIZER_H
#define VPTQ_TOKENIZER_TOKENIZER_H

#include "formats/vocab/vocab.h"
#include "lib/base/buf.h"
#include "lib/base/ctx.h"

typedef struct vptq_tokenizer vptq_tokenizer;

/* Compiles the vocabulary (which must outlive the tokenizer).  VPTQ_E_FORMAT for one that
 * cannot encode (a byte without a symbol, a pattern that does not compile). */
vptq_status vptq_tokenizer_open(const vptq_vocab *vocab, vptq_mem *mem, vptq_tokenizer **t,
                                vptq_err *err) VPTQ_MUST_CHECK;
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
/* Whether all are ids of a vocabulary of so many entries; VPTQ_E_FORMAT naming `file`, the
 * place and the id: a tokenizer or a token file of another model. */
vptq_status vptq_ids_check(const int32_t *ids, size_t n, uint32_t vocab, const char *file,
                           vptq_err *err) VPTQ_MUST_CHECK;

typedef enum {
    VPTQ_ENCODE_BOS = 1, /* BOS (and EOS) if the tokenizer adds them */
    VPTQ_ENCODE_SPECIAL =
        2 /* special tokens written in the text become their ids; without it they
             are plain text (non-special added tokens are always recognized) */
} vptq_encode_flags;

/* Appends the ids of text [len]; any bytes are allowed (invalid UTF-8 goes through as bytes).
 */
vptq_status vptq_tokenizer_encode(const vptq_tokenizer *t, const char *text, size_t len,
                                  unsigned flags, vptq_ids *out, vptq_err *err) VPTQ_MUST_CHECK;

/* Appends the bytes of the ids, as the model's users see them: special tokens as their text
 * when `special`, else nothing.  *start: nothing of the text came before these ids, so that the
 * space that encoding puts in front of a text is dropped from its first one; false from the
 * first id on that begins the text, so that a text can be decoded id by id.  An id's bytes may
 * end within a character.  An id outside the vocabulary is VPTQ_E_ARG. */
vptq_status vptq_tokenizer_decode(const vptq_tokenizer *t, const int32_t *ids, size_t n,
                                  bool *start, bool special, vptq_buf *out,
                                  vptq_err *err) VPTQ_MUST_CHECK;

#endif
