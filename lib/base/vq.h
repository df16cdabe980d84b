/* Internal: one vector-quantized matrix in memory: the packed reader fills it, the backends
 * decode it, the encoder produces it and the packer writes it.
 *
 * W is [out, in].  "Processing order" is the order of columns in the file: position p holds
 * input channel perm[p] (identity without perm).  The first `outliers` positions use the
 * outlier codebook; then group g covers the next `group_size` positions.  A vector is `v`
 * consecutive rows of one column; the last vector of a column may run past `out` (its tail is
 * dropped).
 *
 *     p < outliers:  q[r][p] = outlier_centroids[o[r / v0][p]][r % v0]
 *     otherwise:     q[r][p] = centroids[g][i][r % v] + res_centroids[g][l][r % v]
 *     W[r][perm[p]] = q[r][p] * scale[perm[p]] + bias[perm[p]]
 *
 * each operation rounded to float separately (no fused multiply-add).  (i, l) is entry c = (p -
 * outliers) % group_size of the bit stream of (g, r / v): i in the low log2(k) bits, l above
 * it. Source: microsoft/VPTQ VQuantLinear; docs/formats/vptq-layout.md. */
#ifndef VPTQ_BASE_VQ_H
#define VPTQ_BASE_VQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/bits.h"
#include "lib/base/status.h"
#include "lib/vptq.h"

enum { VPTQ_VQ_MAX_V = 64, VPTQ_VQ_MAX_K = 65536 };

/* The stored form of a matrix W [out, in]. */
typedef struct vptq_vq_shape {
    uint32_t out, in;
    uint32_t v, k, k_res; /* vector length; centroids, residual centroids: powers of two.  k_res
                             0 = no residual codebook */
    uint32_t groups, group_size; /* in = outliers + groups * group_size */
    uint32_t outliers, v0, k0;   /* outlier columns, vector length and centroids of theirs */
    bool has_perm, has_norm;     /* whether perm, and scale and bias, are stored */
    bool int8;                   /* codebooks are stored as whole numbers of 8 bits and a scale
                                    each (lib/base/grid.h) */
} vptq_vq_shape;

/* Every stored bit of a matrix, by part. */
typedef struct vptq_vq_bits {
    uint64_t indices, codebooks, norm, perm, outlier_indices, outlier_codebook, total;
    double per_weight; /* total / (out * in) */
} vptq_vq_bits;

typedef struct vptq_vq {
    vptq_vq_shape shape;
    const uint32_t *indices;         /* [groups][ceil(out/v)][vptq_vq_row_words] */
    const float *centroids;          /* [groups][k][v]; values exact in the storage type */
    const float *res_centroids;      /* [groups][k_res][v] or NULL */
    const uint16_t *outlier_indices; /* [ceil(out/v0)][outliers] or NULL */
    const float *outlier_centroids;  /* [k0][v0] or NULL */
    const uint16_t *perm;            /* [in] or NULL */
    const float *scale, *bias;       /* [in] by input channel, or both NULL */
} vptq_vq;

static inline uint32_t vptq_vq_vector_rows(const vptq_vq_shape *s) /* vectors per column */
{
    return (s->out + s->v - 1) / s->v;
}

static inline unsigned
vptq_vq_index_bits(const vptq_vq_shape *s) /* T: main + residual, 0..32 */
{
    return vptq_log2u(s->k) + (s->k_res ? vptq_log2u(s->k_res) : 0);
}

static inline size_t
vptq_vq_row_words(const vptq_vq_shape *s) /* words of one (group, vector row) row */
{
    return vptq_bits_words(s->group_size, vptq_vq_index_bits(s));
}

/* VPTQ_E_SHAPE naming the first broken rule: v in 1..64, k and k_res powers of two up
 * to 65536 with 1 <= T <= 32, in <= 65536, in = outliers + groups * group_size, outlier
 * codebook complete. */
vptq_status vptq_vq_shape_check(const vptq_vq_shape *s, vptq_err *err) VPTQ_MUST_CHECK;

vptq_vq_bits vptq_vq_count_bits(const vptq_vq_shape *s);

#endif
