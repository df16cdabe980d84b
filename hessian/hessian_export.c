#include "hessian/hessian_import.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/torch_file.h"
#include "hessian/hessian_dir_names.h"

/* The fingerprint of a model that nobody named. */
static const char unknown_model[] = "0000000000000000";
static const char covariance_name[] = "covariance";

bool vptq_hessian_is_of(const char *hessians, const char *model)
{
    return strcmp(hessians, model) == 0 || strcmp(hessians, unknown_model) == 0;
}

static size_t triangle(size_t n)
{
    return n * (n + 1) / 2; /* n is below 2^32 */
}

static double between(const float *mean, size_t i, size_t j)
{
    return (double)mean[i] * (double)mean[j];
}

/* ---- import ---- */

/* What one file says. */
typedef struct source {
    uint32_t n;
    uint64_t tokens;
    float *covariance, *mean;
} source;

static vptq_status need_vector(const vptq_torch_file *t, const char *path, const char *name,
                               const vptq_tensor **out, vptq_err *err)
{
    const vptq_torch_item *item = vptq_torch_find(t, name);
    if (!item)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is missing", path, name);
    if (item->kind != VPTQ_TORCH_TENSOR || item->tensor.dims != 1 || !item->tensor.shape[0] ||
        !vptq_dtype_get(item->tensor.type)->is_float)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is no vector of real numbers", path,
                         name);
    *out = &item->tensor;
    return VPTQ_OK;
}

/* A whole number above 0, which may be written as a real one. */
static vptq_status need_count(const vptq_torch_file *t, const char *path, const char *name,
                              uint64_t *count, vptq_err *err)
{
    const vptq_torch_item *item = vptq_torch_find(t, name);
    if (!item)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is missing", path, name);
    double f = item->kind == VPTQ_TORCH_FLOAT ? item->f : 0;
    if (f >= 1 && f < 0x1p53 && f == floor(f))
        *count = (uint64_t)f;
    else if (item->kind == VPTQ_TORCH_INT && item->i > 0)
        *count = (uint64_t)item->i;
    else
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: key '%s' is no whole number above 0", path,
                         name);
    return VPTQ_OK;
}

static vptq_status read_source(const char *path, vptq_arena *arena, source *s, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_torch_file t;
    const vptq_tensor *flat = NULL, *mean = NULL;
    uint64_t n = 0;
    VPTQ_TRY(vptq_torch_read(path, arena->mem, &t, err));
    VPTQ_TRY(need_vector(&t, path, "flatH", &flat, err));
    VPTQ_TRY(need_vector(&t, path, "mu", &mean, err));
    VPTQ_TRY(need_count(&t, path, "n", &n, err));
    VPTQ_TRY(need_count(&t, path, "ct", &s->tokens, err));
    if (n > UINT32_MAX || mean->shape[0] != n || flat->shape[0] != triangle((size_t)n))
        VPTQ_TRY(vptq_fail(err, VPTQ_E_SHAPE,
                           "%s: n is %" PRIu64 ", mu has %" PRIu64 " and flatH %" PRIu64
                           " numbers, expected n and n (n + 1) / 2",
                           path, n, mean->shape[0], flat->shape[0]));
    s->n = (uint32_t)n;
    s->mean = vptq_arena_alloc(arena, s->n, sizeof *s->mean, err);
    s->covariance =
        s->mean ? vptq_arena_alloc(arena, triangle(s->n), sizeof *s->covariance, err) : NULL;
    if (!s->covariance)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(vptq_tensor_read(mean, 0, 1, s->mean, err));
    VPTQ_TRY(vptq_tensor_read(flat, 0, 1, s->covariance, err));
out:
    vptq_torch_release(&t);
    return st;
}

/* H from the covariance; *exact: the way back gives the covariance's bits. */
static vptq_status add_mean(const char *path, const source *s, float *lower, bool *exact,
                            vptq_err *err)
{
    *exact = true;
    for (size_t i = 0, at = 0; i < s->n; i++)
        for (size_t j = 0; j <= i; j++, at++) {
            double m = between(s->mean, i, j);
            lower[at] = (float)((double)s->covariance[at] + m);
            float back = (float)((double)lower[at] - m);
            if (!isfinite(lower[at]))
                return vptq_fail(err, VPTQ_E_NUMERIC,
                                 "%s: flatH or mu has a value that is not finite in row %zu, "
                                 "column %zu",
                                 path, i, j);
            *exact = *exact && memcmp(&back, &s->covariance[at], sizeof back) == 0;
        }
    return VPTQ_OK;
}

