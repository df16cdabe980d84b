/* Files that accompany the weights: config.json, tokenizer, chat template, license and others.
 */
#define _GNU_SOURCE /* memmem */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/hf/config.h"
#include "formats/hf/safetensors.h"
#include "formats/vptq/archive.h"
#include "lib/pack/package.h"

#define TEMPLATE_FILE "chat_template.jinja"

enum {
    MAX_TOKENIZER_FILE = 256 << 20,
    MAX_TEMPLATE = 1 << 20,
    MAX_OTHER_FILE = 16 << 20 /* a license or the like; larger files are weights of some kind */
};

/* Files of a Hugging Face directory that belong to its tokenizer. */
static const char *const tokenizer_files[] = {"tokenizer.json",
                                              "tokenizer_config.json",
                                              "special_tokens_map.json",
                                              "added_tokens.json",
                                              "tokenizer.model",
                                              "vocab.json",
                                              "merges.txt",
                                              TEMPLATE_FILE};

enum { TOKENIZER_FILES = sizeof tokenizer_files / sizeof tokenizer_files[0] };

static bool is_tokenizer_file(const char *name)
{
    for (size_t i = 0; i < TOKENIZER_FILES; i++)
        if (strcmp(tokenizer_files[i], name) == 0)
            return true;
    return false;
}

/* The checkpoint that has config, tokenizer and other files: of a work directory its base. */
static const vptq_checkpoint *origin_of(const vptq_checkpoint *c)
{
    return c->kind == VPTQ_CKPT_WORK ? c->base : c;
}

/* ---- config.json ---- */

static const char *torch_name(vptq_dtype type)
{
    return type == VPTQ_F16 ? "float16" : type == VPTQ_BF16 ? "bfloat16" : "float32";
}

json_t *vptq_package_config_holder(json_t *config)
{
    json_t *text = json_object_get(config, "text_config");
    return json_is_object(text) ? text : config;
}

/* transformers has two names for this key.  `always` sets the one that every release reads even
 * if the config lacks it. */
static int set_type(json_t *config, vptq_dtype type, bool always)
{
    int bad = 0;
    if (always || json_object_get(config, "torch_dtype"))
        bad |= json_object_set_new(config, "torch_dtype", json_string(torch_name(type)));
    if (json_object_get(config, "dtype"))
        bad |= json_object_set_new(config, "dtype", json_string(torch_name(type)));
    return bad;
}

/* Adds the older names of RoPE's base and scaling (Gemma 3: of full attention, and the base of
 * sliding attention).  transformers 4, the only release that loads the published layout,
 * ignores `rope_parameters`, which our reader prefers. */
static int set_rope(json_t *config)
{
    int bad = 0;
    json_t *parameters = json_object_get(config, "rope_parameters");
    json_t *full = json_object_get(parameters, "full_attention");
    json_t *local = json_object_get(parameters, "sliding_attention");
    if (json_object_get(local, "rope_theta"))
        bad |= json_object_set(config, "rope_local_base_freq",
                               json_object_get(local, "rope_theta"));
    parameters = full ? full : parameters;
    json_t *theta = json_object_get(parameters, "rope_theta");
    if (!json_is_object(parameters))
        return bad;
    if (theta)
        bad |= json_object_set(config, "rope_theta", theta);
    json_t *type = json_object_get(parameters, "rope_type");
    const char *name = json_string_value(type ? type : json_object_get(parameters, "type"));
    if (!name || strcmp(name, "default") == 0)
        return bad | json_object_set_new(config, "rope_scaling", json_null());
    json_t *scaling = json_copy(parameters);
    json_object_del(scaling, "rope_theta");
    return bad | json_object_set_new(config, "rope_scaling", scaling);
}

