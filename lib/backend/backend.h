/* Internal: the backend seam: one const table of ops (function pointers) per kind of device.
 * Each op is documented at its arguments and its type, vptq_op_NAME.
 *
 * `ref` is plain C and the oracle, with sums in double; `cpu` and `cuda` are fast.  Every
 * backend implements every op; no pointer is ever NULL.  Algorithms are written once, against
 * the table.
 *
 *     vptq_device dev;
 *     VPTQ_TRY(vptq_device_open(&ctx, "auto", &dev, err));
 *     VPTQ_TRY(dev.ops->gemm(dev.state, &g, err));
 *     vptq_device_close(&dev);
 *
 * Arrays are in device memory (for ref and cpu: any host memory), row-major, and do not overlap
 * unless the op allows it.  Shapes are written [rows, columns]; `ldx` is the distance between
 * two rows of `x` in elements.  An args struct and what it points to belong to the caller and
 * need not outlive the call.
 *
 * Ops trust their arguments: callers have checked the shapes.  In addition to the errors that
 * an op names, any op may return VPTQ_E_NOMEM, VPTQ_E_DEVICE and, if it can take seconds,
 * VPTQ_E_CANCELLED between two of its blocks.
 *
 * Results do not depend on the number of threads.  A vptq_device is used by one thread at a
 * time. */
#ifndef VPTQ_BACKEND_BACKEND_H
#define VPTQ_BACKEND_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/backend/array_ops.h"
#include "lib/base/ctx.h"
#include "lib/base/dtype.h"
#include "lib/base/uniform.h"
#include "lib/base/vq.h"

typedef struct vptq_dev vptq_dev; /* a backend's own state */

/* ---- linear algebra ---- */

/* C [m, n] = alpha * A [m, k] * op(B) + beta * C (+ bias [n] on every row), in float.
 *
 * With `bf16`, alpha * A and B are rounded to bfloat16 (nearest even) and products are summed
 * as by the instruction TDPBF16PS: for every 32 steps of k two chains of 16, even and odd, from
 * zero; their sum is added to C, bias included.  Subnormal numbers count as zero.  Other
 * devices may use more digits: ref sums in double, cuda computes in float.  For gradients:
 * forward passes that are measured are in float. */
typedef struct vptq_gemm_args {
    size_t m, n, k;
    const float *a, *b;
    float *c;
    size_t lda, ldb, ldc;
    bool trans_a;      /* A is stored as [k, m] */
    bool trans_b;      /* B is stored as [n, k], like a weight matrix [out, in] */
    float alpha, beta; /* beta is 0 (C is not read) or 1 */
    const float *bias; /* [n] or NULL */
    bool bf16;
} vptq_gemm_args;
typedef vptq_status vptq_op_gemm(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err);

/* Second moments: h[i][j] += sum_t w_t x_t[i] x_t[j] for j <= i, and sum[i] += sum_t w_t
 * x_t[i].  Products are summed in float over at most 256 tokens; these sums are added in double
 * and in order. */
typedef struct vptq_syrk_args {
    size_t tokens, n;
    const float *x; /* [tokens, n] */
    size_t ldx;
    const float *w; /* [tokens], or NULL for ones */
    double *h;      /* [n, n]; only the lower triangle is updated */
    double *sum;    /* [n] */
} vptq_syrk_args;
typedef vptq_status vptq_op_syrk_add(vptq_dev *dev, const vptq_syrk_args *a, vptq_err *err);

/* Statistics of columns: abs_sum[j] += sum_t |x_t[j]|, added in double and in the order of
 * tokens; min[j] and max[j] are widened to hold all x_t[j].  All backends give the same bits,
 * except those of a NaN: it makes the sum NaN, and is ignored in the range. */
typedef struct vptq_channel_args {
    size_t tokens, n;
    const float *x; /* [tokens, n] */
    size_t ldx;
    bool first;       /* starts from no tokens: the outputs are not read */
    double *abs_sum;  /* [n] */
    float *min, *max; /* [n]; infinity and -infinity without tokens */
} vptq_channel_args;
typedef vptq_status vptq_op_channel_range(vptq_dev *dev, const vptq_channel_args *a,
                                          vptq_err *err);

/* *trace = tr(E H E^T), the proxy loss, in double. */
typedef struct vptq_quad_trace_args {
    size_t m, n;
    const float *e; /* [m, n] */
    size_t lde;
    const double *h; /* [n, n], symmetric; only the lower triangle is read */
    size_t ldh;
    double *trace; /* host memory */
} vptq_quad_trace_args;
typedef vptq_status vptq_op_quad_trace(vptq_dev *dev, const vptq_quad_trace_args *a,
                                       vptq_err *err);

/* Replaces the lower triangle of a [n, n] by its lower Cholesky factor; the upper triangle is
 * neither read nor written.  Returns VPTQ_E_NUMERIC if a pivot is not positive, and its index
 * in *bad_pivot (may be NULL). */
