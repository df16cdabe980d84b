#include "lib/backend/cpu/math.h"

const vptq_cpu_math *vptq_cpu_math_get(vptq_simd simd)
{
#if defined(__x86_64__)
    if (simd == VPTQ_SIMD_AVX512)
        return &vptq_cpu_math_avx512;
    if (simd == VPTQ_SIMD_AVX2)
        return &vptq_cpu_math_avx2;
#endif
    (void)simd;
    return &vptq_cpu_math_none;
}
