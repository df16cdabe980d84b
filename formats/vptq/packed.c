/* Reading a matrix of the published layout.  Entries: packed_config.c; writing: packed_write.c.
 */
#include "formats/vptq/packed.h"

#include <math.h>
#include <string.h>

#include "lib/base/half.h"

typedef struct matrix_reader {
    const vptq_tensor_set *set;
    const char *name, *file;
    vptq_arena *arena;
    vptq_dtype storage;
    bool as_float;
    vptq_err *err;
    vptq_fault_fn fault; /* NULL: reading stops at the first fault */
    void *fault_arg;
    size_t faults;
    bool shapes_only; /* no bytes of a tensor are looked at */
} matrix_reader;

/* Where faults are told, a fault ends only the part that has it. */
static vptq_status part_done(matrix_reader *r, vptq_status st)
{
    if (!st || !r->fault || st == VPTQ_E_NOMEM || st == VPTQ_E_IO)
        return st;
    if (st != VPTQ_E_CHECKSUM) /* which was told where the bytes were read */
        r->fault(r->fault_arg, r->err->text);
    r->faults++;
    return VPTQ_OK;
}

typedef struct part_shape {
    uint32_t dims;
    uint64_t size[3];
} part_shape;

static const vptq_tensor *find_part(const matrix_reader *r, const char *part)
{
    char full[1024];
    int n = snprintf(full, sizeof full, "%s.%s", r->name, part);
    return n > 0 && (size_t)n < sizeof full ? vptq_tensor_find(r->set, full) : NULL;
}

/* Some writers squeeze unit axes away, so leading ones do not count. */
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

/* Training with several devices moves floating-point numbers only, so that 16-bit integers may
 * go by the name of F16. */
static bool is_index16(const matrix_reader *r, const vptq_tensor *t)
{
    return t->type == VPTQ_I16 || (r->as_float && t->type == VPTQ_F16);
}

/* A part's bytes in memory: where they are, or in the arena. */
static vptq_status load_part(const matrix_reader *r, const vptq_tensor *t, vptq_tensor *out)
{
    *out = *t;
    if (t->data || t->bytes == 0 || r->shapes_only)
        return VPTQ_OK;
    void *room = vptq_arena_alloc(r->arena, t->bytes, 1, r->err);
    return room ? vptq_tensor_bytes(t, 0, t->bytes, room, &out->data, r->err) : VPTQ_E_NOMEM;
}

/* A part that must be there, of one of the two types and of the shape.  The reader of the file
 * has seen to it that a tensor's bytes are what its type and shape say, so that after this the
 * sizes may be trusted. */
static vptq_status need_part(const matrix_reader *r, const char *part, vptq_dtype type,
                             vptq_dtype other, const part_shape *want, vptq_tensor *out)
{
    const vptq_tensor *t = find_part(r, part);
    if (!t)
        return vptq_fail(r->err, VPTQ_E_FORMAT, "%s: tensor '%s.%s' is missing", r->file,
                         r->name, part);
    if (t->bytes && !t->data && !t->source)
        return vptq_fail(r->err, VPTQ_E_CHECKSUM, "%s: tensor '%s' is damaged", r->file,
                         t->name);
    char found[VPTQ_SHAPE_TEXT], expected[VPTQ_SHAPE_TEXT];
    if (t->type != type && t->type != other && !(type == VPTQ_I16 && is_index16(r, t)))
        return vptq_fail(r->err, VPTQ_E_FORMAT, "%s: tensor '%s' is %s, expected %s", r->file,
                         t->name, vptq_dtype_get(t->type)->name, vptq_dtype_get(type)->name);
    if (!same_shape(t, want)) {
        vptq_shape_text(t->shape, t->dims, found);
        vptq_shape_text(want->size, want->dims, expected);
        return vptq_fail(r->err, VPTQ_E_SHAPE, "%s: tensor '%s' is [%s], expected [%s]",
                         r->file, t->name, found, expected);
    }
    return load_part(r, t, out);
}

