/* Internal: the ops that the encoder, k-means and factoring need between searches and products,
 * and those of uniform quantization.  With them an array stays on the device from the first
 * step to the last.
 *
 * Most are one loop; backend.h has the rules that all ops share.  Arrays are in device memory
 * unless a comment says "host".  Elements are floats rounded after every operation, sums are
 * doubles added in the order of indices (cuda: in another fixed order). */
#ifndef VPTQ_BACKEND_ARRAY_OPS_H
#define VPTQ_BACKEND_ARRAY_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"
#include "lib/base/status.h"

typedef struct vptq_dev vptq_dev;

/* ---- checks and statistics of weights ---- */

/* *first = the lowest i with x[i] outside [min, max] or NaN, else n. */
typedef struct vptq_outside_args {
    size_t n;
    const float *x;
    float min, max;
    size_t *first; /* host */
} vptq_outside_args;
typedef vptq_status vptq_op_first_outside(vptq_dev *dev, const vptq_outside_args *a,
                                          vptq_err *err);

/* Bias and scale of every column of w [out, in]: mean and standard deviation (divided by out),
 * or with `range` minimum and maximum - minimum. */
typedef struct vptq_norms_args {
    size_t out, in; /* out at least 1 */
    const float *w;
    bool range;
    double *bias, *scale; /* [in] */
} vptq_norms_args;
typedef vptq_status vptq_op_column_norms(vptq_dev *dev, const vptq_norms_args *a,
                                         vptq_err *err);

/* z[i][r] = (w[r][order[i]] - bias[order[i]]) / scale[order[i]] for r < out, 0 for the rows
 * after them. */
typedef struct vptq_normalize_args {
    size_t out, in, rows;
    const float *w;            /* [out, in] */
    const uint32_t *order;     /* [in] */
    const float *scale, *bias; /* [in] */
    float *z;                  /* [in, rows] */
} vptq_normalize_args;
typedef vptq_status vptq_op_normalize(vptq_dev *dev, const vptq_normalize_args *a,
                                      vptq_err *err);

/* ---- symmetric matrices ---- */

/* Unpacks a lower triangle in double: with o = order[i], p = order[j] and 1 on the diagonal for
 * I,
 *     A[i][j] = scale[o] * (lower[o][p] / divisor + ridge * I) * scale[p] + damping * I.
 * Writes the lower triangle of a, both triangles of h as floats, the diagonal to diag; each may
 * be NULL. */
typedef struct vptq_metric_args {
    size_t n;
    const float *lower;    /* [n (n + 1) / 2] packed */
    const uint32_t *order; /* [n], or NULL for 0, 1, .. */
    const float *scale;    /* [n], or NULL for ones */
    double divisor, ridge, damping;
    bool reversed; /* reads order from its end */
    double *a;     /* [n, n] */
    float *h;      /* [n, n] */
    double *diag;  /* [n] */
} vptq_metric_args;
typedef vptq_status vptq_op_metric(vptq_dev *dev, const vptq_metric_args *a, vptq_err *err);

/* packed += x, one row after the other: all n entries of a row, or with `lower` the first i + 1
 * of row i. */
typedef struct vptq_packed_args {
    size_t rows, n;  /* rows <= n with `lower` */
    const double *x; /* [rows, n] */
    bool lower;
    bool first; /* packed = x: it is not read */
    double *packed;
} vptq_packed_args;
typedef vptq_status vptq_op_add_packed(vptq_dev *dev, const vptq_packed_args *a, vptq_err *err);

/* u = J A J with J the reversal of rows and columns, A lower triangular: u[i][j] = a[n - 1 -
 * i][n - 1 - j] for i <= j, rounded, and 0 below the diagonal. */
typedef struct vptq_upper_args {
    size_t n;
    const double *a; /* [n, n] */
    float *u;        /* [n, n] */
} vptq_upper_args;
typedef vptq_status vptq_op_reverse_upper(vptq_dev *dev, const vptq_upper_args *a,
                                          vptq_err *err);

/* ---- matrices [cols, rows], each column a run of rows ---- */

/* z = x - y; z may be x or y. */
typedef struct vptq_subtract_args {
    size_t cols, rows;
    const float *x, *y;
    float *z;
    size_t ldx, ldy, ldz;
} vptq_subtract_args;
typedef vptq_status vptq_op_subtract(vptq_dev *dev, const vptq_subtract_args *a, vptq_err *err);

