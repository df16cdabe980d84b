/* Checks, counts and decodes uniformly quantized matrices. */
#include "lib/base/uniform.h"

#include <float.h>
#include <math.h>
#include <string.h>

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

/* ---- decoding ---- */

/* Eight codes fill `bits` bytes, the first in the lowest bits; n codes of them. */
static inline __attribute__((always_inline)) void
unpack_eight(const uint8_t *from, unsigned bits, size_t bytes, size_t n, uint8_t *codes)
{
    uint64_t all = 0;
    memcpy(&all, from, bytes);
    for (size_t i = 0; i < n; i++)
        codes[i] = (uint8_t)(all >> i * bits & ((1U << bits) - 1));
}

static inline __attribute__((always_inline)) void
unpack_eights(const uint8_t *from, unsigned bits, size_t eights, uint8_t *codes)
{
    for (size_t i = 0; i < eights; i++)
        unpack_eight(from + i * bits, bits, bits, 8, codes + i * 8);
}

void vptq_uniform_unpack(const uint8_t *from, unsigned bits, size_t n, uint8_t *codes)
{
    const size_t eights = n / 8, rest = n % 8;
    if (bits == 8)
        memcpy(codes, from, n);
    else if (bits == 2) /* loops with constants */
        unpack_eights(from, 2, eights, codes);
    else if (bits == 3)
        unpack_eights(from, 3, eights, codes);
    else if (bits == 4)
        unpack_eights(from, 4, eights, codes);
    else
        unpack_eights(from, bits, eights, codes);
    if (rest && bits != 8)
        unpack_eight(from + eights * bits, bits, (rest * bits + 7) / 8, rest,
                     codes + eights * 8);
}

enum { PIECE = 512 }; /* columns that are unpacked at a time */

/* dst[c] = column first + c of row r for c < n <= PIECE. */
static void read_piece(const vptq_uniform *u, size_t r, size_t first, size_t n, float *dst)
{
    const float *scales = u->scales + r * vptq_uniform_groups(&u->shape);
    uint8_t codes[PIECE];
    vptq_uniform_unpack(vptq_uniform_codes_at(u, r, first), u->shape.bits, n, codes);
    for (size_t c = 0; u->groups && c < n; c++) {
        const size_t g = (size_t)u->groups[first + c];
        dst[c] = (float)(codes[c] - vptq_uniform_zero(u, r, g)) * scales[g];
    }
    for (size_t c = 0, end, g; !u->groups && c < n; c = end) {
        g = (first + c) / u->shape.group_size;
        end = (g + 1) * u->shape.group_size - first;
        end = end < n ? end : n;
        const int zero = vptq_uniform_zero(u, r, g);
        const float scale = scales[g];
        for (size_t i = c; i < end; i++)
            dst[i] = (float)(codes[i] - zero) * scale;
    }
}

void vptq_uniform_read(const vptq_uniform *u, size_t r0, size_t n, float *dst)
{
    const size_t in = u->shape.in;
    for (size_t r = r0; r < r0 + n; r++, dst += in)
        for (size_t c = 0; c < in; c += PIECE)
            read_piece(u, r, c, in - c < PIECE ? in - c : PIECE, dst + c);
}
