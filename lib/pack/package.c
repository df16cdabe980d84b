/* The list of tensors and files of an output, and writing it as a directory or an archive. */
#include "lib/pack/package.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/hf/fused.h"
#include "lib/base/text.h"

#define SHARD_BYTES (UINT64_C(4) << 30)

void vptq_package_init(vptq_package *o, const vptq_ctx *ctx, const vptq_checkpoint *from,
                       const char *stage)
{
    *o = (vptq_package){.ctx = ctx, .from = from, .stage = stage};
    vptq_arena_init(&o->arena, ctx->mem);
}

void vptq_package_release(vptq_package *o)
{
    vptq_mem_free(o->ctx->mem, o->tensors);
    vptq_arena_release(&o->arena);
}

/* ---- tensors ---- */

const vptq_packed_matrix *vptq_package_matrix_of(const vptq_checkpoint *c,
                                                 const char *tensor_name)
{
    static const char weight[] = ".weight";
    char module[VPTQ_NAME_MAX];
    size_t len = strlen(tensor_name), n = vptq_packed_module_length(tensor_name);
    if (!n && len > sizeof weight - 1 &&
        strcmp(tensor_name + len - (sizeof weight - 1), weight) == 0)
        n = len - (sizeof weight - 1);
    if (n == 0 || n >= sizeof module)
        return NULL;
    memcpy(module, tensor_name, n);
    module[n] = '\0';
    return vptq_checkpoint_quantized(c, module);
}

double vptq_package_mean_bits(const vptq_packed_matrix *matrices, size_t count, bool stored)
{
    double bits = 0, weights = 0;
    for (size_t i = 0; i < count; i++) {
        vptq_vq_shape s = matrices[i].vq.shape;
        if (stored)
            s = vptq_packed_stored_shape(&s);
        bits += (double)vptq_vq_count_bits(&s).total;
        weights += (double)s.out * s.in;
    }
    return weights > 0 ? bits / weights : 0;
}

static vptq_status grow(vptq_package *o, vptq_err *err)
{
    size_t cap = o->cap ? 2 * o->cap : 256;
    vptq_package_tensor *list = vptq_mem_alloc(o->ctx->mem, cap, sizeof *list, err);
    if (!list)
        return VPTQ_E_NOMEM;
    if (o->count)
        memcpy(list, o->tensors, o->count * sizeof *list);
    vptq_mem_free(o->ctx->mem, o->tensors);
    o->tensors = list;
    o->cap = cap;
    return VPTQ_OK;
}

vptq_status vptq_package_add(vptq_package *o, const vptq_tensor *t, vptq_package_source source,
                             vptq_err *err)
{
    if (o->count == o->cap)
        VPTQ_CHECK(grow(o, err));
    vptq_package_tensor *out = &o->tensors[o->count];
    *out = (vptq_package_tensor){.tensor = *t, .source = source};
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

static size_t elements_of(const vptq_tensor *t)
{
    return vptq_tensor_rows(t) * vptq_tensor_cols(t);
}

static vptq_status set_type(vptq_tensor *t, vptq_dtype type, size_t elements, vptq_err *err)
{
    const size_t block = vptq_dtype_get(type)->block;
    t->type = type;
    if (vptq_dtype_bytes(type, elements, &t->bytes))
        return VPTQ_OK;
    if (elements % block)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: tensor '%s' has %zu numbers (%zu x %zu), %s needs a multiple of "
                         "%zu",
                         t->file, t->name, elements, vptq_tensor_rows(t), vptq_tensor_cols(t),
                         vptq_dtype_get(type)->name, block);
    return vptq_fail(err, VPTQ_E_FORMAT, "%s: tensor '%s' is too large", t->file, t->name);
}

void vptq_package_warn_decoding(const vptq_package *o, const vptq_tensor *t, vptq_dtype type)
{
    if (o->from->kind == VPTQ_CKPT_ARCHIVE && vptq_dtype_get(t->type)->block > 1 &&
        vptq_dtype_get(type)->block == 1)
        vptq_log(o->ctx, VPTQ_LOG_WARN, "%s: tensor '%s' is stored as %s; decoding it to %s",
                 t->file, t->name, vptq_dtype_get(t->type)->name, vptq_dtype_get(type)->name);
}

