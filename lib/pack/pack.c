/* Packs a quantized model into the published layout or an archive. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/vptq/layer_file.h"
#include "formats/vptq/quirks.h"
#include "lib/base/text.h"
#include "lib/model/model.h"
#include "lib/pack/package.h"

typedef struct packing {
    const vptq_ctx *ctx;
    const vptq_checkpoint *c;
    vptq_package *out;
    vptq_packed_matrix *matrices; /* with the storage type of the output */
    const vptq_pack_options *opt;
    vptq_package_loss loss;
    bool round_again;                /* from the float codebooks, where the input keeps them */
    bool int8;                       /* stores codebooks on int8 grids as such */
    vptq_quirks quirks;              /* of the matrices of a packed input */
    vptq_compressed_matrix *uniform; /* [uniform_count] matrices of other methods */
    size_t uniform_count;
    vptq_additive_matrix *additive; /* [additive_count] the same */
    size_t additive_count;
    const char **dense; /* [dense_count] modules of matrices that stay plain */
    size_t dense_count;
    /* tensors of the matrix that is being written: a vptq_packed_matrix, or the vptq_tensor of
     * one of uniform or additive codes */
    const void *current;
    vptq_arena arena;
    vptq_tensor parts[VPTQ_ADDITIVE_MAX_TENSORS]; /* the most of any kind */
    size_t part_count;
} packing;

/* ---- the matrices ---- */

static vptq_status copy_matrices(packing *p, vptq_dtype type, vptq_err *err)
{
    const vptq_checkpoint *c = p->c;
    p->matrices =
        vptq_arena_alloc(&p->out->arena, c->quantized_count, sizeof *p->matrices, err);
    if (!p->matrices)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < c->quantized_count; i++) {
        p->matrices[i] = c->quantized[i];
        vptq_vq_shape *s = &p->matrices[i].vq.shape;
        if (s->k_res > s->k) { /* read_packed exchanges the codebooks */
            uint32_t k = s->k;
            s->k = s->k_res;
            s->k_res = k;
        }
        if (type == VPTQ_DTYPE_COUNT || type == c->quantized[i].storage)
            continue;
        p->matrices[i].storage = type;
        p->round_again = true;
    }
    if (p->round_again)
        vptq_log(p->ctx, VPTQ_LOG_WARN,
                 "the matrices were quantized for %s; rounding their codebooks to %s makes the "
                 "chosen indices slightly worse",
                 vptq_dtype_get(c->storage)->name, vptq_dtype_get(type)->name);
    return VPTQ_OK;
}

static void forget_matrix(packing *p)
{
    vptq_arena_release(&p->arena);
    p->current = NULL;
    p->part_count = 0;
    vptq_checkpoint_forget(p->c);
}

/* Reads a matrix of a packed input, which was opened for its shapes only.  `first`: counts its
 * defects. */
static vptq_status read_packed(packing *p, const vptq_packed_matrix *m, bool first,
                               vptq_packed_matrix *stored, vptq_err *err)
{
    const vptq_checkpoint *c = p->c;
    const json_t *entry = vptq_packed_entry(c->config, m->name);
    VPTQ_CHECK(vptq_packed_read(&(vptq_packed_source){&c->set, entry, m->name, c->path},
                                &p->arena, stored, err));
    stored->name = m->name;
    stored->storage = m->storage;
    if (first)
        vptq_quirks_add(&p->quirks, c->config, &c->set, stored);
    return stored->vq.shape.k_res > stored->vq.shape.k
               ? vptq_packed_swap_codebooks(&stored->vq, &p->arena, err)
               : VPTQ_OK;
}

