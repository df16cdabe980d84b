/* plus_plus: one kernel per centroid, queued without waiting. Every block finds out by itself
 * which trial of the previous step was the best and draws the candidates that it probes, from
 * sums that the previous kernel left; so only kernels order the steps. Then a block takes
 * chunks of points and stores the distances to the nearest centroid with each of its
 * candidates: those of the best trial are the distances that the next step starts from. */
#include <float.h>

#include "lib/backend/cuda/cuda.h"

enum {
    TRIALS = VPTQ_PLUS_PLUS_TRIALS,
    LANES = VPTQ_PLUS_PLUS_LANES,
    CHUNK = VPTQ_PLUS_PLUS_CHUNK,
    WARP = PORT_LANES
};
enum {
    THREADS = TRIALS * WARP, /* a warp for each trial; a thread for 4 points of a chunk */
    EACH = WARP / LANES,     /* trials of a block; a warp adds the lanes of all of them */
    GROUPS = TRIALS / EACH,
    RESIDENT = 4,        /* blocks per SM */
    ROWS = CHUNK / WARP, /* parts of a chunk */
    MAX_V = VPTQ_VQ_MAX_V
};
static_assert(4 * THREADS == +CHUNK && ROWS == +WARP); /* a lane for each part */

/* Arrays of points are padded to `padded`, whole chunks, with weight 0. Those with [2] have a
 * half for the previous step and one for this. */
struct plus_plus_job {
    vptq_plus_plus_args args;
    unsigned chunks;
    size_t padded;
    float *xt;     /* [v][padded] */
    float *w;      /* [padded] */
    float *d;      /* [2][TRIALS][padded] distances if a candidate is added */
    double *sums;  /* [2][chunks][TRIALS] of w d */
    double *rows;  /* [2][chunks][TRIALS][ROWS] the same in parts, in any rounding */
    unsigned *max; /* bits of the largest weight */
    unsigned *at;  /* [2][TRIALS] points that are the candidates */
};

static __device__ inline const double *sums_of(const plus_plus_job &a, unsigned half)
{
    return a.sums + (size_t)half * a.chunks * TRIALS;
}

static __device__ inline float *distances_of(const plus_plus_job &a, unsigned half,
                                             unsigned trial)
{
    return a.d + ((size_t)half * TRIALS + trial) * a.padded;
}

static __device__ inline double *rows_of(const plus_plus_job &a, unsigned half, unsigned chunk,
                                         unsigned trial)
{
    return a.rows + (((size_t)half * a.chunks + chunk) * TRIALS + trial) * ROWS;
}

/* ---- preparing ---- */

/* budget: max_kernel 24 registers */
__global__ static void __launch_bounds__(1024) max_kernel(plus_plus_job a)
{
    float most = 0;
    for (size_t i = threadIdx.x; a.args.w && i < a.args.m; i += blockDim.x)
        most = a.args.w[i] > most ? a.args.w[i] : most;
    const unsigned bits = port_block_max(__float_as_uint(most));
    if (threadIdx.x == 0)
        *a.max = bits;
}

/* Transposes the points and divides the weights by the largest. Step 0 finds its distances, and
 * its candidate, where the best trial of an earlier step would have left them. */
/* budget: prepare_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS) prepare_kernel(plus_plus_job a)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const bool real = i < a.args.m;
    const float most = __uint_as_float(*a.max);
    a.w[i] = !real ? 0 : most > 0 ? a.args.w[i] / most : 1;
    distances_of(a, 1, 0)[i] = FLT_MAX;
    for (uint32_t e = 0; e < a.args.v; e++)
        a.xt[e * a.padded + i] = real ? a.args.x[i * a.args.v + e] : 0;
}

/* ---- sums in order ---- */

/* Calls use(i, value(i)) for i = 0 .. n - 1 in all lanes of a warp. value is called by one lane
 * for each i, and early. */
template <class V, class U> static __device__ inline void in_order(unsigned n, V value, U use)
{
    if (n == 0)
        return;
    auto own = value(min(port_lane(), n - 1));
    for (unsigned first = 0; first < n; first += WARP) {
        const auto next = value(min(first + WARP + port_lane(), n - 1));
        const unsigned count = min(n - first, (unsigned)WARP);
        for (unsigned l = 0; l < count; l++)
            use(first + l, __shfl_sync(port_all, own, (int)l));
        own = next;
    }
}

