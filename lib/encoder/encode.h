/* Internal: quantizing one matrix: W [out, in] and its Hessian in, codes and codebooks out,
 * with the loss after every step.  Knows matrices only, never models or files.
 *
 * Paper (Liu et al. 2024): Algorithms 1 and 2, the channel-independent second-order column pass
 * with residual and outlier codebooks from weighted k-means; docs/encoder.md has all steps with
 * their formulas and gains. */
#ifndef VPTQ_ENCODER_ENCODE_H
#define VPTQ_ENCODER_ENCODE_H

#include "lib/backend/backend.h"
#include "lib/encoder/settings.h"
#include "lib/vptq.h"

/* After a step of the encoder.  Losses are tr(E H E^T) / tr(W H W^T) of what would be stored if
 * the encoder stopped there. */
typedef struct vptq_encoder_step {
    const char *name; /* "k-means", "residual", "joint", "pass", "retrain", "sweeps", "scales",
                         "refit", "output", "grid", "repass", "adapt", "storage"; static */
    double loss;      /* under the plain Hessian */
    double weighted;  /* under the Hessian that is minimized */
    double held_out;  /* 0 if there is none */
    bool reverted;    /* the step would have raised the loss and was reverted */
    double seconds;   /* never written to files */
} vptq_encoder_step;

enum {
    VPTQ_ENCODER_MAX_REFITS = 16,
    VPTQ_ENCODER_MAX_STEPS = 12 + 2 * VPTQ_ENCODER_MAX_REFITS
};

typedef struct vptq_encoder_report {
    vptq_encoder_step steps[VPTQ_ENCODER_MAX_STEPS];
    uint32_t num_steps;
    double loss, weighted,
        held_out;             /* of the stored matrix as a reader of the file decodes it */
    double output;            /* tr(E H E^T K) / tr(W H W^T K) with the K and H that were
                                 minimized with; 0 without an output Hessian.  With the
                                 metric raw, E and W are normalized */
    double relative_mse;      /* |E|^2 / |W|^2 of the stored matrix */
    int kmeans_iterations;    /* of all codebooks together */
    uint32_t kmeans_repaired; /* empty clusters that were moved */
    double damping_added;     /* times the mean diagonal; 0 = none was needed */
    double sparsity;          /* share of weights that are 0; only of pruned matrices */
    uint32_t dead_columns;    /* H_jj = 0: the column does not count in the loss */
    double seconds;           /* never written to files */
} vptq_encoder_report;

/* Called when a step begins, with the loss so far (NAN at first). */
typedef void (*vptq_step_fn)(void *arg, const char *step, double loss);

/* One matrix in host memory.  Hessians are packed lower triangles [in (in + 1) / 2] of raw
 * second moments. */
typedef struct vptq_encoder_input {
    uint32_t matrix_id; /* selects the random numbers of this matrix */
    uint32_t out, in;
    const float *w;        /* [out, in] */
    const float *lower;    /* the plain Hessian: losses are reported with it */
    const float *metric;   /* the Hessian to minimize with; NULL = the plain one */
    const float *held_out; /* of other tokens, only reported; NULL = none */
    /* Output Hessian: K [out / 64, rounded up][64, 64] in blocks of VPTQ_OUTPUT_ROWS rows, both
     * triangles; NULL = none.  Used after the last refit; not without refits. */
    const float *output;
    vptq_step_fn on_step; /* may be NULL */
    void *on_step_arg;
} vptq_encoder_input;

/* All memory belongs to the caller's arena. */
typedef struct vptq_encoder_result {
    vptq_vq vq;                 /* with one group and no outliers the permutation is absorbed */
    const float *centroids_f32; /* before rounding to the storage type */
    const float *res_centroids_f32;
    vptq_encoder_report report;
} vptq_encoder_result;

/* VPTQ_E_NUMERIC for a NaN or infinity (with row and column). */
vptq_status vptq_encode_matrix(vptq_device *dev, const vptq_encoder_settings *settings,
                               const vptq_encoder_input *input, vptq_arena *arena,
                               vptq_encoder_result *result, vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_encoder_loss {
    double error, norm, relative; /* tr(E H E^T), tr(W H W^T), their quotient (0 for 0 / 0) */
    double error_sq, norm_sq;     /* |E|^2, |W|^2 */
} vptq_encoder_loss;

/* The loss of `what` [out, in] against input->w under input->lower, in double. */
vptq_status vptq_encoder_measure(vptq_device *dev, const vptq_encoder_input *input,
                                 const float *what, vptq_encoder_loss *loss,
                                 vptq_err *err) VPTQ_MUST_CHECK;

#endif
