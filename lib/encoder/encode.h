/* Quantizing one matrix: W [out, in] and its Hessian in, codes and codebooks out, with the loss
 * of every step.  Knows matrices only, never models or files.
 *
 * Paper: Algorithms 1 and 2 (channel-independent second-order column pass, residual and outlier
 * codebooks) with k-means weighted by the diagonal of the metric; in normalized coordinates Z =
 * (W
 * - b) S^-1 the metric is S (H + ridge) S, and it is used everywhere: k-means weights, order,
 * factor, sweeps, refit.  docs/encoder.md has the steps with their formulas and gains. */
#ifndef VPTQ_ENCODER_ENCODE_H
#define VPTQ_ENCODER_ENCODE_H

#include "lib/backend/backend.h"
#include "lib/encoder/settings.h"

/* One matrix and what its errors cost, host memory.  Hessians are packed lower triangles [in
 * (in
 * + 1) / 2] of raw second moments. */
typedef struct vptq_encoder_input {
    uint32_t matrix_id; /* names the matrix for random numbers */
    uint32_t out, in;
    const float *w;        /* [out, in] */
    const float *lower;    /* the plain Hessian: losses are reported with it */
    const float *metric;   /* the Hessian to be minimized with; NULL = the plain one */
    const float *held_out; /* of other tokens, never looked at while encoding; NULL = none */
} vptq_encoder_input;

/* After each step.  Losses are tr(E H E^T) / tr(W H W^T), no ridge, of what would be stored if
 * the encoder stopped here; `undone`: the step would have raised the loss that it minimizes and
 * was taken back. */
typedef struct vptq_encoder_step {
    const char *name; /* "k-means", "residual", "joint", "pass", "retrain", "sweeps", "scales",
                         "refit", "storage" */
    double loss;      /* plain H */
    double weighted;  /* input.metric, where given; else the same as loss */
    double held_out;  /* 0 where there is none */
    bool undone;
    double seconds; /* never written to files */
} vptq_encoder_step;

enum { VPTQ_ENCODER_MAX_REFITS = 16, VPTQ_ENCODER_MAX_STEPS = 8 + 2 * VPTQ_ENCODER_MAX_REFITS };

typedef struct vptq_encoder_report {
    vptq_encoder_step step[VPTQ_ENCODER_MAX_STEPS];
    uint32_t steps;
    double loss, weighted, held_out; /* of the stored matrix, as a reader of the file sees it */
    double relative_mse;             /* |E|^2 / |W|^2 of the stored matrix */
    int kmeans_iterations;           /* of all codebooks together */
    uint32_t kmeans_repaired;
    double damping_added;  /* times the mean diagonal; 0 = the factorization held as it is */
    uint32_t dead_columns; /* H_jj = 0: nothing of them counts in the loss */
    double seconds;        /* never written to files */
} vptq_encoder_report;

typedef struct vptq_encoder_result {
    vptq_vq vq; /* all memory in the caller's arena; with one group and no outliers the
                   permutation is absorbed, else it is stored */
    const float *centroids_f32; /* before rounding to the storage type */
    const float *res_centroids_f32;
    vptq_encoder_report report;
} vptq_encoder_result;

/* `on_step` (may be NULL) is told the step that begins and the loss so far (NAN at first). */
typedef void (*vptq_step_fn)(void *arg, const char *step, double loss);

/* VPTQ_E_NUMERIC for a NaN or infinity (with row and column). */
vptq_status vptq_encode_matrix(vptq_device *dev, const vptq_encoder_settings *s,
                               const vptq_encoder_input *input, vptq_step_fn on_step, void *arg,
                               vptq_arena *arena, vptq_encoder_result *result,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* tr(E H E^T) and tr(W H W^T) in double for E = What - W; relative = the quotient (0 when both
 * are zero).  Also the plain squared norms. */
typedef struct vptq_encoder_loss {
    double error, norm, relative; /* in the metric H */
    double error_sq, norm_sq;     /* Frobenius */
} vptq_encoder_loss;
vptq_status vptq_encoder_measure(vptq_device *dev, uint32_t out, uint32_t in, const float *w,
                                 const float *what, const float *lower, vptq_encoder_loss *loss,
                                 vptq_err *err) VPTQ_MUST_CHECK;

#endif
