/* Internal to lib/encoder: the state of one matrix while it is encoded, and the steps that
 * change it.
 *
 * Everything is transposed and in processing order: position p holds input channel
 * problem.order[p] as one run of `rows` floats (out, zero padded).  With Z the normalized
 * weights, Q the matrix that codebooks and indices stand for, E = Q - Z and H' the metric,
 * every step after training lowers the objective tr(E H' E^T), padded rows included.
 *
 * The state is allocated once, on the device, and stays there: weights and Hessians go up, the
 * packed result comes down.  Arrays are in device memory unless a comment says "host"; what a
 * step needs for itself it allocates and frees (lib/backend/mirror.h). */
#ifndef VPTQ_ENCODER_ENCODER_H
#define VPTQ_ENCODER_ENCODER_H

#include "lib/backend/mirror.h"
#include "lib/encoder/encode.h"

/* ---- the unknowns: codebooks and indices (columns.c) ---- */

/* A run of positions with codebooks of its own. */
typedef struct vptq_column_group {
    uint32_t first, cols; /* positions */
    uint32_t v, k, k_res;
    size_t vector_rows, rows; /* vectors per column; vector_rows * v */
    float *main, *res;        /* [k][v]; [k_res][v] or NULL */
    uint32_t *idx, *idx_res;  /* [cols][vector_rows]; idx_res NULL without residual codebook */
    float *stored, *res_stored; /* host: the codebooks after vptq_columns_round */
    float *main_f32, *res_f32;  /* host: the codebooks before it */
} vptq_column_group;

typedef struct vptq_columns {
    vptq_vq_shape shape;
    size_t rows;               /* padded length of a column: the longest of all groups */
    vptq_column_group *groups; /* host: the outlier columns, if any, then shape.groups others */
    uint32_t num_groups;
    bool rounded; /* codebooks are exact in the storage type */
    vptq_mirror *arrays;
} vptq_columns;

/* Allocates codebooks and indices in `arrays`, and stored codebooks in `keep`: all main
 * codebooks as one array, all residual ones as another.  Everything starts at zero. */
vptq_status vptq_columns_make(vptq_columns *l, const vptq_vq_shape *shape, vptq_mirror *arrays,
                              vptq_arena *keep, vptq_arena *scratch,
                              vptq_err *err) VPTQ_MUST_CHECK;
/* Rounds the codebooks to the storage type; VPTQ_E_NUMERIC if a centroid is out of range. */
vptq_status vptq_columns_round(vptq_columns *l, vptq_dtype storage, vptq_arena *keep,
                               vptq_err *err) VPTQ_MUST_CHECK;
/* The first group after the outlier columns. */
static inline vptq_column_group *vptq_columns_first(const vptq_columns *l)
{
    return l->groups + (l->shape.outliers ? 1 : 0);
}

/* q [in][ldq] at the positions of the group = the given codebooks under the group's indices. */
vptq_status vptq_group_gather(const vptq_device *dev, const vptq_column_group *g,
                              const float *main, const float *res, float *q, size_t ldq,
                              vptq_err *err) VPTQ_MUST_CHECK;
/* *x = the group's columns of from [in][ld] without the gaps between columns: a copy in
 * `arrays`, or `from` itself if there are none. */
vptq_status vptq_group_vectors(const vptq_column_group *g, const float *from, size_t ld,
                               vptq_mirror *arrays, const float **x,
                               vptq_err *err) VPTQ_MUST_CHECK;
/* The group's codebooks for a search that tries `beam` main centroids. */
vptq_codebooks vptq_group_codebooks(const vptq_column_group *g, uint32_t beam);

/* ---- what is minimized (problem.c) ----
 *
 * With W = Z S + 1 b^T, S = diag(scale), an error E of Z is an error E S of W, so the metric of
 * Z is H' = S (H + ridge) S.  It is used everywhere: k-means weights, column order, factor,
 * sweeps, refit. */

typedef struct vptq_problem {
    const vptq_encoder_settings *settings;
    const vptq_encoder_input *input;
    uint32_t in, out;
    size_t rows;      /* of z */
    double mean_diag; /* of the raw Hessian */
    uint32_t dead;    /* columns with H_jj = 0 */
    vptq_device *dev;
    vptq_mirror *arrays;
    /* host */
    float *scale, *bias;  /* [in] by column; exact in the storage type with VPTQ_ROUND_LOOP */
    double *column_diag;  /* [in] diagonal of S (H + ridge) S by column */
    uint32_t *order;      /* [in] the column at each position */
    float *scales;        /* [in] scale by position */
    float *diag;          /* [in] of h */
    double damping_added; /* that the factorization needed, times the mean of column_diag */
    double damping;       /* the same, absolute */
    /* device */
    float *z; /* [in][rows] */
    float *h; /* [in][in] H', both triangles, damping included */
    float *u; /* [in][in] factor of H' (vptq_hessian_factor) */
    struct {  /* the input, and the host arrays above */
        const float *w, *lower, *metric, *held_out;
        float *scale, *bias, *scales, *diag;
        uint32_t *order;
    } on;
} vptq_problem;

