/* Reads and checks the tensors that store one linear layer. */
#include "formats/hf/parts.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "lib/base/half.h"

const vptq_tensor *vptq_parts_find(const vptq_parts *p, const char *part)
{
    char full[1024];
    int n = snprintf(full, sizeof full, "%s.%s", p->name, part);
    return n > 0 && (size_t)n < sizeof full ? vptq_tensor_find(p->set, full) : NULL;
}

vptq_status vptq_parts_need(const vptq_parts *p, const char *part, vptq_tensor *out)
{
    const vptq_tensor *t = vptq_parts_find(p, part);
    if (!t)
        return vptq_fail(p->err, VPTQ_E_FORMAT, "%s: tensor '%s.%s' is missing", p->file,
                         p->name, part);
    if (t->bytes && !t->data && !t->source)
        return vptq_fail(p->err, VPTQ_E_CHECKSUM, "%s: tensor '%s' is damaged", p->file,
                         t->name);
    *out = *t;
    return VPTQ_OK;
}

vptq_status vptq_parts_check_size(const vptq_parts *p, uint64_t out, uint64_t in)
{
    if (out && in && out <= INT32_MAX && in <= INT32_MAX)
        return VPTQ_OK;
    return vptq_fail(p->err, VPTQ_E_SHAPE,
                     "%s: layer '%s' is a matrix of %" PRIu64 " x %" PRIu64
                     ", expected 1 to %d rows and columns",
                     p->file, p->name, out, in, INT32_MAX);
}

vptq_status vptq_parts_check_type(const vptq_parts *p, const vptq_tensor *t, vptq_dtype type)
{
    if (t->type == type)
        return VPTQ_OK;
    return vptq_fail(p->err, VPTQ_E_FORMAT, "%s: tensor '%s' is %s, expected %s", p->file,
                     t->name, vptq_dtype_get(t->type)->name, vptq_dtype_get(type)->name);
}

vptq_status vptq_parts_check_shape(const vptq_parts *p, const vptq_tensor *t, uint64_t rows,
                                   uint64_t cols)
{
    const uint32_t dims = cols ? 2 : 1;
    char found[VPTQ_SHAPE_TEXT], expected[VPTQ_SHAPE_TEXT];
    if (t->dims == dims && t->shape[0] == rows && (!cols || t->shape[1] == cols))
        return VPTQ_OK;
    vptq_shape_text(t->shape, t->dims, found);
    vptq_shape_text((const uint64_t[]){rows, cols}, dims, expected);
    return vptq_fail(p->err, VPTQ_E_SHAPE, "%s: tensor '%s' is [%s], expected [%s]", p->file,
                     t->name, found, expected);
}

/* File readers guarantee that a tensor's byte count follows from type and shape. */
vptq_status vptq_parts_load(const vptq_parts *p, const vptq_tensor *t, const void **out)
{
    vptq_tensor loaded = *t;
    if (!t->data) {
        void *buf = vptq_arena_alloc(p->arena, t->bytes, 1, p->err);
        if (!buf)
            return VPTQ_E_NOMEM;
        VPTQ_CHECK(vptq_tensor_bytes(t, 0, t->bytes, buf, &loaded.data, p->err));
    }
    *out = vptq_tensor_aligned(&loaded, p->arena, p->err);
    return *out ? VPTQ_OK : VPTQ_E_NOMEM;
}

static vptq_status check_scale(const vptq_parts *p, const vptq_tensor *t, float scale,
                               size_t row, size_t group)
{
    if (isfinite(scale) && scale > 0)
        return VPTQ_OK;
    return vptq_fail(
        p->err, VPTQ_E_NUMERIC,
        "%s: tensor '%s': row %zu, group %zu: scale %g, expected a positive number", p->file,
        t->name, row, group, (double)scale);
}

vptq_status vptq_parts_load_scales(const vptq_parts *p, const vptq_tensor *t, bool groups_first,
                                   float **out)
{
    const size_t rows = vptq_tensor_rows(t), cols = vptq_tensor_cols(t);
    const void *data = NULL;
    if (t->type != VPTQ_F16 && t->type != VPTQ_BF16)
        return vptq_fail(p->err, VPTQ_E_UNSUPPORTED,
                         "%s: tensor '%s' is %s, expected F16 or BF16", p->file, t->name,
                         vptq_dtype_get(t->type)->name);
    VPTQ_CHECK(vptq_parts_load(p, t, &data));
    *out = vptq_arena_alloc(p->arena, rows * cols, sizeof **out, p->err);
    if (!*out)
        return VPTQ_E_NOMEM;
    const uint16_t *src = data;
    for (size_t i = 0; i < rows * cols; i++) {
        const float x =
            t->type == VPTQ_F16 ? vptq_f16_to_f32(src[i]) : vptq_bf16_to_f32(src[i]);
        const size_t r = i / cols, c = i % cols, at = groups_first ? c * rows + r : i;
        VPTQ_CHECK(check_scale(p, t, x, groups_first ? c : r, groups_first ? r : c));
        (*out)[at] = x;
    }
    return VPTQ_OK;
}

vptq_status vptq_parts_check_groups(const vptq_parts *p, const vptq_tensor *t,
                                    const int32_t *groups, size_t columns, uint32_t n)
{
    for (size_t c = 0; c < columns; c++)
        if (groups[c] < 0 || (uint32_t)groups[c] >= n)
            return vptq_fail(p->err, VPTQ_E_FORMAT,
                             "%s: tensor '%s': column %zu is in group %" PRId32
                             ", expected 0 to %u",
                             p->file, t->name, c, groups[c], (unsigned)(n - 1));
    return VPTQ_OK;
}
