/* The kernels of aqlm_simd.h for one level of lib/base/simd.h. */
#include "lib/uniform/aqlm_simd.h"

#include <math.h>

#include "lib/base/simd.h"

enum { PARTS = 4 }; /* registers of entries at a time, so that their sums overlap */

static void insert(vptq_aqlm_picks *b, float loss, uint32_t node, uint32_t code)
{
    const float worst = b->n < b->max ? INFINITY : b->pick[b->n - 1].loss;
    if (!(loss < worst))
        return;
    size_t i = b->n < b->max ? b->n++ : b->n - 1;
    for (; i > 0 && b->pick[i - 1].loss > loss; i--)
        b->pick[i] = b->pick[i - 1];
    b->pick[i] = (vptq_aqlm_pick){loss, node, code};
}

static void insert_lanes(const vptq_aqlm_scan *s, uint32_t first, uint32_t hits, vf loss,
                         vptq_aqlm_picks *best)
{
    float lane[SIMD_LANES];
    vf_store(lane, loss);
    for (; hits; hits &= hits - 1) {
        const uint32_t l = (uint32_t)__builtin_ctz(hits);
        insert(best, lane[l], s->node, first + l);
    }
}

SIMD_INLINE void scan_entries(const vptq_aqlm_scan *s, uint32_t v, vptq_aqlm_picks *best)
{
    const vf base = vf_set1(s->base);
    for (uint32_t c = s->first; c < s->end; c += PARTS * SIMD_LANES) {
        vf sum[PARTS];
        for (uint32_t p = 0; p < PARTS; p++)
            sum[p] = vf_load(s->norms + c + p * SIMD_LANES);
        for (uint32_t e = 0; e < v; e++) {
            const vf y = vf_set1(s->y[e]);
            const float *column = s->columns + e * s->ld + c;
            for (uint32_t p = 0; p < PARTS; p++)
                sum[p] = vf_fma(y, vf_load(column + p * SIMD_LANES), sum[p]);
        }
        for (uint32_t p = 0; p < PARTS; p++) {
            const vf loss = vf_add(sum[p], base);
            const vf worst =
                vf_set1(best->n < best->max ? INFINITY : best->pick[best->n - 1].loss);
            const uint32_t hits = vf_greater(worst, loss);
            if (hits)
                insert_lanes(s, c + p * SIMD_LANES, hits, loss, best);
        }
    }
}

static void scan(const vptq_aqlm_scan *s, vptq_aqlm_picks *best)
{
    if (s->v == 8)
        scan_entries(s, 8, best);
    else if (s->v == 4)
        scan_entries(s, 4, best);
    else
        scan_entries(s, s->v, best);
}

static void norms(size_t ld, uint32_t v, const float *columns, const float *h, float *result)
{
    for (size_t c = 0; c < ld; c += SIMD_LANES) {
        vf sum = vf_set1(0);
        for (uint32_t i = 0; i < v; i++) {
            vf inner = vf_set1(0);
            for (uint32_t j = 0; j < v; j++)
                inner = vf_fma(vf_set1(h[i * v + j]), vf_load(columns + j * ld + c), inner);
            sum = vf_fma(inner, vf_load(columns + i * ld + c), sum);
        }
        vf_store(result + c, sum);
    }
}

static void add(size_t n, uint32_t v, const float *step, const float *h, size_t ld, float *g)
{
    for (size_t j = 0; j < n; j += SIMD_LANES) {
        vf sum = vf_load(g + j);
        for (uint32_t e = 0; e < v; e++)
            sum = vf_fma(vf_set1(step[e]), vf_load(h + e * ld + j), sum);
        vf_store(g + j, sum);
    }
}

const vptq_aqlm_kernels VPTQ_SIMD_SYMBOL(vptq_aqlm_kernels) = {scan, norms, add};