/* Subtracts products from the rest until it is negative; returns the last point subtracted
 * whose product is positive, or 0. */
template <class P> static __device__ inline unsigned walk(unsigned n, P product, double rest)
{
    unsigned found = 0;
    in_order(n, product, [&](unsigned i, float p) {
        found = p > 0 && !(rest < 0) ? i : found;
        rest -= (double)p;
    });
    return found;
}

/* Draws the first centroid by weight; one warp. */
/* budget: first_kernel 40 registers */
__global__ static void __launch_bounds__(WARP) first_kernel(plus_plus_job a)
{
    const unsigned n = (unsigned)a.args.m;
    const auto weight = [&](unsigned i) { return a.w[i]; };
    double total = 0;
    in_order(n, weight, [&](unsigned, float w) { total += (double)w; });
    const unsigned found = walk(n, weight, a.args.u[0] * total);
    if (port_lane() < TRIALS)
        a.at[TRIALS + port_lane()] = found;
}

/* ---- drawing ---- */

/* Shared memory of a block. */
struct plus_plus_area {
    float w[CHUNK], d[EACH][CHUNK + LANES]; /* of a chunk; the gap separates banks */
    float c[EACH][MAX_V];                   /* candidates */
    unsigned at[EACH];
    double total[TRIALS];
};

/* Returns the best trial of the previous step; s.total has the sums of all. A warp adds up
 * each. */
static __device__ unsigned best_trial(const plus_plus_job &a, plus_plus_area &s, unsigned half)
{
    const double *sums = sums_of(a, half) + port_warp();
    double total = 0;
    in_order(
        a.chunks, [&](unsigned b) { return sums[b * TRIALS]; },
        [&](unsigned, double sum) { total += sum; });
    if (port_lane() == 0)
        s.total[port_warp()] = total;
    __syncthreads();
    unsigned best = 0;
    for (unsigned t = 1; t < TRIALS; t++)
        best = s.total[t] < s.total[best] ? t : best;
    return best;
}

/* A number that falls by positive ones until it is negative. `doubt` bounds how much rounding
 * can change it. */
struct plus_plus_rest {
    double value, doubt;
};

/* Returns the first lane with which the rest, less the values up to that lane, is not surely
 * positive, and subtracts those before it; WARP if there is none. *sure: it is negative.
 */
static __device__ inline unsigned lane_of(double value, plus_plus_rest &rest, bool *sure)
{
    double sum = value;
    for (unsigned by = 1; by < WARP; by *= 2) {
        const double more = __shfl_up_sync(port_all, sum, by);
        sum = port_lane() >= by ? sum + more : sum;
    }
    const unsigned reached = __ballot_sync(port_all, !(rest.value >= sum + rest.doubt));
    *sure = false;
    if (!reached)
        return WARP;
    const int lane = __ffs((int)reached) - 1;
    *sure = __shfl_sync(port_all, (int)(rest.value + rest.doubt < sum), lane);
    rest.value -= __shfl_sync(port_all, sum - value, lane);
    return (unsigned)lane;
}

/* Draws a point of the chunk; one warp. Sums of another order tell where the rest becomes
 * negative if it does so clearly: subtracting 1024 products one by one changes it by less than
 * 2^-42, relatively, and so do these sums. Otherwise they are subtracted one by one. */
static __device__ unsigned draw_in_chunk(const plus_plus_job &a, unsigned half, unsigned best,
                                         unsigned chunk, double value)
{
    const unsigned begin = chunk * CHUNK;
    const float *w = a.w + begin, *d = distances_of(a, half, best) + begin;
    const auto product = [&](unsigned i) { return w[i] * d[i]; };
    plus_plus_rest rest = {value, value * 0x1p-40};
    bool sure;
    const unsigned row = lane_of(rows_of(a, half, chunk, best)[port_lane()], rest, &sure);
    if (row < ROWS) {
        const double own = (double)product(row * WARP + port_lane());
        const unsigned point = lane_of(own, rest, &sure);
        if (sure)
            return begin + row * WARP + point;
    }
    return begin + walk(min((unsigned)a.args.m - begin, (unsigned)CHUNK), product, value);
}

/* Draws a point by its share of the sums of the best trial; one warp. */
static __device__ unsigned draw(const plus_plus_job &a, unsigned half, unsigned best,
                                double rest)
{
    const double *sums = sums_of(a, half) + best;
    unsigned chunk = 0;
    in_order(
        a.chunks - 1, [&](unsigned b) { return sums[b * TRIALS]; },
        [&](unsigned b, double sum) {
            const bool passed = chunk == b && rest >= sum;
            rest = passed ? rest - sum : rest;
            chunk += passed;
        });
    return draw_in_chunk(a, half, best, chunk, rest);
}

