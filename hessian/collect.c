/* Collection: a calibration that writes the sums of every block to files. */
#include "hessian/collect.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "hessian/dir.h"
#include "hessian/outputs.h"
#include "hessian/probe.h"
#include "lib/base/comm.h"
#include "lib/base/file.h"
#include "lib/base/text.h"

typedef struct collector {
    vptq_device *dev;
    const vptq_model *model;
    const vptq_collect_options *opt;
    const char *dir[VPTQ_PART_COUNT];
    char holdout[4096];
    vptq_hessian_dir meta[VPTQ_PART_COUNT];
    vptq_calibrator calibrator;
    bool has_fingerprints;      /* of model and text */
    bool *finished;             /* [last layer + 1]: all its files are there and whole */
    vptq_expert_counts experts; /* of the layers whose files are there */
} collector;

static bool has_part(const collector *c, int part)
{
    return c->calibrator.windows[part] > 0;
}

/* ---- the plan ---- */

static vptq_status plan(collector *c, vptq_err *err)
{
    const vptq_collect_options *o = c->opt;
    const vptq_model_desc *d = c->model->desc;
    const uint32_t last = o->last_layer == UINT32_MAX ? d->layers - 1 : o->last_layer;

    if (o->first_layer > last || last >= d->layers)
        return vptq_fail(err, VPTQ_E_ARG, "layers %u-%u of a model of %u layer%s (0-%u)",
                         o->first_layer, last, d->layers, vptq_plural(d->layers, "", "s"),
                         d->layers - 1);
    VPTQ_CHECK(vptq_term_check(o->calibrate.weights, o->factor, err));
    const vptq_status st =
        c->has_fingerprints
            ? vptq_calibrator_plan(c->dev, c->model, &o->calibrate, &c->calibrator, err)
            : vptq_calibrator_sample(c->dev, c->model, &o->calibrate, &c->calibrator, err);
    VPTQ_CHECK(st);
    vptq_calibrator_log_windows(&c->calibrator);
    c->finished = vptq_arena_zalloc(&c->calibrator.arena, last + 1, sizeof *c->finished, err);
    if (!c->finished)
        return VPTQ_E_NOMEM;
    for (int part = 0; part < VPTQ_PART_COUNT; part++) {
        c->meta[part] = (vptq_hessian_dir){.layers = d->layers,
                                           .first_layer = o->first_layer,
                                           .last_layer = last,
                                           .tokens = (uint64_t)c->calibrator.windows[part] *
                                                     c->calibrator.opt.length,
                                           .channel_ranges = true,
                                           .weights = o->calibrate.weights,
                                           .factor = o->factor,
                                           .experts = d->experts};
        memcpy(c->meta[part].model_fingerprint, c->calibrator.model_fingerprint, 17);
        memcpy(c->meta[part].fingerprint, c->calibrator.fingerprint[part], 17);
    }
    c->meta[VPTQ_PART_MAIN].held_out_tokens = c->meta[VPTQ_PART_HELD_OUT].tokens;
    c->meta[VPTQ_PART_MAIN].outputs = vptq_outputs_windows(&c->calibrator);
    return VPTQ_OK;
}

static vptq_status settings_json(const collector *c, int part, json_t **out, vptq_err *err)
{
    *out = json_pack("{s:s, s:s, s:I, s:I, s:I}", "tool", c->opt->tool_version,
                     "ids_fingerprint", c->calibrator.ids_fingerprint, "windows",
                     (json_int_t)c->calibrator.windows[part], "window_length",
                     (json_int_t)c->calibrator.opt.length, "seed",
                     (json_int_t)c->opt->calibrate.seed);
    const size_t outputs = c->meta[part].outputs;
    if (*out && outputs &&
        json_object_set_new(*out, "outputs", json_integer((json_int_t)outputs))) {
        json_decref(*out);
        *out = NULL;
    }
    return *out ? VPTQ_OK : vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
}

/* ---- the directories ---- */

/* The files of a layer: those of the inputs, then those of the terms that linear layers may
 * have. */
static int file_count(const collector *c)
{
    return vptq_input_count(&c->model->desc->experts) + VPTQ_LINEAR_DENSE;
}

/* The term in file i; negative for an input. */
static vptq_linear term_of(const collector *c, int i)
{
    return i - vptq_input_count(&c->model->desc->experts);
}