typedef vptq_status vptq_op_potrf(vptq_dev *dev, size_t n, double *a, size_t lda,
                                  size_t *bad_pivot, vptq_err *err);

/* Inverts a lower triangular matrix in place; VPTQ_E_NUMERIC if it is singular. */
typedef vptq_status vptq_op_trtri(vptq_dev *dev, size_t n, double *a, size_t lda,
                                  vptq_err *err);

/* ---- clustering ---- */

/* Nearest centroids: idx[i] = argmin_j |x_i - c_j|^2, the lowest j on ties of the computed
 * score.  assign stores nothing of size n * k.  reassign starts from given labels idx[i] < k,
 * with the same result; it is faster the nearer the vectors are to the centroids of their
 * labels and the fewer centroids differ from `previous`. */
typedef struct vptq_assign_args {
    size_t n;
    uint32_t v, k;
    const float *x;         /* [n, v] without gaps */
    const float *centroids; /* [k, v] */
    /* reassign: the codebook for which this device found the labels, or NULL; assign does not
     * read it. */
    const float *previous;
    uint32_t *idx; /* [n] */
    float *dist;   /* [n] |x_i - c_idx|^2 from the differences, or NULL; NULL for reassign */
} vptq_assign_args;
typedef vptq_status vptq_op_assign(vptq_dev *dev, const vptq_assign_args *a, vptq_err *err);

/* Weighted sums per centroid; outputs are overwritten. */
typedef struct vptq_accumulate_args {
    size_t n;
    uint32_t v, k;
    const float *x;         /* [n, v] */
    const float *w;         /* [n], or NULL for ones */
    const uint32_t *idx;    /* [n] */
    const float *centroids; /* [k, v] */
    double *sums;           /* [k, v] sum of w_i x_i over idx[i] == j */
    double *weights;        /* [k] sum of w_i over idx[i] == j */
    double *objective;      /* sum of w_i |x_i - c_idx(i)|^2; host memory */
} vptq_accumulate_args;
typedef vptq_status vptq_op_accumulate(vptq_dev *dev, const vptq_accumulate_args *a,
                                       vptq_err *err);

/* Chooses k of m points as centroids by greedy weighted k-means++ (Arthur and Vassilvitskii,
 * "k-means++: the advantages of careful seeding", SODA 2007).  With d the squared distance of a
 * point to the nearest centroid so far, each step draws 8 points with probabilities
 * proportional to w d and keeps the one that lowers the sum of w d most, the first on ties.
 * The first centroid is drawn by weight.
 *
 * All backends choose the same points: if a sum were rounded differently, one other choice
 * would change all that follow.  Hence the rule in full.  Weights are divided by the largest.
 * |x - c|^2 is a chain of fmaf in float over the elements in order.  Sums of w d are taken over
 * chunks of 1024 points: point i is added to lane i % 16 with fmaf in float, the lanes are
 * added in order in double, and so are the chunks.  To draw, the sums of the chunks are
 * subtracted from u times their total, in double, up to the last chunk or one whose sum exceeds
 * the rest; then the products w d of that chunk's points, each rounded to float, until the rest
 * is negative.  The last of these points with a positive product is drawn (without any, the
 * first).  The first centroid takes weights for products and all points for one chunk. */
enum { VPTQ_PLUS_PLUS_TRIALS = 8, VPTQ_PLUS_PLUS_CHUNK = 1024, VPTQ_PLUS_PLUS_LANES = 16 };
typedef struct vptq_plus_plus_args {
    size_t m;        /* at least 1, below 2^31 */
    uint32_t v, k;   /* v at most VPTQ_VQ_MAX_V */
    const float *x;  /* [m, v], finite */
    const float *w;  /* [m] finite and at least 0; NULL or all 0 = ones */
    const double *u; /* [k, 8] in [0, 1), one for each draw; of the first 8 only u[0] is used */
    float *centroids; /* [k, v] */
} vptq_plus_plus_args;
typedef vptq_status vptq_op_plus_plus(vptq_dev *dev, const vptq_plus_plus_args *a,
                                      vptq_err *err);

/* ---- codebook search ---- */

/* The codebooks of one column group and how they are searched.  A vector x is quantized to the
 * pair (c, r) that minimizes |x - c - r|^2 among at least the `beam` main centroids nearest to
 * x, each with its best residual centroid.  beam 1 is the greedy choice (nearest c, then the r
 * nearest to x - c), beam >= k the exact one; beam has no effect without a residual codebook.
 * The lowest index wins on ties of the computed score. */
