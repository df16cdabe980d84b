/* Reads PyTorch files: finds the pickle and turns its result into items. */
#include "formats/torch/file.h"

#include <stdio.h>
#include <string.h>

#include "formats/lfs.h"
#include "formats/torch/pickle.h"
#include "formats/torch/zip.h"
#include "lib/base/text.h"

static const char pickle_name[] = "/data.pkl";

typedef struct reader {
    vptq_torch_file *t;
    const char *path;
    vptq_zip zip;
    const char *prefix; /* the folder of all entries, prefix_len bytes */
    size_t prefix_len;
    vptq_pickle pickle;
    size_t copied; /* bytes of copied tensors; at most the size of the file */
} reader;

/* ---- entries ---- */

/* The entry PREFIX + folder + name; NULL if there is none. */
static vptq_zip_entry *find_entry(const reader *r, const char *folder, const char *name,
                                  size_t len)
{
    char full[1024];
    size_t at = r->prefix_len + strlen(folder);
    if (at >= sizeof full || len >= sizeof full - at)
        return NULL;
    memcpy(full, r->prefix, r->prefix_len);
    memcpy(full + r->prefix_len, folder, strlen(folder));
    memcpy(full + at, name, len);
    return vptq_zip_find(&r->zip, full, at + len);
}

static vptq_status find_pickle(reader *r, const vptq_zip_entry **pickle, vptq_err *err)
{
    vptq_zip_entry *found = NULL;
    for (size_t i = 0; i < r->zip.count && !r->prefix_len; i++) {
        found = &r->zip.entries[i];
        r->prefix = found->name;
        r->prefix_len = vptq_text_before(found->name, pickle_name);
    }
    if (!r->prefix_len)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: is not a PyTorch file: the zip has no entry 'NAME%s'", r->path,
                         pickle_name);
    const vptq_zip_entry *order = find_entry(r, "/byteorder", "", 0);
    if (order && !vptq_text_is(order->data, order->size, "little"))
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: its byte order is '%.*s', expected 'little'", r->path,
                         (int)(order->size < 20 ? order->size : 20), (const char *)order->data);
    *pickle = found;
    return vptq_zip_check(&r->zip, found, err);
}

/* ---- tensors ---- */

/* Takes a tuple of at most VPTQ_MAX_DIMS numbers, none negative. */
static bool take_numbers(const reader *r, uint32_t tuple, uint64_t *out, uint32_t *count)
{
    const vptq_pickle_value *v = &r->pickle.values[tuple];
    uint32_t cell = v->as.items.first;
    *count = v->as.items.count;
    if (*count > VPTQ_MAX_DIMS)
        return false;
    for (uint32_t i = 0; i < *count; i++, cell = r->pickle.cells[cell].next) {
        const vptq_pickle_value *x = &r->pickle.values[r->pickle.cells[cell].value];
        if (x->kind != VPTQ_PICKLE_INT || x->as.i < 0)
            return false;
        out[i] = (uint64_t)x->as.i;
    }
    return true;
}

typedef struct layout {
    uint64_t stride[VPTQ_MAX_DIMS];
    size_t elements, span; /* span: elements of the storage from the first to the last used */
    bool plain;            /* in C order without gaps */
} layout;

/* Sets elements, span and plain from the shape; false if they overflow. */
static bool measure(const vptq_tensor *t, layout *l)
{
    l->elements = l->span = 1;
    l->plain = true;
    for (uint32_t d = t->dims; d-- > 0;) {
        size_t size = (size_t)t->shape[d], reach;
        l->plain = l->plain && (size == 1 || l->stride[d] == l->elements);
        if (!vptq_size_mul(l->elements, size, &l->elements))
            return false;
        if (size > 1 && (!vptq_size_mul(size - 1, (size_t)l->stride[d], &reach) ||
                         !vptq_size_add(l->span, reach, &l->span)))
            return false;
    }
    if (l->elements == 0)
        l->span = 0;
    return true;
}

/* Copies the elements in C order. */
static void copy_strided(const vptq_tensor *t, const layout *l, const uint8_t *src,
                         size_t width, uint8_t *dst)
{
    uint64_t index[VPTQ_MAX_DIMS] = {0};
    size_t offset = 0;
    for (size_t i = 0; i < l->elements; i++) {
        memcpy(dst + i * width, src + offset * width, width);
        for (uint32_t d = t->dims; d-- > 0;) {
            offset += (size_t)l->stride[d];
            if (++index[d] < t->shape[d])
                break;
            offset -= (size_t)(l->stride[d] * t->shape[d]);
            index[d] = 0;
        }
    }
}