/* A part of real numbers, widened. */
static vptq_status read_numbers(const matrix_reader *r, const char *part,
                                const part_shape *want, const float **out)
{
    vptq_tensor t;
    vptq_status st = need_part(r, part, r->storage, r->storage, want, &t);
    if (st || r->shapes_only)
        return st;
    size_t n = t.bytes / sizeof(uint16_t);
    float *x = vptq_arena_alloc(r->arena, n, sizeof *x, r->err);
    if (!x)
        return VPTQ_E_NOMEM;
    const uint16_t *src = (const uint16_t *)(const void *)t.data;
    if (r->storage == VPTQ_F16)
        vptq_f16_to_f32_n(src, x, n);
    else
        vptq_bf16_to_f32_n(src, x, n);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return vptq_fail(r->err, VPTQ_E_NUMERIC, "%s: tensor '%s': element %zu is %g",
                             r->file, t.name, i, (double)x[i]);
    *out = x;
    return VPTQ_OK;
}

/* The type of the codebook decides what every other number is stored in. */
static vptq_status read_storage(matrix_reader *r)
{
    const vptq_tensor *t = find_part(r, "centroids.weight");
    if (!t)
        return vptq_fail(r->err, VPTQ_E_FORMAT, "%s: tensor '%s.centroids.weight' is missing",
                         r->file, r->name);
    r->storage = t->type;
    if (t->type != VPTQ_F16 && t->type != VPTQ_BF16)
        return vptq_fail(r->err, VPTQ_E_UNSUPPORTED,
                         "%s: tensor '%s' is %s, expected F16 or "
                         "BF16",
                         r->file, t->name, vptq_dtype_get(t->type)->name);
    return VPTQ_OK;
}

/* 16-bit indices below k, as they are.  `cols` names places in messages. */
static vptq_status read_u16(const matrix_reader *r, const char *part, const part_shape *want,
                            uint32_t k, const uint16_t **out)
{
    vptq_tensor t;
    vptq_status st = need_part(r, part, VPTQ_I16, VPTQ_U16, want, &t);
    if (st || r->shapes_only)
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
            return vptq_fail(r->err, VPTQ_E_FORMAT,
                             "%s: tensor '%s': row %zu, column %zu: index %u, but there are %u "
                             "centroids",
                             r->file, t.name, i / cols, i % cols, (unsigned)x[i], (unsigned)k);
    *out = x;
    return VPTQ_OK;
}

/* The published form: words of fields.  k and k_res are powers of two, so that a field cannot
 * name a centroid that does not exist. */
static vptq_status read_packed_indices(const matrix_reader *r, const vptq_vq_shape *s,
                                       const uint32_t **out)
{
    part_shape want = {3, {s->groups, vptq_vq_vector_rows(s), vptq_vq_row_words(s)}};
    vptq_tensor t;
    vptq_status st = need_part(r, "indices", VPTQ_I32, VPTQ_U32, &want, &t);
    if (st || r->shapes_only)
        return st;
    if ((uintptr_t)t.data % sizeof(uint32_t) == 0) {
        *out = (const uint32_t *)(const void *)t.data;
        return VPTQ_OK;
    }
    uint32_t *words = vptq_arena_alloc(r->arena, t.bytes, 1, r->err);
    if (!words)
        return VPTQ_E_NOMEM;
    memcpy(words, t.data, t.bytes);
    *out = words;
    return VPTQ_OK;
}

/* The training form: one 16-bit number per index and codebook. */
static vptq_status read_plain_indices(matrix_reader *r, const vptq_vq_shape *s,
                                      const uint32_t **out)
{
    part_shape want = {3, {s->groups, vptq_vq_vector_rows(s), s->group_size}};
    const uint16_t *main_index = NULL, *res_index = NULL;
    VPTQ_CHECK(part_done(r, read_u16(r, "indices", &want, s->k, &main_index)));
    if (s->k_res)
        VPTQ_CHECK(part_done(r, read_u16(r, "res_indices", &want, s->k_res, &res_index)));
    if (!main_index || (s->k_res && !res_index))
        return VPTQ_OK; /* told, or not looked at */
    size_t rows = (size_t)s->groups * vptq_vq_vector_rows(s), row_words = vptq_vq_row_words(s);
    unsigned bits = vptq_vq_index_bits(s), main_bits = vptq_log2u(s->k);
    uint32_t *words = vptq_arena_zalloc(r->arena, rows * row_words, sizeof *words, r->err);
    if (!words)
        return VPTQ_E_NOMEM;
    for (size_t row = 0; row < rows; row++)
        for (size_t c = 0; c < s->group_size; c++) {
            size_t at = row * s->group_size + c;
            uint32_t field = main_index[at];
            if (res_index)
                field |= (uint32_t)res_index[at] << main_bits;
            vptq_bits_put(words + row * row_words, c, bits, field);
        }
    *out = words;
    return VPTQ_OK;
}

