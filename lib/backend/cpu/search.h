/* What the rows that search codebooks share; for cpu_search.c and cpu_columns.c alone. */
#ifndef VPTQ_BACKEND_CPU_SEARCH_H
#define VPTQ_BACKEND_CPU_SEARCH_H

#include "lib/backend/cpu/codebook.h"

struct vptq_search_index {
    vptq_codebooks codebooks;
    const vptq_nearest_kernels *kernels;
    const vptq_search_kernels *search;
    vptq_pair_codebooks pair; /* of one codebook where there is no residual one */
    vptq_arena arena;         /* what pair points to */
};

/* Fills the rest of pair where pairs are tried or choices kept locally; pair.main is there.
 * cpu_pairs.c */
vptq_status vptq_pairs_open(vptq_dev *dev, vptq_search_index *f, vptq_err *err);

/* Whether the nearest main centroid is taken, and nothing else. */
static inline bool vptq_is_greedy(const vptq_codebooks *b)
{
    return !b->k_res || b->beam == 1 || b->k == 1;
}

/* Floats that vptq_search needs for one thread. */
size_t vptq_search_index_work(const vptq_search_index *f);

/* Choices for n vectors, by one thread; answers depend on each vector alone. */
void vptq_search(const vptq_search_index *f, size_t n, const float *x, bool keep, float *work,
                 uint32_t *idx, uint32_t *idx_res);

/* q [n, v] = what the choices stand for. */
void vptq_decode(const vptq_search_index *f, size_t n, const uint32_t *idx,
                 const uint32_t *idx_res, float *q);

#endif
