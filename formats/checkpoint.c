/* Opening of any MODEL: what it is, the plain kinds, and where its tokenizer is. */
#include "formats/checkpoint.h"

#include <stdio.h>
#include <string.h>

#include "formats/checkpoint_internal.h"
#include "formats/hf/config.h"
#include "formats/hf/safetensors.h"
#include "formats/llama2c.h"
#include "formats/vptq/archive.h"

#define CONFIG_FILE "config.json"

const char *vptq_checkpoint_kind_name(vptq_checkpoint_kind kind)
{
    switch (kind) {
    case VPTQ_CKPT_HF:
        return "Hugging Face directory";
    case VPTQ_CKPT_GGUF:
        return "GGUF file";
    case VPTQ_CKPT_LLAMA2C:
        return "llama2.c file";
    case VPTQ_CKPT_PACKED:
        return "packed VPTQ directory";
    case VPTQ_CKPT_ARCHIVE:
        return ".vptq archive";
    case VPTQ_CKPT_WORK:
        return "quantize work directory";
    }
    return "unknown kind";
}

/* ---- what it is ---- */

static vptq_status load_config(const char *dir, json_t **config, vptq_err *err)
{
    char path[4096];
    vptq_status st = vptq_path_join(path, sizeof path, dir, CONFIG_FILE, err);
    return st ? st : vptq_json_load(path, VPTQ_CONFIG_LIMIT, config, err);
}

static vptq_status detect_dir(const char *path, vptq_checkpoint_kind *kind, vptq_err *err)
{
    char work[4096], config[4096];
    json_t *json = NULL;
    vptq_status st = VPTQ_OK;
    VPTQ_TRY(vptq_path_join(work, sizeof work, path, VPTQ_WORK_FILE, err));
    VPTQ_TRY(vptq_path_join(config, sizeof config, path, CONFIG_FILE, err));
    if (vptq_path_exists(work)) {
        *kind = VPTQ_CKPT_WORK;
        return VPTQ_OK;
    }
    if (!vptq_path_exists(config))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: is no model: the directory has neither " CONFIG_FILE
                         " (a Hugging Face model) nor " VPTQ_WORK_FILE
                         " (a quantize work directory)",
                         path);
    VPTQ_TRY(load_config(path, &json, err));
    *kind = vptq_packed_is_config(json) ? VPTQ_CKPT_PACKED : VPTQ_CKPT_HF;
out:
    json_decref(json);
    return st;
}

vptq_status vptq_checkpoint_detect(const char *path, vptq_checkpoint_kind *kind, vptq_err *err)
{
    vptq_map map = {NULL, 0};
    if (vptq_path_is_dir(path))
        return detect_dir(path, kind, err);
    /* a missing or unreadable file gets the system's own words */
    vptq_status st = vptq_map_open(path, &map, err);
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
        st = vptq_fail(err, VPTQ_E_FORMAT,
                       "%s: is no model: neither a GGUF file, nor a .vptq archive, nor a "
                       "llama2.c .bin whose header gives its size (a Hugging Face model is "
                       "named by its directory)",
                       path);
    return st;
}

/* ---- the plain kinds ---- */

/* Quantized by something else: its tensors would only be missed one by one. */
static vptq_status refuse_other_methods(const char *path, const json_t *config, vptq_err *err)
{
    const json_t *q = json_object_get(config, "quantization_config");
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    if (!method)
        return VPTQ_OK;
    return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                     "%s: is quantized by '%.64s', only vptq is supported", path, method);
}