static bool is_term(const collector *c, int i)
{
    return term_of(c, i) >= 0;
}

/* Whether a layer has file i with these weights. */
static bool is_file(const collector *c, uint32_t layer, vptq_token_weights weights, int i)
{
    if (!is_term(c, i))
        return vptq_input_exists(&c->model->desc->experts, layer, i);
    return vptq_term_of(weights, term_of(c, i)) == term_of(c, i);
}

static vptq_short_name file_input(const collector *c, vptq_token_weights weights, int i)
{
    vptq_short_name name;
    if (!is_term(c, i))
        return vptq_input_name(i);
    snprintf(name.text, sizeof name.text, "%s", vptq_term_name(weights, term_of(c, i)));
    return name;
}

static uint32_t file_columns(const collector *c, int i)
{
    return vptq_input_size(c->model->desc,
                           is_term(c, i) ? vptq_linear_input(term_of(c, i)) : i);
}

/* Of any kind of weights. */
static vptq_status remove_hessians(const collector *c, const char *dir, vptq_err *err)
{
    char path[4096];

    for (uint32_t layer = 0; layer < c->model->desc->layers; layer++)
        for (int kind = 0; kind < VPTQ_WEIGHTS_COUNT; kind++)
            for (int i = 0; i < file_count(c); i++) {
                const vptq_token_weights w = (vptq_token_weights)kind;
                if (!is_file(c, layer, w, i))
                    continue;
                VPTQ_CHECK(
                    vptq_hessian_dir_file(path, dir, layer, file_input(c, w, i).text, err));
                VPTQ_CHECK(vptq_file_remove(path, err));
            }
    return VPTQ_OK;
}

static vptq_status outputs_path(const collector *c, char path[4096], vptq_err *err)
{
    return vptq_path_join(path, 4096, c->dir[VPTQ_PART_MAIN], VPTQ_OUTPUTS_FILE, err);
}

static vptq_status remove_holdout_meta(const collector *c, vptq_err *err)
{
    char path[4096];
    const char *dir = c->dir[VPTQ_PART_HELD_OUT];

    VPTQ_CHECK(vptq_path_join(path, sizeof path, dir, "hessian.json", err));
    VPTQ_CHECK(vptq_file_remove(path, err));
    (void)rmdir(dir); /* stays if it holds something else */
    return VPTQ_OK;
}

/* Removes everything that a collection writes, for both parts. */
static vptq_status remove_old(const collector *c, vptq_err *err)
{
    char path[4096];

    vptq_calibrator_forget(c->dir[VPTQ_PART_MAIN]);
    VPTQ_CHECK(outputs_path(c, path, err));
    VPTQ_CHECK(vptq_file_remove(path, err));
    VPTQ_CHECK(remove_hessians(c, c->dir[VPTQ_PART_MAIN], err));
    VPTQ_CHECK(remove_hessians(c, c->dir[VPTQ_PART_HELD_OUT], err));
    return remove_holdout_meta(c, err);
}

/* A directory that an older version began without channel ranges continues without them. */
static vptq_status compare_ranges(collector *c, int part, const vptq_hessian_dir *old,
                                  vptq_err *err)
{
    if (!old->channel_ranges && c->opt->force)
        return vptq_fail(err, VPTQ_E_MISMATCH, "'%s' has no channel ranges", c->dir[part]);
    if (!old->channel_ranges)
        vptq_log(c->dev->ctx, VPTQ_LOG_INFO,
                 "'%s' was begun without abs_mean, min and max of the inputs and continues "
                 "without them (--force starts again)",
                 c->dir[part]);
    c->meta[part].channel_ranges = old->channel_ranges;
    return VPTQ_OK;
}

/* *same: hessian.json has everything.  Output Hessians that are not wanted stay. */
static vptq_status compare_old(collector *c, bool *same, vptq_err *err)
{
    vptq_hessian_dir old;
    *same = true;
    for (int part = 0; part < VPTQ_PART_COUNT; part++) {
        if (!has_part(c, part))
            continue;
        VPTQ_CHECK(vptq_hessian_dir_open(c->dir[part], &old, err));
        VPTQ_CHECK(vptq_hessian_dir_compare(c->dir[part], &old, &c->meta[part], err));
        VPTQ_CHECK(compare_ranges(c, part, &old, err));
        if (!c->opt->calibrate.outputs)
            c->meta[part].outputs = old.outputs;
        *same =
            *same && old.factor == c->meta[part].factor && old.outputs == c->meta[part].outputs;
    }
    return VPTQ_OK;
}