vptq_status vptq_package_add_plain(vptq_package *o, const vptq_tensor *t, vptq_dtype type,
                                   vptq_err *err)
{
    vptq_tensor out = *t;
    if (type != VPTQ_DTYPE_COUNT && vptq_dtype_get(t->type)->is_float)
        VPTQ_CHECK(set_type(&out, type, elements_of(t), err));
    vptq_package_warn_decoding(o, t, out.type);
    return vptq_package_add(o, &out, (vptq_package_source){.plain = t}, err);
}

/* Adds a quantized matrix as the plain tensor NAME.weight. */
static vptq_status add_matrix(vptq_package *o, const vptq_packed_matrix *m, vptq_dtype type,
                              vptq_err *err)
{
    char name[VPTQ_NAME_MAX + 8];
    snprintf(name, sizeof name, "%.*s.weight", VPTQ_NAME_MAX, m->name);
    vptq_tensor t = {.name = name,
                     .dims = 2,
                     .shape = {m->vq.shape.out, m->vq.shape.in},
                     .file = o->from->path};
    VPTQ_CHECK(set_type(&t, type, (size_t)m->vq.shape.out * m->vq.shape.in, err));
    return vptq_package_add(o, &t, (vptq_package_source){.matrix = m}, err);
}

/* Plain models have nothing that says so. */
static void warn_of_activations(const vptq_package *o)
{
    size_t count = 0;
    for (size_t i = 0; i < o->from->set.count; i++)
        count += o->from->set.tensors[i].activation_bits > 0;
    if (count)
        vptq_log(o->ctx, VPTQ_LOG_WARN,
                 "%s: %zu linear layer%s 8-bit activations; the output keeps %s weights, "
                 "and its activations are not quantized",
                 o->from->path, count, vptq_plural(count, " has", "s have"),
                 vptq_plural(count, "its", "their"));
}

vptq_status vptq_package_add_dequantized(vptq_package *o, vptq_dtype plain_type,
                                         vptq_dtype matrix_type, vptq_package_skip skip,
                                         vptq_err *err)
{
    const vptq_checkpoint *c = o->from;
    for (size_t i = 0; i < c->set.count; i++) {
        const vptq_tensor *t = &c->set.tensors[i];
        if (!vptq_package_matrix_of(c, t->name) && !(skip && skip(c, t->name)))
            VPTQ_CHECK(vptq_package_add_plain(o, t, plain_type, err));
    }
    for (size_t i = 0; i < c->quantized_count; i++)
        VPTQ_CHECK(add_matrix(o, &c->quantized[i], matrix_type, err));
    warn_of_activations(o);
    return vptq_package_finish(o, err);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const vptq_package_tensor *)a)->tensor.name,
                  ((const vptq_package_tensor *)b)->tensor.name);
}

vptq_status vptq_package_finish(vptq_package *o, vptq_err *err)
{
    if (o->count)
        qsort(o->tensors, o->count, sizeof *o->tensors, by_name);
    for (size_t i = 1; i < o->count; i++)
        if (by_name(&o->tensors[i - 1], &o->tensors[i]) == 0)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "%s: tensor '%s' would be written twice: the model has it plain "
                             "and as a part of a quantized matrix",
                             o->tensors[i].tensor.file, o->tensors[i].tensor.name);
    return VPTQ_OK;
}

/* ---- fused tensors ---- */

static const vptq_package_tensor *find(const vptq_package *o, const char *name)
{
    const vptq_package_tensor key = {.tensor = {.name = name}};
    return bsearch(&key, o->tensors, o->count, sizeof key, by_name);
}

/* The fused layer that a weight is a part of, *layer; NULL if it is none. */
static const vptq_fused *fused_of(const vptq_package *o, const char *name, uint32_t *layer,
                                  vptq_linear *l)
{
    const size_t length = vptq_text_before(name, ".weight");
    if (!length || !vptq_linear_of_module(&o->from->desc, name, length, l))
        return NULL;
    *layer = (uint32_t)strtoul(name + strlen("model.layers."), NULL, 10);
    for (int i = 0; i < VPTQ_FUSED_COUNT; i++) {
        const vptq_fused *f = &vptq_fused_layers[i];
        if (*l >= f->first && (int)*l < (int)f->first + f->count)
            return f;
    }
    return NULL;
}

