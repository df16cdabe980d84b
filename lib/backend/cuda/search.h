/* Internal: codebook search on the device, shared by search, vq_pass and vq_descend so that
 * they choose alike. For search.cu and columns.cu only.
 *
 * A block searches up to SEARCH_VECTORS vectors at once: every thread scores some of the
 * centroids (loaded once for all vectors) and keeps its nearest, then the threads' keys are
 * joined.  The arithmetic is float:
 *   - one codebook: |c|^2 - 2 x c, a chain of fused multiplications that starts with |c|^2, as
 *     in assign;
 *   - pairs: |x - c|^2 + (|r|^2 - 2 (x - c) r), the second part on tensor cores, with both
 *     operands as sums of two halves, which leaves 2^-22 of an element, and sums in float.
 *     Every main centroid that is tried takes the residual centroid with the smallest second
 *     part (search_choose.h);
 *   - a found choice against one to keep: the sum of (x - (c + r))^2 in order.
 *
 * Which main centroids are tried and which choice wins depends only on the order of (score,
 * index) pairs: not on threads, blocks or the number of vectors searched at once. */
#ifndef VPTQ_BACKEND_CUDA_SEARCH_H
#define VPTQ_BACKEND_CUDA_SEARCH_H

#include "lib/backend/cuda/cuda.h"

enum {
    SEARCH_THREADS = 256,
    SEARCH_WARPS = SEARCH_THREADS / PORT_LANES,
    SEARCH_VECTORS = 4,           /* in flight */
    SEARCH_LONG = 64,             /* the class of vectors with more than 16 elements */
    SEARCH_MAINS = 16,            /* main centroids that a warp tries at once */
    SEARCH_TILE = 8,              /* residual centroids of a product on tensor cores */
    SEARCH_CHUNK = 4,             /* tiles between two looks at where the minimum is */
    SEARCH_MAX_BEAM = 128,        /* a wider beam tries all pairs */
    SEARCH_STATIC_BYTES = 7 << 10 /* largest static shared memory of a kernel */
};

/* A codebook laid out for warps: panels of 4 elements (a last one of 2 if the class is not a
 * multiple of 4), each [stride][4], then [stride] squared norms. Elements after v are 0;
 * entries after the codebook have the norm NaN and never win. */
struct search_codebook {
    const float *data;
    uint32_t k, stride; /* k rounded up to whole warps */
    uint32_t at;        /* offset in floats of the copy in dynamic shared memory, */
    bool shared;        /* if there is one */
};

/* A residual codebook as operand B of port_mma_f16: its head, [stride] norms |r|^2 times the
 * scale, and [stride / SEARCH_TILE][search_steps][lane] pairs of halves of r times the scale:
 * the high ones of two pairs (of one, if V <= 8), then the low ones. */
struct search_tiles {
    const float *data;
    uint32_t at; /* as in search_codebook */
    bool shared;
};
struct __align__(16) search_tiles_head
{
    uint32_t size; /* search_size of the largest element; the scale is 2^search_fit(size, 14) */
    uint32_t unused[3];
};
/* A product takes 16 elements, or high and low parts of 8. */
static inline __host__ __device__ constexpr unsigned search_steps_of(unsigned length)
{
    return length <= 8 ? 1 : (length + 15) / 16;
}
template <unsigned V> static const unsigned search_steps = search_steps_of(V);
static inline __host__ __device__ size_t search_tiles_floats(unsigned length, uint32_t stride)
{
    const unsigned words = length <= 8 ? 2 : 4;
    return sizeof(search_tiles_head) / sizeof(float) + stride +
           (size_t)stride / SEARCH_TILE * search_steps_of(length) * PORT_LANES * words;
}

/* Blocks per multiprocessor for which registers must suffice. */
template <unsigned V> static const unsigned search_per_sm = V >= 16 ? 1 : 2;

struct vptq_search_index {
    search_codebook main, res; /* res.stride 0: no residual codebook */
    search_tiles tiles;        /* of res, unless the choice is greedy */
    uint32_t v;
    unsigned size;   /* which of search_classes is that of v */
    unsigned length; /* the class of v */
    unsigned beam;   /* 1: greedy; 0: all pairs */
    void *memory;
};

