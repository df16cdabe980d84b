/* The kinds with quantized matrices: packed directories, archives, work directories. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/checkpoint_internal.h"
#include "formats/hf/config.h"
#include "formats/hf/safetensors.h"
#include "formats/vptq/archive.h"
#include "formats/vptq/layer_file.h"

#define CONFIG_FILE "config.json"

typedef struct extra {
    vptq_archive *archive;
    int threads; /* that unpack its tensors */
    vptq_layer_file *layers;
    size_t layer_count;
} extra;

static vptq_status make_extra(vptq_checkpoint *c, vptq_err *err)
{
    c->extra = vptq_arena_zalloc(&c->arena, 1, sizeof(extra), err);
    return c->extra ? VPTQ_OK : VPTQ_E_NOMEM;
}

void vptq_checkpoint_release_extra(vptq_checkpoint *c)
{
    extra *x = c->extra;
    if (!x)
        return;
    for (size_t i = 0; i < x->layer_count; i++)
        vptq_layer_file_release(&x->layers[i]);
    vptq_archive_close(x->archive);
    c->extra = NULL;
}

void vptq_checkpoint_forget(const vptq_checkpoint *c)
{
    const extra *x = c->extra;
    vptq_tensor_set_forget(&c->set);
    for (size_t i = 0; x && i < x->layer_count; i++)
        vptq_tensor_set_forget(&x->layers[i].set);
    if (c->base)
        vptq_checkpoint_forget(c->base);
}

const vptq_layer_file *vptq_checkpoint_layer(const vptq_checkpoint *c, size_t i)
{
    const extra *x = c->extra;
    for (size_t k = 0; c->kind == VPTQ_CKPT_WORK && k < x->layer_count; k++)
        if (x->layers[k].matrix.name == c->quantized[i].name) /* a copy of the same matrix */
            return &x->layers[k];
    return NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const vptq_packed_matrix *)a)->name, ((const vptq_packed_matrix *)b)->name);
}

/* ---- what config.json calls quantized ---- */

/* A part of a quantized matrix that no entry claims would be lost without a word. */
static vptq_status check_claimed(const vptq_checkpoint *c, const vptq_strmap *claimed,
                                 vptq_err *err)
{
    for (size_t i = 0; i < c->set.count; i++) {
        const vptq_tensor *t = &c->set.tensors[i];
        uint32_t value;
        size_t len = vptq_packed_module_length(t->name);
        if (len == 0 || vptq_strmap_get(claimed, t->name, len, &value))
            continue;
        vptq_status st = vptq_checkpoint_tell(
            c,
            vptq_fail(err, VPTQ_E_FORMAT,
                      "%s: tensor '%s' is part of a quantized matrix, but " CONFIG_FILE
                      " lists no linear of a block by that name",
                      t->file, t->name),
            err);
        if (st)
            return st;
    }
    return VPTQ_OK;
}

static vptq_status read_matrix(vptq_checkpoint *c, const json_t *entry, const char *name,
                               bool shapes_only, vptq_arena *arena, vptq_packed_matrix *m,
                               bool *whole, vptq_err *err)
{
    const char *file = c->path;
    *whole = true;
    if (c->fault)
        return vptq_packed_check(&c->set, entry, name, file, arena, c->fault, c->fault_arg, m,
                                 whole, err);
    if (shapes_only)
        return vptq_packed_read_shape(&c->set, entry, name, file, arena, m, err);
    return vptq_packed_read(&c->set, entry, name, file, arena, m, err);
}

/* One matrix more in c->quantized; none where faults are told and it has some. */
static vptq_status read_one(vptq_checkpoint *c, const json_t *entry, const char *name,
                            bool shapes_only, vptq_err *err)
{
    vptq_packed_matrix *m = &c->quantized[c->quantized_count];
    vptq_arena scratch;
    vptq_arena_init(&scratch, c->arena.mem);
    bool whole;
    vptq_status st = read_matrix(c, entry, name, shapes_only,
                                 shapes_only ? &scratch : &c->arena, m, &whole, err);
    if (!st && whole)
        c->quantized_count++;
    if (!st && whole && shapes_only) {
        m->vq = (vptq_vq){.shape = m->vq.shape};
        m->name = vptq_arena_strdup(&c->arena, name, err);
        st = m->name ? VPTQ_OK : VPTQ_E_NOMEM;
    }
    vptq_arena_release(&scratch);
    if (shapes_only)
        vptq_checkpoint_forget(c);
    return st;
}

