/* embed, rmsnorm, rope, swiglu, soft_cap and nll: one block per row, neighbouring threads on
 * neighbouring elements. */
#include "lib/backend/cuda/cuda.h"

enum { THREADS = 256 };

/* ---- embed ---- */

static __device__ float stored(const void *table, vptq_dtype type, size_t i)
{
    if (type == VPTQ_F32)
        return static_cast<const float *>(table)[i];
    const unsigned short bits = static_cast<const unsigned short *>(table)[i];
    return type == VPTQ_F16 ? __half2float(__ushort_as_half(bits))
                            : __bfloat162float(__ushort_as_bfloat16(bits));
}

/* budget: embed_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS) embed_kernel(vptq_embed_args a)
{
    const size_t row = (size_t)a.ids[blockIdx.x] * a.dim;
    for (size_t j = threadIdx.x; j < a.dim; j += THREADS)
        a.out[blockIdx.x * a.dim + j] =
            stored(a.table, a.type, row + j) * (a.scale != 0 ? a.scale : 1);
}

vptq_status vptq_cuda_embed(vptq_dev *dev, const vptq_embed_args *a, vptq_err *err)
{
    if (a->type != VPTQ_F32 && a->type != VPTQ_F16 && a->type != VPTQ_BF16)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "an embedding table of type %s; it must be F32, F16 or BF16",
                         vptq_dtype_get(a->type)->name);
    if (!a->n)
        return VPTQ_OK;
    return vptq_cuda_check(
        port_launch(embed_kernel, (unsigned)a->n, THREADS, 0, dev->stream, *a), "embed", err);
}

/* ---- rmsnorm ---- */

/* budget: rmsnorm_kernel 48 registers */
__global__ static void __launch_bounds__(THREADS) rmsnorm_kernel(vptq_rmsnorm_args a)
{
    const float *x = a.x + blockIdx.x * a.ldx;
    float *y = a.y + blockIdx.x * a.ldy;
    double sum = 0, mean = 0;
    for (size_t j = threadIdx.x; a.bias && j < a.dim; j += THREADS)
        mean += (double)x[j];
    if (a.bias)
        mean = port_block_sum(mean) / (double)a.dim;
    for (size_t j = threadIdx.x; j < a.dim; j += THREADS)
        sum += ((double)x[j] - mean) * ((double)x[j] - mean);
    sum = port_block_sum(sum);
    const double scale = 1 / sqrt(sum / (double)a.dim + (double)a.eps);
    /* A thread writes only elements that it has read itself, so y may be x. */
    for (size_t j = threadIdx.x; j < a.dim; j += THREADS) {
        const float more = a.bias ? a.bias[j] : a.add ? y[j] : 0;
        y[j] = (float)(((double)x[j] - mean) * scale * (double)a.weight[j] + (double)more);
    }
}

vptq_status vptq_cuda_rmsnorm(vptq_dev *dev, const vptq_rmsnorm_args *a, vptq_err *err)
{
    if (!a->n)
        return VPTQ_OK;
    return vptq_cuda_check(
        port_launch(rmsnorm_kernel, (unsigned)a->n, THREADS, 0, dev->stream, *a), "rmsnorm",
        err);
}

/* ---- rope ---- */

/* budget: rope_kernel 48 registers */
__global__ static void __launch_bounds__(THREADS) rope_kernel(vptq_rope_args a)
{
    vptq_cuda_rope_row(a, blockIdx.x, a.pos0 + blockIdx.x);
}

vptq_status vptq_cuda_rope(vptq_dev *dev, const vptq_rope_args *a, vptq_err *err)
{
    if (!a->n)
        return VPTQ_OK;
    return vptq_cuda_check(
        port_launch(rope_kernel, (unsigned)a->n, THREADS, 0, dev->stream, *a), "rope", err);
}

/* ---- swiglu ---- */

/* budget: swiglu_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS)
    swiglu_kernel(size_t count, bool gelu, const float *gate, const float *up, float *y)
{
    const size_t all = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += all) {
        const float g = gate[i];
        const float z = gelu ? g * fmaf(g * g, (float)VPTQ_GELU_D, (float)VPTQ_GELU_C) : g;
        y[i] = g / (1 + expf(-z)) * (up ? up[i] : 1);
    }
}

vptq_status vptq_cuda_swiglu(vptq_dev *dev, const vptq_swiglu_args *a, vptq_err *err)
{
    const size_t count = a->n * a->dim;
    if (!count)
        return VPTQ_OK;
    const unsigned max_blocks = 1 << 16, blocks = vptq_cuda_blocks(count, THREADS);
    return vptq_cuda_check(port_launch(swiglu_kernel, blocks < max_blocks ? blocks : max_blocks,
                                       THREADS, 0, dev->stream, count, a->gelu, a->gate, a->up,
                                       a->y),
                           "swiglu", err);
}

/* ---- soft_cap ---- */