/* The classes of v: kernels are compiled for vectors of up to so many elements. */
static const unsigned search_classes[] = {4, 6, 8, 12, 16, SEARCH_LONG};

/* The dynamic shared memory of a block; offsets in bytes. */
struct search_layout {
    search_codebook main, res;
    search_tiles tiles;
    uint32_t v;
    unsigned beam, groups, max_candidates;       /* see search_select */
    unsigned keys, group_keys, candidates, list; /* see search_select */
    unsigned tile, panel; /* [panel][SEARCH_VECTORS * v] floats for columns */
    unsigned bytes;
};

/* Floats per centroid, without its norm. */
static inline unsigned search_wide(unsigned length, uint32_t v)
{
    return length < SEARCH_LONG ? length : (v + 3) / 4 * 4;
}

/* Plans the layout for panels of at most `columns` columns (0: none). What is read
 * most goes to shared memory first: the operand of the residual codebook, or that codebook
 * without one, then the main codebook. What does not fit is read through the caches. */
search_layout vptq_cuda_search_layout(const vptq_dev *dev, const vptq_search_index *index,
                                      unsigned columns);

/* Number of blocks for n vectors or vector rows that all run at once; *each is how many a block
 * takes at a time. */
unsigned vptq_cuda_search_blocks(const vptq_dev *dev, const search_layout *l, size_t n,
                                 unsigned *each);

/* Multiplications per choice. */
double vptq_cuda_search_work(const vptq_search_index *f);
/* Launches that are divided take multiples of so many vectors or vector rows. */
enum { SEARCH_UNIT = 64 };

/* ---- keys ---- */

/* (score, index) as one number with the same order; scores that are not finite never win. */
static const uint64_t search_none = ~(uint64_t)0;

static __device__ inline uint64_t search_key(float score, uint32_t index)
{
    const unsigned bits = __float_as_uint(score + 0.0F); /* -0 is 0 */
    const unsigned ordered = bits >> 31 ? ~bits : bits | 0x80000000U;
    return score < INFINITY ? (uint64_t)ordered << 32 | index : search_none;
}

/* The smallest key of a warp, in all lanes. */
static __device__ inline uint64_t search_least(uint64_t key)
{
    const unsigned high = (unsigned)(key >> 32), least = port_redux_min(port_all, high);
    const unsigned low = port_redux_min(port_all, high == least ? (unsigned)key : ~0U);
    return (uint64_t)least << 32 | low;
}

/* The index of a key; 0 if no score was finite. */
static __device__ inline uint32_t search_index(uint64_t key)
{
    return key == search_none ? 0 : (uint32_t)key;
}

/* ---- what a block shares ---- */

struct search_choice {
    uint32_t main, res;
};

/* (score, main) of a pair, then (residual score, residual). */
struct search_pair {
    uint64_t main, res;
};

template <unsigned V> struct __align__(16) search_area
{
    float x[SEARCH_VECTORS][V]; /* vectors to search, 0 after element v */
    float y[SEARCH_VECTORS][V]; /* -2 times what is searched in the current codebook */
    uint64_t nearest[SEARCH_VECTORS][SEARCH_WARPS];
    search_pair pairs[SEARCH_VECTORS][SEARCH_WARPS];
    uint64_t threshold[SEARCH_VECTORS];
    unsigned count[SEARCH_VECTORS], total;
};

template <class T> static __device__ inline T *search_dynamic(unsigned at)
{
    return reinterpret_cast<T *>(static_cast<unsigned char *>(port_shared_dynamic()) + at);
}

static __device__ inline const float *search_copy(const search_codebook &b)
{
    return static_cast<const float *>(port_shared_dynamic()) + b.at;
}

/* The codebook in either memory. Hot loops distinguish the two cases themselves. */
static __device__ inline const float *search_data(const search_codebook &b)
{
    return b.shared ? search_copy(b) : b.data;
}

template <unsigned V> static __device__ inline unsigned search_wide_of(const search_layout &l)
{
    return V < SEARCH_LONG ? V : (l.v + 3) / 4 * 4;
}

