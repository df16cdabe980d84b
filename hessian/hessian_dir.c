/* A Hessian directory as a whole: its hessian.json, exact merging, and --show. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "formats/json.h"
#include "hessian/hessian_collect.h"
#include "lib/base/file.h"

enum { DIR_FORMAT = 1, JSON_LIMIT = 1 << 20, MAX_LAYERS = 4096 };

static vptq_status get_hex(const json_t *doc, const char *path, const char *key, char out[17],
                           vptq_err *err)
{
    const char *s;
    vptq_status st = vptq_json_str_or(doc, path, key, NULL, &s, err);
    if (st)
        return st;
    if (strlen(s) != 16 || strspn(s, "0123456789abcdef") != 16)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is '%.40s', expected 16 hex digits",
                         path, key, s);
    memcpy(out, s, 17);
    return VPTQ_OK;
}

vptq_status vptq_hessian_dir_open(const char *dir, vptq_hessian_dir *h, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char path[4096];
    json_t *doc = NULL;
    uint64_t format, layers, first, last;

    *h = (vptq_hessian_dir){0};
    VPTQ_TRY(vptq_path_join(path, sizeof path, dir, "hessian.json", err));
    if (!vptq_path_exists(path)) {
        st = vptq_fail(err, VPTQ_E_IO,
                       "'%s' is not a hessian directory (it has no hessian.json)", dir);
        goto out;
    }
    VPTQ_TRY(vptq_json_load(path, JSON_LIMIT, &doc, err));
    VPTQ_TRY(vptq_json_u64(doc, path, "format", UINT32_MAX, &format, err));
    if (format != DIR_FORMAT) {
        st = vptq_fail(err, VPTQ_E_UNSUPPORTED, "%s: format %" PRIu64 " (this build reads %d)",
                       path, format, DIR_FORMAT);
        goto out;
    }
    VPTQ_TRY(get_hex(doc, path, "model_fingerprint", h->model_fingerprint, err));
    VPTQ_TRY(get_hex(doc, path, "fingerprint", h->fingerprint, err));
    VPTQ_TRY(vptq_json_u64(doc, path, "model_layers", MAX_LAYERS, &layers, err));
    VPTQ_TRY(vptq_json_u64(doc, path, "first_layer", MAX_LAYERS, &first, err));
    VPTQ_TRY(vptq_json_u64(doc, path, "last_layer", MAX_LAYERS, &last, err));
    VPTQ_TRY(vptq_json_u64(doc, path, "tokens", UINT64_MAX >> 1, &h->tokens, err));
    if (first > last || last >= layers) {
        st = vptq_fail(err, VPTQ_E_FORMAT,
                       "%s: layers %" PRIu64 "-%" PRIu64 " of a model of %" PRIu64 " layers",
                       path, first, last, layers);
        goto out;
    }
    h->layers = (uint32_t)layers;
    h->first_layer = (uint32_t)first;
    h->last_layer = (uint32_t)last;
out:
    json_decref(doc);
    return st;
}

vptq_status vptq_hessian_dir_path(char *path, size_t size, const char *dir, uint32_t layer,
                                  vptq_input input, vptq_err *err)
{
    char name[64];
    vptq_hessian_file_name(name, layer, vptq_input_name(input));
    return vptq_path_join(path, size, dir, name, err);
}

/* As vptq_hessian_dir_load, but with whatever numbers the file holds: --show counts NaN. */
static vptq_status load_raw(const char *dir, uint32_t layer, vptq_input input, uint32_t n,
                            vptq_mem *mem, vptq_hessian_file *h, vptq_err *err)
{
    char path[4096];
    vptq_status st = vptq_hessian_dir_path(path, sizeof path, dir, layer, input, err);
    if (st)
        return st;
    if (!vptq_path_exists(path))
        return vptq_fail(err, VPTQ_E_FORMAT,
                         "'%s' has no hessian of layer %u input %s (%s is missing; if its "
                         "collection was interrupted, run vptq-hessian again)",
                         dir, layer, vptq_input_name(input), vptq_path_base(path));
    return vptq_hessian_file_read(path, n, mem, h, err);
}