/* Element i of a perm tensor, which is 16 bits unsigned in published files and I64 in the
 * training form; a value that cannot be an index gives UINT64_MAX. */
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
        need_part(r, "perm", type, type == VPTQ_I16 ? VPTQ_U16 : VPTQ_I64, &want, &t);
    if (st || r->shapes_only)
        return st;
    uint16_t *perm = vptq_arena_alloc(r->arena, s->in, sizeof *perm, r->err);
    if (!perm)
        return VPTQ_E_NOMEM;
    uint8_t seen[VPTQ_VQ_MAX_K / 8] = {0};
    for (size_t i = 0; i < s->in; i++) {
        uint64_t x = perm_at(&t, i);
        if (x >= s->in)
            return vptq_fail(r->err, VPTQ_E_FORMAT,
                             "%s: tensor '%s': element %zu is no column of the %u that there "
                             "are",
                             r->file, t.name, i, (unsigned)s->in);
        if (seen[x / 8] >> (x % 8) & 1)
            return vptq_fail(r->err, VPTQ_E_FORMAT,
                             "%s: tensor '%s' is no permutation: element %zu names column %u "
                             "again",
                             r->file, t.name, i, (unsigned)x);
        seen[x / 8] |= (uint8_t)(1u << (x % 8));
        perm[i] = (uint16_t)x;
    }
    *out = perm;
    return VPTQ_OK;
}

static vptq_status read_norm(matrix_reader *r, vptq_vq *q)
{
    part_shape want = {1, {q->shape.in}};
    VPTQ_CHECK(part_done(r, read_numbers(r, "weight_scale", &want, &q->scale)));
    return part_done(r, read_numbers(r, "weight_bias", &want, &q->bias));
}

static vptq_status read_outliers(matrix_reader *r, vptq_vq *q)
{
    const vptq_vq_shape *s = &q->shape;
    part_shape codebook = {2, {1, (uint64_t)s->k0 * s->v0}};
    part_shape indices = {3, {1, (s->out + s->v0 - 1) / s->v0, s->outliers}};
    VPTQ_CHECK(part_done(
        r, read_numbers(r, "outlier_centroids.weight", &codebook, &q->outlier_centroids)));
    return part_done(r, read_u16(r, "outlier_indices", &indices, s->k0, &q->outlier_indices));
}

/* What the entry says is not there must not be there: a reader that trusts the entry and one
 * that trusts the tensors would see two different matrices. */
static vptq_status check_absent(const matrix_reader *r, const char *part, const char *key)
{
    if (!find_part(r, part))
        return VPTQ_OK;
    return vptq_fail(r->err, VPTQ_E_FORMAT,
                     "%s: tensor '%s.%s' is there, but the entry of the layer says that it has "
                     "none (%s)",
                     r->file, r->name, part, key);
}

/* Parts that change nothing in what is read: only checking minds them. */
static vptq_status match_leftovers(matrix_reader *r, const vptq_packed_layout *layout)
{
    const vptq_vq_shape *s = &layout->shape;
    if (!s->has_norm && !find_part(r, "weight_scale"))
        VPTQ_CHECK(part_done(r, check_absent(r, "weight_bias", "enable_norm")));
    if (!s->outliers)
        VPTQ_CHECK(part_done(r, check_absent(r, "outlier_centroids.weight", "outlier_size")));
    if (layout->bit_packed)
        VPTQ_CHECK(part_done(r, check_absent(r, "res_indices", "is_indice_packed")));
    else if (!s->k_res)
        VPTQ_CHECK(part_done(r, check_absent(r, "res_indices", "num_res_centroids")));
    return part_done(r, check_absent(r, "weight", "its parts stand for it"));
}

/* The other way round is read: files whose permutation was absorbed later may still say
 * enable_perm, and no scale and bias means 1 and 0, which is what upstream starts them with. */
static vptq_status match_flags(matrix_reader *r, const vptq_packed_layout *layout,
                               vptq_vq_shape *s)
{
    if (!s->has_perm)
        VPTQ_CHECK(part_done(r, check_absent(r, "perm", "enable_perm")));
    if (!s->has_norm)
        VPTQ_CHECK(part_done(r, check_absent(r, "weight_scale", "enable_norm")));
    if (!s->k_res)
        VPTQ_CHECK(part_done(r, check_absent(r, "res_centroids.weight", "num_res_centroids")));
    if (!s->outliers)
        VPTQ_CHECK(part_done(r, check_absent(r, "outlier_indices", "outlier_size")));
    if (r->fault)
        VPTQ_CHECK(match_leftovers(r, layout));
    s->has_perm = find_part(r, "perm") != NULL;
    s->has_norm = find_part(r, "weight_scale") || find_part(r, "weight_bias");
    return VPTQ_OK;
}

