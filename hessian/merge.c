/* Pools Hessian directories exactly (vptq-hessian --merge). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "formats/json.h"
#include "hessian/dir.h"
#include "hessian/outputs.h"
#include "lib/base/file.h"
#include "lib/base/text.h"

/* One part of some directories, pooled into the directory `to`. */
typedef struct merger {
    const vptq_ctx *ctx;
    const char *const *dirs;
    size_t count;
    const char *to;
    vptq_hessian_dir pooled;
} merger;

/* Moves those of an expert that have no tokens to the end; *count = the others. */
static void drop_empty(vptq_hessian_file *parts, size_t *count)
{
    size_t kept = 0;
    for (size_t g = 0; g < *count; g++)
        if (parts[g].tokens) {
            const vptq_hessian_file part = parts[g];
            parts[g] = parts[kept]; /* released with the others */
            parts[kept++] = part;
        }
    *count = kept;
}

/* `input` of a layer; `kind` is that of the term. */
static vptq_status merge_one(const merger *m, uint32_t layer, const char *input,
                             vptq_token_weights kind, bool expert, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    char path[4096];
    size_t loaded = 0;

    vptq_arena_init(&arena, m->ctx->mem);
    vptq_hessian_file *parts = vptq_arena_zalloc(&arena, m->count, sizeof *parts, err);
    if (!parts)
        return VPTQ_E_NOMEM;
    for (; loaded < m->count; loaded++) {
        const vptq_hessian_entry e = {m->dirs[loaded], layer, input, kind};
        VPTQ_TRY(vptq_hessian_entry_load(&e, loaded ? parts[0].n : 0, m->ctx->mem,
                                         &parts[loaded], err));
    }
    size_t n = parts[0].n;
    float *lower = vptq_arena_alloc(&arena, vptq_triangle(n), sizeof *lower, err);
    float *mean = lower ? vptq_arena_alloc(&arena, n, sizeof *mean, err) : NULL;
    float *range = mean ? vptq_arena_alloc(&arena, 3 * n, sizeof *range, err) : NULL;
    if (!range)
        VPTQ_TRY(VPTQ_E_NOMEM);
    uint64_t tokens = 0, windows = 0;
    for (size_t g = 0; g < m->count; g++)
        windows += parts[g].windows;
    size_t count = m->count;
    if (expert)
        drop_empty(parts, &count);
    const bool has_range =
        count && vptq_hessian_pool_range(parts, count, range, range + n, range + 2 * n);
    if (count)
        VPTQ_TRY(vptq_hessian_pool(m->ctx->mem, parts, count, lower, mean, &tokens, err));
    VPTQ_TRY(vptq_hessian_dir_file(path, m->to, layer, input, err));
    vptq_hessian_data data = {.n = (uint32_t)n,
                              .tokens = tokens,
                              .values = lower,
                              .mean = mean,
                              .abs_mean = has_range ? range : NULL,
                              .min = range + n,
                              .max = range + 2 * n,
                              .kind = kind,
                              .windows = windows};
    if (!count) /* no directory has tokens of the expert */
        data = (vptq_hessian_data){.n = (uint32_t)n,
                                   .values = parts[0].lower,
                                   .mean = parts[0].mean,
                                   .abs_mean = parts[0].abs_mean,
                                   .min = parts[0].min,
                                   .max = parts[0].max};
    VPTQ_TRY(vptq_hessian_file_write(path, &data, err));
out:
    while (loaded-- > 0)
        vptq_hessian_file_release(&parts[loaded]);
    vptq_arena_release(&arena);
    return st;
}

/* Checks that all directories have the first one's model, layers and token weights, and all
 * files; m->pooled gets its factor and the sum of the tokens. */
