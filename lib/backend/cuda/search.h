/* Searching codebooks on the device: what find, vq_pass and vq_descend share, so that they
 * choose alike.  For cuda_find.cu and cuda_columns.cu alone.
 *
 * A block searches up to FIND_VECTORS vectors at once: every thread meets some of the centroids
 * (loaded once for all vectors) and keeps its nearest, and the threads' keys are joined.  The
 * arithmetic is float:
 *   - of one codebook: |c|^2 - 2 x c, a chain of fused multiplications from |c|^2 on, as
 * assign;
 *   - of pairs: |x - c|^2 + (|r|^2 - 2 (x - c) r), the second part as of one codebook; for
 * every main centroid that is tried, the residual one with the least second part;
 *   - of a found choice and one to keep: the sum of (x - (c + r))^2 in order.
 * Which main centroids are tried, and what wins, follows from the order of (score, index) pairs
 * alone: not from threads, blocks or how many vectors are searched at once. */
#ifndef VPTQ_BACKEND_CUDA_SEARCH_H
#define VPTQ_BACKEND_CUDA_SEARCH_H

#include "lib/backend/cuda/cuda.h"

enum {
    FIND_THREADS = 256,
    FIND_WARPS = FIND_THREADS / PORT_LANES,
    FIND_VECTORS =
        4,          /* in flight; also main centroids that a lane holds when pairs are tried */
    FIND_LONG = 64, /* the class of vectors of more than 16 elements */
    FIND_MOST_BEAM = 128,      /* a wider one tries all pairs */
    FIND_PLAIN_BYTES = 6 << 10 /* of shared memory that is not dynamic, at most */
};

/* A codebook laid out for warps: panels of 4 elements (a last one of 2 where the class of the
 * length is not a multiple of 4), each [room][4], then [room] squared lengths.  Elements behind
 * v are 0; places behind the codebook have the length NaN, and never win. */
struct search_codebook {
    const float *data;
    uint32_t k, room; /* k in whole warps */
    uint32_t at;      /* float of dynamic shared memory where a block has its copy ... */
    bool shared;      /* ... if it has one */
};

/* Blocks of a multiprocessor that registers must leave room for. */
template <unsigned V> static const unsigned search_per_sm = V == 16 ? 1 : 2;

struct vptq_search_index {
    search_codebook main, res; /* res.room 0: no residual codebook */
    uint32_t v;
    unsigned length; /* the class of v: 4, 6, 8, 12, 16 or FIND_LONG */
    unsigned beam;   /* 1: greedily; 0: all pairs */
    void *memory;
};

/* How a block uses its dynamic shared memory; offsets in bytes. */
struct search_layout {
    search_codebook main, res;
    uint32_t v;
    unsigned beam, groups, room;                 /* see search_select */
    unsigned keys, group_keys, candidates, list; /* see search_select */
    unsigned rests;                              /* see search_long_rests */
    unsigned tile, panel; /* [panel][FIND_VECTORS * v] floats for columns */
    unsigned bytes;
};

/* Floats of a centroid without its squared length. */
static inline unsigned search_wide(unsigned length, uint32_t v)
{
    return length < FIND_LONG ? length : (v + 3) / 4 * 4;
}

/* The layout for columns in panels of at most `columns` (0: none): residual codebook, then main
 * codebook where they fit, else they are read through the caches. */
search_layout vptq_cuda_search_layout(const vptq_dev *dev, const vptq_search_index *index,
                                      unsigned columns);

/* Blocks for n vectors or vector rows, all of which run at once, and how many a block takes. */
unsigned vptq_cuda_search_blocks(const vptq_dev *dev, const search_layout *l, size_t n,
                                 unsigned *each);

/* Multiplications that a choice takes. */
double vptq_cuda_search_work(const vptq_search_index *f);
/* Vectors or vector rows that a launch is cut to multiples of, where it is. */
enum { FIND_UNIT = 64 };

/* kernel(job) with layout l in `blocks` blocks. */
template <class J>
static inline vptq_status search_launch(vptq_dev *dev, void (*kernel)(J),
                                        const search_layout &l, unsigned blocks, const J &job,
                                        const char *row, vptq_err *err)
{
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)l.bytes);
    if (!e)
        e = port_launch(kernel, blocks, FIND_THREADS, l.bytes, dev->stream, job);
    return vptq_cuda_check(e, row, err);
}

/* ---- keys ---- */

