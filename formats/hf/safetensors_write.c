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
    VPTQ_CHECK(vptq_json_check_text(path, "tensor name", t->name, err));
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

/* A file to write. */
typedef struct contents {
    const vptq_tensor *tensors;
    size_t count;
    const vptq_metadata *meta;
    size_t meta_count;
    vptq_tensor_fill fill;
    void *arg; /* of fill */
} contents;

static vptq_status add_metadata(json_t *header, const char *path, const contents *c,
                                vptq_err *err)
{
    if (c->meta_count == 0)
        return VPTQ_OK;
    json_t *object = json_object();
    int bad = json_object_set_new(header, "__metadata__", object);
    for (size_t i = 0; !bad && i < c->meta_count; i++)
        bad = json_object_set_new(object, c->meta[i].key, json_string(c->meta[i].value));
    return bad ? no_memory(path, err) : VPTQ_OK;
}

/* Writes the length and the text, padded with spaces so that the data begins at a multiple of
 * 8. */
static vptq_status write_header(vptq_file_writer *w, const json_t *header, size_t tensors,
                                vptq_err *err)
{
    static const char spaces[] = "       ";
    char *text = json_dumps(header, JSON_COMPACT);
    if (!text)
        return no_memory(w->path, err);
    vptq_status st = VPTQ_OK;
    size_t len = strlen(text), pad = (8 - len % 8) % 8;
    uint8_t length[LENGTH_BYTES];
    vptq_put_le(length, len + pad, LENGTH_BYTES);
    if (len + pad > MAX_HEADER)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_ARG,
                           "%s: the header of %zu tensors is longer than %d bytes", w->path,
                           tensors, (int)MAX_HEADER));
    VPTQ_TRY(vptq_file_write(w, length, sizeof length, err));
    VPTQ_TRY(vptq_file_write(w, text, len, err));
    VPTQ_TRY(vptq_file_write(w, spaces, pad, err));
out:
    free(text);
    return st;
}

/* ---- one file ---- */

struct vptq_safetensors_writer {
    vptq_file_writer file;
    size_t left; /* bytes of the current tensor not written yet */
};

vptq_status vptq_safetensors_write(vptq_safetensors_writer *w, const void *data, size_t n,
                                   vptq_err *err)
{
    VPTQ_BUG_IF(n > w->left);
    w->left -= n;
    return vptq_file_write(&w->file, data, n, err);
}

static vptq_status write_file(const char *path, bool force, const contents *c, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_safetensors_writer w = {.file.fd = -1};
    json_t *header = json_object();
    if (!header)
        VPTQ_TRY(no_memory(path, err));
    VPTQ_TRY(add_metadata(header, path, c, err));
    VPTQ_TRY(add_entries(header, path, c->tensors, c->count, err));
    VPTQ_TRY(vptq_file_writer_open(path, force, &w.file, err));
    VPTQ_TRY(write_header(&w.file, header, c->count, err));
    json_decref(header); /* it would keep the heap from shrinking while tensors are written */
    header = NULL;
    for (size_t i = 0; i < c->count; i++) {
        VPTQ_TRY(tensor_bytes(path, &c->tensors[i], &w.left, err));
        VPTQ_TRY(c->fill(c->arg, &c->tensors[i], &w, err));
        VPTQ_BUG_IF(w.left);
    }
    VPTQ_TRY(vptq_file_writer_commit(&w.file, err));
out:
    json_decref(header);
    vptq_file_writer_abort(&w.file);
    return st;
}

static vptq_status fill_from_data(void *arg, const vptq_tensor *t, vptq_safetensors_writer *w,
                                  vptq_err *err)
{
    (void)arg;
    return vptq_safetensors_write(w, t->data, w->left, err);
}

vptq_status vptq_safetensors_save(const char *path, const vptq_tensor *tensors, size_t count,
                                  const vptq_metadata *meta, size_t meta_count, vptq_err *err)
{
    const contents c = {tensors, count, meta, meta_count, fill_from_data, NULL};
    return write_file(path, true, &c, err);
}

/* ---- a directory ---- */

/* Tensors of a directory, and the shard of each. */
typedef struct shard_plan {
    vptq_tensor *given;   /* a copy of the caller's list with `bytes` set */
    vptq_tensor *tensors; /* the same in file order */
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
    p->given = vptq_arena_alloc(arena, count, sizeof *p->given, err);
    p->tensors = vptq_arena_alloc(arena, count, sizeof *p->tensors, err);
    p->shard = vptq_arena_alloc(arena, count, sizeof *p->shard, err);
    if (!p->given || !p->tensors || !p->shard)
        return VPTQ_E_NOMEM;
    uint64_t in_shard = 0;
    for (size_t i = 0; i < count; i++) {
        vptq_tensor *t = &p->given[i];
        *t = tensors[i];
        VPTQ_CHECK(tensor_bytes(dir, t, &t->bytes, err));
        if (in_shard && (in_shard > shard_bytes || t->bytes > shard_bytes - in_shard)) {
            p->shards++;
            in_shard = 0;
        }
        p->shard[i] = p->shards;
        in_shard += t->bytes;
        p->bytes += t->bytes;
    }
    p->shards++;
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
    const contents c = {p->tensors + begin, end - begin, &meta, 1, fill, arg};
    char name[64], path[4096];
    order_shard(p->given + begin, end - begin, p->tensors + begin);
    shard_name(p, p->count ? p->shard[begin] : 0, name);
    VPTQ_CHECK(vptq_path_join(path, sizeof path, dir, name, err));
    return write_file(path, false, &c, err);
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