/* Uploads and checks weights and Hessians (no NaN, no infinity), fills everything and factors
 * H'. */
vptq_status vptq_problem_make(vptq_problem *p, vptq_device *dev, const vptq_encoder_settings *s,
                              const vptq_encoder_input *input, const vptq_columns *columns,
                              vptq_arena *scratch, vptq_err *err) VPTQ_MUST_CHECK;
/* z, h and diag anew for the present scale, bias and damping; u stays. */
vptq_status vptq_problem_normalize(vptq_problem *p, vptq_err *err) VPTQ_MUST_CHECK;
/* S (H + ridge) S in processing order, without damping. */
vptq_metric_args vptq_problem_metric(const vptq_problem *p);
/* The raw Hessian `lower` in processing order, both triangles of h [in][in]. */
vptq_status vptq_problem_raw(const vptq_problem *p, const float *lower, float *h,
                             vptq_err *err) VPTQ_MUST_CHECK;

/* ---- losses (losses.c) ---- */

/* One Hessian that losses are reported with. */
typedef struct vptq_probe {
    const float *lower; /* packed; NULL = not used */
    float *h;    /* [in][in] raw, in processing order; NULL: computed from the gradient */
    double norm; /* tr(W H W^T) */
} vptq_probe;

typedef struct vptq_losses {
    vptq_probe plain, weighted, held_out;
} vptq_losses;

/* ---- everything together ---- */

typedef struct vptq_encoder {
    vptq_device *dev;
    const vptq_encoder_settings *settings;
    vptq_arena *keep;   /* the caller's: arrays that the result points to */
    vptq_arena scratch; /* other host arrays */
    vptq_mirror arrays; /* the state on the device */
    vptq_columns columns;
    vptq_problem problem;
    /* the present solution */
    float *q;         /* [in][rows] */
    float *e, *g;     /* [in][rows] E and G = H' E after vptq_encoder_gradient; scratch */
    double objective; /* of q, after vptq_encoder_gradient */
    struct { /* set by vptq_output_open: then G = H' E K and the objective has K, too */
        const float *k; /* [blocks][64, 64]; NULL: no K */
        float *plain;   /* [in][rows] H' E */
        double norm;    /* the objective of Q = 0 */
    } output;
    double *sums; /* host: [2 in], mirrored as on_sums; scratch */
    double *on_sums;
    struct {          /* the solution before a step, for reverting it; NULL before the first */
        float *norms; /* host: scale and bias */
        char *columns;
    } saved;
    vptq_losses losses;
    vptq_encoder_report *report;
} vptq_encoder;

/* Allocates q, e and g, opens `losses`. */
vptq_status vptq_encoder_open(vptq_encoder *enc, vptq_err *err) VPTQ_MUST_CHECK;
/* q = codebooks under indices. */
vptq_status vptq_encoder_gather(vptq_encoder *enc, vptq_err *err) VPTQ_MUST_CHECK;
/* g = H' e or, under an output Hessian, H' e K. */
vptq_status vptq_encoder_apply(vptq_encoder *enc, vptq_err *err) VPTQ_MUST_CHECK;
/* e = q - z, g of it, objective. */
vptq_status vptq_encoder_gradient(vptq_encoder *enc, vptq_err *err) VPTQ_MUST_CHECK;
/* Both of them. */
vptq_status vptq_encoder_update(vptq_encoder *enc, vptq_err *err) VPTQ_MUST_CHECK;
/* g = h e for h [in][in], e and g [in][rows].  May be cancelled. */
vptq_status vptq_encoder_multiply(const vptq_encoder *enc, const float *h, const float *e,
                                  float *g, vptq_err *err) VPTQ_MUST_CHECK;
/* sums [in] = x_p . y_p (y NULL: ones) over the first `rows` rows of every position. */
vptq_status vptq_encoder_dots(const vptq_encoder *enc, size_t rows, const float *x,
                              const float *y, double *sums, vptq_err *err) VPTQ_MUST_CHECK;
/* *sum = all of them; leaves them in enc->sums. */
vptq_status vptq_encoder_dot(vptq_encoder *enc, size_t rows, const float *x, const float *y,
                             double *sum, vptq_err *err) VPTQ_MUST_CHECK;

