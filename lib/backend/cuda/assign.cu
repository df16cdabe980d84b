/* assign: the nearest centroid of every vector, as a search in float would find it. The score
 * of centroid c for x is |c|^2 - 2 x c, one chain of fused multiplications; the lowest index
 * with the smallest score wins.
 *
 * Tensor cores compute t = x c - |c|^2 / 2 for all pairs in halves, first for the largest t of
 * every vector, then for all that come within a margin of it. The margin covers every error of
 * t and of the scores (docs/numerics.md, "Nearest centroids on a GPU"), so the winner is among
 * them; the few that pass are compared in float. Vectors and codebooks that halves cannot
 * represent get t = 0 for all pairs, so that all centroids are compared in float. */
#include <math.h>

#include "lib/backend/cuda/cuda.h"

enum {
    THREADS = 128,
    WARPS = THREADS / PORT_LANES,
    GROUP = 8,             /* centroids of a matrix instruction */
    TOGETHER = 2,          /* groups that are compared with the thresholds before a branch */
    TILE = 16,             /* vectors of a matrix instruction */
    EXTRA = 3,             /* elements after the vector: |c|^2 / 2 in three halves */
    FULL = 4 * PORT_LANES, /* pairs of a tile and a group */
    WAITING = 256,         /* more pairs in a queue are compared at once */
    MAX_V = 64,
    MAX_EXPONENT = 50, /* of the codebook: scores neither overflow nor become subnormal */
    PREPARE = 1024,
    ROW_BITS = 8 /* of a vector's number in the queue */
};
static const float largest_scaled = 32768; /* magnitude of an element of x */

/* Computed from the codebook before the search. */
struct codebook_facts {
    float scale;  /* power of two that brings the largest element into [0.5, 1) */
    float length; /* largest |c| after scaling, rounded up */
    bool valid;
};

/* A codebook of halves: rows of 16 STEPS elements, in the order in which lanes read them. */
struct search_args {
    size_t n;
    uint32_t v, k;
    const float *x, *c;
    const codebook_facts *facts;
    const uint2 *image; /* [groups of 8 centroids][steps][32 lanes] */
    uint32_t groups;    /* a multiple of TOGETHER */
    uint32_t *idx;
    float *dist;
};

/* The score: |c|^2, then the elements in order; both chains of fused multiplications. */
static __device__ inline float score_of(const float *x, const float *c, uint32_t v)
{
    float sum = 0;
#pragma unroll 2
    for (unsigned d = 0; d < v; d++)
        sum = fmaf(c[d], c[d], sum);
#pragma unroll 2
    for (unsigned d = 0; d < v; d++)
        sum = fmaf(-2 * x[d], c[d], sum);
    return sum;
}

/* ---- the codebook ---- */

/* Largest magnitude and length of the rows without infinity and NaN. One block. */
/* budget: facts_kernel 56 registers */
__global__ static void __launch_bounds__(PREPARE)
    facts_kernel(uint32_t v, uint32_t k, const float *c, codebook_facts *facts)
{
    float largest = 0, longest = 0;
    for (uint32_t j = threadIdx.x; j < k; j += PREPARE) {
        float most = 0;
        bool finite = true;
        for (unsigned d = 0; d < v; d++) {
            const float size = fabsf(c[(size_t)j * v + d]);
            finite = finite && size < INFINITY;
            most = fmaxf(most, size);
        }
        largest = finite ? fmaxf(largest, most) : largest;
    }
    largest = __uint_as_float(port_block_max(__float_as_uint(largest)));
    int exponent = 0;
    (void)frexpf(largest, &exponent);
    const bool valid = exponent <= MAX_EXPONENT && exponent >= -MAX_EXPONENT;
    const float scale = valid ? ldexpf(1, -exponent) : 0;
    for (uint32_t j = threadIdx.x; j < k && valid; j += PREPARE) {
        float sum = 0;
        for (unsigned d = 0; d < v; d++) {
            const float value = c[(size_t)j * v + d] * scale;
            sum = fmaf(value, value, sum);
        }
        if (sum < INFINITY)
            longest = fmaxf(longest, sum);
    }
    longest = __uint_as_float(port_block_max(__float_as_uint(longest)));
    if (threadIdx.x == 0)
        *facts = {scale, sqrtf(longest) * 1.0001f, valid};
}