/* Makes the stored tensors of a matrix in p->parts; `first` as in read_packed. */
static vptq_status make_parts(packing *p, const vptq_packed_matrix *m, bool first,
                              vptq_err *err)
{
    vptq_packed_matrix stored = *m;
    forget_matrix(p);
    if (p->c->kind != VPTQ_CKPT_WORK) {
        VPTQ_CHECK(read_packed(p, m, first, &stored, err));
    } else if (p->round_again) {
        const vptq_layer_file *f = vptq_checkpoint_layer(p->c, (size_t)(m - p->matrices));
        stored.vq.centroids = f->centroids_f32; /* before rounding */
        stored.vq.res_centroids = f->res_centroids_f32;
    }
    stored.vq.shape.int8 = p->int8 && vptq_packed_fits_int8(&stored);
    p->matrices[m - p->matrices].vq.shape.int8 = stored.vq.shape.int8;
    p->current = m;
    return vptq_packed_tensors(&stored, &p->arena, p->parts, &p->part_count, err);
}

/* ---- matrices of uniform and additive codes ---- */

/* Module path of a weight; NULL if memory runs out. */
static const char *module_of(packing *p, const vptq_tensor *t, vptq_err *err)
{
    return vptq_arena_strndup(&p->out->arena, t->name, strlen(t->name) - strlen(".weight"),
                              err);
}

/* Whether a tensor is the weight of a linear layer without codes. */
static bool is_plain_matrix(const vptq_checkpoint *c, const vptq_tensor *t)
{
    vptq_linear l;
    return !t->uniform &&
           vptq_linear_of_module(&c->desc, t->name, vptq_text_before(t->name, ".weight"), &l);
}

/* Lists the matrices of methods without codes and, among uniform codes, whose config names what
 * has none, also those that a recipe skipped or whose layers were not chosen. */
static vptq_status find_dense(packing *p, vptq_err *err)
{
    const vptq_tensor_set *set = &p->c->set;
    const bool uniform = vptq_checkpoint_uniform_count(p->c) > 0;
    const size_t all = vptq_linear_total(&p->c->desc, 0, p->c->desc.layers - 1);
    p->dense = vptq_arena_alloc(&p->out->arena, all, sizeof *p->dense, err);
    if (!p->dense)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < set->count; i++) {
        const vptq_tensor *t = &set->tensors[i];
        if (uniform ? !is_plain_matrix(p->c, t) : !vptq_checkpoint_is_dense(p->c, t))
            continue;
        const char *module = module_of(p, t, err);
        if (!module)
            return VPTQ_E_NOMEM;
        p->dense[p->dense_count++] = module;
    }
    return VPTQ_OK;
}

/* One config.json describes one kind of codes, of one type. */
static vptq_status check_mixture(const packing *p, vptq_err *err)
{
    const vptq_code_counts n = {.vectors = p->c->quantized_count,
                                .uniform = vptq_checkpoint_uniform_count(p->c),
                                .additive = vptq_checkpoint_additive_count(p->c)};
    VPTQ_CHECK(vptq_code_counts_check(&n, p->opt->form == VPTQ_PACK_HF, p->c->path, err));
    if (n.uniform + n.additive && p->opt->dtype != VPTQ_DTYPE_COUNT &&
        p->opt->dtype != p->c->storage)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: the matrices were quantized for %s, and %s codes fit no other "
                         "type",
                         p->c->path, vptq_dtype_get(p->c->storage)->name,
                         n.uniform ? "uniform" : "additive");
    return VPTQ_OK;
}

/* Collects the uniformly quantized matrices. */
static vptq_status find_uniform(packing *p, vptq_err *err)
{
    const vptq_tensor_set *set = &p->c->set;
    const size_t count = vptq_checkpoint_uniform_count(p->c);
    if (!count)
        return VPTQ_OK;
    p->uniform = vptq_arena_alloc(&p->out->arena, count, sizeof *p->uniform, err);
    if (!p->uniform)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < set->count; i++) {
        const vptq_tensor *t = &set->tensors[i];
        if (!t->uniform)
            continue;
        const char *module = module_of(p, t, err);
        if (!module)
            return VPTQ_E_NOMEM;
        p->uniform[p->uniform_count++] =
            (vptq_compressed_matrix){.name = module,
                                     .u = *t->uniform,
                                     .storage = t->type,
                                     .activation_bits = t->activation_bits};
    }
    return VPTQ_OK;
}