template <unsigned V>
static __device__ inline void search_load_codebook(const search_layout &l,
                                                   const search_codebook &b)
{
    const float4 *from = reinterpret_cast<const float4 *>(b.data);
    float4 *to = search_dynamic<float4>(b.at * (unsigned)sizeof(float));
    for (unsigned i = threadIdx.x; i < (search_wide_of<V>(l) + 1) * (b.stride / 4);
         i += SEARCH_THREADS)
        to[i] = from[i];
}

/* Copies the codebooks that fit into shared memory; search_run (search_choose.h) waits for
 * them. */
template <unsigned V>
static __device__ inline void search_load_codebooks(const search_layout &l)
{
    if (l.main.shared)
        search_load_codebook<V>(l, l.main);
    if (l.res.shared)
        search_load_codebook<V>(l, l.res);
    if (l.tiles.shared) {
        const float4 *from = reinterpret_cast<const float4 *>(l.tiles.data);
        float4 *to = search_dynamic<float4>(l.tiles.at * (unsigned)sizeof(float));
        const unsigned count = (unsigned)search_tiles_floats(V, l.res.stride) / 4;
        for (unsigned i = threadIdx.x; i < count; i += SEARCH_THREADS)
            to[i] = from[i];
    }
}

/* Element d of centroid j. */
template <unsigned V>
static __device__ inline float search_element(const float *data, uint32_t stride, uint32_t j,
                                              unsigned d)
{
    const unsigned panel = d / 4 * 4, width = V - panel < 4 ? V - panel : 4;
    return data[panel * stride + j * width + d % 4];
}

/* Sets element d of vector i to search. */
template <unsigned V>
static __device__ inline void search_put(search_area<V> &s, unsigned i, unsigned d, float value)
{
    s.x[i][d] = value;
    s.y[i][d] = -2 * value;
}

/* ---- scoring centroids ---- */

/* N vectors times -2 as a thread holds them: in registers, or in shared memory if they are
 * long. */
template <unsigned V, unsigned N> struct search_held {
    float y[N][V];
};
template <unsigned N> struct search_held<SEARCH_LONG, N> {
    const float *y; /* [N][SEARCH_LONG] */
    unsigned panels;
};

template <unsigned V, unsigned N>
static __device__ inline void search_hold(const search_layout &l, search_held<V, N> &h,
                                          const float *y)
{
    if constexpr (V == SEARCH_LONG) {
        h.y = y;
        h.panels = (l.v + 3) / 4;
    } else {
#pragma unroll
        for (unsigned i = 0; i < N * V; i++)
            h.y[i / V][i % V] = y[i];
    }
}

static __device__ inline float search_fma4(float score, const float *y, float4 c)
{
    return fmaf(y[3], c.w, fmaf(y[2], c.z, fmaf(y[1], c.y, fmaf(y[0], c.x, score))));
}

/* Scores centroid j against the vectors of h. */
template <unsigned V, unsigned N>
static __device__ inline void search_score(const search_held<V, N> &h, const float *data,
                                           uint32_t stride, uint32_t j, float *score)
{
    if constexpr (V == SEARCH_LONG) {
        const float norm = data[4 * h.panels * stride + j];
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            score[i] = norm;
#pragma unroll 1
        for (unsigned p = 0; p < h.panels; p++) {
            const float4 c = reinterpret_cast<const float4 *>(data)[p * stride + j];
#pragma unroll
            for (unsigned i = 0; i < N; i++)
                score[i] = search_fma4(score[i], h.y + i * SEARCH_LONG + 4 * p, c);
        }
    } else {
        const float norm = data[V * stride + j];
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            score[i] = norm;
#pragma unroll
        for (unsigned d = 0; d + 4 <= V; d += 4) {
            const float4 c = reinterpret_cast<const float4 *>(data + d * stride)[j];
#pragma unroll
            for (unsigned i = 0; i < N; i++)
                score[i] = search_fma4(score[i], h.y[i] + d, c);
        }
        if constexpr (V % 4) {
            const float2 c = reinterpret_cast<const float2 *>(data + (V - 2) * stride)[j];
#pragma unroll
            for (unsigned i = 0; i < N; i++)
                score[i] = fmaf(h.y[i][V - 1], c.y, fmaf(h.y[i][V - 2], c.x, score[i]));
        }
    }
}