/* (score, index) as one number in their order; those that are not finite are never found. */
static const uint64_t search_none = ~(uint64_t)0;

static __device__ inline uint64_t search_key(float score, uint32_t index)
{
    const unsigned bits = __float_as_uint(score + 0.0F); /* -0 is 0 */
    const unsigned ordered = bits >> 31 ? ~bits : bits | 0x80000000U;
    return score < INFINITY ? (uint64_t)ordered << 32 | index : search_none;
}

/* The least key of a warp, in all lanes. */
static __device__ inline uint64_t search_least(uint64_t key)
{
    const unsigned high = (unsigned)(key >> 32), least = port_redux_min(port_all, high);
    const unsigned low = port_redux_min(port_all, high == least ? (unsigned)key : ~0U);
    return (uint64_t)least << 32 | low;
}

/* The index of a key; 0 where nothing was finite. */
static __device__ inline uint32_t search_index(uint64_t key)
{
    return key == search_none ? 0 : (uint32_t)key;
}

/* ---- what a block shares ---- */

struct search_choice {
    uint32_t main, res;
};

/* (score, main) of a pair, and (score of the residual, residual) behind it. */
struct search_pair {
    uint64_t main, res;
};

template <unsigned V> struct __align__(16) search_area
{
    float x[FIND_VECTORS][V]; /* what is searched, 0 behind element v */
    float y[FIND_VECTORS][V]; /* -2 times what is searched in the codebook at hand */
    uint64_t nearest[FIND_VECTORS][FIND_WARPS];
    search_pair pairs[FIND_VECTORS][FIND_WARPS];
    uint64_t threshold[FIND_VECTORS];
    unsigned count[FIND_VECTORS], total;
};

template <class T> static __device__ inline T *search_dynamic(unsigned at)
{
    return reinterpret_cast<T *>(static_cast<unsigned char *>(port_shared_dynamic()) + at);
}

static __device__ inline const float *search_copy(const search_codebook &b)
{
    return static_cast<const float *>(port_shared_dynamic()) + b.at;
}

/* The codebook wherever it is.  Loops that are hot tell the two cases apart. */
static __device__ inline const float *search_data(const search_codebook &b)
{
    return b.shared ? search_copy(b) : b.data;
}

template <unsigned V> static __device__ inline unsigned search_wide_of(const search_layout &l)
{
    return V < FIND_LONG ? V : (l.v + 3) / 4 * 4;
}

template <unsigned V>
static __device__ inline void search_load_codebook(const search_layout &l,
                                                   const search_codebook &b)
{
    const float4 *from = reinterpret_cast<const float4 *>(b.data);
    float4 *to = search_dynamic<float4>(b.at * (unsigned)sizeof(float));
    for (unsigned i = threadIdx.x; i < (search_wide_of<V>(l) + 1) * (b.room / 4);
         i += FIND_THREADS)
        to[i] = from[i];
}

/* Copies of the codebooks for those that fit; search_run waits for them. */
template <unsigned V>
static __device__ inline void search_load_codebooks(const search_layout &l)
{
    if (l.main.shared)
        search_load_codebook<V>(l, l.main);
    if (l.res.shared)
        search_load_codebook<V>(l, l.res);
}

/* Element d of centroid j. */
template <unsigned V>
static __device__ inline float search_element(const float *data, uint32_t room, uint32_t j,
                                              unsigned d)
{
    const unsigned panel = d / 4 * 4, width = V - panel < 4 ? V - panel : 4;
    return data[panel * room + j * width + d % 4];
}

/* All of centroid j; not for long ones. */
template <unsigned V>
static __device__ inline void search_centroid(const float *data, uint32_t room, uint32_t j,
                                              float *c)
{
#pragma unroll
    for (unsigned d = 0; d + 4 <= V; d += 4) {
        const float4 part = reinterpret_cast<const float4 *>(data + d * room)[j];
        c[d] = part.x;
        c[d + 1] = part.y;
        c[d + 2] = part.z;
        c[d + 3] = part.w;
    }
    if constexpr (V % 4) {
        const float2 part = reinterpret_cast<const float2 *>(data + (V - 2) * room)[j];
        c[V - 2] = part.x;
        c[V - 1] = part.y;
    }
}

/* Element d of vector i of those to be searched. */
template <unsigned V>
static __device__ inline void search_put(search_area<V> &s, unsigned i, unsigned d, float value)
{
    s.x[i][d] = value;
    s.y[i][d] = -2 * value;
}

