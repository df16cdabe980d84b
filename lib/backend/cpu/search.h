/* Internal: search indexes, for the ops that search codebooks (search.c, columns.c, pairs.c).
 */
#ifndef VPTQ_BACKEND_CPU_SEARCH_H
#define VPTQ_BACKEND_CPU_SEARCH_H

#include "lib/backend/cpu/codebook.h"

struct vptq_search_index {
    vptq_codebooks codebooks;
    const vptq_nearest_kernels *kernels;
    const vptq_search_kernels *search;
    vptq_pair_codebooks pair; /* without residual codebook, only pair.main is used */
    vptq_arena arena;         /* owns what pair points to */
};

/* Completes pair, which has only pair.main, for searches of pairs and local ones (pairs.c). */
vptq_status vptq_pairs_open(vptq_dev *dev, vptq_search_index *f, vptq_err *err);

/* Whether the search takes the nearest main centroid and tries no other. */
static inline bool vptq_is_greedy(const vptq_codebooks *b)
{
    return !b->k_res || b->beam == 1 || b->k == 1;
}

/* Work floats that vptq_search needs for one thread. */
size_t vptq_search_index_work(const vptq_search_index *f);

/* Chooses for n vectors on the calling thread; a choice depends on its vector alone. */
void vptq_search(const vptq_search_index *f, size_t n, const float *x, bool keep, float *work,
                 uint32_t *idx, uint32_t *idx_res);

/* Decodes choices into q [n, v]. */
void vptq_decode(const vptq_codebooks *b, size_t n, const uint32_t *idx,
                 const uint32_t *idx_res, float *q);

#endif