/* y[t] = a[t] * x[t] + b[t] in the first `valid` rows, 0 in those after them.  Copies x without
 * factors a and b.  y may be x. */
typedef struct vptq_affine_args {
    size_t cols, rows, valid;
    const float *x;     /* NULL: y[t] = b[t] */
    const float *a, *b; /* [cols], NULL: 1 and 0 */
    float *y;
    size_t ldx, ldy;
} vptq_affine_args;
typedef vptq_status vptq_op_affine(vptq_dev *dev, const vptq_affine_args *a, vptq_err *err);

/* sums[t] = x[t] . y[t]. */
typedef struct vptq_dots_args {
    size_t cols, rows;
    const float *x, *y; /* y NULL: ones */
    size_t ldx, ldy;
    double *sums; /* [cols] */
} vptq_dots_args;
typedef vptq_status vptq_op_column_dots(vptq_dev *dev, const vptq_dots_args *a, vptq_err *err);

/* Solves U^T X = Y in place by forward substitution: for t = 0..cols-1, x[t] = (y[t] - the sum
 * over s < t of u[s][t] * x[s]) / u[t][t], in float. */
typedef struct vptq_solve_args {
    size_t cols, rows;
    const float *u; /* [cols, cols]; only the upper triangle is read */
    float *x;       /* [cols, rows] in: Y, out: X */
    size_t ldu, ldx;
} vptq_solve_args;
typedef vptq_status vptq_op_solve_upper(vptq_dev *dev, const vptq_solve_args *a, vptq_err *err);

/* ---- numbers in double, conjugate gradients ---- */

/* *sum = x . y. */
typedef struct vptq_dot_args {
    size_t n;
    const double *x, *y;
    double *sum; /* host */
} vptq_dot_args;
typedef vptq_status vptq_op_dot(vptq_dev *dev, const vptq_dot_args *a, vptq_err *err);

/* x += alpha * d, r -= alpha * ad, s = r / m (0 unless m > 0), *rho = r . s. */
typedef struct vptq_cg_step_args {
    size_t n;
    double alpha;
    const double *d, *ad, *m;
    double *x, *r, *s;
    double *rho; /* host */
} vptq_cg_step_args;
typedef vptq_status vptq_op_cg_step(vptq_dev *dev, const vptq_cg_step_args *a, vptq_err *err);

/* d = s + beta * d, and its rounded copy. */
typedef struct vptq_cg_turn_args {
    size_t n;
    double beta;
    const double *s;
    double *d;
    float *rounded;
} vptq_cg_turn_args;
typedef vptq_status vptq_op_cg_turn(vptq_dev *dev, const vptq_cg_turn_args *a, vptq_err *err);

/* sum += x, in double. */
typedef struct vptq_widen_args {
    size_t n;
    const float *x;
    double *sum;
} vptq_widen_args;
typedef vptq_status vptq_op_add_widened(vptq_dev *dev, const vptq_widen_args *a, vptq_err *err);

/* y = x / divisor, rounded. */
typedef struct vptq_narrow_args {
    size_t n;
    double divisor;
    const double *x;
    float *y;
} vptq_narrow_args;
typedef vptq_status vptq_op_narrow(vptq_dev *dev, const vptq_narrow_args *a, vptq_err *err);

/* y += x, added in double. */
typedef struct vptq_add_args {
    size_t n;
    const double *x;
    float *y;
} vptq_add_args;
typedef vptq_status vptq_op_add_rounded(vptq_dev *dev, const vptq_add_args *a, vptq_err *err);

/* ---- clustering ---- */

/* Moves every centroid with a positive weight to the mean of its vectors, sums / weight. */
typedef struct vptq_move_args {
    uint32_t k, v;
    const double *sums;    /* [k, v] */
    const double *weights; /* [k] */
    float *centroids;      /* [k, v] in and out */
    float *before;         /* [k, v] out: the centroids before the move */
    double *moved;         /* host: the sum of squared moves, taken before rounding */
    uint32_t *empty;       /* host: the centroids without a positive weight */
} vptq_move_args;
typedef vptq_status vptq_op_move_centroids(vptq_dev *dev, const vptq_move_args *a,
                                           vptq_err *err);

/* The `count` vectors with the largest losses w * |x - c_idx|^2 above 0, largest first and the
 * lowest index first on ties.  If fewer have one, the list ends with losses of 0, whose indices
 * have no meaning. */
