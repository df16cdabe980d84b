/* Internal: the second half of the search (search.h): pairs of main and residual centroids, and
 * the choice.  For search.cu and columns.cu only. */
#ifndef VPTQ_BACKEND_CUDA_SEARCH_CHOOSE_H
#define VPTQ_BACKEND_CUDA_SEARCH_CHOOSE_H

#include "lib/backend/cuda/search.h"

/* ---- pairs ---- */

/* The main centroids to try for one vector: the first of a list, or all without a beam. */
struct search_mains {
    const uint32_t *list;
    uint32_t count;
};
static __device__ inline uint32_t search_main(const search_layout &l, const search_mains &t,
                                              uint32_t i)
{
    i = i < t.count ? i : 0;
    return l.beam && t.count ? t.list[i] : i;
}

/* SEARCH_MAINS main centroids as operand A of port_mma_f16: y = -2 (x - c) 2^e in a high and a
 * low half, with an exponent e for each centroid.  A lane has elements of centroids g and g +
 * 8, g = lane / 4.  If V <= 8, `high` has both halves, one in each half of the operand, and
 * `low` is not used. */
template <unsigned V> struct search_unit {
    uint32_t high[search_steps<V>][4], low[search_steps<V>][4];
    uint32_t main[2];  /* ~0 for an empty place */
    float distance[2]; /* |x - c|^2 of both, INFINITY for an empty place */
    float scale[2];    /* 2^e */
    int undo[2];       /* the exponent that takes products back */
};

/* 2^e for -126 <= e <= 127. */
static __device__ inline float search_power(int e)
{
    return __uint_as_float((unsigned)(e + 127) << 23);
}

/* The exponent that brings a number with these bits to [2^at, 2^(at + 1)), at most 100. */
static __device__ inline int search_fit(uint32_t bits, int at)
{
    return min(at + 127 - (int)(bits >> 23), 100);
}

/* The bits of |x|, 0 if it is not finite: in the order of the numbers. */
static __device__ inline uint32_t search_size(float x)
{
    const uint32_t bits = __float_as_uint(x) & 0x7fffffffU;
    return bits < 0x7f800000U ? bits : 0;
}

/* Halves of a pair of numbers, which are replaced by what the halves leave. */
static __device__ inline uint32_t search_halves(float pair[2])
{
    const uint32_t bits = port_half_pair(pair[0], pair[1]);
#pragma unroll
    for (unsigned i = 0; i < 2; i++)
        pair[i] -= __half2float(__float2half_rn(pair[i]));
    return bits;
}

/* x - c at the places of a lane: pair `h` of step p, for main centroid r. */
template <unsigned V> struct search_offsets {
    float of[search_steps<V>][V <= 8 ? 1 : 2][2][2];
};

template <unsigned V>
static __device__ inline void search_subtract(const search_layout &l, const float *x,
                                              const search_mains &t, uint32_t first,
                                              search_unit<V> &u, search_offsets<V> &y)
{
#pragma unroll
    for (unsigned r = 0; r < 2; r++) {
        const uint32_t n = first + port_lane() / 4 + 8 * r, main = search_main(l, t, n);
        float sum = 0;
#pragma unroll
        for (unsigned p = 0; p < search_steps<V>; p++)
#pragma unroll
            for (unsigned h = 0; h < (V <= 8 ? 1 : 2); h++) {
                const unsigned d = 16 * p + 8 * h + port_lane() % 4 * 2;
                float *of = y.of[p][h][r];
                of[0] = of[1] = 0;
                if ((V % 8 == 0 && V < SEARCH_LONG) || d < search_wide_of<V>(l)) {
                    const float2 c = search_elements<V>(l.main, main, d);
                    const float2 at = *reinterpret_cast<const float2 *>(x + d);
                    of[0] = at.x - c.x; /* 0 after element v */
                    of[1] = at.y - c.y;
                }
                sum = fmaf(of[1], of[1], fmaf(of[0], of[0], sum));
            }
        sum += __shfl_xor_sync(port_all, sum, 1);
        sum += __shfl_xor_sync(port_all, sum, 2);
        u.main[r] = n < t.count ? main : ~0U;
        u.distance[r] = n < t.count ? sum : INFINITY;
    }
}