/* Writes hessian.json of both parts, the main one last, because it marks the whole directory.
 */
static vptq_status save_meta(const collector *c, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    json_t *settings = NULL;
    for (int part = VPTQ_PART_COUNT; part-- > 0;) {
        if (!has_part(c, part))
            continue;
        VPTQ_TRY(vptq_dir_make(c->dir[part], err));
        VPTQ_TRY(settings_json(c, part, &settings, err));
        VPTQ_TRY(vptq_hessian_dir_save(c->dir[part], &c->meta[part], settings, err));
        json_decref(settings);
        settings = NULL;
    }
out:
    json_decref(settings);
    return st;
}

/* The collection that a directory holds: none, or a manifest without any files; that of another
 * run, which --force replaces; or that of this one, with the same hessian.json or one to write
 * again. */
typedef enum { FOUND_NONE, FOUND_OTHER, FOUND_OURS, FOUND_SAME } found;

static vptq_status has_manifest(const char *dir, bool *has, vptq_err *err)
{
    char path[4096];
    VPTQ_CHECK(vptq_path_join(path, sizeof path, dir, "hessian.json", err));
    *has = vptq_path_exists(path);
    return VPTQ_OK;
}

static vptq_status find_old(collector *c, found *what, vptq_err *err)
{
    vptq_err why = {0};
    bool has, same, unused;

    *what = FOUND_NONE;
    VPTQ_CHECK(has_manifest(c->dir[VPTQ_PART_MAIN], &has, err));
    VPTQ_CHECK(
        vptq_hessian_dir_find_unused(c->dir[VPTQ_PART_MAIN], c->dev->ctx->mem, &unused, err));
    if (!has || unused || !c->has_fingerprints)
        return VPTQ_OK;
    const vptq_status st = compare_old(c, &same, &why);
    if (st && !c->opt->force) {
        if (err)
            *err = why;
        return st;
    }
    *what = st ? FOUND_OTHER : same ? FOUND_SAME : FOUND_OURS;
    if (st)
        c->meta[VPTQ_PART_MAIN].outputs = vptq_outputs_windows(&c->calibrator);
    return VPTQ_OK;
}

/* Makes the directory one of this run. */
static vptq_status take_dir(const collector *c, found what, vptq_err *err)
{
    if (what == FOUND_SAME)
        return VPTQ_OK;
    if (what == FOUND_OTHER)
        VPTQ_CHECK(remove_old(c, err));
    /* a run killed early may have left it */
    if (what == FOUND_NONE && !has_part(c, VPTQ_PART_HELD_OUT))
        VPTQ_CHECK(remove_holdout_meta(c, err));
    return save_meta(c, err);
}

static vptq_token_weights kind_of(const collector *c, int i)
{
    return is_term(c, i) ? c->opt->calibrate.weights : VPTQ_WEIGHTS_PLAIN;
}

/* Whether file i holds channel ranges. */
static bool has_range(const collector *c, int part, int i)
{
    return !is_term(c, i) && c->meta[part].channel_ranges;
}

static bool is_expert(const collector *c, int i)
{
    return !is_term(c, i) && vptq_input_expert(i) >= 0;
}

static void count_tokens(collector *c, int part, int i, uint64_t tokens)
{
    if (part == VPTQ_PART_MAIN && !is_term(c, i))
        vptq_experts_count(&c->experts, c->model->desc, i, tokens);
}

/* Reads file i of a layer; *whole is false, with a log line, if it is damaged or of another
 * run.
 */
