/* Reads one matrix of additive codes, checks everything about it, and decodes it. */
#include "formats/vptq/additive.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/vptq/packed.h"
#include "lib/base/grid.h"
#include "lib/base/half.h"
#include "lib/base/text.h"

#define FORMAT "additive"

typedef struct matrix_reader {
    const vptq_tensor_set *set;
    const char *name, *file;
    vptq_arena *arena;
    vptq_err *err;
    vptq_additive a;
    vptq_dtype storage;
} matrix_reader;

/* ---- JSON ---- */

static bool is_text(const json_t *object, const char *key, const char *text)
{
    const char *found = json_string_value(json_object_get(object, key));
    return found && !strcmp(found, text);
}

bool vptq_additive_is_entry(const json_t *entry)
{
    return is_text(entry, "format", FORMAT);
}

bool vptq_additive_is_config(const json_t *config)
{
    return is_text(vptq_packed_config(config), "quant_method", FORMAT);
}

const json_t *vptq_additive_entry(const json_t *config, const char *module)
{
    return json_object_get(json_object_get(vptq_packed_config(config), "config_for_layers"),
                           module);
}

static vptq_status read_bits(const json_t *entry, const char *where, vptq_additive_shape *s,
                             vptq_err *err)
{
    const json_t *list = json_object_get(entry, "bits");
    const size_t count = json_array_size(list);
    if (!count || count > VPTQ_ADDITIVE_MAX_STAGES)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key 'bits' is not a list of 1 to %d numbers",
                         where, VPTQ_ADDITIVE_MAX_STAGES);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        const json_int_t bits = json_integer_value(item);
        if (bits < 1 || bits > VPTQ_ADDITIVE_MAX_BITS)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: key 'bits' holds a value that is not a number from 1 to %d",
                             where, VPTQ_ADDITIVE_MAX_BITS);
        s->bits[i] = (uint32_t)bits;
    }
    s->stages = (uint32_t)count;
    return VPTQ_OK;
}

static vptq_status read_flags(const json_t *entry, const char *where, vptq_additive_shape *s,
                              vptq_err *err)
{
    const struct {
        const char *key;
        bool *to;
    } flags[] = {{"int8", &s->int8},
                 {"sparse", &s->sparse},
                 {"lattice", &s->lattice},
                 {"rotated", &s->rotated}};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        VPTQ_CHECK(vptq_json_bool_or(entry, where, flags[i].key, false, flags[i].to, err));
    return VPTQ_OK;
}

static vptq_status read_entry(const json_t *entry, const char *where, vptq_additive_shape *s,
                              vptq_dtype *storage, vptq_err *err)
{
    const struct {
        const char *key;
        uint32_t *to;
    } sizes[] = {{"rows", &s->out},
                 {"columns", &s->in},
                 {"vector_length", &s->v},
                 {"block_rows", &s->block_rows},
                 {"block_columns", &s->block_columns},
                 {"scale_columns", &s->scale_columns}};
    const char *dtype;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t n;
        VPTQ_CHECK(vptq_json_u64(entry, where, sizes[i].key, INT32_MAX, &n, err));
        *sizes[i].to = (uint32_t)n;
    }
    VPTQ_CHECK(read_bits(entry, where, s, err));
    VPTQ_CHECK(read_flags(entry, where, s, err));
    VPTQ_CHECK(vptq_json_str_or(entry, where, "dtype", NULL, &dtype, err));
    if (vptq_dtype_from_option(dtype, storage, NULL) || *storage == VPTQ_F32)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key 'dtype' is '%.32s', expected f16 or bf16",
                         where, dtype);
    return vptq_additive_shape_check(s, err) ? vptq_err_context(err, "%s", where) : VPTQ_OK;
}

/* ---- tensors ---- */

static const char *const stage_parts[] = {"codes", "codebooks", "codebook_scales"};
static const char *const whole_parts[] = {"scales", "stage_scales", "row_signs",
                                          "column_signs"};

/* The part that a tensor of the module is, "codes.0"; NULL if it is none. */
static const char *part_of(const char *tensor, const char *module)
{
    const size_t n = strlen(module);
    return !strncmp(tensor, module, n) && tensor[n] == '.' ? tensor + n + 1 : NULL;
}

