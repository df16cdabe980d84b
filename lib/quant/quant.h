/* Quantizing one matrix: W [out, in] and its Hessian in, codes and books out, with the loss of
 * every stage.  Knows matrices only, never models or files.
 *
 * Paper: Algorithm 1 (channel-independent second-order column pass) with k-means weighted by
 * the diagonal of the metric; in normalized coordinates Z = (W - b) S^-1 the metric is S (H +
 * ridge) S, and it is used everywhere: k-means weights, processing order, factor. */
#ifndef VPTQ_QUANT_QUANT_H
#define VPTQ_QUANT_QUANT_H

#include "kmeans/kmeans.h"
#include "lib/base/dtype.h"
#include "lib/base/vq.h"

typedef struct vptq_quant_settings {
    uint32_t v, k;              /* vector length; centroids */
    bool norm;                  /* per-column scale (standard deviation) and bias (mean) */
    bool perm;                  /* order columns by the metric's diagonal, largest first */
    uint32_t kmeans_iterations; /* 25 */
    double ridge;               /* times mean diag H, added to H before scaling; 0.0201 */
    double damping;             /* first damping step when the factor fails; 0.01 */
    vptq_dtype storage;         /* F16 or BF16: type of books, scale and bias */
    uint64_t seed;
} vptq_quant_settings;

vptq_quant_settings vptq_quant_default(void); /* v 4, k 256, norm and perm on, F16 */

/* What cannot be, before any work: VPTQ_E_ARG naming the option.  `in`, `out` of one matrix. */
vptq_status vptq_quant_check(const vptq_quant_settings *s, uint32_t out, uint32_t in,
                             vptq_err *err) VPTQ_MUST_CHECK;
/* The stored shape that the settings give for a matrix (bits via vptq_vq_count_bits). */
vptq_vq_shape vptq_quant_shape(const vptq_quant_settings *s, uint32_t out, uint32_t in);

/* Losses are tr(E H E^T) / tr(W H W^T) with the raw H (no ridge), in double. */
typedef struct vptq_quant_report {
    double loss_kmeans; /* nearest centroids of the plain weights, no feedback */
    double loss_pass;   /* of what the column pass chose; books, scale and bias were rounded for
                           storage before it, so nothing is lost between this and `loss` */
    double loss;        /* of the stored matrix, as a reader of the file sees it */
    double relative_mse; /* |E|^2 / |W|^2 of the stored matrix */
    int kmeans_iterations;
    uint32_t kmeans_repaired;
    double damping_added;  /* times the mean diagonal; 0 = the factorization held as it is */
    uint32_t dead_columns; /* H_jj = 0: nothing of them counts in the loss */
    double seconds_factor, seconds_kmeans, seconds_pass, seconds; /* never written to files */
} vptq_quant_report;

typedef struct vptq_quant_result {
    vptq_vq vq;                 /* permutation absorbed; all memory in the caller's arena */
    const float *centroids_f32; /* before rounding to the storage type */
    const float *res_centroids_f32;
    vptq_quant_report report;
} vptq_quant_result;

/* w: [out, in] float, lower: [in (in + 1) / 2] raw Hessian, host memory.  `matrix_id` names the
 * matrix for random numbers.  VPTQ_E_NUMERIC for a NaN or infinity (with row and column).
 * `on_stage` (may be NULL) is told the stage ("factor", "k-means", "pass") as it begins. */
typedef void (*vptq_stage_fn)(void *arg, const char *stage);
vptq_status vptq_quant_matrix(vptq_device *dev, const vptq_quant_settings *s,
                              uint32_t matrix_id, uint32_t out, uint32_t in, const float *w,
                              const float *lower, vptq_stage_fn on_stage, void *arg,
                              vptq_arena *arena, vptq_quant_result *result,
                              vptq_err *err) VPTQ_MUST_CHECK;

/* tr(E H E^T) and tr(W H W^T) in double for E = What - W; relative = the quotient (0 when both
 * are zero).  Also the plain squared norms. */
typedef struct vptq_quant_loss {
    double error, norm, relative; /* in the metric H */
    double error_sq, norm_sq;     /* Frobenius */
} vptq_quant_loss;
vptq_status vptq_quant_measure(vptq_device *dev, uint32_t out, uint32_t in, const float *w,
                               const float *what, const float *lower, vptq_quant_loss *loss,
                               vptq_err *err) VPTQ_MUST_CHECK;

#endif