static vptq_status check_file(collector *c, int part, uint32_t layer, int i, bool *whole,
                              vptq_err *err)
{
    const uint32_t n = file_columns(c, i);
    const vptq_token_weights weights = c->opt->calibrate.weights;
    char path[4096];
    vptq_hessian_file h;
    vptq_err why = {0};

    VPTQ_CHECK(
        vptq_hessian_dir_file(path, c->dir[part], layer, file_input(c, weights, i).text, err));
    *whole = vptq_path_exists(path);
    if (!*whole)
        return VPTQ_OK;
    vptq_status st = vptq_hessian_file_read(path, n, c->dev->ctx->mem, &h, &why);
    if (!st) {
        const bool other = is_expert(c, i) ? h.tokens > c->meta[part].tokens
                                           : h.tokens != c->meta[part].tokens;
        if (h.kind != kind_of(c, i) || !h.lower || other ||
            (h.abs_mean != NULL) != has_range(c, part, i))
            st = vptq_fail(&why, VPTQ_E_MISMATCH, "%s: is a file of another collection", path);
        if (!st)
            count_tokens(c, part, i, h.tokens);
        vptq_hessian_file_release(&h);
    }
    if (st == VPTQ_E_IO || st == VPTQ_E_NOMEM) /* the file may be whole */
        return vptq_fail(err, st, "%s", why.text);
    *whole = !st;
    if (st)
        vptq_log(c->dev->ctx, VPTQ_LOG_WARN, "%s; layer %u is collected again", why.text,
                 layer);
    return VPTQ_OK;
}

static vptq_status check_layer(collector *c, uint32_t layer, bool *finished, vptq_err *err)
{
    const vptq_expert_counts before = c->experts;
    bool whole = true;

    for (int part = 0; part < VPTQ_PART_COUNT; part++)
        for (int i = 0; whole && has_part(c, part) && i < file_count(c); i++)
            if (is_file(c, layer, c->opt->calibrate.weights, i))
                VPTQ_CHECK(check_file(c, part, layer, i, &whole, err));
    *finished = whole;
    if (!whole)
        c->experts = before;
    return vptq_check_cancel(c->dev->ctx, err);
}

/* ---- running ---- */

static bool is_first(const collector *c)
{
    return vptq_comm_rank(c->dev->ctx) == 0;
}

static const vptq_hessian_sum *sum_of(const collector *c, int i)
{
    const vptq_calibrator *k = &c->calibrator;
    return is_term(c, i) ? &k->term[term_of(c, i)] : &k->sum[i];
}

/* Writes file i of the layer. */
static vptq_status write_sum(collector *c, vptq_part part, int i, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena arena;
    char path[4096];
    const vptq_calibrator *k = &c->calibrator;
    const bool term = is_term(c, i);
    const vptq_hessian_sum *s = sum_of(c, i);
    const vptq_short_name name = file_input(c, k->opt.weights, i);
    const char *input = name.text;

    vptq_arena_init(&arena, c->dev->ctx->mem);
    float *lower = vptq_arena_alloc(&arena, vptq_triangle(s->n), sizeof *lower, err);
    float *mean = lower ? vptq_arena_alloc(&arena, s->n, sizeof *mean, err) : NULL;
    float *range = mean ? vptq_arena_alloc(&arena, 3 * (size_t)s->n, sizeof *range, err) : NULL;
    if (!range)
        VPTQ_TRY(VPTQ_E_NOMEM);
    float *min = range + s->n, *max = min + s->n;
    VPTQ_TRY(vptq_calibrator_finish(s, k->layer, input, lower, mean, err));
    if (has_range(c, part, i))
        VPTQ_TRY(vptq_calibrator_range(s, k->layer, input, range, min, max, err));
    VPTQ_TRY(vptq_hessian_dir_file(path, c->dir[part], k->layer, input, err));
    const vptq_hessian_data data = {.n = s->n,
                                    .tokens =
                                        is_expert(c, i) ? s->tokens : c->meta[part].tokens,
                                    .values = lower,
                                    .mean = mean,
                                    .abs_mean = has_range(c, part, i) ? range : NULL,
                                    .min = min,
                                    .max = max,
                                    .kind = kind_of(c, i),
                                    .windows = term ? s->tokens : 0};
    VPTQ_TRY(vptq_hessian_file_write(path, &data, err));
out:
    vptq_arena_release(&arena);
    return st;
}

/* Every rank writes some of the files. */
static vptq_status write_part(void *arg, vptq_calibrator *k, vptq_part part, vptq_err *err)
{
    collector *c = arg;
    const int rank = vptq_comm_rank(k->dev->ctx), ranks = vptq_comm_size(k->dev->ctx);
    for (int i = 0; i < file_count(c); i++) {
        if (!is_file(c, k->layer, k->opt.weights, i))
            continue;
        if (i % ranks == rank)
            VPTQ_CHECK(write_sum(c, part, i, err));
        count_tokens(c, part, i, sum_of(c, i)->tokens);
    }
    return VPTQ_OK;
}

