/* The ops of uniform quantization. A thread takes a row through all columns: rows are
 * independent, and neighbouring threads read neighbouring elements of a column. A column first
 * receives the errors of all earlier columns in order, so that every operation is one of `ref`.
 */
#include <float.h>
#include <math.h>

#include "lib/backend/cuda/cuda.h"

enum {
    THREADS = 64, /* few, so that the rows of one matrix reach all multiprocessors */
    UNROLL = 8,   /* reads of earlier columns that overlap */
    MASK_THREADS = 1024,
    DIGITS = 256
};

static __device__ inline float round_to(vptq_dtype storage, float x)
{
    return storage == VPTQ_F16 ? __half2float(__float2half_rn(x))
                               : __bfloat162float(__float2bfloat16_rn(x));
}

/* NaN becomes 0. */
static __device__ inline float clamp(float x, float most)
{
    const float low = x > 0 ? x : 0;
    return low < most ? low : most;
}

/* budget: range_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS) range_kernel(vptq_uniform_range_args a)
{
    const size_t r = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const float most = (float)((1u << a.bits) - 1);
    float lo = 0, hi = 0;
    if (r >= a.rows)
        return;
#pragma unroll UNROLL
    for (size_t t = 0; t < a.cols; t++) {
        const float z = a.z[t * a.ldz + r];
        lo = z < lo ? z : lo;
        hi = z > hi ? z : hi;
    }
    if (a.symmetric) {
        hi = hi > -lo ? hi : -lo;
        lo = -hi;
    }
    float scale = round_to(a.storage, (hi - lo) / most);
    if (scale <= 0)
        scale = a.storage == VPTQ_F16 ? 0x1p-14f : FLT_MIN;
    a.scale[r] = scale;
    a.zero[r] =
        (uint8_t)(a.symmetric ? (float)(1u << (a.bits - 1)) : clamp(rintf(-lo / scale), most));
}

vptq_status vptq_cuda_uniform_range(vptq_dev *dev, const vptq_uniform_range_args *a,
                                    vptq_err *err)
{
    if (!a->rows)
        return VPTQ_OK;
    return vptq_cuda_check(port_launch(range_kernel, vptq_cuda_blocks(a->rows, THREADS),
                                       THREADS, 0, dev->stream, *a),
                           "uniform_range", err);
}

/* |z / u| as a number whose order is that of the quotients, every NaN above all others. */
static __device__ inline unsigned prune_key(float z, float u)
{
    const float score = fabsf(z / u);
    return score <= INFINITY ? __float_as_uint(score) : 0x7f800001u;
}

struct selection {
    size_t rank;
    unsigned found, count[DIGITS];
};

/* One block for all: it finds the key at position rank digit by digit, from the keys that begin
 * with the digits before. */
/* budget: mask_kernel 48 registers */
__global__ static void __launch_bounds__(MASK_THREADS) mask_kernel(vptq_prune_mask_args a)
{
    selection &s = port_shared<selection>();
    if (!threadIdx.x) {
        s.found = 0;
        s.rank = a.rank;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (unsigned i = threadIdx.x; i < DIGITS; i += MASK_THREADS)
            s.count[i] = 0;
        __syncthreads();
        const unsigned above = shift < 24 ? ~0u << (shift + 8) : 0;
        for (size_t t = 0; t < a.cols; t++)
            for (size_t r = threadIdx.x; r < a.rows; r += MASK_THREADS) {
                const unsigned key = prune_key(a.z[t * a.ldz + r], a.u[t * a.ldu + t]);
                if (!((key ^ s.found) & above))
                    atomicAdd(&s.count[key >> shift & (DIGITS - 1)], 1u);
            }
        __syncthreads();
        if (!threadIdx.x) {
            unsigned digit = 0;
            for (; s.rank >= s.count[digit]; digit++)
                s.rank -= s.count[digit];
            s.found |= digit << shift;
        }
        __syncthreads();
    }
    for (size_t t = 0; t < a.cols; t++)
        for (size_t r = threadIdx.x; r < a.rows; r += MASK_THREADS)
            a.mask[t * a.ldm + r] =
                prune_key(a.z[t * a.ldz + r], a.u[t * a.ldu + t]) <= s.found;
}

