#include "lib/pack/out.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/half.h"

#define SHARD_BYTES (UINT64_C(4) << 30)

void vptq_out_init(vptq_out *o, const vptq_ctx *ctx, const vptq_checkpoint *from,
                   const char *stage)
{
    *o = (vptq_out){.ctx = ctx, .from = from, .stage = stage};
    vptq_arena_init(&o->arena, ctx->mem);
}

void vptq_out_release(vptq_out *o)
{
    vptq_mem_free(o->ctx->mem, o->tensors);
    vptq_arena_release(&o->arena);
}

/* ---- the list ---- */

bool vptq_out_is_quantized(const vptq_checkpoint *c, const char *tensor_name)
{
    static const char weight[] = ".weight";
    char module[VPTQ_NAME_MAX];
    size_t len = strlen(tensor_name), n = vptq_packed_module_length(tensor_name);
    if (!n && len > sizeof weight - 1 &&
        strcmp(tensor_name + len - (sizeof weight - 1), weight) == 0)
        n = len - (sizeof weight - 1);
    if (n == 0 || n >= sizeof module)
        return false;
    memcpy(module, tensor_name, n);
    module[n] = '\0';
    return vptq_checkpoint_quantized(c, module) != NULL;
}

static vptq_status grow(vptq_out *o, vptq_err *err)
{
    size_t cap = o->cap ? 2 * o->cap : 256;
    vptq_out_tensor *list = vptq_mem_alloc(o->ctx->mem, cap, sizeof *list, err);
    if (!list)
        return VPTQ_E_NOMEM;
    if (o->count)
        memcpy(list, o->tensors, o->count * sizeof *list);
    vptq_mem_free(o->ctx->mem, o->tensors);
    o->tensors = list;
    o->cap = cap;
    return VPTQ_OK;
}

vptq_status vptq_out_add(vptq_out *o, const vptq_tensor *t, vptq_out_source source,
                         vptq_err *err)
{
    if (o->count == o->cap) {
        vptq_status st = grow(o, err);
        if (st)
            return st;
    }
    vptq_out_tensor *out = &o->tensors[o->count];
    *out = (vptq_out_tensor){*t, source};
    out->tensor.data = NULL;
    out->tensor.mapped = false;
    out->tensor.source = NULL;
    out->tensor.rope_heads = 0;
    out->tensor.round_to = VPTQ_F32;
    out->tensor.name = vptq_arena_strdup(&o->arena, t->name, err);
    if (!out->tensor.name)
        return VPTQ_E_NOMEM;
    o->count++;
    o->bytes += t->bytes;
    return VPTQ_OK;
}

vptq_status vptq_out_add_plain(vptq_out *o, const vptq_tensor *t, vptq_dtype type,
                               vptq_err *err)
{
    vptq_tensor out = *t;
    if (type != VPTQ_DTYPE_COUNT && vptq_dtype_get(t->type)->is_float) {
        out.type = type;
        if (!vptq_dtype_bytes(type, vptq_tensor_rows(t) * vptq_tensor_cols(t), &out.bytes))
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: tensor '%s' is too large", t->file,
                             t->name);
    }
    return vptq_out_add(o, &out, (vptq_out_source){.plain = t}, err);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const vptq_out_tensor *)a)->tensor.name,
                  ((const vptq_out_tensor *)b)->tensor.name);
}

vptq_status vptq_out_finish(vptq_out *o, vptq_err *err)
{
    if (o->count)
        qsort(o->tensors, o->count, sizeof *o->tensors, by_name);
    for (size_t i = 1; i < o->count; i++)
        if (by_name(&o->tensors[i - 1], &o->tensors[i]) == 0)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: tensor '%s' would be written twice: it is there plain and as "
                             "a part of a quantized matrix",
                             o->tensors[i].tensor.file, o->tensors[i].tensor.name);
    return VPTQ_OK;
}

/* ---- bytes ---- */

vptq_status vptq_out_put(vptq_out_sink *s, const void *data, size_t n, vptq_err *err)
{
    if (n == 0)
        return VPTQ_OK;
    return s->file ? vptq_safetensors_write(s->file, data, n, err)
                   : vptq_archive_put(s->archive, data, n, err);
}

