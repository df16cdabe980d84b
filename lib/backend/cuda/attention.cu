/* attention and attention_mass. The query heads of a kv head are stacked (row = query * group +
 * head in group), so that its keys are read once for all of them. A block takes a panel of rows
 * through tiles of keys in shared memory with a running softmax; scores exist for one tile at a
 * time. If there are few panels, their keys are divided among blocks, whose results are merged
 * in order. All of this depends only on the shape. */
#include "lib/backend/cuda/cuda.h"

enum {
    THREADS = 256,
    WARPS = THREADS / PORT_LANES,
    STEP = 16,          /* head dimensions, or keys, per step through shared memory */
    MIN_BLOCKS = 128,   /* number of blocks from which on keys are not divided */
    MIN_SPLIT_TILES = 2 /* smallest number of tiles of keys per block */
};

/* Division of a panel's scores [ROWS, KEYS] and results [ROWS, DIMS] among threads: SIDE
 * threads side by side, each with EACH_ROWS x EACH_KEYS and EACH_ROWS x EACH_DIMS. */
template <unsigned SIDE_, unsigned EACH_ROWS_, unsigned EACH_KEYS_, unsigned EACH_DIMS_>
struct tiling {
    static constexpr unsigned SIDE = SIDE_, EACH_ROWS = EACH_ROWS_, EACH_KEYS = EACH_KEYS_,
                              EACH_DIMS = EACH_DIMS_;
    static constexpr unsigned ROWS = THREADS / SIDE * EACH_ROWS;
    static constexpr unsigned KEYS = SIDE * EACH_KEYS, DIMS = SIDE * EACH_DIMS;
};
typedef tiling<16, 4, 4, 4> narrow_heads; /* 64 rows, 64 keys, 64 dimensions */
typedef tiling<16, 4, 4, 8> wide_heads;   /* 64 rows, 64 keys, 128 dimensions */
typedef tiling<128, 4, 1, 1> few_rows;    /* 8 rows, 128 keys, 128 dimensions */

struct attention_job {
    vptq_attention_args a;
    size_t group, rows;  /* query heads per kv head; stacked rows of a kv head */
    size_t tile0, tiles; /* tiles of keys that any row sees: [tile0, tile0 + tiles) */
    size_t splits, part; /* blocks that share a panel's keys, and the tiles of each */
    size_t last; /* panel (for mass_receive_kernel: tile of keys) of the launch's first block */
    float *partial, *stat; /* if splits > 1: [splits][kv_heads * rows][head_dim], and [..][2] */
};

static __device__ __host__ inline size_t first_key(const vptq_attention_args &a, size_t query)
{
    const size_t end = a.pos0 + query + 1;
    return a.window && end > a.window ? end - a.window : 0;
}

struct key_range {
    size_t from, to;
};

/* Keys that a stacked row sees; none after the last row. */
static __device__ inline key_range row_keys(const attention_job &job, size_t row)
{
    if (row >= job.rows)
        return {0, 0};
    return {first_key(job.a, row / job.group), job.a.pos0 + row / job.group + 1};
}

/* Keys that any of `count` rows from `row` on sees. */
static __device__ inline key_range panel_keys(const attention_job &job, size_t row,
                                              size_t count)
{
    const size_t last = min(row + count, job.rows) - 1;
    return {row_keys(job, row).from, row_keys(job, last).to};
}

template <class T> struct panel {
    float q[STEP][T::ROWS + 4], k[STEP][T::KEYS + 4];
    float p[T::KEYS][T::ROWS + 4];
    float max[T::ROWS], sum[T::ROWS];
    size_t from[T::ROWS], to[T::ROWS]; /* the keys that each row sees */
    size_t q_at[T::ROWS];              /* offset of its query */
};

/* Initializes what all tiles of keys share. Begins and ends with a barrier. */
template <class T>
static __device__ void start_panel(panel<T> &t, const attention_job &job, size_t row, size_t kv)
{
    __syncthreads();
    for (unsigned r = threadIdx.x; r < T::ROWS; r += THREADS) {
        const size_t query = (row + r) / job.group, head = (row + r) % job.group;
        const key_range seen = row_keys(job, row + r);
        t.from[r] = seen.from;
        t.to[r] = seen.to;
        t.q_at[r] = query * job.a.ldq + (kv * job.group + head) * job.a.head_dim;
        t.max[r] = -INFINITY;
        t.sum[r] = 0;
    }
    __syncthreads();
}