static vptq_status read_claimed(vptq_checkpoint *c, vptq_strmap *claimed, bool shapes_only,
                                vptq_err *err)
{
    for (uint32_t layer = 0; layer < c->desc.layers; layer++)
        for (int l = 0; l < VPTQ_LINEAR_COUNT; l++) {
            char name[VPTQ_NAME_MAX];
            bool fresh;
            vptq_linear_full_name(name, layer, (vptq_linear)l);
            const json_t *entry = vptq_packed_entry(c->config, name);
            if (!entry)
                continue;
            const char *own = vptq_arena_strdup(&c->arena, name, err);
            if (!own)
                return VPTQ_E_NOMEM;
            VPTQ_CHECK(vptq_strmap_add(claimed, own, strlen(own), 0, &fresh, err));
            VPTQ_CHECK(read_one(c, entry, own, shapes_only, err));
        }
    if (claimed->count == 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: " CONFIG_FILE " says quant_method vptq, but lists no linear of "
                         "a block",
                         c->path);
    return check_claimed(c, claimed, err);
}

static vptq_status read_matrices(vptq_checkpoint *c, bool shapes_only, vptq_err *err)
{
    vptq_strmap claimed = {0};
    size_t most = (size_t)c->desc.layers * VPTQ_LINEAR_COUNT;
    c->quantized = vptq_arena_alloc(&c->arena, most, sizeof *c->quantized, err);
    if (!c->quantized)
        return VPTQ_E_NOMEM;
    vptq_status st = vptq_strmap_init(&claimed, c->arena.mem, most, err);
    if (st)
        return st;
    st = read_claimed(c, &claimed, shapes_only, err);
    vptq_strmap_release(&claimed);
    if (!st && c->quantized_count) {
        c->storage = c->quantized[0].storage;
        qsort(c->quantized, c->quantized_count, sizeof *c->quantized, by_name);
    }
    return st;
}

vptq_status vptq_checkpoint_open_packed(bool shapes_only, vptq_checkpoint *c, vptq_err *err)
{
    char name[4096];
    VPTQ_CHECK(vptq_path_join(name, sizeof name, c->path, CONFIG_FILE, err));
    VPTQ_CHECK(vptq_json_load(name, VPTQ_CONFIG_LIMIT, &c->config, err));
    VPTQ_CHECK(vptq_hf_config_parse(c->config, name, &c->desc, err));
    VPTQ_CHECK(vptq_safetensors_read_dir(c->path, &c->set, err));
    return read_matrices(c, shapes_only, err);
}

/* ---- archive ---- */

/* A small file of the archive (at most `limit` bytes) as text in the arena, NULL when it is not
 * there. */
vptq_status vptq_checkpoint_archive_text(const vptq_checkpoint *c, const char *name,
                                         size_t limit, vptq_arena *arena, char **text,
                                         size_t *len, vptq_err *err)
{
    const extra *x = c->extra;
    const vptq_archive_entry *e = vptq_archive_find(x->archive, name, false);
    *text = NULL;
    *len = 0;
    if (!e)
        return VPTQ_OK;
    if (e->size > limit)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: file '%s' has %" PRIu64 " bytes, more than the %zu expected",
                         c->path, name, e->size, limit);
    char *buf = vptq_arena_alloc(arena, (size_t)e->size + 1, 1, err);
    if (!buf)
        return VPTQ_E_NOMEM;
    vptq_status st = vptq_archive_load(x->archive, e, x->threads, buf, err);
    if (st)
        return st;
    buf[e->size] = '\0';
    *text = buf;
    *len = (size_t)e->size;
    return VPTQ_OK;
}

/* The source of an archive's tensor. */
typedef struct archived {
    vptq_tensor_source source;
    const extra *x;
    const vptq_archive_entry *entry;
} archived;

static vptq_status read_archived(const void *arg, size_t at, size_t n, void *dst, vptq_err *err)
{
    const archived *a = arg;
    return vptq_archive_load_part(a->x->archive, a->entry, at, n, a->x->threads, dst, err);
}

/* All of them in the arena, or where each is to be had. */
static vptq_status archive_tensor(vptq_checkpoint *c, const vptq_archive_entry *e,
                                  bool shapes_only, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const extra *x = c->extra;
    vptq_tensor t = e->tensor;
    uint8_t *data = NULL;
    archived *a = vptq_arena_alloc(&c->arena, 1, sizeof *a, err);
    if (!a)
        return VPTQ_E_NOMEM;
    *a = (archived){{read_archived, a}, x, e};
    if (!shapes_only) {
        data = vptq_arena_alloc(&c->arena, (size_t)e->size, 1, err);
        if (!data)
            return VPTQ_E_NOMEM;
        st = vptq_archive_load(x->archive, e, x->threads, data, err);
    } else if (c->fault) {
        st = vptq_archive_verify(x->archive, e, x->threads, err);
    }
    t.data = st ? NULL : data;
    t.source = st ? NULL : &a->source;
    VPTQ_TRY(vptq_checkpoint_tell(c, st, err));
    t.file = c->path;
    st = vptq_tensor_set_add(&c->set, &t, err);
out:
    return st;
}

