/* Makes the tensors and the entries of matrices of additive codes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/vptq/additive.h"
#include "formats/vptq/packed.h"
#include "lib/base/grid.h"
#include "lib/base/half.h"

typedef struct matrix_writer {
    const vptq_additive_matrix *m;
    vptq_arena *arena;
    vptq_tensor *list;
    size_t *count;
    vptq_err *err;
} matrix_writer;

/* ---- JSON ---- */

static vptq_status no_memory(const char *name, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_NOMEM, "out of memory for the config entry of '%s'", name);
}

vptq_status vptq_additive_make_entry(const vptq_additive_matrix *m, json_t **entry,
                                     vptq_err *err)
{
    const vptq_additive_shape *s = &m->a.shape;
    json_t *bits = json_array();
    bool good = bits;
    for (uint32_t i = 0; good && i < s->stages; i++)
        good = !json_array_append_new(bits, json_integer((json_int_t)s->bits[i]));
    *entry = good ? json_pack("{s:s, s:s, s:i, s:i, s:i, s:O, s:i, s:i, s:i, s:b, s:b, s:b, "
                              "s:b}",
                              "format", "additive", "dtype",
                              m->storage == VPTQ_BF16 ? "bf16" : "f16", "rows", (int)s->out,
                              "columns", (int)s->in, "vector_length", (int)s->v, "bits", bits,
                              "block_rows", (int)s->block_rows, "block_columns",
                              (int)s->block_columns, "scale_columns", (int)s->scale_columns,
                              "int8", (int)s->int8, "sparse", (int)s->sparse, "lattice",
                              (int)s->lattice, "rotated", (int)s->rotated)
                  : NULL;
    json_decref(bits);
    return *entry ? VPTQ_OK : no_memory(m->name, err);
}

vptq_status vptq_additive_make_config(const vptq_additive_matrix *matrices, size_t count,
                                      json_t **config, vptq_err *err)
{
    json_t *layers = json_object();
    vptq_status st = layers ? VPTQ_OK : no_memory("the model", err);
    for (size_t i = 0; i < count && !st; i++) {
        json_t *entry = NULL;
        st = vptq_additive_make_entry(&matrices[i], &entry, err);
        if (!st && json_object_set_new(layers, matrices[i].name, entry))
            st = no_memory(matrices[i].name, err);
    }
    *config =
        st ? NULL
           : json_pack("{s:s, s:O}", "quant_method", "additive", "config_for_layers", layers);
    json_decref(layers);
    return st || *config ? st : no_memory("the model", err);
}

/* ---- tensors ---- */

static vptq_status add_part(const matrix_writer *w, const char *part, vptq_tensor t,
                            const void *data)
{
    VPTQ_CHECK(vptq_packed_part(&t, w->m->name, part, data, w->arena, w->err));
    w->list[(*w->count)++] = t;
    return VPTQ_OK;
}

/* Adds n numbers, exact in the storage type, as a tensor of the dimensions of `t`. */
static vptq_status add_numbers(const matrix_writer *w, const char *part, vptq_tensor t,
                               size_t n, const float *x)
{
    const vptq_dtype type = w->m->storage;
    uint16_t *stored = vptq_arena_alloc(w->arena, n, sizeof *stored, w->err);
    if (!stored)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]) || fabsf(vptq_round_to(type, x[i]) - x[i]) > 0)
            return vptq_fail(w->err, VPTQ_E_NUMERIC,
                             "layer '%s': element %zu of %s is %g, which is not exact in %s",
                             w->m->name, i, part, (double)x[i], vptq_dtype_get(type)->name);
    if (type == VPTQ_F16)
        vptq_f32_to_f16_n(x, stored, n);
    else
        vptq_f32_to_bf16_n(x, stored, n);
    t.type = type;
    return add_part(w, part, t, stored);
}

/* ---- codes and signs ---- */

/* Clears the bits after the last code of every row, in a copy if any are set. */
static vptq_status clear_padding(const matrix_writer *w, uint32_t stage, const uint32_t **codes)
{
    const vptq_additive_shape *s = &w->m->a.shape;
    const size_t row_words = vptq_additive_row_words(s, stage), words = s->out * row_words;
    const unsigned used = (unsigned)((uint64_t)(s->in / s->v) * s->bits[stage] % 32);
    bool dirty = false;
    *codes = w->m->a.codes[stage];
    for (size_t r = 0; used && r < s->out && !dirty; r++)
        dirty = (*codes)[(r + 1) * row_words - 1] >> used != 0;
    if (!dirty)
        return VPTQ_OK;
    uint32_t *clean = vptq_arena_alloc(w->arena, words, sizeof *clean, w->err);
    if (!clean)
        return VPTQ_E_NOMEM;
    memcpy(clean, *codes, words * sizeof *clean);
    for (size_t r = 0; r < s->out; r++)
        clean[(r + 1) * row_words - 1] &= (UINT32_C(1) << used) - 1;
    *codes = clean;
    return VPTQ_OK;
}

static vptq_status add_codes(const matrix_writer *w, uint32_t stage)
{
    const vptq_additive_shape *s = &w->m->a.shape;
    const vptq_tensor t = {
        .type = VPTQ_I32, .dims = 2, .shape = {s->out, vptq_additive_row_words(s, stage)}};
    const uint32_t *codes;
    char part[32];
    VPTQ_CHECK(clear_padding(w, stage, &codes));
    snprintf(part, sizeof part, "codes.%u", (unsigned)stage);
    return add_part(w, part, t, codes);
}

