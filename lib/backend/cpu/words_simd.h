/* Internal: transposes words of 32 bits with AVX-512; for code that is compiled for it by
 * attributes. */
#ifndef VPTQ_BACKEND_CPU_WORDS_SIMD_H
#define VPTQ_BACKEND_CPU_WORDS_SIMD_H

#include <immintrin.h>
#include <stddef.h>

/* Transposes [16, 16] words of 32 bits in registers: within blocks of 4 x 4, then the blocks.
 */
__attribute__((target("avx512f"))) static inline void vptq_transpose_words(__m512i r[16])
{
    __m512i s[16];
    for (size_t i = 0; i < 16; i += 4) {
        const __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]),
                      b = _mm512_unpackhi_epi32(r[i], r[i + 1]),
                      c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]),
                      d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
        s[i] = _mm512_unpacklo_epi64(a, c);
        s[i + 1] = _mm512_unpackhi_epi64(a, c);
        s[i + 2] = _mm512_unpacklo_epi64(b, d);
        s[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    for (size_t i = 0; i < 4; i++) {
        const __m512i a = _mm512_shuffle_i32x4(s[i], s[i + 4], 0x88),
                      b = _mm512_shuffle_i32x4(s[i], s[i + 4], 0xdd),
                      c = _mm512_shuffle_i32x4(s[i + 8], s[i + 12], 0x88),
                      d = _mm512_shuffle_i32x4(s[i + 8], s[i + 12], 0xdd);
        r[i] = _mm512_shuffle_i32x4(a, c, 0x88);
        r[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
        r[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
}

#endif