static vptq_status open_hf(vptq_checkpoint *c, vptq_err *err)
{
    char name[4096];
    VPTQ_CHECK(vptq_path_join(name, sizeof name, c->path, CONFIG_FILE, err));
    VPTQ_CHECK(load_config(c->path, &c->config, err));
    VPTQ_CHECK(refuse_other_methods(c->path, c->config, err));
    VPTQ_CHECK(vptq_hf_config_parse(c->config, name, &c->desc, err));
    return vptq_safetensors_read_dir(c->path, &c->set, err);
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

/* The 16-bit type, or F32, that most weights of matrices have; block types count as F16, which
 * their scales are. */
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

/* ---- the tokenizer ---- */

/* DIR/NAME when it is there; the result lies in the arena. */
static vptq_status look_beside(vptq_checkpoint *c, const char *dir, const char *name,
                               vptq_err *err)
{
    char path[4096];
    vptq_status st = vptq_path_join(path, sizeof path, dir, name, err);
    if (st || !vptq_path_exists(path))
        return st;
    c->tokenizer = vptq_arena_strdup(&c->arena, path, err);
    return c->tokenizer ? VPTQ_OK : VPTQ_E_NOMEM;
}

static vptq_status look_around(vptq_checkpoint *c, vptq_err *err)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.model", "tokenizer.bin"};
    vptq_status st = VPTQ_OK;
    bool is_dir = c->kind == VPTQ_CKPT_HF || c->kind == VPTQ_CKPT_PACKED;
    size_t dir_len = (size_t)(vptq_path_base(c->path) - c->path);
    const char *dir = is_dir        ? c->path
                      : dir_len > 0 ? vptq_arena_strndup(&c->arena, c->path, dir_len, err)
                                    : ".";
    if (!dir)
        return VPTQ_E_NOMEM;
    /* llama2.c's own tokenizer format belongs to its models only */
    size_t count = c->kind == VPTQ_CKPT_LLAMA2C ? 3 : 2;
    for (size_t i = 0; i < count && !c->tokenizer && !st; i++)
        st = look_beside(c, dir, names[i], err);
    return st;
}

static vptq_status find_tokenizer(vptq_checkpoint *c, const char *given, vptq_err *err)
{
    if (given) {
        c->tokenizer = vptq_arena_strdup(&c->arena, given, err);
        return c->tokenizer ? VPTQ_OK : VPTQ_E_NOMEM;
    }
    if (c->tokenizer) /* the archive's and the work directory's are known by now */
        return VPTQ_OK;
    if (c->kind == VPTQ_CKPT_GGUF && vptq_gguf_find(c->gguf, "tokenizer.ggml.model")) {
        c->tokenizer = c->path;
        return VPTQ_OK;
    }
    return c->kind == VPTQ_CKPT_WORK ? VPTQ_OK : look_around(c, err);
}

static vptq_status own_vocab(const vptq_checkpoint *c, const vptq_ctx *ctx, vptq_vocab *v,
                             vptq_err *err)
{
    bool inside = c->tokenizer == c->path;
    if (c->base && c->tokenizer == c->base->tokenizer)
        return own_vocab(c->base, ctx, v, err);
    if (c->kind == VPTQ_CKPT_GGUF && inside)
        return vptq_vocab_read_gguf(c->gguf, ctx->mem, v, err);
    if (c->kind == VPTQ_CKPT_ARCHIVE && inside)
        return vptq_checkpoint_archive_vocab(c, ctx, v, err);
    return vptq_vocab_read(c->tokenizer, c->desc.vocab, ctx->mem, v, err);
}

vptq_status vptq_checkpoint_vocab(const vptq_checkpoint *c, const vptq_ctx *ctx, vptq_vocab *v,
                                  vptq_err *err)
{
    if (c->tokenizer)
        return own_vocab(c, ctx, v, err);
    return vptq_fail(err, VPTQ_E_FORMAT,
                     "%s: the model has no tokenizer (no tokenizer.json or tokenizer.model was "
                     "found with it); give --tokenizer FILE",
                     c->path);
}

/* ---- what lies beside ---- */

static vptq_status text_of_dir(const char *dir, size_t dir_len, const char *name, size_t limit,
                               vptq_arena *arena, char **text, size_t *len, vptq_err *err)
{
    char path[4096], *data = NULL;
    int n = snprintf(path, sizeof path, "%.*s/%s", (int)dir_len, dir, name);
    if (n < 0 || (size_t)n >= sizeof path)
        return vptq_fail(err, VPTQ_E_ARG, "%s: the path is too long", dir);
    if (!vptq_path_exists(path))
        return VPTQ_OK;
    VPTQ_CHECK(vptq_file_read(path, limit, arena->mem, &data, len, err));
    *text = vptq_arena_strndup(arena, data, *len, err);
    vptq_mem_free(arena->mem, data);
    return *text ? VPTQ_OK : VPTQ_E_NOMEM;
}

