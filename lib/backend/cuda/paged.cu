/* rope_rows, kv_store and attention_paged. In a page, a kv head has VPTQ_KV_PAGE * head_dim
 * contiguous numbers: keys as [head_dim, VPTQ_KV_PAGE], one lane per token; values as
 * [VPTQ_KV_PAGE, head_dim], one lane per dimension.
 *
 * Query heads that share a kv head are stacked as in attention.cu. A block takes up to STACK
 * stacked rows of one sequence; its warps take the pages in turn, each with its own
 * softmax_state softmax, and are merged in order. Sequences with at most STACK rows (decoding)
 * are also divided into ranges of tokens, one block each. The range depends on the token only,
 * so a sequence's result does not depend on other sequences. */
#include "lib/backend/cuda/cuda.h"

enum {
    THREADS = 128,
    WARPS = THREADS / PORT_LANES,
    STACK = 8,
    EACH = 4, /* dimensions per lane */
    DIMS = EACH * PORT_LANES,
    RANGE = 16 * VPTQ_KV_PAGE /* tokens */
};
static_assert((int)VPTQ_KV_PAGE == (int)PORT_LANES, "a lane is a token of a page");

struct paged_job {
    vptq_kv_rows rows;
    vptq_kv_pool pool;
    size_t group, window, ldq, ldo;
    float scale, cap;
    const float *q;
    float *out;
    size_t first;          /* first panel of the launch */
    size_t ranges, chunks; /* ranges of the longest sequence; groups of DIMS dimensions */
    /* [sequences][kv_heads][ranges][STACK]: head_dim mixed values; maximum and sum */
    float *partial, *stat;
};

/* ---- pages ---- */

static __device__ inline float widen(float x)
{
    return x;
}
static __device__ inline float widen(unsigned short x)
{
    return __half2float(__ushort_as_half(x));
}
static __device__ inline void narrow(float x, float *to)
{
    *to = x;
}
static __device__ inline void narrow(float x, unsigned short *to)
{
    *to = __half_as_ushort(__float2half_rn(x));
}

/* Offset of a kv head's numbers in the page of a sequence that holds a token. */
static __device__ inline size_t page_at(const vptq_kv_rows &rows, const vptq_kv_pool &pool,
                                        size_t sequence, size_t token, size_t kv)
{
    const size_t page = rows.table[sequence * rows.ld_table + token / VPTQ_KV_PAGE];
    return (page * pool.kv_heads + kv) * VPTQ_KV_PAGE * pool.head_dim;
}

static __device__ inline size_t rows_of(const vptq_kv_rows &rows, size_t sequence)
{
    return rows.starts[sequence + 1] - rows.starts[sequence];
}

/* ---- rope_rows ---- */

/* Block (row, sequence). */
/* budget: rope_rows_kernel 48 registers */
__global__ static void __launch_bounds__(THREADS)
    rope_rows_kernel(vptq_kv_rows rows, vptq_rope_args a)
{
    const size_t sequence = blockIdx.y, row = blockIdx.x;
    if (row < rows_of(rows, sequence))
        vptq_cuda_rope_row(a, rows.starts[sequence] + row, rows.positions[sequence] + row);
}

static dim3 row_grid(const vptq_kv_rows *rows)
{
    return dim3((unsigned)rows->max_rows, (unsigned)rows->sequences);
}

vptq_status vptq_cuda_rope_rows(vptq_dev *dev, const vptq_kv_rows *rows,
                                const vptq_rope_args *a, vptq_err *err)
{
    return vptq_cuda_check(
        port_launch(rope_rows_kernel, row_grid(rows), THREADS, 0, dev->stream, *rows, *a),
        "rope_rows", err);
}

/* ---- kv_store ---- */

/* Block (row, sequence). */
/* budget: kv_store_kernel 48 registers */
template <class N>
__global__ static void __launch_bounds__(THREADS)
    kv_store_kernel(vptq_kv_rows rows, vptq_kv_pool pool, const float *keys, size_t ldk,
                    const float *values, size_t ldv)
{
    const size_t sequence = blockIdx.y, r = blockIdx.x, d = pool.head_dim;
    if (r >= rows_of(rows, sequence))
        return;
    const size_t row = rows.starts[sequence] + r, token = rows.positions[sequence] + r;
    const size_t slot = token % VPTQ_KV_PAGE;
    for (size_t j = threadIdx.x; j < pool.kv_heads * d; j += THREADS) {
        const size_t at = page_at(rows, pool, sequence, token, j / d), i = j % d;
        narrow(keys[row * ldk + j], static_cast<N *>(pool.keys) + at + i * VPTQ_KV_PAGE + slot);
        narrow(values[row * ldv + j], static_cast<N *>(pool.values) + at + slot * d + i);
    }
}

