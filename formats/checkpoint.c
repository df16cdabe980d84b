/* An open checkpoint: look-ups, faults, its tokenizer and the text files that belong to it. */
#include "formats/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "formats/checkpoint_internal.h"
#include "lib/base/text.h"

const char *vptq_checkpoint_kind_name(vptq_checkpoint_kind kind)
{
    static const char *const names[] = {
        [VPTQ_CKPT_HF] = "Hugging Face directory", [VPTQ_CKPT_GGUF] = "GGUF file",
        [VPTQ_CKPT_LLAMA2C] = "llama2.c file",     [VPTQ_CKPT_PACKED] = "packed VPTQ directory",
        [VPTQ_CKPT_ARCHIVE] = ".vptq archive",     [VPTQ_CKPT_WORK] = "quantize work directory",
    };
    return names[kind];
}

/* ---- contents ---- */

vptq_status vptq_checkpoint_add_files(vptq_checkpoint *c, vptq_err *err)
{
    c->files = vptq_arena_zalloc(&c->arena, 1, sizeof *c->files, err);
    return c->files ? VPTQ_OK : VPTQ_E_NOMEM;
}

static void release_files(vptq_checkpoint_files *f)
{
    for (size_t i = 0; f && i < f->layer_count; i++)
        vptq_layer_file_release(&f->layers[i]);
    if (f)
        vptq_archive_close(f->archive);
}

void vptq_checkpoint_release(vptq_checkpoint *c)
{
    vptq_strmap_release(&c->quantized_by_name);
    vptq_tensor_set_release(&c->set);
    release_files(c->files);
    if (c->gguf)
        vptq_gguf_release(c->gguf);
    if (c->base)
        vptq_checkpoint_release(c->base);
    json_decref(c->config);
    vptq_arena_release(&c->arena);
    *c = (vptq_checkpoint){0};
}

void vptq_checkpoint_forget(const vptq_checkpoint *c)
{
    const vptq_checkpoint_files *f = c->files;
    vptq_tensor_set_forget(&c->set);
    for (size_t i = 0; f && i < f->layer_count; i++)
        vptq_tensor_set_forget(&f->layers[i].set);
    if (c->base)
        vptq_checkpoint_forget(c->base);
}

const vptq_layer_file *vptq_checkpoint_layer(const vptq_checkpoint *c, size_t i)
{
    const vptq_checkpoint_files *f = c->files;
    for (size_t k = 0; c->kind == VPTQ_CKPT_WORK && k < f->layer_count; k++)
        if (f->layers[k].matrix.name == c->quantized[i].name) /* copies share the name */
            return &f->layers[k];
    return NULL;
}

const vptq_packed_matrix *vptq_checkpoint_quantized(const vptq_checkpoint *c,
                                                    const char *module)
{
    uint32_t i;
    return vptq_strmap_get(&c->quantized_by_name, module, strlen(module), &i) ? &c->quantized[i]
                                                                              : NULL;
}

size_t vptq_checkpoint_uniform_count(const vptq_checkpoint *c)
{
    size_t count = 0;
    for (size_t i = 0; i < c->set.count; i++)
        count += c->set.tensors[i].uniform != NULL;
    return count;
}

size_t vptq_checkpoint_additive_count(const vptq_checkpoint *c)
{
    size_t count = 0;
    for (size_t i = 0; i < c->set.count; i++)
        count += c->set.tensors[i].additive != NULL;
    return count;
}

size_t vptq_checkpoint_dense_count(const vptq_checkpoint *c)
{
    size_t count = 0;
    for (size_t i = 0; i < c->set.count; i++)
        count += vptq_checkpoint_is_dense(c, &c->set.tensors[i]);
    return count;
}

/* Whether a tensor is the weight of a linear layer that a uniformly quantized model leaves
 * plain. */
static bool is_left_plain(const vptq_checkpoint *c, const vptq_tensor *t)
{
    vptq_linear l;
    return !t->uniform && vptq_checkpoint_is_uniform(c->config) &&
           vptq_linear_of_module(&c->desc, t->name, vptq_text_before(t->name, ".weight"), &l);
}

bool vptq_checkpoint_is_dense(const vptq_checkpoint *c, const vptq_tensor *t)
{
    const vptq_checkpoint_files *f = c->files;
    if (c->kind != VPTQ_CKPT_WORK)
        return is_left_plain(c, t);
    for (size_t i = 0; t->dims == 2 && i < f->layer_count; i++)
        if (f->layers[i].dense && f->layers[i].weight.name == t->name) /* copies share it */
            return true;
    return false;
}