/* *out = a fused tensor with its parts. */
static vptq_status fuse(vptq_package *o, uint32_t layer, const vptq_fused *f,
                        vptq_package_tensor *out, vptq_err *err)
{
    char module[VPTQ_NAME_MAX], name[VPTQ_NAME_MAX + 8];
    const size_t count = (size_t)f->count;
    vptq_package_tensor *parts = vptq_arena_alloc(&o->arena, count, sizeof *parts, err);
    vptq_fused_name(name, layer, f);
    const char *own = parts ? vptq_arena_strdup(&o->arena, name, err) : NULL;
    if (!own)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        vptq_linear_full_name(&o->from->desc, module, layer, f->first + (int)i);
        snprintf(name, sizeof name, "%s.weight", module);
        const vptq_package_tensor *part = find(o, name);
        if (!part)
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: tensor '%s' is missing", o->from->path,
                             name);
        parts[i] = *part;
        if (i == 0)
            *out = (vptq_package_tensor){
                .tensor = part->tensor, .parts = parts, .part_count = count};
        else
            out->tensor.shape[0] += part->tensor.shape[0];
        out->tensor.bytes += i ? part->tensor.bytes : 0;
    }
    out->tensor.name = own;
    return VPTQ_OK;
}

vptq_status vptq_package_fuse(vptq_package *o, vptq_err *err)
{
    size_t count = 0;
    uint32_t layer;
    vptq_linear l;
    if (!o->from->desc.family->fused)
        return VPTQ_OK;
    vptq_package_tensor *list = vptq_mem_alloc(o->ctx->mem, o->count, sizeof *list, err);
    if (!list)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < o->count; i++) {
        const vptq_fused *f = fused_of(o, o->tensors[i].tensor.name, &layer, &l);
        vptq_status st = VPTQ_OK;
        if (f && l == f->first)
            st = fuse(o, layer, f, &list[count++], err);
        else if (!f)
            list[count++] = o->tensors[i];
        if (st) {
            vptq_mem_free(o->ctx->mem, list);
            return st;
        }
    }
    vptq_mem_free(o->ctx->mem, o->tensors);
    o->tensors = list;
    o->cap = o->count;
    o->count = count;
    return vptq_package_finish(o, err);
}

/* ---- sums ---- */

/* Weights of one output tensor: plain numbers, without the second copy of a tied embedding.
 * *coded: the weight of codes that was counted last. */
static uint64_t count_in(const vptq_package *o, const vptq_package_tensor *e,
                         const vptq_tensor **coded)
{
    const vptq_tensor *t = &e->tensor;
    const bool copy = o->from->desc.tied && strcmp(t->name, VPTQ_HEAD_NAME) == 0;
    uint64_t n = 0;
    for (size_t i = 0; i < e->part_count; i++)
        n += e->parts[i].source.plain ? elements_of(&e->parts[i].tensor) : 0;
    if (e->source.plain && vptq_dtype_get(t->type)->is_float && !copy)
        n += elements_of(t);
    if (e->source.coded && e->source.coded != *coded) /* its parts follow each other */
        n += elements_of(e->source.coded);
    *coded = e->source.coded;
    return n;
}

/* Weights of the model, with those of all quantized matrices. */
static uint64_t count_weights(const vptq_package *o)
{
    const vptq_checkpoint *c = o->from;
    const vptq_tensor *coded = NULL;
    uint64_t n = 0;
    for (size_t i = 0; i < o->count; i++)
        n += count_in(o, &o->tensors[i], &coded);
    for (size_t i = 0; i < c->quantized_count; i++)
        n += (uint64_t)c->quantized[i].vq.shape.out * c->quantized[i].vq.shape.in;
    return n;
}

/* NaN if it was not measured; 0 if all bytes were copied. */
static double relative_mse(const vptq_package_loss *loss, bool dry_run)
{
    if (!loss || dry_run)
        return (double)NAN;
    return loss->energy > 0 ? loss->error / loss->energy : 0;
}

void vptq_package_summarize(const vptq_package *o, bool dry_run, vptq_pack_result *r)
{
    const uint64_t weights = count_weights(o);
    r->file_bits_per_weight = weights ? 8.0 * (double)r->bytes / (double)weights : 0;
    r->embedding.relative_mse = relative_mse(o->loss, dry_run);
    r->layers.relative_mse = relative_mse(o->layer_loss, dry_run);
    for (size_t i = 0; i < o->count; i++) {
        const vptq_tensor *t = &o->tensors[i].tensor;
        if (!vptq_is_embedding(t->name))
            continue;
        r->embedding.type = vptq_dtype_get(t->type)->name;
        r->embedding.bytes += o->tensors[i].packed ? o->tensors[i].packed : t->bytes;
    }
}

