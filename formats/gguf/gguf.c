/* Reads the GGUF container: header, key-value pairs, tensor list.  A cursor bounds every read
 * by the rest of the file, and every count is checked against that rest before memory of its
 * size is allocated. */
#include "formats/gguf/gguf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/le.h"

enum {
    MAX_KEYS = 1 << 16,    /* real files have fewer than a hundred */
    MAX_TENSORS = 1 << 20, /* and a few thousand tensors */
    MAX_NAME = 255,        /* bytes of a key or tensor name; ggml's own limit is 64 */
    MAX_GGUF_DIMS = 4,
    DEFAULT_ALIGNMENT = 32,
    MIN_ALIGNMENT = 8 /* required by the format; keeps floats aligned */
};

typedef struct cursor {
    const char *path;
    const uint8_t *data;
    size_t at, size;
} cursor;

/* Takes n bytes; fails if fewer are left.  `what` names them in the message. */
static vptq_status take(cursor *c, uint64_t n, const char *what, const uint8_t **p,
                        vptq_err *err)
{
    size_t left = c->size - c->at;
    if (n > left)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: %s at byte %zu needs %" PRIu64 " bytes, the file has %zu left",
                         c->path, what, c->at, n, left);
    *p = c->data + c->at;
    c->at += (size_t)n;
    return VPTQ_OK;
}

static vptq_status take_u64(cursor *c, const char *what, uint64_t *out, vptq_err *err)
{
    const uint8_t *number = c->data + c->at, *taken;
    VPTQ_CHECK(take(c, 8, what, &taken, err));
    *out = vptq_get_le(number, 8);
    return VPTQ_OK;
}

static vptq_status take_u32(cursor *c, const char *what, uint32_t *out, vptq_err *err)
{
    const uint8_t *number = c->data + c->at, *taken;
    VPTQ_CHECK(take(c, 4, what, &taken, err));
    *out = (uint32_t)vptq_get_le(number, 4);
    return VPTQ_OK;
}

static vptq_status take_str(cursor *c, const char *what, vptq_gguf_str *s, vptq_err *err)
{
    uint64_t len = 0;
    const uint8_t *p = NULL;
    VPTQ_CHECK(take_u64(c, what, &len, err));
    VPTQ_CHECK(take(c, len, what, &p, err));
    s->data = (const char *)p;
    s->len = (size_t)len;
    return VPTQ_OK;
}

/* Takes a key or tensor name: these are printed in messages and compared as C strings. */
static vptq_status take_name(cursor *c, const char *what, vptq_gguf_str *s, vptq_err *err)
{
    VPTQ_CHECK(take_str(c, what, s, err));
    if (s->len == 0 || s->len > MAX_NAME)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: %s before byte %zu has %zu bytes, expected 1 to %d", c->path,
                         what, c->at, s->len, MAX_NAME);
    for (size_t i = 0; i < s->len; i++)
        if ((unsigned char)s->data[i] < 0x20 || s->data[i] == 0x7f)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: %s before byte %zu contains a control character", c->path,
                             what, c->at);
    return VPTQ_OK;
}

/* ---- key-value pairs ---- */

/* Bytes of a value; 0 for types without a fixed size. */
static const uint8_t value_size[] = {
    [VPTQ_GGUF_U8] = 1,  [VPTQ_GGUF_I8] = 1,  [VPTQ_GGUF_BOOL] = 1, [VPTQ_GGUF_U16] = 2,
    [VPTQ_GGUF_I16] = 2, [VPTQ_GGUF_U32] = 4, [VPTQ_GGUF_I32] = 4,  [VPTQ_GGUF_F32] = 4,
    [VPTQ_GGUF_U64] = 8, [VPTQ_GGUF_I64] = 8, [VPTQ_GGUF_F64] = 8,
};

static vptq_status take_type(cursor *c, const vptq_gguf_str *key, vptq_gguf_type *type,
                             vptq_err *err)
{
    uint32_t raw = 0;
    VPTQ_CHECK(take_u32(c, "the type of a value", &raw, err));
    if (raw > VPTQ_GGUF_F64)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: key '%.*s' has value type %" PRIu32 ", expected 0 to %d", c->path,
                         (int)key->len, key->data, raw, VPTQ_GGUF_F64);
    *type = (vptq_gguf_type)raw;
    return VPTQ_OK;
}