bool vptq_checkpoint_declares_bias(const vptq_checkpoint *c, const char *module, vptq_linear l)
{
    const bool packed = c->kind == VPTQ_CKPT_PACKED || c->kind == VPTQ_CKPT_ARCHIVE;
    const json_t *flag =
        packed ? json_object_get(vptq_packed_entry(c->config, module), "bias") : NULL;
    return flag ? json_is_true(flag) : vptq_linear_has_bias(&c->desc, l);
}

size_t vptq_checkpoint_matrix_count(const vptq_checkpoint *c)
{
    return c->quantized_count + vptq_checkpoint_uniform_count(c) +
           vptq_checkpoint_additive_count(c) + vptq_checkpoint_dense_count(c);
}

size_t vptq_checkpoint_all_matrices(const vptq_checkpoint *c)
{
    return vptq_linear_total(&c->desc, 0, c->desc.layers - 1) - c->skipped;
}

vptq_status vptq_code_counts_check(const vptq_code_counts *n, bool dir, const char *path,
                                   vptq_err *err)
{
    if (n->vectors && n->uniform + n->additive)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: %zu %s quantized by method vptq and %zu by others: no "
                         "packed layout holds both",
                         path, n->vectors, vptq_plural(n->vectors, "matrix is", "matrices are"),
                         n->uniform + n->additive);
    if (n->uniform && n->additive)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: %zu %s uniform and %zu additive codes: no packed "
                         "layout holds both",
                         path, n->uniform,
                         vptq_plural(n->uniform, "matrix has", "matrices have"), n->additive);
    if (n->additive && dir)
        return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                         "%s: %zu %s additive codes, which no layout of directories "
                         "holds; write an archive (OUT.vptq or --to archive), or plain weights "
                         "(vptq-pack --unpack)",
                         path, n->additive,
                         vptq_plural(n->additive, "matrix has", "matrices have"));
    return VPTQ_OK;
}

/* ---- faults ---- */

bool vptq_checkpoint_is_fault(vptq_status st)
{
    return st && st != VPTQ_E_IO && st != VPTQ_E_NOMEM && st != VPTQ_E_DEVICE &&
           st != VPTQ_E_CANCELLED;
}

bool vptq_checkpoint_is_faulty(const vptq_checkpoint *c, const char *module)
{
    for (size_t i = 0; i < c->faulty_count; i++)
        if (!strcmp(c->faulty[i], module))
            return true;
    return false;
}

vptq_status vptq_checkpoint_report_fault(const vptq_checkpoint *c, vptq_status st,
                                         const vptq_err *err)
{
    if (!c->fault || !vptq_checkpoint_is_fault(st))
        return st;
    c->fault(c->fault_arg, err->text);
    return VPTQ_OK;
}

/* ---- text files ---- */

vptq_status vptq_checkpoint_archive_text(const vptq_checkpoint *c, const char *name,
                                         size_t limit, vptq_arena *arena, vptq_text *text,
                                         vptq_err *err)
{
    const vptq_checkpoint_files *f = c->files;
    const vptq_archive_entry *e = vptq_archive_find(f->archive, name, false);
    *text = (vptq_text){0};
    if (!e)
        return VPTQ_OK;
    if (e->size > limit)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: file '%s' has %" PRIu64 " bytes, expected at most %zu", c->path,
                         name, e->size, limit);
    char *data = vptq_arena_alloc(arena, (size_t)e->size + 1, 1, err);
    if (!data)
        return VPTQ_E_NOMEM;
    VPTQ_CHECK(vptq_archive_load(f->archive, e, f->threads, data, err));
    data[e->size] = '\0';
    *text = (vptq_text){data, (size_t)e->size};
    return VPTQ_OK;
}

static vptq_status file_text(const char *path, size_t limit, vptq_arena *arena, vptq_text *text,
                             vptq_err *err)
{
    char *data = NULL;
    size_t len = 0;
    if (!vptq_path_exists(path))
        return VPTQ_OK;
    VPTQ_CHECK(vptq_file_read(path, limit, arena->mem, &data, &len, err));
    *text = (vptq_text){vptq_arena_strndup(arena, data, len, err), len};
    vptq_mem_free(arena->mem, data);
    return text->data ? VPTQ_OK : VPTQ_E_NOMEM;
}