/* The nearest of centroids first, first + step .. < last for each vector of h; INFINITY and 0
 * if there is none.  Without AT only the scores, with two instructions less per pair. */
template <bool AT, unsigned V, unsigned N>
static __device__ inline void search_scan(const search_held<V, N> &h, const float *data,
                                          uint32_t stride, uint32_t first, uint32_t last,
                                          float *best, uint32_t *at)
{
#pragma unroll
    for (unsigned i = 0; i < N; i++) {
        best[i] = INFINITY;
        if constexpr (AT)
            at[i] = 0;
    }
#pragma unroll(V <= 8 ? 2 : 1)
    for (uint32_t j = first; j < last; j += SEARCH_THREADS) {
        float score[N];
        search_score(h, data, stride, j, score);
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            if constexpr (AT)
                at[i] = score[i] < best[i] ? j : at[i];
            best[i] = fminf(best[i], score[i]); /* never NaN */
        }
    }
}

/* The nearest of a thread's centroids for each vector of s.y; all threads together cover the
 * codebook. */
template <bool AT, unsigned V>
static __device__ inline void
search_scan_codebook(const search_layout &l, const search_area<V> &s, const search_codebook &b,
                     float *best, uint32_t *at)
{
    search_held<V, SEARCH_VECTORS> h;
    search_hold(l, h, &s.y[0][0]);
    if (b.shared)
        search_scan<AT>(h, search_copy(b), b.stride, threadIdx.x, b.stride, best, at);
    else
        search_scan<AT>(h, b.data, b.stride, threadIdx.x, b.stride, best, at);
}

/* The smallest key over all threads for each vector; warp i gets that of vector i < count. */
template <unsigned V>
static __device__ inline uint64_t search_join(search_area<V> &s, unsigned count,
                                              const float *best, const uint32_t *at)
{
#pragma unroll
    for (unsigned i = 0; i < SEARCH_VECTORS; i++) {
        const uint64_t key = search_least(search_key(best[i], at[i]));
        if (port_lane() == 0)
            s.nearest[i][port_warp()] = key;
    }
    __syncthreads();
    const unsigned i = port_warp(), lane = port_lane();
    return i < count ? search_least(lane < SEARCH_WARPS ? s.nearest[i][lane] : search_none)
                     : search_none;
}

/* ---- the beam: the nearest main centroids ---- */

/* Selects roughly the `beam` nearest: the threads' keys fall into `groups` groups, at least
 * twice as many as the beam. With the beam-th smallest group minimum as threshold, few more
 * than `beam` candidates remain. Neighbouring threads are in different groups, as are those a
 * power of two distance, because codebooks often have an order. */
static __device__ inline uint64_t search_group(const uint64_t *keys, unsigned groups,
                                               unsigned g)
{
    uint64_t least = search_none;
    for (unsigned run = 0; run < SEARCH_THREADS / groups; run++)
        least = min(least, keys[run * groups + (g + 5 * run) % groups]);
    return least;
}

/* Sets s.threshold[i] to the beam-th smallest key of the groups of vector i. */
template <unsigned V>
static __device__ void search_thresholds(const search_layout &l, search_area<V> &s,
                                         unsigned count, const float *best)
{
    uint64_t *keys = search_dynamic<uint64_t>(l.keys);
    uint64_t *groups = search_dynamic<uint64_t>(l.group_keys);
#pragma unroll
    for (unsigned i = 0; i < SEARCH_VECTORS; i++)
        keys[i * SEARCH_THREADS + threadIdx.x] = search_key(best[i], ~0U);
    __syncthreads();
    for (unsigned n = threadIdx.x; n < count * l.groups; n += SEARCH_THREADS)
        groups[n] = search_group(keys + n / l.groups * SEARCH_THREADS, l.groups, n % l.groups);
    if (threadIdx.x < SEARCH_VECTORS)
        s.count[threadIdx.x] = 0;
    __syncthreads();
    for (unsigned n = threadIdx.x; n < count * l.groups; n += SEARCH_THREADS) {
        const unsigned i = n / l.groups, g = n % l.groups;
        const uint64_t mine = groups[n];
        unsigned before = 0;
        for (unsigned o = 0; o < l.groups; o++) {
            const uint64_t other = groups[i * l.groups + o];
            before += other < mine || (other == mine && o < g);
        }
        if (before == l.beam - 1)
            s.threshold[i] = mine;
    }
    __syncthreads();
}