/* Collects the matrices of additive codes. */
static vptq_status find_additive(packing *p, vptq_err *err)
{
    const vptq_tensor_set *set = &p->c->set;
    const size_t count = vptq_checkpoint_additive_count(p->c);
    p->additive = vptq_arena_alloc(&p->out->arena, count, sizeof *p->additive, err);
    if (!p->additive)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; count && i < set->count; i++) {
        const vptq_tensor *t = &set->tensors[i];
        if (!t->additive)
            continue;
        const char *module = module_of(p, t, err);
        if (!module)
            return VPTQ_E_NOMEM;
        p->additive[p->additive_count++] =
            (vptq_additive_matrix){.name = module, .a = *t->additive, .storage = t->type};
    }
    return VPTQ_OK;
}

static bool is_weight_of(const char *module, const char *weight)
{
    const size_t length = strlen(weight) - strlen(".weight");
    return !strncmp(module, weight, length) && !module[length];
}

/* Makes the stored tensors of a weight of uniform or additive codes in p->parts. */
static vptq_status make_coded_parts(packing *p, const vptq_tensor *t, vptq_err *err)
{
    size_t i = 0;
    forget_matrix(p);
    p->current = t;
    if (t->additive) {
        while (!is_weight_of(p->additive[i].name, t->name))
            i++;
        return vptq_additive_tensors(&p->additive[i], &p->arena, p->parts, &p->part_count, err);
    }
    while (!is_weight_of(p->uniform[i].name, t->name))
        i++;
    return vptq_compressed_tensors(&p->uniform[i], &p->arena, p->parts, &p->part_count, err);
}

static vptq_status add_coded(packing *p, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    VPTQ_TRY(check_mixture(p, err));
    VPTQ_TRY(find_uniform(p, err));
    VPTQ_TRY(find_additive(p, err));
    for (size_t i = 0; i < p->c->set.count; i++) {
        const vptq_tensor *t = &p->c->set.tensors[i];
        if (!t->uniform && !t->additive)
            continue;
        VPTQ_TRY(make_coded_parts(p, t, err));
        for (size_t k = 0; k < p->part_count; k++)
            VPTQ_TRY(
                vptq_package_add(p->out, &p->parts[k], (vptq_package_source){.coded = t}, err));
    }
out:
    forget_matrix(p);
    return st;
}

/* Bits per weight of all matrices of uniform or additive codes. */
static double coded_bits(const packing *p)
{
    double bits = 0, weights = 0;
    for (size_t i = 0; i < p->uniform_count; i++) {
        const vptq_uniform_shape *s = &p->uniform[i].u.shape;
        bits += (double)vptq_uniform_count_bits(s).total;
        weights += (double)s->out * s->in;
    }
    for (size_t i = 0; i < p->additive_count; i++) {
        const vptq_additive_shape *s = &p->additive[i].a.shape;
        bits += (double)vptq_additive_count_bits(s).total;
        weights += (double)s->out * s->in;
    }
    return bits / weights;
}

/* ---- the list ---- */

static bool has_bias(const vptq_checkpoint *c, const char *module)
{
    char name[VPTQ_NAME_MAX + 8];
    snprintf(name, sizeof name, "%.*s.bias", VPTQ_NAME_MAX, module);
    return vptq_tensor_find(&c->set, name) != NULL;
}

static vptq_status add_matrices(packing *p, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    for (size_t i = 0; i < p->c->quantized_count; i++) {
        const vptq_packed_matrix *m = &p->matrices[i];
        VPTQ_TRY(vptq_check_cancel(p->ctx, err));
        VPTQ_TRY(make_parts(p, m, true, err));
        for (size_t k = 0; k < p->part_count; k++)
            VPTQ_TRY(vptq_package_add(p->out, &p->parts[k], (vptq_package_source){.matrix = m},
                                      err));
    }
out:
    forget_matrix(p);
    return st;
}