template <class T>
static __device__ inline bool sees(const panel<T> &t, unsigned row, size_t key)
{
    return key >= t.from[row] && key < t.to[row];
}

/* Scores the panel against keys [k0, k0 + KEYS); -inf where a row does not see the key. */
template <class T>
static __device__ void score_tile(panel<T> &t, const attention_job &job, size_t kv, size_t k0,
                                  float score[T::EACH_ROWS][T::EACH_KEYS])
{
    const vptq_attention_args &a = job.a;
    const unsigned thread = threadIdx.x;
    const unsigned tr = thread / T::SIDE * T::EACH_ROWS, tk = thread % T::SIDE * T::EACH_KEYS;
    const size_t keys = a.pos0 + a.n;
    for (unsigned i = 0; i < T::EACH_ROWS; i++)
        for (unsigned j = 0; j < T::EACH_KEYS; j++)
            score[i][j] = 0;
    for (size_t d0 = 0; d0 < a.head_dim; d0 += STEP) {
        for (unsigned i = thread; i < T::ROWS * STEP; i += THREADS) {
            const unsigned r = i / STEP, d = i % STEP;
            const bool in = t.to[r] && d0 + d < a.head_dim;
            t.q[d][r] = in ? a.scale * a.q[t.q_at[r] + d0 + d] : 0;
        }
        for (unsigned i = thread; i < T::KEYS * STEP; i += THREADS) {
            const unsigned k = i / STEP, d = i % STEP;
            const bool in = k0 + k < keys && d0 + d < a.head_dim;
            t.k[d][k] = in ? a.keys[(k0 + k) * a.ldk + kv * a.head_dim + d0 + d] : 0;
        }
        __syncthreads();
        port_multiply_tile<STEP, T::EACH_ROWS, T::EACH_KEYS>(score, t.q, t.k, tr, tk);
        __syncthreads();
    }
#pragma unroll
    for (unsigned i = 0; i < T::EACH_ROWS; i++)
#pragma unroll
        for (unsigned j = 0; j < T::EACH_KEYS; j++)
            if (!sees(t, tr + i, k0 + tk + j))
                score[i][j] = -INFINITY;
            else if (a.cap > 0)
                score[i][j] = vptq_cuda_soft_cap_of(score[i][j], a.cap);
}

/* Turns scores into exp(score - max) in t.p, where max is the row's largest so far, and updates
 * t.sum. factor[row] rescales earlier sums to that maximum (may be NULL). One warp per row.
 * Ends with a barrier. */
template <class T>
static __device__ void
update_softmax(panel<T> &t, const float score[T::EACH_ROWS][T::EACH_KEYS], float *factor)
{
    const unsigned thread = threadIdx.x, lane = port_lane();
    const unsigned tr = thread / T::SIDE * T::EACH_ROWS, tk = thread % T::SIDE * T::EACH_KEYS;
#pragma unroll
    for (unsigned i = 0; i < T::EACH_ROWS; i++)
#pragma unroll
        for (unsigned j = 0; j < T::EACH_KEYS; j++)
            t.p[tk + j][tr + i] = score[i][j];
    __syncthreads();
    for (unsigned r = port_warp(); r < T::ROWS; r += WARPS) {
        const float before = t.max[r];
        float max = before, sum = 0;
        for (unsigned k = lane; k < T::KEYS; k += PORT_LANES)
            max = fmaxf(max, t.p[k][r]);
        max = port_warp_max(max);
        /* While a row has seen no key, the shift must be finite or sums become NaN. */
        const float shift = max == -INFINITY ? 0 : max;
        for (unsigned k = lane; k < T::KEYS; k += PORT_LANES) {
            const float e = expf(t.p[k][r] - shift);
            t.p[k][r] = e;
            sum += e;
        }
        sum = port_warp_sum(sum);
        __syncwarp(); /* all lanes have read the maximum */
        if (lane)
            continue;
        const float old = expf(before - shift);
        t.max[r] = max;
        t.sum[r] = t.sum[r] * old + sum;
        if (factor)
            factor[r] = old;
    }
    __syncthreads();
}