/* Files that nobody reads here would be copied on as they are. */
static vptq_status archive_entries(vptq_checkpoint *c, bool shapes_only, vptq_err *err)
{
    const extra *x = c->extra;
    for (size_t i = 0; i < vptq_archive_count(x->archive); i++) {
        const vptq_archive_entry *e = vptq_archive_at(x->archive, i);
        if (e->is_tensor)
            VPTQ_CHECK(archive_tensor(c, e, shapes_only, err));
        else if (c->fault)
            VPTQ_CHECK(vptq_checkpoint_tell(
                c, vptq_archive_verify(x->archive, e, x->threads, err), err));
    }
    return vptq_tensor_set_finish(&c->set, err);
}

vptq_status vptq_checkpoint_open_archive(const vptq_ctx *ctx, bool shapes_only,
                                         vptq_checkpoint *c, vptq_err *err)
{
    char *text = NULL;
    size_t len = 0;
    VPTQ_CHECK(make_extra(c, err));
    extra *x = c->extra;
    x->threads = ctx->threads;
    VPTQ_CHECK(vptq_archive_open(c->path, ctx->mem, &x->archive, err));
    VPTQ_CHECK(vptq_checkpoint_archive_text(c, CONFIG_FILE, VPTQ_CONFIG_LIMIT, &c->arena, &text,
                                            &len, err));
    if (!text)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: the archive holds no " CONFIG_FILE, c->path);
    VPTQ_CHECK(vptq_json_parse(text, len, c->path, &c->config, err));
    VPTQ_CHECK(vptq_hf_config_parse(c->config, c->path, &c->desc, err));
    VPTQ_CHECK(archive_entries(c, shapes_only, err));
    if (vptq_archive_find(x->archive, "tokenizer.json", false))
        c->tokenizer = c->path;
    return read_matrices(c, shapes_only, err);
}

vptq_status vptq_checkpoint_archive_vocab(const vptq_checkpoint *c, const vptq_ctx *ctx,
                                          vptq_vocab *v, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena scratch;
    char *text = NULL, *config = NULL;
    size_t len = 0, config_len = 0;
    vptq_arena_init(&scratch, ctx->mem);
    VPTQ_TRY(vptq_checkpoint_archive_text(c, "tokenizer.json", VPTQ_TOKENIZER_LIMIT, &scratch,
                                          &text, &len, err));
    VPTQ_TRY(vptq_checkpoint_archive_text(c, "tokenizer_config.json", VPTQ_TOKENIZER_LIMIT,
                                          &scratch, &config, &config_len, err));
    st = vptq_vocab_parse_json(text, len, config, config_len, c->path, ctx->mem, v, err);
out:
    vptq_arena_release(&scratch);
    return st;
}

/* ---- work directory ---- */

typedef struct work_header {
    json_t *json;
    const char *base, *fingerprint, *tokenizer; /* in json; tokenizer may be NULL */
} work_header;

static vptq_status read_work_header(vptq_checkpoint *c, work_header *h, vptq_err *err)
{
    char path[4096];
    const char *dtype = NULL;
    VPTQ_CHECK(vptq_path_join(path, sizeof path, c->path, VPTQ_WORK_FILE, err));
    VPTQ_CHECK(vptq_json_load(path, VPTQ_CONFIG_LIMIT, &h->json, err));
    VPTQ_CHECK(vptq_json_str_or(h->json, path, "base_model", NULL, &h->base, err));
    VPTQ_CHECK(vptq_json_str_or(h->json, path, "base_fingerprint", NULL, &h->fingerprint, err));
    VPTQ_CHECK(vptq_json_str_or(h->json, path, "dtype", NULL, &dtype, err));
    VPTQ_CHECK(vptq_json_str_or(h->json, path, "tokenizer", "", &h->tokenizer, err));
    if (vptq_dtype_from_option(dtype, &c->storage, NULL) || c->storage == VPTQ_F32)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key 'dtype' is '%.32s', expected f16 or bf16",
                         path, dtype);
    return VPTQ_OK;
}

