/* sample: one block per row of logits. Probabilities are integers (lib/backend/sample.h), so
 * sums by atomics do not depend on their order. The top_p threshold is found digit by digit, as
 * in lib/backend/cpu/sample.c. */
#include "lib/backend/cuda/cuda.h"

extern "C" {
#include "lib/backend/sample.h"
}

typedef unsigned long long u64;

enum { THREADS = 1024, WARPS = THREADS / PORT_LANES, BINS = VPTQ_SAMPLE_BINS };

struct sample_job {
    size_t vocab, ld;
    const float *logits;
    double temperature, top_p;
    const double *u;
    int32_t *ids;
    u64 *weights; /* [n][vocab] */
};

struct sample_shared {
    u64 bins[BINS];
    u64 of_warp[WARPS];
    u64 left;
    unsigned bin;
};

static __device__ sample_shared &shared_state(void)
{
    return port_shared<sample_shared>();
}

/* ---- sums over a block ---- */

static __device__ u64 warp_scan(u64 value)
{
    for (unsigned by = 1; by < PORT_LANES; by *= 2) {
        const u64 more = __shfl_up_sync(port_all, value, by);
        if (port_lane() >= by)
            value += more;
    }
    return value;
}

/* Exclusive prefix sum over the threads of the block; *total is the sum of all. */
static __device__ u64 block_before(u64 value, u64 *total)
{
    u64 *of_warp = shared_state().of_warp;
    const u64 with = warp_scan(value);
    __syncthreads();
    if (port_lane() == PORT_LANES - 1)
        of_warp[port_warp()] = with;
    __syncthreads();
    const u64 warps = warp_scan(of_warp[port_lane()]);
    *total = __shfl_sync(port_all, warps, PORT_LANES - 1);
    const u64 before = __shfl_sync(port_all, warps, (int)(port_warp() + PORT_LANES - 1) % 32);
    return (port_warp() ? before : 0) + with - value;
}

/* ---- top_p ---- */

/* Finds the bin, from the highest down, in which the sum reaches s.left; s.left becomes the
 * part that this bin must contribute. */
static __device__ void search_bin(void)
{
    constexpr unsigned each = BINS / THREADS;
    sample_shared &s = shared_state();
    const unsigned top = BINS - 1 - threadIdx.x * each;
    u64 own = 0, total;
    __syncthreads(); /* the bins are full */
    for (unsigned i = 0; i < each; i++)
        own += s.bins[top - i];
    const u64 left = s.left;
    u64 before = block_before(own, &total); /* all threads have read s.left */
    if (before >= left || before + own < left)
        before = left; /* not in this thread's bins */
    for (unsigned i = 0; i < each && before < left; i++) {
        if (before + s.bins[top - i] >= left) {
            s.bin = top - i;
            s.left = left - before;
            before = left;
        } else {
            before += s.bins[top - i];
        }
    }
    __syncthreads();
}

static __device__ void clear_bins(void)
{
    sample_shared &s = shared_state();
    for (unsigned i = threadIdx.x; i < BINS; i += THREADS)
        s.bins[i] = 0;
    __syncthreads();
}

/* Returns the smallest key that is kept; s.left becomes the weight that tokens with this key
 * contribute. The bins hold the first digit. */
static __device__ uint32_t cut_at(const sample_job &j, const float *logits, const u64 *weights)
{
    sample_shared &s = shared_state();
    search_bin();
    uint32_t key = s.bin << VPTQ_SAMPLE_FIRST, known = VPTQ_SAMPLE_FIRST;
    for (uint32_t shift = VPTQ_SAMPLE_SECOND, d = 0; d < 2; d++, shift = 0) {
        const uint32_t above = (uint32_t)(UINT64_MAX << known);
        __syncthreads(); /* all threads have read the bin */
        clear_bins();
        for (size_t i = threadIdx.x; i < j.vocab; i += THREADS) {
            const uint32_t k = vptq_sample_key(logits[i]);
            if ((k & above) == key && weights[i])
                atomicAdd(&s.bins[k >> shift & (BINS - 1)], weights[i]);
        }
        search_bin();
        key |= s.bin << shift;
        known = shift;
    }
    return key;
}

