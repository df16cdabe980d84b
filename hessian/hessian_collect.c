/* Collection: all windows go through one block at a time, the four inputs of the block are
 * summed, its Hessians are written, and so on.  Only one block's weights and sums are in
 * memory; the hidden states of all windows stay there, and go into a checkpoint file now and
 * then. */
#include "hessian/hessian_collect.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/model/forward.h"

static const char STATE_FILE[] = "hidden.state";

typedef struct collector {
    vptq_device *dev;
    const vptq_model *model;
    const vptq_collect_options *opt;
    const char *dir;
    vptq_arena arena;
    vptq_hessian_dir meta;
    uint32_t first, last;
    size_t *window; /* [windows] first ids */
    size_t windows, length;
    size_t *starts; /* [windows + 1] rows of hidden */
    vptq_corpus corpus;
    vptq_forward *forward;
    float *hidden; /* [windows * length, hidden] */
    vptq_hessian_sum sum[VPTQ_INPUT_COUNT];
    uint32_t layer; /* being run */
    double state_time;
} collector;

static size_t hidden_count(const collector *c)
{
    return c->windows * c->length * c->model->desc->hidden;
}

/* ---- what the run is ---- */

static vptq_status plan(collector *c, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_collect_options *o = c->opt;
    const vptq_model_desc *d = c->model->desc;

    c->first = o->first_layer;
    c->last = o->last_layer == UINT32_MAX ? d->layers - 1 : o->last_layer;
    if (c->first > c->last || c->last >= d->layers)
        return vptq_fail(err, VPTQ_E_ARG, "layers %u-%u of a model of %u layers (0-%u)",
                         c->first, c->last, d->layers, d->layers - 1);
    c->length = o->length;
    VPTQ_TRY(vptq_corpus_load(c->dev->ctx, &o->corpus, c->model->tokenizer, d->vocab,
                              &c->corpus, err));
    VPTQ_TRY(vptq_corpus_sample(&c->corpus, o->length, o->windows, o->seed, &c->arena,
                                &c->window, &c->windows, err));
    if (c->windows < o->windows)
        vptq_log(c->dev->ctx, VPTQ_LOG_INFO,
                 "the text has %zu windows of %zu tokens (%zu were asked for)", c->windows,
                 o->length, o->windows);
    c->starts = vptq_arena_alloc(&c->arena, c->windows + 1, sizeof *c->starts, err);
    if (!c->starts)
        return VPTQ_E_NOMEM;
    for (size_t w = 0; w <= c->windows; w++)
        c->starts[w] = w * c->length;
    c->meta = (vptq_hessian_dir){.layers = d->layers,
                                 .first_layer = c->first,
                                 .last_layer = c->last,
                                 .tokens = (uint64_t)c->windows * c->length};
    VPTQ_TRY(vptq_checkpoint_fingerprint(&c->model->ckpt, c->dev->ctx,
                                         c->meta.model_fingerprint, err));
    uint64_t h = vptq_hash(c->meta.model_fingerprint, 16, 0);
    for (size_t w = 0; w < c->windows; w++)
        h = vptq_hash(c->corpus.ids.data + c->window[w], c->length * sizeof(int32_t), h);
    h = vptq_hash(&c->length, sizeof c->length, h);
    snprintf(c->meta.fingerprint, sizeof c->meta.fingerprint, "%016" PRIx64, h);
out:
    return st;
}

static vptq_status settings_json(const collector *c, json_t **out, vptq_err *err)
{
    *out =
        json_pack("{s:s, s:s, s:I, s:I, s:I}", "tool", c->opt->tool_version, "ids_fingerprint",
                  c->corpus.fingerprint, "windows", (json_int_t)c->windows, "window_length",
                  (json_int_t)c->length, "seed", (json_int_t)c->opt->seed);
    return *out ? VPTQ_OK : vptq_fail(err, VPTQ_E_NOMEM, "out of memory");
}

/* The keys of hessian.json that must be those of this run, in the order a user would look at
 * them. */