/* ---- attention ---- */

template <class T> struct mix {
    float v[STEP][T::DIMS];
    float factor[T::ROWS];
};

/* The dimension (of the block's DIMS) of result j of a thread. */
template <class T> static __device__ inline unsigned dim_of(unsigned thread, unsigned j)
{
    constexpr unsigned run = T::EACH_DIMS < 4 ? T::EACH_DIMS : 4;
    return (j / run * T::SIDE + thread % T::SIDE) * run + j % run;
}

/* out = factor out + P V for keys [k0, k0 + KEYS) and value dimensions from d0 on. Ends with a
 * barrier. */
template <class T>
static __device__ void add_values(panel<T> &t, mix<T> &m, const attention_job &job, size_t kv,
                                  size_t k0, size_t d0, float out[T::EACH_ROWS][T::EACH_DIMS])
{
    const vptq_attention_args &a = job.a;
    const unsigned thread = threadIdx.x, tr = thread / T::SIDE * T::EACH_ROWS;
    const size_t keys = a.pos0 + a.n;
#pragma unroll
    for (unsigned i = 0; i < T::EACH_ROWS; i++)
#pragma unroll
        for (unsigned j = 0; j < T::EACH_DIMS; j++)
            out[i][j] *= m.factor[tr + i];
    for (unsigned s = 0; s < T::KEYS && k0 + s < keys; s += STEP) {
        for (unsigned i = thread; i < STEP * T::DIMS; i += THREADS) {
            const unsigned k = i / T::DIMS, d = i % T::DIMS;
            const bool in = k0 + s + k < keys && d0 + d < a.head_dim;
            m.v[k][d] = in ? a.values[(k0 + s + k) * a.ldv + kv * a.head_dim + d0 + d] : 0;
        }
        __syncthreads();
#pragma unroll
        for (unsigned k = 0; k < STEP; k++)
#pragma unroll
            for (unsigned i = 0; i < T::EACH_ROWS; i++)
#pragma unroll
                for (unsigned j = 0; j < T::EACH_DIMS; j++)
                    out[i][j] =
                        fmaf(t.p[s + k][tr + i], m.v[k][dim_of<T>(thread, j)], out[i][j]);
        __syncthreads();
    }
}

/* Index of a stacked row in lse. */
static __device__ inline size_t lse_at(const attention_job &job, size_t kv, size_t stacked)
{
    return stacked / job.group * job.a.heads + kv * job.group + stacked % job.group;
}

/* Stores lse of the panel's rows, or with splits what merge_kernel needs of their softmax, from
 * stat0 on. */
template <class T>
static __device__ void finish_softmax(const panel<T> &t, const attention_job &job, size_t row,
                                      size_t kv, size_t stat0)
{
    for (unsigned r = threadIdx.x; r < T::ROWS && row + r < job.rows; r += THREADS)
        if (job.splits > 1) {
            job.stat[(stat0 + r) * 2] = t.max[r];
            job.stat[(stat0 + r) * 2 + 1] = t.sum[r];
        } else if (job.a.lse) {
            job.a.lse[lse_at(job, kv, row + r)] = t.max[r] + logf(t.sum[r]);
        }
}

/* Stores the panel's results, or with splits its input to merge_kernel. */
template <class T>
static __device__ void finish_panel(panel<T> &t, const attention_job &job, size_t row,
                                    size_t kv, size_t split, size_t d0,
                                    const float out[T::EACH_ROWS][T::EACH_DIMS])
{
    const vptq_attention_args &a = job.a;
    const unsigned thread = threadIdx.x, tr = thread / T::SIDE * T::EACH_ROWS;
    const size_t partial0 = (split * a.kv_heads + kv) * job.rows + row;
    if (d0 == 0)
        finish_softmax(t, job, row, kv, partial0);
#pragma unroll
    for (unsigned i = 0; i < T::EACH_ROWS; i++) {
        const size_t stacked = row + tr + i, query = stacked / job.group;
        const size_t head = kv * job.group + stacked % job.group;
        float *to = job.splits > 1 ? job.partial + (partial0 + tr + i) * a.head_dim
                                   : a.out + query * a.ldo + head * a.head_dim;
        const float factor = job.splits > 1 ? 1 : 1 / t.sum[tr + i];
#pragma unroll
        for (unsigned j = 0; j < T::EACH_DIMS; j++)
            if (stacked < job.rows && d0 + dim_of<T>(thread, j) < a.head_dim)
                to[d0 + dim_of<T>(thread, j)] = factor * out[i][j];
    }
}

