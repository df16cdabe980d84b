/* attention_grad, rmsnorm_grad, swiglu_grad and kl_grad.
 *
 * attention_grad (Dao, "FlashAttention-2", 2023, section 3.1) has a kernel for dq and one for
 * dk and dv, which work alike: a block owns a tile of queries, or of keys, and goes through the
 * tiles of the other kind that it shares pairs with. It computes p and ds of their pairs anew
 * in shared memory and adds what the other tile contributes in registers, so that no sum is
 * divided among blocks. The query heads of a kv head are stacked (row = query * group + head in
 * group). */
#include "lib/backend/cuda/cuda.h"

enum { THREADS = 256, WARPS = THREADS / PORT_LANES };

/* ---- attention: pairs of two tiles ---- */

enum {
    STEP = 16, /* head dimensions, or rows, per step through shared memory */
    SIDE = 16, /* threads side by side */
    EACH = 4,  /* own rows of a thread, and other rows of its pairs */
    TILE = SIDE * EACH,
    PAD = 4
};

static const size_t no_row = SIZE_MAX; /* instead of an offset, after the last row */

struct grad_job {
    vptq_attention_grad_args a;
    size_t group, rows; /* query heads per kv head; stacked queries of a kv head */
    size_t window;      /* a.window; n if that is 0 or larger */
    const float *delta; /* [n, heads]: dout . out */
    size_t tile0;       /* own tile of the launch's first block */
};

/* Stacked queries or keys. */
struct tile_rows {
    size_t at[TILE]; /* offset of the row in its arrays, or no_row */
    unsigned position[TILE];
};

struct grad_tiles {
    tile_rows own, other;
    float lse[TILE], delta[TILE];                   /* of the queries */
    float x[STEP][TILE + PAD], y[STEP][TILE + PAD]; /* own and other rows, transposed */
    float weight[TILE][TILE + PAD];                 /* [other][own]: p, then ds */
};

static __device__ void start_queries(grad_tiles &t, tile_rows &rows, const grad_job &job,
                                     size_t row, size_t kv)
{
    const unsigned i = threadIdx.x;
    if (i >= TILE)
        return;
    const size_t query = (row + i) / job.group, head = kv * job.group + (row + i) % job.group;
    const size_t at = query * job.a.heads + head;
    const bool in = row + i < job.rows;
    rows.at[i] = in ? at * job.a.head_dim : no_row;
    rows.position[i] = (unsigned)query;
    t.lse[i] = in ? job.a.lse[at] : INFINITY; /* p = 0 */
    t.delta[i] = in ? job.delta[at] : 0;
}

static __device__ void start_keys(tile_rows &rows, const grad_job &job, size_t key, size_t kv)
{
    const unsigned i = threadIdx.x;
    if (i >= TILE)
        return;
    const bool in = key + i < job.a.n;
    rows.at[i] = in ? ((key + i) * job.a.kv_heads + kv) * job.a.head_dim : no_row;
    rows.position[i] = (unsigned)(key + i);
}

/* Stores dimensions [d0, d0 + STEP) of the tile's rows in `from`, times `factor`. */
static __device__ void load_transposed(float to[STEP][TILE + PAD], const tile_rows &rows,
                                       const float *from, float factor, size_t d0,
                                       size_t head_dim)
{
#pragma unroll
    for (unsigned i = threadIdx.x; i < STEP * TILE; i += THREADS) {
        const unsigned r = i / STEP, d = i % STEP;
        const bool in = rows.at[r] != no_row && d0 + d < head_dim;
        to[d][r] = in ? factor * from[rows.at[r] + d0 + d] : 0;
    }
}

/* The products of rows of `of_queries`, times `factor`, and rows of `of_keys`, for the thread's
 * pairs. QUERIES: the own rows are queries. */
