#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 8, BOTH = 1 };
typedef __m256 vf;

static inline vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void vf_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline vf vf_select_greater(vf a, vf b, vf x, vf y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}

static inline vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

static inline uint32_t vf_at_least(vf a, vf b)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ));
}

static inline uint32_t vf_greater(vf a, vf b)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
}

static inline size_t vf_append(uint32_t *list, float *score, size_t n, vf s, vf least,
                               uint32_t first)
{
    float lane[LANES];
    vf_store(lane, s);
    for (uint32_t hit = vf_at_least(s, least); hit; hit &= hit - 1) {
        const uint32_t l = (uint32_t)__builtin_ctz(hit);
        list[n] = first + l;
        if (score)
            score[n] = lane[l];
        n++;
    }
    return n;
}

#include "lib/backend/cpu_cluster_body.h"
#include "lib/backend/cpu_search_body.h"

const vptq_search_kernels vptq_search_kernels_avx2 = {search, search_cluster, search_main,
                                                      around};