static vptq_status compare_dir(const collector *c, const vptq_hessian_dir *old, vptq_err *err)
{
    const struct {
        const char *key, *found, *expected;
    } text[] = {{"model_fingerprint", old->model_fingerprint, c->meta.model_fingerprint},
                {"fingerprint", old->fingerprint, c->meta.fingerprint}};

    for (size_t i = 0; i < sizeof text / sizeof text[0]; i++)
        if (strcmp(text[i].found, text[i].expected))
            return vptq_fail(
                err, VPTQ_E_MISMATCH,
                "'%s' holds hessians of another %s: key '%s' is %s, this run's is %s "
                "(--force starts again)",
                c->dir, i ? "text, seed or window length" : "model", text[i].key, text[i].found,
                text[i].expected);
    if (old->first_layer != c->first || old->last_layer != c->last)
        return vptq_fail(err, VPTQ_E_MISMATCH,
                         "'%s' is a collection of layers %u-%u, this run is of %u-%u (--force "
                         "starts again)",
                         c->dir, old->first_layer, old->last_layer, c->first, c->last);
    return VPTQ_OK;
}

static vptq_status layer_path(const collector *c, uint32_t layer, int input, char path[4096],
                              vptq_err *err)
{
    return vptq_hessian_dir_path(path, 4096, c->dir, layer, (vptq_input)input, err);
}

static vptq_status remove_old(const collector *c, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char path[4096];

    for (uint32_t layer = 0; layer < c->model->desc->layers; layer++)
        for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
            VPTQ_TRY(layer_path(c, layer, i, path, err));
            (void)unlink(path); /* most are not there */
        }
    VPTQ_TRY(vptq_path_join(path, sizeof path, c->dir, STATE_FILE, err));
    (void)unlink(path);
out:
    return st;
}

/* Continues a directory of this run, or begins one. */
static vptq_status open_dir(const collector *c, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char path[4096];
    json_t *settings = NULL;
    vptq_hessian_dir old;

    VPTQ_TRY(vptq_path_join(path, sizeof path, c->dir, "hessian.json", err));
    if (vptq_path_exists(path)) {
        vptq_err why = {0};
        st = vptq_hessian_dir_open(c->dir, &old, &why);
        if (!st)
            st = compare_dir(c, &old, &why);
        if (!st)
            return VPTQ_OK;
        if (!c->opt->force) {
            if (err)
                *err = why;
            return st;
        }
        VPTQ_TRY(remove_old(c, err));
    }
    VPTQ_TRY(settings_json(c, &settings, err));
    VPTQ_TRY(vptq_hessian_dir_save(c->dir, &c->meta, settings, err));
out:
    json_decref(settings);
    return st;
}

static vptq_status is_finished(const collector *c, uint32_t layer, bool *yes, vptq_err *err)
{
    char path[4096];
    *yes = true;
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
        vptq_status st = layer_path(c, layer, i, path, err);
        if (st)
            return st;
        *yes = *yes && vptq_path_exists(path);
    }
    return VPTQ_OK;
}

/* ---- the hidden states' checkpoint ---- */

typedef struct state_header {
    char magic[8];
    char fingerprint[16];
    uint64_t next_layer, values, checksum;
} state_header;

static vptq_status state_save(collector *c, uint32_t next_layer, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char path[4096];
    vptq_file_writer w = {.fd = -1};
    state_header h = {.magic = "VPTQHID", .next_layer = next_layer, .values = hidden_count(c)};

    /* no result depends on the time */
    if (vptq_seconds() - c->state_time < c->opt->checkpoint_seconds)
        return VPTQ_OK;
    memcpy(h.fingerprint, c->meta.fingerprint, sizeof h.fingerprint);
    h.checksum = vptq_hash(c->hidden, hidden_count(c) * sizeof *c->hidden, 0);
    VPTQ_TRY(vptq_path_join(path, sizeof path, c->dir, STATE_FILE, err));
    VPTQ_TRY(vptq_file_writer_open(path, true, &w, err));
    VPTQ_TRY(vptq_file_write(&w, &h, sizeof h, err));
    VPTQ_TRY(vptq_file_write(&w, c->hidden, hidden_count(c) * sizeof *c->hidden, err));
    VPTQ_TRY(vptq_file_writer_commit(&w, err));
    c->state_time = vptq_seconds();
out:
    vptq_file_writer_abort(&w);
    return st;
}

/* A checkpoint only saves time after an interruption: a disk too full for it does not stop the
 * run, whose Hessians may still fit. */