size_t vptq_additive_module_length(const char *tensor_name)
{
    char suffix[32];
    size_t len = 0;
    for (size_t i = 0; i < sizeof whole_parts / sizeof whole_parts[0] && !len; i++) {
        snprintf(suffix, sizeof suffix, ".%s", whole_parts[i]);
        len = vptq_text_before(tensor_name, suffix);
    }
    for (size_t i = 0; i < sizeof stage_parts / sizeof stage_parts[0] && !len; i++)
        for (int m = 0; m < VPTQ_ADDITIVE_MAX_STAGES && !len; m++) {
            snprintf(suffix, sizeof suffix, ".%s.%d", stage_parts[i], m);
            len = vptq_text_before(tensor_name, suffix);
        }
    return len;
}

/* Whether a matrix of the shape stores the part. */
static bool is_stored(const vptq_additive_shape *s, const char *part)
{
    const bool stored[] = {true, !s->lattice, s->int8};
    char name[32];
    if (!strcmp(part, "scales"))
        return s->scale_columns > 0;
    if (!strcmp(part, "stage_scales"))
        return s->lattice;
    if (!strcmp(part, "row_signs") || !strcmp(part, "column_signs"))
        return s->rotated;
    for (size_t i = 0; i < sizeof stage_parts / sizeof stage_parts[0]; i++)
        for (uint32_t m = 0; m < s->stages; m++) {
            snprintf(name, sizeof name, "%s.%u", stage_parts[i], (unsigned)m);
            if (!strcmp(part, name))
                return stored[i];
        }
    return false;
}

/* Fails for a tensor of the module that the entry rules out: readers that trust the entry and
 * readers that trust the tensors would decode different matrices. */
static vptq_status check_parts(const matrix_reader *r)
{
    for (size_t i = 0; i < r->set->count; i++) {
        const char *tensor = r->set->tensors[i].name, *part = part_of(tensor, r->name);
        const bool ours = part && vptq_additive_module_length(tensor) == strlen(r->name);
        if (part && (ours ? !is_stored(&r->a.shape, part) : !strcmp(part, "weight")))
            return vptq_fail(r->err, VPTQ_E_FORMAT,
                             "%s: tensor '%s' is present, but the layer's entry says it has "
                             "none",
                             r->file, tensor);
    }
    return VPTQ_OK;
}

/* Finds a required part of this type and shape and loads its bytes, aligned to its elements.
 * File readers guarantee that a tensor's byte count follows from type and shape. */
static vptq_status need_part(const matrix_reader *r, const char *part, vptq_dtype type,
                             const uint64_t *shape, uint32_t dims, vptq_tensor *t)
{
    char full[1024], found[VPTQ_SHAPE_TEXT], expected[VPTQ_SHAPE_TEXT];
    const int n = snprintf(full, sizeof full, "%s.%s", r->name, part);
    const vptq_tensor *stored =
        n > 0 && (size_t)n < sizeof full ? vptq_tensor_find(r->set, full) : NULL;
    if (!stored)
        return vptq_fail(r->err, VPTQ_E_FORMAT, "%s: tensor '%s.%s' is missing", r->file,
                         r->name, part);
    *t = *stored;
    if (t->bytes && !t->data && !t->source)
        return vptq_fail(r->err, VPTQ_E_CHECKSUM, "%s: tensor '%s' is damaged", r->file,
                         t->name);
    if (t->type != type)
        return vptq_fail(r->err, VPTQ_E_FORMAT, "%s: tensor '%s' is %s, expected %s", r->file,
                         t->name, vptq_dtype_get(t->type)->name, vptq_dtype_get(type)->name);
    vptq_shape_text(t->shape, t->dims, found);
    vptq_shape_text(shape, dims, expected);
    if (strcmp(found, expected) != 0)
        return vptq_fail(r->err, VPTQ_E_SHAPE, "%s: tensor '%s' is [%s], expected [%s]",
                         r->file, t->name, found, expected);
    if (!t->data) {
        void *buf = vptq_arena_alloc(r->arena, t->bytes, 1, r->err);
        if (!buf)
            return VPTQ_E_NOMEM;
        VPTQ_CHECK(vptq_tensor_bytes(t, 0, t->bytes, buf, &t->data, r->err));
    }
    t->data = vptq_tensor_aligned(t, r->arena, r->err);
    return t->data ? VPTQ_OK : VPTQ_E_NOMEM;
}

/* Reads a part of real numbers of the storage type, each finite. */
static vptq_status read_numbers(const matrix_reader *r, const char *part, const uint64_t *shape,
                                uint32_t dims, const float **out)
{
    vptq_tensor t;
    VPTQ_CHECK(need_part(r, part, r->storage, shape, dims, &t));
    return vptq_packed_widen(&t, r->file, r->arena, out, r->err);
}

/* ---- codebooks ---- */