static vptq_status take_value(cursor *c, vptq_arena *arena, vptq_gguf_kv *kv, vptq_err *err)
{
    kv->count = 1;
    VPTQ_CHECK(take_type(c, &kv->key, &kv->type, err));
    kv->is_array = kv->type == VPTQ_GGUF_ARRAY;
    if (kv->is_array) {
        VPTQ_CHECK(take_type(c, &kv->key, &kv->type, err));
        VPTQ_CHECK(take_u64(c, "the length of an array", &kv->count, err));
        if (kv->type == VPTQ_GGUF_ARRAY)
            return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                             "%s: key '%.*s' is an array of arrays, which is not supported",
                             c->path, (int)kv->key.len, kv->key.data);
    }
    /* minimum bytes per element; a string has at least its length field */
    size_t each = kv->type == VPTQ_GGUF_STRING ? 8 : value_size[kv->type];
    if (kv->count > (c->size - c->at) / each)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: key '%.*s' has %" PRIu64
                         " elements, more than the rest of the file can hold",
                         c->path, (int)kv->key.len, kv->key.data, kv->count);
    kv->data = c->data + c->at;
    if (kv->type != VPTQ_GGUF_STRING) {
        c->at += (size_t)kv->count * each;
        return VPTQ_OK;
    }
    vptq_gguf_str *str = vptq_arena_alloc(arena, (size_t)kv->count, sizeof *str, err);
    if (!str)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < kv->count; i++)
        VPTQ_CHECK(take_str(c, "a string value", &str[i], err));
    kv->str = str;
    return VPTQ_OK;
}

static vptq_status take_keys(cursor *c, vptq_gguf *g, uint64_t count, vptq_err *err)
{
    /* a key has at least its length field, one byte, its type and one byte of value */
    if (count > MAX_KEYS || count > (c->size - c->at) / 14)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the header lists %" PRIu64 " keys, more than the file can hold",
                         c->path, count);
    VPTQ_CHECK(vptq_strmap_init(&g->keys, g->set.arena.mem, (size_t)count, err));
    g->kv = vptq_arena_zalloc(&g->set.arena, (size_t)count, sizeof *g->kv, err);
    if (!g->kv)
        return VPTQ_E_NOMEM;
    for (; g->kv_count < count; g->kv_count++) {
        vptq_gguf_kv *kv = &g->kv[g->kv_count];
        bool fresh = true;
        VPTQ_CHECK(take_name(c, "a key", &kv->key, err));
        VPTQ_CHECK(take_value(c, &g->set.arena, kv, err));
        VPTQ_CHECK(vptq_strmap_add(&g->keys, kv->key.data, kv->key.len, (uint32_t)g->kv_count,
                                   &fresh, err));
        if (!fresh)
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: duplicate key '%.*s'", c->path,
                             (int)kv->key.len, kv->key.data);
    }
    return VPTQ_OK;
}

/* ---- tensors ---- */

/* ggml's types by number; those left out are unused or were withdrawn. */
static const char *const ggml_types[] = {
    [0] = "F32",     [1] = "F16",      [2] = "Q4_0",   [3] = "Q4_1",    [6] = "Q5_0",
    [7] = "Q5_1",    [8] = "Q8_0",     [9] = "Q8_1",   [10] = "Q2_K",   [11] = "Q3_K",
    [12] = "Q4_K",   [13] = "Q5_K",    [14] = "Q6_K",  [15] = "Q8_K",   [16] = "IQ2_XXS",
    [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S", [20] = "IQ4_NL", [21] = "IQ3_S",
    [22] = "IQ2_S",  [23] = "IQ4_XS",  [24] = "I8",    [25] = "I16",    [26] = "I32",
    [27] = "I64",    [28] = "F64",     [29] = "IQ1_M", [30] = "BF16",   [34] = "TQ1_0",
    [35] = "TQ2_0",  [39] = "MXFP4",
};
enum { GGML_TYPES = sizeof ggml_types / sizeof ggml_types[0] };

uint32_t vptq_gguf_type_number(vptq_dtype type)
{
    const char *name = vptq_dtype_get(type)->name;
    uint32_t number = 0;
    while (number < GGML_TYPES &&
           (!ggml_types[number] || strcmp(ggml_types[number], name) != 0))
        number++;
    VPTQ_BUG_IF(number == GGML_TYPES);
    return number;
}

static vptq_status find_type(const vptq_tensor *t, uint32_t number, vptq_dtype *type,
                             vptq_err *err)
{
    const char *name = number < GGML_TYPES ? ggml_types[number] : NULL;
    for (int i = 0; name && i < VPTQ_DTYPE_COUNT; i++) {
        const vptq_dtype_info *info = vptq_dtype_get((vptq_dtype)i);
        *type = (vptq_dtype)i;
        if (info->is_float && *type != VPTQ_F64 && strcmp(info->name, name) == 0)
            return VPTQ_OK;
    }
    return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                     "%s: tensor '%s' has type %s (%" PRIu32
                     "); F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q2_K to Q6_K "
                     "are supported",
                     t->file, t->name, name ? name : "unknown", number);
}