/* Collects the candidates of vector i among a thread's centroids: keys up to the threshold. */
template <unsigned V>
static __device__ void search_collect(const search_layout &l, search_area<V> &s, unsigned i,
                                      uint64_t threshold)
{
    search_held<V, 1> h;
    uint64_t *to = search_dynamic<uint64_t>(l.candidates) + i * l.max_candidates;
    search_hold(l, h, s.y[i]);
    for (uint32_t j = threadIdx.x; j < l.main.stride; j += SEARCH_THREADS) {
        float score;
        search_score(h, search_data(l.main), l.main.stride, j, &score);
        const uint64_t key = search_key(score, j);
        if (key > threshold || key == search_none)
            continue;
        const unsigned slot = atomicAdd(&s.count[i], 1U);
        if (slot < l.max_candidates)
            to[slot] = key;
    }
}

/* Finds the exact threshold that leaves `beam` candidates, by bisection; needed when the groups
 * left more than fit (the near centroids fall into few groups). */
template <unsigned V>
static __device__ void search_narrow(const search_layout &l, search_area<V> &s, unsigned i)
{
    search_held<V, 1> h;
    uint64_t low = 0, high = s.threshold[i];
    search_hold(l, h, s.y[i]);
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        unsigned own = 0;
        for (uint32_t j = threadIdx.x; j < l.main.stride; j += SEARCH_THREADS) {
            float score;
            search_score(h, search_data(l.main), l.main.stride, j, &score);
            own += search_key(score, j) <= middle;
        }
        own = port_warp_sum(own);
        __syncthreads(); /* the previous total has been read */
        if (threadIdx.x == 0)
            s.total = 0;
        __syncthreads();
        if (port_lane() == 0)
            (void)atomicAdd(&s.total, own);
        __syncthreads();
        if (s.total >= l.beam)
            high = middle;
        else
            low = middle + 1;
    }
    if (threadIdx.x == 0)
        s.count[i] = 0;
    __syncthreads();
    search_collect(l, s, i, high);
    __syncthreads();
}

/* Writes the `beam` nearest main centroids of each vector (or all finite ones, if fewer) to the
 * list [count][beam], nearest first, and their number to s.count. */
template <unsigned V>
static __device__ void search_select(const search_layout &l, search_area<V> &s, unsigned count,
                                     const float *best)
{
    search_thresholds(l, s, count, best);
#pragma unroll
    for (unsigned i = 0; i < SEARCH_VECTORS; i++)
        if (i < count && best[i] < INFINITY && search_key(best[i], ~0U) <= s.threshold[i])
            search_collect(l, s, i, s.threshold[i]);
    __syncthreads();
    for (unsigned i = 0; i < count; i++)
        if (s.count[i] > l.max_candidates)
            search_narrow(l, s, i);
    const uint64_t *candidates = search_dynamic<uint64_t>(l.candidates);
    uint32_t *list = search_dynamic<uint32_t>(l.list);
    for (unsigned n = threadIdx.x; n < count * l.max_candidates; n += SEARCH_THREADS) {
        const unsigned i = n / l.max_candidates, of = s.count[i];
        unsigned before = 0;
        if (n % l.max_candidates >= of)
            continue;
        for (unsigned o = 0; o < of; o++)
            before += candidates[i * l.max_candidates + o] < candidates[n];
        if (before < l.beam)
            list[i * l.beam + before] = (uint32_t)candidates[n];
    }
    __syncthreads();
}

#endif