/* Element d of the row of centroid j: the centroid, then -|c|^2 / 2 in three halves, then 0.
 * Centroids that are not finite, or after the codebook, have -inf there and are never near. */
static __device__ inline float image_element(const float *c, uint32_t v, bool exists,
                                             float scale, unsigned d)
{
    float half_norm = 0;
    for (unsigned i = 0; i < v && exists; i++) {
        const float value = c[i] * scale;
        half_norm = fmaf(value, value, half_norm);
    }
    half_norm *= -0.5f;
    if (!exists || !(half_norm > -INFINITY))
        return d == v ? -INFINITY : 0.0f;
    if (d < v)
        return c[d] * scale;
    for (unsigned i = v; i < d; i++)
        half_norm -= __half2float(__float2half_rn(half_norm));
    return d < v + EXTRA ? half_norm : 0.0f;
}

/* One thread per lane of every group and step. */
/* budget: image_kernel 48 registers */
__global__ static void __launch_bounds__(THREADS)
    image_kernel(uint32_t v, uint32_t k, unsigned steps, size_t count, const float *c,
                 const codebook_facts *facts, uint2 *image)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count)
        return;
    const unsigned lane = i % PORT_LANES, step = (unsigned)(i / PORT_LANES % steps);
    const size_t j = i / PORT_LANES / steps * GROUP + lane / 4;
    const unsigned d = TILE * step + lane % 4 * 2;
    const auto element = [&](unsigned at) {
        return image_element(c + (j < k ? j : 0) * v, v, j < k, facts->scale, at);
    };
    image[i].x = port_half_pair(element(d), element(d + 1));
    image[i].y = port_half_pair(element(d + 8), element(d + 9));
}

/* ---- the search ---- */

/* A warp's pairs that passed, and the best pair of each of its vectors: score and index, in an
 * order in which the smaller is the better. */
template <unsigned TILES> struct assign_shared {
    uint32_t queue[WARPS][WAITING + TOGETHER * TILES * FULL];
    unsigned long long best[WARPS][TILES * TILE];
};