/* ---- meeting centroids ---- */

/* N vectors times -2 as a thread holds them: in registers, long ones in shared memory. */
template <unsigned V, unsigned N> struct search_held {
    float y[N][V];
};
template <unsigned N> struct search_held<FIND_LONG, N> {
    const float *y; /* [N][FIND_LONG] */
    unsigned panels;
};

template <unsigned V, unsigned N>
static __device__ inline void search_hold(const search_layout &l, search_held<V, N> &h,
                                          const float *y)
{
    if constexpr (V == FIND_LONG) {
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

/* The scores of centroid j for the vectors of h. */
template <unsigned V, unsigned N>
static __device__ inline void search_meet(const search_held<V, N> &h, const float *data,
                                          uint32_t room, uint32_t j, float *score)
{
    if constexpr (V == FIND_LONG) {
        const float norm = data[4 * h.panels * room + j];
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            score[i] = norm;
#pragma unroll 1
        for (unsigned p = 0; p < h.panels; p++) {
            const float4 c = reinterpret_cast<const float4 *>(data)[p * room + j];
#pragma unroll
            for (unsigned i = 0; i < N; i++)
                score[i] = search_fma4(score[i], h.y + i * FIND_LONG + 4 * p, c);
        }
    } else {
        const float norm = data[V * room + j];
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            score[i] = norm;
#pragma unroll
        for (unsigned d = 0; d + 4 <= V; d += 4) {
            const float4 c = reinterpret_cast<const float4 *>(data + d * room)[j];
#pragma unroll
            for (unsigned i = 0; i < N; i++)
                score[i] = search_fma4(score[i], h.y[i] + d, c);
        }
        if constexpr (V % 4) {
            const float2 c = reinterpret_cast<const float2 *>(data + (V - 2) * room)[j];
#pragma unroll
            for (unsigned i = 0; i < N; i++)
                score[i] = fmaf(h.y[i][V - 1], c.y, fmaf(h.y[i][V - 2], c.x, score[i]));
        }
    }
}

/* The nearest of centroids first, first + step .. < last for each vector of h; INFINITY and 0
 * where there is none. */
template <unsigned V, unsigned N>
static __device__ inline void search_scan(const search_held<V, N> &h, const float *data,
                                          uint32_t room, uint32_t first, uint32_t last,
                                          unsigned step, float *best, uint32_t *at)
{
#pragma unroll
    for (unsigned i = 0; i < N; i++) {
        best[i] = INFINITY;
        at[i] = 0;
    }
#pragma unroll(V <= 8 ? 2 : 1)
    for (uint32_t j = first; j < last; j += step) {
        float score[N];
        search_meet(h, data, room, j, score);
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            if (score[i] < best[i]) {
                best[i] = score[i];
                at[i] = j;
            }
    }
}

/* The nearest centroid among a thread's own, for each vector of s.y; all threads have all. */
template <unsigned V>
static __device__ inline void
search_scan_codebook(const search_layout &l, const search_area<V> &s, const search_codebook &b,
                     float *best, uint32_t *at)
{
    search_held<V, FIND_VECTORS> h;
    search_hold(l, h, &s.y[0][0]);
    if (b.shared)
        search_scan(h, search_copy(b), b.room, threadIdx.x, b.room, FIND_THREADS, best, at);
    else
        search_scan(h, b.data, b.room, threadIdx.x, b.room, FIND_THREADS, best, at);
}

/* The least key over all threads for each vector; warp i gets that of vector i < count. */
template <unsigned V>
static __device__ inline uint64_t search_join(search_area<V> &s, unsigned count,
                                              const float *best, const uint32_t *at)
{
#pragma unroll
    for (unsigned i = 0; i < FIND_VECTORS; i++) {
        const uint64_t key = search_least(search_key(best[i], at[i]));
        if (port_lane() == 0)
            s.nearest[i][port_warp()] = key;
    }
    __syncthreads();
    const unsigned i = port_warp(), lane = port_lane();
    return i < count ? search_least(lane < FIND_WARPS ? s.nearest[i][lane] : search_none)
                     : search_none;
}

/* ---- the beam: the nearest main centroids ---- */

/* The threads' keys fall into `groups` groups, at least twice as many as the beam; the least
 * keys of the groups, the beam-th smallest of them taken as threshold, leave few more than
 * `beam` candidates at or below it.  Threads side by side are in different groups, and so are
 * those a power of two apart: codebooks often have an order. */
static __device__ inline uint64_t search_group(const uint64_t *keys, unsigned groups,
                                               unsigned g)
{
    uint64_t least = search_none;
    for (unsigned run = 0; run < FIND_THREADS / groups; run++)
        least = min(least, keys[run * groups + (g + 5 * run) % groups]);
    return least;
}

/* s.threshold[i] = the beam-th smallest key of the groups of vector i. */
template <unsigned V>
static __device__ void search_thresholds(const search_layout &l, search_area<V> &s,
                                         unsigned count, const float *best, const uint32_t *at)
{
    uint64_t *keys = search_dynamic<uint64_t>(l.keys);
    uint64_t *groups = search_dynamic<uint64_t>(l.group_keys);
#pragma unroll
    for (unsigned i = 0; i < FIND_VECTORS; i++)
        keys[i * FIND_THREADS + threadIdx.x] = search_key(best[i], at[i]);
    __syncthreads();
    for (unsigned n = threadIdx.x; n < count * l.groups; n += FIND_THREADS)
        groups[n] = search_group(keys + n / l.groups * FIND_THREADS, l.groups, n % l.groups);
    if (threadIdx.x < FIND_VECTORS)
        s.count[threadIdx.x] = 0;
    __syncthreads();
    for (unsigned n = threadIdx.x; n < count * l.groups; n += FIND_THREADS) {
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

/* Candidates of vector i: a thread's centroids up to the threshold. */
template <unsigned V>
static __device__ void search_collect(const search_layout &l, search_area<V> &s, unsigned i,
                                      uint64_t threshold)
{
    search_held<V, 1> h;
    uint64_t *to = search_dynamic<uint64_t>(l.candidates) + i * l.room;
    search_hold(l, h, s.y[i]);
    for (uint32_t j = threadIdx.x; j < l.main.room; j += FIND_THREADS) {
        float score;
        search_meet(h, search_data(l.main), l.main.room, j, &score);
        const uint64_t key = search_key(score, j);
        if (key > threshold || key == search_none)
            continue;
        const unsigned place = atomicAdd(&s.count[i], 1U);
        if (place < l.room)
            to[place] = key;
    }
}

/* Where the groups left more candidates than there is room for (a codebook whose near centroids
 * fall into few groups): the very threshold that leaves `beam`, by halving. */
template <unsigned V>
static __device__ void search_narrow(const search_layout &l, search_area<V> &s, unsigned i)
{
    search_held<V, 1> h;
    uint64_t low = 0, high = s.threshold[i];
    search_hold(l, h, s.y[i]);
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        unsigned own = 0;
        for (uint32_t j = threadIdx.x; j < l.main.room; j += FIND_THREADS) {
            float score;
            search_meet(h, search_data(l.main), l.main.room, j, &score);
            own += search_key(score, j) <= middle;
        }
        own = port_warp_sum(own);
        __syncthreads(); /* the total before has been read */
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

/* The `beam` nearest main centroids of each vector (all finite ones where they are fewer) into
 * the list [count][beam], nearest first, and their number into s.count. */
template <unsigned V>
static __device__ void search_select(const search_layout &l, search_area<V> &s, unsigned count,
                                     const float *best, const uint32_t *at)
{
    search_thresholds(l, s, count, best, at);
#pragma unroll
    for (unsigned i = 0; i < FIND_VECTORS; i++)
        if (i < count && best[i] < INFINITY && search_key(best[i], at[i]) <= s.threshold[i])
            search_collect(l, s, i, s.threshold[i]);
    __syncthreads();
    for (unsigned i = 0; i < count; i++)
        if (s.count[i] > l.room)
            search_narrow(l, s, i);
    const uint64_t *candidates = search_dynamic<uint64_t>(l.candidates);
    uint32_t *list = search_dynamic<uint32_t>(l.list);
    for (unsigned n = threadIdx.x; n < count * l.room; n += FIND_THREADS) {
        const unsigned i = n / l.room, of = s.count[i];
        unsigned before = 0;
        if (n % l.room >= of)
            continue;
        for (unsigned o = 0; o < of; o++)
            before += candidates[i * l.room + o] < candidates[n];
        if (before < l.beam)
            list[i * l.beam + before] = (uint32_t)candidates[n];
    }
    __syncthreads();
}

/* ---- pairs ---- */

/* What a warp tries at once: FIND_VECTORS main centroids with a part of the residual codebook.
 */
template <unsigned V> struct search_unit {
    search_held<V, FIND_VECTORS> rests; /* -2 (x - c) */
    float apart[FIND_VECTORS];          /* |x - c|^2, INFINITY for none */
};

/* The main centroids that are tried for one vector: of a list, or all where there is none. */
struct search_mains {
    const uint32_t *list;
    uint32_t count;
};
static __device__ inline uint32_t search_main(const search_mains &t, uint32_t i)
{
    i = i < t.count ? i : 0;
    return t.list && t.count ? t.list[i] : i;
}

/* Rests of long vectors: a warp writes them to memory of its own. */
template <unsigned V>
static __device__ void search_long_rests(const search_layout &l, const float *x,
                                         const search_mains &t, uint32_t first,
                                         search_unit<V> &u)
{
    float *y = search_dynamic<float>(l.rests) + port_warp() * FIND_VECTORS * FIND_LONG;
    const float *data = search_data(l.main);
    __syncwarp(); /* those before have been read */
    for (unsigned d = port_lane(); d < 4 * u.rests.panels; d += PORT_LANES)
        for (unsigned m = 0; m < FIND_VECTORS; m++)
            y[m * FIND_LONG + d] =
                -2 *
                (x[d] - search_element<V>(data, l.main.room, search_main(t, first + m), d));
    __syncwarp();
    for (unsigned m = 0; m < FIND_VECTORS; m++)
        for (unsigned d = 0; d < l.v; d++) {
            const float rest = -0.5F * y[m * FIND_LONG + d];
            u.apart[m] = fmaf(rest, rest, u.apart[m]);
        }
}

/* Main centroids first .. first + FIND_VECTORS - 1 of those that are tried. */
template <unsigned V>
static __device__ inline void search_unit_start(const search_layout &l, const float *x,
                                                const search_mains &t, uint32_t first,
                                                search_unit<V> &u)
{
#pragma unroll
    for (unsigned m = 0; m < FIND_VECTORS; m++)
        u.apart[m] = 0;
    if constexpr (V == FIND_LONG) {
        search_hold(l, u.rests,
                    search_dynamic<float>(l.rests) + port_warp() * FIND_VECTORS * FIND_LONG);
        search_long_rests(l, x, t, first, u);
    } else {
        const float *data = search_data(l.main);
#pragma unroll
        for (unsigned m = 0; m < FIND_VECTORS; m++) {
            float c[V];
            search_centroid<V>(data, l.main.room, search_main(t, first + m), c);
#pragma unroll
            for (unsigned d = 0; d < V; d++) {
                const float rest = x[d] - c[d];
                u.apart[m] = fmaf(rest, rest, u.apart[m]);
                u.rests.y[m][d] = -2 * rest;
            }
        }
    }
#pragma unroll
    for (unsigned m = 0; m < FIND_VECTORS; m++)
        u.apart[m] = first + m < t.count ? u.apart[m] : INFINITY;
}

static __device__ inline void search_better(search_pair *least, search_pair other)
{
    if (other.main < least->main || (other.main == least->main && other.res < least->res))
        *least = other;
}

/* Every lane's best pair of main centroids first .. with residual ones from .. to - 1. */
template <unsigned V>
static __device__ inline void search_try(const search_layout &l, const float *x,
                                         const search_mains &t, uint32_t first, uint32_t from,
                                         uint32_t to, search_pair *least)
{
    search_unit<V> u;
    float best[FIND_VECTORS];
    uint32_t at[FIND_VECTORS];
    const uint32_t j = from + port_lane();
    search_unit_start(l, x, t, first, u);
    if (l.res.shared)
        search_scan(u.rests, search_copy(l.res), l.res.room, j, to, PORT_LANES, best, at);
    else
        search_scan(u.rests, l.res.data, l.res.room, j, to, PORT_LANES, best, at);
#pragma unroll
    for (unsigned m = 0; m < FIND_VECTORS; m++) {
        const search_pair now = {search_key(u.apart[m] + best[m], search_main(t, first + m)),
                                 search_key(best[m], at[m])};
        if (now.main != search_none)
            search_better(least, now);
    }
}

/* The least pair of a warp, in all lanes. */
static __device__ inline search_pair search_least_pair(search_pair p)
{
    const uint64_t main = search_least(p.main);
    return {main, search_least(p.main == main ? p.res : search_none)};
}

/* The best of all pairs that are to be tried; warp i gets that of vector i < count.  Warps take
 * units in turn; where these are few, the residual codebook is cut into parts. */
template <unsigned V>
static __device__ search_choice search_pairs(const search_layout &l, search_area<V> &s,
                                             unsigned count)
{
    const unsigned warp = port_warp(), lane = port_lane();
    const uint32_t tried = l.beam ? l.beam : l.main.k, steps = l.res.room / PORT_LANES;
    const uint32_t together = (tried + FIND_VECTORS - 1) / FIND_VECTORS;
    uint32_t parts = 1;
    while (count * together * parts < FIND_WARPS && 2 * parts <= steps)
        parts *= 2;
    const uint32_t units = together * parts;
    const uint32_t part = (steps + parts - 1) / parts * PORT_LANES;
    for (unsigned i = 0; i < count; i++) {
        const search_mains t = {l.beam ? search_dynamic<uint32_t>(l.list) + i * l.beam : NULL,
                                l.beam ? min(s.count[i], l.beam) : l.main.k};
        search_pair least = {search_none, search_none};
        for (uint32_t n = (warp + FIND_WARPS - i * units % FIND_WARPS) % FIND_WARPS; n < units;
             n += FIND_WARPS) {
            const uint32_t from = n % parts * part;
            search_try<V>(l, s.x[i], t, n / parts * FIND_VECTORS, from,
                          min(from + part, l.res.room), &least);
        }
        least = search_least_pair(least);
        if (lane == 0)
            s.pairs[i][warp] = least;
    }
    __syncthreads();
    search_pair least = {search_none, search_none};
    if (warp < count && lane < FIND_WARPS)
        least = s.pairs[warp][lane];
    least = search_least_pair(least);
    return {search_index(least.main), search_index(least.res)};
}

/* ---- the search ---- */

/* The choices for vectors 0 .. count - 1 that search_put has put: warp i gets that of vector i,
 * the other warps nothing.  Called by all threads, and begins with a barrier; before the next
 * search_put there must be another one. */
template <unsigned V>
static __device__ inline search_choice search_run(const search_layout &l, search_area<V> &s,
                                                  unsigned count)
{
    float best[FIND_VECTORS];
    uint32_t at[FIND_VECTORS];
    __syncthreads();
    if (!l.beam)
        return search_pairs(l, s, count);
    search_scan_codebook(l, s, l.main, best, at);
    if (l.beam > 1) {
        search_select(l, s, count, best, at);
        return search_pairs(l, s, count);
    }
    search_choice found = {search_index(search_join(s, count, best, at)), 0};
    if (!l.res.room)
        return found;
    const unsigned i = port_warp();
    const float *data = search_data(l.main);
    for (unsigned d = port_lane(); i < count && d < l.v; d += PORT_LANES)
        s.y[i][d] = -2 * (s.x[i][d] - search_element<V>(data, l.main.room, found.main, d));
    __syncthreads();
    search_scan_codebook(l, s, l.res, best, at);
    found.res = search_index(search_join(s, count, best, at));
    return found;
}

/* What a choice stands for, element d. */
template <unsigned V>
static __device__ inline float search_decode(const search_layout &l, search_choice c,
                                             unsigned d)
{
    const float main = search_element<V>(search_data(l.main), l.main.room, c.main, d);
    return l.res.room ? main + search_element<V>(search_data(l.res), l.res.room, c.res, d)
                      : main;
}

/* The choice of a warp: `found`, or `old` unless found is strictly nearer to x; and how far
 * apart it is.  The first two lanes compute the two distances. */
template <unsigned V>
static __device__ inline search_choice search_settle(const search_layout &l, const float *x,
                                                     search_choice found, search_choice old,
                                                     float *apart)
{
    const search_choice mine = port_lane() == 1 ? old : found;
    float sum = 0;
    for (unsigned d = 0; port_lane() < 2 && d < l.v; d++) {
        const float off = x[d] - search_decode<V>(l, mine, d);
        sum += off * off;
    }
    const float of_found = __shfl_sync(port_all, sum, 0),
                of_old = __shfl_sync(port_all, sum, 1);
    const bool better = of_found < of_old;
    *apart = better ? of_found : of_old;
    return better ? found : old;
}

#endif