template <bool QUERIES>
static __device__ void multiply_pairs(grad_tiles &t, const float *of_queries, float factor,
                                      const float *of_keys, size_t head_dim,
                                      float product[EACH][EACH])
{
    const unsigned own = threadIdx.x / SIDE * EACH, other = threadIdx.x % SIDE * EACH;
    for (unsigned i = 0; i < EACH; i++)
        for (unsigned j = 0; j < EACH; j++)
            product[i][j] = 0;
    for (size_t d0 = 0; d0 < head_dim; d0 += STEP) {
        load_transposed(QUERIES ? t.x : t.y, QUERIES ? t.own : t.other, of_queries, factor, d0,
                        head_dim);
        load_transposed(QUERIES ? t.y : t.x, QUERIES ? t.other : t.own, of_keys, 1, d0,
                        head_dim);
        __syncthreads();
        port_multiply_tile<STEP, EACH, EACH>(product, t.x, t.y, own, other);
        __syncthreads();
    }
}

/* Calls f(product, weight, query, seen) for every pair of the thread: the product, the pair's
 * element of t.weight, the query in the tile, and whether it sees the key. */
template <bool QUERIES, class F>
static __device__ void each_pair(grad_tiles &t, const grad_job &job, const float *of_queries,
                                 float factor, const float *of_keys, F f)
{
    const unsigned own = threadIdx.x / SIDE * EACH, other = threadIdx.x % SIDE * EACH;
    const unsigned window = (unsigned)job.window;
    float product[EACH][EACH];
    multiply_pairs<QUERIES>(t, of_queries, factor, of_keys, job.a.head_dim, product);
#pragma unroll
    for (unsigned i = 0; i < EACH; i++)
#pragma unroll
        for (unsigned j = 0; j < EACH; j++) {
            const unsigned mine = t.own.position[own + i], its = t.other.position[other + j];
            const unsigned query = QUERIES ? mine : its, key = QUERIES ? its : mine;
            f(product[i][j], t.weight[other + j][own + i], QUERIES ? own + i : other + j,
              key <= query && query - key < window);
        }
}

/* weight = p; 0 for a key that the query does not see. Scores have the bits of the op
 * attention, which lse is made of. */
template <bool QUERIES> static __device__ void weigh(grad_tiles &t, const grad_job &job)
{
    each_pair<QUERIES>(t, job, job.a.q, job.a.scale, job.a.keys,
                       [&](float score, float &weight, unsigned query, bool seen) {
                           weight = seen ? expf(score - t.lse[query]) : 0;
                       });
}

/* weight = ds, from p. */
template <bool QUERIES> static __device__ void differentiate(grad_tiles &t, const grad_job &job)
{
    each_pair<QUERIES>(t, job, job.a.dout, 1, job.a.values,
                       [&](float product, float &weight, unsigned query, bool seen) {
                           weight = seen ? weight * (product - t.delta[query]) : 0;
                       });
}

/* ---- attention: sums over tiles ---- */

/* Dimensions [d0, d0 + DIMS) of the own rows: sums of a thread for EACH rows. */
template <unsigned DIMS> struct own_sums {
    float of[EACH][DIMS / SIDE];
};

/* The dimension (of the block's DIMS) of sum j of a thread. */
static __device__ inline unsigned dim_of(unsigned j)
{
    return (j / EACH * SIDE + threadIdx.x % SIDE) * EACH + j % EACH;
}

/* Adds the other tile's rows in `from` times their weights. Ends with a barrier. */
template <unsigned DIMS>
static __device__ void add_rows(const grad_tiles &t, const float *from, size_t d0,
                                size_t head_dim, own_sums<DIMS> &sum)
{
    struct loaded {
        float x[STEP][DIMS];
    };
    loaded &s = port_shared<loaded>();
    const unsigned own = threadIdx.x / SIDE * EACH;
    for (unsigned l0 = 0; l0 < TILE; l0 += STEP) {
#pragma unroll
        for (unsigned i = threadIdx.x; i < STEP * DIMS; i += THREADS) {
            const unsigned l = i / DIMS, d = i % DIMS;
            const size_t at = t.other.at[l0 + l];
            s.x[l][d] = at != no_row && d0 + d < head_dim ? from[at + d0 + d] : 0;
        }
        __syncthreads();
#pragma unroll
        for (unsigned l = 0; l < STEP; l++)
#pragma unroll
            for (unsigned i = 0; i < EACH; i++)
#pragma unroll
                for (unsigned j = 0; j < DIMS / SIDE; j++)
                    sum.of[i][j] =
                        fmaf(t.weight[l0 + l][own + i], s.x[l][dim_of(j)], sum.of[i][j]);
        __syncthreads();
    }
}