/* Prepares main centroids first .. first + SEARCH_MAINS - 1 of those to try. */
template <unsigned V>
static __device__ inline void search_unit_start(const search_layout &l, const float *x,
                                                const search_mains &t, uint32_t first,
                                                uint32_t res_size, search_unit<V> &u)
{
    search_offsets<V> y;
    uint32_t size[2] = {0, 0};
    search_subtract(l, x, t, first, u, y);
#pragma unroll
    for (unsigned n = 0; n < sizeof y / sizeof(float); n++)
        size[n / 2 % 2] = max(size[n / 2 % 2], search_size((&y.of[0][0][0][0])[n]));
    const int res = search_fit(res_size, 14);
#pragma unroll
    for (unsigned r = 0; r < 2; r++) {
        size[r] = max(size[r], __shfl_xor_sync(port_all, size[r], 1));
        size[r] = max(size[r], __shfl_xor_sync(port_all, size[r], 2));
        /* no more than the residual codebook can follow: |r|^2 is scaled, too */
        const int e = min(search_fit(size[r], 13), res + 40);
        u.scale[r] = search_power(e);
        u.undo[r] = -e - res;
    }
#pragma unroll
    for (unsigned p = 0; p < search_steps<V>; p++)
#pragma unroll
        for (unsigned h = 0; h < (V <= 8 ? 1 : 2); h++)
#pragma unroll
            for (unsigned r = 0; r < 2; r++) {
                float pair[2] = {-2 * y.of[p][h][r][0] * u.scale[r],
                                 -2 * y.of[p][h][r][1] * u.scale[r]};
                u.high[p][r + 2 * h] = search_halves(pair);
                (V <= 8 ? u.high[p][r + 2] : u.low[p][r + 2 * h]) = search_halves(pair);
            }
}

/* The part of the residual operand that a lane reads: the norms of its columns in every
 * tile, and its pairs. */
template <unsigned V> struct search_operand {
    const float2 *norms;
    const uint32_t *pairs;
};

template <unsigned V>
static __device__ inline search_operand<V> search_operand_at(const float *tiles,
                                                             uint32_t stride)
{
    const float *norms = tiles + sizeof(search_tiles_head) / sizeof(float);
    return {reinterpret_cast<const float2 *>(norms) + port_lane() % 4,
            reinterpret_cast<const uint32_t *>(norms + stride) +
                port_lane() * (V <= 8 ? 2 : 4)};
}

/* The second part of the scores of a tile of residual centroids, times powers of two: d as
 * port_mma_f16 has it. */
template <unsigned V>
static __device__ inline void search_tile(const search_unit<V> &u, const search_operand<V> &b,
                                          uint32_t tile, float d[4])
{
    const float2 norm = b.norms[4 * tile];
    d[0] = norm.x * u.scale[0];
    d[1] = norm.y * u.scale[0];
    d[2] = norm.x * u.scale[1];
    d[3] = norm.y * u.scale[1];
#pragma unroll
    for (unsigned p = 0; p < search_steps<V>; p++) {
        const uint32_t at = (tile * search_steps<V> + p) * PORT_LANES;
        if constexpr (V <= 8) {
            const uint2 r = reinterpret_cast<const uint2 *>(b.pairs)[at];
            const uint32_t high[2] = {r.x, r.x}, low[2] = {r.y, r.y};
            port_mma_f16(d, u.high[p], high);
            port_mma_f16(d, u.high[p], low);
        } else {
            const uint4 r = reinterpret_cast<const uint4 *>(b.pairs)[at];
            const uint32_t high[2] = {r.x, r.y}, low[2] = {r.z, r.w};
            port_mma_f16(d, u.high[p], high);
            port_mma_f16(d, u.low[p], high);
            port_mma_f16(d, u.high[p], low);
        }
    }
}

/* The smallest second part of the two centroids of a lane, and the first chunk of
 * SEARCH_CHUNK tiles with it. */
struct search_lowest {
    float score[2];
    uint32_t chunk[2];
};

/* Tiles of a chunk that are scored at once. */
template <unsigned V>
static const unsigned search_unrolled = V <= 8            ? SEARCH_CHUNK
                                        : V < SEARCH_LONG ? 2
                                                          : 1;

/* Of chunks from .. to - 1. */
template <unsigned V>
static __device__ inline search_lowest search_scan_chunks(const search_unit<V> &u,
                                                          const search_operand<V> &b,
                                                          uint32_t from, uint32_t to)
{
    search_lowest best = {{INFINITY, INFINITY}, {from, from}};
    for (uint32_t chunk = from; chunk < to; chunk++) {
        float low[2] = {INFINITY, INFINITY};
#pragma unroll(search_unrolled <V>)
        for (uint32_t tile = 0; tile < SEARCH_CHUNK; tile++) {
            float d[4];
            search_tile(u, b, chunk * SEARCH_CHUNK + tile, d);
            low[0] = fminf(low[0], fminf(d[0], d[1])); /* never NaN */
            low[1] = fminf(low[1], fminf(d[2], d[3]));
        }
#pragma unroll
        for (unsigned r = 0; r < 2; r++) {
            best.chunk[r] = low[r] < best.score[r] ? chunk : best.chunk[r];
            best.score[r] = fminf(best.score[r], low[r]);
        }
    }
    return best;
}

