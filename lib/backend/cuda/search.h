/* Internal: codebook search on the device, shared by search, vq_pass and vq_descend so that
 * they choose alike. For search.cu and columns.cu only.
 *
 * A block searches up to search_vectors<V> vectors at once: every thread scores some of the
 * centroids (loaded once for several vectors) and keeps its nearest.  What follows is done by
 * one warp per vector without barriers, so that the latencies of the warps overlap; if there
 * are fewer vectors than warps, several warps share the pairs of a vector.  The arithmetic is
 * float:
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
    SEARCH_LONG = 64,      /* the class of vectors with more than 16 elements */
    SEARCH_MAINS = 16,     /* main centroids that a warp tries at once */
    SEARCH_TILE = 8,       /* residual centroids of a product on tensor cores */
    SEARCH_CHUNK = 4,      /* tiles between two looks at where the minimum is */
    SEARCH_MAX_BEAM = 128, /* a wider beam tries all pairs */
    SEARCH_MAX_GROUPS = 2 * SEARCH_MAX_BEAM,
    SEARCH_RANKED = 8,            /* candidates that are compared at once */
    SEARCH_STATIC_BYTES = 7 << 10 /* largest static shared memory of a kernel */
};

/* A codebook laid out for warps: panels of 4 elements (a last one of 2 if the class is not a
 * multiple of 4), each [stride][4], then [stride] squared norms. Centroid j is in row
 * search_row(j) of each. Elements after v are 0; entries after the codebook have the norm NaN
 * and never win. */
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

/* Threads of a block, of which one fits on a multiprocessor, and vectors that it searches at
 * once. */
static inline __host__ __device__ constexpr unsigned search_threads_of(unsigned length)
{
    return length < SEARCH_LONG ? 512 : 256;
}
static inline __host__ __device__ constexpr unsigned search_vectors_of(unsigned length)
{
    return length <= 8 ? 16 : length < SEARCH_LONG ? 8 : 4;
}
/* The row of centroid j. Of the centroids that a thread scores, one in `threads`, eight in
 * succession are in different banks, so that eight lanes can read them at once. */
static inline __host__ __device__ constexpr uint32_t search_row(unsigned threads, uint32_t j)
{
    return j ^ (j / threads & 7);
}
template <unsigned V> static const unsigned search_threads = search_threads_of(V);
template <unsigned V> static const unsigned search_warps = search_threads<V> / PORT_LANES;
template <unsigned V> static const unsigned search_vectors = search_vectors_of(V);
/* Vectors whose elements a thread holds in registers; the last ones may be half as many. */
static inline __host__ __device__ constexpr unsigned search_in_registers_of(unsigned length)
{
    return length <= 8 ? 8 : 4;
}
template <unsigned V> static const unsigned search_in_registers = search_in_registers_of(V);

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
    unsigned beam, groups, max_candidates; /* see search_select */
    unsigned share;                        /* see search_visit_in */
    unsigned lists, list_bytes;            /* search_list of every vector */
    unsigned tile, panel;                  /* [panel][vectors * v] floats for columns */
    unsigned bytes;
};

/* Floats per centroid, without its norm. */
static inline unsigned search_wide(unsigned length, uint32_t v)
{
    return length < SEARCH_LONG ? length : (v + 3) / 4 * 4;
}

/* Plans the layout of a block that takes `each` vectors at a time, with panels of at most
 * `columns` columns (0: none). What is read most goes to shared memory first: the operand of
 * the residual codebook, or that codebook without one, then the main codebook. What does not
 * fit is read through the caches. */
search_layout vptq_cuda_search_layout(const vptq_dev *dev, const vptq_search_index *index,
                                      unsigned each, unsigned columns);

/* Number of blocks for n vectors or vector rows that all run at once; *each is how many a block
 * takes at a time. */
unsigned vptq_cuda_search_blocks(const vptq_dev *dev, const vptq_search_index *index, size_t n,
                                 unsigned *each);

/* Multiplications per choice. */
double vptq_cuda_search_work(const vptq_search_index *f);
/* Launches that are divided take multiples of so many vectors or vector rows. */
enum { SEARCH_UNIT = 64 };