static vptq_status bad_tensor(const reader *r, const char *name, const char *what,
                              vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: tensor '%.200s' %s", r->path, name, what);
}

/* Finds the bytes of a storage and verifies their checksum. */
static vptq_status open_storage(reader *r, const char *name, const vptq_pickle_value *storage,
                                const uint8_t **data, vptq_err *err)
{
    const vptq_pickle_value *key = &r->pickle.values[storage->as.storage.key];
    vptq_zip_entry *e = find_entry(r, "/data/", key->as.text.at, key->as.text.len);
    size_t width = vptq_dtype_get(storage->as.storage.type)->bytes, bytes;
    if (!e)
        return bad_tensor(r, name, "has no entry with its numbers", err);
    if (!vptq_size_mul((size_t)storage->as.storage.count, width, &bytes) || bytes != e->size)
        return bad_tensor(r, name, "does not match the size of the entry with its numbers",
                          err);
    *data = e->data;
    return vptq_zip_check(&r->zip, e, err);
}

static vptq_status take_tensor(reader *r, const vptq_pickle_value *v, vptq_tensor *t,
                               vptq_err *err)
{
    const vptq_pickle_value *storage = &r->pickle.values[v->as.tensor.storage];
    const uint64_t offset = (uint64_t)v->as.tensor.offset, count = storage->as.storage.count;
    const uint8_t *data = NULL;
    uint32_t strides;
    layout l;
    t->type = storage->as.storage.type;
    t->round_to = VPTQ_F32;
    t->file = r->path;
    const size_t width = vptq_dtype_get(t->type)->bytes;
    if (v->as.tensor.offset < 0 || !take_numbers(r, v->as.tensor.shape, t->shape, &t->dims) ||
        !take_numbers(r, v->as.tensor.stride, l.stride, &strides) || strides != t->dims ||
        !measure(t, &l))
        return bad_tensor(r, t->name, "has an invalid shape", err);
    VPTQ_CHECK(open_storage(r, t->name, storage, &data, err));
    if (offset > count || l.span > count - offset)
        return bad_tensor(r, t->name, "extends past the end of its storage", err);
    data += offset * width;
    if (l.plain || l.elements == 0) {
        t->bytes = l.elements * width;
        t->data = data;
        return VPTQ_OK;
    }
    /* without repeated elements the copies cannot be larger than the file */
    if (l.elements > (r->t->map.size - r->copied) / width)
        return bad_tensor(r, t->name, "repeats its numbers and is larger than the file", err);
    t->bytes = l.elements * width;
    r->copied += t->bytes;
    uint8_t *copy = vptq_arena_alloc(&r->t->arena, t->bytes, 1, err);
    if (!copy)
        return VPTQ_E_NOMEM;
    copy_strided(t, &l, data, width, copy);
    t->data = copy;
    return VPTQ_OK;
}

/* ---- the dictionary ---- */

static vptq_status take_item(reader *r, const vptq_pickle_value *key,
                             const vptq_pickle_value *v, vptq_torch_item *item, vptq_err *err)
{
    if (key->kind != VPTQ_PICKLE_TEXT || memchr(key->as.text.at, 0, key->as.text.len))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the dictionary has a key that is not a string", r->path);
    item->name = vptq_arena_strndup(&r->t->arena, key->as.text.at, key->as.text.len, err);
    if (!item->name)
        return VPTQ_E_NOMEM;
    switch (v->kind) {
    case VPTQ_PICKLE_INT:
        item->kind = VPTQ_TORCH_INT;
        item->i = v->as.i;
        return VPTQ_OK;
    case VPTQ_PICKLE_FLOAT:
        item->kind = VPTQ_TORCH_FLOAT;
        item->f = v->as.f;
        return VPTQ_OK;
    case VPTQ_PICKLE_TENSOR:
        item->kind = VPTQ_TORCH_TENSOR;
        item->tensor.name = item->name;
        return take_tensor(r, v, &item->tensor, err);
    default:
        return VPTQ_OK;
    }
}