/* Fails unless a code times its scale is one that a writer makes. */
static vptq_status check_int8(const matrix_reader *r, const vptq_tensor *t, size_t i,
                              int8_t code, float scale)
{
    const float x = (float)code * scale;
    if (scale > 0 && code >= -VPTQ_GRID_MAX && fabsf(vptq_round_to(r->storage, x) - x) <= 0)
        return VPTQ_OK;
    return vptq_fail(r->err, VPTQ_E_NUMERIC,
                     "%s: tensor '%s': element %zu is %d times %g, expected a code from %d to "
                     "%d, a positive scale, and a product that %s holds exactly",
                     r->file, t->name, i, code, (double)scale, -VPTQ_GRID_MAX, VPTQ_GRID_MAX,
                     vptq_dtype_get(r->storage)->name);
}

static vptq_status read_int8(const matrix_reader *r, uint32_t stage, const uint64_t shape[4],
                             const float **out)
{
    const size_t each = (size_t)(shape[2] * shape[3]);
    char part[32];
    const float *scales = NULL;
    vptq_tensor t = {0};
    snprintf(part, sizeof part, "codebook_scales.%u", (unsigned)stage);
    VPTQ_CHECK(read_numbers(r, part, shape, 2, &scales));
    snprintf(part, sizeof part, "codebooks.%u", (unsigned)stage);
    VPTQ_CHECK(need_part(r, part, VPTQ_I8, shape, 4, &t));
    float *x = vptq_arena_alloc(r->arena, t.bytes, sizeof *x, r->err);
    if (!x)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < t.bytes; i++) {
        const int8_t code = (int8_t)t.data[i];
        VPTQ_CHECK(check_int8(r, &t, i, code, scales[i / each]));
        x[i] = (float)code * scales[i / each];
    }
    *out = x;
    return VPTQ_OK;
}

/* Puts the entry of zeros before the stored ones of every block. */
static vptq_status add_zero_entries(matrix_reader *r, uint32_t stage, const float *stored)
{
    const vptq_additive_shape *s = &r->a.shape;
    const size_t blocks = vptq_additive_blocks(s), v = s->v;
    const size_t kept = (((size_t)1 << s->bits[stage]) - 1) * v;
    float *x = vptq_arena_alloc(r->arena, blocks, (kept + v) * sizeof *x, r->err);
    if (!x)
        return VPTQ_E_NOMEM;
    r->a.codebooks[stage] = x;
    for (size_t b = 0; b < blocks; b++, x += kept + v) {
        memset(x, 0, v * sizeof *x);
        memcpy(x + v, stored + b * kept, kept * sizeof *x);
    }
    return VPTQ_OK;
}

static vptq_status read_codebooks(matrix_reader *r, uint32_t stage)
{
    const vptq_additive_shape *s = &r->a.shape;
    const uint64_t shape[4] = {(s->out - 1) / s->block_rows + 1,
                               (s->in - 1) / s->block_columns + 1,
                               (UINT64_C(1) << s->bits[stage]) - s->sparse, s->v};
    char part[32];
    const float *x = NULL;
    snprintf(part, sizeof part, "codebooks.%u", (unsigned)stage);
    VPTQ_CHECK(s->int8 ? read_int8(r, stage, shape, &x) : read_numbers(r, part, shape, 4, &x));
    if (s->sparse)
        return add_zero_entries(r, stage, x);
    r->a.codebooks[stage] = x;
    return VPTQ_OK;
}

/* ---- the other parts ---- */

static vptq_status read_codes(matrix_reader *r, uint32_t stage)
{
    const vptq_additive_shape *s = &r->a.shape;
    const uint64_t shape[2] = {s->out, vptq_additive_row_words(s, stage)};
    char part[32];
    vptq_tensor t = {0};
    snprintf(part, sizeof part, "codes.%u", (unsigned)stage);
    VPTQ_CHECK(need_part(r, part, VPTQ_I32, shape, 2, &t));
    r->a.codes[stage] = (const uint32_t *)(const void *)t.data;
    return VPTQ_OK;
}

static vptq_status read_stage_scales(matrix_reader *r)
{
    vptq_tensor t = {0};
    VPTQ_CHECK(
        need_part(r, "stage_scales", VPTQ_F32, (const uint64_t[]){r->a.shape.stages}, 1, &t));
    memcpy(r->a.stage_scales, t.data, t.bytes);
    for (size_t m = 0; m < r->a.shape.stages; m++)
        if (!isfinite(r->a.stage_scales[m]))
            return vptq_fail(r->err, VPTQ_E_NUMERIC, "%s: tensor '%s': element %zu is %g",
                             r->file, t.name, m, (double)r->a.stage_scales[m]);
    return VPTQ_OK;
}