/* Block (panel, kv head, split and value dimensions). The last panels see the most keys, so
 * they start first. */
/* budget: attention_kernel 128 registers, no dynamic shared memory */
template <class T>
__global__ static void __launch_bounds__(THREADS, 2) attention_kernel(attention_job job)
{
    panel<T> &t = port_shared<panel<T>>();
    mix<T> &m = port_shared<mix<T>>();
    const size_t row = (job.last - blockIdx.x) * T::ROWS, kv = blockIdx.y;
    const size_t split = blockIdx.z % job.splits, d0 = blockIdx.z / job.splits * T::DIMS;
    const size_t begin = job.tile0 + split * job.part, end = begin + job.part;
    const key_range seen = panel_keys(job, row, T::ROWS);
    float score[T::EACH_ROWS][T::EACH_KEYS], out[T::EACH_ROWS][T::EACH_DIMS] = {};

    start_panel(t, job, row, kv);
    for (size_t tile = max(begin, seen.from / T::KEYS); tile < end; tile++) {
        const size_t k0 = tile * T::KEYS;
        if (k0 >= seen.to)
            break;
        score_tile(t, job, kv, k0, score);
        update_softmax(t, score, m.factor);
        add_values(t, m, job, kv, k0, d0, out);
    }
    finish_panel(t, job, row, kv, split, d0, out);
}

/* One block per stacked row: brings the splits to one maximum and adds them in order. */
/* budget: merge_kernel 48 registers */
__global__ static void __launch_bounds__(THREADS) merge_kernel(attention_job job)
{
    const vptq_attention_args &a = job.a;
    const size_t all = a.kv_heads * job.rows, at = blockIdx.x;
    const size_t stacked = at % job.rows, kv = at / job.rows, head = kv * job.group;
    float max = -INFINITY, sum = 0;
    for (size_t s = 0; s < job.splits; s++)
        max = fmaxf(max, job.stat[(s * all + at) * 2]);
    for (size_t s = 0; s < job.splits; s++) {
        const float *stat = job.stat + (s * all + at) * 2;
        sum += expf(stat[0] - max) * stat[1];
    }
    if (a.lse && threadIdx.x == 0)
        a.lse[lse_at(job, kv, stacked)] = max + logf(sum);
    float *out =
        a.out + stacked / job.group * a.ldo + (head + stacked % job.group) * a.head_dim;
    for (size_t d = threadIdx.x; d < a.head_dim; d += THREADS) {
        float mixed = 0;
        for (size_t s = 0; s < job.splits; s++)
            mixed = fmaf(expf(job.stat[(s * all + at) * 2] - max),
                         job.partial[(s * all + at) * a.head_dim + d], mixed);
        out[d] = mixed / sum;
    }
}

/* Largest number of multiplications of a panel over all kv heads. */
template <class T> static double panel_work(const attention_job &job, size_t chunks)
{
    const vptq_attention_args *a = &job.a;
    const size_t all = a->pos0 + a->n, keys = a->window && a->window < all ? a->window : all;
    return (double)(a->kv_heads * T::ROWS) * (double)keys * (double)a->head_dim *
           (double)(chunks + 1);
}