static vptq_status take_items(reader *r, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_torch_file *t = r->t;
    const vptq_pickle_value *dict = &r->pickle.values[r->pickle.result];
    vptq_strmap names = {0};
    if (dict->kind != VPTQ_PICKLE_DICT)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: the top-level object is not a dictionary",
                         r->path);
    size_t count = dict->as.items.count / 2;
    VPTQ_TRY(vptq_strmap_init(&names, t->arena.mem, count, err));
    t->items = vptq_arena_zalloc(&t->arena, count, sizeof *t->items, err);
    if (!t->items)
        VPTQ_TRY(VPTQ_E_NOMEM);
    uint32_t cell = dict->as.items.first;
    for (; t->count < count; t->count++) {
        bool fresh = false;
        const vptq_pickle_cell *key = &r->pickle.cells[cell];
        const vptq_pickle_cell *value = &r->pickle.cells[key->next];
        vptq_torch_item *item = &t->items[t->count];
        VPTQ_TRY(take_item(r, &r->pickle.values[key->value], &r->pickle.values[value->value],
                           item, err));
        VPTQ_TRY(vptq_strmap_add(&names, item->name, strlen(item->name), 0, &fresh, err));
        if (!fresh)
            VPTQ_TRY(vptq_fail(err, VPTQ_E_FORMAT, "%s: duplicate key '%.200s'", r->path,
                               item->name));
        cell = value->next;
    }
out:
    vptq_strmap_release(&names);
    return st;
}

/* Names the contents that look like a PyTorch file to the user and are not a zip. */
static vptq_status check_content(const char *path, const vptq_map *map, vptq_err *err)
{
    /* PROTO 2, LONG1 of 10 bytes: the magic number that opened files before PyTorch 1.6 */
    static const uint8_t old[] = {0x80, 2,    0x8a, 10,   0x6c, 0xfc, 0x9c,
                                  0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
    VPTQ_CHECK(vptq_lfs_check(path, map->data, map->size, "weights", err));
    if (map->size < sizeof old || memcmp(map->data, old, sizeof old) != 0)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                     "%s: is in the format of PyTorch before 1.6, expected a zip file; convert "
                     "it in Python: torch.save(torch.load(FILE, weights_only=True), FILE)",
                     path);
}

vptq_status vptq_torch_read(const char *path, vptq_mem *mem, vptq_torch_file *t, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena scratch;
    const vptq_zip_entry *pickle = NULL;
    reader r = {.t = t};
    *t = (vptq_torch_file){0};
    vptq_arena_init(&t->arena, mem);
    vptq_arena_init(&scratch, mem);
    r.path = vptq_arena_strdup(&t->arena, path, err);
    if (!r.path)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(vptq_map_open(path, &t->map, err));
    VPTQ_TRY(check_content(r.path, &t->map, err));
    VPTQ_TRY(vptq_zip_list(r.path, &t->map, &scratch, &r.zip, err));
    VPTQ_TRY(find_pickle(&r, &pickle, err));
    VPTQ_TRY(vptq_pickle_run(r.path, pickle->data, pickle->size, &scratch, &r.pickle, err));
    VPTQ_TRY(take_items(&r, err));
out:
    vptq_zip_release(&r.zip);
    vptq_arena_release(&scratch);
    if (st)
        vptq_torch_release(t);
    return st;
}

void vptq_torch_release(vptq_torch_file *t)
{
    vptq_map_release(&t->map);
    vptq_arena_release(&t->arena);
    *t = (vptq_torch_file){0};
}

const vptq_torch_item *vptq_torch_find(const vptq_torch_file *t, const char *name)
{
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->items[i].name, name) == 0)
            return &t->items[i];
    return NULL;
}

/* ---- models ---- */

vptq_status vptq_torch_read_tensors(const char *path, vptq_tensor_set *set, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_torch_file t;
    VPTQ_TRY(vptq_torch_read(path, set->arena.mem, &t, err));
    const uintptr_t begin = (uintptr_t)t.map.data, size = t.map.size;
    VPTQ_TRY(vptq_tensor_set_own_map(set, &t.map, err));
    for (size_t i = 0; i < t.count; i++) {
        vptq_tensor *x = &t.items[i].tensor;
        if (t.items[i].kind != VPTQ_TORCH_TENSOR)
            continue;
        if (x->bytes && (uintptr_t)x->data - begin >= size)
            VPTQ_TRY(vptq_fail(err, VPTQ_E_UNSUPPORTED,
                               "%s: tensor '%.200s' is not contiguous; save it with "
                               ".contiguous()",
                               path, x->name));
        x->mapped = true;
        VPTQ_TRY(vptq_tensor_set_add(set, x, err));
    }
out:
    vptq_torch_release(&t);
    return st;
}