template <unsigned DIMS>
static __device__ void store_sums(const grad_tiles &t, const own_sums<DIMS> &sum, float factor,
                                  size_t d0, size_t head_dim, float *to)
{
#pragma unroll
    for (unsigned i = 0; i < EACH; i++) {
        const size_t at = t.own.at[threadIdx.x / SIDE * EACH + i];
#pragma unroll
        for (unsigned j = 0; j < DIMS / SIDE; j++)
            if (at != no_row && d0 + dim_of(j) < head_dim)
                to[at + d0 + dim_of(j)] = factor * sum.of[i][j];
    }
}

/* One warp per query and head: dout . out. */
/* budget: delta_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS)
    delta_kernel(size_t rows, size_t head_dim, const float *dout, const float *out,
                 float *delta)
{
    const size_t row = (size_t)blockIdx.x * WARPS + port_warp();
    double sum = 0;
    if (row >= rows)
        return;
    for (size_t d = port_lane(); d < head_dim; d += PORT_LANES)
        sum += (double)dout[row * head_dim + d] * (double)out[row * head_dim + d];
    sum = port_warp_sum(sum);
    if (port_lane() == 0)
        delta[row] = (float)sum;
}

/* Block (tile of stacked queries, kv head, dimensions): dq. The last tiles see the most keys,
 * so they start first. */
/* budget: query_grad_kernel 128 registers, no dynamic shared memory */
template <unsigned DIMS>
__global__ static void __launch_bounds__(THREADS, 2) query_grad_kernel(grad_job job)
{
    grad_tiles &t = port_shared<grad_tiles>();
    const size_t row = (job.tile0 - blockIdx.x) * TILE, kv = blockIdx.y;
    const size_t d0 = (size_t)blockIdx.z * DIMS, head_dim = job.a.head_dim;
    const size_t first = row / job.group, end = (min(row + TILE, job.rows) - 1) / job.group + 1;
    own_sums<DIMS> dq = {};
    start_queries(t, t.own, job, row, kv);
    for (size_t key = first + 1 - min(job.window, first + 1); key < end; key += TILE) {
        start_keys(t.other, job, key, kv);
        __syncthreads();
        weigh<true>(t, job);
        differentiate<true>(t, job);
        add_rows(t, job.a.keys, d0, head_dim, dq);
    }
    store_sums(t, dq, job.a.scale, d0, head_dim, job.a.dq);
}

/* Block (tile of keys, kv head, dimensions): dk and dv. */
/* budget: key_grad_kernel 128 registers, no dynamic shared memory */
template <unsigned DIMS>
__global__ static void __launch_bounds__(THREADS, 2) key_grad_kernel(grad_job job)
{
    grad_tiles &t = port_shared<grad_tiles>();
    const size_t key = (job.tile0 + blockIdx.x) * TILE, kv = blockIdx.y;
    const size_t d0 = (size_t)blockIdx.z * DIMS, head_dim = job.a.head_dim;
    const size_t end = min(key + TILE - 1 + job.window, job.a.n) * job.group;
    own_sums<DIMS> dk = {}, dv = {};
    start_keys(t.own, job, key, kv);
    for (size_t row = key * job.group; row < end; row += TILE) {
        start_queries(t, t.other, job, row, kv);
        __syncthreads();
        weigh<false>(t, job);
        add_rows(t, job.a.dout, d0, head_dim, dv);
        differentiate<false>(t, job);
        add_rows(t, job.a.q, d0, head_dim, dk);
    }
    store_sums(t, dk, job.a.scale, d0, head_dim, job.a.dkeys);
    store_sums(t, dv, 1, d0, head_dim, job.a.dvalues);
}

