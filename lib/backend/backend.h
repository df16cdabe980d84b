/* The backend seam: a const table of function pointers per kind of device.
 *
 * `ref` is plain C, complete and the oracle (double where that makes it exacter); `cpu` starts
 * as a copy of it and overrides rows (BLIS's habit), so no row is ever NULL.  Algorithms are
 * written once against the table.  All arrays that rows take are in the device's memory (for
 * ref and cpu: any host memory), row-major, and do not overlap unless said.  Shapes are given
 * as [rows, columns]; `ld` is the distance between rows in elements.  Rows validate nothing:
 * callers have checked shapes. Results of a row do not depend on the number of threads.  A row
 * that takes seconds for a large matrix may answer VPTQ_E_CANCELLED between two of its blocks.
 * A vptq_device is used by one thread at a time.
 *
 *     vptq_device dev;
 *     VPTQ_TRY(vptq_device_open(&ctx, "auto", &dev, err));
 *     VPTQ_TRY(dev.ops->gemm(dev.state, &g, err));
 *     vptq_device_close(&dev);
 */
#ifndef VPTQ_BACKEND_BACKEND_H
#define VPTQ_BACKEND_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/ctx.h"
#include "lib/base/dtype.h"
#include "lib/base/vq.h"

typedef struct vptq_dev vptq_dev; /* a backend's own state */

/* C [m, n] = A [m, k] * op(B) + beta * C (+ bias[n] on every row), float.
 * trans_b: B is [n, k] (a weight as stored, out x in), else [k, n].
 * trans_a: A is [k, m], else [m, k].  beta is 0 or 1 (C is not read when 0). */
typedef struct vptq_gemm_args {
    size_t m, n, k;
    const float *a, *b;
    float *c;
    size_t lda, ldb, ldc;
    bool trans_a, trans_b;
    float alpha, beta;
    const float *bias; /* [n] or NULL */
} vptq_gemm_args;

/* Causal attention of one sequence with grouped query heads.
 * q, out: [n, heads * head_dim]; keys, values: [pos0 + n, kv_heads * head_dim], head h reads kv
 * head h / (heads / kv_heads).  Query i stands at position pos0 + i and sees positions 0..pos0
 * + i, or the last `window` of them when window > 0.  Scores are scaled by `scale` before the
 * softmax. */
typedef struct vptq_attention_args {
    size_t n, pos0, heads, kv_heads, head_dim, window;
    float scale;
    const float *q, *keys, *values;
    float *out;
    size_t ldq, ldk, ldv, ldo;
} vptq_attention_args;

/* Keys and values of one layer in pages of VPTQ_KV_PAGE tokens each.  Page p is the elements
 * [p, p + 1) * VPTQ_KV_PAGE * kv_heads * head_dim of both arrays; what stands where within it
 * is the backend's own. */
enum { VPTQ_KV_PAGE = 32 };
typedef struct vptq_kv_pool {
    vptq_dtype type; /* VPTQ_F16 or VPTQ_F32 */
    size_t kv_heads, head_dim;
    void *keys, *values;
} vptq_kv_pool;

/* Rows of several sequences one behind the other: sequence s is rows [starts[s], starts[s +
 * 1]), at least one, at positions[s] and behind it.  Its token t is in page table[s * ld_table
 * + t / VPTQ_KV_PAGE]; no page belongs to two sequences. */
typedef struct vptq_kv_rows {
    size_t rows, sequences;
    size_t most_rows, most_tokens; /* rows of a sequence at most, and tokens with them */
    const uint32_t *starts, *positions, *table; /* [sequences + 1], [sequences], .. */
    size_t ld_table;
} vptq_kv_rows;

/* Causal attention as above of every sequence to its own keys and values, those of its rows
 * with them, which the pool holds already.  q, out: [rows, heads * head_dim]. */
typedef struct vptq_paged_args {
    const vptq_kv_rows *rows;
    const vptq_kv_pool *pool;
    size_t heads, window;
    float scale;
    const float *q;
    float *out;
    size_t ldq, ldo;
} vptq_paged_args;

/* Running cross entropy of one token over column tiles of the logits. */
typedef struct vptq_nll_state {
    double max, sum; /* sum = sum of exp(logit - max) over what was seen */
    float target;    /* logit of the target */
    float best;      /* largest logit ... */
    int32_t best_id; /* ... and its id (lowest on ties) */
} vptq_nll_state;