/* The score as a number whose order is that of the floats; both zeros are equal. */
static __device__ inline uint32_t ordered(float score)
{
    const uint32_t bits = __float_as_uint(score + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* Compares the waiting pairs in float, one per lane. */
static __device__ inline void compare_queue(const search_args &a, const uint32_t *queue,
                                            unsigned long long *best, size_t first,
                                            unsigned count)
{
    __syncwarp();
#pragma unroll 1
    for (unsigned i = port_lane(); i < count; i += PORT_LANES) {
        const uint32_t row = queue[i] % (1u << ROW_BITS), j = queue[i] >> ROW_BITS;
        const float score = score_of(a.x + (first + row) * a.v, a.c + (size_t)j * a.v, a.v);
        if (score < INFINITY) /* not NaN */
            atomicMin(&best[row], (unsigned long long)ordered(score) << 32 | j);
    }
    __syncwarp();
}

/* Loads vector i, half r of the operands of this lane. Returns its length after scaling, or -1
 * if t = 0 is to be computed. */
template <unsigned STEPS>
static __device__ inline float load_vector(const search_args &s, const codebook_facts &facts,
                                           size_t i, unsigned r, uint32_t to[STEPS][4])
{
    const unsigned t = port_lane() % 4;
    const bool exists = i < s.n;
    float sum = 0, largest = 0;
#pragma unroll 1
    for (unsigned d = t; exists && d < s.v; d += 4) {
        const float value = s.x[i * s.v + d] * facts.scale;
        sum = fmaf(value, value, sum);
        largest = fabsf(value) < largest_scaled ? largest : largest_scaled; /* NaN too */
    }
    for (int with = 1; with < 4; with *= 2) {
        sum += __shfl_xor_sync(port_all, sum, with);
        largest = fmaxf(largest, __shfl_xor_sync(port_all, largest, with));
    }
    const bool fits = exists && facts.valid && largest < largest_scaled;
    const auto element = [&](unsigned d) {
        const float value = d < s.v ? s.x[i * s.v + d] * facts.scale : 1;
        return d < s.v + EXTRA ? value : 0;
    };
#pragma unroll
    for (unsigned step = 0; step < STEPS; step++)
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            const unsigned d = TILE * step + 8 * half + 2 * t;
            to[step][2 * half + r] = fits ? port_half_pair(element(d), element(d + 1)) : 0;
        }
    return fits ? sqrtf(sum) * 1.0001f : -1;
}

/* t of the tile's pairs with a group: d[2 r + e] is row g + 8 r, centroid 2 t + e. */
template <unsigned STEPS>
static __device__ inline void tile_scores(float d[4], const uint32_t a[STEPS][4],
                                          const uint2 b[STEPS])
{
#pragma unroll
    for (unsigned step = 0; step < STEPS; step++) {
        const uint32_t pair[2] = {b[step].x, b[step].y};
        if (step == 0)
            port_mma_f16_first(d, a[step], pair);
        else
            port_mma_f16(d, a[step], pair);
    }
}

/* Loads this lane's part of a group. */
template <unsigned STEPS>
static __device__ inline void load_group(const uint2 *image, uint2 b[STEPS])
{
#pragma unroll
    for (unsigned step = 0; step < STEPS; step++)
        b[step] = image[step * PORT_LANES];
}

/* Writes the results of a warp's vectors. */
static __device__ inline void write_labels(const search_args &s, size_t first, unsigned rows,
                                           const unsigned long long *best)
{
#pragma unroll 1
    for (unsigned r = port_lane(); r < rows && first + r < s.n; r += PORT_LANES) {
        const size_t i = first + r;
        const uint32_t found = best[r] == ~0ull ? 0 : (uint32_t)best[r]; /* no number: 0 */
        s.idx[i] = found;
        if (!s.dist)
            continue;
        float sum = 0;
#pragma unroll 2
        for (unsigned d = 0; d < s.v; d++) {
            const float difference = s.x[i * s.v + d] - s.c[(size_t)found * s.v + d];
            sum = fmaf(difference, difference, sum);
        }
        s.dist[i] = sum;
    }
}

/* The smallest t that a vector's winner can have, from the largest t of this lane. */
static __device__ inline float threshold(float best, float length, float longest)
{
    for (int with = 1; with < 4; with *= 2)
        best = fmaxf(best, __shfl_xor_sync(port_all, best, with));
    const float margin = length * (0x1p-9f + 0x1p-13f) + longest * 0x1p-13f;
    return length < 0 ? best : best - longest * margin;
}

/* Puts the pairs of a tile that pass into the queue; returns the new length. */
static __device__ inline unsigned enqueue(const float d[4], const float least[2], uint32_t j,
                                          uint32_t k, unsigned row, unsigned count,
                                          uint32_t *queue)
{
    const unsigned lane = port_lane();
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        const uint32_t centroid = j + lane % 4 * 2 + i % 2;
        const bool passes = d[i] >= least[i / 2] && centroid < k;
        const unsigned mask = __ballot_sync(port_all, passes);
        if (passes)
            queue[count + (unsigned)__popc(mask & ((1u << lane) - 1))] =
                centroid << ROW_BITS | (row + lane / 4 + i / 2 * 8);
        count += (unsigned)__popc(mask);
    }
    return count;
}