static vptq_status import_file(const vptq_ctx *ctx, const char *path, const char *to,
                               uint64_t *hash, uint64_t *tokens, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    source s = {0};
    bool exact;
    char count[24];
    vptq_arena_init(&arena, ctx->mem);
    VPTQ_TRY(read_source(path, &arena, &s, err));
    const size_t entries = triangle(s.n);
    float *lower = vptq_arena_alloc(&arena, entries, sizeof *lower, err);
    if (!lower)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(add_mean(path, &s, lower, &exact, err));
    const vptq_tensor tensors[] = {
        {.name = "hessian", .dims = 1, .shape = {entries}, .data = (const uint8_t *)lower},
        {.name = "mean", .dims = 1, .shape = {s.n}, .data = (const uint8_t *)s.mean},
        {.name = covariance_name,
         .dims = 1,
         .shape = {entries},
         .data = (const uint8_t *)s.covariance},
    };
    snprintf(count, sizeof count, "%" PRIu64, s.tokens);
    const vptq_metadata meta = {"tokens", count};
    VPTQ_TRY(vptq_safetensors_save(to, false, tensors, exact ? 2 : 3, &meta, 1, err));
    *hash = vptq_hash(&s.tokens, sizeof s.tokens, *hash);
    *hash = vptq_hash(s.mean, s.n * sizeof *s.mean, *hash);
    *hash = vptq_hash(s.covariance, entries * sizeof *s.covariance, *hash);
    if (s.tokens < *tokens)
        *tokens = s.tokens;
out:
    vptq_arena_release(&arena);
    return st;
}

/* "LAYER_INPUT.pt" */
static void file_name(char name[64], uint32_t layer, vptq_input input)
{
    snprintf(name, 64, "%" PRIu32 "_%s.pt", layer, vptq_input_name(input));
}

/* The layer of a file's name; false for other files. */
static bool layer_of(const char *name, uint32_t *layer)
{
    enum { MAX_DIGITS = 4 };
    char expected[64];
    uint32_t x = 0;
    for (int i = 0; name[i] >= '0' && name[i] <= '9'; i++) {
        if (i == MAX_DIGITS)
            return false;
        x = x * 10 + (uint32_t)(name[i] - '0');
    }
    *layer = x;
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
        file_name(expected, x, (vptq_input)i);
        if (strcmp(name, expected) == 0)
            return true;
    }
    return false;
}

static vptq_status find_layers(const vptq_ctx *ctx, const char *from, vptq_hessian_dir *h,
                               vptq_err *err)
{
    vptq_arena arena;
    char **names;
    size_t count = 0;
    vptq_arena_init(&arena, ctx->mem);
    vptq_status st = vptq_dir_list(from, &arena, &names, &count, err);
    h->first_layer = UINT32_MAX;
    for (size_t i = 0; !st && i < count; i++) {
        uint32_t layer;
        if (!layer_of(names[i], &layer))
            continue;
        h->first_layer = layer < h->first_layer ? layer : h->first_layer;
        h->last_layer = layer > h->last_layer ? layer : h->last_layer;
    }
    if (!st && h->first_layer == UINT32_MAX)
        st = vptq_fail(
            err, VPTQ_E_FORMAT,
            "'%s' has no files of Hessians (0_qkv.pt, 0_o.pt, 0_up.pt, 0_down.pt ..)", from);
    h->layers = h->last_layer + 1;
    vptq_arena_release(&arena);
    return st;
}

static vptq_status import_layers(const vptq_ctx *ctx, const char *from, const char *to,
                                 vptq_hessian_dir *h, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char name[64], path[4096], target[4096];
    uint64_t hash = 0;
    const uint64_t files = (uint64_t)(h->last_layer - h->first_layer + 1) * VPTQ_INPUT_COUNT;
    h->tokens = UINT64_MAX >> 1;
    for (uint64_t done = 0; done < files; done++) {
        uint32_t layer = h->first_layer + (uint32_t)(done / VPTQ_INPUT_COUNT);
        vptq_input input = (vptq_input)(done % VPTQ_INPUT_COUNT);
        VPTQ_TRY(vptq_check_cancel(ctx, err));
        file_name(name, layer, input);
        VPTQ_TRY(vptq_path_join(path, sizeof path, from, name, err));
        if (!vptq_path_exists(path))
            VPTQ_TRY(vptq_fail(err, VPTQ_E_FORMAT,
                               "'%s' has Hessians of layers %" PRIu32 "-%" PRIu32
                               ", but %s is missing",
                               from, h->first_layer, h->last_layer, name));
        VPTQ_TRY(vptq_hessian_dir_file(target, to, layer, vptq_input_name(input), err));
        VPTQ_TRY(import_file(ctx, path, target, &hash, &h->tokens, err));
        vptq_progress(ctx, "import", done + 1, files, NULL);
    }
    memcpy(h->model_fingerprint, unknown_model, sizeof unknown_model);
    snprintf(h->fingerprint, sizeof h->fingerprint, "%016" PRIx64, hash);
out:
    return st;
}