/* The type of a plain tensor in the output.  Unless an option says another, it is the one that
 * evaluating the input uses: a work directory rounds to its storage type.  A directory cannot
 * hold blocks. */
static vptq_dtype plain_type(const packing *p, const vptq_tensor *t)
{
    const vptq_pack_options *opt = p->opt;
    if (opt->embeddings != VPTQ_DTYPE_COUNT && vptq_is_embedding(t->name))
        return opt->embeddings;
    if (opt->dtype != VPTQ_DTYPE_COUNT)
        return opt->dtype;
    if (t->round_to != VPTQ_F32)
        return t->round_to;
    return opt->form == VPTQ_PACK_HF && !vptq_dtype_get(t->type)->safetensors
               ? p->c->storage
               : VPTQ_DTYPE_COUNT;
}

static vptq_status add_tensor(packing *p, const vptq_tensor *t, uint32_t *count, vptq_err *err)
{
    ++*count;
    return vptq_package_add_plain(p->out, t, plain_type(p, t), err);
}

static vptq_status add_plain(packing *p, uint32_t *count, vptq_err *err)
{
    const vptq_tensor_set *set = &p->c->set;
    for (size_t i = 0; i < set->count; i++)
        if (!set->tensors[i].uniform && !set->tensors[i].additive &&
            !vptq_package_matrix_of(p->c, set->tensors[i].name))
            VPTQ_CHECK(add_tensor(p, &set->tensors[i], count, err));
    return VPTQ_OK;
}

/* Adds the embedding a second time, under the name of the output head that is tied to it. */
static vptq_status add_head(packing *p, uint32_t *count, vptq_err *err)
{
    const vptq_checkpoint *c = p->c;
    const vptq_tensor *t = vptq_tensor_find(&c->set, VPTQ_EMBEDDING_NAME);
    if (!c->desc.tied || !t || vptq_tensor_find(&c->set, VPTQ_HEAD_NAME))
        return VPTQ_OK;
    vptq_tensor *head = vptq_arena_alloc(&p->out->arena, 1, sizeof *head, err);
    if (!head)
        return VPTQ_E_NOMEM;
    *head = *t;
    head->name = VPTQ_HEAD_NAME;
    return add_tensor(p, head, count, err);
}

static vptq_status set_quantization(json_t *config, json_t *q, vptq_err *err)
{
    if (!q || json_object_set_new(vptq_package_config_holder(config), "quantization_config", q))
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory for config.json");
    return VPTQ_OK;
}

/* Lists the modules that stay plain: matrices, and routers and shared gates of experts. */
static vptq_status list_plain(const packing *p, const char ***list, size_t *count,
                              vptq_err *err)
{
    const vptq_model_desc *d = &p->c->desc;
    const char *const paths[] = {vptq_router_path(d->family), VPTQ_SHARED_GATE_PATH};
    vptq_arena *a = &p->out->arena;
    const char **plain =
        vptq_arena_alloc(a, p->dense_count + 2 * (size_t)d->layers, sizeof *plain, err);
    if (!plain)
        return VPTQ_E_NOMEM;
    for (*count = 0; *count < p->dense_count; ++*count)
        plain[*count] = p->dense[*count];
    for (uint32_t layer = 0; layer < d->layers; layer++)
        for (int i = 0; i < (d->experts.shared ? 2 : 1); i++) {
            char name[VPTQ_NAME_MAX];
            if (!vptq_layer_has_experts(&d->experts, layer))
                continue;
            snprintf(name, sizeof name, "model.layers.%u.%s", layer, paths[i]);
            plain[*count] = vptq_arena_strdup(a, name, err);
            if (!plain[(*count)++])
                return VPTQ_E_NOMEM;
        }
    *list = plain;
    return VPTQ_OK;
}

