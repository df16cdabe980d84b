/* Checks, counts and decodes uniformly quantized matrices. */
#include "lib/base/uniform.h"

#include <float.h>
#include <math.h>

#include "lib/base/half.h"

enum { STORED_BITS = 16, WORD_BITS = 32 };

vptq_status vptq_uniform_shape_check(const vptq_uniform_shape *s, vptq_err *err)
{
    if (!s->out || !s->in || s->out > INT32_MAX || s->in > INT32_MAX)
        return vptq_fail(err, VPTQ_E_SHAPE,
                         "a matrix of %u x %u (expected at least one row and one column)",
                         s->out, s->in);
    if (s->bits < VPTQ_UNIFORM_MIN_BITS || s->bits > VPTQ_UNIFORM_MAX_BITS)
        return vptq_fail(err, VPTQ_E_SHAPE, "codes of %u bits are not in %d..%d", s->bits,
                         VPTQ_UNIFORM_MIN_BITS, VPTQ_UNIFORM_MAX_BITS);
    if (!s->group_size || s->group_size > s->in)
        return vptq_fail(err, VPTQ_E_SHAPE, "groups of %u columns are not in 1..%u",
                         s->group_size, s->in);
    return VPTQ_OK;
}

vptq_vq_bits vptq_uniform_count_bits(const vptq_uniform_shape *s)
{
    const uint64_t groups = vptq_uniform_groups(s);
    vptq_vq_bits b = {.indices = (uint64_t)s->out * vptq_uniform_row_words(s) * WORD_BITS,
                      .norm = s->out * groups * STORED_BITS,
                      .perm = s->has_groups ? (uint64_t)s->in * WORD_BITS : 0};
    if (s->has_zeros)
        b.norm += vptq_bits_words(s->out, s->bits) * groups * WORD_BITS;
    b.total = b.indices + b.norm + b.perm;
    b.per_weight = (double)b.total / ((double)s->out * (double)s->in);
    return b;
}

/* NaN becomes 0. */
static float clamp(float x, float max)
{
    const float low = x > 0 ? x : 0;
    return low < max ? low : max;
}

void vptq_uniform_grid(uint32_t bits, bool symmetric, vptq_dtype storage, float lo, float hi,
                       float *scale, uint8_t *zero)
{
    const float max = (float)((1U << bits) - 1);
    if (symmetric) {
        hi = hi > -lo ? hi : -lo;
        lo = -hi;
    }
    *scale = vptq_round_to(storage, (hi - lo) / max);
    if (*scale <= 0)
        *scale = storage == VPTQ_F16 ? 0x1p-14F : FLT_MIN;
    *zero = (uint8_t)(symmetric ? (float)(1U << (bits - 1)) : clamp(rintf(-lo / *scale), max));
}

void vptq_uniform_read(const vptq_uniform *u, size_t r0, size_t n, float *dst)
{
    const vptq_uniform_shape *s = &u->shape;
    const size_t groups = vptq_uniform_groups(s), words = vptq_uniform_row_words(s);
    const int middle = 1 << (s->bits - 1);
    for (size_t r = r0; r < r0 + n; r++, dst += s->in) {
        const uint32_t *row = u->codes + r * words;
        const float *scales = u->scales + r * groups;
        const uint8_t *zeros = u->zeros ? u->zeros + r * groups : NULL;
        for (size_t c = 0; c < s->in; c++) {
            const size_t g = u->groups ? (size_t)u->groups[c] : c / s->group_size;
            const int code = (int)vptq_bits_get(row, c, s->bits);
            dst[c] = (float)(code - (zeros ? zeros[g] : middle)) * scales[g];
        }
    }
}
