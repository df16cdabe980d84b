/* Writes safetensors files and sharded directories. */
#include "formats/hf/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json.h"
#include "lib/base/le.h"

enum { LENGTH_BYTES = VPTQ_SAFETENSORS_LENGTH_BYTES, MAX_HEADER = VPTQ_SAFETENSORS_MAX_HEADER };

/* ---- header ---- */

static vptq_status no_memory(const char *path, vptq_err *err)
{
    return vptq_fail(err, VPTQ_E_NOMEM, "%s: out of memory while writing the header", path);
}

static vptq_status tensor_bytes(const char *path, const vptq_tensor *t, size_t *bytes,
                                vptq_err *err)
{
    size_t elements = 1;
    bool fits = vptq_dtype_get(t->type)->safetensors != NULL && t->dims <= VPTQ_MAX_DIMS;
    for (uint32_t i = 0; fits && i < t->dims; i++)
        fits = vptq_size_mul(elements, (size_t)t->shape[i], &elements);
    if (fits && vptq_dtype_bytes(t->type, elements, bytes))
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_ARG,
                     "%s: tensor '%.200s' of type %s cannot be written to a safetensors file",
                     path, t->name, vptq_dtype_get(t->type)->name);
}

static json_t *make_entry(const vptq_tensor *t, uint64_t begin, uint64_t end)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; shape && i < t->dims; i++)
        if (json_array_append_new(shape, json_integer((json_int_t)t->shape[i]))) {
            json_decref(shape);
            return NULL;
        }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", vptq_dtype_get(t->type)->safetensors,
                     "shape", shape, "data_offsets", (json_int_t)begin, (json_int_t)end);
}

static vptq_status add_entries(json_t *header, const char *path, const vptq_tensor *tensors,
                               size_t count, vptq_err *err)
{
    uint64_t offset = 0;
    for (size_t i = 0; i < count; i++) {
        const vptq_tensor *t = &tensors[i];
        size_t bytes = 0;
        VPTQ_CHECK(tensor_bytes(path, t, &bytes, err));
        if (json_object_get(header, t->name))
            return vptq_fail(err, VPTQ_E_ARG, "%s: duplicate tensor '%.200s'", path, t->name);
        if (json_object_set_new(header, t->name, make_entry(t, offset, offset + bytes)))
            return no_memory(path, err);
        offset += bytes;
    }
    return VPTQ_OK;
}

static vptq_status add_metadata(json_t *header, const char *path, const vptq_metadata *meta,
                                size_t count, vptq_err *err)
{
    if (count == 0)
        return VPTQ_OK;
    json_t *object = json_object();
    int bad = json_object_set_new(header, "__metadata__", object);
    for (size_t i = 0; !bad && i < count; i++)
        bad = json_object_set_new(object, meta[i].key, json_string(meta[i].value));
    return bad ? no_memory(path, err) : VPTQ_OK;
}

/* Writes the length and the text, padded with spaces so that the data begins at a multiple of
 * 8. */
static vptq_status write_header(vptq_safetensors_writer *w, const json_t *header, vptq_err *err)
{
    static const char spaces[] = "       ";
    char *text = json_dumps(header, JSON_COMPACT);
    if (!text)
        return no_memory(w->file.path, err);
    vptq_status st = VPTQ_OK;
    size_t len = strlen(text), pad = (8 - len % 8) % 8;
    uint8_t length[LENGTH_BYTES];
    vptq_put_le(length, len + pad, LENGTH_BYTES);
    if (len + pad > MAX_HEADER)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_ARG,
                           "%s: the header of %zu tensors is longer than %d bytes",
                           w->file.path, w->count, (int)MAX_HEADER));
    VPTQ_TRY(vptq_file_write(&w->file, length, sizeof length, err));
    VPTQ_TRY(vptq_file_write(&w->file, text, len, err));
    VPTQ_TRY(vptq_file_write(&w->file, spaces, pad, err));
out:
    free(text);
    return st;
}

/* ---- one file ---- */

/* Moves on to the next tensor that has bytes. */
static void advance(vptq_safetensors_writer *w)
{
    while (w->left == 0 && w->next < w->count) {
        size_t bytes = 0;
        VPTQ_BUG_IF(tensor_bytes("", &w->tensors[w->next++], &bytes, NULL) != VPTQ_OK);
        w->left = bytes;
    }
}