/* The first residual centroid of a chunk whose second part is `score`, which is NaN in lanes
 * of other main centroids; upper: the lane's second one. */
template <unsigned V>
static __device__ inline uint32_t search_find(const search_unit<V> &u,
                                              const search_operand<V> &b, uint32_t chunk,
                                              bool upper, float score)
{
    uint32_t at = ~0U;
#pragma unroll(search_unrolled <V>)
    for (uint32_t n = 0; n < SEARCH_CHUNK; n++) {
        const uint32_t tile = chunk * SEARCH_CHUNK + n;
        float d[4];
        search_tile(u, b, tile, d);
#pragma unroll
        for (unsigned i = 0; i < 2; i++)
            if ((upper ? d[2 + i] : d[i]) == score)
                at = min(at, tile * SEARCH_TILE + port_lane() % 4 * 2 + i);
    }
    return port_redux_min(port_all, at);
}

static __device__ inline void search_keep_better(search_pair *least, search_pair other)
{
    if (other.main < least->main || (other.main == least->main && other.res < least->res))
        *least = other;
}

/* The main centroid of the best pairs of a warp, as a key. */
template <unsigned V>
static __device__ inline uint64_t search_best_main(const search_unit<V> &u,
                                                   const search_lowest &best)
{
    uint32_t order[2];
#pragma unroll
    for (unsigned r = 0; r < 2; r++) {
        const int half = u.undo[r] / 2;
        const float score =
            u.distance[r] + best.score[r] * search_power(half) * search_power(u.undo[r] - half);
        order[r] = score < INFINITY ? search_order(score) : ~0U;
    }
    const uint32_t nearest = port_redux_min(port_all, min(order[0], order[1]));
    const uint32_t main = port_redux_min(port_all, min(order[0] == nearest ? u.main[0] : ~0U,
                                                       order[1] == nearest ? u.main[1] : ~0U));
    return nearest == ~0U ? search_none : (uint64_t)nearest << 32 | main;
}

/* Keeps the better of *least, the same in all lanes, and the best pair of main centroids first
 * .. and the residual centroids of chunks from .. to - 1. */
template <bool SHARED, unsigned V>
static __device__ inline void search_try_pairs(const search_layout &l, const float *x,
                                               const search_mains &t, uint32_t first,
                                               uint32_t from, uint32_t to, search_pair *least)
{
    const float *tiles =
        SHARED ? search_dynamic<float>(l.tiles.at * (unsigned)sizeof(float)) : l.tiles.data;
    const search_operand<V> b = search_operand_at<V>(tiles, l.res.stride);
    search_unit<V> u;
    search_unit_start(l, x, t, first, reinterpret_cast<const search_tiles_head *>(tiles)->size,
                      u);
    const search_lowest best = search_scan_chunks(u, b, from, to);
    const uint64_t main = search_best_main(u, best);
    if (main == search_none || main > least->main)
        return;
    /* the residual centroid: the smallest score of the four lanes of that main centroid */
    const bool upper = u.main[1] == (uint32_t)main, own = upper || u.main[0] == (uint32_t)main;
    const uint32_t order = own ? search_order(upper ? best.score[1] : best.score[0]) : ~0U;
    const uint32_t lowest = port_redux_min(port_all, order);
    const uint32_t chunk = port_redux_min(
        port_all, order == lowest ? (upper ? best.chunk[1] : best.chunk[0]) : ~0U);
    const float score = own ? search_score_of(lowest) : NAN;
    const uint32_t at = search_find(u, b, chunk, upper, score);
    search_keep_better(least, {main, (uint64_t)lowest << 32 | at});
}

/* log2, rounded down. */
static __device__ inline int search_log2(unsigned n)
{
    return 31 - __clz((int)n);
}

/* The best of all pairs to try; warp i gets that of vector i < count.  2^team warps take the
 * main centroids of a vector in turn; if these are few, they divide the residual codebook into
 * 2^parts parts. */