static vptq_status merge_check(merger *m, vptq_err *err)
{
    const char *const *dirs = m->dirs;
    vptq_hessian_dir *pooled = &m->pooled;
    uint64_t chain = 0;

    for (size_t g = 0; g < m->count; g++) {
        vptq_hessian_dir h;
        VPTQ_CHECK(vptq_hessian_dir_open(dirs[g], &h, err));
        if (h.diagonal || !h.tokens)
            return vptq_fail(err, VPTQ_E_UNSUPPORTED, "'%s' %s, which cannot be pooled",
                             dirs[g],
                             h.diagonal ? "holds only the diagonals of Hessians"
                                        : "does not record its number of tokens");
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
        if (h.weights != pooled->weights)
            return vptq_fail(err, VPTQ_E_MISMATCH,
                             "'%s' and '%s' have different token weights (%s and %s)", dirs[0],
                             dirs[g], vptq_token_weights_name(pooled->weights),
                             vptq_token_weights_name(h.weights));
        if (h.tokens > INT64_MAX - pooled->tokens ||
            h.held_out_tokens > INT64_MAX - pooled->held_out_tokens)
            return vptq_fail(err, VPTQ_E_FORMAT,
                             "'%s' and those before it claim more than 2^63 tokens", dirs[g]);
        pooled->channel_ranges = pooled->channel_ranges && h.channel_ranges;
        pooled->tokens += h.tokens;
        pooled->held_out_tokens = pooled->held_out_tokens && h.held_out_tokens
                                      ? pooled->held_out_tokens + h.held_out_tokens
                                      : 0;
    }
    snprintf(pooled->fingerprint, sizeof pooled->fingerprint, "%016" PRIx64, chain);
    for (size_t g = 0; g < m->count; g++)
        VPTQ_CHECK(vptq_hessian_dir_check_files(dirs[g], pooled, err));
    return VPTQ_OK;
}

static vptq_status save_meta(const merger *m, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    json_t *parts = json_array(), *details = NULL;

    for (size_t g = 0; parts && g < m->count; g++) {
        vptq_hessian_dir h;
        VPTQ_TRY(vptq_hessian_dir_open(m->dirs[g], &h, err));
        json_array_append_new(parts, json_string(h.fingerprint));
    }
    details = json_pack("{s:O?}", "merged_from", parts);
    st = details ? vptq_hessian_dir_save(m->to, &m->pooled, details, err)
                 : vptq_fail(err, VPTQ_E_NOMEM, "%s: out of memory", m->to);
out:
    json_decref(details);
    json_decref(parts);
    return st;
}

static vptq_status merge_part(const merger *m, vptq_err *err)
{
    const uint32_t first = m->pooled.first_layer, last = m->pooled.last_layer;
    const vptq_token_weights kind = m->pooled.weights;
    const vptq_experts *x = &m->pooled.experts;
    const uint64_t inputs = (uint64_t)vptq_input_count(x), files = (last - first + 1) * inputs;

    for (uint32_t layer = first; layer <= last; layer++) {
        for (int i = 0; i < vptq_input_count(x); i++) {
            VPTQ_CHECK(vptq_check_cancel(m->ctx, err));
            if (vptq_input_exists(x, layer, i))
                VPTQ_CHECK(merge_one(m, layer, vptq_input_name(i).text, VPTQ_WEIGHTS_PLAIN,
                                     vptq_input_expert(i) >= 0, err));
            vptq_progress(m->ctx, "merge", vptq_plural(files, "file", "files"),
                          (layer - first) * inputs + (unsigned)i + 1, files, NULL);
        }
        for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
            if (vptq_term_of(kind, (vptq_linear)l) == (vptq_linear)l)
                VPTQ_CHECK(merge_one(m, layer, vptq_term_name(kind, (vptq_linear)l), kind,
                                     false, err));
    }
    return save_meta(m, err);
}

/* Makes the merger of the held-out parts, whose names are in `arena`. */
static vptq_status open_holdouts(const merger *whole, vptq_arena *arena, merger *held,
                                 vptq_err *err)
{
    const char **inner = vptq_arena_alloc(arena, whole->count, sizeof *inner, err);
    if (!inner)
        return VPTQ_E_NOMEM;
    for (size_t g = 0; g < whole->count; g++) {
        inner[g] = vptq_arena_printf(arena, err, "%s/" VPTQ_HESSIAN_HOLDOUT, whole->dirs[g]);
        if (!inner[g])
            return VPTQ_E_NOMEM;
    }
    *held = (merger){.ctx = whole->ctx, .dirs = inner, .count = whole->count};
    return merge_check(held, err);
}