/* The smallest magnitude that rounds to infinity. */
static float limit_of(vptq_dtype type)
{
    if (type == VPTQ_F16)
        return 65520.0F;
    return type == VPTQ_BF16 ? 0x1.FFp127F : INFINITY;
}

vptq_status vptq_out_narrow(const vptq_tensor *t, vptq_dtype type, const float *x, size_t n,
                            size_t first, size_t cols, void *stored, vptq_err *err)
{
    float limit = limit_of(type);
    for (size_t i = 0; i < n; i++) {
        if (fabsf(x[i]) < limit)
            continue;
        size_t at = first + i;
        if (!isfinite(x[i]))
            return vptq_fail(err, VPTQ_E_NUMERIC, "%s: tensor '%s': row %zu, column %zu is %g",
                             t->file, t->name, at / cols, at % cols, (double)x[i]);
        return vptq_fail(err, VPTQ_E_NUMERIC,
                         "%s: tensor '%s': row %zu, column %zu is %g, which %s cannot hold "
                         "(give another --dtype)",
                         t->file, t->name, at / cols, at % cols, (double)x[i],
                         vptq_dtype_get(type)->name);
    }
    if (type == VPTQ_F16)
        vptq_f32_to_f16_n(x, stored, n);
    else if (type == VPTQ_BF16)
        vptq_f32_to_bf16_n(x, stored, n);
    else
        memcpy(stored, x, n * sizeof *x);
    return VPTQ_OK;
}

vptq_status vptq_out_walk(const vptq_ctx *ctx, const vptq_checkpoint *from,
                          const vptq_tensor *t, vptq_out_sink *s, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    uint8_t *room = vptq_mem_alloc(ctx->mem, t->data ? 0 : vptq_tensor_piece(t, 0), 1, err);
    if (!room)
        return VPTQ_E_NOMEM;
    for (size_t at = 0, n; at < t->bytes; at += n) {
        const uint8_t *bytes;
        n = vptq_tensor_piece(t, at);
        VPTQ_TRY(vptq_check_cancel(ctx, err));
        VPTQ_TRY(vptq_tensor_bytes(t, at, n, room, &bytes, err));
        VPTQ_TRY(vptq_tensor_check_piece(t, bytes, at, n, err));
        if (s)
            VPTQ_TRY(vptq_out_put(s, bytes, n, err));
        vptq_checkpoint_forget(from);
    }
out:
    vptq_mem_free(ctx->mem, room);
    return st;
}

vptq_status vptq_out_fill_plain(const vptq_out *o, const vptq_out_tensor *t, vptq_out_sink *s,
                                vptq_err *err)
{
    const vptq_tensor *src = t->source.plain;
    bool number = vptq_dtype_get(src->type)->is_float;
    bool as_is = !number || (t->tensor.type == src->type && !src->rope_heads &&
                             (src->round_to == VPTQ_F32 || src->round_to == src->type));
    return as_is ? vptq_out_walk(o->ctx, o->from, src, s, err)
                 : vptq_out_fill_rows(o, NULL, t, s, err);
}

/* ---- writing ---- */

typedef struct writing {
    vptq_out *o;
    vptq_out_fill fill;
    void *arg;
    uint64_t done, total;
} writing;

static vptq_status fill_one(writing *w, const vptq_out_tensor *t, vptq_out_sink *s,
                            vptq_err *err)
{
    vptq_status st = vptq_check_cancel(w->o->ctx, err);
    if (st)
        return st;
    vptq_progress(w->o->ctx, w->o->stage, w->done, w->total, t->tensor.name);
    st = w->fill(w->arg, t, s, err);
    w->done += t->tensor.bytes;
    return st;
}

static vptq_status fill_file(void *arg, const vptq_tensor *t, vptq_safetensors_writer *file,
                             vptq_err *err)
{
    writing *w = arg;
    vptq_out_tensor key = {.tensor = *t};
    const vptq_out_tensor *found =
        bsearch(&key, w->o->tensors, w->o->count, sizeof key, by_name);
    vptq_out_sink s = {.file = file};
    VPTQ_BUG_IF(!found);
    return fill_one(w, found, &s, err);
}