/* A warp's vectors, TILES times 16 from `first` on. */
template <unsigned STEPS, unsigned TILES> struct warp_vectors {
    uint32_t a[TILES][STEPS][4];
    float length[TILES][2], least[TILES][2]; /* least: score of a centroid to be compared */
    size_t first;
};

/* The vector whose scores this lane has in d[2 r] and d[2 r + 1] of tile t. */
static __device__ inline size_t vector_of(size_t first, unsigned t, unsigned r)
{
    return first + t * TILE + 8 * r + port_lane() / 4;
}

template <unsigned STEPS, unsigned TILES>
static __device__ inline void load_vectors(const search_args &s, const codebook_facts &facts,
                                           warp_vectors<STEPS, TILES> &w)
{
#pragma unroll
    for (unsigned t = 0; t < TILES; t++)
#pragma unroll
        for (unsigned r = 0; r < 2; r++) {
            w.length[t][r] = load_vector<STEPS>(s, facts, vector_of(w.first, t, r), r, w.a[t]);
            w.least[t][r] = -INFINITY;
        }
}

/* Finds the best scores, and from them which ones may belong to the nearest centroid. */
template <unsigned STEPS, unsigned TILES>
static __device__ inline void find_thresholds(const search_args &s, const codebook_facts &facts,
                                              warp_vectors<STEPS, TILES> &w)
{
    const uint2 *image = s.image + port_lane();
#pragma unroll 2
    for (uint32_t group = 0; group < s.groups; group++) {
        uint2 b[STEPS];
        load_group<STEPS>(image + (size_t)group * STEPS * PORT_LANES, b);
#pragma unroll
        for (unsigned t = 0; t < TILES; t++) {
            float d[4];
            tile_scores<STEPS>(d, w.a[t], b);
            w.least[t][0] = fmaxf(w.least[t][0], fmaxf(d[0], d[1]));
            w.least[t][1] = fmaxf(w.least[t][1], fmaxf(d[2], d[3]));
        }
    }
#pragma unroll
    for (unsigned t = 0; t < TILES; t++)
#pragma unroll
        for (unsigned r = 0; r < 2; r++) {
            w.least[t][r] = threshold(w.least[t][r], w.length[t][r], facts.length);
            if (vector_of(w.first, t, r) >= s.n)
                w.least[t][r] = INFINITY;
        }
}

/* Scores of TOGETHER groups; returns whether one reaches its threshold. */
template <unsigned STEPS, unsigned TILES>
static __device__ inline bool score_groups(const uint2 *image,
                                           const warp_vectors<STEPS, TILES> &w,
                                           float d[TOGETHER][TILES][4])
{
    bool any = false;
#pragma unroll
    for (unsigned h = 0; h < TOGETHER; h++) {
        uint2 b[STEPS];
        load_group<STEPS>(image + h * STEPS * PORT_LANES, b);
#pragma unroll
        for (unsigned t = 0; t < TILES; t++) {
            tile_scores<STEPS>(d[h][t], w.a[t], b);
#pragma unroll
            for (unsigned i = 0; i < 4; i++)
                any = any | (d[h][t][i] >= w.least[t][i / 2]);
        }
    }
    return any;
}

