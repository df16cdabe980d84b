/* Internal to lib/eval: the saved logits of an original (formats/vptq/kld_base.h). */
#ifndef VPTQ_EVAL_SAVED_BASE_H
#define VPTQ_EVAL_SAVED_BASE_H

#include "formats/vptq/kld_base.h"
#include "lib/eval/kld.h"
#include "lib/eval/windows.h"

/* Makes the head of a file for the windows `w`, with opt->precision and opt->top. */
vptq_status vptq_saved_base_make_head(const vptq_ctx *ctx, const vptq_model *base,
                                      const vptq_kld_options *opt, const vptq_windows *w,
                                      vptq_kld_base_head *head, vptq_err *err) VPTQ_MUST_CHECK;

/* Whether the file can replace the original of `m` under these options; VPTQ_E_MISMATCH naming
 * the difference.  The options may lack a text: the file has its ids. */
vptq_status vptq_saved_base_check(const vptq_ctx *ctx, const vptq_kld_base_file *file,
                                  const vptq_model *m, const vptq_kld_options *opt,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* Buffers for a chunk of rows, in the arena given to open. */
typedef struct vptq_saved_base_rows {
    const vptq_ctx *ctx;
    const vptq_kld_base_head *head;
    size_t chunk;     /* rows */
    float *logits;    /* [chunk, vocab] */
    uint8_t *records; /* [chunk] */
    double *values;   /* [threads, entries]; values, ids and finite: for saving only */
    uint32_t *ids;    /* [threads, entries] */
    bool *finite;     /* [chunk] */
} vptq_saved_base_rows;

/* `save`: for saving rows, else for comparing.  ctx and head must outlive `b`. */
vptq_status vptq_saved_base_rows_open(vptq_saved_base_rows *b, const vptq_ctx *ctx,
                                      const vptq_kld_base_head *head, bool save,
                                      vptq_arena *arena, vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_saved_base_batch {
    vptq_forward *f;
    size_t rows, dim;
    const float *hidden;    /* [rows, dim] before the last norm of f */
    const int32_t *targets; /* [rows] */
} vptq_saved_base_batch;

/* Appends rows to a file.  *bad = the first row whose logits are not finite, from which on
 * nothing is written, or the number of rows. */
vptq_status vptq_saved_base_rows_save(vptq_saved_base_rows *b,
                                      const vptq_saved_base_batch *batch,
                                      vptq_kld_base_writer *w, size_t *bad,
                                      vptq_err *err) VPTQ_MUST_CHECK;

/* Compares rows of a model with the records from `first` on: out [rows]; tail [rows]: the
 * base's probability of all ids outside a record. */
vptq_status vptq_saved_base_rows_compare(vptq_saved_base_rows *b,
                                         const vptq_saved_base_batch *batch,
                                         const vptq_kld_base_file *file, uint64_t first,
                                         vptq_kld_token *out, double *tail,
                                         vptq_err *err) VPTQ_MUST_CHECK;

#endif
