/* Reads the quantized matrices of packed directories, archives and work directories. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/checkpoint_internal.h"
#include "formats/hf/config.h"
#include "formats/hf/gptq.h"
#include "lib/base/text.h"

static int by_name(const void *a, const void *b)
{
    return strcmp(((const vptq_packed_matrix *)a)->name, ((const vptq_packed_matrix *)b)->name);
}

/* ---- matrices listed in config.json ---- */

/* Fails for a tensor of a quantized matrix that no entry lists; it would be dropped silently.
 */
static vptq_status check_listed(const vptq_checkpoint *c, const vptq_strmap *listed,
                                vptq_err *err)
{
    for (size_t i = 0; i < c->set.count; i++) {
        const vptq_tensor *t = &c->set.tensors[i];
        uint32_t value;
        size_t len = vptq_packed_module_length(t->name);
        if (len == 0 || vptq_strmap_get(listed, t->name, len, &value))
            continue;
        vptq_status st =
            vptq_fail(err, VPTQ_E_FORMAT,
                      "%s: tensor '%s' is part of a quantized matrix, but " VPTQ_CONFIG_FILE
                      " lists no linear layer of that name",
                      t->file, t->name);
        VPTQ_CHECK(vptq_checkpoint_report_fault(c, st, err));
    }
    return VPTQ_OK;
}

/* Appends one matrix to c->quantized, unless it has faults and c reports them. */
static vptq_status add_matrix(vptq_checkpoint *c, const json_t *entry, const char *name,
                              bool shapes_only, vptq_err *err)
{
    vptq_packed_matrix *m = &c->quantized[c->quantized_count];
    const vptq_packed_source source = {&c->set, entry, name, c->path};
    const vptq_packed_mode mode = {shapes_only && !c->fault, c->fault, c->fault_arg};
    vptq_arena scratch;
    vptq_arena_init(&scratch, c->arena.mem);
    bool whole;
    vptq_status st =
        vptq_packed_check(&source, &mode, shapes_only ? &scratch : &c->arena, m, &whole, err);
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

static vptq_status read_listed(vptq_checkpoint *c, vptq_strmap *listed, bool shapes_only,
                               vptq_err *err)
{
    for (uint32_t layer = 0; layer < c->desc.layers; layer++)
        for (int l = 0; l < vptq_linear_count(&c->desc); l++) {
            char name[VPTQ_NAME_MAX];
            bool fresh;
            if (!vptq_linear_exists(&c->desc, layer, l))
                continue;
            vptq_linear_full_name(&c->desc, name, layer, (vptq_linear)l);
            const json_t *entry = vptq_packed_entry(c->config, name);
            if (!entry)
                continue;
            const char *own = vptq_arena_strdup(&c->arena, name, err);
            if (!own)
                return VPTQ_E_NOMEM;
            VPTQ_CHECK(vptq_strmap_add(listed, own, strlen(own), 0, &fresh, err));
            VPTQ_CHECK(add_matrix(c, entry, own, shapes_only, err));
        }
    if (listed->count == 0)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: " VPTQ_CONFIG_FILE " has quant_method vptq, but lists no linear "
                         "layer of the model",
                         c->path);
    return check_listed(c, listed, err);
}

vptq_status vptq_checkpoint_read_matrices(bool shapes_only, vptq_checkpoint *c, vptq_err *err)
{
    vptq_strmap listed = {0};
    size_t max_count = (size_t)c->desc.layers * (size_t)vptq_linear_count(&c->desc);
    c->quantized = vptq_arena_alloc(&c->arena, max_count, sizeof *c->quantized, err);
    if (!c->quantized)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(vptq_strmap_init(&listed, c->arena.mem, max_count, err));
    vptq_status st = read_listed(c, &listed, shapes_only, err);
    vptq_strmap_release(&listed);
    if (!st && c->quantized_count) {
        c->storage = c->quantized[0].storage;
        qsort(c->quantized, c->quantized_count, sizeof *c->quantized, by_name);
    }
    return st;
}

/* ---- uniformly quantized matrices ---- */

