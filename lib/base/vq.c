/* Checks and sizes of a vector-quantized matrix (vq.h). */
#include "lib/base/vq.h"

enum { STORED_BITS = 16, INT8_BITS = 8, WORD_BITS = 32, MAX_INDEX_BITS = 32 };

static bool is_codebook_size(uint32_t k)
{
    return k >= 1 && k <= VPTQ_VQ_MAX_K && (k & (k - 1)) == 0;
}

static vptq_status check_outliers(const vptq_vq_shape *s, vptq_err *err)
{
    if (!s->outliers) {
        if (s->v0 || s->k0)
            return vptq_fail(err, VPTQ_E_SHAPE,
                             "an outlier codebook (%u centroids of %u) without outlier columns",
                             s->k0, s->v0);
        return VPTQ_OK;
    }
    if (s->v0 < 1 || s->v0 > VPTQ_VQ_MAX_V)
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "vector length %u of the outlier columns is not in 1..%d", s->v0,
                         VPTQ_VQ_MAX_V);
    if (s->k0 < 1 || s->k0 > VPTQ_VQ_MAX_K)
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "%u centroids of the outlier columns is not in 1..%d", s->k0,
                         VPTQ_VQ_MAX_K);
    return VPTQ_OK;
}

vptq_status vptq_vq_shape_check(const vptq_vq_shape *s, vptq_err *err)
{
    if (!s->out || !s->in || s->in > VPTQ_VQ_MAX_K)
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "a matrix of %u x %u (expected at least one row and 1..%d columns)",
                         s->out, s->in, VPTQ_VQ_MAX_K);
    if (s->v < 1 || s->v > VPTQ_VQ_MAX_V)
        return vptq_fail(err, VPTQ_E_SHAPE, "vector length %u is not in 1..%d", s->v,
                         VPTQ_VQ_MAX_V);
    if (!is_codebook_size(s->k))
        return vptq_fail(err, VPTQ_E_SHAPE, "%u centroids is not a power of two up to %d", s->k,
                         VPTQ_VQ_MAX_K);
    if (s->k_res && !is_codebook_size(s->k_res))
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "%u residual centroids is not a power of two up to %d", s->k_res,
                         VPTQ_VQ_MAX_K);
    unsigned bits = vptq_vq_index_bits(s);
    if (bits < 1 || bits > MAX_INDEX_BITS)
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "%u and %u centroids need %u index bits (expected 1..%d)", s->k,
                         s->k_res, bits, MAX_INDEX_BITS);
    if (!s->groups || !s->group_size)
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "%u groups of %u columns (expected at least one of one)", s->groups,
                         s->group_size);
    uint64_t columns = s->outliers + (uint64_t)s->groups * s->group_size;
    if (columns != s->in)
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "%u outlier columns and %u groups of %u columns do not make the %u "
                         "columns of the matrix",
                         s->outliers, s->groups, s->group_size, s->in);
    return check_outliers(s, err);
}

static uint64_t codebook_bits(const vptq_vq_shape *s, uint64_t numbers)
{
    return s->int8 ? numbers * INT8_BITS + STORED_BITS : numbers * STORED_BITS;
}

vptq_vq_bits vptq_vq_count_bits(const vptq_vq_shape *s)
{
    vptq_vq_bits b = {0};
    uint64_t rows = (uint64_t)s->groups * vptq_vq_vector_rows(s);
    b.indices = rows * vptq_vq_row_words(s) * WORD_BITS;
    b.codebooks = s->groups * codebook_bits(s, (uint64_t)s->k * s->v);
    if (s->k_res)
        b.codebooks += s->groups * codebook_bits(s, (uint64_t)s->k_res * s->v);
    if (s->has_norm)
        b.norm = (uint64_t)s->in * 2 * STORED_BITS;
    if (s->has_perm)
        b.perm = (uint64_t)s->in * STORED_BITS;
    if (s->outliers) {
        uint64_t vector_rows = (s->out + s->v0 - 1) / s->v0;
        b.outlier_indices = vector_rows * s->outliers * STORED_BITS;
        b.outlier_codebook = codebook_bits(s, (uint64_t)s->k0 * s->v0);
    }
    b.total =
        b.indices + b.codebooks + b.norm + b.perm + b.outlier_indices + b.outlier_codebook;
    b.per_weight = (double)b.total / ((double)s->out * (double)s->in);
    return b;
}