/* Pools them into "holdout" in the directory of `whole`. */
static vptq_status merge_holdouts(const merger *whole, merger *held, vptq_err *err)
{
    char path[4096];
    VPTQ_CHECK(vptq_path_join(path, sizeof path, whole->to, VPTQ_HESSIAN_HOLDOUT, err));
    VPTQ_CHECK(vptq_dir_make(path, err));
    held->to = path;
    return merge_part(held, err);
}

/* Logs which output Hessians are left out. */
static vptq_status report_outputs(const merger *m, vptq_err *err)
{
    char path[4096];
    for (size_t g = 0; g < m->count; g++) {
        VPTQ_CHECK(vptq_path_join(path, sizeof path, m->dirs[g], VPTQ_OUTPUTS_FILE, err));
        if (vptq_path_exists(path))
            vptq_log(m->ctx, VPTQ_LOG_INFO, "%s: output Hessians are not merged", path);
    }
    return VPTQ_OK;
}

/* Checks all directories. */
static vptq_status begin(merger *m, vptq_arena *arena, merger *held, vptq_err *err)
{
    if (m->count < 2)
        return vptq_fail(err, VPTQ_E_ARG, "merging needs at least two hessian directories");
    VPTQ_CHECK(merge_check(m, err));
    if (m->pooled.held_out_tokens)
        VPTQ_CHECK(open_holdouts(m, arena, held, err));
    return report_outputs(m, err);
}

/* The result is as large as one of the directories; the memory is that of a pooled file, with
 * channel ranges. */
vptq_status vptq_hessian_merge_plan(const vptq_ctx *ctx, const char *const *dirs, size_t count,
                                    const char *out, bool force, vptq_hessian_plan *plan,
                                    vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    merger m = {.ctx = ctx, .dirs = dirs, .count = count}, held;

    *plan = (vptq_hessian_plan){0};
    vptq_arena_init(&arena, ctx->mem);
    VPTQ_TRY(begin(&m, &arena, &held, err));
    VPTQ_TRY(vptq_hessian_dir_writer_check(out, VPTQ_HESSIAN_HOLDOUT, force, ctx->mem, err));
    VPTQ_TRY(vptq_hessian_dir_measure(dirs[0], &m.pooled, plan, err));
    if (m.pooled.held_out_tokens)
        VPTQ_TRY(vptq_hessian_dir_measure(held.dirs[0], &held.pooled, plan, err));
    plan->memory = plan->largest + 3 * plan->columns * sizeof(float) +
                   (count + 1) * VPTQ_HESSIAN_OPEN_BYTES;
out:
    vptq_arena_release(&arena);
    return st;
}

vptq_status vptq_hessian_merge(const vptq_ctx *ctx, const char *const *dirs, size_t count,
                               const char *out_dir, bool force, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_dir_writer writer = {0};
    vptq_lock lock = {.fd = -1};
    vptq_arena arena;
    merger m = {.ctx = ctx, .dirs = dirs, .count = count, .to = writer.tmp}, held;

    vptq_arena_init(&arena, ctx->mem);
    VPTQ_TRY(begin(&m, &arena, &held, err));
    VPTQ_TRY(vptq_hessian_dir_writer_open(out_dir, VPTQ_HESSIAN_HOLDOUT, force, ctx->mem,
                                          &writer, &lock, err));
    VPTQ_TRY(merge_part(&m, err));
    if (m.pooled.held_out_tokens)
        VPTQ_TRY(merge_holdouts(&m, &held, err));
    VPTQ_TRY(vptq_dir_writer_commit(&writer, err));
out:
    if (st)
        vptq_dir_writer_abort(&writer);
    vptq_lock_release(&lock);
    vptq_arena_release(&arena);
    return st;
}
