/* Converts and checks tensor data, and keeps sets of tensors. */
#include "formats/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf/quants.h"
#include "lib/base/half.h"

size_t vptq_tensor_rows(const vptq_tensor *t)
{
    return t->dims >= 2 ? (size_t)t->shape[0] : 1;
}

size_t vptq_tensor_cols(const vptq_tensor *t)
{
    size_t cols = 1;
    for (uint32_t i = t->dims >= 2 ? 1 : 0; i < t->dims; i++)
        cols *= (size_t)t->shape[i];
    return cols;
}

/* ---- bytes ---- */

vptq_status vptq_tensor_bytes(const vptq_tensor *t, size_t offset, size_t n, void *buf,
                              const uint8_t **bytes, vptq_err *err)
{
    VPTQ_BUG_IF(t->uniform || offset > t->bytes || n > t->bytes - offset);
    *bytes = t->data ? t->data + offset : buf;
    if (t->data || n == 0)
        return VPTQ_OK;
    if (!t->source)
        return vptq_fail(err, VPTQ_E_CHECKSUM, "%s: tensor '%s' is damaged", t->file, t->name);
    return t->source->read(t->source->arg, offset, n, buf, err);
}

size_t vptq_tensor_piece(const vptq_tensor *t, size_t offset)
{
    size_t element = vptq_dtype_get(t->type)->bytes;
    size_t piece = VPTQ_TENSOR_PIECE / element * element;
    return t->bytes - offset < piece ? t->bytes - offset : piece;
}

const void *vptq_tensor_aligned(const vptq_tensor *t, vptq_arena *arena, vptq_err *err)
{
    if ((uintptr_t)t->data % vptq_dtype_get(t->type)->bytes == 0)
        return t->data;
    void *copy = vptq_arena_alloc(arena, t->bytes, 1, err);
    if (copy)
        memcpy(copy, t->data, t->bytes);
    return copy;
}

/* ---- rows ---- */

/* Converts n consecutive elements of any float type from unaligned bytes. */
static void convert(vptq_dtype type, const uint8_t *src, size_t n, float *dst)
{
    switch (type) {
    case VPTQ_F32:
        memcpy(dst, src, n * sizeof *dst);
        break;
    case VPTQ_F16:
        vptq_f16_to_f32_n((const uint16_t *)(const void *)src, dst, n);
        break;
    case VPTQ_BF16:
        vptq_bf16_to_f32_n((const uint16_t *)(const void *)src, dst, n);
        break;
    case VPTQ_F64:
        for (size_t i = 0; i < n; i++) {
            double x;
            memcpy(&x, src + i * sizeof x, sizeof x);
            dst[i] = (float)x;
        }
        break;
    default:
        vptq_ggml_dequantize(type, src, n, dst);
        break;
    }
}

/* Converts elements [first, first + n).  Blocks run through all elements in order, so rows may
 * begin and end within one. */
static void convert_range(const vptq_tensor *t, size_t first, size_t n, float *dst)
{
    const vptq_dtype_info *info = vptq_dtype_get(t->type);
    float block[VPTQ_DTYPE_MAX_BLOCK];
    for (size_t count; n > 0; first += count, dst += count, n -= count) {
        const uint8_t *src = t->data + first / info->block * info->bytes;
        const size_t skip = first % info->block, rest = info->block - skip;
        count = skip ? 0 : n / info->block * info->block; /* whole blocks */
        if (count) {
            convert(t->type, src, count, dst);
            continue;
        }
        count = n < rest ? n : rest;
        convert(t->type, src, info->block, block);
        memcpy(dst, block + skip, count * sizeof *dst);
    }
}

/* VPTQ_E_UNSUPPORTED unless the tensor has whole blocks of real numbers. */
static vptq_status check_numbers(const vptq_tensor *t, vptq_err *err)
{
    const vptq_dtype_info *info = vptq_dtype_get(t->type);
    if (!info->is_float)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: tensor '%s' holds %s values, expected real numbers", t->file,
                         t->name, info->name);
    const size_t elements = vptq_tensor_rows(t) * vptq_tensor_cols(t);
    if (elements % info->block)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: tensor '%s' has %zu elements, expected a multiple of the %zu "
                         "of a %s block",
                         t->file, t->name, elements, info->block, info->name);
    return VPTQ_OK;
}

