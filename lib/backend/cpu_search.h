/* What the rows that search books share; for cpu_search.c and cpu_columns.c alone. */
#ifndef VPTQ_BACKEND_CPU_SEARCH_H
#define VPTQ_BACKEND_CPU_SEARCH_H

#include "lib/backend/cpu_book.h"

struct vptq_finder {
    vptq_books books;
    const vptq_vq_kernels *kernels;
    vptq_book main, res;
    float *data;        /* of both */
    int threads;        /* of the device */
    vptq_finder **slow; /* [threads] */
};

/* Choices for n vectors, by one thread; answers depend on each vector alone. */
void vptq_search(const vptq_finder *f, int thread, size_t n, const float *x, bool keep,
                 uint32_t *idx, uint32_t *idx_res);

/* q [n, v] = what the choices stand for. */
void vptq_decode(const vptq_finder *f, size_t n, const uint32_t *idx, const uint32_t *idx_res,
                 float *q);

#endif