/* Takes rank and dimensions, which the file lists innermost first. */
static vptq_status take_shape(cursor *c, vptq_tensor *t, uint64_t *elements, vptq_err *err)
{
    size_t total = 1;
    VPTQ_CHECK(take_u32(c, "the rank of a tensor", &t->dims, err));
    if (t->dims == 0 || t->dims > MAX_GGUF_DIMS)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: tensor '%s' has %" PRIu32 " dimensions, expected 1 to %d",
                         c->path, t->name, t->dims, MAX_GGUF_DIMS);
    for (uint32_t i = t->dims; i-- > 0;) {
        uint64_t n = 0;
        VPTQ_CHECK(take_u64(c, "a dimension of a tensor", &n, err));
        if (n == 0 || n > SIZE_MAX || !vptq_size_mul(total, (size_t)n, &total))
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: tensor '%s' has a dimension of %" PRIu64
                             ", its size is zero or overflows",
                             c->path, t->name, n);
        t->shape[i] = n;
    }
    *elements = total;
    return VPTQ_OK;
}

/* Takes one entry of the tensor list.  t->data stays NULL; *offset is relative to the data
 * section. */
static vptq_status take_tensor(cursor *c, char name[MAX_NAME + 1], vptq_tensor *t,
                               uint64_t *offset, vptq_err *err)
{
    vptq_gguf_str s = {NULL, 0};
    uint32_t number = 0;
    uint64_t elements = 0;
    VPTQ_CHECK(take_name(c, "a tensor's name", &s, err));
    memcpy(name, s.data, s.len);
    name[s.len] = '\0';
    *t = (vptq_tensor){.name = name, .file = c->path, .round_to = VPTQ_F32};
    VPTQ_CHECK(take_shape(c, t, &elements, err));
    VPTQ_CHECK(take_u32(c, "the type of a tensor", &number, err));
    VPTQ_CHECK(take_u64(c, "the offset of a tensor", offset, err));
    VPTQ_CHECK(find_type(t, number, &t->type, err));
    uint64_t row = t->shape[t->dims - 1];
    if (row % vptq_dtype_get(t->type)->block != 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: rows of tensor '%s' have %" PRIu64
                         " elements, expected a multiple of the %zu of a %s block",
                         c->path, name, row, vptq_dtype_get(t->type)->block,
                         vptq_dtype_get(t->type)->name);
    if (!vptq_dtype_bytes(t->type, (size_t)elements, &t->bytes))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: the size of tensor '%s' overflows", c->path,
                         name);
    return VPTQ_OK;
}

static vptq_status read_alignment(const vptq_gguf *g, uint64_t *alignment, vptq_err *err)
{
    VPTQ_CHECK(vptq_gguf_u64_or(g, "general.alignment", DEFAULT_ALIGNMENT, alignment, err));
    uint64_t a = *alignment;
    if (a < MIN_ALIGNMENT || a > UINT32_MAX || (a & (a - 1)) != 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: general.alignment is %" PRIu64
                         ", expected a power of two, at least %d",
                         g->path, a, MIN_ALIGNMENT);
    return VPTQ_OK;
}

static int by_address(const void *a, const void *b)
{
    const vptq_tensor *x = *(const vptq_tensor *const *)a, *y = *(const vptq_tensor *const *)b;
    return x->data < y->data ? -1 : x->data > y->data;
}

static vptq_status check_overlap(const vptq_gguf *g, vptq_err *err)
{
    size_t n = g->set.count;
    vptq_status st = VPTQ_OK;
    vptq_mem *mem = g->set.arena.mem;
    const vptq_tensor **order = vptq_mem_alloc(mem, n, sizeof(vptq_tensor *), err);
    if (!order)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        order[i] = &g->set.tensors[i];
    qsort(order, n, sizeof(vptq_tensor *), by_address);
    for (size_t i = 1; i < n && !st; i++)
        if ((size_t)(order[i]->data - order[i - 1]->data) < order[i - 1]->bytes)
            st = vptq_fail(err, VPTQ_E_FORMAT, "%s: tensors '%s' and '%s' overlap", g->path,
                           order[i - 1]->name, order[i]->name);
    vptq_mem_free(mem, order);
    return st;
}

