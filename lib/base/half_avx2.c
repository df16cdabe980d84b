#include "lib/base/half_simd.h"

#include <immintrin.h>

#include "lib/base/half.h"

void vptq_f16_to_f32_avx2(const uint16_t *src, float *dst, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(src + i))));
    for (; i < n; i++)
        vptq_store_f32(dst, i, vptq_f16_to_f32(vptq_load_u16(src, i)));
}

void vptq_f32_to_f16_avx2(const float *src, uint16_t *dst, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(dst + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++)
        vptq_store_u16(dst, i, vptq_f32_to_f16(vptq_load_f32(src, i)));
}
