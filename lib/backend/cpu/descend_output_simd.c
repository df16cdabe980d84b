/* The kernels of vptq_output_kernels.  The loop over all centroids keeps only the least cost,
 * lane by lane, and the chunk it came from; that chunk is then computed again, to the same
 * bits, to find the first centroid with that cost. */
#include <math.h>

#include "lib/backend/cpu/descend_output.h"
#include "lib/backend/dev.h"
#include "lib/base/simd.h"

enum {
    LANES = SIMD_LANES,
    PARTS = VPTQ_CODEBOOK_LANES / LANES, /* registers for one cost per centroid of a block */
    WIDE = VPTQ_SIMD_LEVEL == 2 ? 2 : 1, /* blocks at a time */
    SETS = VPTQ_OUTPUT_SETS,
    CHUNK = 16, /* blocks */
    AHEAD = 16  /* blocks between a load of forms and its prefetch */
};

static void forms_of(const vptq_codebook *b, const float *k, float *form)
{
    const size_t v = b->v;
    for (size_t i = 0; i < b->blocks * VPTQ_CODEBOOK_LANES; i += LANES) {
        const float *norm = b->data + i / VPTQ_CODEBOOK_LANES * (1 + v) * VPTQ_CODEBOOK_LANES +
                            i % VPTQ_CODEBOOK_LANES;
        const float *c = norm + VPTQ_CODEBOOK_LANES;
        vf sum = vf_set1(0);
        for (size_t e = 0; e < v; e++) {
            const vf ce = vf_load(c + e * VPTQ_CODEBOOK_LANES);
            vf product = vf_mul(vf_set1(0.5F * k[e * v + e]), ce);
            for (size_t f = 0; f < e; f++)
                product = vf_fma(vf_set1(k[e * v + f]), vf_load(c + f * VPTQ_CODEBOOK_LANES),
                                 product);
            sum = vf_fma(product, ce, sum);
        }
        const vf last = vf_set1(-INFINITY); /* the norm after the last centroid */
        vf_store(form + i, vf_select_equal(vf_load(norm), last, vf_set1(INFINITY), sum));
    }
}

/* Costs of the centroids of `wide` blocks, the first of them number `block`, for n vectors. */
SIMD_INLINE void costs_of(const vptq_codebook *b, size_t block, size_t wide, size_t v, size_t n,
                          float h, const float *const *form, const float *w,
                          vf cost[SETS][WIDE * PARTS])
{
    const size_t stride = (1 + v) * VPTQ_CODEBOOK_LANES;
    const float *c = b->data + block * stride;
    SIMD_KEEP_IN_LOOP(w, c);
    for (size_t s = 0; s < n; s++)
        for (size_t p = 0; p < wide * PARTS; p++)
            cost[s][p] =
                vf_mul(vf_set1(h), vf_load(form[s] + block * VPTQ_CODEBOOK_LANES + p * LANES));
#pragma GCC unroll 16
    for (size_t e = 0; e < v; e++) {
        vf ce[WIDE * PARTS];
        for (size_t p = 0; p < wide * PARTS; p++)
            ce[p] = vf_load(c + p / PARTS * stride + (1 + e) * VPTQ_CODEBOOK_LANES +
                            p % PARTS * LANES);
        for (size_t s = 0; s < n; s++) {
            const vf we = vf_set1(w[s * v + e]);
            for (size_t p = 0; p < wide * PARTS; p++)
                cost[s][p] = vf_fma(ce[p], we, cost[s][p]);
        }
    }
}

/* least = min(least, costs of `wide` blocks), lane by lane. */
SIMD_INLINE void least_of(const vptq_codebook *b, size_t block, size_t wide, size_t v, size_t n,
                          float h, const float *const *form, const float *w, vf least[SETS])
{
    vf cost[SETS][WIDE * PARTS];
    for (size_t s = 0; s < n; s++) /* the forms of all units do not fit into L2 */
        for (size_t i = 0; i < wide; i++)
            __builtin_prefetch(form[s] + (block + AHEAD + i) * VPTQ_CODEBOOK_LANES);
    costs_of(b, block, wide, v, n, h, form, w, cost);
    for (size_t s = 0; s < n; s++)
        for (size_t p = 0; p < wide * PARTS; p++)
            least[s] = vf_min(cost[s][p], least[s]);
}