static vptq_status read_signs(const matrix_reader *r, const char *part, uint32_t n,
                              const uint8_t **out)
{
    vptq_tensor t = {0};
    VPTQ_CHECK(need_part(r, part, VPTQ_I32, (const uint64_t[]){vptq_bits_words(n, 1)}, 1, &t));
    uint8_t *signs = vptq_arena_alloc(r->arena, n, sizeof *signs, r->err);
    if (!signs)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        signs[i] = (uint8_t)vptq_bits_get((const uint32_t *)(const void *)t.data, i, 1);
    *out = signs;
    return VPTQ_OK;
}

static vptq_status read_parts(matrix_reader *r)
{
    const vptq_additive_shape *s = &r->a.shape;
    for (uint32_t m = 0; m < s->stages; m++) {
        VPTQ_CHECK(read_codes(r, m));
        if (!s->lattice)
            VPTQ_CHECK(read_codebooks(r, m));
    }
    if (s->scale_columns)
        VPTQ_CHECK(read_numbers(r, "scales",
                                (const uint64_t[]){s->out, (s->in - 1) / s->scale_columns + 1},
                                2, &r->a.scales));
    if (s->lattice)
        VPTQ_CHECK(read_stage_scales(r));
    if (!s->rotated)
        return VPTQ_OK;
    VPTQ_CHECK(read_signs(r, "row_signs", s->out, &r->a.row_signs));
    return read_signs(r, "column_signs", s->in, &r->a.column_signs);
}

vptq_status vptq_additive_read(const vptq_tensor_set *set, const json_t *entry,
                               const char *name, const char *file, vptq_arena *arena,
                               vptq_additive_matrix *out, vptq_err *err)
{
    matrix_reader r = {.set = set, .file = file, .arena = arena, .err = err};
    char where[768];
    snprintf(where, sizeof where, "%.400s: layer '%.200s'", file, name);
    if (!vptq_additive_is_entry(entry))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: its entry does not have format " FORMAT,
                         where);
    r.name = vptq_arena_strdup(arena, name, err);
    if (!r.name)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(read_entry(entry, where, &r.a.shape, &r.storage, err));
    VPTQ_CHECK(check_parts(&r));
    VPTQ_CHECK(read_parts(&r));
    *out = (vptq_additive_matrix){.name = r.name, .a = r.a, .storage = r.storage};
    return VPTQ_OK;
}

/* ---- decoding ---- */

/* data = the weights in the storage type. */
static vptq_status decode(const vptq_ctx *ctx, const vptq_additive_matrix *m, const char *file,
                          uint16_t *data, vptq_err *err)
{
    const size_t in = m->a.shape.in, n = m->a.shape.out * in;
    vptq_status st = VPTQ_OK;
    float *w = vptq_mem_alloc(ctx->mem, n, sizeof *w, err);
    if (!w)
        return VPTQ_E_NOMEM;
    VPTQ_TRY(vptq_additive_decode(ctx, &m->a, w, err));
    for (size_t i = 0; i < n; i++)
        if (!isfinite(vptq_round_to(m->storage, w[i])))
            VPTQ_TRY(vptq_fail(err, VPTQ_E_NUMERIC,
                               "%s: layer '%s': row %zu, column %zu is %g, which %s cannot "
                               "hold",
                               file, m->name, i / in, i % in, (double)w[i],
                               vptq_dtype_get(m->storage)->name));
    if (m->storage == VPTQ_F16)
        vptq_f32_to_f16_n(w, data, n);
    else
        vptq_f32_to_bf16_n(w, data, n);
out:
    vptq_mem_free(ctx->mem, w);
    return st;
}

vptq_status vptq_additive_weight(const vptq_ctx *ctx, const vptq_additive_matrix *m,
                                 const char *file, vptq_arena *arena, vptq_tensor *t,
                                 vptq_err *err)
{
    const vptq_additive_shape *s = &m->a.shape;
    const char *name = vptq_arena_printf(arena, err, "%s.weight", m->name);
    uint16_t *data = name ? vptq_arena_alloc(arena, s->out, s->in * sizeof *data, err) : NULL;
    if (!data)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(decode(ctx, m, file, data, err));
    *t = (vptq_tensor){.name = name,
                       .type = m->storage,
                       .dims = 2,
                       .shape = {s->out, s->in},
                       .data = (const uint8_t *)(const void *)data,
                       .bytes = (size_t)s->out * s->in * sizeof *data,
                       .round_to = m->storage,
                       .file = file,
                       .additive = &m->a};
    return VPTQ_OK;
}