static void state_keep(collector *c, uint32_t next_layer)
{
    vptq_err why = {0};
    if (state_save(c, next_layer, &why))
        vptq_log(c->dev->ctx, VPTQ_LOG_WARN, "no checkpoint of the hidden states: %s",
                 why.text);
}

/* *next_layer = the first layer to run: the checkpoint's when there is a good one that is not
 * past `wanted`, else 0 with embedded tokens still to be made. */
static vptq_status state_load(collector *c, uint32_t wanted, uint32_t *next_layer,
                              vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    char path[4096];
    vptq_map map = {0};
    state_header h;
    size_t bytes = hidden_count(c) * sizeof *c->hidden;

    *next_layer = 0;
    VPTQ_TRY(vptq_path_join(path, sizeof path, c->dir, STATE_FILE, err));
    if (!vptq_path_exists(path))
        return VPTQ_OK;
    VPTQ_TRY(vptq_map_open(path, &map, err));
    if (map.size == sizeof h + bytes) {
        memcpy(&h, map.data, sizeof h);
        if (!memcmp(h.magic, "VPTQHID", sizeof h.magic) && h.values == hidden_count(c) &&
            !memcmp(h.fingerprint, c->meta.fingerprint, sizeof h.fingerprint) &&
            h.next_layer <= wanted && h.checksum == vptq_hash(map.data + sizeof h, bytes, 0)) {
            memcpy(c->hidden, map.data + sizeof h, bytes);
            *next_layer = (uint32_t)h.next_layer;
        }
    }
    if (!*next_layer)
        vptq_log(c->dev->ctx, VPTQ_LOG_WARN,
                 "%s cannot be used here; the blocks before layer %u are run again", path,
                 wanted);
out:
    vptq_map_release(&map);
    return st;
}

/* ---- running ---- */

static vptq_status on_tap(void *arg, vptq_input input, size_t sequence, size_t tokens,
                          size_t dim, const float *x, vptq_err *err)
{
    collector *c = arg;
    char detail[64];

    vptq_status st = vptq_hessian_sum_add(c->dev, &c->sum[input], tokens, x, dim, err);
    if (st || input != VPTQ_INPUT_DOWN)
        return st;
    snprintf(detail, sizeof detail, "layer %u of %u-%u", c->layer, c->first, c->last);
    vptq_progress(c->dev->ctx, "hessian", (uint64_t)c->layer * c->windows + sequence + 1,
                  (uint64_t)(c->last + 1) * c->windows, detail);
    return VPTQ_OK;
}

static vptq_status write_layer(collector *c, uint32_t layer, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena_mark mark = vptq_arena_get_mark(&c->arena);
    char path[4096];

    for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
        size_t n = c->sum[i].n;
        float *lower = vptq_arena_alloc(&c->arena, n * (n + 1) / 2, sizeof *lower, err);
        float *mean = lower ? vptq_arena_alloc(&c->arena, n, sizeof *mean, err) : NULL;
        if (!mean) {
            st = VPTQ_E_NOMEM;
            goto out;
        }
        VPTQ_TRY(vptq_hessian_sum_finish(&c->sum[i], lower, mean, err));
        for (size_t j = 0; j < n; j++)
            if (!isfinite(lower[j * (j + 1) / 2 + j])) {
                st = vptq_fail(err, VPTQ_E_NUMERIC,
                               "layer %u: the input of %s has a value that is not finite in "
                               "column %zu (the model overflows on this text)",
                               layer, vptq_input_name((vptq_input)i), j);
                goto out;
            }
        VPTQ_TRY(layer_path(c, layer, i, path, err));
        VPTQ_TRY(
            vptq_hessian_file_write(path, (uint32_t)n, c->sum[i].tokens, lower, mean, err));
        vptq_arena_rewind(&c->arena, mark);
    }
out:
    vptq_arena_rewind(&c->arena, mark);
    return st;
}

static vptq_status embed_all(collector *c, vptq_err *err)
{
    for (size_t w = 0; w < c->windows; w++) {
        vptq_status st =
            vptq_forward_embed(c->forward, c->corpus.ids.data + c->window[w], c->length,
                               c->hidden + c->starts[w] * c->model->desc->hidden, err);
        if (st)
            return st;
    }
    return VPTQ_OK;
}