vptq_status vptq_package_make_config(const vptq_checkpoint *c, vptq_dtype type, json_t **out,
                                     vptq_err *err)
{
    const vptq_checkpoint *origin = origin_of(c);
    if (!origin->config)
        return vptq_hf_config_make(
            &c->desc, torch_name(type == VPTQ_DTYPE_COUNT ? c->storage : type), out, err);
    json_t *config = json_deep_copy(origin->config);
    if (!config)
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory for config.json");
    json_t *holder = vptq_package_config_holder(config);
    json_object_del(config, "quantization_config");
    json_object_del(holder, "quantization_config");
    int bad = set_rope(holder);
    if (type != VPTQ_DTYPE_COUNT) {
        bad |= set_type(config, type, true);
        if (holder != config)
            bad |= set_type(holder, type, false);
    }
    if (bad) {
        json_decref(config);
        return vptq_fail(err, VPTQ_E_NOMEM, "out of memory for config.json");
    }
    *out = config;
    return VPTQ_OK;
}

/* Sets a key unless it is there, even as null. */
static int set_missing(json_t *config, const char *key, json_t *value)
{
    const int bad = value ? 0 : -1;
    if (bad || json_object_get(config, key)) {
        json_decref(value);
        return bad;
    }
    return json_object_set_new(config, key, value);
}

vptq_status vptq_package_split_config(const vptq_model_desc *d, json_t *config, vptq_err *err)
{
    int bad = 0;
    json_t *scaling = json_object_get(config, "rope_scaling");
    if (!d->family->fused || vptq_rotary_dim(d) != d->head_dim)
        return VPTQ_OK;
    bad |= json_object_set_new(config, "architectures", json_pack("[s]", "MistralForCausalLM"));
    bad |= json_object_set_new(config, "model_type", json_string("mistral"));
    bad |= set_missing(config, "num_key_value_heads", json_integer(d->kv_heads));
    bad |= set_missing(config, "max_position_embeddings", json_integer(d->context));
    bad |= set_missing(config, "rms_norm_eps", json_real((double)d->norm_eps));
    bad |= set_missing(config, "sliding_window", json_null());
    json_object_del(config, "auto_map"); /* the classes of Phi-3 */
    if (d->rope_scaling == VPTQ_ROPE_LONGROPE && json_is_object(scaling)) {
        json_object_del(scaling, "type"); /* once called su */
        bad |= json_object_set_new(scaling, "rope_type", json_string("longrope"));
        bad |= set_missing(config, "original_max_position_embeddings",
                           json_integer(d->rope_original_context));
    }
    return bad ? vptq_fail(err, VPTQ_E_NOMEM, "out of memory for config.json") : VPTQ_OK;
}

/* ---- small files ---- */

vptq_status vptq_package_add_config(vptq_package *o, const json_t *config, vptq_err *err)
{
    char *text = NULL;
    VPTQ_CHECK(vptq_json_text(config, "config.json", true, &text, err));
    size_t len = strlen(text);
    char *own = vptq_arena_strndup(&o->arena, text, len, err);
    free(text);
    if (!own)
        return VPTQ_E_NOMEM;
    own[len] = '\n'; /* replaces the terminator, which is not needed */
    return vptq_package_add_file(o, "config.json", own, len + 1, err);
}

/* Returns whether DIR/NAME exists and may be copied; warns of a link that leaves the directory,
 * which could bring any file of this machine into an output that is published. */
static bool is_own(const vptq_ctx *ctx, const char *dir, const char *name, char path[4096])
{
    char target[4096];
    if (vptq_path_join(path, 4096, dir, name, NULL) || !vptq_path_exists(path))
        return false;
    if (!vptq_path_leaves(dir, name, target))
        return true;
    vptq_log(ctx, VPTQ_LOG_WARN, "%s is not copied: it is a link to '%s', outside the model",
             path, target);
    return false;
}

/* Whether a model card of ours has another digest than the output.  The same types are not
 * enough: packing also repairs. */
