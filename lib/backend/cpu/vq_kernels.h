/* Inner loops of vector quantization, one set per instruction set; for cpu_vq.c alone.
 *
 * The score of centroid c for vector x is x.c - |c|^2 / 2: the nearest centroid has the
 * largest. It is summed in float from -|c|^2 / 2 over dimension 0, 1, ... in order, lane by
 * lane, so it depends neither on the place of a vector in a call nor on that of a centroid in a
 * block. Argmin has two levels: the inner loop keeps only the largest score of a vector (one
 * max per score) and, after every block of 16 centroids, the number of the winner's block; that
 * block is then scored again, to the same bits, to find the first centroid with that score.
 *
 * A codebook is laid out as [blocks][1 + v][16]: row 0 of a block holds -|c|^2 / 2 of 16
 * centroids
 * (-infinity past the last), row 1 + d their dimension d. */
#ifndef VPTQ_BACKEND_CPU_VQ_KERNELS_H
#define VPTQ_BACKEND_CPU_VQ_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { VPTQ_CODEBOOK_LANES = 16, VPTQ_PANEL = 64 };

typedef struct vptq_codebook {
    uint32_t v;
    size_t blocks;
    const float *data; /* 64-byte aligned */
} vptq_codebook;

typedef struct vptq_vq_kernels {
    /* idx[i] = number of the best centroid of vector x[i * v ..], the lowest on ties, and 0
     * where the scores are not numbers. */
    void (*nearest)(const vptq_codebook *codebook, size_t n, const float *x, uint32_t *idx);
    /* z[r] -= err[s][r] * u[s * ldu] for s = 0, 1, ... count - 1 in this order, each operation
     * rounded; z [64], err [count, 64], both 64-byte aligned. */
    void (*eliminate)(size_t count, const float *err, const float *u, size_t ldu, float *z);
} vptq_vq_kernels;

/* Two codebooks whose pairs are searched. */
typedef struct vptq_pair_codebooks {
    uint32_t k, beam; /* beam: main centroids that are tried at first, at most `classes` */
    bool exact;       /* then all others that could win */
    size_t classes;   /* see cpu_search_body.h; at most 4 * main.blocks */
    vptq_codebook main, res;
    const float *centroids, *res_centroids; /* [k, v], [k_res, v] as they came */
    float reach; /* length of the longest residual centroid, rounded up */
    /* minus c.r of all pairs as integers, see cpu_screen_body.h; NULL where that would not pay
     * or would be too large */
    size_t screen_room;       /* k_res rounded up to a multiple of 64; 0 without */
    const int8_t *screen;     /* [k][screen_room] */
    const float *screen_step; /* [k] what one counts */
    /* for searches that look around the present choice alone: of every main centroid the `near`
     * nearest ones (itself first), laid out as a codebook */
    size_t near;                /* a multiple of 16; 0 = none */
    const float *near_data;     /* [k][near / 16][1 + v][16] */
    const uint32_t *near_index; /* [k][near] */
} vptq_pair_codebooks;

/* A codebook whose vectors, x, have labels already. */
typedef struct vptq_cluster_codebooks {
    uint32_t k;
    uint32_t listed;        /* centroids that are looked at beside the label's ... */
    const uint32_t *index;  /* [listed] ... ascending; NULL = all k */
    vptq_codebook codebook; /* of those */
    const float *rows;      /* [k][1 + v] -|c|^2 / 2 and c, as in the codebook */
    const float *x;         /* all vectors */
} vptq_cluster_codebooks;

static inline size_t vptq_cluster_room(const vptq_cluster_codebooks *b)
{
    return 2 * (b->codebook.blocks + 2) * VPTQ_CODEBOOK_LANES;
}

typedef struct vptq_search_kernels {
    /* Pairs for n vectors as vptq_codebooks and vptq_search_args say; room: floats,
     * vptq_search_room of them. */
    void (*search)(const vptq_pair_codebooks *b, size_t n, const float *x, bool keep,
                   float *room, uint32_t *idx, uint32_t *idx_res);
    /* idx[m] = what `nearest` finds for vector m among the listed centroids and `label`, to the
     * bit, for the n vectors `member` that have this label.  reach[m] (not NaN): nothing
     * further from that centroid than this can be nearest.  Vectors of similar reach should be
     * neighbours.  room: floats, vptq_cluster_room of them. */
    void (*search_cluster)(const vptq_cluster_codebooks *b, uint32_t label, size_t n,
                           const uint32_t *member, const float *reach, float *room,
                           uint32_t *idx);
    /* The nearest main centroids around the old ones; `near` lists and no residual codebook. */
    void (*search_main)(const vptq_pair_codebooks *b, size_t n, const float *x, uint32_t *idx);
    /* Row of the table `screen` from main centroid c, n = screen_room, and its step.  room:
     * floats, res->blocks * 16 of them. */
    void (*screen_row)(const vptq_codebook *res, const float *c, float *room, size_t n,
                       int8_t *row, float *step);
    /* The m centroids nearest to x, a multiple of 16, nearest first, into list; their number,
     * less where there are not as many.  room: floats, vptq_around_room of them. */
    size_t (*around)(const vptq_codebook *codebook, size_t m, const float *x, float *room,
                     uint32_t *list);
} vptq_search_kernels;

enum {
    VPTQ_SEARCH_TILE = 32,    /* vectors that are searched at once, at most */
    VPTQ_MOST_NEAR = 256,     /* vptq_pair_codebooks.near */
    VPTQ_SCREENED_PAIRS = 256 /* that are computed one by one; where more are left, all are */
};

static inline size_t vptq_search_room(const vptq_pair_codebooks *b)
{
    const size_t lists = (b->main.blocks + 1) * VPTQ_CODEBOOK_LANES;
    const size_t screens = VPTQ_SCREENED_PAIRS + 2 * b->screen_room + VPTQ_CODEBOOK_LANES;
    const size_t per_vector = b->main.blocks + b->classes + (b->main.blocks + 1) / 2;
    return VPTQ_SEARCH_TILE * per_vector + 3 * lists + b->res.blocks * VPTQ_CODEBOOK_LANES +
           screens;
}

static inline size_t vptq_around_room(const vptq_codebook *codebook)
{
    return (3 * codebook->blocks + 2) * VPTQ_CODEBOOK_LANES;
}

extern const vptq_vq_kernels vptq_vq_kernels_none;
extern const vptq_search_kernels vptq_search_kernels_none;
#if defined(__x86_64__)
extern const vptq_search_kernels vptq_search_kernels_avx2, vptq_search_kernels_avx512;
extern const vptq_vq_kernels vptq_vq_kernels_avx2;
extern const vptq_vq_kernels vptq_vq_kernels_avx512;
#endif

#endif
