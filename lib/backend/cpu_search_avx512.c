#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 16, BOTH = 2 };
typedef __m512 vf;

static inline vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void vf_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline vf vf_select_greater(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x);
}

static inline vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

static inline uint32_t vf_at_least(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}

static inline uint32_t vf_greater(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}

/* No branch on what was found: it could not be predicted. */
static inline size_t vf_append(uint32_t *list, float *score, size_t n, vf s, vf least,
                               uint32_t first)
{
    const __m512i iota =
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __mmask16 hit = _mm512_cmp_ps_mask(s, least, _CMP_GE_OQ);
    const __m512i here = _mm512_add_epi32(iota, _mm512_set1_epi32((int)first));
    _mm512_storeu_si512(list + n, _mm512_maskz_compress_epi32(hit, here));
    if (score)
        _mm512_storeu_ps(score + n, _mm512_maskz_compress_ps(hit, s));
    return n + (size_t)__builtin_popcount(hit);
}

#include "lib/backend/cpu_cluster_body.h"
#include "lib/backend/cpu_search_body.h"

const vptq_search_kernels vptq_search_kernels_avx512 = {search, search_cluster, search_main,
                                                        around};