/* ---- keys ---- */

/* The score of a key: an unsigned number in the same order; not below search_infinite if it is
 * not finite. */
static const uint32_t search_infinite = 0xff800000U;

static __device__ inline uint32_t search_order(float score)
{
    const unsigned bits = __float_as_uint(score + 0.0F); /* -0 is 0 */
    return bits >> 31 ? ~bits : bits | 0x80000000U;
}

/* The score of a number that search_order returned; -0 is 0. */
static __device__ inline float search_score_of(uint32_t order)
{
    return __uint_as_float(order >> 31 ? order & 0x7fffffffU : ~order);
}

/* (score, index) as one number with the same order; scores that are not finite never win. */
static const uint64_t search_none = ~(uint64_t)0;

static __device__ inline uint64_t search_key(float score, uint32_t index)
{
    return score < INFINITY ? (uint64_t)search_order(score) << 32 | index : search_none;
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
    float x[search_vectors<V>][V]; /* vectors to search, 0 after element v */
    float y[search_vectors<V>][V]; /* -2 times what is searched in the current codebook */
    uint64_t nearest[search_vectors<V>][search_warps<V>];
    search_pair pairs[search_warps<V>];
    uint32_t count[search_vectors<V>]; /* main centroids to try */
};

template <class T> static __device__ inline T *search_dynamic(unsigned at)
{
    return reinterpret_cast<T *>(static_cast<unsigned char *>(port_shared_dynamic()) + at);
}

static __device__ inline const float *search_copy(const search_codebook &b)
{
    return static_cast<const float *>(port_shared_dynamic()) + b.at;
}

/* The list of vector i in shared memory, for search_select: first the scores of all threads,
 * then the numbers of the threads that have near centroids, at last the main centroids to try;
 * followed by the candidates and, at the end, the minima of groups. */
static __device__ inline uint32_t *search_list(const search_layout &l, unsigned i)
{
    return search_dynamic<uint32_t>(l.lists + i * l.list_bytes);
}

/* The candidates of vector i: keys of main centroids, after the numbers of all threads. */
template <unsigned V>
static __device__ inline uint64_t *search_candidates(const search_layout &l, unsigned i)
{
    return search_dynamic<uint64_t>(l.lists + i * l.list_bytes +
                                    search_threads<V> * (unsigned)sizeof(uint16_t));
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
         i += search_threads<V>)
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
        for (unsigned i = threadIdx.x; i < count; i += search_threads<V>)
            to[i] = from[i];
    }
}

/* Offset of element d of centroid j; the next one follows if d is even. */
template <unsigned V>
static __device__ inline unsigned search_offset(const search_codebook &b, uint32_t j,
                                                unsigned d)
{
    const unsigned panel = d / 4 * 4, width = V - panel < 4 ? V - panel : 4;
    return panel * b.stride + search_row(search_threads<V>, j) * width + d % 4;
}

/* Element d of centroid j. */
template <unsigned V>
static __device__ inline float search_element(const search_codebook &b, uint32_t j, unsigned d)
{
    return search_data(b)[search_offset<V>(b, j, d)];
}

/* Elements d and d + 1 of centroid j; d is even. */
template <unsigned V>
static __device__ inline float2 search_elements(const search_codebook &b, uint32_t j,
                                                unsigned d)
{
    return *reinterpret_cast<const float2 *>(search_data(b) + search_offset<V>(b, j, d));
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

/* Scores the centroid in row j against the vectors of h. */
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
#pragma unroll(V > 8 ? 1 : N > 4 ? 2 : 4)
    for (uint32_t j = first; j < last; j += search_threads<V>) {
        float score[N];
        search_score(h, data, stride, search_row(search_threads<V>, j), score);
#pragma unroll
        for (unsigned i = 0; i < N; i++) {
            if constexpr (AT)
                at[i] = score[i] < best[i] ? j : at[i];
            best[i] = fminf(best[i], score[i]); /* never NaN */
        }
    }
}