/* Puts the candidates of the block into the area: in step 0, the point of first_kernel. */
static __device__ void draw_candidates(const plus_plus_job &a, plus_plus_area &s, unsigned j,
                                       unsigned best)
{
    const unsigned t = port_warp(), trial = blockIdx.y * EACH + t, v = a.args.v;
    if (t < EACH) {
        const unsigned at =
            j ? draw(a, (j + 1) % 2, best, a.args.u[(size_t)j * TRIALS + trial] * s.total[best])
              : a.at[TRIALS + trial];
        if (port_lane() == 0) {
            s.at[t] = at;
            if (blockIdx.x == 0)
                a.at[j % 2 * TRIALS + trial] = at;
        }
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < EACH * v; i += THREADS)
        s.c[i / v][i % v] = a.args.x[(size_t)s.at[i / v] * v + i % v];
    __syncthreads();
}

/* ---- probing ---- */

static __device__ inline float4 load_four(const float *from)
{
    return *reinterpret_cast<const float4 *>(from);
}

static __device__ inline void store_four(float *to, float4 value)
{
    *reinterpret_cast<float4 *>(to) = value;
}

static __device__ inline void add_square(float4 &sum, float4 x, float c)
{
    const float dx = x.x - c, dy = x.y - c, dz = x.z - c, dw = x.w - c;
    sum.x = fmaf(dx, dx, sum.x);
    sum.y = fmaf(dy, dy, sum.y);
    sum.z = fmaf(dz, dz, sum.z);
    sum.w = fmaf(dw, dw, sum.w);
}

/* Sum of w d over the four points of a thread, in double. */
static __device__ inline double four_products(float4 w, float4 d)
{
    return ((double)(w.x * d.x) + (double)(w.y * d.y)) +
           ((double)(w.z * d.z) + (double)(w.w * d.w));
}

/* Stores the distances of a thread's points with a candidate, in the area too, and the sum of
 * the row of points that eight threads have. */
static __device__ inline void keep(const plus_plus_job &a, plus_plus_area &s, unsigned half,
                                   unsigned chunk, unsigned t, float4 w, float4 d)
{
    const unsigned trial = blockIdx.y * EACH + t, i = 4 * threadIdx.x;
    store_four(distances_of(a, half, trial) + (size_t)chunk * CHUNK + i, d);
    store_four(s.d[t] + i, d);
    double sum = four_products(w, d);
    for (int with = 1; with < WARP / 4; with *= 2)
        sum += __shfl_xor_sync(port_all, sum, with);
    if (i % WARP == 0)
        rows_of(a, half, chunk, trial)[i / WARP] = sum;
}

/* Adds up w d of the chunk for all trials of the block; one warp. */
static __device__ inline void add_lanes(const plus_plus_job &a, const plus_plus_area &s,
                                        unsigned half, unsigned chunk)
{
    const unsigned t = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const unsigned trial = blockIdx.y * EACH + t;
    float sum = 0;
    double total = 0;
#pragma unroll 16
    for (unsigned i = lane; i < CHUNK; i += LANES)
        sum = fmaf(s.w[i], s.d[t][i], sum);
    for (int l = 0; l < LANES; l++)
        total += (double)__shfl_sync(port_all, sum, l, LANES);
    if (lane == 0)
        a.sums[((size_t)half * a.chunks + chunk) * TRIALS + trial] = total;
}

/* Probes the candidates with the points of a chunk, whose distances so far are d. */
static __device__ void probe(const plus_plus_job &a, plus_plus_area &s, unsigned half,
                             unsigned chunk, const float *d)
{
    const size_t first = (size_t)chunk * CHUNK + 4 * threadIdx.x;
    const float4 w = load_four(a.w + first), before = load_four(d + first);
    float4 sum[EACH] = {};
#pragma unroll 4
    for (unsigned e = 0; e < a.args.v; e++) {
        const float4 x = load_four(a.xt + e * a.padded + first);
#pragma unroll
        for (unsigned t = 0; t < EACH; t++)
            add_square(sum[t], x, s.c[t][e]);
    }
    store_four(s.w + 4 * threadIdx.x, w);
#pragma unroll
    for (unsigned t = 0; t < EACH; t++)
        keep(a, s, half, chunk, t, w,
             make_float4(fminf(sum[t].x, before.x), fminf(sum[t].y, before.y),
                         fminf(sum[t].z, before.z), fminf(sum[t].w, before.w)));
    __syncthreads();
    if (threadIdx.x < WARP)
        add_lanes(a, s, half, chunk);
    __syncthreads();
}