/* ---- files ---- */

bool vptq_package_has_file(const vptq_package *o, const char *name)
{
    for (size_t i = 0; i < o->file_count; i++)
        if (strcmp(o->files[i].name, name) == 0)
            return true;
    return false;
}

vptq_status vptq_package_add_file(vptq_package *o, const char *name, const char *data,
                                  size_t size, vptq_err *err)
{
    if (o->file_count == VPTQ_PACKAGE_MAX_FILES)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED, "%s: more than %d files next to the weights",
                         o->from->path, (int)VPTQ_PACKAGE_MAX_FILES);
    char *own = vptq_arena_strdup(&o->arena, name, err);
    if (!own)
        return VPTQ_E_NOMEM;
    o->files[o->file_count++] = (vptq_package_file){own, data, size};
    o->bytes += size;
    return VPTQ_OK;
}

/* ---- paths ---- */

static vptq_status check_path(const char *model, const char *what, const char *output,
                              vptq_err *err)
{
    if (vptq_path_same(output, model))
        return vptq_fail(err, VPTQ_E_ARG, "the output '%s' is %s itself", output, what);
    if (vptq_path_lies_in(output, model))
        return vptq_fail(err, VPTQ_E_ARG, "the output '%s' is the directory of %s", output,
                         what);
    return VPTQ_OK;
}

vptq_status vptq_package_check_embeddings(const vptq_pack_options *opt, vptq_err *err)
{
    if (opt->embeddings == VPTQ_DTYPE_COUNT || vptq_is_embedding_type(opt->embeddings))
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_ARG,
                     "embeddings of type %d, expected F16, BF16, F32, Q8_0 or Q6_K",
                     (int)opt->embeddings);
}

/* Refuses ".." after a folder that is missing: writing would create it, and only then does the
 * path lead to what is checked below. */
static vptq_status check_folders(const char *output, vptq_err *err)
{
    char folder[4096];
    for (const char *at = output; (at = strstr(at, "/..")); at++) {
        const size_t n = (size_t)(at - output);
        if (n == 0 || (at[3] && at[3] != '/'))
            continue;
        if (n >= sizeof folder)
            return vptq_fail(err, VPTQ_E_ARG, "the path '%.80s...' is too long", output);
        memcpy(folder, output, n);
        folder[n] = '\0';
        if (!vptq_path_is_dir(folder))
            return vptq_fail(err, VPTQ_E_ARG, "the output '%s': '%s' is not a directory",
                             output, folder);
    }
    return VPTQ_OK;
}

vptq_status vptq_package_check_path(const vptq_checkpoint *c, const char *output, vptq_err *err)
{
    VPTQ_CHECK(check_folders(output, err));
    VPTQ_CHECK(check_path(c->path, "the input", output, err));
    return c->base ? check_path(c->base->path, "the base model", output, err) : VPTQ_OK;
}

vptq_status vptq_pack_check_work(const char *path, const char *base, bool partial,
                                 vptq_err *err)
{
    char manifest[4096];
    if (!base && !partial)
        return VPTQ_OK;
    if (!vptq_path_join(manifest, sizeof manifest, path, VPTQ_WORK_FILE, NULL) &&
        vptq_path_exists(manifest))
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_ARG,
                     "--%s is for work directories, and '%s' has no " VPTQ_WORK_FILE,
                     partial ? "partial" : "base", path);
}

/* Whether writing a directory may make a file of this name. */
static bool is_model_file(const char *name)
{
    static const char *const weights[] = {".safetensors", ".safetensors.index.json"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        const size_t k = strlen(weights[i]);
        if (n > k && !strcmp(name + n - k, weights[i]) && !strncmp(name, "model", 5))
            return true;
    }
    return vptq_companion_ok(name) || !strcmp(name, "SHA256SUMS");
}

