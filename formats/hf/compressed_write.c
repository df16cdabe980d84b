/* Makes the tensors of a matrix in the compressed-tensors layout. */
#include <math.h>
#include <string.h>

#include "formats/hf/compressed_internal.h"
#include "lib/base/bits.h"
#include "lib/base/half.h"

enum { BYTE_BITS = 8 };

/* ---- matrices that cannot be written ---- */

static vptq_status refuse(const vptq_compressed_matrix *m, const char *why, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                     "layer '%s' cannot be written in the compressed-tensors layout: %s",
                     m->name, why);
}

vptq_status vptq_compressed_check_writable(const vptq_compressed_matrix *m, vptq_err *err)
{
    const vptq_uniform_shape *s = &m->u.shape;
    char why[128];
    if (vptq_uniform_shape_check(s, err))
        return vptq_err_context(err, "layer '%s'", m->name);
    if (m->storage != VPTQ_F16 && m->storage != VPTQ_BF16)
        return refuse(m, "its scales are neither F16 nor BF16", err);
    if (s->bits < VPTQ_COMPRESSED_MIN_BITS)
        return refuse(m, "its codes have 1 bit", err);
    if (!m->ragged && s->in % s->group_size) {
        snprintf(why, sizeof why, "groups of %u columns do not divide %u columns",
                 (unsigned)s->group_size, (unsigned)s->in);
        return refuse(m, why, err);
    }
    if (m->activation_bits && m->activation_bits != VPTQ_COMPRESSED_ACTIVATION_BITS) {
        snprintf(why, sizeof why, "activations of %u bits are not supported",
                 (unsigned)m->activation_bits);
        return refuse(m, why, err);
    }
    if (m->activation_bits &&
        (s->bits != BYTE_BITS || s->group_size < s->in || m->u.zeros || m->u.groups))
        return refuse(m,
                      "8-bit activations need codes of 8 bits without zero points and one "
                      "group per row",
                      err);
    return VPTQ_OK;
}

/* ---- tensors ---- */

typedef struct matrix_writer {
    const vptq_compressed_matrix *m;
    vptq_arena *arena;
    vptq_tensor *list;
    size_t *count;
    vptq_err *err;
} matrix_writer;

/* Adds a [rows, cols] matrix, or with cols 0 a vector. */
static vptq_status add_part(const matrix_writer *w, const char *part, vptq_dtype type,
                            uint64_t rows, uint64_t cols, const void *data)
{
    vptq_tensor t = {.type = type,
                     .dims = cols ? 2 : 1,
                     .shape = {rows, cols},
                     .data = data,
                     .round_to = VPTQ_F32,
                     .file = ""};
    t.name = vptq_arena_printf(w->arena, w->err, "%s.%s", w->m->name, part);
    if (!t.name)
        return VPTQ_E_NOMEM;
    t.bytes = (size_t)(rows * (cols ? cols : 1)) * vptq_dtype_get(type)->bytes;
    w->list[(*w->count)++] = t;
    return VPTQ_OK;
}

/* Clears the bits after the last code of every row, in a copy if any are set. */
static vptq_status clear_padding(const matrix_writer *w, const uint32_t **codes)
{
    const vptq_uniform_shape *s = &w->m->u.shape;
    const size_t row_words = vptq_uniform_row_words(s), words = s->out * row_words;
    const unsigned used = (unsigned)((uint64_t)s->in * s->bits % VPTQ_COMPRESSED_WORD_BITS);
    bool dirty = false;
    *codes = w->m->u.codes;
    for (size_t r = 0; used && r < s->out && !dirty; r++)
        dirty = w->m->u.codes[(r + 1) * row_words - 1] >> used != 0;
    if (!dirty)
        return VPTQ_OK;
    uint32_t *clean = vptq_arena_alloc(w->arena, words, sizeof *clean, w->err);
    if (!clean)
        return VPTQ_E_NOMEM;
    memcpy(clean, w->m->u.codes, words * sizeof *clean);
    for (size_t r = 0; r < s->out; r++)
        clean[(r + 1) * row_words - 1] &= (UINT32_C(1) << used) - 1;
    *codes = clean;
    return VPTQ_OK;
}

static vptq_status add_packed(const matrix_writer *w)
{
    const vptq_uniform_shape *s = &w->m->u.shape;
    const uint32_t *codes;
    int64_t *shape = vptq_arena_alloc(w->arena, 2, sizeof *shape, w->err);
    if (!shape)
        return VPTQ_E_NOMEM;
    shape[0] = s->out;
    shape[1] = s->in;
    VPTQ_CHECK(clear_padding(w, &codes));
    VPTQ_CHECK(
        add_part(w, "weight_packed", VPTQ_I32, s->out, vptq_uniform_row_words(s), codes));
    return add_part(w, "weight_shape", VPTQ_I64, 2, 0, shape);
}