/* STEPS: 16 elements each. */
/* budget: assign_kernel 128 registers */
template <unsigned STEPS, unsigned TILES>
__global__ static void __launch_bounds__(THREADS, 5) assign_kernel(search_args s)
{
    typedef assign_shared<TILES> shared;
    shared &m = port_shared<shared>();
    uint32_t *queue = m.queue[port_warp()];
    unsigned long long *best = m.best[port_warp()];
    const codebook_facts facts = *s.facts;
    warp_vectors<STEPS, TILES> w;
    w.first = ((size_t)blockIdx.x * WARPS + port_warp()) * TILES * TILE;
    for (unsigned r = port_lane(); r < TILES * TILE; r += PORT_LANES)
        best[r] = ~0ull;
    load_vectors(s, facts, w);
    find_thresholds(s, facts, w);
    const uint2 *image = s.image + port_lane();
    unsigned count = 0;
    for (uint32_t group = 0; group < s.groups; group += TOGETHER) {
        float d[TOGETHER][TILES][4];
        const bool any = score_groups(image, w, d);
        image += TOGETHER * STEPS * PORT_LANES;
        if (__any_sync(port_all, any))
#pragma unroll
            for (unsigned h = 0; h < TOGETHER; h++)
#pragma unroll
                for (unsigned t = 0; t < TILES; t++)
                    count = enqueue(d[h][t], w.least[t], (group + h) * GROUP, s.k, t * TILE,
                                    count, queue);
        if (count > WAITING || group + TOGETHER == s.groups) {
            compare_queue(s, queue, best, w.first, count);
            count = 0;
        }
    }
    write_labels(s, w.first, TILES * TILE, best);
}

/* Vectors of a block, for every number of steps. */
template <unsigned STEPS, unsigned TILES>
static cudaError_t launch(vptq_dev *dev, const search_args &s)
{
    return port_launch(assign_kernel<STEPS, TILES>, vptq_cuda_blocks(s.n, WARPS * TILES * TILE),
                       THREADS, 0, dev->stream, s);
}

/* Writes the image of the codebook into scratch memory. */
static vptq_status prepare(vptq_dev *dev, const vptq_assign_args *a, unsigned steps,
                           search_args *s, vptq_err *err)
{
    enum { FACTS_BYTES = 256 }; /* keeps the image aligned */
    void *memory = NULL;
    s->groups = vptq_cuda_blocks(a->k, GROUP * TOGETHER) * TOGETHER;
    const size_t count = (size_t)s->groups * steps * PORT_LANES;
    VPTQ_CHECK(vptq_cuda_scratch(dev, FACTS_BYTES + count * sizeof(uint2), &memory, err));
    VPTQ_CHECK(vptq_cuda_pace(dev, (double)count, err));
    codebook_facts *facts = static_cast<codebook_facts *>(memory);
    uint2 *image = reinterpret_cast<uint2 *>(static_cast<char *>(memory) + FACTS_BYTES);
    s->facts = facts;
    s->image = image;
    cudaError_t e =
        port_launch(facts_kernel, 1, PREPARE, 0, dev->stream, a->v, a->k, a->centroids, facts);
    VPTQ_CHECK(vptq_cuda_check(e, "assign", err));
    VPTQ_CHECK(vptq_cuda_pace(dev, (double)count, err));
    e = port_launch(image_kernel, vptq_cuda_blocks(count, THREADS), THREADS, 0, dev->stream,
                    a->v, a->k, steps, count, a->centroids, facts, image);
    return vptq_cuda_check(e, "assign", err);
}

vptq_status vptq_cuda_assign(vptq_dev *dev, const vptq_assign_args *a, vptq_err *err)
{
    VPTQ_BUG_IF(a->v > MAX_V || a->k > 1u << (32 - ROW_BITS));
    search_args s = {};
    s.v = a->v;
    s.k = a->k;
    s.c = a->centroids;
    if (!a->n)
        return VPTQ_OK;
    const unsigned steps = vptq_cuda_blocks(a->v + EXTRA, TILE);
    const auto by_steps = steps <= 1 ? launch<1, 4> : steps <= 2 ? launch<2, 2> : launch<5, 1>;
    VPTQ_CHECK(prepare(dev, a, steps <= 2 ? steps : 5, &s, err));
    return vptq_cuda_in_pieces(
        dev, "assign", a->n, (double)a->k * (a->v + 1), (size_t)WARPS * 4 * TILE,
        [&](size_t first, size_t count) {
            s.n = count;
            s.x = a->x + first * a->v;
            s.idx = a->idx + first;
            s.dist = a->dist ? a->dist + first : NULL;
            return by_steps(dev, s);
        },
        err);
}
