/* Nearest centroids of vectors, among all centroids or around the one of their cluster, and the
 * elimination of the column pass: the kernels of vptq_nearest_kernels.
 *
 * Argmin in two steps: the inner loop keeps only the largest score of a vector (one max per
 * score) and, after every block of 16 centroids, the number of the best block so far.  That
 * block is then scored again, to the same bits, to find its first centroid with that score. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "lib/backend/cpu/codebook_simd.h"

/* ---- all centroids ---- */

/* Index in the block of the first centroid with exactly this score; 0 if no score was a number
 * above -infinity, which is also the score of the lanes after the last centroid. */
SIMD_INLINE uint32_t find_in_block(const float *c, size_t v, const float *x, float wanted)
{
    vf score[PARTS];
    uint32_t hit = 0;
    score_block(c, v, x, score);
    for (size_t p = 0; p < PARTS; p++)
        hit |= vf_equal(score[p], vf_set1(wanted)) << p * LANES;
    return hit && wanted > -INFINITY ? (uint32_t)__builtin_ctz(hit) : 0;
}

/* At most sets * LANES vectors. */
SIMD_INLINE void nearest_tile(const vptq_codebook *codebook, size_t v, size_t sets,
                              size_t count, const float *x, uint32_t *idx)
{
    const size_t stride = (1 + v) * VPTQ_CODEBOOK_LANES;
    float xt[VPTQ_VQ_MAX_V * TILE], score[TILE], block[TILE];
    vf best[SETS], best_block[SETS]; /* block numbers are small enough to be exact floats */
    transpose_tile(v, sets, count, x, xt);
    for (size_t s = 0; s < sets; s++) {
        best[s] = vf_set1(-INFINITY);
        best_block[s] = vf_set1(0);
    }
    for (size_t b = 0; b < codebook->blocks; b++) {
        const float *c = codebook->data + b * stride, *tile = xt;
        vf top[SETS];
        for (size_t s = 0; s < sets; s++)
            top[s] = vf_set1(-INFINITY);
        for (size_t j = 0; j < VPTQ_CODEBOOK_LANES; j += STEP, c += STEP) {
            SIMD_KEEP_IN_LOOP(tile, c);
            best_of_step(c, v, sets, tile, top);
        }
        for (size_t s = 0; s < sets; s++) {
            best_block[s] =
                vf_select_greater(top[s], best[s], vf_set1((float)b), best_block[s]);
            best[s] = vf_max(top[s], best[s]);
        }
    }
    for (size_t s = 0; s < sets; s++) {
        vf_store(score + s * LANES, best[s]);
        vf_store(block + s * LANES, best_block[s]);
    }
    for (size_t r = 0; r < count; r++) {
        const size_t b = (size_t)block[r];
        idx[r] = (uint32_t)(b * VPTQ_CODEBOOK_LANES) +
                 find_in_block(codebook->data + b * stride, v, x + r * v, score[r]);
    }
}

SIMD_INLINE void nearest_vectors(const vptq_codebook *codebook, size_t v, size_t n,
                                 const float *x, uint32_t *idx)
{
    while (n > LANES) {
        size_t count = n < TILE ? n : TILE;
        nearest_tile(codebook, v, SETS, count, x, idx);
        n -= count;
        x += count * v;
        idx += count;
    }
    if (n)
        nearest_tile(codebook, v, 1, n, x, idx);
}

static void nearest(const vptq_codebook *codebook, size_t n, const float *x, uint32_t *idx)
{
    VPTQ_WITH_V(codebook->v, nearest_vectors(codebook, V, n, x, idx));
}

/* ---- the centroids around that of a cluster ---- */

/* Centroids that are scored at the same time, against the vectors in the lanes of a register.
 */
enum { CLUSTER_STEP = 8 };

/* Scores the vectors of xt [v][LANES] against a row of vptq_cluster_codebooks. */
SIMD_INLINE vf score_row(const float *row, size_t v, const float *xt)
{
    vf s = vf_set1(row[0]);
#pragma GCC unroll 16
    for (size_t d = 0; d < v; d++)
        s = vf_fma(vf_load(xt + d * LANES), vf_set1(row[1 + d]), s);
    return s;
}

/* For each lane, finds the first centroid with the largest score in a list of n, which is
 * followed by CLUSTER_STEP - 1 copies of its last entry. */