/* Index in the file of row r of a matrix, or of element r of a vector. */
static size_t stored_row(const vptq_tensor *t, size_t rows, size_t r)
{
    if (!t->rope_heads)
        return r;
    size_t d = rows / t->rope_heads;
    size_t head = r / d, in_head = r % d;
    size_t half = in_head / (d / 2), i = in_head % (d / 2);
    return head * d + 2 * i + half;
}

vptq_status vptq_tensor_read(const vptq_tensor *t, size_t r0, size_t n, float *dst,
                             vptq_err *err)
{
    const vptq_dtype_info *info = vptq_dtype_get(t->type);
    VPTQ_CHECK(check_numbers(t, err));
    size_t rows = vptq_tensor_rows(t), cols = vptq_tensor_cols(t);
    bool vector = t->dims < 2;
    VPTQ_BUG_IF(r0 > rows || n > rows - r0);
    VPTQ_BUG_IF(t->rope_heads && (vector ? cols : rows) % (2 * (size_t)t->rope_heads) != 0);
    VPTQ_BUG_IF(t->rope_heads && vector && info->block > 1);
    if (n == 0 || cols == 0)
        return VPTQ_OK;
    if (t->uniform)
        vptq_uniform_read(t->uniform, r0, n, dst);
    else if (!t->rope_heads)
        convert_range(t, r0 * cols, n * cols, dst);
    else if (vector)
        for (size_t c = 0; c < cols; c++)
            convert_range(t, stored_row(t, cols, c), 1, dst + c);
    else
        for (size_t r = 0; r < n; r++)
            convert_range(t, stored_row(t, rows, r0 + r) * cols, cols, dst + r * cols);
    if (t->round_to != VPTQ_F32)
        vptq_round_to_n(t->round_to, dst, n * cols);
    return VPTQ_OK;
}

/* A float is not finite if all exponent bits are set; adding one to the exponent field then
 * carries into the sign bit.  The masks cover all lanes of a 64-bit word, so that a word is
 * tested at once; no carry leaves its lane. */
typedef struct finite_masks {
    uint64_t exponent, one, carry;
    size_t width; /* bytes of an element */
} finite_masks;

/* By type; width 0 for types of other layouts. */
static const finite_masks masks[VPTQ_DTYPE_COUNT] = {
    [VPTQ_F32] = {UINT64_C(0x7f8000007f800000), UINT64_C(0x0080000000800000),
                  UINT64_C(0x8000000080000000), 4},
    [VPTQ_F16] = {UINT64_C(0x7c007c007c007c00), UINT64_C(0x0400040004000400),
                  UINT64_C(0x8000800080008000), 2},
    [VPTQ_BF16] = {UINT64_C(0x7f807f807f807f80), UINT64_C(0x0080008000800080),
                   UINT64_C(0x8000800080008000), 2},
    [VPTQ_F64] = {UINT64_C(0x7ff0000000000000), UINT64_C(0x0010000000000000),
                  UINT64_C(0x8000000000000000), 8},
};

static uint64_t bad_lanes(const finite_masks *m, const uint8_t *p, size_t bytes)
{
    uint64_t word = 0;
    memcpy(&word, p, bytes);
    return ((word & m->exponent) + m->one) & m->carry;
}

/* Index of the first element that is not finite; n if there is none. */
static size_t find_nonfinite(const finite_masks *m, const uint8_t *p, size_t n)
{
    enum { WORDS = 512 };
    size_t bytes = n * m->width, at = 0;
    for (; bytes - at >= WORDS * 8; at += WORDS * 8) {
        uint64_t any = 0;
        for (size_t w = 0; w < WORDS; w++)
            any |= bad_lanes(m, p + at + w * 8, 8);
        if (any)
            break;
    }
    for (; at < bytes; at += m->width)
        if (bad_lanes(m, p + at, m->width))
            return at / m->width;
    return n;
}

/* The same for block types, whose scales can be NaN or infinite. */
static size_t find_nonfinite_block(vptq_dtype type, const vptq_dtype_info *info,
                                   const uint8_t *bytes, size_t n)
{
    enum { PIECE = 1024 }; /* a multiple of every block size */
    float x[PIECE];
    for (size_t at = 0; at < n; at += PIECE) {
        size_t len = n - at < PIECE ? n - at : PIECE;
        vptq_ggml_dequantize(type, bytes + at / info->block * info->bytes, len, x);
        size_t bad = find_nonfinite(&masks[VPTQ_F32], (const uint8_t *)x, len);
        if (bad < len)
            return at + bad;
    }
    return n;
}