typedef struct vptq_codebooks {
    uint32_t v, k, k_res; /* k_res 0: no residual codebook */
    uint32_t beam;        /* at least 1 */
    /* Lets searches with `keep` try only the main centroids around the current one.  At v 8, k
     * 4096, k_res 256 that takes 1.48 us per vector instead of 2.08 (cpu, one core, AVX-512),
     * and the encoder ends with 0.5 to 0.7 % more loss. */
    bool local;
    const float *centroids;     /* [k, v] */
    const float *res_centroids; /* [k_res, v] or NULL */
} vptq_codebooks;

/* Codebooks that a backend has prepared for searching (packed, with norms and products of
 * pairs).  Belongs to the device that opened it.  The arrays of the codebooks must live and
 * keep their values as long as the index. */
typedef struct vptq_search_index vptq_search_index;
typedef vptq_status vptq_op_search_index_open(vptq_dev *dev, const vptq_codebooks *codebooks,
                                              vptq_search_index **index, vptq_err *err);
/* Accepts NULL. */
typedef void vptq_op_search_index_close(vptq_dev *dev, vptq_search_index *index);

/* Quantizes n vectors.  With `keep`, idx and idx_res hold current choices, which change only to
 * a strictly nearer one (distances compared in the same arithmetic); otherwise they are only
 * written. */
typedef struct vptq_search_args {
    size_t n;
    const vptq_search_index *index;
    const float *x; /* [n, v] */
    bool keep;
    uint32_t *idx, *idx_res; /* [n]; idx_res NULL without a residual codebook */
    float *dist;             /* [n] |x - (c + r)|^2 from the differences, or NULL */
} vptq_search_args;
typedef vptq_status vptq_op_search(vptq_dev *dev, const vptq_search_args *s, vptq_err *err);

/* One block of the column pass (paper, Algorithm 1), transposed: column j of the normalized and
 * ordered matrix is a contiguous run of `rows` floats; rows is a multiple of v.  For t =
 * 0..cols-1: quantize column t of z, err[t] = (z[t] - q[t]) / u[t][t], and z[s] -= err[t] *
 * u[t][s] for t < s < cols.  Vector rows (v rows each) are independent of each other. */
typedef struct vptq_pass_args {
    size_t cols, rows;
    const vptq_search_index *index;
    float *z;                /* [cols, rows] in: compensated so far; out: as it was quantized */
    const float *u;          /* [cols, cols]; only the upper triangle is read */
    uint32_t *idx, *idx_res; /* [cols, rows / v]; idx_res NULL without a residual codebook */
    float *q;                /* [cols, rows] */
    float *err;              /* [cols, rows] */
    size_t ldz, ldu, ldi, ldq, lde;
} vptq_pass_args;
typedef vptq_status vptq_op_vq_pass(vptq_dev *dev, const vptq_pass_args *p, vptq_err *err);

/* One block of a coordinate-descent sweep over indices, in the layout of the column pass.  With
 * E = q - w and G = E H, the loss tr(E H E^T) as a function of column t alone is
 *     H_tt |q_t - (q_t - g_t / H_tt)|^2 + const.
 * For t = 0..cols-1: take the choice nearest to q[t] - g[t] / h[t][t], keeping the current one
 * unless another is strictly nearer; delta[t] = new q[t] - old q[t]; g[s] += delta[t] * h[t][s]
 * for t < s < cols.  The array g is only read; the caller updates it from delta.  Columns with
 * h[t][t] <= 0 do not change. */
typedef struct vptq_descend_args {
    size_t cols, rows;
    const vptq_search_index *index;
    const float *g;          /* [cols, rows] */
    const float *h;          /* [cols, cols]; only the upper triangle is read */
    uint32_t *idx, *idx_res; /* [cols, rows / v] in and out */
    float *q;                /* [cols, rows] in and out: the decoded indices */
    float *delta;            /* [cols, rows] out */
    size_t ldg, ldh, ldi, ldq, ldd;
} vptq_descend_args;
typedef vptq_status vptq_op_vq_descend(vptq_dev *dev, const vptq_descend_args *d,
                                       vptq_err *err);

/* The same for the loss tr(E H E^T K), where K [rows, rows], symmetric and positive, has only
 * blocks of VPTQ_OUTPUT_ROWS rows on its diagonal, and G = K E H.  A change d of the rows R of
 * one vector of column t adds
 *     H_tt d^T K_RR d + 2 d^T G_Rt.
 * For t = 0..cols-1, for each vector of the column in order, first for its main and then for
 * its residual centroid: take the centroid that adds least to what it replaces, keeping it
 * unless another adds strictly less (the lowest index wins on ties), and change G for the rows,
 * vectors and columns that follow.  delta[t] = new q[t] - old q[t].  The array g is only read;
 * the caller updates it.  Columns with h[t][t] <= 0 do not change. */