static vptq_status read_parts(matrix_reader *r, const vptq_packed_layout *layout, vptq_vq *q)
{
    const vptq_vq_shape *s = &q->shape;
    part_shape codebook = {2, {s->groups, (uint64_t)s->k * s->v}};
    part_shape res_codebook = {2, {s->groups, (uint64_t)s->k_res * s->v}};
    VPTQ_CHECK(part_done(r, read_numbers(r, "centroids.weight", &codebook, &q->centroids)));
    if (s->k_res)
        VPTQ_CHECK(part_done(
            r, read_numbers(r, "res_centroids.weight", &res_codebook, &q->res_centroids)));
    if (layout->bit_packed)
        VPTQ_CHECK(part_done(r, read_packed_indices(r, s, &q->indices)));
    else
        VPTQ_CHECK(read_plain_indices(r, s, &q->indices));
    if (s->outliers)
        VPTQ_CHECK(read_outliers(r, q));
    if (s->has_perm)
        VPTQ_CHECK(part_done(r, read_perm(r, s, layout->bit_packed, &q->perm)));
    if (s->has_norm)
        VPTQ_CHECK(read_norm(r, q));
    return VPTQ_OK;
}

static vptq_status read_matrix(matrix_reader *r, const json_t *entry, vptq_packed_matrix *out)
{
    vptq_packed_layout layout;
    size_t before = r->faults;
    VPTQ_CHECK(part_done(r, vptq_packed_parse_entry(entry, r->name, r->file, &layout, r->err)));
    if (r->faults == before)
        VPTQ_CHECK(part_done(r, read_storage(r)));
    if (r->faults != before)
        return VPTQ_OK; /* without its entry and the type of its numbers nothing can be said */
    vptq_vq q = {.shape = layout.shape};
    r->as_float = layout.as_float;
    VPTQ_CHECK(match_flags(r, &layout, &q.shape));
    VPTQ_CHECK(read_parts(r, &layout, &q));
    char *own_name = vptq_arena_strdup(r->arena, r->name, r->err);
    if (!own_name)
        return VPTQ_E_NOMEM;
    *out = (vptq_packed_matrix){.name = own_name, .vq = q, .storage = r->storage};
    return VPTQ_OK;
}

vptq_status vptq_packed_read(const vptq_tensor_set *set, const json_t *entry, const char *name,
                             const char *file, vptq_arena *arena, vptq_packed_matrix *out,
                             vptq_err *err)
{
    matrix_reader r = {.set = set, .name = name, .file = file, .arena = arena, .err = err};
    return read_matrix(&r, entry, out);
}

vptq_status vptq_packed_read_shape(const vptq_tensor_set *set, const json_t *entry,
                                   const char *name, const char *file, vptq_arena *arena,
                                   vptq_packed_matrix *out, vptq_err *err)
{
    matrix_reader r = {.set = set,
                       .name = name,
                       .file = file,
                       .arena = arena,
                       .err = err,
                       .shapes_only = true};
    return read_matrix(&r, entry, out);
}

vptq_status vptq_packed_check(const vptq_tensor_set *set, const json_t *entry, const char *name,
                              const char *file, vptq_arena *arena, vptq_fault_fn fault,
                              void *arg, vptq_packed_matrix *out, bool *whole, vptq_err *err)
{
    vptq_err own = {0};
    matrix_reader r = {.set = set,
                       .name = name,
                       .file = file,
                       .arena = arena,
                       .err = &own,
                       .fault = fault,
                       .fault_arg = arg};
    vptq_status st = read_matrix(&r, entry, out);
    *whole = !st && r.faults == 0;
    return st ? vptq_fail(err, st, "%s", own.text) : VPTQ_OK;
}

size_t vptq_packed_module_length(const char *tensor_name)
{
    static const char *const parts[] = {
        ".centroids.weight", ".res_centroids.weight",     ".indices", ".res_indices",
        ".outlier_indices",  ".outlier_centroids.weight", ".perm",    ".weight_scale",
        ".weight_bias"};
    size_t len = strlen(tensor_name);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        size_t n = strlen(parts[i]);
        if (len > n && strcmp(tensor_name + len - n, parts[i]) == 0)
            return len - n;
    }
    return 0;
}