/* Starts both kernels. The work of a tile is that of one with the most pairs. */
template <unsigned DIMS>
static vptq_status attend_back(vptq_dev *dev, grad_job *job, vptq_err *err)
{
    const vptq_attention_grad_args *a = &job->a;
    const unsigned kv_heads = (unsigned)a->kv_heads,
                   chunks = vptq_cuda_blocks(a->head_dim, DIMS);
    const size_t tiles = vptq_cuda_blocks(job->rows, TILE);
    const double each = (double)(a->kv_heads * TILE * a->head_dim);
    const double queries = (double)(min(job->window + TILE, a->n) * job->group);
    const auto launch_keys = [&](size_t first, size_t count) {
        job->tile0 = first;
        return port_launch(key_grad_kernel<DIMS>, dim3((unsigned)count, kv_heads, chunks),
                           THREADS, 0, dev->stream, *job);
    };
    const auto launch_queries = [&](size_t first, size_t count) {
        job->tile0 = tiles - 1 - first;
        return port_launch(query_grad_kernel<DIMS>, dim3((unsigned)count, kv_heads, chunks),
                           THREADS, 0, dev->stream, *job);
    };
    VPTQ_CHECK(vptq_cuda_in_pieces(dev, "attention_grad", vptq_cuda_blocks(a->n, TILE),
                                   each * queries * (2 * chunks + 2), 1, launch_keys, err));
    return vptq_cuda_in_pieces(dev, "attention_grad", tiles,
                               each * (double)job->window * (2 * chunks + 1), 1, launch_queries,
                               err);
}

vptq_status vptq_cuda_attention_grad(vptq_dev *dev, const vptq_attention_grad_args *a,
                                     vptq_err *err)
{
    const size_t rows = a->n * a->heads;
    void *delta = NULL;
    if (!a->n)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_cuda_scratch(dev, rows * sizeof(float), &delta, err));
    const size_t group = a->heads / a->kv_heads, window = a->window ? a->window : a->n;
    grad_job job = {*a, group, a->n * group, min(window, a->n), static_cast<float *>(delta), 0};
    VPTQ_CHECK(vptq_cuda_check(port_launch(delta_kernel, vptq_cuda_blocks(rows, WARPS), THREADS,
                                           0, dev->stream, rows, a->head_dim, a->dout, a->out,
                                           static_cast<float *>(delta)),
                               "attention_grad", err));
    return a->head_dim <= 64 ? attend_back<64>(dev, &job, err)
                             : attend_back<128>(dev, &job, err);
}

/* ---- rmsnorm ---- */

/* Rows whose dweight is summed on its own. */
enum { RANGE = 512 };

/* 1 / sqrt(mean(x^2) + eps) of the block's row, in every thread. */
static __device__ double norm_factor(const vptq_rmsnorm_grad_args &a)
{
    const float *x = a.x + blockIdx.x * a.dim;
    double sum = 0;
    for (size_t j = threadIdx.x; j < a.dim; j += THREADS)
        sum += (double)x[j] * (double)x[j];
    return 1 / sqrt(port_block_sum(sum) / (double)a.dim + (double)a.eps);
}

/* Block (row): the factor of x in its norm. */
/* budget: norm_factor_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS)
    norm_factor_kernel(vptq_rmsnorm_grad_args a, double *factor)
{
    const double r = norm_factor(a);
    if (threadIdx.x == 0)
        factor[blockIdx.x] = r;
}

struct norm_parts {
    double of[WARPS][PORT_LANES];
};

/* Block (range of rows, 32 columns): part of dweight. A lane has a column; a warp takes every
 * eighth row. */
/* budget: norm_weight_kernel 48 registers */
__global__ static void __launch_bounds__(THREADS)
    norm_weight_kernel(vptq_rmsnorm_grad_args a, const double *factor, double *part)
{
    norm_parts &p = port_shared<norm_parts>();
    const unsigned lane = port_lane(), warp = port_warp();
    const size_t first = (size_t)blockIdx.x * RANGE, end = min(first + RANGE, a.n);
    const size_t j = (size_t)blockIdx.y * PORT_LANES + lane;
    double sum = 0;
    for (size_t i = first + warp; i < end && j < a.dim; i += WARPS)
        sum += (double)a.dy[i * a.dim + j] * (double)a.x[i * a.dim + j] * factor[i];
    p.of[warp][lane] = sum;
    __syncthreads();
    if (warp || j >= a.dim)
        return;
    for (unsigned w = 1; w < WARPS; w++)
        sum += p.of[w][lane];
    part[blockIdx.x * a.dim + j] = sum;
}