enum { VPTQ_OUTPUT_ROWS = 64 };
typedef struct vptq_descend_output_args {
    size_t cols, rows;
    uint32_t v, k, k_res;
    const float *centroids, *res_centroids; /* [k, v]; [k_res, v], NULL if k_res is 0 */
    const float *output;     /* [rows / 64, rounded up][64, 64] K; rows past the end not used */
    const float *g;          /* [cols, rows] */
    const float *h;          /* [cols, cols]; only the upper triangle is read */
    uint32_t *idx, *idx_res; /* [cols, rows / v] in and out */
    float *q;                /* [cols, rows] in and out: the decoded indices */
    float *delta;            /* [cols, rows] out */
    size_t ldg, ldh, ldi, ldq, ldd;
} vptq_descend_output_args;
typedef vptq_status vptq_op_vq_descend_output(vptq_dev *dev, const vptq_descend_output_args *d,
                                              vptq_err *err);

/* q = centroids[idx] + res_centroids[idx_res], in the layout of the column pass. */
typedef struct vptq_gather_args {
    size_t cols, rows;
    uint32_t v, k, k_res;
    const float *centroids, *res_centroids;
    const uint32_t *idx, *idx_res; /* [cols, rows / v] */
    float *q;                      /* [cols, rows] */
    size_t ldi, ldq;
} vptq_gather_args;
typedef vptq_status vptq_op_vq_gather(vptq_dev *dev, const vptq_gather_args *g, vptq_err *err);

/* Sums of y per centroid; outputs are overwritten. */
typedef struct vptq_scatter_args {
    size_t cols, rows;
    uint32_t v, k;
    const float *y;      /* [cols, rows] */
    const float *weight; /* [cols], or NULL for ones */
    const uint32_t *idx; /* [cols, rows / v] */
    double *sums;        /* [k, v] sum of weight[t] * y over the uses of a centroid */
    double *weights;     /* [k, v] sum of weight[t] over its uses, v times, or NULL */
    size_t ldy, ldi;
} vptq_scatter_args;
typedef vptq_status vptq_op_vq_scatter(vptq_dev *dev, const vptq_scatter_args *s,
                                       vptq_err *err);

/* ---- products with stored weights ---- */

/* y [n, out] = x [n, in] W^T + beta * y (+ bias on every row) for few tokens, with W [out, in]
 * as it is stored.  Decoding uses every weight once, so that converting W first would take most
 * of the time.  A row of y does not depend on the values of the other tokens, but its
 * rounding may depend on their number. */
typedef struct vptq_gemv_args {
    size_t n;
    const float *x;
    float *y;
    size_t ldx, ldy;
    float beta;        /* 0 (y is not read) or 1 */
    const float *bias; /* [out] or NULL */
} vptq_gemv_args;

/* Multiplies by w [out, in] of type F32, F16 or BF16, without gaps, at any alignment. */
typedef vptq_status vptq_op_gemv(vptq_dev *dev, size_t out, size_t in, vptq_dtype type,
                                 const void *w, const vptq_gemv_args *g, vptq_err *err);

/* gemv of F32 by the standard library (OpenBLAS, cuBLAS) with all threads, as a yardstick for
 * benchmarks; VPTQ_E_UNSUPPORTED if there is none. */
typedef vptq_status vptq_op_library_gemv(vptq_dev *dev, size_t out, size_t in, const float *w,
                                         const vptq_gemv_args *g, vptq_err *err);

/* Multiplies by a uniformly quantized matrix, whose arrays are in device memory, each weight
 * rounded to `storage`, F16 or BF16.  The same bits as gemv with the decoded matrix of that
 * type. */
typedef vptq_status vptq_op_uniform_gemv(vptq_dev *dev, const vptq_uniform *w,
                                         vptq_dtype storage, const vptq_gemv_args *g,
                                         vptq_err *err);

/* A packed matrix prepared by a backend.  Belongs to the device that opened it.  The arrays of
 * the vptq_vq are in HOST memory for every backend and must live and keep their values as long
 * as the handle; the vptq_vq itself need not.  A device with memory of its own copies them on
 * first use. */
typedef struct vptq_matrix vptq_matrix;
typedef vptq_status vptq_op_matrix_open(vptq_dev *dev, const vptq_vq *q, vptq_matrix **m,
                                        vptq_err *err);
typedef void vptq_op_matrix_close(vptq_dev *dev, vptq_matrix *m); /* accepts NULL */

/* Decodes rows [r0, r0 + n) of the matrix into w [n, ldw], bit-exact in the order of operations
 * of lib/base/vq.h. */
typedef vptq_status vptq_op_vq_dequant(vptq_dev *dev, const vptq_matrix *m, size_t r0, size_t n,
                                       float *w, size_t ldw, vptq_err *err);

/* Multiplies by the packed matrix, looking centroids up as it goes; cuda decodes tiles for many
 * tokens (docs/gpu.md). */
typedef vptq_status vptq_op_vq_gemv(vptq_dev *dev, const vptq_matrix *m,
                                    const vptq_gemv_args *g, vptq_err *err);

