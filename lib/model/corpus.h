/* Internal: reads texts and token files as ids, and chooses windows of them. */
#ifndef VPTQ_MODEL_CORPUS_H
#define VPTQ_MODEL_CORPUS_H

#include "lib/tokenizer/tokenizer.h"
#include "lib/vptq.h"

typedef struct vptq_corpus {
    vptq_ids ids;
    const char *name;     /* of the first file, for messages; owned by the caller */
    char fingerprint[17]; /* hex of XXH3 over the ids */
} vptq_corpus;

/* `t` may be NULL if only token files are given.  Every id must be below `vocab`. */
vptq_status vptq_corpus_load(const vptq_ctx *ctx, const vptq_corpus_options *opt,
                             const vptq_tokenizer *t, uint32_t vocab, vptq_corpus *c,
                             vptq_err *err) VPTQ_MUST_CHECK;
void vptq_corpus_release(vptq_corpus *c);
/* VPTQ_E_ARG if writing `output` would replace one of the files. */
vptq_status vptq_corpus_check_output(const vptq_corpus_options *opt, const char *output,
                                     vptq_err *err) VPTQ_MUST_CHECK;

/* Splits the one text of `opt` at `separator` into documents, without white space at their ends
 * and without empty ones, and encodes each with BOS if the tokenizer adds one.  offsets [*count
 * + 1] into ids. */
vptq_status vptq_corpus_documents(const vptq_ctx *ctx, const vptq_corpus_options *opt,
                                  const char *separator, const vptq_tokenizer *t,
                                  uint32_t vocab, vptq_arena *arena, vptq_ids *ids,
                                  size_t **offsets, size_t *count,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* Start positions of `want` windows of `length` ids, ascending: of the floor(ids / length)
 * windows without overlap, all if there are no more than want, else `want` drawn without
 * replacement by seed.  VPTQ_E_FORMAT with both numbers for a corpus shorter than one window.
 */
vptq_status vptq_corpus_sample(const vptq_corpus *c, size_t length, size_t want, uint64_t seed,
                               vptq_arena *arena, size_t **starts, size_t *count,
                               vptq_err *err) VPTQ_MUST_CHECK;

#endif
