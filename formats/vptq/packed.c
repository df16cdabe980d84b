/* Reads one matrix of the published layout and checks everything about it. */
#include "formats/vptq/packed.h"

#include <math.h>
#include <string.h>

#include "lib/base/grid.h"
#include "lib/base/half.h"
#include "lib/base/text.h"

typedef struct matrix_reader {
    const vptq_packed_source *source;
    vptq_arena *arena;
    vptq_dtype storage;
    bool as_float, int8;
    vptq_packed_mode mode;
    vptq_err *err;
    size_t faults;
} matrix_reader;

/* Ends a part: with a fault callback, a fault ends only its part and reading continues. */
static vptq_status end_part(matrix_reader *r, vptq_status st)
{
    if (!st || !r->mode.fault || st == VPTQ_E_NOMEM || st == VPTQ_E_IO)
        return st;
    if (st != VPTQ_E_CHECKSUM) /* already reported when the bytes were read */
        r->mode.fault(r->mode.fault_arg, r->err->text);
    r->faults++;
    return VPTQ_OK;
}

typedef struct part_shape {
    uint32_t dims;
    uint64_t size[3]; /* outermost first */
} part_shape;

static const vptq_tensor *find_part(const matrix_reader *r, const char *part)
{
    char full[1024];
    int n = snprintf(full, sizeof full, "%s.%s", r->source->name, part);
    return n > 0 && (size_t)n < sizeof full ? vptq_tensor_find(r->source->set, full) : NULL;
}

/* Compares shapes without leading unit axes, which some writers squeeze away. */
static bool same_shape(const vptq_tensor *t, const part_shape *want)
{
    uint32_t i = 0, j = 0;
    while (i < t->dims && t->shape[i] == 1)
        i++;
    while (j < want->dims && want->size[j] == 1)
        j++;
    if (t->dims - i != want->dims - j)
        return false;
    for (; i < t->dims; i++, j++)
        if (t->shape[i] != want->size[j])
            return false;
    return true;
}

/* Distributed training moves only floating-point tensors, so its files may label 16-bit
 * integers as F16. */
static bool is_index16(const matrix_reader *r, const vptq_tensor *t)
{
    return t->type == VPTQ_I16 || (r->as_float && t->type == VPTQ_F16);
}

/* Makes the bytes of a part available, unpacking them into the arena if necessary. */
static vptq_status load_part(const matrix_reader *r, const vptq_tensor *t, vptq_tensor *out)
{
    *out = *t;
    if (t->data || t->bytes == 0 || r->mode.shapes_only)
        return VPTQ_OK;
    void *buf = vptq_arena_alloc(r->arena, t->bytes, 1, r->err);
    return buf ? vptq_tensor_bytes(t, 0, t->bytes, buf, &out->data, r->err) : VPTQ_E_NOMEM;
}

/* Finds a required part of one of two types and of the given shape.  File readers guarantee
 * that a tensor's byte count follows from type and shape, so sizes can be trusted afterwards.
 */
static vptq_status require_part(const matrix_reader *r, const char *part, vptq_dtype type,
                                vptq_dtype other, const part_shape *want, vptq_tensor *out)
{
    const vptq_tensor *t = find_part(r, part);
    if (!t)
        return vptq_fail(r->err, VPTQ_E_FORMAT, "%s: tensor '%s.%s' is missing",
                         r->source->file, r->source->name, part);
    if (t->bytes && !t->data && !t->source)
        return vptq_fail(r->err, VPTQ_E_CHECKSUM, "%s: tensor '%s' is damaged", r->source->file,
                         t->name);
    char found[VPTQ_SHAPE_TEXT], expected[VPTQ_SHAPE_TEXT];
    if (t->type != type && t->type != other && !(type == VPTQ_I16 && is_index16(r, t)))
        return vptq_fail(r->err, VPTQ_E_FORMAT, "%s: tensor '%s' is %s, expected %s",
                         r->source->file, t->name, vptq_dtype_get(t->type)->name,
                         vptq_dtype_get(type)->name);
    if (!same_shape(t, want)) {
        vptq_shape_text(t->shape, t->dims, found);
        vptq_shape_text(want->size, want->dims, expected);
        return vptq_fail(r->err, VPTQ_E_SHAPE, "%s: tensor '%s' is [%s], expected [%s]",
                         r->source->file, t->name, found, expected);
    }
    return load_part(r, t, out);
}