/* The nearest centroids for vectors first .. first + N - 1 of s.y among those of a thread; all
 * threads together cover the codebook.  With AT the nearest key of a warp goes to s.nearest,
 * otherwise the order of a thread's score to the list. */
template <bool AT, unsigned N, unsigned V>
static __device__ inline void search_scan_some(const search_layout &l, search_area<V> &s,
                                               const search_codebook &b, unsigned first)
{
    float best[N];
    uint32_t at[N];
    search_held<V, N> h;
    search_hold(l, h, &s.y[first][0]);
    if (b.shared)
        search_scan<AT>(h, search_copy(b), b.stride, threadIdx.x, b.stride, best, at);
    else
        search_scan<AT>(h, b.data, b.stride, threadIdx.x, b.stride, best, at);
#pragma unroll
    for (unsigned i = 0; i < N; i++) {
        if constexpr (AT) {
            const uint64_t key = search_least(search_key(best[i], at[i]));
            if (port_lane() == 0)
                s.nearest[first + i][port_warp()] = key;
        } else {
            search_list(l, first + i)[threadIdx.x] = search_order(best[i]);
        }
    }
}

/* The same for vectors 0 .. count - 1, rounded up to half of those in registers. */
template <bool AT, unsigned V>
static __device__ inline void search_scan_codebook(const search_layout &l, search_area<V> &s,
                                                   const search_codebook &b, unsigned count)
{
    constexpr unsigned n = search_in_registers<V>;
    unsigned first = 0;
    for (; first + n / 2 < count; first += n)
        search_scan_some<AT, n>(l, s, b, first);
    if (first < count)
        search_scan_some<AT, n / 2>(l, s, b, first);
}

/* The smallest key of vector i, in the lanes of warp i < count. */
template <unsigned V>
static __device__ inline uint64_t search_join(const search_area<V> &s, unsigned count)
{
    const unsigned i = port_warp(), lane = port_lane();
    __syncthreads();
    return i < count ? search_least(lane < search_warps<V> ? s.nearest[i][lane] : search_none)
                     : search_none;
}

/* ---- the beam: the nearest main centroids ---- */

/* The thread whose score a lane has as its w-th: neighbouring threads and those a power of two
 * apart are in different lanes, because codebooks often have an order. */
static __device__ inline unsigned search_thread(unsigned w)
{
    return w * PORT_LANES + (port_lane() + 5 * w) % PORT_LANES;
}

/* least[w] = the minimum of least[w], least[w + each], .. for w < each of 2 N. */
template <unsigned N> static __device__ inline void search_halve(uint32_t *least, unsigned each)
{
    if (N < each)
        return;
#pragma unroll
    for (unsigned w = 0; w < N; w++)
        least[w] = min(least[w], least[w + N]);
    if constexpr (N > 1)
        search_halve<N / 2>(least, each);
}

/* The number of groups whose minimum does not exceed `mine`. */
static __device__ inline unsigned search_groups_upto(const uint32_t *groups, unsigned count,
                                                     uint32_t mine)
{
    unsigned upto[4] = {}; /* short chains of additions */
    for (unsigned o = 0; o < count; o += PORT_LANES)
#pragma unroll
        for (unsigned e = 0; e < PORT_LANES; e += 4) {
            const uint4 other = *reinterpret_cast<const uint4 *>(groups + o + e);
            upto[0] += other.x <= mine;
            upto[1] += other.y <= mine;
            upto[2] += other.z <= mine;
            upto[3] += other.w <= mine;
        }
    return upto[0] + upto[1] + upto[2] + upto[3];
}

/* A score, as search_order has it, that at least `beam` centroids of vector i do not exceed,
 * and few more: the threads' scores fall into `groups` groups, at least twice as many as the
 * beam, and the beam-th smallest minimum of a group is the threshold.  One warp. */
