/* The ops of uniform quantization, one loop each. */
#include <math.h>
#include <string.h>

#include "lib/backend/ref/ref.h"
#include "lib/base/uniform.h"

/* NaN becomes 0. */
static float clamp(float x, float max)
{
    const float low = x > 0 ? x : 0;
    return low < max ? low : max;
}

vptq_status vptq_ref_uniform_range(vptq_dev *dev, const vptq_uniform_range_args *a,
                                   vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t r = 0; r < a->rows; r++) {
        float lo = 0, hi = 0;
        for (size_t t = 0; t < a->cols; t++) {
            const float z = a->z[t * a->ldz + r];
            lo = z < lo ? z : lo;
            hi = z > hi ? z : hi;
        }
        vptq_uniform_grid(a->bits, a->symmetric, a->storage, lo, hi, &a->scale[r], &a->zero[r]);
    }
    return VPTQ_OK;
}

/* ---- pruning ---- */

uint32_t vptq_ref_prune_key(float z, float u)
{
    enum { INFINITE = 0x7f800000 };
    const float score = z / u;
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    bits &= 0x7fffffff;
    return bits > INFINITE ? INFINITE + 1 : bits;
}

static uint32_t key_at(const vptq_prune_mask_args *a, size_t t, size_t r)
{
    return vptq_ref_prune_key(a->z[t * a->ldz + r], a->u[t * a->ldu + t]);
}

/* The key at position `rank`: digit by digit, from the keys that begin with those before. */
static uint32_t select_key(const vptq_prune_mask_args *a)
{
    uint32_t found = 0;
    size_t rank = a->rank;
    for (unsigned shift = 32; shift > 0;) {
        size_t count[256] = {0}, digit = 0;
        shift -= 8;
        for (size_t t = 0; t < a->cols; t++)
            for (size_t r = 0; r < a->rows; r++) {
                const uint32_t key = key_at(a, t, r);
                count[key >> shift & 255] += (uint64_t)(key ^ found) >> shift < 256;
            }
        for (; rank >= count[digit]; digit++)
            rank -= count[digit];
        found |= (uint32_t)digit << shift;
    }
    return found;
}

vptq_status vptq_ref_prune_mask(vptq_dev *dev, const vptq_prune_mask_args *a, vptq_err *err)
{
    const uint32_t most = select_key(a);
    (void)dev;
    (void)err;
    for (size_t t = 0; t < a->cols; t++)
        for (size_t r = 0; r < a->rows; r++)
            a->mask[t * a->ldm + r] = key_at(a, t, r) <= most;
    return VPTQ_OK;
}

unsigned vptq_ref_prune_smallest(const uint32_t *keys, uint32_t n, uint32_t m)
{
    unsigned smallest = 0;
    for (uint32_t i = 0; i < m; i++) {
        uint32_t before = 0;
        for (uint32_t k = 0; k < m; k++)
            before += keys[k] < keys[i] || (keys[k] == keys[i] && k < i);
        smallest |= (unsigned)(before < n) << i;
    }
    return smallest;
}

/* ---- column pass ---- */

/* Writes the code of element r of column t; returns what a reader decodes it to. */
static float quantize(const vptq_uniform_pass_args *a, size_t t, size_t r, bool pruned)
{
    const float z = a->z[t * a->ldz + r];
    if (!a->scale)
        return pruned ? 0 : z;
    const float scale = a->scale[r], zero = (float)a->zero[r];
    const float max = (float)((1U << a->bits) - 1);
    const float code = pruned ? zero : clamp(rintf(z / scale) + zero, max);
    a->codes[t * a->ldc + r] = (uint8_t)code;
    return pruned ? 0 : vptq_round_to(a->storage, (code - zero) * scale);
}

/* Bit i: column t + i of row r is pruned. */
static unsigned pruned_from(const vptq_uniform_pass_args *a, size_t t, size_t r)
{
    uint32_t keys[VPTQ_PRUNE_MAX_M];
    if (!a->prune_m)
        return a->mask && a->mask[t * a->ldm + r];
    for (uint32_t i = 0; i < a->prune_m; i++)
        keys[i] =
            vptq_ref_prune_key(a->z[(t + i) * a->ldz + r], a->u[(t + i) * a->ldu + t + i]);
    return vptq_ref_prune_smallest(keys, a->prune_n, a->prune_m);
}

static void pass_row(const vptq_uniform_pass_args *a, size_t r)
{
    const size_t step = a->prune_m ? a->prune_m : 1;
    unsigned pruned = 0;
    for (size_t t = 0; t < a->cols; t++, pruned >>= 1) {
        float *z = a->z + t * a->ldz + r;
        if (t % step == 0)
            pruned = pruned_from(a, t, r);
        const float d = quantize(a, t, r, pruned & 1);
        if (!a->u)
            continue;
        const float e = (*z - d) / a->u[t * a->ldu + t];
        a->err[t * a->lde + r] = e;
        for (size_t s = t + 1; s < a->cols; s++)
            a->z[s * a->ldz + r] -= e * a->u[t * a->ldu + s];
        if (!a->scale)
            *z = d;
    }
}

vptq_status vptq_ref_uniform_pass(vptq_dev *dev, const vptq_uniform_pass_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t r = 0; r < a->rows; r++)
        pass_row(a, r);
    return VPTQ_OK;
}