vptq_status vptq_packed_widen(const vptq_tensor *t, const char *file, vptq_arena *arena,
                              const float **out, vptq_err *err)
{
    const size_t n = t->bytes / sizeof(uint16_t);
    float *x = vptq_arena_alloc(arena, n, sizeof *x, err);
    if (!x)
        return VPTQ_E_NOMEM;
    const uint16_t *src = (const uint16_t *)(const void *)t->data;
    if (t->type == VPTQ_F16)
        vptq_f16_to_f32_n(src, x, n);
    else
        vptq_bf16_to_f32_n(src, x, n);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return vptq_fail(err, VPTQ_E_NUMERIC, "%s: tensor '%s': element %zu is %g", file,
                             t->name, i, (double)x[i]);
    *out = x;
    return VPTQ_OK;
}

/* Reads a part of real numbers and widens it to float. */
static vptq_status read_numbers(const matrix_reader *r, const char *part,
                                const part_shape *want, const float **out)
{
    vptq_tensor t;
    vptq_status st = require_part(r, part, r->storage, r->storage, want, &t);
    if (st || r->mode.shapes_only)
        return st;
    return vptq_packed_widen(&t, r->source->file, r->arena, out, r->err);
}

/* Fails unless x, a code times its scale, is one that a writer makes: readers round numbers to
 * the storage type without looking, and only codes up to 127 make a grid. */
static vptq_status check_int8(const matrix_reader *r, const vptq_tensor *t, size_t i,
                              int8_t code, float scale)
{
    const float x = (float)code * scale;
    if (!(scale > 0))
        return vptq_fail(
            r->err, VPTQ_E_NUMERIC,
            "%s: tensor '%s': the scale of element %zu is %g, expected more than 0",
            r->source->file, t->name, i, (double)scale);
    if (code < -VPTQ_GRID_MAX)
        return vptq_fail(r->err, VPTQ_E_NUMERIC,
                         "%s: tensor '%s': element %zu is %d, expected %d to %d",
                         r->source->file, t->name, i, code, -VPTQ_GRID_MAX, VPTQ_GRID_MAX);
    return fabsf(vptq_round_to(r->storage, x) - x) <= 0
               ? VPTQ_OK
               : vptq_fail(r->err, VPTQ_E_NUMERIC,
                           "%s: tensor '%s': element %zu times its scale is %g, which %s "
                           "cannot hold exactly",
                           r->source->file, t->name, i, (double)x,
                           vptq_dtype_get(r->storage)->name);
}

/* Reads codebooks stored as int8. */
static vptq_status read_int8(const matrix_reader *r, const char *part, const char *scale_part,
                             const part_shape *want, const float **out)
{
    const part_shape groups = {1, {want->size[0]}};
    const float *scale;
    vptq_tensor t;
    VPTQ_CHECK(read_numbers(r, scale_part, &groups, &scale));
    VPTQ_CHECK(require_part(r, part, VPTQ_I8, VPTQ_I8, want, &t));
    if (r->mode.shapes_only)
        return VPTQ_OK;
    const int8_t *codes = (const int8_t *)t.data;
    float *x = vptq_arena_alloc(r->arena, t.bytes, sizeof *x, r->err);
    if (!x)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < t.bytes; i++) {
        const float unit = scale[i / (size_t)want->size[1]];
        VPTQ_CHECK(check_int8(r, &t, i, codes[i], unit));
        x[i] = (float)codes[i] * unit;
    }
    *out = x;
    return VPTQ_OK;
}

/* Reads the codebooks [groups, n] of a part. */
static vptq_status read_codebooks(const matrix_reader *r, const char *part,
                                  const char *scale_part, uint32_t groups, uint64_t n,
                                  const float **out)
{
    const part_shape want = {2, {groups, n}};
    return r->int8 ? read_int8(r, part, scale_part, &want, out)
                   : read_numbers(r, part, &want, out);
}

/* Sets r->storage, the type in which every number is stored, and r->int8: codebooks are whole
 * numbers, and their scales have that type. */
static vptq_status read_storage(matrix_reader *r)
{
    const char *part = "centroids.weight";
    const vptq_tensor *t = find_part(r, part);
    r->int8 = t && t->type == VPTQ_I8;
    if (r->int8) {
        part = "centroids.scale";
        t = find_part(r, part);
    }
    if (!t)
        return vptq_fail(r->err, VPTQ_E_FORMAT, "%s: tensor '%s.%s' is missing",
                         r->source->file, r->source->name, part);
    r->storage = t->type;
    if (t->type != VPTQ_F16 && t->type != VPTQ_BF16)
        return vptq_fail(r->err, VPTQ_E_UNSUPPORTED,
                         "%s: tensor '%s' is %s, expected F16 or "
                         "BF16",
                         r->source->file, t->name, vptq_dtype_get(t->type)->name);
    return VPTQ_OK;
}