/* Turns offsets into pointers; the data section begins at the next aligned byte. */
static vptq_status set_data(cursor *c, vptq_gguf *g, const uint64_t *offsets, vptq_err *err)
{
    uint64_t alignment = 0;
    VPTQ_CHECK(read_alignment(g, &alignment, err));
    uint64_t start = (c->at + alignment - 1) / alignment * alignment;
    uint64_t data_bytes = c->size > start ? c->size - start : 0;
    for (size_t i = 0; i < g->set.count; i++) {
        vptq_tensor *t = &g->set.tensors[i];
        if (offsets[i] % alignment != 0)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: tensor '%s' has offset %" PRIu64
                             ", expected a multiple of the alignment %" PRIu64,
                             c->path, t->name, offsets[i], alignment);
        if (offsets[i] > data_bytes || t->bytes > data_bytes - offsets[i])
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: tensor '%s' (%zu bytes at offset %" PRIu64
                             ") ends after the data section, which has %" PRIu64 " bytes",
                             c->path, t->name, t->bytes, offsets[i], data_bytes);
        t->data = c->data + start + offsets[i];
        t->mapped = true;
    }
    VPTQ_CHECK(check_overlap(g, err));
    return vptq_tensor_set_finish(&g->set, err);
}

static vptq_status take_tensors(cursor *c, vptq_gguf *g, uint64_t count, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    /* name, rank, type and offset have at least 8 + 1 + 4 + 4 + 8 bytes */
    if (count > MAX_TENSORS || count > (c->size - c->at) / 25)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the header lists %" PRIu64
                         " tensors, more than the file can hold",
                         c->path, count);
    uint64_t *offsets = vptq_mem_alloc(g->set.arena.mem, (size_t)count, sizeof *offsets, err);
    if (!offsets)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        char name[MAX_NAME + 1];
        vptq_tensor t;
        VPTQ_TRY(take_tensor(c, name, &t, &offsets[i], err));
        VPTQ_TRY(vptq_tensor_set_add(&g->set, &t, err));
    }
    st = set_data(c, g, offsets, err);
out:
    vptq_mem_free(g->set.arena.mem, offsets);
    return st;
}

/* ---- the file ---- */

static vptq_status take_header(cursor *c, uint32_t *version, uint64_t *tensors, uint64_t *keys,
                               vptq_err *err)
{
    const uint8_t *magic = NULL;
    VPTQ_CHECK(take(c, 4, "the magic", &magic, err));
    if (memcmp(magic, "GGUF", 4) != 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: is not a GGUF file: it does not begin with \"GGUF\"", c->path);
    VPTQ_CHECK(take_u32(c, "the version", version, err));
    if (*version == 0x02000000 || *version == 0x03000000)
        return vptq_fail(
            err, VPTQ_E_UNSUPPORTED,
            "%s: is a big-endian GGUF file, only little-endian files are supported", c->path);
    if (*version != 2 && *version != 3)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: has GGUF version %" PRIu32 ", supported are 2 and 3", c->path,
                         *version);
    VPTQ_CHECK(take_u64(c, "the tensor count", tensors, err));
    return take_u64(c, "the key count", keys, err);
}

vptq_status vptq_gguf_open(const char *path, vptq_mem *mem, vptq_gguf *g, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_map map = {NULL, 0};
    uint64_t tensors = 0, keys = 0;
    *g = (vptq_gguf){0};
    vptq_tensor_set_init(&g->set, mem);
    VPTQ_TRY(vptq_map_open(path, &map, err));
    cursor c = {path, map.data, 0, map.size};
    VPTQ_TRY(vptq_tensor_set_own_map(&g->set, &map, err));
    g->path = vptq_arena_strdup(&g->set.arena, path, err);
    if (!g->path)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(take_header(&c, &g->version, &tensors, &keys, err));
    VPTQ_TRY(take_keys(&c, g, keys, err));
    VPTQ_TRY(take_tensors(&c, g, tensors, err));
out:
    if (st)
        vptq_gguf_release(g);
    return st;
}

void vptq_gguf_release(vptq_gguf *g)
{
    vptq_strmap_release(&g->keys);
    vptq_tensor_set_release(&g->set);
    *g = (vptq_gguf){0};
}

bool vptq_gguf_is(const char *path)
{
    char magic[4];
    vptq_file f;
    if (vptq_file_open(path, &f, NULL))
        return false;
    bool is = !vptq_file_read_at(&f, 0, magic, sizeof magic, NULL) &&
              memcmp(magic, "GGUF", sizeof magic) == 0;
    vptq_file_close(&f);
    return is;
}

