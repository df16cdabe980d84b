/* Splits matrices into halves: one warp per row whose elements are neighbours, one block per 32
 * rows whose elements are a row of memory apart. Both read a matrix twice, first for the
 * exponents. */
#include "lib/backend/cuda/split.h"

#include <math.h>

enum {
    THREADS = 256,
    WARPS = THREADS / PORT_LANES,
    UNROLL = 4,
};

/* The arrays of an operand that the kernels write. */
struct halves {
    __half *hi, *lo; /* lo NULL: not wanted */
    int *e;
    size_t stride;
};

template <class E> static __device__ inline float to_float(E x);
template <> __device__ inline float to_float(float x)
{
    return x;
}
template <> __device__ inline float to_float(__half x)
{
    return __half2float(x);
}
template <> __device__ inline float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

/* float16 is its own half: it is not scaled down, which would round it. */
template <class E> static const int exponent_limit = 1 << 10;
template <> const int exponent_limit<__half> = 0;

static __device__ inline float finite_magnitude(float x)
{
    const float size = fabsf(x);
    return size < INFINITY ? size : 0; /* NaN too */
}

/* The exponent of a row whose largest magnitude is `largest`. */
static __device__ inline int exponent_of(float largest)
{
    int e = 0;
    (void)frexpf(largest, &e);
    return largest > 0 ? e - SPLIT_MAX_EXP : 0;
}

/* Writes elements l and l + 1 of row i. */
static __device__ inline void put_pair(const halves &to, size_t i, size_t l, float x0, float x1,
                                       int e)
{
    const float s0 = split_scale(x0, -e), s1 = split_scale(x1, -e);
    const size_t at = i * to.stride + l;
    *reinterpret_cast<uint32_t *>(to.hi + at) = port_half_pair(s0, s1);
    if (to.lo)
        *reinterpret_cast<uint32_t *>(to.lo + at) = port_half_pair(
            s0 - __half2float(__float2half_rn(s0)), s1 - __half2float(__float2half_rn(s1)));
}

/* budget: split_rows_kernel 40 registers */
template <class E>
__global__ static void __launch_bounds__(THREADS) split_rows_kernel(split_source s, halves to)
{
    const size_t i = (size_t)blockIdx.x * WARPS + port_warp();
    const unsigned lane = port_lane();
    if (i >= s.rows)
        return;
    const E *row = static_cast<const E *>(s.at) + i * s.row;
    float largest = 0;
#pragma unroll UNROLL
    for (size_t l = lane; l < s.k; l += PORT_LANES)
        largest = fmaxf(largest, finite_magnitude(to_float(row[l])));
    const int e = min(exponent_of(port_warp_max(largest)), exponent_limit<E>);
    if (lane == 0)
        to.e[i] = e;
#pragma unroll UNROLL
    for (size_t l = 2 * lane; l < to.stride; l += 2 * PORT_LANES)
        put_pair(to, i, l, l < s.k ? to_float(row[l]) : 0,
                 l + 1 < s.k ? to_float(row[l + 1]) : 0, e);
}

struct split_tile {
    float x[SPLIT_RUN][PORT_LANES + 1];
    float largest[WARPS][PORT_LANES];
};

/* Element (i, l), times its factor; 0 outside. */
static __device__ inline float weighted(const split_source &s, size_t i, size_t l)
{
    if (i >= s.rows || l >= s.k)
        return 0;
    const float x = static_cast<const float *>(s.at)[i + l * s.step];
    return s.w ? x * s.w[l] : x;
}

/* budget: split_columns_kernel 64 registers */
__global__ static void __launch_bounds__(THREADS)
    split_columns_kernel(split_source s, halves to)
{
    split_tile &t = port_shared<split_tile>();
    const unsigned lane = port_lane(), warp = port_warp();
    const size_t i0 = (size_t)blockIdx.x * PORT_LANES;
    float largest = 0;
#pragma unroll UNROLL
    for (size_t l = warp; l < s.k; l += WARPS)
        largest = fmaxf(largest, finite_magnitude(weighted(s, i0 + lane, l)));
    t.largest[warp][lane] = largest;
    __syncthreads();
    for (unsigned i = 0; i < WARPS; i++)
        largest = fmaxf(largest, t.largest[i][lane]);
    const int own = exponent_of(largest); /* of row i0 + lane */
    if (warp == 0 && i0 + lane < s.rows)
        to.e[i0 + lane] = own;
    for (size_t l0 = 0; l0 < to.stride; l0 += SPLIT_RUN) {
        __syncthreads(); /* the previous tile has been read */
#pragma unroll
        for (unsigned l = 0; l < SPLIT_RUN; l += WARPS)
            t.x[l + warp][lane] = weighted(s, i0 + lane, l0 + l + warp);
        __syncthreads();
        for (unsigned r = warp; r < PORT_LANES; r += WARPS) {
            const int e = __shfl_sync(port_all, own, (int)r);
            if (i0 + r < s.rows)
                put_pair(to, i0 + r, l0 + 2 * lane, t.x[2 * lane][r], t.x[2 * lane + 1][r], e);
        }
    }
}

static size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

size_t split_bytes(vptq_dtype type, size_t rows, size_t k)
{
    const size_t half = aligned(rows * split_stride(k) * sizeof(__half));
    return (type == VPTQ_F32 ? 2 : 1) * half + aligned(rows * sizeof(int));
}

bool split_in_place(const split_source *s)
{
    return s->type == VPTQ_F16 && s->k % SPLIT_RUN == 0 && s->row % 8 == 0 &&
           reinterpret_cast<uintptr_t>(s->at) % 16 == 0;
}

vptq_status split(vptq_dev *dev, const char *op, const split_source *s, void *memory,
                  split_rows *to, vptq_err *err)
{
    const size_t stride = split_stride(s->k);
    const size_t half = aligned(s->rows * stride * sizeof(__half));
    char *at = static_cast<char *>(memory);
    if (split_in_place(s)) {
        *to = {static_cast<const __half *>(s->at), NULL, NULL, s->rows, s->row};
        return VPTQ_OK;
    }
    halves h = {reinterpret_cast<__half *>(at), NULL, NULL, stride};
    at += half;
    if (s->type == VPTQ_F32) {
        h.lo = reinterpret_cast<__half *>(at);
        at += half;
    }
    h.e = reinterpret_cast<int *>(at);
    *to = {h.hi, h.lo, h.e, s->rows, stride};
    VPTQ_CHECK(vptq_cuda_pace(dev, (double)s->rows * (double)stride, err));
    const auto rows_kernel = s->type == VPTQ_F32   ? split_rows_kernel<float>
                             : s->type == VPTQ_F16 ? split_rows_kernel<__half>
                                                   : split_rows_kernel<__nv_bfloat16>;
    const cudaError_t e =
        s->step == 1 && !s->w
            ? port_launch(rows_kernel, vptq_cuda_blocks(s->rows, WARPS), THREADS, 0,
                          dev->stream, *s, h)
            : port_launch(split_columns_kernel, vptq_cuda_blocks(s->rows, PORT_LANES), THREADS,
                          0, dev->stream, *s, h);
    return vptq_cuda_check(e, op, err);
}