vptq_status vptq_checkpoint_companion(const vptq_checkpoint *c, const char *name,
                                      bool tokenizer, size_t limit, vptq_arena *arena,
                                      vptq_text *text, vptq_err *err)
{
    *text = (vptq_text){0};
    if (c->base && (!tokenizer || c->tokenizer == c->base->tokenizer))
        return vptq_checkpoint_companion(c->base, name, tokenizer, limit, arena, text, err);
    const char *origin = tokenizer ? c->tokenizer : c->path;
    if (!origin)
        return VPTQ_OK;
    if (c->kind == VPTQ_CKPT_ARCHIVE && origin == c->path)
        return vptq_checkpoint_archive_text(c, name, limit, arena, text, err);
    char path[4096];
    const bool is_dir = vptq_path_is_dir(origin);
    /* next to a file only the tokenizer's companions are searched */
    if (!is_dir && (!tokenizer || origin == c->path))
        return VPTQ_OK;
    VPTQ_CHECK(is_dir ? vptq_path_join(path, sizeof path, origin, name, err)
                      : vptq_path_beside(path, sizeof path, origin, name, err));
    return file_text(path, limit, arena, text, err);
}

/* Whether an existing file of the model's directory is read with the model: of a work
 * directory, any file. */
static bool is_own_file(const vptq_checkpoint *c, const char *path)
{
    static const char *const endings[] = {".safetensors", ".json", ".model"};
    const char *name = vptq_path_base(path), *dot = strrchr(name, '.');
    if (!vptq_path_is_dir(c->path) || !vptq_path_exists(path) ||
        !vptq_path_lies_in(c->path, path))
        return false;
    if (c->kind == VPTQ_CKPT_WORK)
        return true;
    for (size_t i = 0; dot && i < sizeof endings / sizeof *endings; i++)
        if (!strcmp(dot, endings[i]))
            return true;
    return vptq_companion_ok(name);
}

vptq_status vptq_checkpoint_check_output(const vptq_checkpoint *c, const char *output,
                                         vptq_err *err)
{
    if (!c)
        return VPTQ_OK;
    VPTQ_CHECK(vptq_path_check_output(output, c->path, err));
    if (c->tokenizer)
        VPTQ_CHECK(vptq_path_check_output(output, c->tokenizer, err));
    if (is_own_file(c, output))
        return vptq_fail(err, VPTQ_E_ARG,
                         "the output '%s' is a file of the model '%s'; give another file",
                         output, c->path);
    return vptq_checkpoint_check_output(c->base, output, err);
}

/* ---- tokenizer ---- */

static vptq_status read_archive_vocab(const vptq_checkpoint *c, const vptq_ctx *ctx,
                                      vptq_vocab *v, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena scratch;
    vptq_text json, config;
    vptq_arena_init(&scratch, ctx->mem);
    VPTQ_TRY(vptq_checkpoint_archive_text(c, "tokenizer.json", VPTQ_TOKENIZER_LIMIT, &scratch,
                                          &json, err));
    VPTQ_TRY(vptq_checkpoint_archive_text(c, "tokenizer_config.json", VPTQ_TOKENIZER_LIMIT,
                                          &scratch, &config, err));
    st = vptq_vocab_parse_json(json.data, json.len, config.data, config.len, c->path, ctx->mem,
                               v, err);
out:
    vptq_arena_release(&scratch);
    return st;
}

vptq_status vptq_checkpoint_vocab(const vptq_checkpoint *c, const vptq_ctx *ctx, vptq_vocab *v,
                                  vptq_err *err)
{
    if (!c->tokenizer)
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "%s: the model has no tokenizer (neither tokenizer.json nor "
                         "tokenizer.model found); pass --tokenizer FILE",
                         c->path);
    bool inside = c->tokenizer == c->path;
    if (c->base && c->tokenizer == c->base->tokenizer)
        return vptq_checkpoint_vocab(c->base, ctx, v, err);
    if (c->kind == VPTQ_CKPT_GGUF && inside)
        return vptq_vocab_read_gguf(c->gguf, ctx->mem, v, err);
    if (c->kind == VPTQ_CKPT_ARCHIVE && inside)
        return read_archive_vocab(c, ctx, v, err);
    return vptq_vocab_read(c->tokenizer, c->desc.vocab, ctx->mem, v, err);
}