/* One thread per column: adds the parts of dweight in order. */
/* budget: norm_add_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS)
    norm_add_kernel(size_t dim, size_t ranges, const double *part, double *dweight)
{
    const size_t j = (size_t)blockIdx.x * THREADS + threadIdx.x;
    double sum = 0;
    if (j >= dim)
        return;
    for (size_t i = 0; i < ranges; i++)
        sum += part[i * dim + j];
    dweight[j] += sum;
}

/* Block (row): dx. A thread writes only elements that it has read itself, so dx may be dy. */
/* budget: norm_grad_kernel 48 registers */
__global__ static void __launch_bounds__(THREADS) norm_grad_kernel(vptq_rmsnorm_grad_args a)
{
    const size_t row = blockIdx.x * a.dim;
    const double r = norm_factor(a);
    double along = 0;
    for (size_t j = threadIdx.x; j < a.dim; j += THREADS)
        along += (double)a.dy[row + j] * (double)a.weight[j] * (double)a.x[row + j];
    const double back = r * r * r * port_block_sum(along) / (double)a.dim;
    for (size_t j = threadIdx.x; j < a.dim; j += THREADS) {
        const double g =
            (double)a.dy[row + j] * (double)a.weight[j] * r - (double)a.x[row + j] * back;
        a.dx[row + j] = (float)(a.add ? (double)a.dx[row + j] + g : g);
    }
}

/* Adds to dweight, before dx may overwrite dy. */
static vptq_status add_dweight(vptq_dev *dev, const vptq_rmsnorm_grad_args *a, vptq_err *err)
{
    const unsigned ranges = vptq_cuda_blocks(a->n, RANGE);
    void *memory = NULL;
    VPTQ_CHECK(vptq_cuda_scratch(dev, (a->n + ranges * a->dim) * sizeof(double), &memory, err));
    double *factor = static_cast<double *>(memory), *part = factor + a->n;
    cudaError_t e =
        port_launch(norm_factor_kernel, (unsigned)a->n, THREADS, 0, dev->stream, *a, factor);
    if (!e)
        e = port_launch(norm_weight_kernel, dim3(ranges, vptq_cuda_blocks(a->dim, PORT_LANES)),
                        THREADS, 0, dev->stream, *a, factor, part);
    if (!e)
        e = port_launch(norm_add_kernel, vptq_cuda_blocks(a->dim, THREADS), THREADS, 0,
                        dev->stream, a->dim, ranges, part, a->dweight);
    return vptq_cuda_check(e, "rmsnorm_grad", err);
}

vptq_status vptq_cuda_rmsnorm_grad(vptq_dev *dev, const vptq_rmsnorm_grad_args *a,
                                   vptq_err *err)
{
    if (!a->n)
        return VPTQ_OK;
    if (a->dweight)
        VPTQ_CHECK(add_dweight(dev, a, err));
    return vptq_cuda_check(
        port_launch(norm_grad_kernel, (unsigned)a->n, THREADS, 0, dev->stream, *a),
        "rmsnorm_grad", err);
}

/* ---- swiglu ---- */

/* Block: every gridDim.x-th run of elements. */
/* budget: swiglu_grad_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS)
    swiglu_grad_kernel(size_t count, const float *dy, float *gate, float *up)
{
    const size_t all = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += all) {
        const float g = gate[i], s = 1 / (1 + expf(-g));
        gate[i] = dy[i] * up[i] * s * (1 + g * (1 - s));
        up[i] = dy[i] * g * s;
    }
}

vptq_status vptq_cuda_swiglu_grad(vptq_dev *dev, const vptq_swiglu_grad_args *a, vptq_err *err)
{
    const size_t count = a->n * a->dim;
    if (!count)
        return VPTQ_OK;
    const unsigned max_blocks = 1 << 16, blocks = vptq_cuda_blocks(count, THREADS);
    return vptq_cuda_check(port_launch(swiglu_grad_kernel, min(blocks, max_blocks), THREADS, 0,
                                       dev->stream, count, a->dy, a->gate, a->up),
                           "swiglu_grad", err);
}

/* ---- the loss ---- */