SIMD_INLINE void nearest_of_list(const float *rows, size_t v, const uint32_t *list, size_t n,
                                 const float *xt, uint32_t *found)
{
    vf best = vf_set1(-INFINITY), where = vf_set1(0);
    float first[LANES];
    for (size_t i = 0; i < n; i += CLUSTER_STEP) {
        vf s[CLUSTER_STEP];
        for (size_t l = 0; l < CLUSTER_STEP; l++)
            s[l] = vf_set1(rows[list[i + l] * (1 + v)]);
#pragma GCC unroll 16
        for (size_t d = 0; d < v; d++) {
            const vf x = vf_load(xt + d * LANES);
            for (size_t l = 0; l < CLUSTER_STEP; l++)
                s[l] = vf_fma(x, vf_set1(rows[list[i + l] * (1 + v) + 1 + d]), s[l]);
        }
        vf top = vf_max(s[0], vf_set1(-INFINITY));
        for (size_t l = 1; l < CLUSTER_STEP; l++)
            top = vf_max(s[l], top);
        where = vf_select_greater(top, best, vf_set1((float)i), where);
        best = vf_max(top, best);
    }
    vf_store(first, where);
    for (size_t j = 0; j < LANES; j++) {
        const size_t i = (size_t)first[j];
        found[j] = 0; /* if no score is a number */
        for (size_t l = CLUSTER_STEP; l-- > 0;) {
            const vf s = score_row(rows + list[i + l] * (1 + v), v, xt);
            const uint32_t hit = vf_at_least(s, best) & vf_at_least(s, vf_set1(-FLT_MAX));
            found[j] = hit >> j & 1 ? list[i + l] : found[j];
        }
    }
}

/* Maps entries of a list from listed centroids to centroids, and inserts `label` in order;
 * returns the new n. */
static size_t map_listed(const vptq_cluster_codebooks *b, uint32_t label, uint32_t *list,
                         size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        list[i] = b->index[list[i]];
        at += list[i] < label;
    }
    if (at < n && list[at] == label)
        return n;
    memmove(list + at + 1, list + at, (n - at) * sizeof *list);
    list[at] = label;
    return n + 1;
}

/* Lists, in ascending order, the centroids that may be nearest to any vector whose reach is at
 * most `reach`: those no further from a, the centroid of the cluster. Lists all if the bound is
 * not a number. */
SIMD_INLINE size_t list_within(const vptq_cluster_codebooks *b, size_t v, uint32_t label,
                               const float *a, const float *score, float reach, uint32_t *list)
{
    float norm = 0;
    for (size_t d = 0; d < v; d++)
        norm += a[d] * a[d];
    const float square = reach * reach;
    const float bound = 0.5F * (norm - square) - 1e-5F * (norm + square);
    size_t n = 0;
    for (size_t i = 0; bound > -FLT_MAX && i < b->codebook.blocks * VPTQ_CODEBOOK_LANES;
         i += LANES)
        n = vf_append(list, NULL, n, vf_load(score + i), vf_set1(bound), (uint32_t)i);
    for (; !(bound > -FLT_MAX) && n < b->listed; n++)
        list[n] = (uint32_t)n;
    if (b->index)
        n = map_listed(b, label, list, n);
    else if (!n)
        list[n++] = 0;
    for (size_t l = 0; l < CLUSTER_STEP; l++)
        list[n + l] = list[n - 1];
    return n;
}

SIMD_INLINE void search_cluster(const vptq_cluster_codebooks *b, size_t v, uint32_t label,
                                size_t n, const uint32_t *member, const float *reach,
                                float *work, uint32_t *idx)
{
    const size_t all = b->codebook.blocks * VPTQ_CODEBOOK_LANES;
    float *score = work, xt[VPTQ_VQ_MAX_V * LANES], a[VPTQ_VQ_MAX_V];
    uint32_t *list = (uint32_t *)(void *)(score + all), found[LANES];
    memcpy(a, b->rows + label * (1 + v) + 1, v * sizeof *a);
    score_codebook(&b->codebook, v, a, score);
    for (size_t i = 0; i < n; i += LANES) {
        const size_t count = n - i < LANES ? n - i : LANES;
        float max = 0; /* reaches are not NaN */
        for (size_t j = 0; j < LANES; j++) {
            const uint32_t m = member[i + (j < count ? j : count - 1)];
            max = reach[m] > max ? reach[m] : max;
            for (size_t d = 0; d < v; d++)
                xt[d * LANES + j] = b->x[m * v + d];
        }
        const size_t listed = list_within(b, v, label, a, score, max, list);
        nearest_of_list(b->rows, v, list, listed, xt, found);
        for (size_t j = 0; j < count; j++)
            idx[member[i + j]] = found[j];
    }
}