vptq_status vptq_cuda_prune_mask(vptq_dev *dev, const vptq_prune_mask_args *a, vptq_err *err)
{
    return vptq_cuda_check(port_launch(mask_kernel, 1, MASK_THREADS, 0, dev->stream, *a),
                           "prune_mask", err);
}

/* Element r of column t after the errors of the first `before` columns. */
static __device__ inline float compensated(const vptq_uniform_pass_args &a, size_t t, size_t r,
                                           size_t before)
{
    float z = a.z[t * a.ldz + r];
#pragma unroll UNROLL
    for (size_t s = 0; s < before; s++)
        z -= a.err[s * a.lde + r] * a.u[s * a.ldu + t];
    return z;
}

/* Of a pattern, each thread's own; registers cannot be indexed. */
struct pattern_keys {
    unsigned of[VPTQ_PRUNE_MAX_M][THREADS];
};

/* Bit i: column t + i of row r is pruned. */
static __device__ inline unsigned pruned_from(const vptq_uniform_pass_args &a, size_t t,
                                              size_t r)
{
    pattern_keys &keys = port_shared<pattern_keys>();
    const unsigned me = threadIdx.x;
    unsigned pruned = 0;
    if (!a.prune_m)
        return a.mask && a.mask[t * a.ldm + r];
    for (unsigned i = 0; i < a.prune_m; i++)
        keys.of[i][me] = prune_key(compensated(a, t + i, r, t), a.u[(t + i) * a.ldu + t + i]);
    for (unsigned i = 0; i < a.prune_m; i++) {
        const unsigned key = keys.of[i][me];
        unsigned before = 0;
        for (unsigned k = 0; k < a.prune_m; k++)
            before += keys.of[k][me] < key || (keys.of[k][me] == key && k < i);
        if (before < a.prune_n)
            pruned |= 1u << i;
    }
    return pruned;
}

/* budget: pass_kernel 64 registers */
__global__ static void __launch_bounds__(THREADS)
    pass_kernel(vptq_uniform_pass_args a, size_t first)
{
    const size_t r = first + (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (r >= a.rows)
        return;
    const float scale = a.scale ? a.scale[r] : 1, zero = a.scale ? (float)a.zero[r] : 0;
    const float most = (float)((1u << a.bits) - 1);
    const size_t step = a.prune_m ? a.prune_m : 1;
    unsigned pruned = 0;
    for (size_t t = 0; t < a.cols; t++, pruned >>= 1) {
        if (t % step == 0)
            pruned = pruned_from(a, t, r);
        const float z = a.u ? compensated(a, t, r, t) : a.z[t * a.ldz + r];
        const float code = pruned & 1 ? zero : clamp(rintf(z / scale) + zero, most);
        if (a.scale)
            a.codes[t * a.ldc + r] = (uint8_t)code;
        if (!a.u)
            continue;
        const float kept = a.scale ? round_to(a.storage, (code - zero) * scale) : z;
        const float d = pruned & 1 ? 0 : kept;
        a.z[t * a.ldz + r] = a.scale ? z : d;
        a.err[t * a.lde + r] = (z - d) / a.u[t * a.ldu + t];
    }
}

vptq_status vptq_cuda_uniform_pass(vptq_dev *dev, const vptq_uniform_pass_args *a,
                                   vptq_err *err)
{
    const double cols = (double)a->cols, each = a->prune_m ? cols * cols : cols * cols / 2;
    const auto launch = [&](size_t first, size_t count) {
        return port_launch(pass_kernel, vptq_cuda_blocks(count, THREADS), THREADS, 0,
                           dev->stream, *a, first);
    };
    if (!a->cols)
        return VPTQ_OK;
    return vptq_cuda_in_pieces(dev, "uniform_pass", a->rows, a->u ? each : cols, THREADS,
                               launch, err);
}