/* Choosing tokens by their logits [n, vocab], rows ld apart; every row on its own.
 * temperature 0: ids[i] is the largest logit's, the lowest id on ties.  Else probabilities are
 * softmax(logits / temperature), and of the tokens in the order of their logits (the lowest id
 * first on ties) the shortest beginning is kept whose probabilities reach top_p (1: all).  u[i]
 * in [0, 1) draws from what is kept, in the order of ids: the first one behind which the
 * probabilities sum up to more than u[i] of those kept.  An infinite logit is as likely as its
 * equals, all others then have no probability.  ids[i] = -1: one of the row's logits is NaN.
 * Backends choose alike unless top_p or u lies within rounding (some 2^-40) of a border; tokens
 * that are less likely than 2^-40 of the likeliest one may count as impossible. */
typedef struct vptq_sample_args {
    size_t n, vocab;
    const float *logits;
    size_t ld;
    double temperature, top_p;
    const double *u; /* [n], not read at temperature 0 */
    int32_t *ids;    /* [n] */
} vptq_sample_args;

/* The codebooks of one group of columns, and how pairs of them are searched.  A vector x stands
 * for the pair (c, r) that minimizes |x - c - r|^2 among: the `beam` main centroids nearest to
 * x (or more of them), each with its best residual centroid.  beam 1 is the greedy choice
 * (nearest c, then nearest r to what is left), beam >= k the exact one; without residual
 * codebook beam means nothing.  The lowest index wins on ties of the computed score.  `local`
 * allows searches that keep choices to look only among the main centroids around the present
 * one: at v 8, k 4096, k_res 256 it takes 1.48 us per vector in place of 2.08 on one core (cpu,
 * AVX-512), and the encoder ends with 0.5 to 0.7 % more loss. */
typedef struct vptq_codebooks {
    uint32_t v, k, k_res; /* k_res 0 = no residual codebook */
    uint32_t beam;        /* at least 1 */
    bool local;
    const float *centroids;     /* [k, v] */
    const float *res_centroids; /* [k_res, v] or NULL */
} vptq_codebooks;

/* Codebooks made ready for searching by a backend (packed, norms and products of pairs taken):
 * what is inside is the backend's own.  Belongs to the device that made it; the arrays of the
 * codebooks must live and stay as they are as long as it does. */
typedef struct vptq_search_index vptq_search_index;

/* Choices for n vectors x [n, v].  With `keep`, idx (and idx_res) come in as choices that stay
 * unless another one is strictly nearer (distances compared in the same arithmetic); else they
 * are only written.  dist (may be NULL): |x - (c + r)|^2 of the choice, from the differences.
 */
typedef struct vptq_search_args {
    size_t n;
    const vptq_search_index *index;
    const float *x;
    bool keep;
    uint32_t *idx, *idx_res; /* [n]; idx_res NULL without residual codebook */
    float *dist;
} vptq_search_args;

/* One block of the column pass (paper Algorithm 1), all in transposed layout: column j of the
 * (normalized, ordered) matrix is a contiguous run of `rows` floats, rows a multiple of v.
 * For t = 0..cols-1: quantize column t of z as the search index does, err[t] = (z[t] - q[t]) /
 * u[t][t], z[s] -= err[t] * u[t][s] for t < s < cols.  Vector rows (v rows) are independent of
 * each other. */
typedef struct vptq_pass_args {
    size_t cols, rows;
    const vptq_search_index *index;
    float *z; /* [cols, rows] in: compensated so far; out: at the moment of quantization */
    const float *u;          /* [cols, cols], upper triangle used */
    uint32_t *idx, *idx_res; /* [cols, rows / v]; idx_res NULL without residual codebook */
    float *q;                /* [cols, rows] */
    float *err;              /* [cols, rows] */
    size_t ldz, ldu, ldi, ldq, lde;
} vptq_pass_args;

/* One block of a sweep of coordinate descent over indices, same layout.  With E = q - w and
 * G = E H, the loss tr(E H E^T) as a function of column t alone is H_tt |q_t - (q_t - g_t /
 * H_tt)|^2 + const.  For t = 0..cols-1: the choice nearest to q[t] - g[t] / h[t][t] is taken,
 * the old one kept unless another is strictly nearer (vptq_search_args.keep); delta[t] = new
 * q[t]
 * - old q[t]; g[s] += delta[t] * h[t][s] for t < s < cols.  g itself is only read: the caller
 * brings it up to date with delta.  A column with h[t][t] <= 0 is left alone. */