static void nearest_in_cluster(const vptq_cluster_codebooks *b, uint32_t label, size_t n,
                               const uint32_t *member, const float *reach, float *work,
                               uint32_t *idx)
{
    VPTQ_WITH_V(b->codebook.v, search_cluster(b, V, label, n, member, reach, work, idx));
}

/* ---- lists of near centroids ---- */

SIMD_INLINE void nearest_neighbors_of(const vptq_pair_codebooks *b, size_t v, size_t n,
                                      const float *x, uint32_t *idx)
{
    for (size_t i = 0; i < n; i++, x += v) {
        float score[VPTQ_MAX_NEIGHBORS] = {0}, top = -INFINITY;
        score_neighbors(b, v, idx[i], x, score);
        vf max = vf_load(score);
        for (size_t e = LANES; e < b->neighbors; e += LANES)
            max = vf_max(vf_load(score + e), max);
        float lane[LANES];
        vf_store(lane, max);
        for (size_t l = 0; l < LANES; l++)
            top = lane[l] > top ? lane[l] : top;
        uint32_t hit = 0;
        size_t e = 0;
        for (; !hit && e < b->neighbors; e += LANES)
            hit = vf_at_least(vf_load(score + e), vf_set1(top));
        if (!hit || !(top > -INFINITY))
            continue;
        const uint32_t found =
            b->neighbor_index[idx[i] * b->neighbors + e - LANES + (size_t)__builtin_ctz(hit)];
        if (vptq_distance(x, b->centroids + found * v, v) <
            vptq_distance(x, b->centroids + idx[i] * v, v))
            idx[i] = found;
    }
}

static void nearest_neighbor(const vptq_pair_codebooks *b, size_t n, const float *x,
                             uint32_t *idx)
{
    VPTQ_WITH_V(b->main.v, nearest_neighbors_of(b, V, n, x, idx));
}

/* Keeps the m best of n entries, best first. On entry, list and score are in the order of
 * centroids. */
static size_t keep_best(uint32_t *list, const float *score, size_t n, size_t m, float *best,
                        uint32_t *kept)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        if (count == m && !(score[i] > best[m - 1]))
            continue;
        size_t at = count < m ? count++ : m - 1;
        for (; at > 0 && best[at - 1] < score[i]; at--) {
            best[at] = best[at - 1];
            kept[at] = kept[at - 1];
        }
        best[at] = score[i];
        kept[at] = list[i];
    }
    return count;
}

static size_t list_nearest(const vptq_codebook *codebook, size_t m, const float *x, float *work,
                           uint32_t *list)
{
    const size_t all = codebook->blocks * VPTQ_CODEBOOK_LANES;
    float *score = work, best[VPTQ_MAX_NEIGHBORS];
    uint32_t *found = (uint32_t *)(void *)(work + 2 * all + VPTQ_CODEBOOK_LANES);
    float *of = work + all;
    size_t n = 0;
    score_codebook(codebook, codebook->v, x, score);
    const vf bound = vf_set1(bound_of(score, all, 2 * m, m));
    for (size_t e = 0; e < all; e += LANES)
        n = vf_append(found, of, n, vf_load(score + e), bound, (uint32_t)e);
    return keep_best(found, of, n, m, best, list);
}

/* ---- elimination ---- */

static void eliminate(size_t count, const float *err, const float *u, size_t ldu, float *z)
{
    vf a[VPTQ_PANEL / LANES];
    for (size_t l = 0; l < VPTQ_PANEL / LANES; l++)
        a[l] = vf_load(z + l * LANES);
    for (size_t s = 0; s < count; s++, err += VPTQ_PANEL) {
        const vf us = vf_set1(u[s * ldu]);
        for (size_t l = 0; l < VPTQ_PANEL / LANES; l++)
            a[l] = vf_sub(a[l], vf_mul(vf_load(err + l * LANES), us));
    }
    for (size_t l = 0; l < VPTQ_PANEL / LANES; l++)
        vf_store(z + l * LANES, a[l]);
}

const vptq_nearest_kernels VPTQ_SIMD_SYMBOL(vptq_nearest_kernels) = {
    nearest, nearest_in_cluster, nearest_neighbor, list_nearest, eliminate};