/* Adds the codes as signed bytes. */
static vptq_status add_bytes(const matrix_writer *w)
{
    const vptq_uniform_shape *s = &w->m->u.shape;
    const size_t row_bytes = vptq_uniform_row_words(s) * sizeof(uint32_t);
    const uint8_t *codes = (const uint8_t *)w->m->u.codes;
    uint8_t *bytes = vptq_arena_alloc(w->arena, s->out, s->in, w->err);
    if (!bytes)
        return VPTQ_E_NOMEM;
    for (size_t r = 0; r < s->out; r++)
        for (size_t c = 0; c < s->in; c++)
            bytes[r * s->in + c] =
                (uint8_t)(codes[r * row_bytes + c] ^ VPTQ_COMPRESSED_BYTE_ZERO);
    return add_part(w, "weight", VPTQ_I8, s->out, s->in, bytes);
}

static vptq_status add_scales(const matrix_writer *w)
{
    const vptq_compressed_matrix *m = w->m;
    const size_t groups = vptq_uniform_groups(&m->u.shape), n = m->u.shape.out * groups;
    uint16_t *stored = vptq_arena_alloc(w->arena, n, sizeof *stored, w->err);
    if (!stored)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const float x = m->u.scales[i];
        if (!isfinite(x) || !(x > 0) || fabsf(vptq_round_to(m->storage, x) - x) > 0)
            return vptq_fail(w->err, VPTQ_E_NUMERIC,
                             "layer '%s': row %zu, group %zu: scale %g, expected a positive "
                             "number that is exact in %s",
                             m->name, i / groups, i % groups, (double)x,
                             vptq_dtype_get(m->storage)->name);
    }
    if (m->storage == VPTQ_F16)
        vptq_f32_to_f16_n(m->u.scales, stored, n);
    else
        vptq_f32_to_bf16_n(m->u.scales, stored, n);
    return add_part(w, "weight_scale", m->storage, m->u.shape.out, groups, stored);
}

/* Adds the zero points, packed along the rows: [words of out, groups]. */
static vptq_status add_zeros(const matrix_writer *w)
{
    const vptq_uniform_shape *s = &w->m->u.shape;
    const size_t groups = vptq_uniform_groups(s), rows = vptq_bits_words(s->out, s->bits);
    uint32_t *words = vptq_arena_zalloc(w->arena, rows * groups, sizeof *words, w->err);
    if (!words)
        return VPTQ_E_NOMEM;
    for (size_t r = 0; r < s->out; r++)
        for (size_t g = 0; g < groups; g++) {
            const size_t bit = r * s->bits, i = bit / VPTQ_COMPRESSED_WORD_BITS * groups + g;
            const uint8_t zero = w->m->u.zeros[r * groups + g];
            if (zero >> s->bits)
                return vptq_fail(w->err, VPTQ_E_NUMERIC,
                                 "layer '%s': row %zu, group %zu: zero point %u, expected less "
                                 "than %u",
                                 w->m->name, r, g, (unsigned)zero, 1U << s->bits);
            const uint64_t two = (uint64_t)zero << bit % VPTQ_COMPRESSED_WORD_BITS;
            words[i] |= (uint32_t)two;
            if (two >> VPTQ_COMPRESSED_WORD_BITS)
                words[i + groups] |= (uint32_t)(two >> VPTQ_COMPRESSED_WORD_BITS);
        }
    return add_part(w, "weight_zero_point", VPTQ_I32, rows, groups, words);
}

static vptq_status add_order(const matrix_writer *w)
{
    const vptq_uniform_shape *s = &w->m->u.shape;
    uint32_t uneven, columns;
    for (size_t c = 0; c < s->in; c++)
        VPTQ_BUG_IF(w->m->u.groups[c] < 0 ||
                    (uint32_t)w->m->u.groups[c] >= vptq_uniform_groups(s));
    VPTQ_CHECK(
        vptq_compressed_find_uneven(s, w->m->u.groups, w->arena, &uneven, &columns, w->err));
    if (uneven < vptq_uniform_groups(s))
        return refuse(w->m, "its groups have different numbers of columns", w->err);
    return add_part(w, "weight_g_idx", VPTQ_I32, s->in, 0, w->m->u.groups);
}

vptq_status vptq_compressed_tensors(const vptq_compressed_matrix *m, vptq_arena *arena,
                                    vptq_tensor *list, size_t *count, vptq_err *err)
{
    const matrix_writer w = {.m = m, .arena = arena, .list = list, .count = count, .err = err};
    VPTQ_CHECK(vptq_compressed_check_writable(m, err));
    VPTQ_CHECK(m->activation_bits ? add_bytes(&w) : add_packed(&w));
    VPTQ_CHECK(add_scales(&w));
    if (m->u.zeros)
        VPTQ_CHECK(add_zeros(&w));
    return m->u.groups ? add_order(&w) : VPTQ_OK;
}