static vptq_status run_layers(collector *c, uint32_t wanted, vptq_collect_result *r,
                              vptq_err *err)
{
    vptq_calibrator *k = &c->calibrator;
    const vptq_hessian_dir *d = &c->meta[VPTQ_PART_MAIN];

    VPTQ_CHECK(vptq_calibrator_start(k, c->dir[VPTQ_PART_MAIN], wanted, d->last_layer, err));
    while (k->layer <= d->last_layer) {
        const bool finished = k->layer < d->first_layer || c->finished[k->layer];
        VPTQ_CHECK(vptq_calibrator_run(k, finished ? NULL : write_part, c, err));
        r->layers_done += !finished;
        if (k->layer <= d->last_layer)
            vptq_calibrator_checkpoint(k);
    }
    return VPTQ_OK;
}

/* Measures the output Hessians, after the Hessians are finished. */
static vptq_status run_outputs(collector *c, vptq_err *err)
{
    char path[4096];
    if (!c->opt->calibrate.outputs)
        return VPTQ_OK;
    vptq_calibrator_stop(&c->calibrator);
    VPTQ_CHECK(outputs_path(c, path, err));
    return vptq_outputs_collect(&c->calibrator, path, err);
}

static uint64_t file_bytes(uint64_t n, bool range)
{
    return (n * (n + 1) / 2 + (range ? 4 : 1) * n) * sizeof(float);
}

static uint64_t layer_bytes(const collector *c, uint32_t layer)
{
    uint64_t bytes = 0;
    for (int i = 0; i < file_count(c); i++)
        if (is_file(c, layer, c->opt->calibrate.weights, i))
            bytes += file_bytes(file_columns(c, i), has_range(c, VPTQ_PART_MAIN, i));
    return bytes * (has_part(c, VPTQ_PART_HELD_OUT) ? 2 : 1);
}

static uint64_t outputs_bytes(const collector *c)
{
    const vptq_model_desc *d = c->model->desc;
    return c->opt->calibrate.outputs ? d->layers * sizeof(float) * vptq_output_layer_entries(d)
                                     : 0;
}

static void fill_result(const collector *c, vptq_collect_result *r)
{
    const vptq_hessian_dir *d = &c->meta[VPTQ_PART_MAIN];
    r->windows = c->calibrator.windows[VPTQ_PART_MAIN];
    r->held_out = c->calibrator.windows[VPTQ_PART_HELD_OUT];
    r->length = c->calibrator.opt.length;
    r->tokens = d->tokens;
    for (uint32_t layer = d->first_layer; layer <= d->last_layer; layer++)
        r->bytes += layer_bytes(c, layer);
    r->bytes += outputs_bytes(c);
}

/* Fails unless the directories may be begun or continued.  A run that was killed early leaves
 * the held-out one, which is begun first, without the main manifest. */
static vptq_status check_own(const collector *c, vptq_err *err)
{
    vptq_mem *mem = c->dev->ctx->mem;
    bool unused;

    VPTQ_CHECK(
        vptq_hessian_dir_find_unused(c->dir[VPTQ_PART_MAIN], c->dev->ctx->mem, &unused, err));
    if (unused)
        return VPTQ_OK;
    for (int part = 0; part < VPTQ_PART_COUNT; part++)
        if (has_part(c, part))
            VPTQ_CHECK(vptq_dir_check_own(c->dir[part], "hessian.json", "a hessian directory",
                                          mem, err));
    return VPTQ_OK;
}

/* Rank 0: takes the directory, unless this is a dry run, and finds out what it has; *ours: it
 * was begun by this run. */
static vptq_status prepare(collector *c, vptq_lock *lock, bool *ours, vptq_err *err)
{
    const vptq_hessian_dir *d = &c->meta[VPTQ_PART_MAIN];
    found what;

    VPTQ_CHECK(check_own(c, err)); /* a work directory would take our files for its own */
    if (c->opt->dry_run) {
        VPTQ_CHECK(vptq_dir_check_fill(c->dir[VPTQ_PART_MAIN], err));
    } else {
        VPTQ_CHECK(vptq_dir_make(c->dir[VPTQ_PART_MAIN], err));
        VPTQ_CHECK(vptq_lock_take(c->dir[VPTQ_PART_MAIN], lock, err));
    }
    VPTQ_CHECK(find_old(c, &what, err));
    if (!c->opt->dry_run)
        VPTQ_CHECK(take_dir(c, what, err));
    *ours = what >= FOUND_OURS;
    for (uint32_t layer = d->first_layer; *ours && layer <= d->last_layer; layer++)
        VPTQ_CHECK(check_layer(c, layer, &c->finished[layer], err));
    return VPTQ_OK;
}