vptq_status vptq_hessian_dir_load(const char *dir, uint32_t layer, vptq_input input, uint32_t n,
                                  vptq_mem *mem, vptq_hessian_file *h, vptq_err *err)
{
    char path[4096];
    vptq_status st = load_raw(dir, layer, input, n, mem, h, err);
    if (st)
        return st;
    st = vptq_hessian_dir_path(path, sizeof path, dir, layer, input, err);
    if (!st)
        st = vptq_hessian_file_check_finite(h, path, err);
    if (st)
        vptq_hessian_file_release(h);
    return st;
}

vptq_status vptq_hessian_show(vptq_device *dev, const char *dir, vptq_hessian_row_fn fn,
                              void *arg, vptq_err *err)
{
    vptq_hessian_dir h;
    vptq_status st = vptq_hessian_dir_open(dir, &h, err);

    for (uint32_t layer = h.first_layer; !st && layer <= h.last_layer; layer++)
        for (int i = 0; !st && i < VPTQ_INPUT_COUNT; i++) {
            vptq_hessian_file file;
            vptq_hessian_stats stats;
            st = vptq_check_cancel(dev->ctx, err);
            if (!st)
                st = load_raw(dir, layer, (vptq_input)i, 0, dev->ctx->mem, &file, err);
            if (st)
                break;
            st = vptq_hessian_describe(dev, &file, &stats, err);
            vptq_hessian_file_release(&file);
            if (!st)
                st = fn(arg, layer, vptq_input_name((vptq_input)i), &stats, err);
        }
    return st;
}

/* ---- merge ---- */

static vptq_status merge_one(const vptq_ctx *ctx, const char *const *dirs, size_t count,
                             uint32_t layer, vptq_input input, const char *out_dir,
                             vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    char path[4096];
    size_t loaded = 0;

    vptq_arena_init(&arena, ctx->mem);
    vptq_hessian_file *parts = vptq_arena_zalloc(&arena, count, sizeof *parts, err);
    if (!parts)
        return VPTQ_E_NOMEM;
    for (; loaded < count; loaded++) {
        uint32_t n = loaded ? parts[0].n : 0;
        VPTQ_TRY(vptq_hessian_dir_load(dirs[loaded], layer, input, n, ctx->mem, &parts[loaded],
                                       err));
    }
    size_t n = parts[0].n;
    float *lower = vptq_arena_alloc(&arena, n * (n + 1) / 2, sizeof *lower, err);
    float *mean = lower ? vptq_arena_alloc(&arena, n, sizeof *mean, err) : NULL;
    if (!mean) {
        st = VPTQ_E_NOMEM;
        goto out;
    }
    uint64_t tokens;
    VPTQ_TRY(vptq_hessian_pool(ctx->mem, parts, count, lower, mean, &tokens, err));
    VPTQ_TRY(vptq_hessian_dir_path(path, sizeof path, out_dir, layer, input, err));
    VPTQ_TRY(vptq_hessian_file_write(path, (uint32_t)n, tokens, lower, mean, err));
out:
    while (loaded-- > 0)
        vptq_hessian_file_release(&parts[loaded]);
    vptq_arena_release(&arena);
    return st;
}

/* The first directory describes the model; the others must be of the same one and the same
 * layers. */
