/* Reads safetensors files. */
#include "formats/hf/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json.h"
#include "formats/lfs.h"
#include "lib/base/le.h"
#include "lib/base/text.h"

enum { LENGTH_BYTES = VPTQ_SAFETENSORS_LENGTH_BYTES, MAX_HEADER = VPTQ_SAFETENSORS_MAX_HEADER };

/* A tensor and the range of its bytes, counted from the end of the header. */
typedef struct entry {
    vptq_tensor tensor;
    uint64_t begin, end;
} entry;

typedef struct entry_list {
    entry *items;
    size_t count;
} entry_list;

static vptq_status bad_entry(const char *path, const char *name, const char *what,
                             vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: tensor '%.200s': %s", path, name, what);
}

/* Finds the length of the header and checks it against the file. */
static vptq_status find_header(const char *path, const vptq_map *map, size_t *len,
                               vptq_err *err)
{
    VPTQ_CHECK(vptq_lfs_check(path, map->data, map->size, "weights", err));
    if (map->size < LENGTH_BYTES)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: %zu bytes are too few for a safetensors file",
                         path, map->size);
    const uint64_t n = vptq_get_le(map->data, LENGTH_BYTES);
    if (n > MAX_HEADER)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the safetensors header has %llu bytes, expected at most %d", path,
                         (unsigned long long)n, (int)MAX_HEADER);
    if (n > map->size - LENGTH_BYTES)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the safetensors header has %llu bytes, but the file only %zu",
                         path, (unsigned long long)n, map->size);
    *len = (size_t)n;
    return VPTQ_OK;
}

static vptq_status parse_header(const char *path, const char *text, size_t len, json_t **out,
                                vptq_err *err)
{
    if (len == 0 || text[0] != '{')
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the safetensors header does not begin with '{'", path);
    char name[4096 + 16];
    snprintf(name, sizeof name, "%s: header", path);
    return vptq_json_parse(text, len, name, out, err);
}

/* Gets a whole number that is not negative. */
static bool get_size(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static vptq_status parse_shape(const char *path, const char *name, const json_t *shape,
                               vptq_tensor *t, vptq_err *err)
{
    if (!json_is_array(shape))
        return bad_entry(path, name, "'shape' is not a list", err);
    size_t dims = json_array_size(shape);
    if (dims > VPTQ_MAX_DIMS)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: tensor '%.200s' has %zu dimensions, expected at most %d", path,
                         name, dims, (int)VPTQ_MAX_DIMS);
    size_t elements = 1;
    bool empty = false;
    for (size_t i = 0; i < dims; i++) {
        if (!get_size(json_array_get(shape, i), &t->shape[i]))
            return bad_entry(path, name, "'shape' holds a value that is not a size", err);
        if (t->shape[i] == 0)
            empty = true;
        else if (!vptq_size_mul(elements, (size_t)t->shape[i], &elements))
            return bad_entry(path, name, "the product of 'shape' overflows", err);
    }
    t->dims = (uint32_t)dims;
    if (!vptq_dtype_bytes(t->type, empty ? 0 : elements, &t->bytes))
        return bad_entry(path, name, "the size in bytes overflows", err);
    return VPTQ_OK;
}

static vptq_status parse_entry(const char *path, const char *name, const json_t *info,
                               size_t data_bytes, entry *e, vptq_err *err)
{
    *e = (entry){.tensor = {.name = name, .file = path, .round_to = VPTQ_F32}};
    if (!json_is_object(info))
        return bad_entry(path, name, "its header entry is not an object", err);
    const json_t *dtype = json_object_get(info, "dtype");
    if (!json_is_string(dtype))
        return bad_entry(path, name, "'dtype' is not a string", err);
    if (vptq_dtype_from_safetensors(json_string_value(dtype), &e->tensor.type, err))
        return vptq_err_context(err, "%s: tensor '%.200s'", path, name);
    VPTQ_CHECK(parse_shape(path, name, json_object_get(info, "shape"), &e->tensor, err));
    const json_t *offsets = json_object_get(info, "data_offsets");
    if (json_array_size(offsets) != 2 || !get_size(json_array_get(offsets, 0), &e->begin) ||
        !get_size(json_array_get(offsets, 1), &e->end))
        return bad_entry(path, name, "'data_offsets' is not a pair of sizes", err);
    if (e->begin > e->end || e->end > data_bytes)
        return vptq_fail(
            err, VPTQ_E_FORMAT,
            "%s: tensor '%.200s' has bytes %llu to %llu, but %zu follow the header", path, name,
            (unsigned long long)e->begin, (unsigned long long)e->end, data_bytes);
    if (e->end - e->begin != e->tensor.bytes)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: tensor '%.200s' has %llu bytes, expected %zu for its type and "
                         "shape",
                         path, name, (unsigned long long)(e->end - e->begin), e->tensor.bytes);
    return VPTQ_OK;
}

const char *vptq_metadata_find(const vptq_metadata_list *list, const char *key)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].key, key) == 0)
            return list->items[i].value;
    return NULL;
}

vptq_status vptq_metadata_count(const char *path, const vptq_metadata_list *list,
                                const char *key, uint64_t *out, vptq_err *err)
{
    const char *text = vptq_metadata_find(list, key);
    if (!text)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: metadata '%s' is missing", path, key);
    char *end = NULL;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (text[0] < '1' || text[0] > '9' || *end || errno || n > INT64_MAX)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: metadata '%s' is '%.100s', expected a whole number above 0 and "
                         "below 2^63",
                         path, key, text);
    *out = n;
    return VPTQ_OK;
}

