/* Internal: the inner loop of channel_range on the cpu backend, one per SIMD level
 * (channel_simd.c). */
#ifndef VPTQ_BACKEND_CPU_CHANNEL_H
#define VPTQ_BACKEND_CPU_CHANNEL_H

#include <stddef.h>

#include "lib/base/cpu.h"

enum { VPTQ_CHANNELS = 16 };

/* Statistics of VPTQ_CHANNELS columns. */
typedef struct vptq_channel_panel {
    double abs_sum[VPTQ_CHANNELS];
    float min[VPTQ_CHANNELS], max[VPTQ_CHANNELS];
} vptq_channel_panel;

typedef struct vptq_channel_kernels {
    /* Adds x [tokens, VPTQ_CHANNELS], token by token. */
    void (*add)(size_t tokens, const float *x, size_t ldx, vptq_channel_panel *p);
} vptq_channel_kernels;

VPTQ_SIMD_TABLES(vptq_channel_kernels, vptq_channel_kernels);

static inline const vptq_channel_kernels *vptq_channel_kernels_get(vptq_simd simd)
{
    return VPTQ_SIMD_SELECT(simd, vptq_channel_kernels);
}

#endif