typedef struct vptq_worst_args {
    size_t n, count; /* count at most n */
    uint32_t v, k;
    const float *x;         /* [n, v] */
    const float *w;         /* [n], or NULL for ones */
    const uint32_t *idx;    /* [n] */
    const float *centroids; /* [k, v] */
    double *loss;           /* host: [count] */
    uint32_t *at;           /* host: [count] */
} vptq_worst_args;
typedef vptq_status vptq_op_worst_vectors(vptq_dev *dev, const vptq_worst_args *a,
                                          vptq_err *err);

/* ---- uniform quantization ----
 *
 * Codes of `bits` bits (1 to 8) stand for evenly spaced numbers: in row r, code c for (c -
 * zero[r]) * scale[r], rounded to float and then to `storage`, F16 or BF16
 * (lib/base/uniform.h). All backends give the same bits, except those of a NaN. */

enum { VPTQ_PRUNE_MAX_M = 8 }; /* columns of the largest n:m pattern */

/* Scale and zero point of every row.  With lo = min(0, min z) and hi = max(0, max z) over the
 * columns of z, NaN ignored, or with `symmetric` the larger of -lo and hi on both sides,
 *     scale = (hi - lo) / (2^bits - 1)    zero = clamp(rint(-lo / scale), 0, 2^bits - 1)
 * in float.  The scale is rounded to the storage type before it is used; it is infinite if that
 * cannot hold it, and the smallest positive normal number of the type if it would be 0 (a row
 * of zeros, or tiny numbers).  With `symmetric` the zero point is 2^(bits - 1). */
typedef struct vptq_uniform_range_args {
    size_t cols, rows;
    const float *z; /* [cols, rows] */
    size_t ldz;
    uint32_t bits;
    bool symmetric;
    vptq_dtype storage;
    float *scale;  /* [rows] */
    uint8_t *zero; /* [rows] */
} vptq_uniform_range_args;
typedef vptq_status vptq_op_uniform_range(vptq_dev *dev, const vptq_uniform_range_args *a,
                                          vptq_err *err);

/* Marks the weights of a block that are pruned: with score |z[t][r] / u[t][t]| in float, those
 * whose score is at most the one at position `rank` (from 0) of all scores in ascending order.
 * The score of a NaN is above all others. */
typedef struct vptq_prune_mask_args {
    size_t cols, rows;
    const float *z; /* [cols, rows] */
    const float *u; /* [cols, cols]; only the diagonal is read */
    size_t rank;    /* below cols * rows */
    uint8_t *mask;  /* [cols, rows] 1: pruned, 0: not */
    size_t ldz, ldu, ldm;
} vptq_prune_mask_args;
typedef vptq_status vptq_op_prune_mask(vptq_dev *dev, const vptq_prune_mask_args *a,
                                       vptq_err *err);

/* One block of the column pass, as vq_pass, with uniform codes.  For t = 0..cols-1 and every
 * row r, in float with halves rounded to even:
 *     code = clamp(rint(z[t][r] / scale[r]) + zero[r], 0, 2^bits - 1), 0 for NaN
 *     err[t][r] = (z[t][r] - d) / u[t][t], d being what the code stands for
 *     z[s][r] -= err[t][r] * u[t][s] for t < s < cols, the product rounded first
 * Without u nothing is propagated: z is only read, and err is not written.
 *
 * Some elements can be pruned, which needs u: those of the mask, or with prune_m, of every
 * prune_m columns from t = 0 on in every row, the prune_n with the smallest |z / u[t][t]| when
 * the first of them is reached (of equal ones the first, of NaN the last).  A pruned element
 * has d = 0 and code zero[r].  Without scale the others are not rounded: d = z, no codes are
 * written, and z becomes d. */
typedef struct vptq_uniform_pass_args {
    size_t cols, rows;
    float *z;       /* [cols, rows] in: compensated so far; out: as it was quantized */
    const float *u; /* [cols, cols]; only the upper triangle is read; or NULL */
    uint32_t bits;
    vptq_dtype storage;
    const float *scale;        /* [rows] positive; or NULL, with u */
    const uint8_t *zero;       /* [rows] at most 2^bits - 1; may be NULL without scale */
    uint8_t *codes;            /* [cols, rows]; may be NULL without scale */
    float *err;                /* [cols, rows]; may be NULL without u */
    const uint8_t *mask;       /* [cols, rows] not 0: pruned; or NULL */
    uint32_t prune_n, prune_m; /* 1 <= n < m <= VPTQ_PRUNE_MAX_M, m divides cols; or both 0 */
    size_t ldz, ldu, ldc, lde, ldm;
} vptq_uniform_pass_args;
typedef vptq_status vptq_op_uniform_pass(vptq_dev *dev, const vptq_uniform_pass_args *a,
                                         vptq_err *err);