static vptq_status parse_metadata(const char *path, json_t *object, vptq_arena *arena,
                                  vptq_metadata_list *meta, vptq_err *err)
{
    if (!json_is_object(object))
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: '__metadata__' is not an object", path);
    meta->items = vptq_arena_alloc(arena, json_object_size(object), sizeof *meta->items, err);
    if (!meta->items)
        return VPTQ_E_NOMEM;
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        if (!json_is_string(value))
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: '__metadata__' key '%.200s' is not a string", path, key);
        vptq_metadata *m = &meta->items[meta->count++];
        m->key = vptq_arena_strdup(arena, key, err);
        m->value = m->key ? vptq_arena_strdup(arena, json_string_value(value), err) : NULL;
        if (!m->value)
            return VPTQ_E_NOMEM;
    }
    return VPTQ_OK;
}

/* Orders by position; an empty tensor comes before one that begins at the same byte. */
static int by_position(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->tensor.name, y->tensor.name);
}

/* Sorts the entries and checks that every data byte belongs to exactly one tensor. */
static vptq_status check_positions(const char *path, entry_list *list, size_t data_bytes,
                                   vptq_err *err)
{
    if (list->count)
        qsort(list->items, list->count, sizeof *list->items, by_position);
    uint64_t end = 0; /* of the previous tensor */
    for (size_t i = 0; i < list->count; i++) {
        const entry *e = &list->items[i];
        if (e->begin < end)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: tensor '%.200s' begins at data byte %llu, inside tensor "
                             "'%.200s', which ends at %llu",
                             path, e->tensor.name, (unsigned long long)e->begin,
                             list->items[i - 1].tensor.name, (unsigned long long)end);
        if (e->begin > end)
            return vptq_fail(
                err, VPTQ_E_FORMAT,
                "%s: data bytes %llu to %llu, before tensor '%.200s', belong to no "
                "tensor",
                path, (unsigned long long)end, (unsigned long long)e->begin, e->tensor.name);
        end = e->end;
    }
    if (end != data_bytes)
        return vptq_fail(
            err, VPTQ_E_FORMAT,
            "%s: the tensors end at data byte %llu, but the file has %zu data bytes", path,
            (unsigned long long)end, data_bytes);
    return VPTQ_OK;
}

/* Fills the lists from the header's members; metadata strings are in `arena`. */
static vptq_status parse_members(const char *path, json_t *header, size_t data_bytes,
                                 entry_list *list, vptq_arena *arena, vptq_metadata_list *meta,
                                 vptq_err *err)
{
    const char *name;
    json_t *value;
    json_object_foreach(header, name, value)
    {
        if (strcmp(name, "__metadata__") == 0)
            VPTQ_CHECK(parse_metadata(path, value, arena, meta, err));
        else
            VPTQ_CHECK(
                parse_entry(path, name, value, data_bytes, &list->items[list->count++], err));
    }
    return check_positions(path, list, data_bytes, err);
}

vptq_status vptq_safetensors_read(const char *path, vptq_tensor_set *set,
                                  vptq_metadata_list *meta, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    json_t *header = NULL;
    vptq_map map = {0};
    entry_list list = {0};
    vptq_metadata_list found = {0};
    size_t len = 0;
    vptq_mem *mem = set->arena.mem;
    VPTQ_TRY(vptq_map_open(path, &map, err));
    VPTQ_TRY(find_header(path, &map, &len, err));
    VPTQ_TRY(parse_header(path, (const char *)map.data + LENGTH_BYTES, len, &header, err));
    list.items = vptq_mem_alloc(mem, json_object_size(header), sizeof *list.items, err);
    if (!list.items)
        VPTQ_TRY(VPTQ_E_NOMEM);
    const uint8_t *data = map.data + LENGTH_BYTES + len;
    size_t data_bytes = map.size - LENGTH_BYTES - len;
    VPTQ_TRY(parse_members(path, header, data_bytes, &list, &set->arena, &found, err));
    if (meta)
        *meta = found;
    VPTQ_TRY(vptq_tensor_set_own_map(set, &map, err));
    for (size_t i = 0; i < list.count; i++) {
        entry *e = &list.items[i];
        e->tensor.data = data + e->begin;
        e->tensor.mapped = true;
        VPTQ_TRY(vptq_tensor_set_add(set, &e->tensor, err));
    }
out:
    vptq_mem_free(mem, list.items);
    json_decref(header);
    vptq_map_release(&map);
    return st;
}

/* ---- checksums ---- */

static uint64_t hash_text(const char *text, uint64_t seed)
{
    return vptq_hash(text, strlen(text) + 1, seed);
}

void vptq_safetensors_sum(const vptq_tensor *sorted, size_t count, const vptq_metadata *meta,
                          size_t meta_count, char hex[VPTQ_SAFETENSORS_SUM])
{
    uint64_t h = 0;
    for (size_t i = 0; i < meta_count; i++)
        h = hash_text(meta[i].value, hash_text(meta[i].key, h));
    for (size_t i = 0; i < count; i++)
        h = vptq_hash(sorted[i].data, sorted[i].bytes, hash_text(sorted[i].name, h));
    snprintf(hex, VPTQ_SAFETENSORS_SUM, "%016" PRIx64, h);
}

vptq_status vptq_safetensors_check_sum(const char *path, const char *hex, const char *recorded,
                                       vptq_err *err)
{
    if (strcmp(hex, recorded) == 0)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_CHECKSUM,
                     "%s: the file is damaged: its checksum is %s, expected %.40s", path, hex,
                     recorded);
}