vptq_status vptq_safetensors_writer_open(const char *path, bool force,
                                         const vptq_tensor *tensors, size_t count,
                                         const vptq_metadata *meta, size_t meta_count,
                                         vptq_safetensors_writer *w, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    *w = (vptq_safetensors_writer){.tensors = tensors, .count = count};
    w->file.fd = -1;
    json_t *header = json_object();
    if (!header)
        VPTQ_TRY(no_memory(path, err));
    VPTQ_TRY(add_metadata(header, path, meta, meta_count, err));
    VPTQ_TRY(add_entries(header, path, tensors, count, err));
    VPTQ_TRY(vptq_file_writer_open(path, force, &w->file, err));
    VPTQ_TRY(write_header(w, header, err));
    advance(w);
out:
    json_decref(header);
    if (st)
        vptq_safetensors_writer_abort(w);
    return st;
}

vptq_status vptq_safetensors_write(vptq_safetensors_writer *w, const void *data, size_t n,
                                   vptq_err *err)
{
    VPTQ_BUG_IF(n > w->left);
    VPTQ_CHECK(vptq_file_write(&w->file, data, n, err));
    w->left -= n;
    advance(w);
    return VPTQ_OK;
}

vptq_status vptq_safetensors_writer_commit(vptq_safetensors_writer *w, vptq_err *err)
{
    VPTQ_BUG_IF(w->left != 0 || w->next != w->count);
    return vptq_file_writer_commit(&w->file, err);
}

void vptq_safetensors_writer_abort(vptq_safetensors_writer *w)
{
    if (w->file.fd >= 0)
        vptq_file_writer_abort(&w->file);
}

vptq_status vptq_safetensors_save(const char *path, bool force, const vptq_tensor *tensors,
                                  size_t count, const vptq_metadata *meta, size_t meta_count,
                                  vptq_err *err)
{
    vptq_safetensors_writer w;
    vptq_status st =
        vptq_safetensors_writer_open(path, force, tensors, count, meta, meta_count, &w, err);
    if (st)
        return st;
    for (size_t i = 0; i < count; i++) {
        size_t bytes = 0;
        VPTQ_TRY(tensor_bytes(path, &tensors[i], &bytes, err));
        if (bytes)
            VPTQ_TRY(vptq_safetensors_write(&w, tensors[i].data, bytes, err));
    }
    VPTQ_TRY(vptq_safetensors_writer_commit(&w, err));
out:
    vptq_safetensors_writer_abort(&w);
    return st;
}

/* ---- a directory ---- */

/* Tensors of a directory in file order, and the shard of each. */
typedef struct shard_plan {
    vptq_tensor *tensors; /* a copy of the caller's list in file order */
    uint32_t *shard;      /* [count] */
    size_t count;
    uint32_t shards;
    uint64_t bytes; /* of all tensors */
} shard_plan;

/* Rank of a tensor within its shard.  Tensors of a multiple of 8 bytes come first, in the order
 * given; the others last, wide types first.  Every tensor then begins at a multiple of its
 * element size, which some readers need for views. */
static int shard_rank(const vptq_tensor *t)
{
    return t->bytes % 8 == 0 ? 0 : 8 - (int)vptq_dtype_get(t->type)->bytes;
}

/* Sorts one shard stably by rank (0 to 7). */
static void order_shard(const vptq_tensor *src, size_t count, vptq_tensor *dst)
{
    size_t n = 0;
    for (int rank = 0; rank < 8; rank++)
        for (size_t i = 0; i < count; i++)
            if (shard_rank(&src[i]) == rank)
                dst[n++] = src[i];
}