static vptq_status add_signs(const matrix_writer *w, const char *part, const uint8_t *signs,
                             uint32_t n)
{
    const size_t words = vptq_bits_words(n, 1);
    uint32_t *bits = vptq_arena_zalloc(w->arena, words, sizeof *bits, w->err);
    if (!bits)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        vptq_bits_put(bits, i, 1, signs[i] != 0);
    return add_part(w, part, (vptq_tensor){.type = VPTQ_I32, .dims = 1, .shape = {words}},
                    bits);
}

/* ---- codebooks ---- */

/* Adds codebooks of `each` numbers as codes and scales. */
static vptq_status add_int8(const matrix_writer *w, uint32_t stage, vptq_tensor t,
                            size_t blocks, size_t each, const float *x)
{
    int8_t *codes = vptq_arena_alloc(w->arena, blocks, each, w->err);
    float *scales = codes ? vptq_arena_alloc(w->arena, blocks, sizeof *scales, w->err) : NULL;
    char part[32];
    if (!scales)
        return VPTQ_E_NOMEM;
    for (size_t b = 0; b < blocks; b++)
        if (!vptq_grid_find(x + b * each, each, &scales[b], codes + b * each))
            return vptq_fail(w->err, VPTQ_E_NUMERIC,
                             "layer '%s': codebook %zu of stage %u is not on an int8 grid",
                             w->m->name, b, (unsigned)stage);
    t.type = VPTQ_I8;
    snprintf(part, sizeof part, "codebooks.%u", (unsigned)stage);
    VPTQ_CHECK(add_part(w, part, t, codes));
    t.dims = 2;
    snprintf(part, sizeof part, "codebook_scales.%u", (unsigned)stage);
    return add_numbers(w, part, t, blocks, scales);
}

/* *x = the codebooks without entries 0. */
static vptq_status drop_zero_entries(const matrix_writer *w, size_t blocks, size_t each,
                                     const float **x)
{
    const size_t v = w->m->a.shape.v;
    float *kept = vptq_arena_alloc(w->arena, blocks, each * sizeof *kept, w->err);
    if (!kept)
        return VPTQ_E_NOMEM;
    for (size_t b = 0; b < blocks; b++)
        memcpy(kept + b * each, *x + b * (each + v) + v, each * sizeof *kept);
    *x = kept;
    return VPTQ_OK;
}

static vptq_status add_codebooks(const matrix_writer *w, uint32_t stage)
{
    const vptq_additive_shape *s = &w->m->a.shape;
    const vptq_tensor t = {.dims = 4,
                           .shape = {(s->out - 1) / s->block_rows + 1,
                                     (s->in - 1) / s->block_columns + 1,
                                     (UINT64_C(1) << s->bits[stage]) - s->sparse, s->v}};
    const size_t blocks = vptq_additive_blocks(s), each = (size_t)(t.shape[2] * s->v);
    const float *x = w->m->a.codebooks[stage];
    char part[32];
    if (s->sparse)
        VPTQ_CHECK(drop_zero_entries(w, blocks, each, &x));
    snprintf(part, sizeof part, "codebooks.%u", (unsigned)stage);
    return s->int8 ? add_int8(w, stage, t, blocks, each, x)
                   : add_numbers(w, part, t, blocks * each, x);
}

static vptq_status add_scales(const matrix_writer *w)
{
    const vptq_additive *a = &w->m->a;
    const uint64_t groups = (a->shape.in - 1) / a->shape.scale_columns + 1;
    return add_numbers(w, "scales", (vptq_tensor){.dims = 2, .shape = {a->shape.out, groups}},
                       (size_t)(a->shape.out * groups), a->scales);
}

static vptq_status add_stage_scales(const matrix_writer *w)
{
    const vptq_additive *a = &w->m->a;
    for (size_t m = 0; m < a->shape.stages; m++)
        if (!isfinite(a->stage_scales[m]))
            return vptq_fail(w->err, VPTQ_E_NUMERIC, "layer '%s': the scale of stage %zu is %g",
                             w->m->name, m, (double)a->stage_scales[m]);
    return add_part(w, "stage_scales",
                    (vptq_tensor){.type = VPTQ_F32, .dims = 1, .shape = {a->shape.stages}},
                    a->stage_scales);
}

vptq_status vptq_additive_tensors(const vptq_additive_matrix *m, vptq_arena *arena,
                                  vptq_tensor *list, size_t *count, vptq_err *err)
{
    const matrix_writer w = {.m = m, .arena = arena, .list = list, .count = count, .err = err};
    const vptq_additive_shape *s = &m->a.shape;
    if (vptq_additive_shape_check(s, err))
        return vptq_err_context(err, "layer '%s'", m->name);
    VPTQ_BUG_IF(m->storage != VPTQ_F16 && m->storage != VPTQ_BF16);
    for (uint32_t i = 0; i < s->stages; i++) {
        VPTQ_CHECK(add_codes(&w, i));
        if (!s->lattice)
            VPTQ_CHECK(add_codebooks(&w, i));
    }
    if (s->scale_columns)
        VPTQ_CHECK(add_scales(&w));
    if (s->lattice)
        VPTQ_CHECK(add_stage_scales(&w));
    if (!s->rotated)
        return VPTQ_OK;
    VPTQ_CHECK(add_signs(&w, "row_signs", m->a.row_signs, s->out));
    return add_signs(&w, "column_signs", m->a.column_signs, s->in);
}