/* ---- look-ups ---- */

const vptq_gguf_kv *vptq_gguf_find(const vptq_gguf *g, const char *key)
{
    uint32_t i = 0;
    return vptq_strmap_get(&g->keys, key, strlen(key), &i) ? &g->kv[i] : NULL;
}

double vptq_gguf_num_at(const vptq_gguf_kv *kv, uint64_t i)
{
    size_t size = value_size[kv->type];
    VPTQ_BUG_IF(size == 0 || i >= kv->count);
    uint64_t raw = vptq_get_le(kv->data + i * size, (unsigned)size);
    uint32_t raw32 = (uint32_t)raw;
    float f;
    double d;
    switch (kv->type) {
    case VPTQ_GGUF_I8:
        return (int8_t)raw;
    case VPTQ_GGUF_I16:
        return (int16_t)raw;
    case VPTQ_GGUF_I32:
        return (int32_t)raw;
    case VPTQ_GGUF_I64:
        return (double)(int64_t)raw;
    case VPTQ_GGUF_F32:
        memcpy(&f, &raw32, sizeof f);
        return (double)f;
    case VPTQ_GGUF_F64:
        memcpy(&d, &raw, sizeof d);
        return d;
    default:
        return (double)raw;
    }
}

static vptq_status wrong_type(const vptq_gguf *g, const char *key, const char *expected,
                              vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: the value of key '%s' is not %s", g->path, key,
                     expected);
}

/* Sets of types: bit T is type T. */
enum {
    INTEGERS = 1 << VPTQ_GGUF_U8 | 1 << VPTQ_GGUF_I8 | 1 << VPTQ_GGUF_U16 | 1 << VPTQ_GGUF_I16 |
               1 << VPTQ_GGUF_U32 | 1 << VPTQ_GGUF_I32 | 1 << VPTQ_GGUF_U64 |
               1 << VPTQ_GGUF_I64,
    NUMBERS = INTEGERS | 1 << VPTQ_GGUF_F32 | 1 << VPTQ_GGUF_F64
};

/* Finds a scalar of one of these types; *kv is NULL if the key is missing. */
static vptq_status find_scalar(const vptq_gguf *g, const char *key, int types,
                               const char *expected, const vptq_gguf_kv **kv, vptq_err *err)
{
    *kv = vptq_gguf_find(g, key);
    if (*kv && ((*kv)->is_array || !(types >> (*kv)->type & 1)))
        return wrong_type(g, key, expected, err);
    return VPTQ_OK;
}

vptq_status vptq_gguf_u64_or(const vptq_gguf *g, const char *key, uint64_t fallback,
                             uint64_t *out, vptq_err *err)
{
    const vptq_gguf_kv *kv;
    VPTQ_CHECK(find_scalar(g, key, INTEGERS, "an integer", &kv, err));
    if (kv && vptq_gguf_num_at(kv, 0) < 0)
        return wrong_type(g, key, "zero or more", err);
    *out = kv ? vptq_get_le(kv->data, value_size[kv->type]) : fallback;
    return VPTQ_OK;
}

vptq_status vptq_gguf_f64_or(const vptq_gguf *g, const char *key, double fallback, double *out,
                             vptq_err *err)
{
    const vptq_gguf_kv *kv;
    VPTQ_CHECK(find_scalar(g, key, NUMBERS, "a number", &kv, err));
    *out = kv ? vptq_gguf_num_at(kv, 0) : fallback;
    return VPTQ_OK;
}

vptq_status vptq_gguf_bool_or(const vptq_gguf *g, const char *key, bool fallback, bool *out,
                              vptq_err *err)
{
    const vptq_gguf_kv *kv;
    VPTQ_CHECK(find_scalar(g, key, 1 << VPTQ_GGUF_BOOL, "true or false", &kv, err));
    if (kv && kv->data[0] > 1)
        return wrong_type(g, key, "true or false", err);
    *out = kv ? kv->data[0] != 0 : fallback;
    return VPTQ_OK;
}

vptq_status vptq_gguf_str_or(const vptq_gguf *g, const char *key, vptq_gguf_str *out,
                             vptq_err *err)
{
    const vptq_gguf_kv *kv;
    VPTQ_CHECK(find_scalar(g, key, 1 << VPTQ_GGUF_STRING, "a string", &kv, err));
    *out = kv ? kv->str[0] : (vptq_gguf_str){NULL, 0};
    if (kv && memchr(out->data, '\0', out->len))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' has a zero byte in its text",
                         g->path, key);
    return VPTQ_OK;
}