/* All ranks learn what rank 0 has prepared. */
static vptq_status share_state(collector *c, vptq_status st, vptq_err *err)
{
    const vptq_ctx *ctx = c->dev->ctx;
    const size_t layers = c->meta[VPTQ_PART_MAIN].last_layer + 1;
    VPTQ_CHECK(vptq_comm_agree(ctx, st, err));
    VPTQ_CHECK(vptq_comm_broadcast(ctx, 0, c->meta, sizeof c->meta, err));
    return vptq_comm_broadcast(ctx, 0, c->finished, layers * sizeof *c->finished, err);
}

/* Counts the finished layers; returns the first other one, UINT32_MAX if there is none. */
static uint32_t first_wanted(const collector *c, vptq_collect_result *r)
{
    const vptq_hessian_dir *d = &c->meta[VPTQ_PART_MAIN];
    uint32_t wanted = UINT32_MAX;

    for (uint32_t layer = d->last_layer + 1; layer-- > d->first_layer;) {
        r->layers_reused += c->finished[layer];
        wanted = c->finished[layer] ? wanted : layer;
    }
    return wanted;
}

static vptq_status run_missing(collector *c, vptq_collect_result *r, vptq_err *err)
{
    const uint32_t wanted = first_wanted(c, r);
    return wanted != UINT32_MAX ? run_layers(c, wanted, r, err) : VPTQ_OK;
}

static vptq_status collect(collector *c, vptq_lock *lock, vptq_collect_result *r, vptq_err *err)
{
    const vptq_ctx *ctx = c->dev->ctx;
    vptq_status st = VPTQ_OK;
    bool ours;

    if (is_first(c))
        st = prepare(c, lock, &ours, err);
    st = share_state(c, st, err);
    if (!st) /* others would write their files elsewhere */
        st = vptq_comm_see(ctx, c->dir[VPTQ_PART_MAIN], "", err);
    if (!st)
        st = run_missing(c, r, err);
    VPTQ_CHECK(vptq_comm_agree(ctx, st, err));
    if (is_first(c)) {
        vptq_calibrator_forget(c->dir[VPTQ_PART_MAIN]);
        vptq_experts_warn(&c->experts, ctx, "");
    }
    return vptq_comm_agree(ctx, run_outputs(c, err), err);
}

/* Estimates a run that starts with block `first`, as vptq_calibrator_start finds it. */
static vptq_status estimate_layers(const collector *c, uint32_t first, vptq_collect_result *r,
                                   vptq_err *err)
{
    const vptq_hessian_dir *d = &c->meta[VPTQ_PART_MAIN];
    uint32_t passed = 0;

    for (uint32_t layer = first; layer <= d->last_layer; layer++) {
        const bool passes = layer < d->first_layer || c->finished[layer];
        passed += passes;
        r->bytes_to_do += passes ? 0 : layer_bytes(c, layer);
    }
    r->layers_to_do = d->last_layer + 1 - first - passed;
    r->estimated_seconds = (double)NAN;
    if (c->opt->calibrate.weights == VPTQ_WEIGHTS_GUIDED)
        return VPTQ_OK;
    return vptq_calibrator_probe(&c->calibrator, r->layers_to_do, passed, &r->estimated_seconds,
                                 &r->memory_bytes, err);
}

/* Finds the block that a run starts with, and whether it measures output Hessians. */
static vptq_status find_rest(const collector *c, uint32_t wanted, uint32_t *first,
                             bool *measures, vptq_err *err)
{
    char path[4096];
    bool finished;

    if (wanted != UINT32_MAX)
        VPTQ_CHECK(
            vptq_calibrator_find(&c->calibrator, c->dir[VPTQ_PART_MAIN], wanted, first, err));
    if (!*measures)
        return VPTQ_OK;
    VPTQ_CHECK(outputs_path(c, path, err));
    VPTQ_CHECK(vptq_outputs_find(&c->calibrator, path, &finished, err));
    *measures = !finished;
    return VPTQ_OK;
}