/* ---- transformer ---- */

/* out[i] = row ids[i] of the table, times `scale` unless that is 0. */
typedef struct vptq_embed_args {
    size_t n, dim;
    const void *table; /* [vocab, dim] */
    vptq_dtype type;   /* F32, F16 or BF16, else VPTQ_E_UNSUPPORTED */
    const int32_t *ids;
    float scale;
    float *out; /* [n, dim] */
} vptq_embed_args;
typedef vptq_status vptq_op_embed(vptq_dev *dev, const vptq_embed_args *a, vptq_err *err);

/* y[i] = x[i] / sqrt(mean(x[i]^2) + eps) * weight, or with `add` that plus the old y[i].  With
 * a bias, a layer norm: the same of x[i] - mean(x[i]), plus bias, without `add`.  y may be x,
 * without `add`. */
typedef struct vptq_rmsnorm_args {
    size_t n, dim;
    const float *x; /* [n, dim] */
    size_t ldx;
    const float *weight; /* [dim] */
    float eps;
    float *y; /* [n, dim] */
    size_t ldy;
    bool add;
    const float *bias; /* [dim] or NULL */
} vptq_rmsnorm_args;
typedef vptq_status vptq_op_rmsnorm(vptq_dev *dev, const vptq_rmsnorm_args *a, vptq_err *err);

/* Rotates the first `rotated` elements of every head of x in place, with "rotate half" pairing
 * (i, i + rotated / 2). */
typedef struct vptq_rope_args {
    size_t n, heads, head_dim;
    size_t rotated; /* even; 0: head_dim */
    float *x;       /* [n, heads * head_dim] */
    size_t ldx;
    const float *cos_table, *sin_table; /* [positions, rotated / 2] */
    size_t pos0;                        /* position of the first row */
    bool back; /* by the negative angle: also turns the gradient of the result into that of x */
} vptq_rope_args;
/* Pairs of a head that are rotated. */
static inline size_t vptq_rope_pairs(const vptq_rope_args *a)
{
    return (a->rotated ? a->rotated : a->head_dim) / 2;
}
typedef vptq_status vptq_op_rope(vptq_dev *dev, const vptq_rope_args *a, vptq_err *err);

/* Causal attention of one sequence with grouped query heads: head h reads kv head h / (heads /
 * kv_heads).  Query i has position pos0 + i and sees positions 0..pos0 + i, or only the last
 * `window` of them if window > 0.  Scores are multiplied by `scale` before the softmax and, if
 * cap > 0, replaced by cap tanh(score / cap). */
typedef struct vptq_attention_args {
    size_t n, pos0, heads, kv_heads, head_dim, window;
    float scale, cap;
    const float *q;             /* [n, heads * head_dim] */
    const float *keys, *values; /* [pos0 + n, kv_heads * head_dim] */
    float *out;                 /* [n, heads * head_dim] */
    float *lse; /* [n, heads] log of the sum of exp of a query's scores, or NULL */
    size_t ldq, ldk, ldv, ldo;
} vptq_attention_args;
typedef vptq_status vptq_op_attention(vptq_dev *dev, const vptq_attention_args *a,
                                      vptq_err *err);

/* mass[j] += sum over heads and queries of p^2 for every position j < pos0 + n, where p is the
 * probability with which a query attends to j.  values, out and lse are not used. */
typedef vptq_status vptq_op_attention_mass(vptq_dev *dev, const vptq_attention_args *a,
                                           double *mass, vptq_err *err);

/* y = silu(gate) * up, all [n, dim], with silu(g) = g / (1 + exp(-g)).  With `gelu`, its
 * approximation by tanh in place of silu, which is g / (1 + exp(-z)) with z = g (c + d g^2), c
 * = sqrt(8 / pi) and d = 0.044715 c.  y may be gate or up; without up (NULL) it is 1. */
#define VPTQ_GELU_C 1.5957691216057308
#define VPTQ_GELU_D (0.044715 * VPTQ_GELU_C)
typedef struct vptq_swiglu_args {
    size_t n, dim;
    bool gelu;
    const float *gate, *up;
    float *y;
} vptq_swiglu_args;
typedef vptq_status vptq_op_swiglu(vptq_dev *dev, const vptq_swiglu_args *a, vptq_err *err);

/* x[i] = cap tanh(x[i] / cap), in place; cap > 0. */
typedef struct vptq_soft_cap_args {
    size_t n;
    float cap;
    float *x; /* [n] */
} vptq_soft_cap_args;
typedef vptq_status vptq_op_soft_cap(vptq_dev *dev, const vptq_soft_cap_args *a, vptq_err *err);

/* Running cross entropy of one token over column tiles of its logits. */
typedef struct vptq_nll_state {
    double max, sum; /* sum of exp(logit - max) so far */
    float target;    /* logit of the target */
    float best;      /* largest logit */
    int32_t best_id; /* its id, the lowest on ties */
} vptq_nll_state;

