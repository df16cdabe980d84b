/* Internal: one matrix to uniform codes by round-to-nearest or by GPTQ, to a sparse matrix by
 * SparseGPT, or both; AWQ and SmoothQuant do so with matrices that fold.h has scaled.  Knows
 * matrices only, never models or files.
 *
 * RTN: every code is the nearest; range and zero point of a group come from its own weights.
 * GPTQ (Frantar et al. 2023, Algorithm 1; IST-DASLab/gptq): columns one after another, the
 * error of each propagated into the columns that remain through U, H^-1 = U^T U; the range of a
 * group comes from its weights as they are when the first of its columns is reached.  The same
 * U and the same propagation as the column pass of lib/encoder.
 * SparseGPT (Frantar & Alistarh 2023, Algorithm 1; IST-DASLab/sparsegpt): weights with a small
 * (w / U_jj)^2 become 0, and their errors are propagated likewise; with GPTQ in the same pass,
 * with RTN before it.  docs/methods.md. */
#ifndef VPTQ_UNIFORM_UNIFORM_H
#define VPTQ_UNIFORM_UNIFORM_H

#include "lib/backend/backend.h"
#include "lib/base/uniform.h"

/* Weights that SparseGPT prunes. */
typedef struct vptq_prune {
    double share;  /* of the weights of a block of columns, above 0, below 1; 0: nothing */
    uint32_t n, m; /* instead, n of every m columns of a row, at most VPTQ_PRUNE_MAX_M, which
                      divide the columns, groups and 128; or both 0 */
} vptq_prune;

typedef struct vptq_uniform_settings {
    uint32_t bits;       /* of a code, 1 to 8 */
    uint32_t group_size; /* columns of a group; 0 = all.  Larger than a row counts as all */
    bool symmetric;      /* no zero points are stored */
    bool compensate;     /* GPTQ; otherwise RTN */
    bool clip;           /* RTN: ranges that lose least under the Hessian (AWQ) */
    bool order; /* GPTQ: columns by decreasing H_jj; groups are then of columns in that order */
    vptq_prune prune;   /* before RTN, or in the pass of GPTQ */
    vptq_dtype storage; /* F16 or BF16: of the scales */
    double ridge;       /* GPTQ, pruning: times mean diag H, added to H */
    double damping;     /* first share added when the factorization fails, as in lib/encoder */
} vptq_uniform_settings;

/* In host memory. */
typedef struct vptq_uniform_input {
    uint32_t out, in;
    const float *w;     /* [out, in], finite */
    const float *lower; /* GPTQ, pruning, clip: the Hessian, packed lower triangle
                           [in (in + 1) / 2] */
} vptq_uniform_input;

/* The shape that the settings give for a matrix. */
vptq_uniform_shape vptq_uniform_shape_of(const vptq_uniform_settings *s, uint32_t out,
                                         uint32_t in);

/* Quantizes a matrix; of a pruned weight the code is that of 0.  *u is in `arena`.
 * *damping_added: times the mean diagonal; 0 = none was needed.  VPTQ_E_NUMERIC for a Hessian
 * that is not finite or cannot be factored. */
vptq_status vptq_uniform_quantize(vptq_device *dev, const vptq_uniform_settings *s,
                                  const vptq_uniform_input *input, vptq_arena *arena,
                                  vptq_uniform *u, double *damping_added,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* Prunes a matrix without quantizing it, by s->prune, storage, ridge and damping: w [out, in]
 * is rounded to the storage type.  Otherwise as vptq_uniform_quantize. */
vptq_status vptq_uniform_prune(vptq_device *dev, const vptq_uniform_settings *s,
                               const vptq_uniform_input *input, float *w, double *damping_added,
                               vptq_err *err) VPTQ_MUST_CHECK;

#endif