/* Fails if this user may not create files in the directory. */
static vptq_status check_write(const collector *c, vptq_err *err)
{
    char path[4096];
    VPTQ_CHECK(vptq_path_join(path, sizeof path, c->dir[VPTQ_PART_MAIN], "hessian.json", err));
    return vptq_file_check_target(path, true, err);
}

/* A dry run: estimates what is left of a run in the directory, or all of it without one. */
static vptq_status estimate(collector *c, vptq_collect_result *r, vptq_err *err)
{
    const vptq_ctx *ctx = c->dev->ctx;
    uint32_t first = 0;
    bool ours = false;
    vptq_status st = VPTQ_OK;

    if (c->dir[VPTQ_PART_MAIN] && is_first(c))
        st = prepare(c, NULL, &ours, err);
    VPTQ_CHECK(share_state(c, st, err));
    const uint32_t wanted = first_wanted(c, r);
    r->outputs_to_do = c->opt->calibrate.outputs > 0;
    if (c->dir[VPTQ_PART_MAIN] && is_first(c) && wanted != UINT32_MAX)
        st = check_write(c, err);
    if (!st && ours)
        st = find_rest(c, wanted, &first, &r->outputs_to_do, err);
    VPTQ_CHECK(vptq_comm_agree(ctx, st, err));
    r->bytes_to_do = r->outputs_to_do ? outputs_bytes(c) : 0;
    return wanted == UINT32_MAX ? VPTQ_OK : estimate_layers(c, first, r, err);
}

/* Plans, and compares the plans of ranks.  A dry run needs fingerprints only to compare them
 * with those of a directory. */
static vptq_status plan_together(collector *c, vptq_err *err)
{
    char text[64];
    const char *dir = c->dir[VPTQ_PART_MAIN];
    vptq_status st = VPTQ_OK;

    c->has_fingerprints = !c->opt->dry_run;
    if (!c->has_fingerprints && dir && is_first(c))
        st = has_manifest(dir, &c->has_fingerprints, err);
    VPTQ_CHECK(vptq_comm_agree(c->dev->ctx, st, err));
    VPTQ_CHECK(vptq_comm_broadcast(c->dev->ctx, 0, &c->has_fingerprints,
                                   sizeof c->has_fingerprints, err));
    VPTQ_CHECK(vptq_comm_agree(c->dev->ctx, plan(c, err), err));
    snprintf(text, sizeof text, "%s %s", c->calibrator.fingerprint[VPTQ_PART_MAIN],
             c->calibrator.fingerprint[VPTQ_PART_HELD_OUT]);
    return vptq_comm_same(c->dev->ctx, "the fingerprint of model and text", text, err);
}

vptq_status vptq_hessian_collect(vptq_device *dev, const vptq_model *m,
                                 const vptq_collect_options *opt, const char *dir,
                                 vptq_collect_result *result, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_lock lock = {.fd = -1};
    collector c = {.dev = dev, .model = m, .opt = opt, .dir = {dir}};
    double start = vptq_seconds();

    *result = (vptq_collect_result){0};
    if (dir) {
        VPTQ_TRY(vptq_path_join(c.holdout, sizeof c.holdout, dir, VPTQ_HESSIAN_HOLDOUT, err));
        c.dir[VPTQ_PART_HELD_OUT] = c.holdout;
    }
    VPTQ_TRY(plan_together(&c, err));
    VPTQ_TRY(opt->dry_run ? estimate(&c, result, err) : collect(&c, &lock, result, err));
    fill_result(&c, result);
out:
    if (st == VPTQ_E_CANCELLED && !opt->dry_run && !c.finished)
        vptq_fail(err, st, "interrupted; run the same command to continue");
    else if (st == VPTQ_E_CANCELLED && !opt->dry_run)
        vptq_fail(err, st,
                  "interrupted; %u of %u layers finished, run the same command to continue",
                  result->layers_reused + result->layers_done,
                  c.meta[VPTQ_PART_MAIN].last_layer - c.meta[VPTQ_PART_MAIN].first_layer + 1);
    result->seconds = vptq_seconds() - start;
    vptq_lock_release(&lock);
    vptq_calibrator_release(&c.calibrator);
    return st;
}
