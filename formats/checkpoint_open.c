/* Opens a MODEL: detects its kind, reads the plain kinds and finds the tokenizer. */
#include <stdio.h>
#include <string.h>

#include "formats/checkpoint_internal.h"
#include "formats/gguf/model.h"
#include "formats/hf/config.h"
#include "formats/hf/fused.h"
#include "formats/hf/hub.h"
#include "formats/hf/text_part.h"
#include "formats/hf/weights.h"
#include "formats/lfs.h"
#include "formats/llama2c.h"
#include "lib/base/text.h"

/* ---- detection ---- */

static bool has_file(const char *dir, const char *name)
{
    char path[4096];
    return !vptq_path_join(path, sizeof path, dir, name, NULL) && vptq_path_exists(path);
}

static vptq_status detect_dir(const char *path, vptq_checkpoint_kind *kind, vptq_err *err)
{
    char config[4096];
    json_t *json = NULL;
    if (has_file(path, VPTQ_WORK_FILE)) {
        *kind = VPTQ_CKPT_WORK;
        return VPTQ_OK;
    }
    if (!has_file(path, VPTQ_CONFIG_FILE))
        return vptq_fail(
            err, VPTQ_E_FORMAT,
            "%s is not a model: found neither " VPTQ_CONFIG_FILE
            " (a Hugging Face model) nor " VPTQ_WORK_FILE " (a quantize work directory)%s",
            path,
            has_file(path, "snapshots") ? "; a hub cache keeps its models in snapshots/REVISION"
                                        : "");
    VPTQ_CHECK(vptq_path_join(config, sizeof config, path, VPTQ_CONFIG_FILE, err));
    VPTQ_CHECK(vptq_json_load(config, VPTQ_CONFIG_LIMIT, &json, err));
    *kind = vptq_packed_is_config(json) ? VPTQ_CKPT_PACKED : VPTQ_CKPT_HF;
    json_decref(json);
    return VPTQ_OK;
}

/* Detects the kind of a path by its content. */
static vptq_status detect(const char *path, vptq_checkpoint_kind *kind, vptq_err *err)
{
    vptq_map map = {NULL, 0};
    if (vptq_path_is_dir(path))
        return detect_dir(path, kind, err);
    /* gives a missing or unreadable file the system's error message */
    VPTQ_CHECK(vptq_map_open(path, &map, err));
    const vptq_status st = vptq_lfs_check(path, map.data, map.size, "weights", err);
    vptq_map_release(&map);
    if (st)
        return st;
    if (vptq_gguf_is(path))
        *kind = VPTQ_CKPT_GGUF;
    else if (vptq_archive_is(path))
        *kind = VPTQ_CKPT_ARCHIVE;
    else if (vptq_llama2c_is(path))
        *kind = VPTQ_CKPT_LLAMA2C;
    else
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s is not a model: expected a Hugging Face directory (not a file in "
                         "it), a GGUF file, a .vptq archive or a llama2.c file",
                         path);
    return VPTQ_OK;
}

static bool is_plain(vptq_checkpoint_kind kind)
{
    return kind == VPTQ_CKPT_HF || kind == VPTQ_CKPT_GGUF || kind == VPTQ_CKPT_LLAMA2C;
}

/* ---- the plain kinds ---- */

/* Refuses other quantization methods, which would otherwise fail with missing tensors. */
static vptq_status refuse_other_methods(const char *path, const json_t *config, vptq_err *err)
{
    const json_t *q = json_object_get(config, "quantization_config");
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    if (!method || vptq_checkpoint_is_uniform(config))
        return VPTQ_OK;
    return vptq_fail(
        err, VPTQ_E_UNSUPPORTED,
        "%s: is quantized by '%.64s', expected vptq, compressed-tensors, gptq or awq", path,
        method);
}