/* ---- products of bytes ----
 *
 * A linear layer with 8-bit activations: every token's input is quantized, and multiplied by
 * uniform codes of 8 bits without zero points, one scale per row (lib/base/uniform.h).  Sums
 * are exact and everything else has one order, so that all backends give the same bits, except
 * those of a NaN. */

/* Columns up to which a sum of products fits in 32 bits. */
enum { VPTQ_BYTES_MAX_COLUMNS = 132000 };
/* Bytes of a quantized row: whole words, as rows of codes have them. */
#define VPTQ_BYTES_ROW(cols) (((cols) + 3) / 4 * 4)

/* Quantizes each row of x by its largest magnitude m, in float with halves rounded to even:
 *     scale = m / 127      q = rint(x * (127 / m))       from -127 to 127
 * Rows with m < 2^-119 count as zeros: scale 0, q 0.  If m is not finite, q is 0 and the scale
 * is m / 127, so that products become NaN. */
typedef struct vptq_quantize_rows_args {
    size_t rows, cols;
    const float *x; /* [rows, cols] */
    size_t ldx;
    int8_t *q; /* [rows, VPTQ_BYTES_ROW(cols)] without gaps, aligned to 4; zeros at the end */
    float *scale; /* [rows] */
} vptq_quantize_rows_args;
#define VPTQ_BYTES_LEAST 0x1p-119F
typedef vptq_status vptq_op_quantize_rows(vptq_dev *dev, const vptq_quantize_rows_args *a,
                                          vptq_err *err);

/* y[t][o] = (float)(sum over i of q[t][i] (codes[o][i] - 128)) * (q_scale[t] * scale[o]), the
 * sum exact; then + bias[o], if there is one; then + the old y[t][o] if beta is 1. */
typedef struct vptq_multiply_bytes_args {
    size_t rows, out, in;  /* in at most VPTQ_BYTES_MAX_COLUMNS */
    const int8_t *q;       /* [rows, VPTQ_BYTES_ROW(in)] and */
    const float *q_scale;  /* [rows], of quantize_rows */
    const uint32_t *codes; /* [out, VPTQ_BYTES_ROW(in) / 4], four codes to a word */
    const float *scale;    /* [out] */
    const float *bias;     /* [out] or NULL */
    float beta;            /* 0 (y is not read) or 1 */
    float *y;              /* [rows, out] */
    size_t ldy;
} vptq_multiply_bytes_args;
typedef vptq_status vptq_op_multiply_bytes(vptq_dev *dev, const vptq_multiply_bytes_args *a,
                                           vptq_err *err);

/* ---- packing ---- */

/* Packs the indices of a column group as lib/base/vq.h stores them: entry e of row i is idx |
 * idx_res << main_bits of vector row i of column `column[e]`.  Unused bits of a row are 0. */
typedef struct vptq_pack_args {
    size_t cols, vector_rows;
    unsigned bits, main_bits;      /* of an entry and of its main index */
    const uint32_t *idx, *idx_res; /* [cols, vector_rows]; idx_res NULL without residuals */
    const uint32_t *column;        /* [cols], or NULL for 0, 1, .. */
    uint32_t *words;               /* [vector_rows, ldw] */
    size_t ldw;
} vptq_pack_args;
typedef vptq_status vptq_op_vq_pack(vptq_dev *dev, const vptq_pack_args *a, vptq_err *err);

/* clang-format off */
#define VPTQ_ARRAY_OPS(OP)                                                                     \
    OP(first_outside) OP(column_norms) OP(normalize) OP(metric) OP(add_packed)                 \
    OP(reverse_upper) OP(subtract) OP(affine) OP(column_dots) OP(solve_upper)                  \
    OP(dot) OP(cg_step) OP(cg_turn) OP(add_rounded) OP(add_widened) OP(narrow)                 \
    OP(move_centroids) OP(worst_vectors) OP(uniform_range) OP(prune_mask) OP(uniform_pass)     \
    OP(vq_pack) OP(quantize_rows) OP(multiply_bytes)
/* clang-format on */

#endif
