/* Internal: codebooks laid out for the kernels that search them, and these kernels, one set per
 * SIMD level (nearest_simd.c, search_simd.c).
 *
 * A codebook is laid out as [blocks][1 + v][16]: row 0 of a block holds -|c|^2 / 2 of 16
 * centroids (-infinity after the last), row 1 + d their dimension d.
 *
 * The score of centroid c for vector x is x.c - |c|^2 / 2: the nearest centroid has the
 * largest. It is summed in float, starting from -|c|^2 / 2, over dimensions 0, 1, ... in order
 * and lane by lane, so that it depends neither on the position of a vector in a call nor on
 * that of a centroid in a block. */
#ifndef VPTQ_BACKEND_CPU_CODEBOOK_H
#define VPTQ_BACKEND_CPU_CODEBOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/backend/backend.h"
#include "lib/base/cpu.h"

enum {
    VPTQ_CODEBOOK_LANES = 16,
    VPTQ_PANEL = 64,          /* floats of a column that `eliminate` takes */
    VPTQ_SEARCH_TILE = 32,    /* largest number of vectors that are searched together */
    VPTQ_MAX_NEIGHBORS = 256, /* largest vptq_pair_codebooks.neighbors */
    VPTQ_SCREENED_PAIRS = 256 /* largest number of pairs that are computed one by one */
};

typedef struct vptq_codebook {
    uint32_t v;
    size_t blocks;
    const float *data; /* 64-byte aligned */
} vptq_codebook;

/* Floats of a laid-out codebook of k centroids. */
size_t vptq_codebook_floats(uint32_t v, uint32_t k);

/* Lays out centroids c [k, v] in `data` [vptq_codebook_floats], 64-byte aligned. */
vptq_codebook vptq_codebook_lay(const vptq_dev *dev, uint32_t v, uint32_t k, const float *c,
                                float *data);

/* A main and a residual codebook whose pairs are searched. */
typedef struct vptq_pair_codebooks {
    uint32_t k, beam; /* beam: main centroids that are tried first, at most `classes` */
    bool exact;       /* then try all others that could win */
    size_t classes;   /* see search_simd.c; at most 4 * main.blocks */
    vptq_codebook main, res;
    const float *centroids, *res_centroids; /* [k, v], [k_res, v] as given */
    float longest_res; /* length of the longest residual centroid, rounded up */
    /* -c.r of all pairs as integers (search_simd.c), or NULL if screening would not pay or the
     * table would be too large. */
    const int8_t *screen;     /* [k][screen_stride] */
    const float *screen_step; /* [k] value of one unit */
    size_t screen_stride;     /* k_res rounded up to a multiple of 64, or 0 */
    /* For searches around the current choice only: for each main centroid its nearest ones
     * (itself first), laid out as a codebook. */
    size_t neighbors;               /* a multiple of 16; 0: no lists */
    const float *neighbor_data;     /* [k][neighbors / 16][1 + v][16] */
    const uint32_t *neighbor_index; /* [k][neighbors] */
} vptq_pair_codebooks;

/* A codebook for vectors that already have labels. */
typedef struct vptq_cluster_codebooks {
    uint32_t k;
    uint32_t listed;        /* centroids to try in addition to the label */
    const uint32_t *index;  /* [listed] ascending; NULL: all k */
    vptq_codebook codebook; /* of the listed centroids */
    const float *rows;      /* [k][1 + v] -|c|^2 / 2 and c, as in the codebook */
    const float *x;         /* all vectors */
} vptq_cluster_codebooks;

typedef struct vptq_nearest_kernels {
    /* idx[i] = index of the best centroid for vector x[i * v ..], the lowest on ties, 0 if the
     * scores are not numbers. */
    void (*nearest)(const vptq_codebook *codebook, size_t n, const float *x, uint32_t *idx);
    /* idx[m] = the result of `nearest`, to the bit, among the listed centroids and `label`, for
     * the n vectors `member` that have this label.  No centroid further than reach[m] (not NaN)
     * from that of the label can be nearest; neighbors in `member` should have a similar reach.
     * work: vptq_cluster_work floats. */
    void (*nearest_in_cluster)(const vptq_cluster_codebooks *b, uint32_t label, size_t n,
                               const uint32_t *member, const float *reach, float *work,
                               uint32_t *idx);
    /* Replaces idx[i] by a strictly nearer centroid among its neighbors; without residual
     * codebook. */
    void (*nearest_neighbor)(const vptq_pair_codebooks *b, size_t n, const float *x,
                             uint32_t *idx);
    /* Lists the m (a multiple of 16) centroids nearest to x, nearest first; returns their
     * number, which is smaller if the codebook is.  work: vptq_list_nearest_work floats. */
    size_t (*list_nearest)(const vptq_codebook *codebook, size_t m, const float *x, float *work,
                           uint32_t *list);
    /* z[r] -= err[s][r] * u[s * ldu] for s = 0, 1, ... count - 1 in this order, each operation
     * rounded; z [64], err [count, 64], both 64-byte aligned. */
    void (*eliminate)(size_t count, const float *err, const float *u, size_t ldu, float *z);
} vptq_nearest_kernels;

typedef struct vptq_search_kernels {
    /* Pairs for n vectors, as vptq_codebooks and vptq_search_args define them.  work:
     * vptq_search_work floats. */
    void (*search)(const vptq_pair_codebooks *b, size_t n, const float *x, bool keep,
                   float *work, uint32_t *idx, uint32_t *idx_res);
    /* Row [screen_stride] of the table `screen` for main centroid c, and its step.  work:
     * res->blocks * 16 floats. */
    void (*screen_row)(const vptq_codebook *res, const float *c, float *work, size_t stride,
                       int8_t *row, float *step);
} vptq_search_kernels;

/* |x - c|^2 from the differences, in order. */
static inline float vptq_distance(const float *x, const float *c, size_t v)
{
    float sum = 0;
    for (size_t d = 0; d < v; d++)
        sum += (x[d] - c[d]) * (x[d] - c[d]);
    return sum;
}

static inline size_t vptq_cluster_work(const vptq_cluster_codebooks *b)
{
    return 2 * (b->codebook.blocks + 2) * VPTQ_CODEBOOK_LANES;
}

static inline size_t vptq_list_nearest_work(const vptq_codebook *codebook)
{
    return (3 * codebook->blocks + 2) * VPTQ_CODEBOOK_LANES;
}

static inline size_t vptq_search_work(const vptq_pair_codebooks *b)
{
    const size_t lists = (b->main.blocks + 1) * VPTQ_CODEBOOK_LANES;
    const size_t screens = VPTQ_SCREENED_PAIRS + 2 * b->screen_stride + VPTQ_CODEBOOK_LANES;
    const size_t per_vector = b->main.blocks + b->classes + (b->main.blocks + 1) / 2;
    return VPTQ_SEARCH_TILE * per_vector + 3 * lists + b->res.blocks * VPTQ_CODEBOOK_LANES +
           screens;
}

VPTQ_SIMD_TABLES(vptq_nearest_kernels, vptq_nearest_kernels);
VPTQ_SIMD_TABLES(vptq_search_kernels, vptq_search_kernels);

static inline const vptq_nearest_kernels *vptq_nearest_kernels_get(vptq_simd simd)
{
    return VPTQ_SIMD_SELECT(simd, vptq_nearest_kernels);
}

static inline const vptq_search_kernels *vptq_search_kernels_get(vptq_simd simd)
{
    return VPTQ_SIMD_SELECT(simd, vptq_search_kernels);
}

#endif