/* Older releases of transformers stored a tied embedding only under the name of the head. */
static vptq_status name_embedding(vptq_checkpoint *c, vptq_err *err)
{
    if (!c->desc.tied || vptq_tensor_find(&c->set, VPTQ_EMBEDDING_NAME))
        return VPTQ_OK;
    for (size_t i = 0; i < c->set.count; i++)
        if (strcmp(c->set.tensors[i].name, VPTQ_HEAD_NAME) == 0) {
            c->set.tensors[i].name = VPTQ_EMBEDDING_NAME;
            return vptq_tensor_set_finish(&c->set, err);
        }
    return VPTQ_OK;
}

/* Opens a Hugging Face directory, plain or packed. */
static vptq_status open_dir(vptq_checkpoint *c, bool shapes_only, vptq_err *err)
{
    const bool packed = c->kind == VPTQ_CKPT_PACKED;
    char name[4096];
    bool is_part;
    VPTQ_CHECK(vptq_path_join(name, sizeof name, c->path, VPTQ_CONFIG_FILE, err));
    VPTQ_CHECK(vptq_json_load(name, VPTQ_CONFIG_LIMIT, &c->config, err));
    VPTQ_CHECK(vptq_hf_text_config(&c->config, &is_part, err));
    if (!packed)
        VPTQ_CHECK(refuse_other_methods(c->path, c->config, err));
    VPTQ_CHECK(vptq_hf_config_parse(c->config, name, &c->desc, err));
    VPTQ_CHECK(vptq_hf_read_weights(c->path, &c->set, err));
    if (is_part)
        VPTQ_CHECK(vptq_hf_text_tensors(&c->set, &c->other_parts, err));
    VPTQ_CHECK(name_embedding(c, err));
    VPTQ_CHECK(vptq_fused_split(&c->desc, &c->set, err));
    if (packed)
        return vptq_checkpoint_read_matrices(shapes_only, c, err);
    return vptq_checkpoint_is_uniform(c->config) ? vptq_checkpoint_read_uniform(c, err)
                                                 : VPTQ_OK;
}

static vptq_status open_gguf(vptq_checkpoint *c, vptq_mem *mem, vptq_err *err)
{
    vptq_gguf *g = vptq_arena_zalloc(&c->arena, 1, sizeof *g, err);
    if (!g)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(vptq_gguf_open(c->path, mem, g, err));
    c->gguf = g; /* from here on released with c */
    VPTQ_CHECK(vptq_gguf_desc(g, &c->desc, err));
    return vptq_gguf_hf_tensors(g, &c->desc, &c->set, err);
}

/* The 16-bit type, or F32, of most weights.  Block types count as F16, the type of their
 * scales. */
static vptq_dtype main_type(const vptq_tensor_set *set)
{
    uint64_t f32 = 0, f16 = 0, bf16 = 0;
    for (size_t i = 0; i < set->count; i++) {
        const vptq_tensor *t = &set->tensors[i];
        uint64_t n = (uint64_t)vptq_tensor_rows(t) * vptq_tensor_cols(t);
        if (t->type == VPTQ_F32)
            f32 += n;
        else if (t->type == VPTQ_BF16)
            bf16 += n;
        else if (t->type == VPTQ_F16 || vptq_dtype_get(t->type)->block > 1)
            f16 += n;
    }
    if (bf16 > f16 && bf16 >= f32)
        return VPTQ_BF16;
    return f32 > f16 ? VPTQ_F32 : VPTQ_F16;
}

/* ---- work directories ---- */