static writing begin(vptq_out *o, vptq_out_fill fill, void *arg)
{
    writing w = {.o = o, .fill = fill, .arg = arg};
    for (size_t i = 0; i < o->count; i++)
        w.total += o->tensors[i].tensor.bytes;
    return w;
}

static vptq_status write_small_files(const vptq_out *o, const char *dir, vptq_err *err)
{
    char path[4096];
    for (size_t i = 0; i < o->file_count; i++) {
        const vptq_out_file *f = &o->files[i];
        VPTQ_CHECK(vptq_path_join(path, sizeof path, dir, f->name, err));
        VPTQ_CHECK(vptq_file_replace(path, f->data, f->size, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_out_write_dir(vptq_out *o, const char *path, bool force, uint64_t shard_bytes,
                               vptq_out_fill fill, void *arg, uint64_t *bytes, vptq_err *err)
{
    vptq_dir_writer dir;
    writing w = begin(o, fill, arg);
    vptq_tensor *list = vptq_mem_alloc(o->ctx->mem, o->count, sizeof *list, err);
    if (!list)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < o->count; i++)
        list[i] = o->tensors[i].tensor;
    vptq_status st = vptq_dir_writer_open(path, NULL, force, &dir, err);
    if (st) {
        vptq_mem_free(o->ctx->mem, list);
        return st;
    }
    VPTQ_TRY(write_small_files(o, dir.tmp, err));
    VPTQ_TRY(vptq_safetensors_write_dir(
        dir.tmp, list, o->count, shard_bytes ? shard_bytes : SHARD_BYTES, fill_file, &w, err));
    VPTQ_TRY(vptq_out_path_bytes(o->ctx, dir.tmp, bytes, err));
    vptq_progress(o->ctx, o->stage, w.total, w.total, NULL);
    VPTQ_TRY(vptq_dir_writer_commit(&dir, err));
out:
    vptq_dir_writer_abort(&dir);
    vptq_mem_free(o->ctx->mem, list);
    return st;
}

static vptq_status archive_tensor(writing *w, vptq_archive_writer *a, const vptq_out_tensor *t,
                                  int level, vptq_err *err)
{
    vptq_out_sink s = {.archive = a};
    vptq_status st = vptq_archive_begin_tensor(a, &t->tensor, level, err);
    if (!st)
        st = fill_one(w, t, &s, err);
    return st ? st : vptq_archive_end_tensor(a, err);
}

/* docs/benchmarks.md has what each level gives for each kind: of weights, codebooks and indices
 * none more than the first, as they do not repeat; vectors and texts are small and gain. */
enum { MATRIX_LEVEL = 1, VECTOR_LEVEL = 9, FILE_LEVEL = 9 };

static int level_of(const vptq_tensor *t, int asked)
{
    if (asked)
        return asked;
    return t->dims < 2 ? VECTOR_LEVEL : MATRIX_LEVEL;
}

vptq_status vptq_out_write_archive(vptq_out *o, const char *path, bool force, int level,
                                   vptq_out_fill fill, void *arg, uint64_t *bytes,
                                   vptq_err *err)
{
    vptq_archive_writer *a = NULL;
    writing w = begin(o, fill, arg);
    vptq_status st =
        vptq_archive_writer_open(path, force, o->ctx->threads, o->ctx->mem, &a, err);
    if (st)
        return st;
    for (size_t i = 0; i < o->file_count; i++)
        VPTQ_TRY(vptq_archive_add_file(a, o->files[i].name, o->files[i].data, o->files[i].size,
                                       level ? level : FILE_LEVEL, err));
    for (size_t i = 0; i < o->count; i++)
        VPTQ_TRY(
            archive_tensor(&w, a, &o->tensors[i], level_of(&o->tensors[i].tensor, level), err));
    vptq_progress(o->ctx, o->stage, w.total, w.total, NULL);
    VPTQ_TRY(vptq_archive_writer_commit(a, err));
    VPTQ_TRY(vptq_out_path_bytes(o->ctx, path, bytes, err));
out:
    vptq_archive_writer_abort(a);
    return st;
}