vptq_status vptq_tensor_check_piece(const vptq_tensor *t, const uint8_t *bytes, size_t offset,
                                    size_t n, vptq_err *err)
{
    const vptq_dtype_info *info = vptq_dtype_get(t->type);
    if (!info->is_float)
        return VPTQ_OK; /* integers are always finite */
    VPTQ_CHECK(check_numbers(t, err));
    size_t count = n / info->bytes * info->block, before = offset / info->bytes * info->block;
    size_t cols = vptq_tensor_cols(t);
    const finite_masks *m = &masks[t->type];
    size_t bad = m->width ? find_nonfinite(m, bytes, count)
                          : find_nonfinite_block(t->type, info, bytes, count);
    if (bad < count)
        return vptq_fail(err, VPTQ_E_NUMERIC,
                         "%s: tensor '%s' has a value that is not finite in row %zu, column "
                         "%zu",
                         t->file, t->name, (before + bad) / cols, (before + bad) % cols);
    return VPTQ_OK;
}

vptq_status vptq_tensor_check_finite(const vptq_tensor *t, vptq_err *err)
{
    const vptq_dtype_info *info = vptq_dtype_get(t->type);
    size_t n = vptq_tensor_rows(t) * vptq_tensor_cols(t) / info->block * info->bytes;
    return vptq_tensor_check_piece(t, t->data, 0, n, err);
}

void vptq_tensor_forget(const vptq_tensor *t)
{
    if (t->mapped)
        vptq_map_forget(t->data, t->bytes);
}

void vptq_tensor_ahead(const vptq_tensor *t)
{
    if (t->mapped)
        vptq_map_ahead(t->data, t->bytes);
}

/* ---- sets ---- */

void vptq_tensor_set_init(vptq_tensor_set *s, vptq_mem *mem)
{
    *s = (vptq_tensor_set){0};
    vptq_arena_init(&s->arena, mem);
}

void vptq_tensor_set_release(vptq_tensor_set *s)
{
    for (size_t i = 0; i < s->map_count; i++)
        vptq_map_release(&s->maps[i]);
    vptq_strmap_release(&s->by_name);
    vptq_mem *mem = s->arena.mem;
    vptq_arena_release(&s->arena);
    vptq_tensor_set_init(s, mem);
}

const vptq_tensor *vptq_tensor_find(const vptq_tensor_set *s, const char *name)
{
    uint32_t i;
    return vptq_strmap_get(&s->by_name, name, strlen(name), &i) ? &s->tensors[i] : NULL;
}

static vptq_status missing(const vptq_tensor_set *s, const char *name, vptq_err *err)
{
    if (s->count == 0)
        return vptq_fail(err, VPTQ_E_FORMAT, "tensor '%s' is missing (there are no tensors)",
                         name);
    if (s->map_count > 1)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s and the files next to it: tensor '%s' is missing (they have %zu "
                         "tensors)",
                         s->tensors[0].file, name, s->count);
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: tensor '%s' is missing (the file has %zu %s)",
                     s->tensors[0].file, name, s->count, s->count == 1 ? "tensor" : "tensors");
}

void vptq_shape_text(const uint64_t *shape, uint32_t dims, char text[VPTQ_SHAPE_TEXT])
{
    size_t at = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < dims; i++)
        at += (size_t)snprintf(text + at, VPTQ_SHAPE_TEXT - at, "%s%llu", i ? ", " : "",
                               (unsigned long long)shape[i]);
}

vptq_status vptq_tensor_need(const vptq_tensor_set *s, const char *name, uint64_t rows,
                             uint64_t cols, const vptq_tensor **out, vptq_err *err)
{
    const vptq_tensor *t = vptq_tensor_find(s, name);
    if (!t)
        return missing(s, name, err);
    const uint64_t both[2] = {rows, cols}, *shape = rows ? both : both + 1;
    const uint32_t dims = rows ? 2 : 1;
    *out = t;
    if (t->dims == dims && memcmp(t->shape, shape, dims * sizeof *shape) == 0)
        return VPTQ_OK;
    char found[VPTQ_SHAPE_TEXT], expected[VPTQ_SHAPE_TEXT];
    vptq_shape_text(t->shape, t->dims, found);
    vptq_shape_text(shape, dims, expected);
    return vptq_fail(err, VPTQ_E_SHAPE, "%s: tensor '%s' has shape [%s], expected [%s]",
                     t->file, name, found, expected);
}