template <unsigned V>
static __device__ inline uint32_t search_threshold(const search_layout &l, unsigned i,
                                                   const uint32_t (&scores)[search_warps<V>])
{
    const unsigned lane = port_lane(), each = l.groups / PORT_LANES;
    uint32_t *groups = search_list(l, i) + l.list_bytes / sizeof(uint32_t) - l.groups;
    uint32_t least[search_warps<V>], threshold = ~0U;
#pragma unroll
    for (unsigned w = 0; w < search_warps<V>; w++)
        least[w] = scores[w];
    search_halve<search_warps<V> / 2>(least, each);
#pragma unroll
    for (unsigned w = 0; w < SEARCH_MAX_GROUPS / PORT_LANES; w++)
        if (w < each)
            groups[w * PORT_LANES + lane] = least[w];
    __syncwarp();
    for (unsigned g = lane; g < l.groups; g += PORT_LANES) {
        const uint32_t mine = groups[g];
        if (search_groups_upto(groups, l.groups, mine) >= l.beam)
            threshold = min(threshold, mine);
    }
    return port_redux_min(port_all, threshold);
}

/* The sum of values below 32 of the lanes before this one; *sum is that of all. */
static __device__ inline unsigned search_before(unsigned value, unsigned *sum)
{
    const unsigned lower = (1U << port_lane()) - 1;
    unsigned before = 0;
    *sum = 0;
#pragma unroll
    for (unsigned bit = 0; bit < 5; bit++) {
        const unsigned lanes = __ballot_sync(port_all, value >> bit & 1);
        before += (unsigned)__popc(lanes & lower) << bit;
        *sum += (unsigned)__popc(lanes) << bit;
    }
    return before;
}

/* Replaces the scores of vector i by the numbers of the threads whose score is finite and does
 * not exceed the threshold, as 16-bit numbers; returns how many there are.  One warp. */
template <unsigned V>
static __device__ inline unsigned search_list_threads(const search_layout &l, unsigned i,
                                                      const uint32_t (&scores)[search_warps<V>],
                                                      uint32_t threshold)
{
    uint16_t *to = reinterpret_cast<uint16_t *>(search_list(l, i));
    const uint32_t highest = min(threshold, search_infinite - 1);
    unsigned own = 0, threads;
#pragma unroll
    for (unsigned w = 0; w < search_warps<V>; w++)
        own |= (unsigned)(scores[w] <= highest) << w;
    to += search_before((unsigned)__popc(own), &threads);
    for (; own; own &= own - 1)
        *to++ = (uint16_t)search_thread((unsigned)__ffs((int)own) - 1);
    __syncwarp();
    return threads;
}

/* Calls visit(key) for the centroids of the listed threads of vector i; search_none for other
 * lanes.  2^share neighbouring lanes score centroids of one thread, a few threads in turn.  One
 * warp, whose lanes call visit together. */
template <bool SHARED, unsigned V, class VISIT>
static __device__ inline void search_visit_in(const search_layout &l, const search_area<V> &s,
                                              unsigned i, unsigned threads, VISIT visit)
{
    constexpr unsigned together = V <= 8 ? 3 : 1;
    const uint16_t *listed = reinterpret_cast<const uint16_t *>(search_list(l, i));
    const float *data = SHARED ? search_copy(l.main) : l.main.data;
    const uint32_t stride = l.main.stride;
    const unsigned step = PORT_LANES >> l.share, own = port_lane() >> l.share;
    const uint32_t begin = (port_lane() & ((1U << l.share) - 1)) * search_threads<V>;
    search_held<V, 1> h;
    search_hold(l, h, s.y[i]);
    for (uint32_t at = begin; at - begin < stride; at += search_threads<V> << l.share)
        for (unsigned n = own; n - own < threads; n += together * step) {
            float score[together];
            uint32_t j[together];
#pragma unroll
            for (unsigned o = 0; o < together; o++) {
                const unsigned m = n + o * step;
                j[o] = m < threads ? at + listed[m] : stride;
                search_score(h, data, stride,
                             search_row(search_threads<V>, min(j[o], stride - 1)), &score[o]);
            }
#pragma unroll
            for (unsigned o = 0; o < together; o++)
                visit(j[o] < stride ? search_key(score[o], j[o]) : search_none);
        }
}

template <unsigned V, class VISIT>
static __device__ inline void search_visit(const search_layout &l, const search_area<V> &s,
                                           unsigned i, unsigned threads, VISIT visit)
{
    if (l.main.shared)
        search_visit_in<true>(l, s, i, threads, visit);
    else
        search_visit_in<false>(l, s, i, threads, visit);
}