static vptq_status quantization_config(const packing *p, json_t *config, vptq_err *err)
{
    json_t *q = NULL;
    if (!p->uniform_count && !p->additive_count && !p->c->quantized_count)
        return VPTQ_OK;
    if (p->additive_count) {
        VPTQ_CHECK(vptq_additive_make_config(p->additive, p->additive_count, &q, err));
        return set_quantization(config, q, err);
    }
    if (p->uniform_count) {
        const char **plain;
        size_t count;
        VPTQ_CHECK(list_plain(p, &plain, &count, err));
        VPTQ_CHECK(
            vptq_compressed_make_config(p->uniform, p->uniform_count, plain, count, &q, err));
        return set_quantization(config, q, err);
    }
    json_t *layers = json_object();
    for (size_t i = 0; layers && i < p->c->quantized_count; i++) {
        json_t *entry = NULL;
        vptq_status st = vptq_packed_make_entry(
            &p->matrices[i], has_bias(p->c, p->matrices[i].name), &entry, err);
        if (st || json_object_set_new(layers, p->matrices[i].name, entry)) {
            json_decref(layers);
            return st ? st : vptq_fail(err, VPTQ_E_NOMEM, "out of memory for config.json");
        }
    }
    q = json_pack("{s:s, s:o}", "quant_method", "vptq", "config_for_layers", layers);
    return set_quantization(config, q, err);
}

static vptq_status add_config(packing *p, vptq_dtype type, vptq_err *err)
{
    json_t *config;
    if (type == VPTQ_DTYPE_COUNT && p->c->kind == VPTQ_CKPT_WORK)
        type = p->c->storage;
    VPTQ_CHECK(vptq_package_make_config(p->c, type, &config, err));
    vptq_status st = quantization_config(p, config, err);
    if (!st && p->opt->form == VPTQ_PACK_HF)
        st = vptq_package_split_config(&p->c->desc, config, err);
    if (!st)
        st = vptq_package_add_config(p->out, config, err);
    json_decref(config);
    return st;
}

/* Lists all tensors of the output. */
static vptq_status list_tensors(packing *p, uint32_t *plain, vptq_err *err)
{
    VPTQ_CHECK(copy_matrices(p, p->opt->dtype, err));
    VPTQ_CHECK(add_matrices(p, err));
    VPTQ_CHECK(find_dense(p, err));
    VPTQ_CHECK(add_coded(p, err));
    VPTQ_CHECK(add_plain(p, plain, err));
    if (p->opt->lm_head)
        VPTQ_CHECK(add_head(p, plain, err));
    return vptq_package_finish(p->out, err);
}

/* ---- writing ---- */

static vptq_status fill(void *arg, const vptq_package_tensor *t, vptq_package_sink *s,
                        vptq_err *err)
{
    packing *p = arg;
    if (t->source.plain)
        return vptq_package_fill_plain(p->out, t, s, err);
    if (t->source.matrix && p->current != t->source.matrix)
        VPTQ_CHECK(make_parts(p, t->source.matrix, false, err));
    if (t->source.coded && p->current != t->source.coded)
        VPTQ_CHECK(make_coded_parts(p, t->source.coded, err));
    size_t k = 0;
    while (k < p->part_count && strcmp(p->parts[k].name, t->tensor.name) != 0)
        k++;
    VPTQ_BUG_IF(k == p->part_count || p->parts[k].bytes != t->tensor.bytes);
    return vptq_package_put(s, p->parts[k].data, p->parts[k].bytes, err);
}

static void packing_init(packing *p, const vptq_ctx *ctx, const vptq_checkpoint *c,
                         const vptq_pack_options *opt, vptq_package *out, const char *stage)
{
    *p = (packing){.ctx = ctx, .c = c, .opt = opt, .out = out};
    vptq_arena_init(&p->arena, ctx->mem);
    vptq_package_init(out, ctx, c, stage);
    out->loss = &p->loss;
    out->fill = fill;
    out->fill_arg = p;
}