struct softmax_sum {
    float max;
    double sum; /* of exp(x - max) */
};

struct warp_maxima {
    float of[WARPS];
};

/* The same in every thread of the block; all have read the row when it returns. */
static __device__ softmax_sum softmax_of(const float *x, size_t n)
{
    warp_maxima &m = port_shared<warp_maxima>();
    float max = -INFINITY;
    double sum = 0;
    for (size_t j = threadIdx.x; j < n; j += THREADS)
        max = fmaxf(max, x[j]);
    max = port_warp_max(max);
    __syncthreads(); /* the maxima of an earlier call have been read */
    if (port_lane() == 0)
        m.of[port_warp()] = max;
    __syncthreads();
    max = port_warp_max(m.of[port_lane() % WARPS]);
    for (size_t j = threadIdx.x; j < n; j += THREADS)
        sum += (double)expf(x[j] - max);
    return {max, port_block_sum(sum)};
}

/* Block (row): the loss and its gradient with the softmax of a teacher. Both softmaxes are
 * computed alike, so that equal logits give 0. */
/* budget: kl_teacher_kernel 64 registers */
__global__ static void __launch_bounds__(THREADS) kl_teacher_kernel(vptq_kl_grad_args a)
{
    float *logits = a.logits + blockIdx.x * a.vocab;
    const float *teacher = a.teacher + blockIdx.x * a.vocab;
    const softmax_sum p = softmax_of(logits, a.vocab), t = softmax_of(teacher, a.vocab);
    const double scale = (double)a.scale, of_p = 1 / p.sum, of_t = 1 / t.sum;
    double apart = 0;
    for (size_t j = threadIdx.x; j < a.vocab; j += THREADS) {
        const double mine = (double)expf(logits[j] - p.max) * of_p;
        const double wanted = (double)expf(teacher[j] - t.max) * of_t;
        apart += wanted * ((double)teacher[j] - (double)logits[j]);
        logits[j] = (float)(scale * (mine - wanted));
    }
    apart = port_block_sum(apart);
    if (threadIdx.x == 0)
        a.loss[blockIdx.x] =
            apart + (log(p.sum) - log(t.sum)) + ((double)p.max - (double)t.max);
}

/* Block (row): the loss and its gradient with a target, or zeros without one. */
/* budget: kl_target_kernel 48 registers */
__global__ static void __launch_bounds__(THREADS) kl_target_kernel(vptq_kl_grad_args a)
{
    float *logits = a.logits + blockIdx.x * a.vocab;
    const int32_t target = a.targets[blockIdx.x];
    if (target < 0) {
        for (size_t j = threadIdx.x; j < a.vocab; j += THREADS)
            logits[j] = 0;
        if (threadIdx.x == 0)
            a.loss[blockIdx.x] = 0;
        return;
    }
    const double logit = (double)logits[target]; /* read before a thread overwrites it */
    const softmax_sum p = softmax_of(logits, a.vocab);
    const double of_p = 1 / p.sum;
    for (size_t j = threadIdx.x; j < a.vocab; j += THREADS) {
        const double mine = (double)expf(logits[j] - p.max) * of_p;
        logits[j] = (float)((double)a.scale * (mine - (j == (size_t)target)));
    }
    if (threadIdx.x == 0)
        a.loss[blockIdx.x] = log(p.sum) + ((double)p.max - logit);
}

vptq_status vptq_cuda_kl_grad(vptq_dev *dev, const vptq_kl_grad_args *a, vptq_err *err)
{
    if (!a->n)
        return VPTQ_OK;
    return vptq_cuda_check(port_launch(a->teacher ? kl_teacher_kernel : kl_target_kernel,
                                       (unsigned)a->n, THREADS, 0, dev->stream, *a),
                           "kl_grad", err);
}
