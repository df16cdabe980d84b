/* Internal: inner loops of uniform quantization on the cpu backend, one set per SIMD level
 * (uniform_simd.c). */
#ifndef VPTQ_BACKEND_CPU_UNIFORM_H
#define VPTQ_BACKEND_CPU_UNIFORM_H

#include <stddef.h>

#include "lib/backend/cpu/codebook.h"

/* VPTQ_PANEL rows and how they are quantized. */
typedef struct vptq_uniform_panel {
    vptq_dtype storage;
    float max;                                 /* largest code */
    float scale[VPTQ_PANEL], zero[VPTQ_PANEL]; /* zero points as floats */
} vptq_uniform_panel;

typedef struct vptq_uniform_kernels {
    /* lo = min(lo, z), hi = max(hi, z) of VPTQ_PANEL rows; NaN is ignored. */
    void (*widen)(const float *z, float *lo, float *hi);
    /* The codes of a column of the panel, as floats, and what a reader decodes them to. */
    void (*quantize)(const vptq_uniform_panel *p, const float *z, float *code, float *d);
} vptq_uniform_kernels;

VPTQ_SIMD_TABLES(vptq_uniform_kernels, vptq_uniform_kernels);

static inline const vptq_uniform_kernels *vptq_uniform_kernels_get(vptq_simd simd)
{
    return VPTQ_SIMD_SELECT(simd, vptq_uniform_kernels);
}

#endif