template <class T> static vptq_status attend(vptq_dev *dev, attention_job *job, vptq_err *err)
{
    const vptq_attention_args *a = &job->a;
    const size_t panels = vptq_cuda_blocks(job->rows, T::ROWS),
                 chunks = vptq_cuda_blocks(a->head_dim, T::DIMS);
    const size_t blocks = panels * a->kv_heads * chunks, all = a->kv_heads * job->rows;
    job->tile0 = first_key(*a, 0) / T::KEYS;
    job->tiles = vptq_cuda_blocks(a->pos0 + a->n, T::KEYS) - job->tile0;
    const size_t splits = MIN_BLOCKS / blocks ? MIN_BLOCKS / blocks : 1;
    job->part = vptq_cuda_blocks(job->tiles, splits);
    if (job->part < MIN_SPLIT_TILES)
        job->part = MIN_SPLIT_TILES;
    job->splits = vptq_cuda_blocks(job->tiles, job->part);
    if (job->splits > 1) {
        void *memory = NULL;
        const size_t floats = job->splits * all * (a->head_dim + 2);
        VPTQ_CHECK(vptq_cuda_scratch(dev, floats * sizeof(float), &memory, err));
        job->partial = static_cast<float *>(memory);
        job->stat = job->partial + job->splits * all * a->head_dim;
    }
    const auto launch = [&](size_t first, size_t count) {
        const dim3 grid((unsigned)count, (unsigned)a->kv_heads,
                        (unsigned)(job->splits * chunks));
        job->last = panels - 1 - first;
        return port_launch(attention_kernel<T>, grid, THREADS, 0, dev->stream, *job);
    };
    VPTQ_CHECK(vptq_cuda_in_pieces(dev, "attention", panels, panel_work<T>(*job, chunks), 1,
                                   launch, err));
    if (job->splits == 1)
        return VPTQ_OK;
    return vptq_cuda_check(
        port_launch(merge_kernel, (unsigned)all, THREADS, 0, dev->stream, *job), "attention",
        err);
}

static attention_job job_of(const vptq_attention_args *a)
{
    attention_job job = {};
    job.a = *a;
    job.group = a->heads / a->kv_heads;
    job.rows = a->n * job.group;
    return job;
}

vptq_status vptq_cuda_attention(vptq_dev *dev, const vptq_attention_args *a, vptq_err *err)
{
    attention_job job = job_of(a);
    if (!a->n)
        return VPTQ_OK;
    if (job.rows <= few_rows::ROWS)
        return attend<few_rows>(dev, &job, err);
    return a->head_dim <= narrow_heads::DIMS ? attend<narrow_heads>(dev, &job, err)
                                             : attend<wide_heads>(dev, &job, err);
}

/* ---- attention_mass ---- */

typedef narrow_heads mass_tiling;

struct mass_job {
    attention_job of;
    float *stat;  /* [kv_heads][rows][2]: maximum and 1 / sum of each row's softmax */
    double *part; /* [kv_heads][keys] */
};

/* Block (panel, kv head): the softmax statistics of its rows. */
/* budget: mass_stat_kernel 96 registers, no dynamic shared memory */
__global__ static void __launch_bounds__(THREADS, 2) mass_stat_kernel(mass_job mass)
{
    typedef mass_tiling T;
    panel<T> &t = port_shared<panel<T>>();
    const attention_job &job = mass.of;
    const size_t row = (job.last - blockIdx.x) * T::ROWS, kv = blockIdx.y;
    const key_range seen = panel_keys(job, row, T::ROWS);
    float score[T::EACH_ROWS][T::EACH_KEYS];

    start_panel(t, job, row, kv);
    for (size_t k0 = seen.from / T::KEYS * T::KEYS; k0 < seen.to; k0 += T::KEYS) {
        score_tile(t, job, kv, k0, score);
        update_softmax<T>(t, score, NULL);
    }
    for (unsigned r = threadIdx.x; r < T::ROWS; r += THREADS)
        if (row + r < job.rows) {
            float *stat = mass.stat + (kv * job.rows + row + r) * 2;
            stat[0] = t.max[r];
            stat[1] = 1 / t.sum[r];
        }
}

struct mass_shared {
    double sum[THREADS / mass_tiling::SIDE][mass_tiling::KEYS];
};

/* sum[j] += p^2 for the thread's rows and keys. */
static __device__ void add_squares(panel<mass_tiling> &t, const mass_job &mass, size_t row,
                                   size_t kv, size_t k0, double sum[mass_tiling::EACH_KEYS])
{
    typedef mass_tiling T;
    const attention_job &job = mass.of;
    const unsigned thread = threadIdx.x;
    const unsigned tr = thread / T::SIDE * T::EACH_ROWS, tk = thread % T::SIDE * T::EACH_KEYS;
    float score[T::EACH_ROWS][T::EACH_KEYS];
    start_panel(t, job, row, kv);
    score_tile(t, job, kv, k0, score);
    for (unsigned i = 0; i < T::EACH_ROWS; i++) {
        if (row + tr + i >= job.rows)
            break;
        const float *stat = mass.stat + (kv * job.rows + row + tr + i) * 2;
#pragma unroll
        for (unsigned j = 0; j < T::EACH_KEYS; j++) {
            const float p = expf(score[i][j] - stat[0]) * stat[1];
            if (sees(t, tr + i, k0 + tk + j)) /* p > 0 does not suffice: stat may be NaN */
                sum[j] += (double)p * (double)p;
        }
    }
}

