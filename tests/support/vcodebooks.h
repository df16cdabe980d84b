/* Random codebooks and vectors to search in them, for tests of the ops that search. */
#ifndef VPTQ_TESTS_SUPPORT_VCODEBOOKS_H
#define VPTQ_TESTS_SUPPORT_VCODEBOOKS_H

#include "lib/backend/backend.h"

typedef struct vcodebooks {
    size_t n;
    vptq_codebooks codebooks; /* points into c and r */
    float *x;                 /* [n, v] */
    float *c,
        *r; /* [k, v]; [k_res, v] with half the length, NULL without a residual codebook */
} vcodebooks;

vcodebooks vcodebooks_make(size_t n, uint32_t v, uint32_t k, uint32_t k_res, uint32_t beam);
void vcodebooks_free(vcodebooks *b);

/* The caller closes it with the op search_index_close. */
vptq_search_index *vcodebooks_index(const vptq_device *dev, const vptq_codebooks *codebooks);

/* Returns |x - (c + r)|^2, where c + r is rounded to float as in decoding. */
double vcodebooks_distance(const vptq_codebooks *b, const float *x, uint32_t main,
                           uint32_t res);

#endif
