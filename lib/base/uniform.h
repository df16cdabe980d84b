/* Internal: one uniformly quantized matrix in memory: `lib/uniform` produces it, files of the
 * compressed-tensors layout hold it (formats/hf/compressed.h), and models read it.
 *
 * W is [out, in].  A column c belongs to group g = groups[c], or c / group_size without them;
 * the columns of a group share one scale and one zero point in every row:
 *
 *     W[r][c] = (code[r][c] - zero[r][g]) * scale[r][g]
 *
 * The difference is exact; the product is rounded to float, and readers round it to the type of
 * the scales. */
#ifndef VPTQ_BASE_UNIFORM_H
#define VPTQ_BASE_UNIFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"
#include "lib/base/vq.h"

enum { VPTQ_UNIFORM_MIN_BITS = 1, VPTQ_UNIFORM_MAX_BITS = 8 };

typedef struct vptq_uniform_shape {
    uint32_t out, in;
    uint32_t bits;       /* of a code, 1 to 8 */
    uint32_t group_size; /* columns of a group, 1 to in; the last group may have fewer */
    bool has_zeros;      /* zero points are stored; otherwise all are 2^(bits - 1) */
    bool has_groups;     /* the group of every column is stored */
} vptq_uniform_shape;

typedef struct vptq_uniform {
    vptq_uniform_shape shape;
    const uint32_t *codes; /* [out][row words]: code c of a row in bits [c * bits, (c + 1) *
                              bits) of its words, lowest first */
    const float *scales;   /* [out][groups]; values exact in the storage type */
    const uint8_t *zeros;  /* [out][groups] or NULL */
    const int32_t *groups; /* [in] or NULL */
} vptq_uniform;

static inline uint32_t vptq_uniform_groups(const vptq_uniform_shape *s)
{
    return (s->in + s->group_size - 1) / s->group_size;
}

static inline size_t vptq_uniform_row_words(const vptq_uniform_shape *s)
{
    return vptq_bits_words(s->in, s->bits);
}

/* VPTQ_E_SHAPE naming the first broken rule: out and in at least 1, bits and group_size in
 * their ranges. */
vptq_status vptq_uniform_shape_check(const vptq_uniform_shape *s,
                                     vptq_err *err) VPTQ_MUST_CHECK;

/* Every stored bit, padding included: codes as `indices`, scales (16 bits) and zero points
 * (those of a group packed into whole words) as `norm`, the groups of columns (32 bits) as
 * `perm`. */
vptq_vq_bits vptq_uniform_count_bits(const vptq_uniform_shape *s);

/* Scale and zero point of codes of `bits` bits for numbers from lo <= 0 to hi >= 0, in float
 * with halves rounded to even (docs/methods.md): the range divided into 2^bits - 1 steps, the
 * scale rounded to the storage type and positive. */
void vptq_uniform_grid(uint32_t bits, bool symmetric, vptq_dtype storage, float lo, float hi,
                       float *scale, uint8_t *zero);

/* Returns the byte at which code `first` of row r begins; first is a multiple of 8. */
static inline const uint8_t *vptq_uniform_codes_at(const vptq_uniform *u, size_t r,
                                                   size_t first)
{
    return (const uint8_t *)(u->codes + r * vptq_uniform_row_words(&u->shape)) +
           first / 8 * u->shape.bits;
}

/* codes[i] = code i < n of those that begin at byte `from`.  Reads only bytes that hold them.
 */
void vptq_uniform_unpack(const uint8_t *from, unsigned bits, size_t n, uint8_t *codes);

static inline int vptq_uniform_zero(const vptq_uniform *u, size_t r, size_t group)
{
    const size_t groups = vptq_uniform_groups(&u->shape);
    return u->zeros ? u->zeros[r * groups + group] : 1 << (u->shape.bits - 1);
}

/* dst [n, in] = rows [r0, r0 + n), before rounding to the type of the scales.  Thread safe. */
void vptq_uniform_read(const vptq_uniform *u, size_t r0, size_t n, float *dst);

#endif