vptq_status vptq_package_check_replaced(const vptq_ctx *ctx, const char *path, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    char **names = NULL;
    size_t count = 0;
    bool config = false;
    if (!vptq_path_is_dir(path))
        return VPTQ_OK;
    vptq_arena_init(&arena, ctx->mem);
    VPTQ_TRY(vptq_dir_list(path, &arena, &names, &count, err));
    for (size_t i = 0; i < count; i++)
        config |= !strcmp(names[i], "config.json");
    for (size_t i = 0; i < count && !st; i++)
        if (!config || !is_model_file(names[i]))
            st = vptq_fail(err, VPTQ_E_MISMATCH,
                           "cannot replace directory '%s': it holds '%s'%s", path, names[i],
                           config ? ", which is not a file of a model" : " and no config.json");
out:
    vptq_arena_release(&arena);
    return st;
}

vptq_status vptq_package_check_output(const vptq_ctx *ctx, const vptq_checkpoint *c,
                                      const vptq_pack_options *opt, vptq_err *err)
{
    if (!opt->output)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_package_check_path(c, opt->output, err));
    if (opt->form != VPTQ_PACK_HF)
        return vptq_file_check_target(opt->output, opt->force, err);
    VPTQ_CHECK(vptq_package_check_replaced(ctx, opt->output, err));
    return vptq_dir_check_target(opt->output, NULL, opt->force, err);
}

vptq_status vptq_package_path_bytes(const vptq_ctx *ctx, const char *path, uint64_t *bytes,
                                    vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    struct stat sb;
    char **names = NULL, file[4096];
    size_t count = 0;
    *bytes = 0;
    if (!vptq_path_is_dir(path)) {
        if (stat(path, &sb) == 0)
            *bytes = (uint64_t)sb.st_size;
        return VPTQ_OK;
    }
    vptq_arena_init(&arena, ctx->mem);
    VPTQ_TRY(vptq_dir_list(path, &arena, &names, &count, err));
    for (size_t i = 0; i < count; i++) {
        VPTQ_TRY(vptq_path_join(file, sizeof file, path, names[i], err));
        if (stat(file, &sb) == 0 && S_ISREG(sb.st_mode))
            *bytes += (uint64_t)sb.st_size;
    }
out:
    vptq_arena_release(&arena);
    return st;
}

/* ---- writing ---- */

typedef struct writing {
    const vptq_package *o;
    uint64_t done, total; /* bytes of tensors */
} writing;

static vptq_status fill_one(writing *w, const vptq_package_tensor *t, vptq_package_sink *s,
                            vptq_err *err)
{
    VPTQ_CHECK(vptq_check_cancel(w->o->ctx, err));
    vptq_progress(w->o->ctx, w->o->stage, "bytes", w->done, w->total, t->tensor.name);
    w->done += t->tensor.bytes;
    return w->o->fill(w->o->fill_arg, t, s, err);
}

static vptq_status fill_file(void *arg, const vptq_tensor *t, vptq_safetensors_writer *file,
                             vptq_err *err)
{
    writing *w = arg;
    vptq_package_tensor key = {.tensor = *t};
    const vptq_package_tensor *found =
        bsearch(&key, w->o->tensors, w->o->count, sizeof key, by_name);
    vptq_package_sink s = {.file = file};
    VPTQ_BUG_IF(!found);
    return fill_one(w, found, &s, err);
}

static writing begin(const vptq_package *o)
{
    writing w = {.o = o};
    for (size_t i = 0; i < o->count; i++)
        w.total += o->tensors[i].tensor.bytes;
    return w;
}