/* Adds columns [first, first + width) of the logits to the states.  After all columns, the loss
 * of a token is log(sum) + max - target. */
typedef struct vptq_nll_args {
    size_t n, width;
    const float *logits; /* [n, width] */
    size_t ld;
    int32_t first;
    const int32_t *targets; /* [n] target ids; negative: none */
    bool start;             /* resets the states first */
    vptq_nll_state *state;  /* [n] */
} vptq_nll_args;
typedef vptq_status vptq_op_nll(vptq_dev *dev, const vptq_nll_args *a, vptq_err *err);

/* Samples one token per row of logits; rows are independent.
 *
 * temperature 0: ids[i] is the largest logit's id, the lowest on ties.  Otherwise probabilities
 * are softmax(logits / temperature).  Tokens in descending order of logits (the lowest id first
 * on ties) are kept until their probabilities reach top_p (1: all).  ids[i] is the first kept
 * token, in the order of ids, at which the cumulative probability exceeds u[i] times that of
 * all kept tokens.  Infinite logits share all probability equally.  ids[i] = -1 if one of the
 * logits is NaN.
 *
 * Backends agree unless top_p or u is within rounding (about 2^-40) of a boundary; tokens less
 * likely than 2^-40 times the likeliest may count as impossible. */
typedef struct vptq_sample_args {
    size_t n, vocab;
    const float *logits; /* [n, vocab] */
    size_t ld;
    double temperature, top_p;
    const double *u; /* [n] in [0, 1); not read at temperature 0 */
    int32_t *ids;    /* [n] */
} vptq_sample_args;
typedef vptq_status vptq_op_sample(vptq_dev *dev, const vptq_sample_args *s, vptq_err *err);

/* ---- gradients ----
 *
 * dx is the gradient of a loss with respect to x.  Arrays have no gaps between rows. */

/* The gradients of attention of a whole sequence (pos0 0), from what the op got and wrote.
 * With p_ij = exp(score_ij - lse_i) and D_i = dout_i . out_i of a query head,
 *     dv_j = sum_i p_ij dout_i         ds_ij = p_ij (dout_i . v_j - D_i)
 *     dq_i = scale sum_j ds_ij k_j     dk_j = scale sum_i ds_ij q_i
 * and dk and dv are sums over the query heads of a kv head (Dao, "FlashAttention-2", 2023,
 * section 3.1). */
typedef struct vptq_attention_grad_args {
    size_t n, heads, kv_heads, head_dim, window;
    float scale;
    const float *q, *out, *dout; /* [n, heads * head_dim] */
    const float *keys, *values;  /* [n, kv_heads * head_dim] */
    const float *lse;            /* [n, heads] */
    float *dq;                   /* [n, heads * head_dim] */
    float *dkeys, *dvalues;      /* [n, kv_heads * head_dim] */
} vptq_attention_grad_args;
typedef vptq_status vptq_op_attention_grad(vptq_dev *dev, const vptq_attention_grad_args *a,
                                           vptq_err *err);

/* The gradients of rmsnorm.  With r = 1 / sqrt(mean(x^2) + eps) and a = dy * weight of a row,
 *     dx = r a - x r^3 (a . x) / dim     dweight = sum over rows of dy x r */
typedef struct vptq_rmsnorm_grad_args {
    size_t n, dim;
    const float *x, *dy; /* [n, dim] */
    const float *weight; /* [dim] */
    float eps;
    bool add;        /* adds to dx instead of overwriting it */
    float *dx;       /* [n, dim]; may be dy, without `add` */
    double *dweight; /* [dim], added to; or NULL */
} vptq_rmsnorm_grad_args;
typedef vptq_status vptq_op_rmsnorm_grad(vptq_dev *dev, const vptq_rmsnorm_grad_args *a,
                                         vptq_err *err);

/* Replaces gate and up by their gradients. */
typedef struct vptq_swiglu_grad_args {
    size_t n, dim;
    const float *dy; /* all [n, dim] */
    float *gate, *up;
} vptq_swiglu_grad_args;
typedef vptq_status vptq_op_swiglu_grad(vptq_dev *dev, const vptq_swiglu_grad_args *a,
                                        vptq_err *err);

/* The divergence of p = softmax(logits) from a wanted distribution t, and its gradient:
 *     loss[i] = KL(t | p) = sum_j t_j (ln t_j - ln p_j)     logits = scale (p - t)
 * t is softmax(teacher); without a teacher it is 1 at the target, so that the loss is
 * -ln p(target), or there is none (target negative): loss and gradient are 0.  They are exactly
 * 0 too where logits and teacher are equal. */