/* Step j writes centroid j - 1 and probes candidates for centroid j; after the last centroid
 * there are none. */
/* budget: step_kernel 64 registers */
__global__ static void __launch_bounds__(THREADS, RESIDENT)
    step_kernel(plus_plus_job a, unsigned j)
{
    plus_plus_area &s = port_shared<plus_plus_area>();
    const unsigned half = j % 2, v = a.args.v;
    port_grid_wait();
    port_grid_release();
    const unsigned best = j ? best_trial(a, s, 1 - half) : 0;
    if (j > 0 && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x < v)
        a.args.centroids[(size_t)(j - 1) * v + threadIdx.x] =
            a.args.x[(size_t)a.at[(1 - half) * TRIALS + best] * v + threadIdx.x];
    if (j == a.args.k)
        return;
    draw_candidates(a, s, j, best);
    const float *d = distances_of(a, 1 - half, best);
    for (unsigned chunk = blockIdx.x; chunk < a.chunks; chunk += gridDim.x)
        probe(a, s, half, chunk, d);
}

/* ---- the op ---- */

static vptq_status job_open(vptq_dev *dev, const vptq_plus_plus_args *args, plus_plus_job *a,
                            vptq_err *err)
{
    void *memory = NULL;
    *a = {};
    a->args = *args;
    a->chunks = vptq_cuda_blocks(args->m, CHUNK);
    a->padded = (size_t)a->chunks * CHUNK;
    const size_t floats = a->padded * (args->v + 1 + 2 * TRIALS);
    const size_t doubles = (size_t)2 * a->chunks * TRIALS * (1 + ROWS);
    VPTQ_CHECK(vptq_cuda_scratch(dev,
                                 floats * sizeof(float) + doubles * sizeof(double) +
                                     (1 + 2 * TRIALS) * sizeof(unsigned),
                                 &memory, err));
    a->d = static_cast<float *>(memory);
    a->xt = a->d + 2 * TRIALS * a->padded;
    a->w = a->xt + args->v * a->padded;
    a->sums = reinterpret_cast<double *>(a->w + a->padded);
    a->rows = a->sums + (size_t)2 * a->chunks * TRIALS;
    a->at = reinterpret_cast<unsigned *>(a->rows + (size_t)2 * a->chunks * TRIALS * ROWS);
    a->max = a->at + 2 * TRIALS;
    return VPTQ_OK;
}

static cudaError_t prepare(vptq_dev *dev, const plus_plus_job &a)
{
    const unsigned blocks = vptq_cuda_blocks(a.padded, THREADS);
    cudaError_t e = port_launch(max_kernel, 1, 1024, 0, dev->stream, a);
    if (!e)
        e = port_launch(prepare_kernel, blocks, THREADS, 0, dev->stream, a);
    return e ? e : port_launch(first_kernel, 1, WARP, 0, dev->stream, a);
}

vptq_status vptq_cuda_plus_plus(vptq_dev *dev, const vptq_plus_plus_args *args, vptq_err *err)
{
    plus_plus_job a;
    VPTQ_BUG_IF(!args->m || args->m >> 31 || !args->v || args->v > VPTQ_VQ_MAX_V);
    VPTQ_CHECK(job_open(dev, args, &a, err));
    VPTQ_CHECK(vptq_cuda_check(prepare(dev, a), "plus_plus", err));
    const unsigned most = (unsigned)dev->properties.multiProcessorCount * RESIDENT / GROUPS;
    const dim3 grid(min(a.chunks, max(most, 1u)), GROUPS);
    const double work = (double)TRIALS * (double)args->m * args->v;
    for (uint32_t j = 0; j <= args->k; j++) {
        VPTQ_CHECK(vptq_cuda_pace(dev, work, err));
        const cudaError_t e = port_launch_early(step_kernel, j < args->k ? grid : dim3(1, 1),
                                                THREADS, 0, dev->stream, a, j);
        VPTQ_CHECK(vptq_cuda_check(e, "plus_plus", err));
    }
    return VPTQ_OK;
}
