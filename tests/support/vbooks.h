/* Random books, with vectors to be searched in them, for tests of the rows that search. */
#ifndef VPTQ_TESTS_SUPPORT_VBOOKS_H
#define VPTQ_TESTS_SUPPORT_VBOOKS_H

#include "lib/backend/backend.h"

typedef struct vbooks {
    size_t n;
    vptq_books books; /* points into c and r */
    float *x;         /* [n, v] */
    float *c, *r;     /* [k, v], [k_res, v] half as long; r NULL without residual book */
} vbooks;

vbooks vbooks_make(size_t n, uint32_t v, uint32_t k, uint32_t k_res, uint32_t beam);
void vbooks_free(vbooks *b);

/* Closed by the caller with the row finder_close. */
vptq_finder *vbooks_finder(const vptq_device *dev, const vptq_books *books);

/* |x - (c + r)|^2 to the floats that the choice decodes to. */
double vbooks_distance(const vptq_books *b, const float *x, uint32_t main, uint32_t res);

#endif