/* budget: soft_cap_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS) soft_cap_kernel(vptq_soft_cap_args a)
{
    const size_t all = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < a.n; i += all)
        a.x[i] = vptq_cuda_soft_cap_of(a.x[i], a.cap);
}

vptq_status vptq_cuda_soft_cap(vptq_dev *dev, const vptq_soft_cap_args *a, vptq_err *err)
{
    if (!a->n)
        return VPTQ_OK;
    const unsigned max_blocks = 1 << 16, blocks = vptq_cuda_blocks(a->n, THREADS);
    return vptq_cuda_check(port_launch(soft_cap_kernel,
                                       blocks < max_blocks ? blocks : max_blocks, THREADS, 0,
                                       dev->stream, *a),
                           "soft_cap", err);
}

/* ---- nll ---- */

struct nll_best {
    float value;
    int32_t id; /* -1: none yet */
};

/* The larger value, the lower id on ties. */
static __device__ inline nll_best better(nll_best a, nll_best b)
{
    const bool second = b.value > a.value || (b.value == a.value && b.id < a.id);
    return b.id < 0 ? a : a.id < 0 || second ? b : a;
}

static __device__ inline nll_best warp_best(nll_best b)
{
    for (int with = PORT_LANES / 2; with; with /= 2)
        b = better(b, {__shfl_xor_sync(port_all, b.value, with),
                       __shfl_xor_sync(port_all, b.id, with)});
    return b;
}

struct nll_shared {
    nll_best of_warp[PORT_LANES];
};

/* The largest logit of the row and its first column, in every thread; NaN is skipped. */
static __device__ nll_best row_best(const float *logits, size_t width)
{
    nll_shared &s = port_shared<nll_shared>();
    nll_best best = {-INFINITY, -1};
    for (size_t j = threadIdx.x; j < width; j += THREADS)
        if (logits[j] > best.value)
            best = {logits[j], (int32_t)j};
    best = warp_best(best);
    if (port_lane() == 0)
        s.of_warp[port_warp()] = best;
    __syncthreads();
    const nll_best none = {-INFINITY, -1};
    return warp_best(port_lane() < THREADS / PORT_LANES ? s.of_warp[port_lane()] : none);
}

/* budget: nll_kernel 48 registers */
__global__ static void __launch_bounds__(THREADS) nll_kernel(vptq_nll_args a)
{
    const float *logits = a.logits + blockIdx.x * a.ld;
    vptq_nll_state *state = a.state + blockIdx.x;
    const vptq_nll_state none = {-INFINITY, 0, -INFINITY, -INFINITY, -1};
    vptq_nll_state s = a.start ? none : *state;
    const nll_best best = row_best(logits, a.width);
    if (best.value > s.best) {
        s.best = best.value;
        s.best_id = a.first + best.id;
    }
    const double before = s.max;
    s.max = fmax(s.max, (double)best.value);
    if (s.max > before)
        s.sum *= exp(before - s.max);
    /* If all logits so far are -inf, the shift must be finite or the sum becomes NaN. */
    const float max = (float)s.max, shift = max == -INFINITY ? 0 : max;
    double sum = 0;
    for (size_t j = threadIdx.x; j < a.width; j += THREADS)
        sum += (double)expf(logits[j] - shift);
    s.sum += port_block_sum(sum); /* all threads have read the state before one writes it */
    if (threadIdx.x)
        return;
    const int64_t target = (int64_t)a.targets[blockIdx.x] - a.first;
    if (target >= 0 && (uint64_t)target < a.width)
        s.target = logits[target];
    *state = s;
}

vptq_status vptq_cuda_nll(vptq_dev *dev, const vptq_nll_args *a, vptq_err *err)
{
    if (!a->n)
        return VPTQ_OK;
    return vptq_cuda_check(port_launch(nll_kernel, (unsigned)a->n, THREADS, 0, dev->stream, *a),
                           "nll", err);
}