/* Reports the fault of a matrix of uniform or additive codes and adds it to c->faulty; *own =
 * its name there.  Damage of an archive was reported when its tensors were added. */
static vptq_status add_faulty(vptq_checkpoint *c, vptq_status st, const char *name,
                              const char **own, vptq_err *err)
{
    if (!c->fault || c->kind != VPTQ_CKPT_ARCHIVE || st != VPTQ_E_CHECKSUM)
        VPTQ_CHECK(vptq_checkpoint_report_fault(c, st, err));
    const size_t most = c->desc.layers * (size_t)vptq_linear_count(&c->desc);
    if (!c->faulty)
        c->faulty = vptq_arena_alloc(&c->arena, most, sizeof *c->faulty, err);
    *own = c->faulty ? vptq_arena_strdup(&c->arena, name, err) : NULL;
    if (!*own)
        return VPTQ_E_NOMEM;
    c->faulty[c->faulty_count++] = *own;
    return VPTQ_OK;
}

static int by_module(const void *a, const void *b)
{
    return strcmp(((const vptq_compressed_matrix *)a)->name,
                  ((const vptq_compressed_matrix *)b)->name);
}

/* The matrix that a tensor is a stored part of, or NULL. */
static const vptq_compressed_matrix *matrix_of(const vptq_compressed_matrix *sorted,
                                               size_t count, const char *tensor)
{
    char module[VPTQ_NAME_MAX];
    size_t length = vptq_compressed_module_length(tensor);
    if (!length)
        length = vptq_gptq_module_length(tensor);
    if (!length)
        length = vptq_text_before(tensor, ".weight");
    if (!length || length >= sizeof module)
        return NULL;
    snprintf(module, sizeof module, "%.*s", (int)length, tensor);
    const vptq_compressed_matrix key = {.name = module};
    return count ? bsearch(&key, sorted, count, sizeof key, by_module) : NULL;
}

/* Puts one tensor, the weight, in place of the stored parts of each matrix; none of a faulty
 * one. */
static vptq_status replace_parts(vptq_checkpoint *c, const vptq_compressed_matrix *sorted,
                                 size_t count, vptq_err *err)
{
    vptq_tensor_set *set = &c->set;
    const char *file = c->path;
    char name[VPTQ_NAME_MAX + 8];
    size_t kept = 0;
    for (size_t i = 0; i < set->count; i++) {
        file = set->tensors[i].file;
        if (!matrix_of(sorted, count, set->tensors[i].name))
            set->tensors[kept++] = set->tensors[i];
    }
    set->count = kept;
    for (size_t i = 0; i < count; i++) { /* each had two parts at least: there is space */
        if (vptq_checkpoint_is_faulty(c, sorted[i].name))
            continue;
        snprintf(name, sizeof name, "%.*s.weight", VPTQ_NAME_MAX, sorted[i].name);
        const char *own = vptq_arena_strdup(&c->arena, name, err);
        if (!own)
            return VPTQ_E_NOMEM;
        set->tensors[set->count++] = vptq_compressed_weight(&sorted[i], own, file);
    }
    return vptq_tensor_set_finish(set, err);
}

bool vptq_checkpoint_is_uniform(const json_t *config)
{
    return vptq_compressed_is_config(config) || vptq_gptq_is_config(config);
}

static vptq_status read_compressed(vptq_checkpoint *c, const vptq_compressed_layout *layout,
                                   const char *name, vptq_compressed_matrix *m, vptq_err *err)
{
    VPTQ_CHECK(vptq_compressed_read(&c->set, layout, name, c->path, &c->arena, m, err));
    return vptq_compressed_check_activations(m, c->path, err);
}