vptq_status vptq_cuda_kv_store(vptq_dev *dev, const vptq_kv_store_args *a, vptq_err *err)
{
    const auto kernel =
        a->pool->type == VPTQ_F16 ? kv_store_kernel<unsigned short> : kv_store_kernel<float>;
    return vptq_cuda_check(port_launch(kernel, row_grid(a->rows), THREADS, 0, dev->stream,
                                       *a->rows, *a->pool, a->keys, a->ldk, a->values, a->ldv),
                           "kv_store", err);
}

/* ---- attention ---- */

/* A stacked row sees tokens before this position, */
static __device__ inline size_t row_end(const paged_job &job, size_t sequence, size_t stacked)
{
    return job.rows.positions[sequence] + stacked / job.group + 1;
}

/* from this position on. */
static __device__ inline size_t first_of(const paged_job &job, size_t end)
{
    return job.window && end > job.window ? end - job.window : 0;
}

struct merge_area {
    float max[WARPS][STACK], sum[WARPS][STACK];
    float out[WARPS][STACK][DIMS];
};

/* Running softmax of a warp. */
struct softmax_state {
    float max[STACK], sum[STACK], out[STACK][EACH];
};

/* Processes one page: scores for the lane's token, then the mix of the lane's dimensions over
 * tokens [from, to) of the page, which the block's rows see. */
template <class N>
static __device__ inline void process_page(const paged_job &job, softmax_state &w,
                                           const float *q, const unsigned end[STACK],
                                           const N *keys, const N *values, size_t token0,
                                           unsigned from, unsigned to, size_t d0)
{
    const unsigned lane = port_lane();
    const size_t d = job.pool.head_dim;
    float p[STACK];
#pragma unroll
    for (unsigned r = 0; r < STACK; r++)
        p[r] = 0;
    for (size_t i = 0; i < d; i++) {
        const float k = widen(keys[i * VPTQ_KV_PAGE + lane]);
#pragma unroll
        for (unsigned r = 0; r < STACK; r++)
            p[r] = fmaf(q[i * STACK + r], k, p[r]);
    }
#pragma unroll
    for (unsigned r = 0; r < STACK; r++) {
        const size_t token = token0 + lane;
        const bool sees = token < end[r] && token >= first_of(job, end[r]);
        const float capped = job.cap > 0 ? vptq_cuda_soft_cap_of(p[r], job.cap) : p[r];
        const float score = sees ? capped : -INFINITY;
        const float before = w.max[r], max = fmaxf(before, port_warp_max(score));
        /* While a row has seen no token, the shift must be finite. */
        const float shift = max == -INFINITY ? 0 : max, factor = expf(before - shift);
        p[r] = expf(score - shift);
        w.max[r] = max;
        w.sum[r] = w.sum[r] * factor + port_warp_sum(p[r]);
#pragma unroll
        for (unsigned j = 0; j < EACH; j++)
            w.out[r][j] *= factor;
    }
    for (unsigned t = from; t < to; t++) {
        float v[EACH];
#pragma unroll
        for (unsigned j = 0; j < EACH; j++) {
            const size_t i = d0 + j * PORT_LANES + lane;
            v[j] = i < d ? widen(values[t * d + i]) : 0;
        }
#pragma unroll
        for (unsigned r = 0; r < STACK; r++) {
            const float weight = __shfl_sync(port_all, p[r], (int)t);
#pragma unroll
            for (unsigned j = 0; j < EACH; j++)
                w.out[r][j] = fmaf(weight, v[j], w.out[r][j]);
        }
    }
}

/* Brings the warps to one maximum and adds them in order, into m.out[0], m.max[0] and m.sum[0].
 */
static __device__ void merge_warps(merge_area &m, const softmax_state &w)
{
    const unsigned lane = port_lane(), warp = port_warp();
#pragma unroll
    for (unsigned r = 0; r < STACK; r++) {
        if (lane == 0) {
            m.max[warp][r] = w.max[r];
            m.sum[warp][r] = w.sum[r];
        }
#pragma unroll
        for (unsigned j = 0; j < EACH; j++)
            m.out[warp][r][j * PORT_LANES + lane] = w.out[r][j];
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < STACK * DIMS; i += THREADS) {
        const unsigned r = i / DIMS, d = i % DIMS;
        float max = -INFINITY, out = 0;
        for (unsigned k = 0; k < WARPS; k++)
            max = fmaxf(max, m.max[k][r]);
        const float shift = max == -INFINITY ? 0 : max;
        for (unsigned k = 0; k < WARPS; k++)
            out = fmaf(expf(m.max[k][r] - shift), m.out[k][r][d], out);
        m.out[0][r][d] = out; /* no other thread reads this element */
    }
    __syncthreads();
    if (threadIdx.x < STACK) {
        const unsigned r = threadIdx.x;
        float max = -INFINITY, sum = 0;
        for (unsigned k = 0; k < WARPS; k++)
            max = fmaxf(max, m.max[k][r]);
        const float shift = max == -INFINITY ? 0 : max;
        for (unsigned k = 0; k < WARPS; k++)
            sum = fmaf(expf(m.max[k][r] - shift), m.sum[k][r], sum);
        m.max[0][r] = max;
        m.sum[0][r] = sum;
    }
    __syncthreads();
}

