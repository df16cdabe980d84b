/* Internal: the second half of the search (search.h): pairs of main and residual centroids, and
 * the choice.  For search.cu and columns.cu only. */
#ifndef VPTQ_BACKEND_CUDA_SEARCH_CHOOSE_H
#define VPTQ_BACKEND_CUDA_SEARCH_CHOOSE_H

#include "lib/backend/cuda/search.h"

/* ---- pairs ---- */

/* The main centroids to try for one vector: a list, or all without one. */
struct search_mains {
    const uint32_t *list;
    uint32_t count;
};
static __device__ inline uint32_t search_main(const search_mains &t, uint32_t i)
{
    i = i < t.count ? i : 0;
    return t.list && t.count ? t.list[i] : i;
}

/* SEARCH_MAINS main centroids as operand A of port_mma_f16: y = -2 (x - c) 2^e in a high and a
 * low half, with an exponent e for each centroid.  A lane has elements of centroids g and g +
 * 8, g = lane / 4.  If V <= 8, `high` has both halves, one in each half of the operand, and
 * `low` is not used. */
template <unsigned V> struct search_unit {
    uint32_t high[search_steps<V>][4], low[search_steps<V>][4];
    uint32_t main[2];
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
    const float *data = search_data(l.main);
#pragma unroll
    for (unsigned r = 0; r < 2; r++) {
        const uint32_t n = first + port_lane() / 4 + 8 * r;
        float sum = 0;
        u.main[r] = search_main(t, n);
#pragma unroll
        for (unsigned p = 0; p < search_steps<V>; p++)
#pragma unroll
            for (unsigned h = 0; h < (V <= 8 ? 1 : 2); h++)
#pragma unroll
                for (unsigned i = 0; i < 2; i++) {
                    const unsigned d = 16 * p + 8 * h + port_lane() % 4 * 2 + i;
                    const float off =
                        d < l.v ? x[d] - search_element<V>(data, l.main.stride, u.main[r], d)
                                : 0;
                    sum = fmaf(off, off, sum);
                    y.of[p][h][r][i] = off;
                }
        sum += __shfl_xor_sync(port_all, sum, 1);
        sum += __shfl_xor_sync(port_all, sum, 2);
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

/* The smallest second part of the two centroids of a lane, and the first chunk with it. */
struct search_lowest {
    float score[2];
    uint32_t chunk[2];
};

/* Of tiles from .. to - 1. */
template <unsigned V>
static __device__ inline search_lowest search_scan_tiles(const search_unit<V> &u,
                                                         const search_operand<V> &b,
                                                         uint32_t from, uint32_t to)
{
    search_lowest best = {{INFINITY, INFINITY}, {from, from}};
    for (uint32_t chunk = from; chunk < to; chunk += SEARCH_CHUNK) {
        const uint32_t end = min(chunk + (uint32_t)SEARCH_CHUNK, to);
        float low[2] = {INFINITY, INFINITY};
#pragma unroll(V <= 8 ? 4 : 2)
        for (uint32_t tile = chunk; tile < end; tile++) {
            float d[4];
            search_tile(u, b, tile, d);
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

/* Joins the four lanes of a row. */
static __device__ inline void search_join_row(search_lowest *best)
{
#pragma unroll
    for (unsigned r = 0; r < 2; r++)
#pragma unroll
        for (unsigned distance = 1; distance <= 2; distance *= 2) {
            const float score = __shfl_xor_sync(port_all, best->score[r], distance);
            const uint32_t chunk = __shfl_xor_sync(port_all, best->chunk[r], distance);
            if (score < best->score[r] || (score == best->score[r] && chunk < best->chunk[r])) {
                best->score[r] = score;
                best->chunk[r] = chunk;
            }
        }
}

/* The first residual centroid of a chunk whose second part for row `row` is `score`. */
template <unsigned V>
static __device__ inline uint32_t search_find(const search_unit<V> &u,
                                              const search_operand<V> &b, uint32_t chunk,
                                              uint32_t to, unsigned row, float score)
{
    const uint32_t end = min(chunk + (uint32_t)SEARCH_CHUNK, to);
    uint32_t at = ~0U;
    for (uint32_t tile = chunk; tile < end; tile++) {
        float d[4];
        search_tile(u, b, tile, d);
#pragma unroll
        for (unsigned i = 0; i < 2; i++)
            if (port_lane() / 4 == row % 8 && (row < 8 ? d[i] : d[2 + i]) == score)
                at = min(at, tile * SEARCH_TILE + port_lane() % 4 * 2 + i);
    }
    return port_redux_min(port_all, at);
}

static __device__ inline void search_keep_better(search_pair *least, search_pair other)
{
    if (other.main < least->main || (other.main == least->main && other.res < least->res))
        *least = other;
}

/* Keeps the better of *least, the same in all lanes, and the best pair of main centroids first
 * .. and the residual centroids of tiles from .. to - 1. */
template <unsigned V>
static __device__ inline void search_try_pairs(const search_layout &l, const float *x,
                                               const search_mains &t, uint32_t first,
                                               uint32_t from, uint32_t to, search_pair *least)
{
    const float *copy = static_cast<const float *>(port_shared_dynamic()) + l.tiles.at;
    const search_operand<V> b =
        search_operand_at<V>(l.tiles.shared ? copy : l.tiles.data, l.res.stride);
    search_unit<V> u;
    search_unit_start(l, x, t, first,
                      l.tiles.shared
                          ? reinterpret_cast<const search_tiles_head *>(copy)->size
                          : reinterpret_cast<const search_tiles_head *>(l.tiles.data)->size,
                      u);
    search_lowest best =
        l.tiles.shared
            ? search_scan_tiles(u, search_operand_at<V>(copy, l.res.stride), from, to)
            : search_scan_tiles(u, b, from, to);
    search_join_row(&best);

    float unscaled[2];
    uint64_t key[2];
#pragma unroll
    for (unsigned r = 0; r < 2; r++) {
        const int half = u.undo[r] / 2;
        unscaled[r] = best.score[r] * search_power(half) * search_power(u.undo[r] - half);
        key[r] = search_key(u.distance[r] + unscaled[r], u.main[r]);
    }
    const uint64_t main = search_least(min(key[0], key[1]));
    if (main == search_none || main > least->main)
        return;
    const bool upper = key[0] != main;
    const unsigned winner =
        port_redux_min(port_all, min(key[0], key[1]) == main ? port_lane() : ~0U);
    const float score =
        __shfl_sync(port_all, upper ? best.score[1] : best.score[0], (int)winner);
    const uint32_t chunk =
        __shfl_sync(port_all, upper ? best.chunk[1] : best.chunk[0], (int)winner);
    const unsigned row = winner / 4 + 8 * __shfl_sync(port_all, (unsigned)upper, (int)winner);
    const uint32_t at = search_find(u, b, chunk, to, row, score);
    const float second = __shfl_sync(port_all, upper ? unscaled[1] : unscaled[0], (int)winner);
    search_keep_better(least, {main, search_key(second, at)});
}

/* The smallest pair of a warp, in all lanes. */
static __device__ inline search_pair search_least_pair(search_pair p)
{
    const uint64_t main = search_least(p.main);
    return {main, search_least(p.main == main ? p.res : search_none)};
}

/* The best of all pairs to try; warp i gets that of vector i < count.  As many warps as there
 * are for each vector take its main centroids in turn; if these are few, they divide the
 * residual codebook into parts. */
template <unsigned V>
static __device__ search_choice search_pairs(const search_layout &l, search_area<V> &s,
                                             unsigned count)
{
    const uint32_t tried = l.beam ? l.beam : l.main.k, tiles = l.res.stride / SEARCH_TILE;
    const uint32_t together = (tried + SEARCH_MAINS - 1) / SEARCH_MAINS;
    const unsigned team = search_warps<V> / count, i = port_warp() / team;
    uint32_t parts = 1;
    while (together * parts < team && 2 * parts <= tiles)
        parts *= 2;
    const uint32_t part = (tiles + parts - 1) / parts;
    search_pair least = {search_none, search_none};
    if (team > 1)
        __syncthreads(); /* the lists are those of other warps */
    if (i < count) {
        const search_mains t = {l.beam ? search_list(l, i) : NULL,
                                l.beam ? s.count[i] : l.main.k};
        for (uint32_t n = port_warp() % team; n < together * parts; n += team) {
            const uint32_t from = n % parts * part;
            search_try_pairs<V>(l, s.x[i], t, n / parts * SEARCH_MAINS, from,
                                min(from + part, tiles), &least);
        }
    }
    if (team > 1) {
        if (port_lane() == 0)
            s.pairs[port_warp()] = least;
        __syncthreads();
        least = {search_none, search_none};
        if (port_warp() < count && port_lane() < team)
            least = s.pairs[port_warp() * team + port_lane()];
        least = search_least_pair(least);
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
    const float *data = search_data(l.main);
    for (unsigned d = port_lane(); i < count && d < l.v; d += PORT_LANES)
        s.y[i][d] = -2 * (s.x[i][d] - search_element<V>(data, l.main.stride, found.main, d));
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
    const float main = search_element<V>(search_data(l.main), l.main.stride, c.main, d);
    return l.res.stride ? main + search_element<V>(search_data(l.res), l.res.stride, c.res, d)
                        : main;
}

/* Returns `found` if it is strictly nearer to x than `old`, otherwise `old`, and its distance
 * in *distance. The first two lanes compute one distance each. */
template <unsigned V>
static __device__ inline search_choice search_settle(const search_layout &l, const float *x,
                                                     search_choice found, search_choice old,
                                                     float *distance)
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
    *distance = better ? of_found : of_old;
    return better ? found : old;
}

#endif
