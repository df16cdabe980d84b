/* Writes GGUF files: metadata, tensor list, tensor data. */
#include "formats/gguf/write.h"

#include <string.h>

#include "lib/base/le.h"

enum { VERSION = 3, ALIGNMENT = 32 };

/* ---- metadata ---- */

void vptq_gguf_keys_init(vptq_gguf_keys *k, vptq_mem *mem)
{
    *k = (vptq_gguf_keys){.count = 0};
    vptq_buf_init(&k->bytes, mem);
}

void vptq_gguf_keys_release(vptq_gguf_keys *k)
{
    vptq_buf_release(&k->bytes);
}

vptq_status vptq_gguf_keys_status(const vptq_gguf_keys *k, vptq_err *err)
{
    return k->st ? vptq_fail(err, k->st, "%s", k->err.text) : VPTQ_OK;
}

static void add(vptq_gguf_keys *k, const void *data, size_t n)
{
    if (!k->st)
        k->st = vptq_buf_add(&k->bytes, data, n, &k->err);
}

static void add_number(vptq_gguf_keys *k, uint64_t x, unsigned bytes)
{
    uint8_t le[8];
    vptq_put_le(le, x, bytes);
    add(k, le, bytes);
}

static void begin(vptq_gguf_keys *k, const char *key, vptq_gguf_type type)
{
    vptq_gguf_add_str(k, key, strlen(key));
    add_number(k, type, 4);
    k->count++;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

void vptq_gguf_put_u32(vptq_gguf_keys *k, const char *key, uint32_t x)
{
    begin(k, key, VPTQ_GGUF_U32);
    add_number(k, x, 4);
}

void vptq_gguf_put_f32(vptq_gguf_keys *k, const char *key, float x)
{
    begin(k, key, VPTQ_GGUF_F32);
    add_number(k, bits_of(x), 4);
}

void vptq_gguf_put_bool(vptq_gguf_keys *k, const char *key, bool x)
{
    begin(k, key, VPTQ_GGUF_BOOL);
    add_number(k, x, 1);
}

void vptq_gguf_put_str(vptq_gguf_keys *k, const char *key, const char *text)
{
    begin(k, key, VPTQ_GGUF_STRING);
    vptq_gguf_add_str(k, text, strlen(text));
}

void vptq_gguf_put_array(vptq_gguf_keys *k, const char *key, vptq_gguf_type type,
                         uint64_t count)
{
    begin(k, key, VPTQ_GGUF_ARRAY);
    add_number(k, type, 4);
    add_number(k, count, 8);
}

void vptq_gguf_add_str(vptq_gguf_keys *k, const char *text, size_t len)
{
    add_number(k, len, 8);
    add(k, text, len);
}

void vptq_gguf_add_i32(vptq_gguf_keys *k, int32_t x)
{
    add_number(k, (uint32_t)x, 4);
}

void vptq_gguf_add_f32(vptq_gguf_keys *k, float x)
{
    add_number(k, bits_of(x), 4);
}

/* ---- the file ---- */

/* Bytes from `offset` to the next multiple of the alignment. */
static uint64_t padding(uint64_t offset)
{
    return (ALIGNMENT - offset % ALIGNMENT) % ALIGNMENT;
}

static void put_tensor_list(vptq_gguf_keys *k, const vptq_tensor *tensors, size_t count)
{
    uint64_t offset = 0;
    for (size_t i = 0; i < count; i++) {
        const vptq_tensor *t = &tensors[i];
        vptq_gguf_add_str(k, t->name, strlen(t->name));
        add_number(k, t->dims, 4);
        for (uint32_t d = t->dims; d-- > 0;)
            add_number(k, t->shape[d], 8);
        add_number(k, vptq_gguf_type_number(t->type), 4);
        add_number(k, offset, 8);
        offset += t->bytes + padding(t->bytes);
    }
}

static vptq_status pad(vptq_gguf_writer *w, vptq_err *err)
{
    static const uint8_t zeros[ALIGNMENT];
    return vptq_file_write(&w->file, zeros, (size_t)padding(w->file.written), err);
}

static void next_tensor(vptq_gguf_writer *w)
{
    w->left = w->next < w->count ? w->tensors[w->next].bytes : 0;
}

vptq_status vptq_gguf_writer_open(const char *path, bool force, const vptq_gguf_keys *keys,
                                  const vptq_tensor *tensors, size_t count, vptq_gguf_writer *w,
                                  vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_gguf_keys infos;
    uint8_t head[24] = "GGUF";

    *w = (vptq_gguf_writer){.file = {.fd = -1}, .tensors = tensors, .count = count};
    vptq_gguf_keys_init(&infos, keys->bytes.mem);
    VPTQ_TRY(vptq_gguf_keys_status(keys, err));
    put_tensor_list(&infos, tensors, count);
    VPTQ_TRY(vptq_gguf_keys_status(&infos, err));
    vptq_put_le(head + 4, VERSION, 4);
    vptq_put_le(head + 8, count, 8);
    vptq_put_le(head + 16, keys->count, 8);
    VPTQ_TRY(vptq_file_writer_open(path, force, &w->file, err));
    VPTQ_TRY(vptq_file_write(&w->file, head, sizeof head, err));
    VPTQ_TRY(vptq_file_write(&w->file, keys->bytes.data, keys->bytes.len, err));
    VPTQ_TRY(vptq_file_write(&w->file, infos.bytes.data, infos.bytes.len, err));
    VPTQ_TRY(pad(w, err));
    next_tensor(w);
out:
    vptq_gguf_keys_release(&infos);
    if (st)
        vptq_gguf_writer_abort(w);
    return st;
}

vptq_status vptq_gguf_write(vptq_gguf_writer *w, const void *data, size_t n, vptq_err *err)
{
    VPTQ_BUG_IF(n > w->left);
    vptq_status st = vptq_file_write(&w->file, data, n, err);
    w->left -= n;
    if (st || w->left)
        return st;
    w->next++;
    next_tensor(w);
    return pad(w, err);
}

vptq_status vptq_gguf_writer_commit(vptq_gguf_writer *w, vptq_err *err)
{
    VPTQ_BUG_IF(w->next != w->count);
    return vptq_file_writer_commit(&w->file, err);
}

void vptq_gguf_writer_abort(vptq_gguf_writer *w)
{
    vptq_file_writer_abort(&w->file);
}