static vptq_status check_card(const vptq_package *o, const char *card, size_t size, bool *wrong,
                              vptq_err *err)
{
    static const char begin[] = VPTQ_CARD_DIGEST;
    vptq_digest_result r;
    const char *at = memmem(card, size, begin, strlen(begin));
    *wrong = at && !o->same;
    if (!at || !o->same)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_digest_packing(o->ctx, o->from, o->same, &r, err));
    at += strlen(begin);
    const size_t left = size - (size_t)(at - card), length = strlen(r.digest);
    *wrong = left < length || memcmp(at, r.digest, length) != 0;
    return VPTQ_OK;
}

/* Adds a file of the model, except a model card of ours whose digest is not the output's. */
static vptq_status add_copy(vptq_package *o, const char *from, const char *name,
                            const char *data, size_t size, vptq_err *err)
{
    bool wrong = false;
    if (!strcmp(name, "README.md"))
        VPTQ_CHECK(check_card(o, data, size, &wrong, err));
    if (!wrong)
        return vptq_package_add_file(o, name, data, size, err);
    vptq_log(o->ctx, VPTQ_LOG_WARN,
             "%s: README.md is not copied: it has the digest of another form of the model",
             from);
    return VPTQ_OK;
}

/* Adds DIR/NAME if it exists and is not on the list yet. */
static vptq_status add_from_dir(vptq_package *o, const char *dir, const char *name,
                                vptq_err *err)
{
    char path[4096], *data = NULL;
    size_t size = 0;
    if (vptq_package_has_file(o, name) || !is_own(o->ctx, dir, name, path))
        return VPTQ_OK;
    VPTQ_CHECK(vptq_file_read(path, MAX_TOKENIZER_FILE, o->ctx->mem, &data, &size, err));
    char *own = vptq_arena_strndup(&o->arena, data, size, err);
    vptq_mem_free(o->ctx->mem, data);
    if (!own)
        return VPTQ_E_NOMEM;
    return add_copy(o, dir, name, own, size, err);
}

/* Whether the file has the model's weights or follows from the files of the output. */
static bool is_written_anew(const vptq_checkpoint *c, const char *path)
{
    const char *name = vptq_path_base(path);
    bool is = !strcmp(name, VPTQ_SAFETENSORS_INDEX) || !strcmp(name, "SHA256SUMS");
    for (size_t i = 0; i < c->set.count && !is; i++)
        is = !strcmp(c->set.tensors[i].file, path);
    return is;
}

/* Adds every other companion in the directory. */
static vptq_status add_others(vptq_package *o, const vptq_checkpoint *c, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const char *dir = c->path;
    vptq_arena arena;
    char **names, path[4096];
    size_t count = 0;
    vptq_arena_init(&arena, o->ctx->mem);
    VPTQ_TRY(vptq_dir_list(dir, &arena, &names, &count, err));
    for (size_t i = 0; i < count; i++) {
        struct stat sb;
        VPTQ_TRY(vptq_path_join(path, sizeof path, dir, names[i], err));
        if (is_tokenizer_file(names[i]) || vptq_package_has_file(o, names[i]) ||
            is_written_anew(c, path) || stat(path, &sb) != 0 || !S_ISREG(sb.st_mode))
            continue;
        const char *why = !vptq_companion_ok(names[i])  ? "neither config, tokenizer nor text"
                          : sb.st_size > MAX_OTHER_FILE ? "as large as weights"
                                                        : NULL;
        if (why)
            vptq_log(o->ctx, VPTQ_LOG_INFO, "%s is not copied: it is %s", path, why);
        else
            VPTQ_TRY(add_from_dir(o, dir, names[i], err));
    }
out:
    vptq_arena_release(&arena);
    return st;
}