static vptq_status open_base(const vptq_ctx *ctx, const char *path, const char *fingerprint,
                             vptq_checkpoint *c, vptq_err *err)
{
    vptq_checkpoint_kind kind;
    char dir[VPTQ_HUB_PATH], found[17];
    VPTQ_CHECK(vptq_hub_find(path, ctx->mem, dir, err));
    VPTQ_CHECK(detect(dir, &kind, err));
    if (!is_plain(kind))
        return vptq_fail(err, VPTQ_E_FORMAT, "'%s' is a %s, expected a plain model", path,
                         vptq_checkpoint_kind_name(kind));
    vptq_checkpoint *base = vptq_arena_zalloc(&c->arena, 1, sizeof *base, err);
    if (!base)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(vptq_checkpoint_open(ctx, dir, NULL, base, err));
    c->base = base; /* from here on released with c */
    VPTQ_CHECK(vptq_checkpoint_fingerprint(base, ctx, found, err));
    if (strcmp(found, fingerprint) == 0)
        return VPTQ_OK;
    vptq_status st = vptq_fail(err, VPTQ_E_MISMATCH,
                               "'%s' has fingerprint %s, but the matrices were made from %.40s",
                               path, found, fingerprint);
    return vptq_checkpoint_report_fault(c, st, err);
}

static vptq_status open_work(const vptq_ctx *ctx, const vptq_checkpoint_options *opt,
                             vptq_checkpoint *c, vptq_err *err)
{
    vptq_work_header h;
    VPTQ_CHECK(vptq_checkpoint_read_work_header(c, &h, err));
    vptq_status st = open_base(ctx, opt->base ? opt->base : h.base, h.fingerprint, c, err);
    if (st && err)
        vptq_err_context(err, "%s: its base model (--base names another)", c->path);
    if (st)
        return st;
    c->desc = c->base->desc;
    const size_t all = vptq_linear_total(&c->desc, 0, c->desc.layers - 1);
    if (c->skipped > all)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "%s/" VPTQ_WORK_FILE ": key 'matrices' skips %zu matrices, its base "
                         "model has %zu",
                         c->path, c->skipped, all);
    c->tokenizer = *h.tokenizer ? h.tokenizer : c->base->tokenizer;
    return vptq_checkpoint_read_work(ctx, opt->partial, c, err);
}

/* ---- the tokenizer ---- */

static vptq_status set_tokenizer(vptq_checkpoint *c, const char *path, vptq_err *err)
{
    c->tokenizer = vptq_arena_strdup(&c->arena, path, err);
    return c->tokenizer ? VPTQ_OK : VPTQ_E_NOMEM;
}

/* Searches the model's directory, or that of its file. */
static vptq_status search_tokenizer(vptq_checkpoint *c, vptq_err *err)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.model", "tokenizer.bin"};
    bool is_dir = c->kind == VPTQ_CKPT_HF || c->kind == VPTQ_CKPT_PACKED;
    /* llama2.c's own tokenizer format belongs to its models only */
    size_t count = c->kind == VPTQ_CKPT_LLAMA2C ? 3 : 2;
    for (size_t i = 0; i < count && !c->tokenizer; i++) {
        char path[4096];
        VPTQ_CHECK(is_dir ? vptq_path_join(path, sizeof path, c->path, names[i], err)
                          : vptq_path_beside(path, sizeof path, c->path, names[i], err));
        if (vptq_path_exists(path))
            VPTQ_CHECK(set_tokenizer(c, path, err));
    }
    return VPTQ_OK;
}

static vptq_status find_tokenizer(vptq_checkpoint *c, const char *given, vptq_err *err)
{
    if (given)
        return set_tokenizer(c, given, err);
    if (c->tokenizer) /* set while opening an archive or a work directory */
        return VPTQ_OK;
    if (c->kind == VPTQ_CKPT_GGUF && vptq_gguf_find(c->gguf, "tokenizer.ggml.model")) {
        c->tokenizer = c->path;
        return VPTQ_OK;
    }
    return c->kind == VPTQ_CKPT_WORK ? VPTQ_OK : search_tokenizer(c, err);
}

/* ---- biases ---- */