template <unsigned V>
static __device__ search_choice search_pairs(const search_layout &l, search_area<V> &s,
                                             unsigned count)
{
    const uint32_t chunks = l.res.stride / (SEARCH_TILE * SEARCH_CHUNK);
    const uint32_t together = ((l.beam ? l.beam : l.main.k) + SEARCH_MAINS - 1) / SEARCH_MAINS;
    const int team =
        search_log2(search_warps<V>) - (count > 1 ? search_log2(count - 1) + 1 : 0);
    const int parts = min(max(team - search_log2(together), 0), search_log2(chunks));
    const uint32_t part = (chunks + (1U << parts) - 1) >> parts;
    const unsigned i = port_warp() >> team;
    search_pair least = {search_none, search_none};
    if (team)
        __syncthreads(); /* the lists are those of other warps */
    if (i < count) {
        const search_mains t = {search_list(l, i), l.beam ? s.count[i] : l.main.k};
        for (uint32_t n = port_warp() & ((1U << team) - 1); n < together << parts;
             n += 1U << team) {
            const uint32_t first = (n >> parts) * SEARCH_MAINS;
            const uint32_t from = (n & ((1U << parts) - 1)) * part,
                           to = min(from + part, chunks);
            if (l.tiles.shared)
                search_try_pairs<true, V>(l, s.x[i], t, first, from, to, &least);
            else
                search_try_pairs<false, V>(l, s.x[i], t, first, from, to, &least);
        }
    }
    if (team) {
        if (port_lane() == 0)
            s.pairs[port_warp()] = least;
        __syncthreads();
        if (port_warp() < count) {
            const search_pair *of = &s.pairs[port_warp() << team];
            least = of[0];
#pragma unroll 1
            for (unsigned n = 1; n < 1U << team; n++)
                search_keep_better(&least, of[n]);
        }
    }
    return {search_index(least.main), search_index(least.res)};
}

/* ---- the search ---- */

/* The nearest centroid of the main codebook, then that of the residual codebook to the rest. */
template <unsigned V>
static __device__ inline search_choice search_greedy(const search_layout &l, search_area<V> &s,
                                                     unsigned count)
{
    search_scan_codebook<true>(l, s, l.main, count);
    search_choice found = {search_index(search_join(s, count)), 0};
    if (!l.res.stride)
        return found;
    const unsigned i = port_warp();
    for (unsigned d = port_lane(); i < count && d < l.v; d += PORT_LANES)
        s.y[i][d] = -2 * (s.x[i][d] - search_element<V>(l.main, found.main, d));
    __syncthreads();
    search_scan_codebook<true>(l, s, l.res, count);
    found.res = search_index(search_join(s, count));
    return found;
}

/* Searches vectors 0 .. count - 1, which search_put has set: warp i gets the choice of vector
 * i. All threads call it; it begins with a barrier, and another barrier must precede the next
 * search_put. */
template <unsigned V>
static __device__ inline search_choice search_run(const search_layout &l, search_area<V> &s,
                                                  unsigned count)
{
    __syncthreads();
    if (l.beam == 1)
        return search_greedy(l, s, count);
    if (l.beam) {
        search_scan_codebook<false>(l, s, l.main, count);
        __syncthreads();
        if (port_warp() < count)
            search_select(l, s, port_warp());
    }
    return search_pairs(l, s, count);
}

/* Element d of the decoded choice. */
template <unsigned V>
static __device__ inline float search_decode(const search_layout &l, search_choice c,
                                             unsigned d)
{
    const float main = search_element<V>(l.main, c.main, d);
    return l.res.stride ? main + search_element<V>(l.res, c.res, d) : main;
}

/* Returns `found` if it is strictly nearer to x than `old`, otherwise `old`, and its distance
 * in *distance. Each half of the warp adds the squares of one of them, in order. */
template <unsigned V>
static __device__ inline search_choice search_settle(const search_layout &l, const float *x,
                                                     search_choice found, search_choice old,
                                                     float *distance)
{
    constexpr unsigned half = PORT_LANES / 2;
    const unsigned lane = port_lane() % half, first = port_lane() - lane;
    const search_choice mine = first ? old : found;
    float sum = 0;
    for (unsigned begin = 0; begin < l.v; begin += half) {
        const unsigned d = begin + lane;
        const float off = d < l.v ? x[d] - search_decode<V>(l, mine, d) : 0;
        const float square = off * off;
#pragma unroll
        for (unsigned e = 0; e < (V < half ? V : half); e++)
            sum += __shfl_sync(port_all, square, (int)(first + e));
    }
    const float of_found = __shfl_sync(port_all, sum, 0),
                of_old = __shfl_sync(port_all, sum, half);
    const bool better = of_found < of_old;
    *distance = better ? of_found : of_old;
    return better ? found : old;
}

#endif