vptq_status vptq_checkpoint_read_uniform(vptq_checkpoint *c, vptq_err *err)
{
    const size_t per_layer = (size_t)vptq_linear_count(&c->desc),
                 most = c->desc.layers * per_layer;
    const bool is_gptq = vptq_gptq_is_config(c->config);
    vptq_gptq_layout gptq;
    size_t count = 0;
    char name[VPTQ_NAME_MAX];
    vptq_compressed_matrix *list = vptq_arena_alloc(&c->arena, most, sizeof *list, err);
    if (!list)
        return VPTQ_E_NOMEM;
    if (is_gptq)
        VPTQ_CHECK(vptq_gptq_layout_of(c->config, c->path, &gptq, err));
    for (size_t i = 0; i < most; i++) {
        const vptq_linear l = (vptq_linear)(i % per_layer);
        const uint32_t layer = (uint32_t)(i / per_layer);
        vptq_compressed_layout layout;
        bool quantized = true;
        if (!vptq_linear_exists(&c->desc, layer, l))
            continue;
        vptq_linear_full_name(&c->desc, name, layer, l);
        if (!is_gptq)
            VPTQ_CHECK(
                vptq_compressed_layout_of(c->config, name, c->path, &layout, &quantized, err));
        if (!quantized)
            continue;
        vptq_status st = is_gptq ? vptq_gptq_read(&c->set, &gptq, name, c->path, &c->arena,
                                                  &list[count], &quantized, err)
                                 : read_compressed(c, &layout, name, &list[count], err);
        if (st)
            VPTQ_CHECK(add_faulty(c, st, name, &list[count].name, err));
        count += st || quantized;
    }
    qsort(list, count, sizeof *list, by_module);
    return replace_parts(c, list, count, err);
}

/* ---- additive codes ---- */

static bool is_additive_part(const vptq_additive_matrix *list, size_t count, const char *tensor)
{
    const size_t length = vptq_additive_module_length(tensor);
    for (size_t i = 0; length && i < count; i++)
        if (!strncmp(list[i].name, tensor, length) && !list[i].name[length])
            return true;
    return false;
}

/* Puts the decoded weight in place of the stored parts of each matrix; none of a faulty one. */
static vptq_status replace_additive(const vptq_ctx *ctx, vptq_checkpoint *c,
                                    const vptq_additive_matrix *list, size_t count,
                                    vptq_err *err)
{
    vptq_tensor_set *set = &c->set;
    size_t kept = 0;
    for (size_t i = 0; i < set->count; i++)
        if (!is_additive_part(list, count, set->tensors[i].name))
            set->tensors[kept++] = set->tensors[i];
    set->count = kept;
    for (size_t i = 0; i < count; i++) { /* each had two parts at least: there is space */
        const char *name = list[i].name;
        if (vptq_checkpoint_is_faulty(c, name))
            continue;
        vptq_status st = vptq_additive_weight(ctx, &list[i], c->path, &c->arena,
                                              &set->tensors[set->count], err);
        set->count += !st;
        if (st)
            VPTQ_CHECK(add_faulty(c, st, name, &name, err));
    }
    return vptq_tensor_set_finish(set, err);
}

/* Reads the matrix of a linear layer, which must have the shape that the model needs. */
static vptq_status read_additive(vptq_checkpoint *c, const char *name, uint32_t rows,
                                 uint32_t columns, vptq_additive_matrix *m, vptq_err *err)
{
    const json_t *entry = vptq_additive_entry(c->config, name);
    VPTQ_CHECK(vptq_additive_read(&c->set, entry, name, c->path, &c->arena, m, err));
    if (m->a.shape.out == rows && m->a.shape.in == columns)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_SHAPE,
                     "%s: layer '%s' is a matrix of %u x %u, expected %u x %u", c->path, name,
                     m->a.shape.out, m->a.shape.in, rows, columns);
}

vptq_status vptq_checkpoint_read_additive(const vptq_ctx *ctx, vptq_checkpoint *c,
                                          vptq_err *err)
{
    const size_t per_layer = (size_t)vptq_linear_count(&c->desc),
                 most = c->desc.layers * per_layer;
    size_t count = 0;
    vptq_additive_matrix *list = vptq_arena_alloc(&c->arena, most, sizeof *list, err);
    if (!list)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < most; i++) {
        const vptq_linear l = (vptq_linear)(i % per_layer);
        const uint32_t layer = (uint32_t)(i / per_layer);
        char name[VPTQ_NAME_MAX];
        uint32_t rows, columns;
        if (!vptq_linear_exists(&c->desc, layer, l))
            continue;
        vptq_linear_full_name(&c->desc, name, layer, l);
        vptq_linear_shape(&c->desc, l, &rows, &columns);
        if (!vptq_additive_entry(c->config, name))
            continue;
        vptq_status st = read_additive(c, name, rows, columns, &list[count], err);
        if (st)
            VPTQ_CHECK(add_faulty(c, st, name, &list[count].name, err));
        count++;
    }
    return replace_additive(ctx, c, list, count, err);
}