/* Stores the merged rows [row0, row0 + count): results, or with few rows what
 * merge_ranges_kernel needs of the range. */
static __device__ void store_results(const paged_job &job, const merge_area &m, size_t sequence,
                                     size_t kv, size_t range, size_t row0, size_t count,
                                     size_t d0)
{
    const size_t d = job.pool.head_dim, query0 = job.rows.starts[sequence];
    const bool few = rows_of(job.rows, sequence) * job.group <= STACK;
    const size_t own = ((sequence * job.pool.kv_heads + kv) * job.ranges + range) * STACK;
    for (unsigned i = threadIdx.x; i < STACK * DIMS; i += THREADS) {
        const unsigned r = i / DIMS, k = i % DIMS;
        const size_t row = row0 + r;
        if (r >= count || d0 + k >= d)
            continue;
        if (few)
            job.partial[(own + r) * d + d0 + k] = m.out[0][r][k];
        else
            job.out[(query0 + row / job.group) * job.ldo +
                    (kv * job.group + row % job.group) * d + d0 + k] =
                m.out[0][r][k] / m.sum[0][r];
    }
    if (few && d0 == 0 && threadIdx.x < count) {
        job.stat[(own + threadIdx.x) * 2] = m.max[0][threadIdx.x];
        job.stat[(own + threadIdx.x) * 2 + 1] = m.sum[0][threadIdx.x];
    }
}

/* Block (panel and sequence, kv head, range and dimensions). */
/* budget: attention_paged_kernel 128 registers */
template <class N>
__global__ static void __launch_bounds__(THREADS, 4) attention_paged_kernel(paged_job job)
{
    merge_area &m = port_shared<merge_area>();
    float *q = static_cast<float *>(port_shared_dynamic()); /* [head_dim, STACK] */
    const size_t sequence = blockIdx.x % job.rows.sequences, kv = blockIdx.y;
    const size_t row0 = (job.first + blockIdx.x / job.rows.sequences) * STACK;
    const size_t range = blockIdx.z / job.chunks, d0 = blockIdx.z % job.chunks * DIMS;
    const size_t stacked = rows_of(job.rows, sequence) * job.group, d = job.pool.head_dim;
    const bool few = stacked <= STACK;
    if (row0 >= stacked || (!few && range))
        return;
    const size_t count = min(stacked - row0, (size_t)STACK);
    unsigned row_ends[STACK];
    for (unsigned r = 0; r < STACK; r++) /* rows after the last see what it sees */
        row_ends[r] = (unsigned)row_end(job, sequence, row0 + min((size_t)r, count - 1));
    size_t from = first_of(job, row_ends[0]), to = row_ends[STACK - 1];
    if (few) {
        from = max(from, range * RANGE);
        to = min(to, (range + 1) * RANGE);
        if (from >= to)
            return;
    }
    const size_t query0 = job.rows.starts[sequence];
    for (size_t i = threadIdx.x; i < STACK * d; i += THREADS) {
        const size_t row = row0 + min(i % STACK, count - 1);
        q[i] = job.scale * job.q[(query0 + row / job.group) * job.ldq +
                                 (kv * job.group + row % job.group) * d + i / STACK];
    }
    __syncthreads();

    softmax_state w;
#pragma unroll
    for (unsigned r = 0; r < STACK; r++) {
        w.max[r] = -INFINITY;
        w.sum[r] = 0;
#pragma unroll
        for (unsigned j = 0; j < EACH; j++)
            w.out[r][j] = 0;
    }
    /* The warp depends on the page's number in the sequence only. */
    for (size_t page = from / VPTQ_KV_PAGE; page * VPTQ_KV_PAGE < to; page++) {
        if (page % WARPS != port_warp())
            continue;
        const size_t token0 = page * VPTQ_KV_PAGE;
        const size_t at = page_at(job.rows, job.pool, sequence, token0, kv);
        process_page(job, w, q, row_ends, static_cast<const N *>(job.pool.keys) + at,
                     static_cast<const N *>(job.pool.values) + at, token0,
                     from > token0 ? (unsigned)(from - token0) : 0,
                     (unsigned)min(to - token0, (size_t)VPTQ_KV_PAGE), d0);
    }
    merge_warps(m, w);

    store_results(job, m, sequence, kv, range, row0, count, d0);
}