/* Adds the files of an archive; `foreign` leaves out those of its tokenizer. */
static vptq_status add_from_archive(vptq_package *o, const char *path, bool foreign,
                                    vptq_err *err)
{
    vptq_archive *a = NULL;
    vptq_status st = vptq_archive_open(path, o->ctx->mem, &a, err);
    if (st)
        return st;
    for (size_t i = 0; i < vptq_archive_count(a); i++) {
        const vptq_archive_entry *e = vptq_archive_at(a, i);
        if (e->is_tensor || vptq_package_has_file(o, e->name) ||
            (foreign && is_tokenizer_file(e->name)))
            continue;
        char *data = vptq_arena_alloc(&o->arena, (size_t)e->size, 1, err);
        if (!data)
            VPTQ_TRY(VPTQ_E_NOMEM);
        VPTQ_TRY(vptq_archive_load(a, e, o->ctx->threads, data, err));
        VPTQ_TRY(add_copy(o, path, e->name, data, (size_t)e->size, err));
    }
out:
    vptq_archive_close(a);
    return st;
}

/* Converts the model's tokenizer to tokenizer.json in a temporary directory next to `output`
 * and adds the files that are not on the list yet. */
static vptq_status add_converted_tokenizer(vptq_package *o, const vptq_checkpoint *c,
                                           const char *output, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_vocab vocab;
    vptq_dir_writer dir;
    char path[4096];
    size_t len = strlen(output);
    while (len > 1 && output[len - 1] == '/')
        len--;
    int n = snprintf(path, sizeof path, "%.*s.tokenizer", (int)len, output);
    if (n < 0 || (size_t)n >= sizeof path)
        return vptq_fail(err, VPTQ_E_ARG, "the path '%.80s...' is too long", output);
    st = vptq_checkpoint_vocab(c, o->ctx, &vocab, err);
    if (st)
        return st;
    st = vptq_dir_writer_open(path, NULL, true, &dir, err);
    if (st) {
        vptq_vocab_release(&vocab);
        return st;
    }
    VPTQ_TRY(vptq_vocab_write_hf(&vocab, dir.tmp, err));
    VPTQ_TRY(add_from_dir(o, dir.tmp, "tokenizer.json", err));
    VPTQ_TRY(add_from_dir(o, dir.tmp, "tokenizer_config.json", err));
out:
    vptq_dir_writer_abort(&dir);
    vptq_vocab_release(&vocab);
    return st;
}

static bool is_dir(const vptq_checkpoint *origin)
{
    return origin->kind == VPTQ_CKPT_HF || origin->kind == VPTQ_CKPT_PACKED;
}

/* The folder of the tokenizer; false if there is none. */
static bool find_folder(const char *tokenizer, char folder[4096])
{
    if (!tokenizer)
        return false;
    return !(vptq_path_is_dir(tokenizer)
                 ? vptq_path_join(folder, 4096, tokenizer, ".", NULL)
                 : vptq_path_beside(folder, 4096, tokenizer, ".", NULL));
}

/* Whether the tokenizer is the one that the directory has without being asked for another. */
static bool is_of_dir(const char *dir, const char *tokenizer)
{
    char path[4096];
    if (!find_folder(tokenizer, path) || !vptq_path_lies_in(dir, path))
        return false;
    return vptq_path_is_dir(tokenizer) ||
           strcmp(vptq_path_base(tokenizer), "tokenizer.json") == 0 ||
           vptq_path_join(path, sizeof path, dir, "tokenizer.json", NULL) ||
           !vptq_path_exists(path);
}

/* Whether the tokenizer comes from elsewhere: it then replaces all files of the model's own. */
static bool is_foreign(const vptq_checkpoint *c, const char *given_tokenizer)
{
    const vptq_checkpoint *origin = origin_of(c);
    return is_dir(origin) ? c->tokenizer && !is_of_dir(origin->path, c->tokenizer)
                          : given_tokenizer != NULL;
}

vptq_status vptq_package_check_tokenizer(const vptq_checkpoint *c, const vptq_ctx *ctx,
                                         const char *given_tokenizer, vptq_err *err)
{
    char path[4096];
    vptq_vocab vocab;
    const char *dir = origin_of(c)->path;
    const bool copied = is_dir(origin_of(c)) && !is_foreign(c, given_tokenizer) &&
                        !vptq_path_join(path, sizeof path, dir, "tokenizer.json", NULL) &&
                        vptq_path_exists(path);
    if (!c->tokenizer || copied)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_checkpoint_vocab(c, ctx, &vocab, err));
    vptq_vocab_release(&vocab);
    return VPTQ_OK;
}