/* Whether the output has the tensors of a packed input in the same types. */
static bool keeps_types(const packing *p)
{
    if (p->c->kind == VPTQ_CKPT_WORK || p->round_again)
        return false;
    for (size_t i = 0; i < p->out->count; i++) {
        const vptq_package_tensor *t = &p->out->tensors[i];
        if (t->source.plain && t->source.plain->type != t->tensor.type)
            return false;
    }
    return true;
}

/* The published layout has no type of 8 bits. */
static void warn_of_int8(const packing *p, double bits)
{
    const vptq_checkpoint *c = p->c;
    const double from = vptq_package_mean_bits(c->quantized, c->quantized_count, true);
    if (!p->int8 && c->quantized_count && bits > from)
        vptq_log(
            p->ctx, VPTQ_LOG_WARN,
            "%s: codebooks of 8 bits take 16 in the published layout: %.4f bits per weight "
            "instead of %.4f in an archive",
            c->path, bits, from);
}

static vptq_status write_output(const packing *p, vptq_pack_result *r, vptq_err *err)
{
    const vptq_pack_options *opt = p->opt;
    return opt->form == VPTQ_PACK_ARCHIVE
               ? vptq_package_write_archive(p->out, opt->output, opt->force, (int)opt->level,
                                            &r->bytes, err)
               : vptq_package_write_dir(p->out, opt->output, opt->force, opt->shard_bytes,
                                        &r->bytes, err);
}

static vptq_status estimate(const packing *p, vptq_pack_result *r, vptq_err *err)
{
    return p->opt->form == VPTQ_PACK_ARCHIVE
               ? vptq_package_estimate_archive(p->out, (int)p->opt->level, r, err)
               : vptq_package_estimate_dir(p->out, r, err);
}

static vptq_status pack(packing *p, vptq_pack_result *r, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_pack_options *opt = p->opt;
    vptq_package *o = p->out;
    VPTQ_TRY(list_tensors(p, &r->plain, err));
    VPTQ_TRY(add_config(p, opt->dtype, err));
    if (opt->card)
        VPTQ_TRY(vptq_package_add_file(o, "README.md", opt->card, strlen(opt->card), err));
    o->same = keeps_types(p) ? opt : NULL;
    VPTQ_TRY(vptq_package_add_companions(o, p->c, opt->tokenizer,
                                         opt->dry_run ? NULL : opt->output, err));
    r->quantized = (uint32_t)(p->c->quantized_count + p->uniform_count + p->additive_count);
    r->bits_per_weight = p->uniform_count + p->additive_count
                             ? coded_bits(p)
                             : vptq_package_mean_bits(p->matrices, p->c->quantized_count, true);
    warn_of_int8(p, r->bits_per_weight);
    memcpy(r->repaired, p->quirks.count, sizeof r->repaired);
    r->bytes = o->bytes;
    VPTQ_TRY(opt->dry_run ? estimate(p, r, err) : write_output(p, r, err));
    vptq_package_summarize(o, opt->dry_run, r);
out:
    forget_matrix(p);
    return st;
}

/* VPTQ_E_ARG for types that are not packed in that form. */
static vptq_status check_types(const vptq_pack_options *opt, vptq_err *err)
{
    if (opt->dtype != VPTQ_DTYPE_COUNT && opt->dtype != VPTQ_F16 && opt->dtype != VPTQ_BF16)
        return vptq_fail(err, VPTQ_E_ARG,
                         "--dtype: packed models store f16 or bf16; --unpack writes GGUF files "
                         "of other types");
    if (opt->form == VPTQ_PACK_HF && opt->embeddings != VPTQ_DTYPE_COUNT)
        return vptq_fail(err, VPTQ_E_ARG,
                         "--embeddings: the published layout has one type for all numbers "
                         "(--dtype); write an archive (OUT.vptq or --to archive)");
    return vptq_package_check_embeddings(opt, err);
}