vptq_status vptq_checkpoint_companion(const vptq_checkpoint *c, const vptq_ctx *ctx,
                                      const char *name, bool tokenizer, size_t limit,
                                      vptq_arena *arena, char **text, size_t *len,
                                      vptq_err *err)
{
    *text = NULL;
    *len = 0;
    bool of_base = c->base && (!tokenizer || c->tokenizer == c->base->tokenizer);
    if (of_base)
        return vptq_checkpoint_companion(c->base, ctx, name, tokenizer, limit, arena, text, len,
                                         err);
    const char *place = tokenizer ? c->tokenizer : c->path;
    if (!place)
        return VPTQ_OK;
    if (c->kind == VPTQ_CKPT_ARCHIVE && place == c->path)
        return vptq_checkpoint_archive_text(c, name, limit, arena, text, len, err);
    if (vptq_path_is_dir(place))
        return text_of_dir(place, strlen(place), name, limit, arena, text, len, err);
    /* of files, only a tokenizer's own has something that belongs to it in its folder */
    if (!tokenizer || place == c->path)
        return VPTQ_OK;
    size_t dir = (size_t)(vptq_path_base(place) - place);
    return dir ? text_of_dir(place, dir, name, limit, arena, text, len, err)
               : text_of_dir(".", 1, name, limit, arena, text, len, err);
}

/* ---- open and release ---- */

bool vptq_checkpoint_is_fault(vptq_status st)
{
    return st && st != VPTQ_E_IO && st != VPTQ_E_NOMEM && st != VPTQ_E_DEVICE &&
           st != VPTQ_E_CANCELLED;
}

vptq_status vptq_checkpoint_tell(const vptq_checkpoint *c, vptq_status st, const vptq_err *err)
{
    if (!c->fault || !vptq_checkpoint_is_fault(st))
        return st;
    c->fault(c->fault_arg, err->text);
    return VPTQ_OK;
}

static vptq_status open_kind(const vptq_ctx *ctx, const vptq_checkpoint_options *opt,
                             vptq_checkpoint *c, vptq_err *err)
{
    switch (c->kind) {
    case VPTQ_CKPT_HF:
        return open_hf(c, err);
    case VPTQ_CKPT_GGUF:
        return open_gguf(c, ctx->mem, err);
    case VPTQ_CKPT_LLAMA2C:
        return vptq_llama2c_read(c->path, &c->set, &c->desc, err);
    case VPTQ_CKPT_PACKED:
        return vptq_checkpoint_open_packed(opt->shapes_only, c, err);
    case VPTQ_CKPT_ARCHIVE:
        return vptq_checkpoint_open_archive(ctx, opt->shapes_only, c, err);
    case VPTQ_CKPT_WORK:
        return vptq_checkpoint_open_work(ctx, opt->base, c, err);
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
            return vptq_fail(err, VPTQ_E_FORMAT, "%s: matrix '%s' is there twice", c->path,
                             name);
    }
    return VPTQ_OK;
}

vptq_status vptq_checkpoint_open(const vptq_ctx *ctx, const char *path,
                                 const vptq_checkpoint_options *opt, vptq_checkpoint *c,
                                 vptq_err *err)
{
    static const vptq_checkpoint_options none = {0};
    vptq_status st = VPTQ_OK;
    opt = opt ? opt : &none;
    *c = (vptq_checkpoint){.fault = opt->fault, .fault_arg = opt->fault_arg};
    vptq_arena_init(&c->arena, ctx->mem);
    vptq_tensor_set_init(&c->set, ctx->mem);
    VPTQ_TRY(vptq_checkpoint_detect(path, &c->kind, err));
    c->path = vptq_arena_strdup(&c->arena, path, err);
    if (!c->path)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(open_kind(ctx, opt, c, err));
    VPTQ_TRY(index_quantized(c, err));
    if (c->kind == VPTQ_CKPT_HF || c->kind == VPTQ_CKPT_GGUF || c->kind == VPTQ_CKPT_LLAMA2C)
        c->storage = main_type(&c->set);
    st = find_tokenizer(c, opt->tokenizer, err);
out:
    if (st)
        vptq_checkpoint_release(c);
    return st;
}

void vptq_checkpoint_release(vptq_checkpoint *c)
{
    if (c->quantized_by_name.slots)
        vptq_strmap_release(&c->quantized_by_name);
    vptq_tensor_set_release(&c->set);
    vptq_checkpoint_release_extra(c);
    if (c->gguf)
        vptq_gguf_release(c->gguf);
    if (c->base)
        vptq_checkpoint_release(c->base);
    json_decref(c->config);
    vptq_arena_release(&c->arena);
    *c = (vptq_checkpoint){0};
}

const vptq_packed_matrix *vptq_checkpoint_quantized(const vptq_checkpoint *c,
                                                    const char *module)
{
    uint32_t i = 0;
    bool found = c->quantized_by_name.slots &&
                 vptq_strmap_get(&c->quantized_by_name, module, strlen(module), &i);
    return found ? &c->quantized[i] : NULL;
}