/* ---- archive ---- */

/* Source of an archived tensor's bytes. */
typedef struct archived {
    vptq_tensor_source source;
    const vptq_checkpoint_files *files;
    const vptq_archive_entry *entry;
} archived;

static vptq_status read_archived(const void *arg, size_t offset, size_t n, void *dst,
                                 vptq_err *err)
{
    const archived *a = arg;
    return vptq_archive_load_part(a->files->archive, a->entry, offset, n, a->files->threads,
                                  dst, err);
}

/* Adds a tensor to the set: unpacked into the arena, or with shapes_only as a source. */
static vptq_status add_archived(vptq_checkpoint *c, const vptq_archive_entry *e,
                                bool shapes_only, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_checkpoint_files *f = c->files;
    vptq_tensor t = e->tensor;
    uint8_t *data = NULL;
    archived *a = vptq_arena_alloc(&c->arena, 1, sizeof *a, err);
    if (!a)
        return VPTQ_E_NOMEM;
    *a = (archived){{read_archived, a}, f, e};
    if (!shapes_only) {
        data = vptq_arena_alloc(&c->arena, (size_t)e->size, 1, err);
        if (!data)
            return VPTQ_E_NOMEM;
    }
    if (data || c->fault)
        st = vptq_archive_load(f->archive, e, f->threads, data, err);
    t.data = st ? NULL : data;
    t.source = st ? NULL : &a->source;
    t.file = c->path;
    VPTQ_CHECK(vptq_checkpoint_report_fault(c, st, err));
    return vptq_tensor_set_add(&c->set, &t, err);
}

/* Files are only verified, and only if faults are reported: packing copies them unread. */
static vptq_status read_archive_entries(vptq_checkpoint *c, bool shapes_only, vptq_err *err)
{
    const vptq_checkpoint_files *f = c->files;
    for (size_t i = 0; i < vptq_archive_count(f->archive); i++) {
        const vptq_archive_entry *e = vptq_archive_at(f->archive, i);
        if (e->is_tensor)
            VPTQ_CHECK(add_archived(c, e, shapes_only, err));
        else if (c->fault)
            VPTQ_CHECK(vptq_checkpoint_report_fault(
                c, vptq_archive_load(f->archive, e, f->threads, NULL, err), err));
    }
    return vptq_tensor_set_finish(&c->set, err);
}

vptq_status vptq_checkpoint_open_archive(const vptq_ctx *ctx, bool shapes_only,
                                         vptq_checkpoint *c, vptq_err *err)
{
    vptq_text text;
    char name[4096];
    VPTQ_CHECK(vptq_path_join(name, sizeof name, c->path, VPTQ_CONFIG_FILE, err));
    VPTQ_CHECK(vptq_checkpoint_add_files(c, err));
    vptq_checkpoint_files *f = c->files;
    f->threads = ctx->threads;
    VPTQ_CHECK(vptq_archive_open(c->path, ctx->mem, &f->archive, err));
    VPTQ_CHECK(vptq_checkpoint_archive_text(c, VPTQ_CONFIG_FILE, VPTQ_CONFIG_LIMIT, &c->arena,
                                            &text, err));
    if (!text.data)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: the archive has no " VPTQ_CONFIG_FILE,
                         c->path);
    VPTQ_CHECK(vptq_json_parse(text.data, text.len, name, &c->config, err));
    VPTQ_CHECK(vptq_hf_config_parse(c->config, name, &c->desc, err));
    const bool uniform = vptq_checkpoint_is_uniform(c->config);
    const bool additive = vptq_additive_is_config(c->config);
    const bool is_quantized =
        vptq_packed_is_config(c->config) || json_object_get(c->config, "quantization_config");
    VPTQ_CHECK(read_archive_entries(c, shapes_only && !uniform && !additive, err));
    if (vptq_archive_find(f->archive, "tokenizer.json", false))
        c->tokenizer = c->path;
    if (uniform)
        return vptq_checkpoint_read_uniform(c, err);
    if (additive)
        return vptq_checkpoint_read_additive(ctx, c, err);
    return is_quantized ? vptq_checkpoint_read_matrices(shapes_only, c, err) : VPTQ_OK;
}

