/* Writes PyTorch files with a pickle of protocol 2, like torch.save but without a memo. */
#include <stdio.h>
#include <string.h>

#include "formats/torch/file.h"
#include "formats/torch/pickle.h"
#include "formats/torch/zip.h"
#include "lib/base/le.h"

static vptq_status add_op(vptq_buf *b, char op, uint64_t x, unsigned bytes, vptq_err *err)
{
    uint8_t all[9] = {(uint8_t)op};
    vptq_put_le(all + 1, x, bytes);
    return vptq_buf_add(b, all, 1 + bytes, err);
}

static vptq_status add_text(vptq_buf *b, const char *text, vptq_err *err)
{
    VPTQ_CHECK(add_op(b, 'X', strlen(text), 4, err));
    return vptq_buf_add(b, text, strlen(text), err);
}

static vptq_status add_int(vptq_buf *b, int64_t i, vptq_err *err)
{
    uint64_t x;
    memcpy(&x, &i, sizeof x);
    if (i >= INT32_MIN && i <= INT32_MAX)
        return add_op(b, 'J', x, 4, err);
    vptq_status st = vptq_buf_add(b, "\x8a\x08", 2, err); /* LONG1 of 8 bytes */
    uint8_t bytes[8];
    vptq_put_le(bytes, x, 8);
    return st ? st : vptq_buf_add(b, bytes, 8, err);
}

static vptq_status add_float(vptq_buf *b, double f, vptq_err *err)
{
    uint64_t x, swapped = 0;
    memcpy(&x, &f, sizeof x);
    for (int i = 0; i < 8; i++)
        swapped |= (x >> (8 * i) & 255) << (56 - 8 * i);
    return add_op(b, 'G', swapped, 8, err);
}

static size_t elements_of(const vptq_tensor *t)
{
    return vptq_tensor_rows(t) * vptq_tensor_cols(t);
}

static vptq_status add_numbers(vptq_buf *b, const uint64_t *x, uint32_t n, vptq_err *err)
{
    vptq_status st = vptq_buf_add(b, "(", 1, err);
    for (uint32_t i = 0; !st && i < n; i++)
        st = add_int(b, (int64_t)x[i], err);
    return st ? st : vptq_buf_add(b, "t", 1, err);
}

static vptq_status add_tensor(vptq_buf *b, const vptq_tensor *t, size_t key, vptq_err *err)
{
    char name[24];
    uint64_t stride[VPTQ_MAX_DIMS], step = 1;
    for (uint32_t d = t->dims; d-- > 0; step *= t->shape[d])
        stride[d] = step;
    snprintf(name, sizeof name, "%zu", key);
    VPTQ_CHECK(vptq_buf_printf(b, err, "ctorch._utils\n_rebuild_tensor_v2\n(("));
    VPTQ_CHECK(add_text(b, "storage", err));
    VPTQ_CHECK(vptq_buf_printf(b, err, "ctorch\n%s\n",
                               strchr(vptq_pickle_storage_name(t->type), '.') + 1));
    VPTQ_CHECK(add_text(b, name, err));
    VPTQ_CHECK(add_text(b, "cpu", err));
    VPTQ_CHECK(add_int(b, (int64_t)elements_of(t), err));
    VPTQ_CHECK(vptq_buf_add(b, "tQ", 2, err));
    VPTQ_CHECK(add_int(b, 0, err));
    VPTQ_CHECK(add_numbers(b, t->shape, t->dims, err));
    VPTQ_CHECK(add_numbers(b, stride, t->dims, err));
    VPTQ_CHECK(vptq_buf_add(b, "\x89", 1, err)); /* False: requires_grad */
    return vptq_buf_printf(b, err, "ccollections\nOrderedDict\n)RtR");
}

static vptq_status make_pickle(const vptq_torch_item *items, size_t count, vptq_buf *b,
                               vptq_err *err)
{
    VPTQ_CHECK(vptq_buf_add(b, "\x80\x02}(", 4, err));
    for (size_t i = 0; i < count; i++) {
        VPTQ_CHECK(add_text(b, items[i].name, err));
        if (items[i].kind == VPTQ_TORCH_TENSOR)
            VPTQ_CHECK(add_tensor(b, &items[i].tensor, i, err));
        else if (items[i].kind == VPTQ_TORCH_INT)
            VPTQ_CHECK(add_int(b, items[i].i, err));
        else
            VPTQ_CHECK(add_float(b, items[i].f, err));
    }
    return vptq_buf_add(b, "u.", 2, err);
}

static vptq_status check_items(const char *path, const vptq_torch_item *items, size_t count,
                               vptq_err *err)
{
    for (size_t i = 0; i < count; i++) {
        VPTQ_BUG_IF(items[i].kind == VPTQ_TORCH_OTHER);
        if (items[i].kind == VPTQ_TORCH_TENSOR &&
            !vptq_pickle_storage_name(items[i].tensor.type))
            return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                             "%s: tensor '%s' is %s, expected F32, F16, BF16, I64 or BOOL",
                             path, items[i].name, vptq_dtype_get(items[i].tensor.type)->name);
    }
    return VPTQ_OK;
}

vptq_status vptq_torch_write(const char *path, bool force, const vptq_torch_item *items,
                             size_t count, vptq_mem *mem, vptq_err *err)
{
    vptq_status st = check_items(path, items, count, err);
    vptq_zip_writer w;
    vptq_buf pickle;
    if (st)
        return st;
    vptq_buf_init(&pickle, mem);
    VPTQ_TRY(vptq_zip_writer_open(path, force, mem, &w, err));
    VPTQ_TRY(make_pickle(items, count, &pickle, err));
    VPTQ_TRY(vptq_zip_write(&w, "archive/data.pkl", pickle.data, pickle.len, err));
    VPTQ_TRY(vptq_zip_write(&w, "archive/byteorder", "little", 6, err));
    for (size_t i = 0; i < count; i++) {
        const vptq_tensor *t = &items[i].tensor;
        char name[40];
        if (items[i].kind != VPTQ_TORCH_TENSOR)
            continue;
        snprintf(name, sizeof name, "archive/data/%zu", i);
        VPTQ_TRY(vptq_zip_write(&w, name, t->data,
                                elements_of(t) * vptq_dtype_get(t->type)->bytes, err));
    }
    VPTQ_TRY(vptq_zip_write(&w, "archive/version", "3\n", 2, err));
    VPTQ_TRY(vptq_zip_writer_commit(&w, err));
out:
    vptq_zip_writer_abort(&w);
    vptq_buf_release(&pickle);
    return st;
}
