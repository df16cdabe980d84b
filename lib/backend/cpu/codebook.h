/* Codebooks laid out for the kernels (cpu_vq_kernels.h), and the kernels of a device. */
#ifndef VPTQ_BACKEND_CPU_CODEBOOK_H
#define VPTQ_BACKEND_CPU_CODEBOOK_H

#include "lib/backend/backend.h"
#include "lib/backend/cpu/vq_kernels.h"

static inline size_t vptq_round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

const vptq_vq_kernels *vptq_vq_kernels_of(const vptq_dev *dev);
const vptq_search_kernels *vptq_search_kernels_of(const vptq_dev *dev);

/* Floats of a laid-out codebook of k centroids. */
size_t vptq_codebook_floats(uint32_t v, uint32_t k);

/* Lays centroids c [k, v] into `data`, vptq_codebook_floats of them, 64-byte aligned. */
vptq_codebook vptq_codebook_lay(const vptq_dev *dev, uint32_t v, uint32_t k, const float *c,
                                float *data);

#endif
