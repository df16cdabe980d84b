/* The ops of uniform quantization. A thread takes a row through all columns: rows are
 * independent, and neighbouring threads read neighbouring elements of a column. A column first
 * receives the errors of all earlier columns in order, so that every operation is one of `ref`.
 */
#include <float.h>
#include <math.h>

#include "lib/backend/cuda/cuda.h"

enum {
    THREADS = 64, /* few, so that the rows of one matrix reach all multiprocessors */
    UNROLL = 8    /* reads of earlier columns that overlap */
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

/* Element r of column t after the errors of the columns before it. */
static __device__ inline float compensated(const vptq_uniform_pass_args &a, size_t t, size_t r)
{
    float z = a.z[t * a.ldz + r];
#pragma unroll UNROLL
    for (size_t s = 0; s < t; s++)
        z -= a.err[s * a.lde + r] * a.u[s * a.ldu + t];
    return z;
}

/* budget: pass_kernel 48 registers */
__global__ static void __launch_bounds__(THREADS)
    pass_kernel(vptq_uniform_pass_args a, size_t first)
{
    const size_t r = first + (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (r >= a.rows)
        return;
    const float scale = a.scale[r], zero = a.zero[r], most = (float)((1u << a.bits) - 1);
    for (size_t t = 0; t < a.cols; t++) {
        const float z = a.u ? compensated(a, t, r) : a.z[t * a.ldz + r];
        const float code = clamp(rintf(z / scale) + zero, most);
        a.codes[t * a.ldc + r] = (uint8_t)code;
        if (!a.u)
            continue;
        const float d = round_to(a.storage, (code - zero) * scale);
        a.z[t * a.ldz + r] = z;
        a.err[t * a.lde + r] = (z - d) / a.u[t * a.ldu + t];
    }
}

vptq_status vptq_cuda_uniform_pass(vptq_dev *dev, const vptq_uniform_pass_args *a,
                                   vptq_err *err)
{
    const double cols = (double)a->cols;
    const auto launch = [&](size_t first, size_t count) {
        return port_launch(pass_kernel, vptq_cuda_blocks(count, THREADS), THREADS, 0,
                           dev->stream, *a, first);
    };
    if (!a->cols)
        return VPTQ_OK;
    return vptq_cuda_in_pieces(dev, "uniform_pass", a->rows, a->u ? cols * cols / 2 : cols,
                               THREADS, launch, err);
}
