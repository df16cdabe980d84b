/* channel_range. A thread adds the tokens of a column in order, which gives the bits of `ref`;
 * neighbouring threads read neighbouring elements of a token. */
#include <math.h>

#include "lib/backend/cuda/cuda.h"

enum {
    THREADS = 64, /* few, so that the columns of one input reach all multiprocessors */
    UNROLL = 8    /* reads of tokens that overlap */
};

/* budget: channel_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS)
    channel_kernel(vptq_channel_args a, size_t first)
{
    const size_t j = first + (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (j >= a.n)
        return;
    double sum = a.first ? 0 : a.abs_sum[j];
    float lo = a.first ? INFINITY : a.min[j], hi = a.first ? -INFINITY : a.max[j];
#pragma unroll UNROLL
    for (size_t t = 0; t < a.tokens; t++) {
        const float x = a.x[t * a.ldx + j];
        sum += (double)fabsf(x);
        lo = x < lo ? x : lo;
        hi = x > hi ? x : hi;
    }
    a.abs_sum[j] = sum;
    a.min[j] = lo;
    a.max[j] = hi;
}

vptq_status vptq_cuda_channel_range(vptq_dev *dev, const vptq_channel_args *a, vptq_err *err)
{
    const auto launch = [&](size_t first, size_t count) {
        return port_launch(channel_kernel, vptq_cuda_blocks(count, THREADS), THREADS, 0,
                           dev->stream, *a, first);
    };
    return vptq_cuda_in_pieces(dev, "channel_range", a->n, (double)a->tokens, THREADS, launch,
                               err);
}
