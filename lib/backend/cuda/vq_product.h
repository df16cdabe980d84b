/* Internal: input and output of the kernels that multiply by a packed matrix. For vq_*.cu only.
 */
#ifndef VPTQ_BACKEND_CUDA_VQ_PRODUCT_H
#define VPTQ_BACKEND_CUDA_VQ_PRODUCT_H

#include "lib/backend/cuda/matrix.h"

enum {
    FRAGMENT = 16, /* output rows of a tensor core product */
    COLUMNS = 8    /* columns of a tensor core product: tokens, or halves of them */
};

/* How tokens become columns of B, in groups of 8: as two halves of 11 bits (hi + lo), whose
 * products go to the same or to separate columns, or rounded to one. */
enum x_form {
    X_FEW,  /* up to 4 tokens: hi in columns 0..3, lo in 4..7 */
    X_SOME, /* up to 8: hi in one group, lo in another */
    X_MANY  /* any number: hi only, 8 tokens per group */
};

/* The largest value of each token is scaled to 2^X_TOP..2^(X_TOP + 1). */
enum { X_TOP = 14 };

/* x in the order of the layout's columns, times the scale of the columns and the power of two
 * of its token. */
struct product_x {
    const uint2 *fragments; /* [groups of 8][tiles][lanes] */
    uint32_t tiles;
    /* [n] sum of x * bias; factor of the products of the token; both NULL where sums are final
     */
    const float *start, *factor;
};

/* Multiplies the first *rows tokens with GEMM_SMALL, for which r->small must be planned
 * (vq_gemm.cu). */
vptq_status vptq_cuda_vq_gemm(vptq_dev *dev, const vptq_matrix *m, const vptq_cuda_runtime *r,
                              const vptq_gemv_args *g, size_t *rows, vptq_err *err);

/* Multiplies one token with GEMV_GRID (vq_grid.cu). */
vptq_status vptq_cuda_vq_grid(vptq_dev *dev, const vptq_matrix *m, const vptq_cuda_runtime *r,
                              const vptq_gemv_args *g, vptq_err *err);

/* ---- reading ahead ---- */

/* Asks for n bytes, which a block reads soon, all at once. */
static __device__ inline void prefetch_bytes(const void *from, uint32_t n)
{
    for (uint32_t i = threadIdx.x * VPTQ_CUDA_LINE; i < n; i += blockDim.x * VPTQ_CUDA_LINE)
        port_prefetch(static_cast<const char *>(from) + i);
}

/* ---- results ---- */

struct product_out {
    product_x x;
    vptq_gemv_args g;
    uint32_t n, out, split; /* split: blocks that share the columns of their rows */
    float *parts;           /* [split][n][out] partial sums */
    unsigned *arrived;      /* zeros */
};

/* Converts the first n tokens of g->x on the device's stream and fills *o. With `sums` there is
 * memory for parts, [split][n][out]. Valid until the next use of scratch memory (vq_x.cu). The
 * product kernel is launched early: it reads x and writes results after port_grid_wait. */
vptq_status vptq_cuda_product_open(vptq_dev *dev, const vptq_matrix *m,
                                   const vptq_cuda_runtime *r, const vptq_gemv_args *g,
                                   size_t n, x_form form, uint32_t split, bool sums,
                                   product_out *o, vptq_err *err);

/* Returns the power of two that brings a value with these bits to 2^top..2^(top + 1); 1 for NaN
 * and infinity. */
static __device__ inline float vptq_cuda_to_top(unsigned bits, int top)
{
    enum { BIAS = 127, MANTISSA = 23, LIMIT = 100 };
    const int power = (int)(bits >> MANTISSA) - BIAS;
    if (!bits || power > BIAS)
        return 1;
    return __uint_as_float((unsigned)(BIAS + min(top - power, (int)LIMIT)) << MANTISSA);
}

template <class J>
static inline vptq_status vptq_cuda_launch_product(const vptq_dev *dev, void (*kernel)(J),
                                                   unsigned blocks, unsigned threads,
                                                   size_t dynamic, const J &job, vptq_err *err)
{
    return vptq_cuda_check(
        port_launch_early(kernel, blocks, threads, dynamic, dev->stream, job), "vq_gemv", err);
}

static __device__ inline void finish(const product_out &o, uint32_t row, uint32_t b, float sum)
{
    float *y = o.g.y + b * o.g.ldy + row;
    const float base = (o.g.bias ? o.g.bias[row] : 0) + (o.x.start ? o.x.start[b] : 0);
    *y = (o.g.beta != 0 ? *y : 0) + base + (o.x.factor ? sum * o.x.factor[b] : sum);
}

static __device__ inline float *part_of(const product_out &o, uint32_t rank, uint32_t row,
                                        uint32_t b)
{
    return o.parts + ((size_t)rank * o.n + b) * o.out + row;
}

/* Results [row0, row0 + rows) x [b0, b0 + count), to which `split` blocks contribute. */
struct product_share {
    uint32_t row0, rows, b0, count;
    uint32_t counter; /* index of their counter in `arrived` */
};

/* The last block to arrive adds the parts of all blocks in order. *arrived is in shared memory.
 */
static __device__ inline void join_parts(const product_out &o, product_share s,
                                         unsigned *arrived)
{
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        *arrived = atomicAdd(o.arrived + s.counter, 1u);
    __syncthreads();
    if (*arrived + 1 < o.split)
        return;
    __threadfence();
    for (uint32_t i = threadIdx.x; i < s.rows * s.count; i += blockDim.x) {
        const uint32_t row = s.row0 + i % s.rows, b = s.b0 + i / s.rows;
        float sum = 0;
        for (uint32_t r = 0; r < o.split; r++)
            sum += *static_cast<const volatile float *>(part_of(o, r, row, b));
        finish(o, row, b, sum);
    }
    if (threadIdx.x == 0)
        o.arrived[s.counter] = 0;
}

#endif