static vptq_status make_plan(const char *dir, const vptq_tensor *tensors, size_t count,
                             uint64_t shard_bytes, vptq_arena *arena, shard_plan *p,
                             vptq_err *err)
{
    *p = (shard_plan){.count = count};
    vptq_tensor *sized = vptq_arena_alloc(arena, count, sizeof *sized, err);
    p->tensors = vptq_arena_alloc(arena, count, sizeof *p->tensors, err);
    p->shard = vptq_arena_alloc(arena, count, sizeof *p->shard, err);
    if (!sized || !p->tensors || !p->shard)
        return VPTQ_E_NOMEM;
    uint64_t in_shard = 0;
    for (size_t i = 0; i < count; i++) {
        sized[i] = tensors[i];
        VPTQ_CHECK(tensor_bytes(dir, &sized[i], &sized[i].bytes, err));
        uint64_t bytes = sized[i].bytes;
        if (in_shard && (in_shard > shard_bytes || bytes > shard_bytes - in_shard)) {
            p->shards++;
            in_shard = 0;
        }
        p->shard[i] = p->shards;
        in_shard += bytes;
        p->bytes += bytes;
    }
    p->shards++;
    for (size_t begin = 0, end; begin < count; begin = end) {
        for (end = begin; end < count && p->shard[end] == p->shard[begin]; end++)
            ;
        order_shard(sized + begin, end - begin, p->tensors + begin);
    }
    return VPTQ_OK;
}

static void shard_name(const shard_plan *p, uint32_t shard, char name[64])
{
    if (p->shards == 1)
        snprintf(name, 64, VPTQ_SAFETENSORS_SINGLE);
    else
        snprintf(name, 64, "model-%05u-of-%05u.safetensors", shard + 1, p->shards);
}

static vptq_status write_shard(const char *dir, const shard_plan *p, size_t begin, size_t end,
                               vptq_tensor_fill fill, void *arg, vptq_err *err)
{
    /* transformers refuses files without the framework they are for */
    static const vptq_metadata meta = {"format", "pt"};
    vptq_safetensors_writer w;
    char name[64], path[4096];
    shard_name(p, p->count ? p->shard[begin] : 0, name);
    vptq_status st = vptq_path_join(path, sizeof path, dir, name, err);
    if (!st)
        st = vptq_safetensors_writer_open(path, false, p->tensors + begin, end - begin, &meta,
                                          1, &w, err);
    if (st)
        return st; /* a failed open leaves nothing to release */
    for (size_t i = begin; i < end; i++) {
        uint64_t before = w.file.written;
        VPTQ_TRY(fill(arg, &p->tensors[i], &w, err));
        VPTQ_BUG_IF(w.file.written - before != p->tensors[i].bytes);
    }
    VPTQ_TRY(vptq_safetensors_writer_commit(&w, err));
out:
    vptq_safetensors_writer_abort(&w);
    return st;
}

static json_t *make_index(const shard_plan *p)
{
    json_t *weights = json_object();
    for (size_t i = 0; weights && i < p->count; i++) {
        char name[64];
        shard_name(p, p->shard[i], name);
        if (json_object_set_new(weights, p->tensors[i].name, json_string(name))) {
            json_decref(weights);
            return NULL;
        }
    }
    return json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)p->bytes,
                     "weight_map", weights);
}

static vptq_status write_index(const char *dir, const shard_plan *p, vptq_err *err)
{
    char path[4096];
    VPTQ_CHECK(vptq_path_join(path, sizeof path, dir, VPTQ_SAFETENSORS_INDEX, err));
    json_t *index = make_index(p);
    if (!index)
        return no_memory(path, err);
    vptq_status st = vptq_json_save(path, index, err);
    json_decref(index);
    return st;
}

vptq_status vptq_safetensors_write_dir(const char *dir, const vptq_tensor *tensors,
                                       size_t count, uint64_t shard_bytes,
                                       vptq_tensor_fill fill, void *arg, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    shard_plan p;
    vptq_arena arena;
    vptq_arena_init(&arena, NULL);
    VPTQ_TRY(make_plan(dir, tensors, count, shard_bytes, &arena, &p, err));
    size_t begin = 0;
    do {
        size_t end = begin;
        while (end < count && p.shard[end] == p.shard[begin])
            end++;
        VPTQ_TRY(write_shard(dir, &p, begin, end, fill, arg, err));
        begin = end;
    } while (begin < count);
    if (p.shards > 1)
        VPTQ_TRY(write_index(dir, &p, err));
out:
    vptq_arena_release(&arena);
    return st;
}