typedef struct vptq_descend_args {
    size_t cols, rows;
    const vptq_search_index *index;
    const float *g;          /* [cols, rows] */
    const float *h;          /* [cols, cols], upper triangle used */
    uint32_t *idx, *idx_res; /* [cols, rows / v] in and out */
    float *q;                /* [cols, rows] in and out: what idx stands for */
    float *delta;            /* [cols, rows] out */
    size_t ldg, ldh, ldi, ldq, ldd;
} vptq_descend_args;

/* Between codebooks and what they stand for; idx [cols, rows / v], a column's vectors in a run.
 */
typedef struct vptq_gather_args {
    size_t cols, rows;
    uint32_t v, k, k_res;
    const float *centroids, *res_centroids;
    const uint32_t *idx, *idx_res;
    float *q; /* [cols, rows] = centroids[idx] + res_centroids[idx_res] */
    size_t ldi, ldq;
} vptq_gather_args;

typedef struct vptq_scatter_args {
    size_t cols, rows;
    uint32_t v, k;
    const float *y;      /* [cols, rows] */
    const float *weight; /* [cols] or NULL for ones */
    const uint32_t *idx; /* [cols, rows / v] */
    double *sums;        /* [k, v] = sum of weight[t] * y over the uses of each centroid */
    double *weights;     /* [k] = sum of weight[t] over the uses, or NULL */
    size_t ldy, ldi;
} vptq_scatter_args;

/* y [n, out] = x [n, in] W^T + beta * y (+ bias on every row) for few rows, W [out, in] as it
 * is stored: what decoding asks for, where a weight is used once and converting it first would
 * be most of the work.  beta is 0 or 1 (y is not read when 0).  A row of y does not depend on
 * the values of the other rows of x; what it is rounded to may depend on their number. */
typedef struct vptq_gemv_args {
    size_t n;
    const float *x;
    float *y;
    size_t ldx, ldy;
    float beta;
    const float *bias; /* [out] or NULL */
} vptq_gemv_args;

/* A packed matrix made ready by a backend: what rows are decoded from and multiplied with.
 * Belongs to the device that made it.  The arrays of the vptq_vq are HOST memory, of every
 * backend; they must live and stay as they are as long as the handle does, the vptq_vq itself
 * need not.  A device with memory of its own takes what a use needs at the first such use. */
typedef struct vptq_matrix vptq_matrix;