/* ---- work directory ---- */

static size_t count_skipped(const json_t *matrices)
{
    size_t count = 0;
    const char *name;
    json_t *matrix;
    json_object_foreach((json_t *)(uintptr_t)matrices, name, matrix)
    {
        count += json_is_true(json_object_get(matrix, "skip"));
    }
    return count;
}

static vptq_status parse_work_header(const json_t *json, const char *path, vptq_checkpoint *c,
                                     vptq_work_header *h, vptq_err *err)
{
    const char *base, *fingerprint, *dtype, *tokenizer;
    uint64_t format;
    VPTQ_CHECK(vptq_json_u64_or(json, path, "format", VPTQ_WORK_FORMAT, VPTQ_WORK_FORMAT,
                                &format, err));
    VPTQ_CHECK(vptq_json_str_or(json, path, "base_model", NULL, &base, err));
    VPTQ_CHECK(vptq_json_str_or(json, path, "base_fingerprint", NULL, &fingerprint, err));
    VPTQ_CHECK(vptq_json_str_or(json, path, "dtype", NULL, &dtype, err));
    VPTQ_CHECK(vptq_json_str_or(json, path, "tokenizer", "", &tokenizer, err));
    if (vptq_dtype_from_option(dtype, &c->storage, NULL) || c->storage == VPTQ_F32)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key 'dtype' is '%.32s', expected f16 or bf16",
                         path, dtype);
    c->skipped = count_skipped(json_object_get(json, "matrices"));
    h->base = vptq_arena_strdup(&c->arena, base, err);
    h->fingerprint = h->base ? vptq_arena_strdup(&c->arena, fingerprint, err) : NULL;
    h->tokenizer = h->fingerprint ? vptq_arena_strdup(&c->arena, tokenizer, err) : NULL;
    return h->tokenizer ? VPTQ_OK : VPTQ_E_NOMEM;
}

vptq_status vptq_checkpoint_read_work_header(vptq_checkpoint *c, vptq_work_header *h,
                                             vptq_err *err)
{
    char path[4096];
    json_t *json = NULL;
    VPTQ_CHECK(vptq_path_join(path, sizeof path, c->path, VPTQ_WORK_FILE, err));
    VPTQ_CHECK(vptq_json_load(path, VPTQ_CONFIG_LIMIT, &json, err));
    vptq_status st = parse_work_header(json, path, c, h, err);
    if (!st)
        st = vptq_json_unseal(json, path, err);
    json_decref(json);
    return st;
}

static vptq_status add_base_tensors(vptq_checkpoint *c, vptq_err *err)
{
    for (size_t i = 0; i < c->base->set.count; i++) {
        vptq_tensor t = c->base->set.tensors[i];
        t.round_to = c->storage;
        VPTQ_CHECK(vptq_tensor_set_add(&c->set, &t, err));
    }
    return vptq_tensor_set_finish(&c->set, err);
}

/* Whether a dense tensor can take the place of one of the base model: not of embeddings, which
 * a head may share. */
static bool fits(const vptq_tensor *dense, const vptq_tensor *base)
{
    bool same = dense->dims == base->dims && !vptq_is_embedding(base->name);
    for (uint32_t i = 0; i < dense->dims; i++)
        same = same && dense->shape[i] == base->shape[i];
    return same;
}

/* Whether the matrix of a file is as large as that of the base model. */
static bool fits_additive(const vptq_additive_shape *s, const vptq_tensor *base)
{
    return base->dims == 2 && base->shape[0] == s->out && base->shape[1] == s->in;
}