static vptq_status open_base(const vptq_ctx *ctx, const char *path, const char *fingerprint,
                             vptq_checkpoint *c, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_checkpoint_kind kind;
    char found[17];
    VPTQ_TRY(vptq_checkpoint_detect(path, &kind, err));
    if (kind != VPTQ_CKPT_HF && kind != VPTQ_CKPT_GGUF && kind != VPTQ_CKPT_LLAMA2C)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_FORMAT, "'%s' is a %s, expected a plain model", path,
                           vptq_checkpoint_kind_name(kind)));
    vptq_checkpoint *base = vptq_arena_zalloc(&c->arena, 1, sizeof *base, err);
    if (!base)
        return VPTQ_E_NOMEM;
    VPTQ_TRY(vptq_checkpoint_open(ctx, path, NULL, base, err));
    c->base = base; /* from here on released with c */
    c->base_path = base->path;
    VPTQ_TRY(vptq_checkpoint_fingerprint(base, ctx, found, err));
    if (strcmp(found, fingerprint) != 0)
        VPTQ_TRY(vptq_checkpoint_tell(
            c,
            vptq_fail(err, VPTQ_E_MISMATCH,
                      "'%s' has fingerprint %s, but %.40s is what the matrices were made from",
                      path, found, fingerprint),
            err));
out:
    if (st && err)
        vptq_err_context(err, "%s: its base model (--base names another)", c->path);
    return st;
}

/* The base model's tensors as a packed file will hold them. */
static vptq_status take_base_tensors(vptq_checkpoint *c, vptq_err *err)
{
    for (size_t i = 0; i < c->base->set.count; i++) {
        vptq_tensor t = c->base->set.tensors[i];
        t.round_to = c->storage;
        VPTQ_CHECK(vptq_tensor_set_add(&c->set, &t, err));
    }
    return vptq_tensor_set_finish(&c->set, err);
}

static vptq_status check_layer(const vptq_checkpoint *c, const char *path,
                               const vptq_packed_matrix *m, vptq_err *err)
{
    char weight[VPTQ_NAME_MAX + 8];
    snprintf(weight, sizeof weight, "%.*s.weight", VPTQ_NAME_MAX, m->name);
    const vptq_tensor *t = vptq_tensor_find(&c->set, weight);
    if (!t)
        return vptq_fail(err, VPTQ_E_MISMATCH, "%s: matrix '%.200s' is not in the base model",
                         path, m->name);
    if (m->storage != c->storage)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s: is stored as %s, " VPTQ_WORK_FILE " says %s", path,
                         vptq_dtype_get(m->storage)->name, vptq_dtype_get(c->storage)->name);
    return VPTQ_OK;
}

static vptq_status read_layers(const vptq_ctx *ctx, vptq_checkpoint *c, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    extra *x = c->extra;
    char **names = NULL;
    size_t count = 0;
    VPTQ_TRY(vptq_dir_list(c->path, &c->arena, &names, &count, err));
    x->layers = vptq_arena_zalloc(&c->arena, count, sizeof *x->layers, err);
    c->quantized = vptq_arena_alloc(&c->arena, count, sizeof *c->quantized, err);
    if (!x->layers || !c->quantized)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        char path[4096];
        vptq_layer_file *f = &x->layers[x->layer_count];
        if (!vptq_layer_file_is(names[i]))
            continue;
        VPTQ_TRY(vptq_path_join(path, sizeof path, c->path, names[i], err));
        st = vptq_layer_file_read(path, ctx->mem, f, err);
        bool read = st == VPTQ_OK;
        VPTQ_TRY(vptq_checkpoint_tell(c, st, err));
        if (!read)
            continue;
        x->layer_count++;
        st = check_layer(c, path, &f->matrix, err);
        if (!st)
            c->quantized[c->quantized_count++] = f->matrix;
        VPTQ_TRY(vptq_checkpoint_tell(c, st, err));
    }
    qsort(c->quantized, c->quantized_count, sizeof *c->quantized, by_name);
out:
    return st;
}

vptq_status vptq_checkpoint_open_work(const vptq_ctx *ctx, const char *base, vptq_checkpoint *c,
                                      vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    work_header h = {0};
    VPTQ_TRY(make_extra(c, err));
    VPTQ_TRY(read_work_header(c, &h, err));
    VPTQ_TRY(open_base(ctx, base ? base : h.base, h.fingerprint, c, err));
    c->desc = c->base->desc;
    c->tokenizer = c->base->tokenizer;
    if (*h.tokenizer) {
        c->tokenizer = vptq_arena_strdup(&c->arena, h.tokenizer, err);
        if (!c->tokenizer)
            VPTQ_TRY(VPTQ_E_NOMEM);
    }
    VPTQ_TRY(take_base_tensors(c, err));
    st = read_layers(ctx, c, err);
out:
    json_decref(h.json);
    return st;
}