static vptq_status run_layers(collector *c, uint32_t wanted, vptq_collect_result *r,
                              vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    uint32_t layer;

    c->hidden = vptq_mem_alloc(c->dev->ctx->mem, hidden_count(c), sizeof *c->hidden, err);
    if (!c->hidden) {
        vptq_err_context(err, "hidden states of %zu windows (fewer windows need less)",
                         c->windows);
        return VPTQ_E_NOMEM;
    }
    VPTQ_TRY(vptq_forward_open(c->model, c->dev, c->length, &c->forward, err));
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++)
        VPTQ_TRY(vptq_hessian_sum_init(c->dev, vptq_input_size(c->model->desc, (vptq_input)i),
                                       &c->sum[i], err));
    VPTQ_TRY(state_load(c, wanted, &layer, err));
    if (!layer)
        VPTQ_TRY(embed_all(c, err));
    c->state_time = vptq_seconds();
    for (; layer <= c->last; layer++) {
        bool finished = layer < c->first;
        c->layer = layer;
        if (!finished)
            VPTQ_TRY(is_finished(c, layer, &finished, err));
        for (int i = 0; i < VPTQ_INPUT_COUNT; i++)
            vptq_hessian_sum_clear(&c->sum[i]);
        VPTQ_TRY(vptq_forward_block(c->forward, layer, c->starts, c->windows, c->hidden,
                                    finished ? NULL : on_tap, c, err));
        if (!finished) {
            VPTQ_TRY(write_layer(c, layer, err));
            r->layers_done++;
        }
        if (layer < c->last)
            state_keep(c, layer + 1);
    }
out:
    return st;
}

static void fill_result(const collector *c, vptq_collect_result *r)
{
    r->windows = c->windows;
    r->length = c->length;
    r->tokens = c->meta.tokens;
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
        uint64_t n = vptq_input_size(c->model->desc, (vptq_input)i);
        r->bytes += (n * (n + 1) / 2 + n) * sizeof(float) * (c->last - c->first + 1);
    }
}

static vptq_status collect_locked(collector *c, vptq_collect_result *r, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    uint32_t wanted = UINT32_MAX;
    char path[4096];

    VPTQ_TRY(open_dir(c, err));
    for (uint32_t layer = c->first; layer <= c->last; layer++) {
        bool finished;
        VPTQ_TRY(is_finished(c, layer, &finished, err));
        r->layers_reused += finished;
        if (!finished && wanted == UINT32_MAX)
            wanted = layer;
    }
    if (wanted != UINT32_MAX)
        VPTQ_TRY(run_layers(c, wanted, r, err));
    VPTQ_TRY(vptq_path_join(path, sizeof path, c->dir, STATE_FILE, err));
    (void)unlink(path); /* of a finished collection; usually not there */
out:
    return st;
}

vptq_status vptq_hessian_collect(vptq_device *dev, const vptq_model *m,
                                 const vptq_collect_options *opt, const char *dir,
                                 vptq_collect_result *result, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_lock lock = {.fd = -1};
    collector c = {.dev = dev, .model = m, .opt = opt, .dir = dir};
    double start = vptq_seconds();

    *result = (vptq_collect_result){0};
    vptq_arena_init(&c.arena, dev->ctx->mem);
    VPTQ_TRY(plan(&c, err));
    fill_result(&c, result);
    if (opt->dry_run)
        goto out;
    /* files of layers in a work directory would be taken for its own */
    VPTQ_TRY(vptq_dir_check_own(dir, "hessian.json", "hessian directory", dev->ctx->mem, err));
    VPTQ_TRY(vptq_dir_make(dir, err));
    VPTQ_TRY(vptq_lock_take(dir, &lock, err));
    VPTQ_TRY(collect_locked(&c, result, err));
out:
    result->seconds = vptq_seconds() - start;
    vptq_lock_release(&lock);
    vptq_forward_close(c.forward);
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++)
        vptq_hessian_sum_release(dev, &c.sum[i]);
    vptq_mem_free(dev->ctx->mem, c.hidden);
    vptq_corpus_release(&c.corpus);
    vptq_arena_release(&c.arena);
    return st;
}
