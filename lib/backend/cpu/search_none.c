/* Four lanes that the compiler keeps in one register of whatever machine it builds for. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 4, BOTH = 1 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t lane_mask __attribute__((vector_size(16)));

static inline vf vf_set1(float x)
{
    return (vf){x, x, x, x};
}

static inline vf vf_load(const float *p)
{
    vf a;
    memcpy(&a, p, sizeof a);
    return a;
}

static inline void vf_store(float *p, vf a)
{
    memcpy(p, &a, sizeof a);
}

static inline vf vf_add(vf a, vf b)
{
    return a + b;
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return a * b + c;
}

static inline vf vf_select_greater(vf a, vf b, vf x, vf y)
{
    const lane_mask greater = a > b;
    return (vf)(((lane_mask)x & greater) | ((lane_mask)y & ~greater));
}

static inline vf vf_max(vf a, vf b)
{
    return vf_select_greater(a, b, a, b);
}

static inline vf vf_min(vf a, vf b)
{
    return vf_select_greater(b, a, a, b);
}

static inline uint32_t vf_at_least(vf a, vf b)
{
    uint32_t bits = 0;
    for (uint32_t l = 0; l < LANES; l++)
        bits |= (uint32_t)(a[l] >= b[l]) << l;
    return bits;
}

static inline uint32_t vf_greater(vf a, vf b)
{
    uint32_t bits = 0;
    for (uint32_t l = 0; l < LANES; l++)
        bits |= (uint32_t)(a[l] > b[l]) << l;
    return bits;
}

static inline size_t vf_append(uint32_t *list, float *score, size_t n, vf s, vf least,
                               uint32_t first)
{
    for (uint32_t l = 0; l < LANES; l++) {
        if (s[l] >= least[l]) {
            list[n] = first + l;
            if (score)
                score[n] = s[l];
            n++;
        }
    }
    return n;
}

static inline void screen_block(const vf *s, float factor, int16_t *y, size_t b)
{
    for (size_t l = 0; l < 16; l++) {
        const float value = s[l / LANES][l % LANES] * factor;
        y[b * 16 + l] = (int16_t)(value > INT16_MIN && value < INT16_MAX
                                      ? value + (value < 0 ? -0.5F : 0.5F)
                                      : INT16_MIN);
    }
}

static inline int32_t screen_sum(int8_t t, int16_t y, int32_t m)
{
    return y + ((t * m + 64) >> 7);
}

static inline int32_t screen_max(const int8_t *t, const int16_t *y, size_t n, int32_t m)
{
    int32_t most = INT32_MIN;
    for (size_t e = 0; e < n; e++) {
        const int32_t sum = screen_sum(t[e], y[e], m);
        most = sum > most ? sum : most;
    }
    return most;
}

static inline size_t screen_list(const int8_t *t, const int16_t *y, size_t n, int32_t m,
                                 int32_t least, uint32_t *list)
{
    size_t found = 0;
    for (size_t e = 0; e < n; e++) {
        if (y[e] > INT16_MIN && screen_sum(t[e], y[e], m) >= least)
            list[found++] = (uint32_t)e;
    }
    return found;
}

#include "lib/backend/cpu/cluster_body.h"
#include "lib/backend/cpu/search_body.h"

const vptq_search_kernels vptq_search_kernels_none = {search, search_cluster, search_main,
                                                      screen_row, around};