/* Reads 16-bit indices, all below k. */
static vptq_status read_u16(const matrix_reader *r, const char *part, const part_shape *want,
                            uint32_t k, const uint16_t **out)
{
    vptq_tensor t;
    vptq_status st = require_part(r, part, VPTQ_I16, VPTQ_U16, want, &t);
    if (st || r->mode.shapes_only)
        return st;
    size_t n = t.bytes / sizeof(uint16_t);
    uint16_t *x = vptq_arena_alloc(r->arena, n, sizeof *x, r->err);
    if (!x)
        return VPTQ_E_NOMEM;
    if (n)
        memcpy(x, t.data, t.bytes);
    size_t cols = (size_t)want->size[want->dims - 1];
    for (size_t i = 0; i < n; i++)
        if (x[i] >= k)
            return vptq_fail(
                r->err, VPTQ_E_FORMAT,
                "%s: tensor '%s': row %zu, column %zu: index %u, expected less than "
                "%u",
                r->source->file, t.name, i / cols, i % cols, (unsigned)x[i], (unsigned)k);
    *out = x;
    return VPTQ_OK;
}

/* Reads the published form, bit fields in words.  k and k_res are powers of two, so every field
 * is a valid index. */
static vptq_status read_packed_indices(const matrix_reader *r, const vptq_vq_shape *s,
                                       const uint32_t **out)
{
    part_shape want = {3, {s->groups, vptq_vq_vector_rows(s), vptq_vq_row_words(s)}};
    vptq_tensor t;
    vptq_status st = require_part(r, "indices", VPTQ_I32, VPTQ_U32, &want, &t);
    if (st || r->mode.shapes_only)
        return st;
    *out = vptq_tensor_aligned(&t, r->arena, r->err);
    return *out ? VPTQ_OK : VPTQ_E_NOMEM;
}

/* Reads the training form, one 16-bit number per index and codebook, and packs it. */
static vptq_status read_plain_indices(matrix_reader *r, const vptq_vq_shape *s,
                                      const uint32_t **out)
{
    part_shape want = {3, {s->groups, vptq_vq_vector_rows(s), s->group_size}};
    const uint16_t *main_index = NULL, *res_index = NULL;
    VPTQ_CHECK(end_part(r, read_u16(r, "indices", &want, s->k, &main_index)));
    if (s->k_res)
        VPTQ_CHECK(end_part(r, read_u16(r, "res_indices", &want, s->k_res, &res_index)));
    if (!main_index || (s->k_res && !res_index))
        return VPTQ_OK; /* faulty, or shapes only */
    size_t rows = (size_t)s->groups * vptq_vq_vector_rows(s), row_words = vptq_vq_row_words(s);
    unsigned bits = vptq_vq_index_bits(s), main_bits = vptq_log2u(s->k);
    uint32_t *words = vptq_arena_zalloc(r->arena, rows * row_words, sizeof *words, r->err);
    if (!words)
        return VPTQ_E_NOMEM;
    for (size_t row = 0; row < rows; row++)
        for (size_t c = 0; c < s->group_size; c++) {
            size_t i = row * s->group_size + c;
            uint32_t field = main_index[i];
            if (res_index)
                field |= (uint32_t)res_index[i] << main_bits;
            vptq_bits_put(words + row * row_words, c, bits, field);
        }
    *out = words;
    return VPTQ_OK;
}

/* Element i of a perm tensor: unsigned 16 bits in published files, I64 in the training form.
 * Negative values give UINT64_MAX. */
static uint64_t perm_at(const vptq_tensor *t, size_t i)
{
    if (t->type == VPTQ_I64) {
        int64_t x;
        memcpy(&x, t->data + i * sizeof x, sizeof x);
        return x < 0 ? UINT64_MAX : (uint64_t)x;
    }
    uint16_t x;
    memcpy(&x, t->data + i * sizeof x, sizeof x);
    return x;
}