/* *weight = the tensor of the base model that the matrix replaces.  One that is not of method
 * vptq takes its place in the set, where only linear layers may be decoded. */
static vptq_status check_layer(const vptq_checkpoint *c, const char *path,
                               const vptq_layer_file *f, const vptq_tensor **weight,
                               vptq_err *err)
{
    char name[VPTQ_NAME_MAX + 8];
    vptq_linear l;
    const char *module = vptq_layer_file_matrix(f);
    const vptq_dtype storage = vptq_layer_file_storage(f);
    snprintf(name, sizeof name, "%.*s.weight", VPTQ_NAME_MAX, module);
    *weight = vptq_tensor_find(&c->set, name);
    if (!*weight || ((f->is_uniform || f->is_additive) &&
                     !vptq_linear_of_module(&c->desc, module, strlen(module), &l)))
        return vptq_fail(err, VPTQ_E_MISMATCH, "%s: matrix '%.200s' is not in the base model",
                         path, module);
    if (f->dense && !fits(&f->weight, *weight))
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s: tensor '%.200s' has another shape than in the base model, or is "
                         "an embedding",
                         path, f->weight.name);
    if (f->is_additive && !fits_additive(&f->additive.a.shape, *weight))
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s: matrix '%.200s' is %u x %u, another shape than in the base model",
                         path, module, f->additive.a.shape.out, f->additive.a.shape.in);
    if (storage != c->storage)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s: is stored as %s, " VPTQ_WORK_FILE " says %s", path,
                         vptq_dtype_get(storage)->name, vptq_dtype_get(c->storage)->name);
    return VPTQ_OK;
}

/* Puts the changed norm of a file in place of the base model's. */
static vptq_status replace_norm(vptq_checkpoint *c, const char *path, const vptq_layer_file *f,
                                vptq_err *err)
{
    static const struct {
        const char *linear, *norm;
    } readers[] = {{"self_attn.q_proj", "input_layernorm"},
                   {"mlp.gate_proj", "post_attention_layernorm"}};
    char name[VPTQ_NAME_MAX + 32];
    const char *module = vptq_layer_file_matrix(f);
    for (size_t i = 0; i < sizeof readers / sizeof readers[0]; i++) {
        const size_t before = vptq_text_before(module, readers[i].linear);
        if (!before)
            continue;
        snprintf(name, sizeof name, "%.*s%s.weight", (int)before, module, readers[i].norm);
        const vptq_tensor *old = vptq_tensor_find(&c->set, name);
        if (!old || old->dims != 1 || old->shape[0] != f->norm_size)
            break;
        vptq_tensor t = *vptq_tensor_find(&f->set, "norm");
        t.name = old->name;
        c->set.tensors[old - c->set.tensors] = t;
        return VPTQ_OK;
    }
    return vptq_fail(err, VPTQ_E_MISMATCH,
                     "%s: has a norm of %u columns, and the base model no such norm before "
                     "'%.200s'",
                     path, f->norm_size, module);
}

/* Whether all files of a layer are among the names of a directory. */
static bool layer_is_complete(const vptq_model_desc *d, char *const *names, size_t count,
                              const char *name)
{
    const uint32_t layer = (uint32_t)strtoul(name + strlen("layer_"), NULL, 10);
    size_t expected = 0;
    const size_t prefix = strcspn(name + strlen("layer_"), "_") + strlen("layer_") + 1;
    size_t files = 0;
    for (size_t i = 0; i < count; i++)
        files += vptq_layer_file_is(names[i]) && !strncmp(names[i], name, prefix);
    for (int l = 0; l < vptq_linear_count(d); l++)
        expected += vptq_linear_exists(d, layer, l);
    return files == expected;
}

/* Reads one finished matrix; leaves it out if it has a fault that c reports, or if it needs
 * others of its layer that are not there. */