/* Sets *idx to the first centroid with the least cost, from the least cost of each lane and
 * the first block of its chunk, if it is less than the old one. */
SIMD_INLINE void settle(const vptq_codebook *b, size_t v, float h, const float *form,
                        const float *w, vf best, vf where, uint32_t *idx)
{
    vf cost[SETS][WIDE * PARTS];
    float lane[VPTQ_CODEBOOK_LANES], at[LANES], least = INFINITY, first = 0;
    costs_of(b, *idx / VPTQ_CODEBOOK_LANES, 1, v, 1, h, &form, w, cost);
    for (size_t p = 0; p < PARTS; p++)
        vf_store(lane + p * LANES, cost[0][p]);
    const float old = lane[*idx % VPTQ_CODEBOOK_LANES];
    vf_store(lane, best);
    vf_store(at, where);
    for (size_t l = 0; l < LANES; l++) {
        if (lane[l] < least || (lane[l] <= least && at[l] < first)) {
            least = lane[l];
            first = at[l];
        }
    }
    if (!(least < old))
        return;
    uint32_t hit = 0;
    for (size_t block = (size_t)first; !hit && block < b->blocks; block++) {
        costs_of(b, block, 1, v, 1, h, &form, w, cost);
        for (size_t p = 0; p < PARTS; p++)
            hit |= vf_equal(cost[0][p], vf_set1(least)) << p * LANES;
        if (hit)
            *idx = (uint32_t)(block * VPTQ_CODEBOOK_LANES) + (uint32_t)__builtin_ctz(hit);
    }
}

SIMD_INLINE void choose_some(const vptq_codebook *b, size_t v, size_t n, float h,
                             const float *const *form, const float *w, uint32_t *idx)
{
    vf best[SETS], where[SETS]; /* block numbers are small enough to be exact floats */
    for (size_t s = 0; s < n; s++) {
        best[s] = vf_set1(INFINITY);
        where[s] = vf_set1(0);
    }
    for (size_t first = 0; first < b->blocks; first += CHUNK) {
        const size_t end = first + CHUNK < b->blocks ? first + CHUNK : b->blocks;
        size_t block = first;
        vf least[SETS];
        for (size_t s = 0; s < n; s++)
            least[s] = vf_set1(INFINITY);
        for (; block + WIDE <= end; block += WIDE)
            least_of(b, block, WIDE, v, n, h, form, w, least);
        for (; block < end; block++)
            least_of(b, block, 1, v, n, h, form, w, least);
        for (size_t s = 0; s < n; s++) {
            where[s] = vf_select_greater(best[s], least[s], vf_set1((float)first), where[s]);
            best[s] = vf_min(least[s], best[s]);
        }
    }
    for (size_t s = 0; s < n; s++)
        settle(b, v, h, form[s], w + s * v, best[s], where[s], idx + s);
}

SIMD_INLINE void choose_all(const vptq_codebook *b, size_t v, size_t n, float h,
                            const float *const *form, const float *w, uint32_t *idx)
{
    size_t i = 0;
    for (; i + SETS <= n; i += SETS)
        choose_some(b, v, SETS, h, form + i, w + i * v, idx + i);
    for (; i + 2 <= n; i += 2)
        choose_some(b, v, 2, h, form + i, w + i * v, idx + i);
    for (; i < n; i++)
        choose_some(b, v, 1, h, form + i, w + i * v, idx + i);
}

static void choose(const vptq_codebook *b, size_t n, float h, const float *const *form,
                   const float *w, uint32_t *idx)
{
    VPTQ_WITH_V(b->v, choose_all(b, V, n, h, form, w, idx));
}

const vptq_output_kernels VPTQ_SIMD_SYMBOL(vptq_output_kernels) = {forms_of, choose};