typedef struct vptq_kl_grad_args {
    size_t n, vocab;
    float *logits;          /* [n, vocab], finite */
    const float *teacher;   /* [n, vocab], finite; or NULL */
    const int32_t *targets; /* [n], below vocab; not read with a teacher */
    float scale;
    double *loss; /* [n] */
} vptq_kl_grad_args;
typedef vptq_status vptq_op_kl_grad(vptq_dev *dev, const vptq_kl_grad_args *a, vptq_err *err);

/* ---- paged key-value cache ---- */

/* Keys and values of one layer in pages of VPTQ_KV_PAGE tokens.  Page p is the elements [p, p +
 * 1) * VPTQ_KV_PAGE * kv_heads * head_dim of both arrays; the layout inside a page is the
 * backend's own. */
enum { VPTQ_KV_PAGE = 32 };
typedef struct vptq_kv_pool {
    vptq_dtype type; /* VPTQ_F16 or VPTQ_F32 */
    size_t kv_heads, head_dim;
    void *keys, *values;
} vptq_kv_pool;

/* Rows of several sequences, one sequence after the other: sequence s has rows [starts[s],
 * starts[s + 1]), at least one, at positions positions[s] onwards.  Its token t is in page
 * table[s * ld_table + t / VPTQ_KV_PAGE]; sequences share no pages. */
typedef struct vptq_kv_rows {
    size_t rows, sequences;
    size_t max_rows;   /* largest number of rows of a sequence */
    size_t max_tokens; /* largest number of tokens of a sequence, these rows included */
    const uint32_t *starts, *positions; /* [sequences + 1], [sequences] */
    const uint32_t *table;              /* [sequences, ld_table] */
    size_t ld_table;
} vptq_kv_rows;

/* rope with each row at its position in its sequence; n and pos0 of `a` are not read. */
typedef vptq_status vptq_op_rope_rows(vptq_dev *dev, const vptq_kv_rows *rows,
                                      const vptq_rope_args *a, vptq_err *err);

/* Stores keys and values in their pages, rounded to the pool's type. */
typedef struct vptq_kv_store_args {
    const vptq_kv_rows *rows;
    const vptq_kv_pool *pool;
    const float *keys; /* [rows, kv_heads * head_dim] */
    size_t ldk;
    const float *values; /* [rows, kv_heads * head_dim] */
    size_t ldv;
} vptq_kv_store_args;
typedef vptq_status vptq_op_kv_store(vptq_dev *dev, const vptq_kv_store_args *a, vptq_err *err);

/* Causal attention of every sequence to its own keys and values; the pool already holds those
 * of these rows.  The rounding of a row may depend on how many rows its sequence has, but not
 * on the other sequences. */
typedef struct vptq_paged_args {
    const vptq_kv_rows *rows;
    const vptq_kv_pool *pool;
    size_t heads, window;
    float scale, cap; /* as for the op attention */
    const float *q;   /* [rows, heads * head_dim] */
    float *out;       /* [rows, heads * head_dim] */
    size_t ldq, ldo;
} vptq_paged_args;
typedef vptq_status vptq_op_attention_paged(vptq_dev *dev, const vptq_paged_args *a,
                                            vptq_err *err);

/* ---- the table ---- */

/* The ops, each a function vptq_BACKEND_NAME of type vptq_op_NAME in every backend. */
/* clang-format off */
#define VPTQ_BACKEND_OPS(OP)                                                                   \
    OP(gemm) OP(syrk_add) OP(channel_range) OP(potrf) OP(trtri)                                \
    OP(quad_trace) OP(assign) OP(accumulate) OP(plus_plus)                                     \
    OP(search_index_open) OP(search_index_close) OP(search)                                    \
    OP(vq_pass) OP(vq_descend) OP(vq_descend_output) OP(vq_gather) OP(vq_scatter)              \
    OP(gemv) OP(library_gemv) OP(uniform_gemv)                                                 \
    OP(matrix_open) OP(matrix_close) OP(vq_dequant) OP(vq_gemv)                                \
    OP(embed) OP(rmsnorm) OP(rope) OP(attention) OP(attention_mass) OP(swiglu)                 \
    OP(soft_cap) OP(nll)                                                                       \
    OP(attention_grad) OP(rmsnorm_grad) OP(swiglu_grad) OP(kl_grad)                            \
    OP(sample) OP(rope_rows) OP(kv_store) OP(attention_paged)                                  \
    VPTQ_ARRAY_OPS(OP)
/* clang-format on */

/* Y [n, out] = X [n, in] W^T, all in float16 without gaps, sums in float, by routine number
 * `way` of the standard libraries. */
typedef struct vptq_half_args {
    size_t out, in, n;
    unsigned way;
    const uint16_t *w, *x;
    uint16_t *y;
} vptq_half_args;

/* Work to be measured. */
typedef vptq_status vptq_work_fn(void *arg, vptq_err *err);

