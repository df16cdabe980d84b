/* Internal to lib/uniform: the inner loops of AQLM's search over codes, one set per SIMD level
 * (aqlm_simd.c).  A codebook is stored by columns here: element e of entry c at columns[e * ld
 * + c]; ld is a multiple of VPTQ_AQLM_PAD, and the norms of entries after the last are
 * infinite.
 */
#ifndef VPTQ_UNIFORM_AQLM_SIMD_H
#define VPTQ_UNIFORM_AQLM_SIMD_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/cpu.h"

enum { VPTQ_AQLM_PAD = 64 };

/* The entries with the smallest losses, ascending, the first found before others as small. */
typedef struct vptq_aqlm_pick {
    float loss;
    uint32_t node, code;
} vptq_aqlm_pick;
typedef struct vptq_aqlm_picks {
    size_t n, max;
    vptq_aqlm_pick *pick; /* [max] */
} vptq_aqlm_picks;

/* Losses base + norm + y . entry of entries [first, end), multiples of VPTQ_AQLM_PAD. */
typedef struct vptq_aqlm_scan {
    uint32_t v, first, end, node;
    size_t ld;
    const float *columns, *norms;
    const float *y; /* [v] */
    float base;
} vptq_aqlm_scan;

typedef struct vptq_aqlm_kernels {
    void (*scan)(const vptq_aqlm_scan *s, vptq_aqlm_picks *best);
    /* norms[c] = entry c times h [v, v] times itself, for c < ld. */
    void (*norms)(size_t ld, uint32_t v, const float *columns, const float *h, float *norms);
    /* g[j] += sum over e of step[e] * h[e * ld + j] for j < n, a multiple of VPTQ_AQLM_PAD */
    void (*add)(size_t n, uint32_t v, const float *step, const float *h, size_t ld, float *g);
} vptq_aqlm_kernels;

VPTQ_SIMD_TABLES(vptq_aqlm_kernels, vptq_aqlm_kernels);

#endif