/* Block (tile of keys, kv head): the mass of its keys over all rows, panels in order. */
/* budget: mass_receive_kernel 112 registers, no dynamic shared memory */
__global__ static void __launch_bounds__(THREADS, 2) mass_receive_kernel(mass_job mass)
{
    typedef mass_tiling T;
    panel<T> &t = port_shared<panel<T>>();
    mass_shared &s = port_shared<mass_shared>();
    const attention_job &job = mass.of;
    const size_t k0 = (job.last - blockIdx.x) * T::KEYS, kv = blockIdx.y,
                 keys = job.a.pos0 + job.a.n;
    const unsigned side = threadIdx.x / T::SIDE, tk = threadIdx.x % T::SIDE * T::EACH_KEYS;
    double sum[T::EACH_KEYS] = {};
    for (size_t row = 0; row < job.rows; row += T::ROWS) {
        const key_range seen = panel_keys(job, row, T::ROWS);
        if (k0 + T::KEYS > seen.from && k0 < seen.to)
            add_squares(t, mass, row, kv, k0, sum);
    }
    for (unsigned j = 0; j < T::EACH_KEYS; j++)
        s.sum[side][tk + j] = sum[j];
    __syncthreads();
    for (unsigned k = threadIdx.x; k < T::KEYS && k0 + k < keys; k += THREADS) {
        double all = 0;
        for (unsigned i = 0; i < THREADS / T::SIDE; i++)
            all += s.sum[i][k];
        mass.part[kv * keys + k0 + k] = all;
    }
}

/* budget: mass_add_kernel 40 registers */
__global__ static void __launch_bounds__(THREADS)
    mass_add_kernel(size_t keys, size_t kv_heads, const double *part, double *mass)
{
    const size_t k = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (k >= keys)
        return;
    double sum = 0;
    for (size_t kv = 0; kv < kv_heads; kv++)
        sum += part[kv * keys + k];
    mass[k] += sum;
}

vptq_status vptq_cuda_attention_mass(vptq_dev *dev, const vptq_attention_args *a, double *mass,
                                     vptq_err *err)
{
    typedef mass_tiling T;
    mass_job job = {job_of(a), NULL, NULL};
    if (!a->n)
        return VPTQ_OK;
    const size_t keys = a->pos0 + a->n, all = a->kv_heads * job.of.rows;
    void *memory = NULL;
    VPTQ_CHECK(vptq_cuda_scratch(
        dev, a->kv_heads * keys * sizeof(double) + all * 2 * sizeof(float), &memory, err));
    job.part = static_cast<double *>(memory);
    job.stat = reinterpret_cast<float *>(job.part + a->kv_heads * keys);
    /* Starts a kernel for blocks n - 1 - first downwards. */
    const auto run = [&](void (*kernel)(mass_job), size_t n, double each) {
        const auto launch = [&](size_t first, size_t count) {
            const dim3 grid((unsigned)count, (unsigned)a->kv_heads);
            job.of.last = n - 1 - first;
            return port_launch(kernel, grid, THREADS, 0, dev->stream, job);
        };
        return vptq_cuda_in_pieces(dev, "attention_mass", n, each, 1, launch, err);
    };
    const size_t panels = vptq_cuda_blocks(job.of.rows, T::ROWS),
                 tiles = vptq_cuda_blocks(keys, T::KEYS);
    const double each = panel_work<T>(job.of, 0);
    VPTQ_CHECK(run(mass_stat_kernel, panels, each));
    VPTQ_CHECK(run(mass_receive_kernel, tiles, each * (double)panels / (double)tiles));
    return vptq_cuda_check(port_launch(mass_add_kernel, vptq_cuda_blocks(keys, THREADS),
                                       THREADS, 0, dev->stream, keys, a->kv_heads, job.part,
                                       mass),
                           "attention_mass", err);
}