/* Whether a tensor is the bias of a linear layer that config.json gives none. */
static bool is_undeclared(const vptq_checkpoint *c, const char *name)
{
    char module[VPTQ_NAME_MAX];
    vptq_linear l;
    const size_t length = vptq_text_before(name, ".bias");
    if (length >= sizeof module || !vptq_linear_of_module(&c->desc, name, length, &l))
        return false;
    snprintf(module, sizeof module, "%.*s", (int)length, name);
    return !vptq_checkpoint_declares_bias(c, module, l);
}

/* Takes undeclared biases out of the set, so that nothing computes with them or copies them. */
static vptq_status ignore_biases(vptq_checkpoint *c, vptq_err *err)
{
    size_t kept = 0;
    c->ignored = vptq_arena_alloc(&c->arena, c->set.count, sizeof *c->ignored, err);
    if (!c->ignored)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < c->set.count; i++) {
        const vptq_tensor t = c->set.tensors[i];
        if (is_undeclared(c, t.name))
            c->ignored[c->ignored_count++] = t.name;
        else
            c->set.tensors[kept++] = t;
    }
    c->set.count = kept;
    return c->ignored_count ? vptq_tensor_set_finish(&c->set, err) : VPTQ_OK;
}

/* ---- open ---- */

static vptq_status open_kind(const vptq_ctx *ctx, const vptq_checkpoint_options *opt,
                             vptq_checkpoint *c, vptq_err *err)
{
    switch (c->kind) {
    case VPTQ_CKPT_HF:
    case VPTQ_CKPT_PACKED:
        return open_dir(c, opt->shapes_only, err);
    case VPTQ_CKPT_GGUF:
        return open_gguf(c, ctx->mem, err);
    case VPTQ_CKPT_LLAMA2C:
        return vptq_llama2c_read(c->path, &c->set, &c->desc, err);
    case VPTQ_CKPT_ARCHIVE:
        return vptq_checkpoint_open_archive(ctx, opt->shapes_only, c, err);
    case VPTQ_CKPT_WORK:
        return open_work(ctx, opt, c, err);
    }
    return vptq_fail(err, VPTQ_E_ARG, "%s: unknown kind of model", c->path);
}

static vptq_status index_quantized(vptq_checkpoint *c, vptq_err *err)
{
    VPTQ_CHECK(vptq_strmap_init(&c->quantized_by_name, c->arena.mem, c->quantized_count, err));
    for (size_t i = 0; i < c->quantized_count; i++) {
        const char *name = c->quantized[i].name;
        bool fresh = true;
        VPTQ_CHECK(vptq_strmap_add(&c->quantized_by_name, name, strlen(name), (uint32_t)i,
                                   &fresh, err));
        if (!fresh)
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: duplicate matrix '%s'", c->path, name);
    }
    return VPTQ_OK;
}

vptq_status vptq_checkpoint_open(const vptq_ctx *ctx, const char *path,
                                 const vptq_checkpoint_options *opt, vptq_checkpoint *c,
                                 vptq_err *err)
{
    static const vptq_checkpoint_options none = {0};
    vptq_status st = VPTQ_OK;
    char found[VPTQ_HUB_PATH];
    opt = opt ? opt : &none;
    *c = (vptq_checkpoint){.fault = opt->fault, .fault_arg = opt->fault_arg};
    vptq_arena_init(&c->arena, ctx->mem);
    vptq_tensor_set_init(&c->set, ctx->mem);
    VPTQ_TRY(vptq_hub_find(path, ctx->mem, found, err));
    VPTQ_TRY(detect(found, &c->kind, err));
    c->path = vptq_arena_strdup(&c->arena, found, err);
    if (!c->path)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(open_kind(ctx, opt, c, err));
    if (c->config)
        VPTQ_TRY(ignore_biases(c, err));
    VPTQ_TRY(index_quantized(c, err));
    if (is_plain(c->kind))
        c->storage = main_type(&c->set);
    st = find_tokenizer(c, opt->tokenizer, err);
out:
    if (st)
        vptq_checkpoint_release(c);
    return st;
}
