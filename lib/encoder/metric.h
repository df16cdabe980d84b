/* Inside lib/encoder: normalization and the metric in normalized coordinates.
 *
 * With W = Z S + 1 b^T (S = diag(scale)), an error E_z of Z is an error E_z S of W, so
 * tr(E H E^T) = tr(E_z (S H S) E_z^T): S H S is the metric of Z.  A ridge on H goes in before
 * the scaling.  Everything that looks at Z uses this metric: k-means weights, order and factor.
 */
#ifndef VPTQ_ENCODER_METRIC_H
#define VPTQ_ENCODER_METRIC_H

#include "lib/encoder/encode.h"

typedef struct vptq_metric {
    uint32_t in;
    double mean_diag; /* of the raw H */
    uint32_t dead;    /* columns with H_jj = 0 */
    bool scaled;      /* the metric is S (H + ridge) S, not H + ridge */
    float *scale,
        *bias;       /* [in] by column, exact in the storage type where rounding is `loop` */
    double *diag;    /* [in] of the metric, by column */
    uint32_t *order; /* [in] column at each position of the processing order */
} vptq_metric;

/* VPTQ_E_NUMERIC where an entry of a packed Hessian is NaN or infinite, or a diagonal negative;
 * `name` begins the sentence. */
vptq_status vptq_metric_check(const char *name, uint32_t in, const float *lower,
                              vptq_err *err) VPTQ_MUST_CHECK;

/* Checks W for NaN and infinity; fills everything from W, H and the settings.  `lower` is the
 * packed lower triangle of the raw H, checked before.  The `outliers` most important columns
 * come first. Memory comes from `arena`. */
vptq_status vptq_metric_make(const vptq_encoder_settings *s, uint32_t out, uint32_t in,
                             uint32_t outliers, const float *w, const float *lower,
                             vptq_arena *arena, vptq_metric *m, vptq_err *err) VPTQ_MUST_CHECK;

/* diag from H and scale. */
void vptq_metric_rescale(vptq_metric *m, double ridge, const float *lower);

/* Z transposed, in processing order: z [in][rows], rows = out rounded up to v, zero padded. */
void vptq_metric_normalize(const vptq_metric *m, uint32_t out, size_t rows, const float *w,
                           float *z);

/* The metric in processing order, lower triangle of a [in, in]. */
void vptq_metric_matrix(const vptq_metric *m, double ridge, const float *lower, double *a);
/* The same in float, both triangles; with `raw` the Hessian alone, neither ridge nor scale. */
void vptq_metric_full(const vptq_metric *m, bool raw, double ridge, const float *lower,
                      float *h);

#endif
