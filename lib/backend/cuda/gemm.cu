/* gemm, and gemv of many tokens: both operands are split into halves (split.h) and multiplied
 * on tensor cores (product.h); sums of runs are added in float. Every result is computed in the
 * same way for any shape. */
#include "lib/backend/cuda/gemm.h"

#include "lib/backend/cuda/product.h"

/* Few rows of A: more blocks along B. */
template <bool B_LO> using large = product_shape<4, 2, 8, B_LO>;
using narrow = product_shape<4, 2, 4, true>; /* fits into the 99 KB of smaller devices */
template <bool B_LO> using small = product_shape<1, 4, 2, B_LO>;
enum { SMALL_ROWS = 64, UNIT = 128 /* rows of a piece of work */ };

/* Bytes of one split operand at a time; half as many, and so on, if memory is short. */
static const size_t panel_limit = (size_t)256 << 20;

/* C of a block's panels: [a.rows, b.rows]. */
struct gemm_result {
    float *c;
    size_t ldc;
    float alpha, beta;
    const float *bias;
};

/* budget: gemm_kernel 240 registers */
template <class S>
__global__ static void __launch_bounds__(S::threads, 1)
    gemm_kernel(split_rows a, split_rows b, size_t k, gemm_result to)
{
    const size_t i0 = (size_t)blockIdx.x * S::rows, j0 = (size_t)blockIdx.y * S::columns;
    float sum[2][S::groups][4] = {};
    product<S>(a, b, k, i0, j0,
               [&](const product_sums<S> &part, size_t) { product_add<S>(sum, part); });
    product_each<S>(i0, j0, [&](size_t i, size_t j, unsigned r, unsigned c, unsigned at) {
        if (i >= a.rows)
            return;
        const int e = a.e ? a.e[i] : 0;
#pragma unroll
        for (unsigned next = 0; next < 2; next++) {
            if (j + next >= b.rows)
                continue;
            float *cell = to.c + i * to.ldc + j + next;
            const int all = max(e + (b.e ? b.e[j + next] : 0), -252); /* below: 0 */
            float value = to.alpha * split_scale(sum[r][c][at + next], all);
            if (to.bias)
                value += to.bias[j + next];
            if (to.beta != 0)
                value += *cell;
            *cell = value;
        }
    });
}

template <class S>
static cudaError_t launch(vptq_dev *dev, const split_rows &a, const split_rows &b, size_t k,
                          const gemm_result &to)
{
    const dim3 grid(vptq_cuda_blocks(a.rows, S::rows), vptq_cuda_blocks(b.rows, S::columns));
    return port_launch(gemm_kernel<S>, grid, S::threads, S::shared, dev->stream, a, b,
                       split_stride(k), to);
}

/* Multiplies two panels in pieces of rows of A. */
static vptq_status multiply(vptq_dev *dev, const char *op, const split_rows &a,
                            const split_rows &b, size_t k, const gemm_result &to, vptq_err *err)
{
    const auto piece = [&](size_t first, size_t count) {
        split_rows part = a;
        gemm_result result = to;
        part.hi += first * a.stride;
        part.lo += first * a.stride;
        part.e += first;
        part.rows = count;
        result.c += first * to.ldc;
        const bool few = count <= SMALL_ROWS;
        const bool fits = dev->properties.sharedMemPerBlockOptin >= large<true>::shared;
        const auto start = few     ? (b.lo ? launch<small<true>> : launch<small<false>>)
                           : !b.lo ? launch<large<false>>
                           : fits  ? launch<large<true>>
                                   : launch<narrow>;
        return start(dev, part, b, k, result);
    };
    return vptq_cuda_in_pieces(dev, op, a.rows, (double)b.rows * (double)(k + 1), UNIT, piece,
                               err);
}

/* Rows of a panel of at most `limit` bytes: equal shares in multiples of UNIT. */
static size_t panel_rows(const split_source *s, size_t limit)
{
    const size_t bytes = split_bytes(s->type, UNIT, s->k),
                 units = vptq_cuda_blocks(s->rows, UNIT);
    const size_t most = max((size_t)1, limit / bytes), panels = (units + most - 1) / most;
    return (units + panels - 1) / panels * UNIT;
}

static split_source rows_of(const split_source *s, size_t first, size_t count)
{
    split_source part = *s;
    part.at =
        static_cast<const char *>(s->at) + first * s->row * vptq_dtype_get(s->type)->bytes;
    part.rows = min(count, s->rows - first);
    return part;
}

/* Bytes of panels of at most so many rows. */
static size_t panel_bytes(const split_source *s, size_t rows)
{
    return split_in_place(s) ? 0 : split_bytes(s->type, min(rows, s->rows), s->k);
}

/* Allocates both panels, smaller ones if memory is short. */
static vptq_status alloc_panels(vptq_dev *dev, const split_source *a, const split_source *b,
                                size_t rows[2], void *panels[2], vptq_err *err)
{
    for (size_t limit = panel_limit;; limit /= 2) {
        rows[0] = panel_rows(a, limit);
        rows[1] = split_in_place(b) ? b->rows : panel_rows(b, limit);
        const size_t first = panel_bytes(a, rows[0]);
        const vptq_status st =
            vptq_cuda_scratch(dev, first + panel_bytes(b, rows[1]), panels, err);
        panels[1] = static_cast<char *>(panels[0]) + first;
        if (st != VPTQ_E_NOMEM || (rows[0] == UNIT && (rows[1] == UNIT || split_in_place(b))))
            return st;
    }
}

static split_source source_a(const vptq_gemm_args *g)
{
    return {g->a, VPTQ_F32, g->m, g->k, g->trans_a ? 1 : g->lda, g->trans_a ? g->lda : 1, NULL};
}
static split_source source_b(const vptq_gemm_args *g)
{
    return {g->b, VPTQ_F32, g->n, g->k, g->trans_b ? g->ldb : 1, g->trans_b ? 1 : g->ldb, NULL};
}

vptq_status vptq_cuda_gemm_reserve(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err)
{
    const split_source a = source_a(g), b = source_b(g);
    size_t rows[2];
    void *panels[2];
    return alloc_panels(dev, &a, &b, rows, panels, err);
}

vptq_status vptq_cuda_multiply(vptq_dev *dev, const char *op, const split_source *a,
                               const split_source *b, const vptq_gemm_args *g, vptq_err *err)
{
    void *panels[2];
    size_t rows[2];
    split_rows left, right;
    VPTQ_CHECK(alloc_panels(dev, a, b, rows, panels, err));
    for (size_t j = 0; j < b->rows; j += rows[1]) {
        const split_source part_b = rows_of(b, j, rows[1]);
        VPTQ_CHECK(split(dev, op, &part_b, panels[1], &right, err));
        for (size_t i = 0; i < a->rows; i += rows[0]) {
            const split_source part_a = rows_of(a, i, rows[0]);
            const gemm_result to = {g->c + i * g->ldc + j, g->ldc, g->alpha, g->beta,
                                    g->bias ? g->bias + j : NULL};
            if (j == 0 || rows[0] < a->rows)
                VPTQ_CHECK(split(dev, op, &part_a, panels[0], &left, err));
            VPTQ_CHECK(multiply(dev, op, left, right, a->k, to, err));
        }
    }
    return VPTQ_OK;
}

vptq_status vptq_cuda_gemm(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err)
{
    const split_source a = source_a(g), b = source_b(g);
    return g->m && g->n ? vptq_cuda_multiply(dev, "gemm", &a, &b, g, err) : VPTQ_OK;
}