static vptq_status read_perm(const matrix_reader *r, const vptq_vq_shape *s, bool bit_packed,
                             const uint16_t **out)
{
    part_shape want = {1, {s->in}};
    const vptq_tensor *found = find_part(r, "perm");
    vptq_tensor t;
    vptq_dtype type = bit_packed || (found && is_index16(r, found)) ? VPTQ_I16 : VPTQ_I64;
    vptq_status st =
        require_part(r, "perm", type, type == VPTQ_I16 ? VPTQ_U16 : VPTQ_I64, &want, &t);
    if (st || r->mode.shapes_only)
        return st;
    uint16_t *perm = vptq_arena_alloc(r->arena, s->in, sizeof *perm, r->err);
    if (!perm)
        return VPTQ_E_NOMEM;
    uint8_t seen[VPTQ_VQ_MAX_K / 8] = {0};
    for (size_t i = 0; i < s->in; i++) {
        uint64_t x = perm_at(&t, i);
        if (x >= s->in)
            return vptq_fail(r->err, VPTQ_E_FORMAT,
                             "%s: tensor '%s': element %zu is not a column below %u",
                             r->source->file, t.name, i, (unsigned)s->in);
        if (seen[x / 8] >> (x % 8) & 1)
            return vptq_fail(r->err, VPTQ_E_FORMAT,
                             "%s: tensor '%s' is not a permutation: element %zu repeats column "
                             "%u",
                             r->source->file, t.name, i, (unsigned)x);
        seen[x / 8] |= (uint8_t)(1u << (x % 8));
        perm[i] = (uint16_t)x;
    }
    *out = perm;
    return VPTQ_OK;
}

static vptq_status read_norm(matrix_reader *r, vptq_vq *q)
{
    part_shape want = {1, {q->shape.in}};
    VPTQ_CHECK(end_part(r, read_numbers(r, "weight_scale", &want, &q->scale)));
    return end_part(r, read_numbers(r, "weight_bias", &want, &q->bias));
}

static vptq_status read_outliers(matrix_reader *r, vptq_vq *q)
{
    const vptq_vq_shape *s = &q->shape;
    part_shape indices = {3, {1, (s->out + s->v0 - 1) / s->v0, s->outliers}};
    VPTQ_CHECK(
        end_part(r, read_codebooks(r, "outlier_centroids.weight", "outlier_centroids.scale", 1,
                                   (uint64_t)s->k0 * s->v0, &q->outlier_centroids)));
    return end_part(r, read_u16(r, "outlier_indices", &indices, s->k0, &q->outlier_indices));
}

/* Fails if a part exists that the entry rules out: readers that trust the entry and readers
 * that trust the tensors would decode different matrices. */
static vptq_status check_absent(const matrix_reader *r, const char *part, const char *key)
{
    if (!find_part(r, part))
        return VPTQ_OK;
    return vptq_fail(r->err, VPTQ_E_FORMAT,
                     "%s: tensor '%s.%s' is present, but the layer's entry says it has none "
                     "(%s)",
                     r->source->file, r->source->name, part, key);
}

/* Rejects scales of codebooks that have none. */
static vptq_status check_scales(matrix_reader *r, const vptq_vq_shape *s)
{
    static const char *const scales[] = {"centroids.scale", "res_centroids.scale",
                                         "outlier_centroids.scale"};
    const bool used[] = {true, s->k_res > 0, s->outliers > 0};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        if (find_part(r, scales[i]) && !(r->int8 && used[i]))
            VPTQ_CHECK(end_part(r, vptq_fail(r->err, VPTQ_E_FORMAT,
                                             "%s: tensor '%s.%s' is present, but the layer has "
                                             "no such codebook of type I8",
                                             r->source->file, r->source->name, scales[i])));
    return VPTQ_OK;
}

/* Rejects parts that no reader uses; only checking does this. */
static vptq_status check_leftovers(matrix_reader *r, const vptq_packed_layout *layout)
{
    const vptq_vq_shape *s = &layout->shape;
    if (!s->has_norm && !find_part(r, "weight_scale"))
        VPTQ_CHECK(end_part(r, check_absent(r, "weight_bias", "enable_norm")));
    if (!s->outliers)
        VPTQ_CHECK(end_part(r, check_absent(r, "outlier_centroids.weight", "outlier_size")));
    VPTQ_CHECK(check_scales(r, s));
    if (layout->bit_packed)
        VPTQ_CHECK(end_part(r, check_absent(r, "res_indices", "is_indice_packed")));
    else if (!s->k_res)
        VPTQ_CHECK(end_part(r, check_absent(r, "res_indices", "num_res_centroids")));
    return end_part(r, check_absent(r, "weight", "the matrix is stored as its parts"));
}

/* Checks the entry's flags against the tensors and sets them to what is stored.  A flag without
 * its tensors is accepted: files whose permutation was absorbed later may still set
 * enable_perm, and missing scale and bias mean 1 and 0, upstream's initial values. */