vptq_status vptq_pack_model(const vptq_ctx *ctx, const vptq_pack_options *opt,
                            vptq_pack_result *r, vptq_err *err)
{
    double start = vptq_seconds();
    vptq_model model;
    vptq_package out;
    vptq_checkpoint_options open = {.tokenizer = opt->tokenizer,
                                    .base = opt->base,
                                    .partial = opt->partial,
                                    .shapes_only = true};
    *r = (vptq_pack_result){0};
    if (opt->level > VPTQ_ARCHIVE_MAX_LEVEL)
        return vptq_fail(err, VPTQ_E_ARG, "--level is %u, expected 1 to %d", opt->level,
                         (int)VPTQ_ARCHIVE_MAX_LEVEL);
    VPTQ_CHECK(check_types(opt, err));
    /* opening it as a model checks every matrix and tensor against the architecture */
    vptq_status st = vptq_model_open(ctx, opt->input, &open, false, &model, err);
    if (st)
        return st;
    const vptq_checkpoint *c = &model.ckpt;
    packing p;
    packing_init(&p, ctx, c, opt, &out, "pack");
    p.int8 = opt->form == VPTQ_PACK_ARCHIVE;
    if (!vptq_checkpoint_matrix_count(c))
        st = vptq_fail(err, VPTQ_E_UNSUPPORTED, "%s: the %s has no quantized matrices to pack",
                       c->path, vptq_checkpoint_kind_name(c->kind));
    else if (opt->repair && c->kind == VPTQ_CKPT_WORK)
        st = vptq_fail(err, VPTQ_E_UNSUPPORTED,
                       "%s is a %s, expected a packed directory or an archive to repair",
                       c->path, vptq_checkpoint_kind_name(c->kind));
    if (!st)
        st = vptq_package_check_output(ctx, c, opt, err);
    if (!st)
        st = pack(&p, r, err);
    vptq_package_release(&out);
    vptq_model_release(&model);
    r->seconds = vptq_seconds() - start;
    return st;
}

vptq_status vptq_pack_check_output(const vptq_ctx *ctx, const char *model,
                                   const vptq_pack_options *opt, vptq_err *err)
{
    const vptq_checkpoint_options open = {
        .tokenizer = opt->tokenizer, .shapes_only = true, .quiet = true};
    vptq_model m;
    VPTQ_CHECK(check_types(opt, err));
    VPTQ_CHECK(vptq_model_open(ctx, model, &open, false, &m, err));
    vptq_status st = vptq_package_check_tokenizer(&m.ckpt, ctx, opt->tokenizer, err);
    if (!st)
        st = vptq_package_check_output(ctx, &m.ckpt, opt, err);
    vptq_model_release(&m);
    if (st || opt->dry_run)
        return st;
    /* beyond that, only opening the output shows whether it can be written */
    if (opt->form == VPTQ_PACK_ARCHIVE) {
        vptq_file_writer file;
        VPTQ_CHECK(vptq_file_writer_open(opt->output, opt->force, &file, err));
        vptq_file_writer_abort(&file);
    } else {
        vptq_dir_writer dir;
        VPTQ_CHECK(vptq_dir_writer_open(opt->output, NULL, opt->force, &dir, err));
        vptq_dir_writer_abort(&dir);
    }
    return VPTQ_OK;
}

vptq_status vptq_digest_packing(const vptq_ctx *ctx, const vptq_checkpoint *c,
                                const vptq_pack_options *opt, vptq_digest_result *r,
                                vptq_err *err)
{
    const vptq_pack_options types = {
        .form = VPTQ_PACK_ARCHIVE, /* takes plain tensors of any type */
        .dtype = opt ? opt->dtype : VPTQ_DTYPE_COUNT,
        .embeddings = opt ? opt->embeddings : VPTQ_DTYPE_COUNT};
    uint32_t plain = 0;
    vptq_package out;
    packing p;
    packing_init(&p, ctx, c, &types, &out, "digest");
    vptq_status st = list_tensors(&p, &plain, err);
    if (!st)
        st = vptq_package_digest(&out, p.matrices, c->quantized_count, r, err);
    forget_matrix(&p);
    vptq_package_release(&out);
    return st;
}