/* ---- one row of logits ---- */

/* Computes the weights and their bins; returns their sum. */
static __device__ u64 weigh(const sample_job &j, const float *logits, float max, u64 *weights)
{
    sample_shared &s = shared_state();
    u64 sum = 0, total;
    clear_bins();
    for (size_t i = threadIdx.x; i < j.vocab; i += THREADS) {
        const u64 w = vptq_sample_weight(logits[i], max, j.temperature);
        weights[i] = w;
        sum += w;
        if (w && j.top_p < 1)
            atomicAdd(&s.bins[vptq_sample_key(logits[i]) >> VPTQ_SAMPLE_FIRST], w);
    }
    (void)block_before(sum, &total);
    return total;
}

/* Draws a token. Every thread has a run of ids: it first counts those with the threshold key,
 * then adds up the weights that are kept. */
static __device__ void draw(const sample_job &j, const float *logits, const u64 *weights,
                            uint32_t key, u64 left)
{
    const size_t each = (j.vocab + THREADS - 1) / THREADS;
    const size_t i0 = min(threadIdx.x * each, j.vocab), i1 = min(i0 + each, j.vocab);
    u64 equal = 0, own = 0, total;
    for (size_t i = i0; i < i1; i++)
        equal += vptq_sample_key(logits[i]) == key;
    const u64 before = block_before(equal, &total);
    /* `left` is at most the weight of all of them */
    for (int again = 0; again < 2; again++) {
        u64 ties = before, unit = 0;
        if (again) {
            const u64 first = block_before(own, &total);
            unit = vptq_sample_unit(j.u[blockIdx.x], total);
            if (unit < first || unit - first >= own)
                return;
            unit -= first;
        }
        for (size_t i = i0; i < i1; i++) {
            const uint32_t k = vptq_sample_key(logits[i]);
            /* a tie is kept while the ties before it do not reach `left` */
            if (k < key || (k == key && ties++ * weights[i] >= left))
                continue;
            if (again && unit < weights[i]) {
                j.ids[blockIdx.x] = (int32_t)i;
                return;
            }
            own += weights[i];
            unit -= weights[i];
        }
    }
}

/* budget: sample_kernel 64 registers */
__global__ static void __launch_bounds__(THREADS, 1) sample_kernel(sample_job j)
{
    sample_shared &s = shared_state();
    const float *logits = j.logits + blockIdx.x * j.ld;
    u64 *weights = j.weights + blockIdx.x * j.vocab;
    uint32_t best = 0;
    for (size_t i = threadIdx.x; i < j.vocab; i += THREADS)
        best = max(best, vptq_sample_key(logits[i]));
    best = port_block_max(best);
    if (best == UINT32_MAX || j.temperature <= 0) {
        unsigned back = 0; /* counted from the end, so the maximum is the first */
        for (size_t i = threadIdx.x; i < j.vocab; i += THREADS)
            if (vptq_sample_key(logits[i]) == best)
                back = max(back, (unsigned)(j.vocab - i));
        back = port_block_max(back);
        if (threadIdx.x == 0)
            j.ids[blockIdx.x] = best == UINT32_MAX ? -1 : (int32_t)(j.vocab - back);
        return;
    }
    const u64 total = weigh(j, logits, vptq_sample_logit(best), weights);
    uint32_t key = 0;
    u64 left = total;
    if (j.top_p < 1) {
        if (threadIdx.x == 0)
            s.left = vptq_sample_reach(j.top_p, total);
        key = cut_at(j, logits, weights);
        left = s.left;
    }
    __syncthreads(); /* all weights have been written */
    draw(j, logits, weights, key, left);
}

vptq_status vptq_cuda_sample(vptq_dev *dev, const vptq_sample_args *s, vptq_err *err)
{
    void *weights = NULL;
    if (!s->n)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_cuda_scratch(dev, s->n * s->vocab * sizeof(u64), &weights, err));
    const sample_job j = {s->vocab, s->ld, s->logits, s->temperature,
                          s->top_p, s->u,  s->ids,    static_cast<u64 *>(weights)};
    return vptq_cuda_check(
        port_launch(sample_kernel, (unsigned)s->n, THREADS, 0, dev->stream, j), "sample", err);
}