vptq_status vptq_hessian_import(const vptq_ctx *ctx, const char *from, const char *out_dir,
                                bool force, vptq_hessian_dir *made, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_dir_writer writer = {0};
    json_t *details = NULL;

    *made = (vptq_hessian_dir){0};
    VPTQ_TRY(find_layers(ctx, from, made, err));
    if (force)
        VPTQ_TRY(
            vptq_dir_check_own(out_dir, "hessian.json", "hessian directory", ctx->mem, err));
    VPTQ_TRY(vptq_dir_writer_open(out_dir, NULL, force, &writer, err));
    VPTQ_TRY(import_layers(ctx, from, writer.tmp, made, err));
    details = json_pack("{s:s}", "imported_from", "pytorch");
    if (!details)
        VPTQ_TRY(vptq_fail(err, VPTQ_E_NOMEM, "%s: out of memory", out_dir));
    VPTQ_TRY(vptq_hessian_dir_save(writer.tmp, made, details, err));
    VPTQ_TRY(vptq_dir_writer_commit(&writer, err));
out:
    json_decref(details);
    if (st)
        vptq_dir_writer_abort(&writer);
    return st;
}

/* ---- export ---- */

/* The covariance: as it was imported, or from H. */
static vptq_status lower_to_covariance(const vptq_hessian_file *h, float *covariance,
                                       vptq_err *err)
{
    const size_t entries = triangle(h->n);
    const vptq_tensor *kept = vptq_tensor_find(&h->set, covariance_name);
    if (kept) {
        vptq_status st = vptq_tensor_need(&h->set, covariance_name, 0, entries, &kept, err);
        return st ? st : vptq_tensor_read(kept, 0, 1, covariance, err);
    }
    for (size_t i = 0, at = 0; i < h->n; i++)
        for (size_t j = 0; j <= i; j++, at++)
            covariance[at] = (float)((double)h->lower[at] - between(h->mean, i, j));
    return VPTQ_OK;
}

static vptq_status export_file(const vptq_ctx *ctx, const vptq_hessian_file *h, const char *to,
                               vptq_err *err)
{
    const size_t entries = triangle(h->n);
    float *covariance = vptq_mem_alloc(ctx->mem, entries, sizeof *covariance, err);
    if (!covariance)
        return VPTQ_E_NOMEM;
    const vptq_torch_item items[] = {
        {.name = "flatH",
         .kind = VPTQ_TORCH_TENSOR,
         .tensor = {.dims = 1, .shape = {entries}, .data = (const uint8_t *)covariance}},
        {.name = "mu",
         .kind = VPTQ_TORCH_TENSOR,
         .tensor = {.dims = 1, .shape = {h->n}, .data = (const uint8_t *)h->mean}},
        {.name = "n", .kind = VPTQ_TORCH_INT, .i = h->n},
        {.name = "ct", .kind = VPTQ_TORCH_INT, .i = (int64_t)h->tokens},
    };
    vptq_status st = lower_to_covariance(h, covariance, err);
    if (!st)
        st = vptq_torch_write(to, false, items, sizeof items / sizeof items[0], ctx->mem, err);
    vptq_mem_free(ctx->mem, covariance);
    return st;
}

static vptq_status export_layers(const vptq_ctx *ctx, const char *dir, const char *to,
                                 const vptq_hessian_dir *d, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char name[64], target[4096];
    const uint64_t files = (uint64_t)(d->last_layer - d->first_layer + 1) * VPTQ_INPUT_COUNT;
    for (uint64_t done = 0; !st && done < files; done++) {
        uint32_t layer = d->first_layer + (uint32_t)(done / VPTQ_INPUT_COUNT);
        vptq_input input = (vptq_input)(done % VPTQ_INPUT_COUNT);
        vptq_hessian_file h;
        VPTQ_TRY(vptq_check_cancel(ctx, err));
        file_name(name, layer, input);
        VPTQ_TRY(vptq_path_join(target, sizeof target, to, name, err));
        VPTQ_TRY(vptq_hessian_dir_load(dir, layer, input, 0, ctx->mem, &h, err));
        st = export_file(ctx, &h, target, err);
        vptq_hessian_file_release(&h);
        vptq_progress(ctx, "export", done + 1, files, NULL);
    }
out:
    return st;
}

vptq_status vptq_hessian_export(const vptq_ctx *ctx, const char *dir, const char *out_dir,
                                vptq_hessian_dir *read, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_dir_writer writer = {0};

    VPTQ_TRY(vptq_hessian_dir_open(dir, read, err));
    VPTQ_TRY(vptq_dir_writer_open(out_dir, NULL, false, &writer, err));
    VPTQ_TRY(export_layers(ctx, dir, writer.tmp, read, err));
    VPTQ_TRY(vptq_dir_writer_commit(&writer, err));
out:
    if (st)
        vptq_dir_writer_abort(&writer);
    return st;
}