/* Block (stacked row, sequence, kv head): merges the ranges of sequences that were divided. */
/* budget: merge_ranges_kernel 64 registers */
__global__ static void __launch_bounds__(THREADS) merge_ranges_kernel(paged_job job)
{
    const size_t row = blockIdx.x, sequence = blockIdx.y, kv = blockIdx.z;
    const size_t stacked = rows_of(job.rows, sequence) * job.group, d = job.pool.head_dim;
    if (row >= stacked || stacked > STACK)
        return;
    const size_t from = first_of(job, row_end(job, sequence, 0)) / RANGE;
    const size_t to = (row_end(job, sequence, stacked - 1) + RANGE - 1) / RANGE;
    const size_t own = (sequence * job.pool.kv_heads + kv) * job.ranges;
    float max = -INFINITY, sum = 0;
    for (size_t s = from; s < to; s++)
        max = fmaxf(max, job.stat[((own + s) * STACK + row) * 2]);
    for (size_t s = from; s < to; s++) {
        const float *stat = job.stat + ((own + s) * STACK + row) * 2;
        sum = fmaf(expf(stat[0] - max), stat[1], sum);
    }
    float *out = job.out + (job.rows.starts[sequence] + row / job.group) * job.ldo +
                 (kv * job.group + row % job.group) * d;
    for (size_t i = threadIdx.x; i < d; i += THREADS) {
        float mixed = 0;
        for (size_t s = from; s < to; s++)
            mixed = fmaf(expf(job.stat[((own + s) * STACK + row) * 2] - max),
                         job.partial[((own + s) * STACK + row) * d + i], mixed);
        out[i] = mixed / sum;
    }
}

static vptq_status launch_panels(vptq_dev *dev, paged_job *job, size_t panels, vptq_err *err)
{
    const vptq_kv_rows *rows = &job->rows;
    const size_t dynamic = STACK * job->pool.head_dim * sizeof(float);
    const double each = (double)(rows->sequences * job->pool.kv_heads * STACK) *
                        (double)rows->max_tokens * (double)job->pool.head_dim *
                        (double)(job->chunks + 1);
    const auto kernel = job->pool.type == VPTQ_F16 ? attention_paged_kernel<unsigned short>
                                                   : attention_paged_kernel<float>;
    const auto launch = [&](size_t first, size_t count) {
        const dim3 grid((unsigned)(count * rows->sequences), (unsigned)job->pool.kv_heads,
                        (unsigned)(job->ranges * job->chunks));
        job->first = first;
        return port_launch(kernel, grid, THREADS, dynamic, dev->stream, *job);
    };
    return vptq_cuda_in_pieces(dev, "attention_paged", panels, each, 1, launch, err);
}

vptq_status vptq_cuda_attention_paged(vptq_dev *dev, const vptq_paged_args *a, vptq_err *err)
{
    const size_t d = a->pool->head_dim;
    paged_job job = {};
    job.rows = *a->rows;
    job.pool = *a->pool;
    job.group = a->heads / a->pool->kv_heads;
    job.window = a->window;
    job.ldq = a->ldq;
    job.ldo = a->ldo;
    job.scale = a->scale;
    job.cap = a->cap;
    job.q = a->q;
    job.out = a->out;
    job.ranges = (a->rows->max_tokens + RANGE - 1) / RANGE;
    job.chunks = (d + DIMS - 1) / DIMS;
    const size_t parts = a->rows->sequences * a->pool->kv_heads * job.ranges * STACK;
    void *memory = NULL;
    VPTQ_CHECK(vptq_cuda_scratch(dev, parts * (d + 2) * sizeof(float), &memory, err));
    job.partial = static_cast<float *>(memory);
    job.stat = job.partial + parts * d;
    VPTQ_CHECK(
        launch_panels(dev, &job, (a->rows->max_rows * job.group + STACK - 1) / STACK, err));
    const dim3 grid(STACK, (unsigned)a->rows->sequences, (unsigned)a->pool->kv_heads);
    return vptq_cuda_check(port_launch(merge_ranges_kernel, grid, THREADS, 0, dev->stream, job),
                           "attention_paged", err);
}