vptq_status vptq_package_add_companions(vptq_package *o, const vptq_checkpoint *c,
                                        const char *given_tokenizer, const char *output,
                                        vptq_err *err)
{
    const vptq_checkpoint *origin = origin_of(c);
    const bool foreign = is_foreign(c, given_tokenizer);
    char folder[4096];
    if (is_dir(origin)) {
        for (size_t i = foreign ? TOKENIZER_FILES : 0; i < TOKENIZER_FILES; i++)
            VPTQ_CHECK(add_from_dir(o, origin->path, tokenizer_files[i], err));
        VPTQ_CHECK(add_others(o, origin, err));
    }
    if (origin->kind == VPTQ_CKPT_ARCHIVE)
        VPTQ_CHECK(add_from_archive(o, origin->path, foreign, err));
    if (foreign && find_folder(c->tokenizer, folder))
        VPTQ_CHECK(add_from_dir(o, folder, TEMPLATE_FILE, err));
    if (vptq_package_has_file(o, "tokenizer.json") || !output)
        return VPTQ_OK;
    if (c->tokenizer)
        return add_converted_tokenizer(o, c, output, err);
    vptq_log(o->ctx, VPTQ_LOG_WARN, "%s has no tokenizer; the output will have none either",
             c->path);
    return VPTQ_OK;
}

/* ---- the chat template ---- */

static vptq_status template_of_dir(const vptq_ctx *ctx, const char *dir, vptq_arena *arena,
                                   const char **text, vptq_err *err)
{
    char path[4096], *data = NULL;
    size_t size = 0;
    if (!is_own(ctx, dir, TEMPLATE_FILE, path))
        return VPTQ_OK;
    VPTQ_CHECK(vptq_file_read(path, MAX_TEMPLATE, ctx->mem, &data, &size, err));
    *text = vptq_arena_strndup(arena, data, size, err);
    vptq_mem_free(ctx->mem, data);
    return *text ? VPTQ_OK : VPTQ_E_NOMEM;
}

static vptq_status template_of_archive(const vptq_ctx *ctx, const char *path, vptq_arena *arena,
                                       const char **text, vptq_err *err)
{
    vptq_archive *a = NULL;
    vptq_status st = vptq_archive_open(path, ctx->mem, &a, err);
    if (st)
        return st;
    const vptq_archive_entry *e = vptq_archive_find(a, TEMPLATE_FILE, false);
    if (!e)
        goto out;
    if (e->size > MAX_TEMPLATE)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_FORMAT,
                           "%s: file '" TEMPLATE_FILE "' has %llu bytes, expected at most %d",
                           path, (unsigned long long)e->size, (int)MAX_TEMPLATE));
    char *data = vptq_arena_alloc(arena, (size_t)e->size + 1, 1, err);
    if (!data)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(vptq_archive_load(a, e, ctx->threads, data, err));
    data[e->size] = '\0';
    *text = data;
out:
    vptq_archive_close(a);
    return st;
}

vptq_status vptq_package_chat_template(const vptq_ctx *ctx, const vptq_checkpoint *c,
                                       const char *given_tokenizer, vptq_arena *arena,
                                       const char **text, vptq_err *err)
{
    const vptq_checkpoint *origin = origin_of(c);
    char folder[4096];
    *text = NULL;
    if (is_foreign(c, given_tokenizer))
        return find_folder(c->tokenizer, folder)
                   ? template_of_dir(ctx, folder, arena, text, err)
                   : VPTQ_OK;
    if (is_dir(origin))
        return template_of_dir(ctx, origin->path, arena, text, err);
    if (origin->kind == VPTQ_CKPT_ARCHIVE)
        return template_of_archive(ctx, origin->path, arena, text, err);
    return VPTQ_OK;
}