/* Ensures capacity for one more tensor; the arena keeps outgrown arrays until the end. */
static vptq_status reserve_tensor(vptq_tensor_set *s, vptq_err *err)
{
    if (s->count < s->cap)
        return VPTQ_OK;
    size_t cap = s->cap ? s->cap * 2 : 16;
    vptq_tensor *grown = vptq_arena_alloc(&s->arena, cap, sizeof *grown, err);
    if (!grown)
        return VPTQ_E_NOMEM;
    if (s->count)
        memcpy(grown, s->tensors, s->count * sizeof *grown);
    s->tensors = grown;
    s->cap = cap;
    return VPTQ_OK;
}

/* Copies a path, shared with the previous tensor if that is from the same file. */
static const char *keep_path(vptq_tensor_set *s, const char *path, vptq_err *err)
{
    if (s->count && strcmp(s->tensors[s->count - 1].file, path) == 0)
        return s->tensors[s->count - 1].file;
    return vptq_arena_strdup(&s->arena, path, err);
}

vptq_status vptq_tensor_set_add(vptq_tensor_set *s, const vptq_tensor *t, vptq_err *err)
{
    for (const char *c = t->name; *c; c++)
        if ((unsigned char)*c < 0x20)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: the name of tensor %zu contains a control character", t->file,
                             s->count);
    if (!s->by_name.slots)
        VPTQ_CHECK(vptq_strmap_init(&s->by_name, s->arena.mem, 0, err));
    VPTQ_CHECK(reserve_tensor(s, err));
    vptq_tensor copy = *t;
    copy.name = vptq_arena_strdup(&s->arena, t->name, err);
    copy.file = copy.name ? keep_path(s, t->file, err) : NULL;
    if (!copy.file)
        return VPTQ_E_NOMEM;
    bool fresh = true;
    VPTQ_CHECK(vptq_strmap_add(&s->by_name, copy.name, strlen(copy.name), (uint32_t)s->count,
                               &fresh, err));
    if (!fresh)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: duplicate tensor '%s'", t->file, t->name);
    s->tensors[s->count++] = copy;
    return VPTQ_OK;
}

int vptq_tensor_by_name(const void *a, const void *b)
{
    return strcmp(((const vptq_tensor *)a)->name, ((const vptq_tensor *)b)->name);
}

vptq_status vptq_tensor_set_finish(vptq_tensor_set *s, vptq_err *err)
{
    vptq_strmap_release(&s->by_name);
    if (s->count == 0)
        return VPTQ_OK;
    qsort(s->tensors, s->count, sizeof *s->tensors, vptq_tensor_by_name);
    VPTQ_CHECK(vptq_strmap_init(&s->by_name, s->arena.mem, s->count, err));
    for (size_t i = 0; i < s->count; i++) {
        const char *name = s->tensors[i].name;
        bool fresh;
        VPTQ_CHECK(vptq_strmap_add(&s->by_name, name, strlen(name), (uint32_t)i, &fresh, err));
        if (!fresh) /* one of them was renamed */
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: duplicate tensor '%s'",
                             s->tensors[i].file, name);
    }
    return VPTQ_OK;
}

vptq_status vptq_tensor_set_own_map(vptq_tensor_set *s, vptq_map *map, vptq_err *err)
{
    /* the array is full if its length is zero or a power of two */
    if ((s->map_count & (s->map_count - 1)) == 0) {
        size_t cap = s->map_count ? s->map_count * 2 : 1;
        vptq_map *grown = vptq_arena_alloc(&s->arena, cap, sizeof *grown, err);
        if (!grown) {
            vptq_map_release(map);
            return VPTQ_E_NOMEM;
        }
        if (s->map_count)
            memcpy(grown, s->maps, s->map_count * sizeof *grown);
        s->maps = grown;
    }
    s->maps[s->map_count++] = *map;
    *map = (vptq_map){0};
    return VPTQ_OK;
}

void vptq_tensor_set_forget(const vptq_tensor_set *s)
{
    for (size_t i = 0; i < s->map_count; i++)
        vptq_map_forget(s->maps[i].data, s->maps[i].size);
}