/* *sum = x . y in double for x and y [n]. */
vptq_status vptq_encoder_inner(vptq_device *dev, size_t n, const float *x, const float *y,
                               double *sum, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_losses_open(vptq_encoder *enc, vptq_err *err) VPTQ_MUST_CHECK;
/* The three losses of the present solution; needs a fresh gradient. */
vptq_status vptq_losses_measure(vptq_encoder *enc, vptq_encoder_step *step,
                                vptq_err *err) VPTQ_MUST_CHECK;
/* The losses of the stored matrix, decoded as a reader of the file does it; fills the report.
 */
vptq_status vptq_losses_stored(vptq_encoder *enc, const vptq_vq *vq,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* ---- the steps; each leaves q unset unless it says otherwise ---- */

/* k-means for the main codebooks, then for the residual ones (train.c). */
vptq_status vptq_train_main(vptq_encoder *enc, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_train_residual(vptq_encoder *enc, vptq_err *err) VPTQ_MUST_CHECK;
/* settings.joint rounds over main and residual codebook together (train.c). */
vptq_status vptq_train_joint(vptq_encoder *enc, vptq_err *err) VPTQ_MUST_CHECK;
/* Algorithm 1 with the present codebooks: indices and q; g = the compensated target of each
 * column when it was quantized.  `main_only` leaves the residual codebooks out
 * (column_pass.c). */
vptq_status vptq_column_pass(vptq_encoder *enc, bool main_only, vptq_err *err) VPTQ_MUST_CHECK;
/* Joint training of all groups on the compensated targets of a column pass instead of z, then
 * the pass again (train.c). */
vptq_status vptq_retrain(vptq_encoder *enc, uint32_t rounds, vptq_err *err) VPTQ_MUST_CHECK;
/* Coordinate descent over the indices: needs q and a fresh gradient, leaves q (sweeps.c). */
vptq_status vptq_sweeps(vptq_encoder *enc, uint32_t count, vptq_err *err) VPTQ_MUST_CHECK;
/* Least squares over scale and bias with fixed codebooks and indices: needs q and a fresh
 * gradient; changes scale, bias, z, h and diag, but not u (scales.c). */
vptq_status vptq_refit_scales(vptq_encoder *enc, int iterations, vptq_err *err) VPTQ_MUST_CHECK;
/* Least squares over the codebooks with fixed indices, by conjugate gradients from the present
 * codebooks (refit.c).  With `only` NULL: all codebooks under the full H'; needs q and a fresh
 * gradient.  Otherwise the codebooks of that group under the diagonal of H' for `target`
 * [in][rows]; needs indices only. */
vptq_status vptq_refit(vptq_encoder *enc, const vptq_column_group *only, const float *target,
                       int iterations, vptq_err *err) VPTQ_MUST_CHECK;

/* Takes the output Hessian of the input into the objective from here on (output.c); one that is
 * 0 leaves enc->output.k NULL.  Needs q, leaves a fresh gradient. */
vptq_status vptq_output_open(vptq_encoder *enc, vptq_err *err) VPTQ_MUST_CHECK;
/* y [cols][problem.rows] = x K, of which only the first `rows` in every column count. */
vptq_status vptq_output_multiply(const vptq_encoder *enc, size_t cols, size_t rows,
                                 const float *x, float *y, vptq_err *err) VPTQ_MUST_CHECK;

/* Moves the main codebooks, and with `residual` the residual ones, to int8 grids that are exact
 * in the storage type (grid.c); needs indices. */
vptq_status vptq_grid_codebooks(vptq_encoder *enc, bool residual,
                                vptq_err *err) VPTQ_MUST_CHECK;
/* Least squares as vptq_refit, over the residual codebooks and that of outlier columns, while
 * the main codebooks stay; needs q and a fresh gradient. */
vptq_status vptq_grid_refit_residual(vptq_encoder *enc, int iterations,
                                     vptq_err *err) VPTQ_MUST_CHECK;

/* Sizes of the steps. */
enum {
    VPTQ_PASS_BLOCK = 128,     /* columns between two updates of all others by one product */
    VPTQ_JOINT_ITERATIONS = 8, /* of conjugate gradients; each round continues the last */
    /* While codebooks still change a lot, pairs need not be the best: all but the last
     * WIDE_ROUNDS rounds try only a fraction 1 / NARROWING of the main centroids. */
    VPTQ_WIDE_ROUNDS = 2,
    VPTQ_NARROWING = 4,
    VPTQ_REFIT_ITERATIONS = 10, /* of conjugate gradients; sweeps undo what more would gain */
    VPTQ_REFIT_SWEEPS = 2,      /* after each refit */
    VPTQ_SCALE_ITERATIONS = 8,  /* of conjugate gradients over scale and bias */
    /* Rounds under an output Hessian: refits of codebooks and of scale and bias, and a sweep.
     */
    VPTQ_OUTPUT_ROUNDS = 3,
    VPTQ_OUTPUT_ITERATIONS = 6,       /* of conjugate gradients over the codebooks */
    VPTQ_OUTPUT_SCALE_ITERATIONS = 4, /* over scale and bias */
    VPTQ_GRID_SWEEPS = 2,             /* after the second pass */
    VPTQ_STORAGE_SWEEPS = 1 /* after rounding; a second one gains less than a thousandth */
};

/* Brings down the stored form of columns and problem (store.c).  Codebooks must have been
 * rounded; scale and bias are rounded here if they are not yet. */
vptq_status vptq_store(vptq_encoder *enc, vptq_encoder_result *result,
                       vptq_err *err) VPTQ_MUST_CHECK;

#endif
