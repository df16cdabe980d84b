#include "lib/base/half_simd.h"

#include <immintrin.h>

#include "lib/base/half.h"

void vptq_f16_to_f32_avx512(const uint16_t *src, float *dst, size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(dst + i,
                         _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(src + i))));
    for (; i < n; i++)
        vptq_store_f32(dst, i, vptq_f16_to_f32(vptq_load_u16(src, i)));
}

void vptq_f32_to_f16_avx512(const float *src, uint16_t *dst, size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(dst + i), _mm512_cvtps_ph(_mm512_loadu_ps(src + i),
                                                                  _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++)
        vptq_store_u16(dst, i, vptq_f32_to_f16(vptq_load_f32(src, i)));
}