static vptq_status write_small_files(const vptq_package *o, const char *dir, vptq_err *err)
{
    char path[4096];
    for (size_t i = 0; i < o->file_count; i++) {
        const vptq_package_file *f = &o->files[i];
        VPTQ_CHECK(vptq_path_join(path, sizeof path, dir, f->name, err));
        VPTQ_CHECK(vptq_file_replace(path, f->data, f->size, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_package_write_dir(vptq_package *o, const char *path, bool force,
                                   uint64_t shard_bytes, uint64_t *bytes, vptq_err *err)
{
    vptq_dir_writer dir;
    writing w = begin(o);
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
    VPTQ_TRY(vptq_sums_write(o->ctx, dir.tmp, err));
    VPTQ_TRY(vptq_package_path_bytes(o->ctx, dir.tmp, bytes, err));
    vptq_progress(o->ctx, o->stage, "bytes", w.total, w.total, NULL);
    VPTQ_TRY(vptq_dir_writer_commit(&dir, err));
out:
    vptq_dir_writer_abort(&dir);
    vptq_mem_free(o->ctx->mem, list);
    return st;
}

/* docs/benchmarks.md measures each level for each kind of entry: weights, codebooks and indices
 * hardly repeat and gain nothing above level 1; vectors and texts are small and do gain. */
enum { MATRIX_LEVEL = 1, VECTOR_LEVEL = 9, FILE_LEVEL = 9 };

static vptq_status begin_entry(vptq_archive_writer *a, const vptq_tensor *t, int level,
                               vptq_err *err)
{
    if (!level)
        level = t->dims < 2 ? VECTOR_LEVEL : MATRIX_LEVEL;
    return vptq_archive_begin_tensor(a, t, level, err);
}

static vptq_status archive_tensor(writing *w, vptq_archive_writer *a, vptq_package_tensor *t,
                                  int level, vptq_err *err)
{
    const uint64_t before = vptq_archive_written(a);
    vptq_package_sink s = {.archive = a};
    VPTQ_CHECK(begin_entry(a, &t->tensor, level, err));
    VPTQ_CHECK(fill_one(w, t, &s, err));
    VPTQ_CHECK(vptq_archive_end(a, err));
    t->packed = vptq_archive_written(a) - before;
    return VPTQ_OK;
}

vptq_status vptq_package_write_archive(vptq_package *o, const char *path, bool force, int level,
                                       uint64_t *bytes, vptq_err *err)
{
    vptq_archive_writer *a = NULL;
    writing w = begin(o);
    vptq_status st =
        vptq_archive_writer_open(path, force, o->ctx->threads, o->ctx->mem, &a, err);
    if (st)
        return st;
    for (size_t i = 0; i < o->file_count; i++)
        VPTQ_TRY(vptq_archive_add_file(a, o->files[i].name, o->files[i].data, o->files[i].size,
                                       level ? level : FILE_LEVEL, err));
    for (size_t i = 0; i < o->count; i++)
        VPTQ_TRY(archive_tensor(&w, a, &o->tensors[i], level, err));
    vptq_progress(o->ctx, o->stage, "bytes", w.total, w.total, NULL);
    VPTQ_TRY(vptq_archive_writer_commit(a, err));
    VPTQ_TRY(vptq_package_path_bytes(o->ctx, path, bytes, err));
out:
    vptq_archive_writer_abort(a);
    return st;
}

/* ---- estimates ---- */

/* An output whose bytes are dropped. */
typedef struct dropping {
    const vptq_package *o;
    int level;
} dropping;

/* A directory's SHA256SUMS is made of all bytes. */
static vptq_status drop_into_hash(void *arg, const vptq_package_tensor *t, size_t count,
                                  vptq_package_probe *p, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const dropping *d = arg;
    vptq_sha256 hash = {NULL};
    vptq_package_sink s = {.hash = &hash, .probe = p};
    VPTQ_CHECK(vptq_sha256_begin(&hash, err));
    for (size_t i = 0; i < count && !st; i++)
        st = d->o->fill(d->o->fill_arg, &t[i], &s, err);
    vptq_sha256_release(&hash);
    return st;
}

static vptq_status drop_into_archive(void *arg, const vptq_package_tensor *t, size_t count,
                                     vptq_package_probe *p, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const dropping *d = arg;
    const vptq_ctx *ctx = d->o->ctx;
    vptq_package_sink s = {.probe = p};
    VPTQ_CHECK(vptq_archive_writer_open(NULL, false, ctx->threads, ctx->mem, &s.archive, err));
    for (size_t i = 0; i < count && (i == 0 || !vptq_package_is_late(p)); i++) {
        VPTQ_TRY(begin_entry(s.archive, &t[i].tensor, d->level, err));
        VPTQ_TRY(d->o->fill(d->o->fill_arg, &t[i], &s, err));
        if (!vptq_package_is_late(p))
            VPTQ_TRY(vptq_archive_end(s.archive, err));
    }
out:
    vptq_archive_writer_abort(s.archive);
    return st;
}

vptq_status vptq_package_estimate_dir(const vptq_package *o, vptq_pack_result *r, vptq_err *err)
{
    return vptq_package_estimate(o, drop_into_hash, &(dropping){.o = o}, r, err);
}

vptq_status vptq_package_estimate_archive(const vptq_package *o, int level, vptq_pack_result *r,
                                          vptq_err *err)
{
    return vptq_package_estimate(o, drop_into_archive, &(dropping){o, level}, r, err);
}