static vptq_status merge_check(const char *const *dirs, size_t count, vptq_hessian_dir *pooled,
                               vptq_err *err)
{
    uint64_t chain = 0;

    for (size_t g = 0; g < count; g++) {
        vptq_hessian_dir h;
        vptq_status st = vptq_hessian_dir_open(dirs[g], &h, err);
        if (st)
            return st;
        chain = vptq_hash(h.fingerprint, 16, chain);
        if (!g) {
            *pooled = h;
            continue;
        }
        if (strcmp(h.model_fingerprint, pooled->model_fingerprint))
            return vptq_fail(
                err, VPTQ_E_MISMATCH,
                "'%s' and '%s' are hessians of different models (model_fingerprint "
                "%s and %s)",
                dirs[0], dirs[g], pooled->model_fingerprint, h.model_fingerprint);
        if (h.first_layer != pooled->first_layer || h.last_layer != pooled->last_layer)
            return vptq_fail(err, VPTQ_E_MISMATCH,
                             "'%s' holds layers %u-%u and '%s' layers %u-%u, expected the same",
                             dirs[0], pooled->first_layer, pooled->last_layer, dirs[g],
                             h.first_layer, h.last_layer);
        pooled->tokens += h.tokens;
    }
    snprintf(pooled->fingerprint, sizeof pooled->fingerprint, "%016" PRIx64, chain);
    return VPTQ_OK;
}

vptq_status vptq_hessian_dir_save(const char *dir, const vptq_hessian_dir *h, json_t *details,
                                  vptq_err *err)
{
    char path[4096];
    vptq_status st = vptq_path_join(path, sizeof path, dir, "hessian.json", err);
    if (st)
        return st;
    json_t *doc = json_pack("{s:i, s:s, s:s, s:i, s:i, s:i, s:I, s:O}", "format", DIR_FORMAT,
                            "fingerprint", h->fingerprint, "model_fingerprint",
                            h->model_fingerprint, "model_layers", (int)h->layers, "first_layer",
                            (int)h->first_layer, "last_layer", (int)h->last_layer, "tokens",
                            (json_int_t)h->tokens, "settings", details);
    if (!doc)
        return vptq_fail(err, VPTQ_E_NOMEM, "%s: out of memory", path);
    st = vptq_json_save(path, doc, err);
    json_decref(doc);
    return st;
}

vptq_status vptq_hessian_merge(const vptq_ctx *ctx, const char *const *dirs, size_t count,
                               const char *out_dir, bool force, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_dir_writer writer = {0};
    vptq_hessian_dir pooled;
    json_t *parts = NULL, *details = NULL;

    if (count < 2)
        return vptq_fail(err, VPTQ_E_ARG, "merging needs at least two hessian directories");
    VPTQ_TRY(merge_check(dirs, count, &pooled, err));
    VPTQ_TRY(vptq_dir_writer_open(out_dir, force, &writer, err));
    for (uint32_t layer = pooled.first_layer; layer <= pooled.last_layer; layer++)
        for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
            VPTQ_TRY(vptq_check_cancel(ctx, err));
            VPTQ_TRY(merge_one(ctx, dirs, count, layer, (vptq_input)i, writer.tmp, err));
            vptq_progress(
                ctx, "merge",
                (uint64_t)(layer - pooled.first_layer) * VPTQ_INPUT_COUNT + (unsigned)i + 1,
                (uint64_t)(pooled.last_layer - pooled.first_layer + 1) * VPTQ_INPUT_COUNT,
                NULL);
        }
    parts = json_array();
    for (size_t g = 0; parts && g < count; g++) {
        vptq_hessian_dir h;
        VPTQ_TRY(vptq_hessian_dir_open(dirs[g], &h, err));
        json_array_append_new(parts, json_string(h.fingerprint));
    }
    details = json_pack("{s:O?}", "merged_from", parts);
    if (!details) {
        st = vptq_fail(err, VPTQ_E_NOMEM, "%s: out of memory", out_dir);
        goto out;
    }
    VPTQ_TRY(vptq_hessian_dir_save(writer.tmp, &pooled, details, err));
    VPTQ_TRY(vptq_dir_writer_commit(&writer, err));
out:
    if (st)
        vptq_dir_writer_abort(&writer);
    json_decref(details);
    json_decref(parts);
    return st;
}
