/* The kernel of vptq_channel_kernels (channel.h).  Lanes are columns, so every level adds and
 * compares as `ref` does. */
#include "lib/base/simd.h"

#include "lib/backend/cpu/channel.h"

enum { LANES = SIMD_LANES, PARTS = VPTQ_CHANNELS / LANES };

/* vf_min and vf_max return their second argument where one is NaN, so NaN stays in |x| and
 * does not enter the range. */
static void add(size_t tokens, const float *x, size_t ldx, vptq_channel_panel *p)
{
    vd sum[PARTS];
    vf lo[PARTS], hi[PARTS];
    for (size_t i = 0; i < PARTS; i++) {
        sum[i] = vd_load(p->abs_sum + i * LANES);
        lo[i] = vf_load(p->min + i * LANES);
        hi[i] = vf_load(p->max + i * LANES);
    }
    for (size_t t = 0; t < tokens; t++, x += ldx)
#pragma GCC unroll 4
        for (size_t i = 0; i < PARTS; i++) {
            const vf v = vf_load(x + i * LANES);
            sum[i] = vd_add(sum[i], vf_max(v, vf_sub(vf_set1(0), v)));
            lo[i] = vf_min(v, lo[i]);
            hi[i] = vf_max(v, hi[i]);
        }
    for (size_t i = 0; i < PARTS; i++) {
        vd_store(p->abs_sum + i * LANES, sum[i]);
        vf_store(p->min + i * LANES, lo[i]);
        vf_store(p->max + i * LANES, hi[i]);
    }
}

const vptq_channel_kernels VPTQ_SIMD_SYMBOL(vptq_channel_kernels) = {add};
