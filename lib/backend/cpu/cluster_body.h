/* Included by cpu_search_{none,avx2,avx512}.c behind cpu_search_body.h: the nearest centroids
 * of vectors that were in one cluster, which are looked for only around its centroid. */
#ifndef VPTQ_BACKEND_CPU_CLUSTER_BODY_H
#define VPTQ_BACKEND_CPU_CLUSTER_BODY_H

#include "lib/backend/cpu/search_body.h"

/* Vectors in the lanes of one register, centroids whose scores are in flight. */
enum { NEAR_STEP = 8 };

/* Scores of the vectors of xt [v][LANES] against a row of vptq_cluster_codebooks. */
INLINE vf score_row(const float *row, size_t v, const float *xt)
{
    vf s = vf_set1(row[0]);
#pragma GCC unroll 16
    for (size_t d = 0; d < v; d++)
        s = vf_fma(vf_load(xt + d * LANES), vf_set1(row[1 + d]), s);
    return s;
}

/* Lane by lane the first centroid of the list, n of them, with the largest score; the list is
 * followed by NEAR_STEP - 1 copies of its last entry. */
INLINE void nearest_of_list(const float *rows, size_t v, const uint32_t *list, size_t n,
                            const float *xt, uint32_t *found)
{
    vf best = vf_set1(-INFINITY), where = vf_set1(0);
    float first[LANES];
    for (size_t i = 0; i < n; i += NEAR_STEP) {
        vf s[NEAR_STEP];
        for (size_t l = 0; l < NEAR_STEP; l++)
            s[l] = vf_set1(rows[list[i + l] * (1 + v)]);
#pragma GCC unroll 16
        for (size_t d = 0; d < v; d++) {
            const vf x = vf_load(xt + d * LANES);
            for (size_t l = 0; l < NEAR_STEP; l++)
                s[l] = vf_fma(x, vf_set1(rows[list[i + l] * (1 + v) + 1 + d]), s[l]);
        }
        vf top = vf_max(s[0], vf_set1(-INFINITY));
        for (size_t l = 1; l < NEAR_STEP; l++)
            top = vf_max(s[l], top);
        where = vf_select_greater(top, best, vf_set1((float)i), where);
        best = vf_max(top, best);
    }
    vf_store(first, where);
    for (size_t j = 0; j < LANES; j++) {
        const size_t i = (size_t)first[j];
        found[j] = 0; /* where no score is a number */
        for (size_t l = NEAR_STEP; l-- > 0;) {
            const vf s = score_row(rows + list[i + l] * (1 + v), v, xt);
            const uint32_t hit = vf_at_least(s, best) & vf_at_least(s, vf_set1(-FLT_MAX));
            found[j] = hit >> j & 1 ? list[i + l] : found[j];
        }
    }
}

/* Entries of a list that counts listed centroids become centroids, and `label` joins them in
 * its place; the new n. */
static size_t name_listed(const vptq_cluster_codebooks *b, uint32_t label, uint32_t *list,
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

/* Ascending, the centroids that may be nearest to any vector whose reach is at most `reach`:
 * those no further from the cluster's, a, than that.  All where there is no telling. */
INLINE size_t list_around(const vptq_cluster_codebooks *b, size_t v, uint32_t label,
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
        n = name_listed(b, label, list, n);
    else if (!n)
        list[n++] = 0;
    for (size_t l = 0; l < NEAR_STEP; l++)
        list[n + l] = list[n - 1];
    return n;
}

INLINE void search_near(const vptq_cluster_codebooks *b, size_t v, uint32_t label, size_t n,
                        const uint32_t *member, const float *reach, float *room, uint32_t *idx)
{
    const size_t all = b->codebook.blocks * VPTQ_CODEBOOK_LANES;
    float *score = room, xt[VPTQ_VQ_MAX_V * LANES], a[VPTQ_VQ_MAX_V];
    uint32_t *list = (uint32_t *)(void *)(score + all), found[LANES];
    memcpy(a, b->rows + label * (1 + v) + 1, v * sizeof *a);
    for (size_t block = 0; block < b->codebook.blocks; block++) {
        vf s[PARTS];
        score_block(b->codebook.data + block * (1 + v) * VPTQ_CODEBOOK_LANES, v, a, s);
        for (size_t p = 0; p < PARTS; p++)
            vf_store(score + block * VPTQ_CODEBOOK_LANES + p * LANES, s[p]);
    }
    for (size_t i = 0; i < n; i += LANES) {
        const size_t count = n - i < LANES ? n - i : LANES;
        float most = 0; /* reaches are numbers */
        for (size_t j = 0; j < LANES; j++) {
            const uint32_t m = member[i + (j < count ? j : count - 1)];
            most = reach[m] > most ? reach[m] : most;
            for (size_t d = 0; d < v; d++)
                xt[d * LANES + j] = b->x[m * v + d];
        }
        const size_t listed = list_around(b, v, label, a, score, most, list);
        nearest_of_list(b->rows, v, list, listed, xt, found);
        for (size_t j = 0; j < count; j++)
            idx[member[i + j]] = found[j];
    }
}

static void search_cluster(const vptq_cluster_codebooks *b, uint32_t label, size_t n,
                           const uint32_t *member, const float *reach, float *room,
                           uint32_t *idx)
{
    switch (b->codebook.v) {
    case 4:
        search_near(b, 4, label, n, member, reach, room, idx);
        break;
    case 6:
        search_near(b, 6, label, n, member, reach, room, idx);
        break;
    case 8:
        search_near(b, 8, label, n, member, reach, room, idx);
        break;
    case 12:
        search_near(b, 12, label, n, member, reach, room, idx);
        break;
    default:
        search_near(b, b->codebook.v, label, n, member, reach, room, idx);
        break;
    }
}

#endif