/* Stores the keys up to `limit` of vector i, and search_none after them up to a multiple of
 * SEARCH_RANKED; returns how many there are, which may be more than fit.  One warp. */
template <unsigned V>
static __device__ inline unsigned search_collect(const search_layout &l,
                                                 const search_area<V> &s, unsigned i,
                                                 unsigned threads, uint64_t limit)
{
    uint64_t *to = search_candidates<V>(l, i);
    unsigned count = 0;
    search_visit(l, s, i, threads, [&](uint64_t key) {
        const bool take = key <= limit && key != search_none;
        const unsigned lanes = __ballot_sync(port_all, take);
        const unsigned slot = count + (unsigned)__popc(lanes & ((1U << port_lane()) - 1));
        if (take && slot < l.max_candidates)
            to[slot] = key;
        count += (unsigned)__popc(lanes);
    });
    const unsigned end = (count + SEARCH_RANKED - 1) / SEARCH_RANKED * SEARCH_RANKED;
    if (count + port_lane() < min(end, l.max_candidates))
        to[count + port_lane()] = search_none;
    __syncwarp();
    return count;
}

/* The limit that leaves exactly `beam` keys, by bisection; needed when the threshold left more
 * than fit (the near centroids fall into few groups).  One warp. */
template <unsigned V>
static __device__ uint64_t search_narrow(const search_layout &l, const search_area<V> &s,
                                         unsigned i, unsigned threads, uint64_t high)
{
    uint64_t low = 0;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        unsigned count = 0;
        search_visit(l, s, i, threads, [&](uint64_t key) {
            count += (unsigned)__popc(__ballot_sync(port_all, key <= middle));
        });
        if (count >= l.beam)
            high = middle;
        else
            low = middle + 1;
    }
    return high;
}

/* The number of candidates of vector i with a smaller key. */
template <unsigned V>
static __device__ inline unsigned search_rank(const search_layout &l, unsigned i, unsigned of,
                                              uint64_t key)
{
    const uint4 *pairs = reinterpret_cast<const uint4 *>(search_candidates<V>(l, i));
    unsigned before[2] = {}; /* short chains of additions */
    for (unsigned o = 0; o < of; o += SEARCH_RANKED, pairs += SEARCH_RANKED / 2)
#pragma unroll
        for (unsigned e = 0; e < SEARCH_RANKED / 2; e++) {
            const uint4 p = pairs[e];
            before[0] += ((uint64_t)p.y << 32 | p.x) < key;
            before[1] += ((uint64_t)p.w << 32 | p.z) < key;
        }
    return before[0] + before[1];
}

/* Writes the `beam` nearest main centroids of vector i (or all finite ones, if fewer) to its
 * list, nearest first, and their number to s.count.  One warp. */
template <unsigned V>
static __device__ inline void search_select(const search_layout &l, search_area<V> &s,
                                            unsigned i)
{
    uint32_t scores[search_warps<V>], *list = search_list(l, i);
#pragma unroll
    for (unsigned w = 0; w < search_warps<V>; w++)
        scores[w] = list[search_thread(w)];
    const uint32_t threshold = search_threshold<V>(l, i, scores); /* after a barrier */
    const unsigned threads = search_list_threads<V>(l, i, scores, threshold);
    uint64_t limit = (uint64_t)threshold << 32 | ~0U;
    unsigned of = search_collect(l, s, i, threads, limit);
    if (of > l.max_candidates) {
        limit = search_narrow(l, s, i, threads, limit);
        of = search_collect(l, s, i, threads, limit);
    }
    const uint64_t *candidates = search_candidates<V>(l, i);
    for (unsigned n = port_lane(); n < of; n += PORT_LANES) {
        const unsigned before = search_rank<V>(l, i, of, candidates[n]);
        if (before < l.beam)
            list[before] = (uint32_t)candidates[n];
    }
    if (port_lane() == 0)
        s.count[i] = min(of, l.beam);
    __syncwarp();
}

#endif