static vptq_status match_flags(matrix_reader *r, const vptq_packed_layout *layout,
                               vptq_vq_shape *s)
{
    if (!s->has_perm)
        VPTQ_CHECK(end_part(r, check_absent(r, "perm", "enable_perm")));
    if (!s->has_norm)
        VPTQ_CHECK(end_part(r, check_absent(r, "weight_scale", "enable_norm")));
    if (!s->k_res)
        VPTQ_CHECK(end_part(r, check_absent(r, "res_centroids.weight", "num_res_centroids")));
    if (!s->outliers)
        VPTQ_CHECK(end_part(r, check_absent(r, "outlier_indices", "outlier_size")));
    if (r->mode.fault)
        VPTQ_CHECK(check_leftovers(r, layout));
    s->has_perm = find_part(r, "perm") != NULL;
    s->has_norm = find_part(r, "weight_scale") || find_part(r, "weight_bias");
    return VPTQ_OK;
}

static vptq_status read_parts(matrix_reader *r, const vptq_packed_layout *layout, vptq_vq *q)
{
    const vptq_vq_shape *s = &q->shape;
    VPTQ_CHECK(end_part(r, read_codebooks(r, "centroids.weight", "centroids.scale", s->groups,
                                          (uint64_t)s->k * s->v, &q->centroids)));
    if (s->k_res)
        VPTQ_CHECK(end_part(r, read_codebooks(r, "res_centroids.weight", "res_centroids.scale",
                                              s->groups, (uint64_t)s->k_res * s->v,
                                              &q->res_centroids)));
    if (layout->bit_packed)
        VPTQ_CHECK(end_part(r, read_packed_indices(r, s, &q->indices)));
    else
        VPTQ_CHECK(read_plain_indices(r, s, &q->indices));
    if (s->outliers)
        VPTQ_CHECK(read_outliers(r, q));
    if (s->has_perm)
        VPTQ_CHECK(end_part(r, read_perm(r, s, layout->bit_packed, &q->perm)));
    if (s->has_norm)
        VPTQ_CHECK(read_norm(r, q));
    return VPTQ_OK;
}

static vptq_status read_matrix(matrix_reader *r, vptq_packed_matrix *out)
{
    vptq_packed_layout layout;
    const size_t faults_before = r->faults;
    VPTQ_CHECK(end_part(r, vptq_packed_parse_entry(r->source->entry, r->source->name,
                                                   r->source->file, &layout, r->err)));
    if (r->faults == faults_before)
        VPTQ_CHECK(end_part(r, read_storage(r)));
    if (r->faults != faults_before)
        return VPTQ_OK; /* nothing can be checked without the entry and the storage type */
    vptq_vq q = {.shape = layout.shape};
    q.shape.int8 = r->int8;
    r->as_float = layout.as_float;
    VPTQ_CHECK(match_flags(r, &layout, &q.shape));
    VPTQ_CHECK(read_parts(r, &layout, &q));
    char *own_name = vptq_arena_strdup(r->arena, r->source->name, r->err);
    if (!own_name)
        return VPTQ_E_NOMEM;
    *out = (vptq_packed_matrix){.name = own_name, .vq = q, .storage = r->storage};
    return VPTQ_OK;
}

vptq_status vptq_packed_check(const vptq_packed_source *source, const vptq_packed_mode *mode,
                              vptq_arena *arena, vptq_packed_matrix *out, bool *whole,
                              vptq_err *err)
{
    vptq_err own = {0}; /* faults need their text, even if the caller does not */
    matrix_reader r = {.source = source, .mode = *mode, .arena = arena, .err = &own};
    vptq_status st = read_matrix(&r, out);
    *whole = !st && r.faults == 0;
    return st ? vptq_fail(err, st, "%s", own.text) : VPTQ_OK;
}

vptq_status vptq_packed_read(const vptq_packed_source *source, vptq_arena *arena,
                             vptq_packed_matrix *out, vptq_err *err)
{
    bool whole;
    return vptq_packed_check(source, &(vptq_packed_mode){0}, arena, out, &whole, err);
}

size_t vptq_packed_module_length(const char *tensor_name)
{
    static const char *const parts[] = {".centroids.weight",
                                        ".centroids.scale",
                                        ".res_centroids.weight",
                                        ".res_centroids.scale",
                                        ".indices",
                                        ".res_indices",
                                        ".outlier_indices",
                                        ".outlier_centroids.weight",
                                        ".outlier_centroids.scale",
                                        ".perm",
                                        ".weight_scale",
                                        ".weight_bias"};
    size_t len = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && !len; i++)
        len = vptq_text_before(tensor_name, parts[i]);
    return len;
}