typedef struct vptq_backend {
    const char *name; /* "ref", "cpu", "cuda" */
    bool host_memory; /* rows take any host memory: callers need not upload and download */
    /* Rows of x up to which vq_gemv is the fast way for a matrix that stays open, and gemv for
     * one in host memory: with more of them, callers do better to decode tiles of the matrix
     * and multiply those.  A hint: both take any number. */
    size_t stored_rows;

    /* life */
    vptq_status (*open)(const vptq_ctx *ctx, vptq_dev **dev, vptq_err *err);
    void (*close)(vptq_dev *dev); /* accepts NULL */
    /* One line: kernels, libraries and versions, threads. */
    void (*describe)(const vptq_dev *dev, char *text, size_t size);
    /* Libraries that rows load when they first ask for them, loaded for this: names and
     * versions, or why one cannot be had; empty where there are none. */
    void (*libraries)(vptq_dev *dev, char *text, size_t size);

    /* memory of the device; for ref and cpu host memory of ctx->mem, and copies */
    vptq_status (*alloc)(vptq_dev *dev, size_t count, size_t size, void **ptr, vptq_err *err);
    void (*release)(vptq_dev *dev, void *ptr); /* accepts NULL */
    /* Bytes that alloc may still give, for choosing sizes, each time anew: other programs may
     * take of a device's memory at any time.  Of ctx->mem's cap for ref and cpu; SIZE_MAX where
     * there is no limit. */
    size_t (*left)(const vptq_dev *dev);
    vptq_status (*upload)(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                          vptq_err *err);
    vptq_status (*download)(vptq_dev *dev, void *dst, const void *src, size_t bytes,
                            vptq_err *err);
    vptq_status (*sync)(vptq_dev *dev, vptq_err *err);

    /* linear algebra */
    vptq_status (*gemm)(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err);
    /* H[i][j] += sum_t w_t x_t[i] x_t[j] for j <= i (lower triangle of [n, n] double, the rest
     * is untouched), sum[i] += sum_t w_t x_t[i].  x: [t, n]; w: [t] or NULL for ones.  Products
     * are taken in float over at most 256 tokens and added in double, blocks in order. */
    vptq_status (*syrk_add)(vptq_dev *dev, size_t t, size_t n, const float *x, size_t ldx,
                            const float *w, double *h, double *sum, vptq_err *err);
    /* Lower Cholesky factor in place, a: [n, n] double, only the lower triangle is read and
     * written. VPTQ_E_NUMERIC when a pivot is not positive; *bad_pivot is its index then (may
     * be NULL). */
    vptq_status (*potrf)(vptq_dev *dev, size_t n, double *a, size_t lda, size_t *bad_pivot,
                         vptq_err *err);
    /* Inverse of a lower triangular matrix in place. */
    vptq_status (*trtri)(vptq_dev *dev, size_t n, double *a, size_t lda, vptq_err *err);

    /* *trace = sum_r e_r H e_r^T in double for e [m, n] float and symmetric H [n, n] double of
     * which only the lower triangle is read: tr(E H E^T), the proxy loss. */
    vptq_status (*quad_trace)(vptq_dev *dev, size_t m, size_t n, const float *e, size_t lde,
                              const double *h, size_t ldh, double *trace, vptq_err *err);

    /* clustering: x [n, v], c [k, v], all contiguous */
    /* idx[i] = argmin_j |x_i - c_j|^2, the lowest j on ties of the computed score; dist[i] (may
     * be NULL) = |x_i - c_idx|^2 computed from the differences.  Never stores n * k anything.
     */
    vptq_status (*assign)(vptq_dev *dev, size_t n, uint32_t v, uint32_t k, const float *x,
                          const float *c, uint32_t *idx, float *dist, vptq_err *err);
    /* The same with labels idx[i] < k to start from: faster the nearer the vectors still are to
     * those centroids.  `before` [k, v] (may be NULL): the codebook for which this device found
     * the labels; faster the fewer centroids have moved since. */
    vptq_status (*reassign)(vptq_dev *dev, size_t n, uint32_t v, uint32_t k, const float *x,
                            const float *before, const float *c, uint32_t *idx, vptq_err *err);
    /* sums[j] = sum of w_i x_i [k, v], weights[j] = sum of w_i [k] over idx[i] == j
     * (overwritten), *objective = sum_i w_i |x_i - c_idx(i)|^2.  w: [n] or NULL for ones. */
    vptq_status (*accumulate)(vptq_dev *dev, size_t n, uint32_t v, uint32_t k, const float *x,
                              const float *w, const uint32_t *idx, const float *c, double *sums,
                              double *weights, double *objective, vptq_err *err);

    /* vector quantization */
    vptq_status (*matrix_open)(vptq_dev *dev, const vptq_vq *q, vptq_matrix **m, vptq_err *err);
    void (*matrix_close)(vptq_dev *dev, vptq_matrix *m); /* accepts NULL */
    /* Rows [r0, r0 + n) of the matrix into w [n, ldw]; bit-exact order of operations as in
     * vq.h. */
    vptq_status (*vq_dequant)(vptq_dev *dev, const vptq_matrix *m, size_t r0, size_t n,
                              float *w, size_t ldw, vptq_err *err);
    /* W = the decoded matrix, which need not exist: centroids are looked up and multiplied
     * (docs/gpu.md: more than 8 rows). */
    vptq_status (*vq_gemv)(vptq_dev *dev, const vptq_matrix *m, const vptq_gemv_args *g,
                           vptq_err *err);
    /* W = w, rows of `in` elements of type F32, F16 or BF16 without gaps, any alignment. */
    vptq_status (*gemv)(vptq_dev *dev, size_t out, size_t in, vptq_dtype type, const void *w,
                        const vptq_gemv_args *g, vptq_err *err);
    /* The same of F32 by the library that people would call for it (OpenBLAS, cuBLAS), with all
     * threads: only to measure the others against.  VPTQ_E_UNSUPPORTED where there is none. */
    vptq_status (*library_gemv)(vptq_dev *dev, size_t out, size_t in, const float *w,
                                const vptq_gemv_args *g, vptq_err *err);
    vptq_status (*search_index_open)(vptq_dev *dev, const vptq_codebooks *codebooks,
                                     vptq_search_index **index, vptq_err *err);
    void (*search_index_close)(vptq_dev *dev, vptq_search_index *index); /* accepts NULL */
    vptq_status (*search)(vptq_dev *dev, const vptq_search_args *f, vptq_err *err);
    vptq_status (*vq_pass)(vptq_dev *dev, const vptq_pass_args *p, vptq_err *err);
    vptq_status (*vq_descend)(vptq_dev *dev, const vptq_descend_args *d, vptq_err *err);
    vptq_status (*vq_gather)(vptq_dev *dev, const vptq_gather_args *g, vptq_err *err);
    vptq_status (*vq_scatter)(vptq_dev *dev, const vptq_scatter_args *s, vptq_err *err);

    /* transformer */
    /* out [n, dim] = rows ids[i] of table [vocab, dim] of type F32, F16 or BF16. */
    vptq_status (*embed)(vptq_dev *dev, size_t n, size_t dim, const void *table,
                         vptq_dtype type, const int32_t *ids, float *out, vptq_err *err);
    /* y[i] = x[i] / sqrt(mean(x[i]^2) + eps) * weight; rows ldx, ldy apart; y may be x. */
    vptq_status (*rmsnorm)(vptq_dev *dev, size_t n, size_t dim, const float *x, size_t ldx,
                           const float *weight, float eps, float *y, size_t ldy, vptq_err *err);
    /* In place on x [n, heads * head_dim] (rows ldx apart), "rotate half" pairing (i, i +
     * head_dim/2); row i uses table row pos0 + i of cos, sin [*, head_dim / 2]. */
    vptq_status (*rope)(vptq_dev *dev, size_t n, size_t heads, size_t head_dim, float *x,
                        size_t ldx, const float *cos_table, const float *sin_table, size_t pos0,
                        vptq_err *err);
    vptq_status (*attention)(vptq_dev *dev, const vptq_attention_args *a, vptq_err *err);
    /* mass[j] += sum over heads and queries of p^2 for every position j < pos0 + n, p the
     * probability with which a query of that head attends to j (values and out are not read).
     */
    vptq_status (*attention_mass)(vptq_dev *dev, const vptq_attention_args *a, double *mass,
                                  vptq_err *err);
    /* rope for rows of several sequences, each row with the angles of its position. */
    vptq_status (*rope_rows)(vptq_dev *dev, const vptq_kv_rows *rows, size_t heads,
                             size_t head_dim, float *x, size_t ldx, const float *cos_table,
                             const float *sin_table, vptq_err *err);
    /* Keys and values [rows, kv_heads * head_dim] into the pages, rounded to the pool's type.
     */
    vptq_status (*kv_store)(vptq_dev *dev, const vptq_kv_rows *rows, const vptq_kv_pool *pool,
                            const float *keys, size_t ldk, const float *values, size_t ldv,
                            vptq_err *err);
    /* What a sequence's row is rounded to may depend on how many rows of it there are, not on
     * the other sequences. */
    vptq_status (*attention_paged)(vptq_dev *dev, const vptq_paged_args *a, vptq_err *err);
    /* y = silu(gate) * up, all [n, dim]; y may be gate or up. */
    vptq_status (*swiglu)(vptq_dev *dev, size_t n, size_t dim, const float *gate,
                          const float *up, float *y, vptq_err *err);
    /* Folds columns [first, first + width) of the logits (given as [n, width], rows ld apart)
     * into state[n]; targets[i] is the id of row i's target, < 0 = none. `start` clears the
     * states first. The loss of a token is log(sum) + max - target once all columns went in. */
    vptq_status (*nll)(vptq_dev *dev, size_t n, size_t width, const float *logits, size_t ld,
                       int32_t first, const int32_t *targets, bool start, vptq_nll_state *state,
                       vptq_err *err);
    vptq_status (*sample)(vptq_dev *dev, const vptq_sample_args *s, vptq_err *err);
} vptq_backend;

extern const vptq_backend vptq_backend_ref;
const vptq_backend *vptq_backend_cpu(void);
/* In programs that link them (docs/backend-howto.md): on a GPU, and the same under the
 * emulator.
 */
const vptq_backend *vptq_backend_cuda(void);
const vptq_backend *vptq_backend_emu(void);

typedef struct vptq_device {
    const vptq_backend *ops;
    vptq_dev *state;
    const vptq_ctx *ctx; /* kept alive by the caller */
} vptq_device;

/* "auto" = the fastest that opens here (cuda where a device answers, else cpu); "cpu", "ref",
 * "cuda" = that one or VPTQ_E_UNSUPPORTED naming what this build has.  Nothing falls back
 * silently: auto logs its choice, and why it left one out. */
vptq_status vptq_device_open(const vptq_ctx *ctx, const char *name, vptq_device *dev,
                             vptq_err *err) VPTQ_MUST_CHECK;
void vptq_device_close(vptq_device *dev);

/* vq_dequant of a matrix that is opened for this alone, into host memory. */
vptq_status vptq_device_decode(vptq_device *dev, const vptq_vq *q, size_t r0, size_t n,
                               float *w, size_t ldw, vptq_err *err) VPTQ_MUST_CHECK;

#endif
