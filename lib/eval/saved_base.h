/* A recorded base (formats/vptq/kld_base.h): its head made of an original and its windows, and
 * held against a model and a text; its rows made from the logits of an original, and held
 * against those of a model.  Internal to lib/eval. */
#ifndef VPTQ_EVAL_RECORDED_H
#define VPTQ_EVAL_RECORDED_H

#include "formats/vptq/kld_base.h"
#include "lib/eval/divergence.h"
#include "lib/eval/windows.h"

/* The head of a file for the windows `w`, which opt->precision and opt->top go into. */
vptq_status vptq_kld_base_head_make(const vptq_ctx *ctx, const vptq_model *base,
                                    const vptq_kld_options *opt, const vptq_windows *w,
                                    vptq_kld_base_head *head, vptq_err *err) VPTQ_MUST_CHECK;

/* Whether the file may stand in for the original of `m` with these options; VPTQ_E_MISMATCH
 * naming what differs.  A text may be left out: its ids are in the file. */
vptq_status vptq_kld_base_head_check(const vptq_ctx *ctx, const vptq_kld_base_file *file,
                                     const vptq_model *m, const vptq_kld_options *opt,
                                     vptq_err *err) VPTQ_MUST_CHECK;

/* Room for some rows at a time; lives in the arena that it was made in. */
typedef struct vptq_kld_base_rows {
    const vptq_ctx *ctx;
    const vptq_kld_base_head *head;
    size_t most;      /* rows at a time */
    float *logits;    /* [most][vocab] */
    uint8_t *records; /* [most][record] */
    double *values;   /* [threads][entries], for recording ... */
    uint32_t *ids;    /* [threads][entries] */
    bool *finite;     /* [most] */
} vptq_kld_base_rows;

/* `record`: rows are recorded, not compared.  ctx and head must outlive it. */
vptq_status vptq_kld_base_rows_open(vptq_kld_base_rows *b, const vptq_ctx *ctx,
                                    const vptq_kld_base_head *head, bool record,
                                    vptq_arena *arena, vptq_err *err) VPTQ_MUST_CHECK;

/* Records n rows: the states hidden [n, hidden] in front of the last norm of `f`, and the right
 * ids.  *bad: the first row whose logits are not finite, else n; nothing is written from it on.
 */
vptq_status vptq_kld_base_rows_record(vptq_kld_base_rows *b, vptq_forward *f, size_t n,
                                      size_t dim, const float *hidden, const int32_t *targets,
                                      vptq_kld_base_writer *w, size_t *bad,
                                      vptq_err *err) VPTQ_MUST_CHECK;

/* Holds n rows of a model against the records from `first` on: out [n]; tail [n]: probability
 * that the base has outside the ids of a record. */
vptq_status vptq_kld_base_rows_compare(vptq_kld_base_rows *b, vptq_forward *f, size_t n,
                                       size_t dim, const float *hidden, const int32_t *targets,
                                       const vptq_kld_base_file *file, uint64_t first,
                                       vptq_kld_token *out, double *tail,
                                       vptq_err *err) VPTQ_MUST_CHECK;

#endif
