/* vq_dequant and vq_gather: centroid lookups in the order of operations of lib/base/vq.h. */
#include "lib/backend/cuda/matrix.h"

enum { THREADS = 128 };

/* ---- vq_dequant ---- */

/* A matrix on the device with values derived from its shape. */
struct stored_matrix {
    vptq_vq q;
    size_t row_words; /* words per vector row and group */
    uint32_t vector_rows;
    unsigned bits, main_bits; /* bits of an entry and of its main index */
};

/* Decodes rows [first, last) of column p, all of one vector row. Block: 128 columns of a vector
 * row. */
/* budget: dequant_kernel 64 registers */
__global__ static void __launch_bounds__(THREADS)
    dequant_kernel(stored_matrix m, size_t r0, size_t r1, float *w, size_t ldw)
{
    const vptq_vq_shape &s = m.q.shape;
    const uint32_t p = blockIdx.x * THREADS + threadIdx.x;
    const size_t vector_row = r0 / s.v + blockIdx.y;
    if (p >= s.in)
        return;
    const size_t column = m.q.perm ? m.q.perm[p] : p;
    const size_t first = max(r0, vector_row * s.v), last = min(r1, (vector_row + 1) * s.v);
    const float *main = NULL, *res = NULL;
    if (p >= s.outliers) {
        const uint32_t g = (p - s.outliers) / s.group_size,
                       at = (p - s.outliers) % s.group_size;
        const uint32_t entry = vptq_bits_get(
            m.q.indices + (g * (size_t)m.vector_rows + vector_row) * m.row_words, at, m.bits);
        main = m.q.centroids + (g * (size_t)s.k + (entry & (s.k - 1))) * s.v;
        if (s.k_res)
            res = m.q.res_centroids + (g * (size_t)s.k_res + (entry >> m.main_bits)) * s.v;
    }
    for (size_t r = first; r < last; r++) {
        float value;
        if (main) {
            value = main[r % s.v];
            if (res)
                value += res[r % s.v];
        } else {
            const size_t o = m.q.outlier_indices[r / s.v0 * s.outliers + p];
            value = m.q.outlier_centroids[o * s.v0 + r % s.v0];
        }
        if (m.q.scale) {
            value *= m.q.scale[column]; /* two roundings: built with -fmad=false */
            value += m.q.bias[column];
        }
        w[(r - r0) * ldw + column] = value;
    }
}

vptq_status vptq_cuda_vq_dequant(vptq_dev *dev, const vptq_matrix *matrix, size_t r0, size_t n,
                                 float *w, size_t ldw, vptq_err *err)
{
    const vptq_vq_shape *s = &matrix->q.shape;
    const vptq_vq *q = NULL;
    if (!n)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_cuda_matrix_stored(dev, matrix, &q, err));
    const stored_matrix m = {*q, vptq_vq_row_words(s), vptq_vq_vector_rows(s),
                             vptq_vq_index_bits(s), vptq_log2u(s->k)};
    const size_t max_vector_rows = 65535; /* vector rows per launch: the limit of gridDim.y */
    for (size_t first = r0; first < r0 + n;) {
        const size_t vector_rows = (r0 + n - 1) / s->v - first / s->v + 1;
        const size_t now = vector_rows < max_vector_rows ? vector_rows : max_vector_rows;
        const size_t end = (first / s->v + now) * s->v, last = end < r0 + n ? end : r0 + n;
        const dim3 grid(vptq_cuda_blocks(s->in, THREADS), (unsigned)now);
        VPTQ_CHECK(vptq_cuda_check(port_launch(dequant_kernel, grid, THREADS, 0, dev->stream, m,
                                               first, last, w + (first - r0) * ldw, ldw),
                                   "vq_dequant", err));
        first = last;
    }
    return VPTQ_OK;
}

/* ---- vq_gather ---- */

/* budget: gather_kernel 48 registers */
__global__ static void __launch_bounds__(THREADS) gather_kernel(vptq_gather_args g)
{
    const size_t t = blockIdx.x;
    for (size_t i = threadIdx.x; i < g.rows; i += THREADS) {
        const size_t at = t * g.ldi + i / g.v, d = i % g.v;
        float value = g.centroids[g.idx[at] * (size_t)g.v + d];
        if (g.k_res)
            value += g.res_centroids[g.idx_res[at] * (size_t)g.v + d];
        g.q[t * g.ldq + i] = value;
    }
}

vptq_status vptq_cuda_vq_gather(vptq_dev *dev, const vptq_gather_args *g, vptq_err *err)
{
    if (!g->cols || !g->rows)
        return VPTQ_OK;
    return vptq_cuda_check(
        port_launch(gather_kernel, (unsigned)g->cols, THREADS, 0, dev->stream, *g), "vq_gather",
        err);
}