static vptq_status read_layer(const vptq_ctx *ctx, const char *path, vptq_checkpoint *c,
                              bool complete, vptq_err *err)
{
    vptq_layer_file *f = &c->files->layers[c->files->layer_count];
    vptq_status st = vptq_layer_file_read(path, ctx->mem, f, err);
    if (st)
        return vptq_checkpoint_report_fault(c, st, err);
    if (f->folded && !complete) {
        vptq_layer_file_release(f);
        return VPTQ_OK;
    }
    c->files->layer_count++;
    const vptq_tensor *weight;
    st = check_layer(c, path, f, &weight, err);
    if (!st && f->norm)
        st = replace_norm(c, path, f, err);
    if (!st)
        st = vptq_layer_file_decode(ctx, f, err);
    if (st)
        return vptq_checkpoint_report_fault(c, st, err);
    if (vptq_layer_file_is_packed(f))
        c->quantized[c->quantized_count++] = f->matrix;
    else
        c->set.tensors[weight - c->set.tensors] = f->weight;
    return VPTQ_OK;
}

/* *rows = the lines of report.jsonl; 0 if there is none. */
static vptq_status count_rows(const vptq_ctx *ctx, const vptq_checkpoint *c, size_t *rows,
                              vptq_err *err)
{
    char path[4096], *text;
    size_t size;
    *rows = 0;
    VPTQ_CHECK(vptq_path_join(path, sizeof path, c->path, VPTQ_WORK_REPORT, err));
    if (!vptq_path_exists(path))
        return VPTQ_OK;
    VPTQ_CHECK(vptq_file_read(path, VPTQ_CONFIG_LIMIT, ctx->mem, &text, &size, err));
    for (size_t i = 0; i < size; i++)
        *rows += text[i] == '\n';
    vptq_mem_free(ctx->mem, text);
    return VPTQ_OK;
}

static vptq_status check_finished(const vptq_ctx *ctx, const vptq_checkpoint *c,
                                  char *const *names, size_t count, vptq_err *err)
{
    const size_t all = vptq_checkpoint_all_matrices(c);
    size_t rows, matrices = 0;
    char missing[120] = "";
    VPTQ_CHECK(count_rows(ctx, c, &rows, err));
    for (size_t i = 0; i < count; i++)
        matrices += vptq_layer_file_is(names[i]);
    if (matrices > 0 && rows == matrices)
        return VPTQ_OK;
    if (matrices < all)
        snprintf(missing, sizeof missing, "%zu of the model's %zu matrices %s not quantized; ",
                 all - matrices, all, vptq_plural(all - matrices, "is", "are"));
    vptq_status st = vptq_fail(err, VPTQ_E_FORMAT,
                               "'%s' holds an unfinished run (matrix files: %zu, rows of %s: "
                               "%zu); %srun its command again "
                               "to finish it (vptq-pack and vptq-eval take it with --partial)",
                               c->path, matrices, VPTQ_WORK_REPORT, rows, missing);
    return vptq_checkpoint_report_fault(c, st, err);
}

vptq_status vptq_checkpoint_read_work(const vptq_ctx *ctx, bool partial, vptq_checkpoint *c,
                                      vptq_err *err)
{
    char **names = NULL;
    size_t count = 0;
    VPTQ_CHECK(add_base_tensors(c, err));
    VPTQ_CHECK(vptq_checkpoint_add_files(c, err));
    VPTQ_CHECK(vptq_dir_list(c->path, &c->arena, &names, &count, err));
    c->files->layers = vptq_arena_zalloc(&c->arena, count, sizeof *c->files->layers, err);
    c->quantized = vptq_arena_alloc(&c->arena, count, sizeof *c->quantized, err);
    if (!c->files->layers || !c->quantized)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        char path[4096];
        if (!vptq_layer_file_is(names[i]))
            continue;
        VPTQ_CHECK(vptq_path_join(path, sizeof path, c->path, names[i], err));
        const bool complete = layer_is_complete(&c->desc, names, count, names[i]);
        VPTQ_CHECK(read_layer(ctx, path, c, complete, err));
    }
    qsort(c->quantized, c->quantized_count, sizeof *c->quantized, by_name);
    return partial ? VPTQ_OK : check_finished(ctx, c, names, count, err);
}