typedef struct vptq_backend {
    const char *name; /* "ref", "cpu", "cuda" */
    bool host_memory; /* ops take any host memory: callers need not upload or download */
    /* A hint: the number of tokens up to which vq_gemv (for a matrix that stays open) and gemv
     * (for one in host memory) are the fastest way.  For more, decode tiles of the matrix and
     * multiply those.  Both ops take any number. */
    size_t gemv_max_tokens;

    /* Opening and closing. */
    vptq_status (*open)(const vptq_ctx *ctx, vptq_dev **dev, vptq_err *err);
    void (*close)(vptq_dev *dev); /* accepts NULL */
    /* Writes one line: kernels, libraries and versions, threads. */
    void (*describe)(const vptq_dev *dev, char *text, size_t size);
    /* Loads the libraries that ops otherwise load on first use and writes their names and
     * versions, or why one cannot be loaded; an empty text if there are none. */
    void (*libraries)(vptq_dev *dev, char *text, size_t size);

    /* Device memory.  ref and cpu allocate host memory of ctx->mem and copy. */
    vptq_status (*alloc)(vptq_dev *dev, size_t count, size_t size, void **ptr, vptq_err *err);
    void (*release)(vptq_dev *dev, void *ptr); /* accepts NULL */
    /* Returns the bytes that alloc can still provide, or SIZE_MAX without a limit; ref and cpu:
     * those under the cap of ctx->mem.  What a device keeps as working memory, and frees for an
     * alloc that needs it, does not count.  Measured anew in each call because other programs
     * may use the same device. */
    size_t (*left)(const vptq_dev *dev);
    vptq_status (*upload)(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                          vptq_err *err);
    /* The same into memory of alloc that no op has used yet: does not wait for earlier ops. */
    vptq_status (*upload_new)(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                              vptq_err *err);
    vptq_status (*download)(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                            vptq_err *err);
    /* copy: from device memory to device memory; clear: sets bytes to 0. */
    vptq_status (*copy)(vptq_dev *dev, void *dst, const void *src, size_t bytes, vptq_err *err);
    vptq_status (*clear)(vptq_dev *dev, void *dst, size_t bytes, vptq_err *err);
    vptq_status (*sync)(vptq_dev *dev, vptq_err *err);

    /* For benchmarks.  Bytes of the largest cache between ops and memory, or 0 if unknown. */
    size_t (*cache_bytes)(const vptq_dev *dev);
    /* Calls fn(arg), which queues ops of this device, and sets *seconds to the time that they
     * take: by the device's own clock and without the host's part of launches where the device
     * has memory of its own (cuda: one graph, between two events), by the host's clock for ref
     * and cpu.  Earlier work is finished first.  The same ops must have run before, so that
     * they neither allocate nor copy now. */
    vptq_status (*measure)(vptq_dev *dev, vptq_work_fn *fn, void *arg, double *seconds,
                           vptq_err *err);
    /* The dense yardstick of a device (cuda: way 0 is cublasGemmEx, the others are what
     * cuBLASLt's heuristic offers, its favourite first).  VPTQ_E_UNSUPPORTED after the last
     * way; without a library, for way 0 with the reason. */
    vptq_status (*library_half)(vptq_dev *dev, const vptq_half_args *a, vptq_err *err);

    vptq_op_assign *reassign;
#define VPTQ_OP_FIELD(op) vptq_op_##op *op;
    VPTQ_BACKEND_OPS(VPTQ_OP_FIELD)
} vptq_backend;

extern const vptq_backend vptq_backend_ref;
const vptq_backend *vptq_backend_cpu(void);
const vptq_backend *vptq_backend_cuda(void); /* only in builds with CUDA */

/* Adds a backend to those that vptq_device_open finds by name; "auto" never chooses it.  The
 * table must stay valid until the program ends.  Call it before any thread opens a device. */
void vptq_backend_register(const vptq_backend *backend);

typedef struct vptq_device {
    const vptq_backend *ops;
    vptq_dev *state;
    const vptq_ctx *ctx; /* kept alive by the caller */
} vptq_device;

/* Opens a device.  "cpu", "ref" and "cuda" open that backend or return VPTQ_E_UNSUPPORTED with
 * the list of those in this build.  "auto" opens the fastest one that works (cuda if a device
 * responds, else cpu) and logs its choice and why it skipped another. */
vptq_status vptq_device_open(const vptq_ctx *ctx, const char *name, vptq_device *dev,
                             vptq_err *err) VPTQ_MUST_CHECK;
void vptq_device_close(vptq_device *dev);

/* Opens the matrix, decodes rows [r0, r0 + n) into host memory w [n, ldw] and closes it. */
vptq_status vptq_device_decode(vptq_device *dev, const vptq_vq *q, size_t r0, size_t n,
                               float *w, size_t ldw, vptq_err *err) VPTQ_MUST_CHECK;

#endif
