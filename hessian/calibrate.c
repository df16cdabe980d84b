/* Runs all windows through the blocks of a model: plan, start, one stream, checkpoint. */
#include "hessian/calibrate_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/comm.h"
#include "lib/base/file.h"
#include "lib/base/text.h"
#include "lib/model/backward.h"

/* ---- plan ---- */

static vptq_status split_windows(vptq_calibrator *c, size_t count, vptq_err *err)
{
    const double share = c->opt.holdout;
    if (!(share >= 0 && share < 1))
        return vptq_fail(
            err, VPTQ_E_ARG,
            "cannot hold out a share of %g of the windows, expected at least 0 and "
            "less than 1",
            share);
    if (share > 0 && count < 2)
        return vptq_fail(err, VPTQ_E_ARG,
                         "cannot hold out a window when there is only one; use more text or a "
                         "shorter window");
    /* the small difference makes 0.1 of 30 exactly 3 */
    size_t held = share > 0 ? (size_t)ceil(share * (double)count - 1e-9) : 0;
    if (held >= count)
        held = count - 1;
    if (share > 0 && held < 1)
        held = 1;
    c->windows[VPTQ_PART_MAIN] = count - held;
    c->windows[VPTQ_PART_HELD_OUT] = held;
    return VPTQ_OK;
}

static void fingerprint_part(vptq_calibrator *c, vptq_part part, size_t first)
{
    uint64_t h = vptq_hash(c->model_fingerprint, 16, 0);
    if (!c->windows[part])
        return;
    for (size_t w = first; w < first + c->windows[part]; w++)
        h = vptq_hash(c->corpus.ids.data + c->window[w], c->opt.length * sizeof(int32_t), h);
    h = vptq_hash(&c->opt.length, sizeof c->opt.length, h);
    if (c->opt.weights) {
        const char *name = vptq_token_weights_name(c->opt.weights);
        h = vptq_hash(name, strlen(name), h);
    }
    if (c->opt.weights == VPTQ_WEIGHTS_GUIDED) /* of the labels */
        h = vptq_hash(&c->opt.seed, sizeof c->opt.seed, h);
    snprintf(c->fingerprint[part], sizeof c->fingerprint[part], "%016" PRIx64, h);
}

vptq_status vptq_calibrator_sample(vptq_device *dev, const vptq_model *m,
                                   const vptq_calibrate_options *opt, vptq_calibrator *c,
                                   vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    size_t count;

    *c = (vptq_calibrator){
        .dev = dev, .model = m, .opt = *opt, .states = {.fd = -1}, .saliency = {.fd = -1}};
    vptq_arena_init(&c->arena, dev->ctx->mem);
    const size_t length = c->opt.length = vptq_model_window(m, opt->length);
    if (opt->outputs && length < 2) /* the first token of a window does not count */
        VPTQ_TRY(vptq_fail(err, VPTQ_E_ARG,
                           "output Hessians of windows of %zu token%s, expected at least 2",
                           length, vptq_plural(length, "", "s")));
    if (opt->outputs || opt->weights == VPTQ_WEIGHTS_GUIDED) /* else it fails late */
        VPTQ_TRY(vptq_backward_check(m, err));
    VPTQ_TRY(vptq_corpus_load(dev->ctx, &opt->corpus, m->tokenizer, m->desc->vocab, &c->corpus,
                              err));
    VPTQ_TRY(vptq_corpus_sample(&c->corpus, length, opt->windows, opt->seed, &c->arena,
                                &c->window, &count, err));
    VPTQ_TRY(split_windows(c, count, err));
    c->starts = vptq_arena_alloc(&c->arena, count + 1, sizeof *c->starts, err);
    c->sum = vptq_arena_zalloc(&c->arena, (size_t)vptq_input_count(&m->desc->experts),
                               sizeof *c->sum, err);
    if (!c->starts || !c->sum)
        VPTQ_TRY(VPTQ_E_NOMEM);
    for (size_t w = 0; w <= count; w++)
        c->starts[w] = w * length;
out:
    if (st)
        vptq_calibrator_release(c);
    return st;
}

void vptq_calibrator_log_windows(const vptq_calibrator *c)
{
    const size_t count = c->windows[VPTQ_PART_MAIN] + c->windows[VPTQ_PART_HELD_OUT];
    if (count < c->opt.windows)
        vptq_log(c->dev->ctx, VPTQ_LOG_INFO,
                 "the text has only %zu of the %zu windows of %zu tokens", count,
                 c->opt.windows, c->opt.length);
}

vptq_status vptq_calibrator_plan(vptq_device *dev, const vptq_model *m,
                                 const vptq_calibrate_options *opt, vptq_calibrator *c,
                                 vptq_err *err)
{
    VPTQ_CHECK(vptq_calibrator_sample(dev, m, opt, c, err));
    const vptq_status st =
        vptq_checkpoint_fingerprint(&m->ckpt, dev->ctx, c->model_fingerprint, err);
    if (st) {
        vptq_calibrator_release(c);
        return st;
    }
    memcpy(c->ids_fingerprint, c->corpus.fingerprint, sizeof c->ids_fingerprint);
    fingerprint_part(c, VPTQ_PART_MAIN, 0);
    fingerprint_part(c, VPTQ_PART_HELD_OUT, c->windows[VPTQ_PART_MAIN]);
    return VPTQ_OK;
}

void vptq_calibrator_stop(vptq_calibrator *c)
{
    vptq_hidden_states_close(&c->states);
    vptq_calibrator_close_second(c);
    vptq_forward_close(c->forward);
    c->forward = NULL;
    for (int i = 0; c->sum && i < vptq_input_count(&c->model->desc->experts); i++)
        vptq_hessian_sum_release(&c->sum[i]);
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        vptq_hessian_sum_release(&c->term[l]);
    vptq_hidden_states_close(&c->saliency);
    c->dev->ops->release(c->dev->state, c->mass);
    c->dev->ops->release(c->dev->state, c->weight);
    c->mass = NULL;
    c->weight = NULL;
}

void vptq_calibrator_release(vptq_calibrator *c)
{
    if (!c->dev)
        return;
    vptq_calibrator_stop(c);
    vptq_corpus_release(&c->corpus);
    vptq_arena_release(&c->arena);
    *c = (vptq_calibrator){.states = {.fd = -1}, .saliency = {.fd = -1}};
}

/* ---- start ---- */

static vptq_status embed_all(vptq_calibrator *c, vptq_hidden_states *s, vptq_err *err)
{
    float *rows;
    for (size_t w = 0; w < vptq_calibrator_own_windows(c); w++) {
        const int32_t *ids = c->corpus.ids.data + c->window[c->own_window[w]];
        VPTQ_CHECK(vptq_hidden_states_get(s, c->starts[w], c->opt.length, true, &rows, err));
        VPTQ_CHECK(vptq_forward_embed(c->forward, ids, c->opt.length, rows, err));
        VPTQ_CHECK(vptq_hidden_states_keep(s, c->starts[w], c->opt.length, err));
    }
    return VPTQ_OK;
}

/* A checkpoint covers both parts, and both streams if there are two. */
static void state_fingerprint(const vptq_calibrator *c, char out[17])
{
    uint64_t h = vptq_hash(c->fingerprint, sizeof c->fingerprint, 0);
    h = vptq_hash(&c->run, sizeof c->run, h);
    snprintf(out, 17, "%016" PRIx64, h);
}

static vptq_status load_states(vptq_calibrator *c, uint32_t wanted, vptq_err *err)
{
    char fingerprint[17];
    vptq_hidden_states *const streams[] = {&c->states, vptq_calibrator_second(c)};
    uint64_t position = UINT64_MAX;

    c->layer = 0;
    state_fingerprint(c, fingerprint);
    if (c->state_path[0])
        VPTQ_CHECK(vptq_hidden_states_load(streams, c->opt.sequential ? 2 : 1, c->state_path,
                                           fingerprint, wanted, &position, err));
    if (position <= wanted) {
        c->layer = (uint32_t)position;
        return VPTQ_OK;
    }
    if (c->state_path[0] && vptq_path_exists(c->state_path))
        vptq_log(
            c->dev->ctx, VPTQ_LOG_WARN,
            "%s belongs to another run or is damaged; running the blocks before layer %u again",
            c->state_path, wanted);
    for (int i = 0; i < (c->opt.sequential ? 2 : 1); i++)
        VPTQ_CHECK(embed_all(c, streams[i], err));
    return VPTQ_OK;
}

vptq_status vptq_calibrator_find(const vptq_calibrator *c, const char *dir, uint32_t wanted,
                                 uint32_t *layer, vptq_err *err)
{
    char path[4096], fingerprint[17];
    vptq_hidden_states shape = {.rows = c->starts[vptq_calibrator_windows(c)],
                                .dim = c->model->desc->hidden};
    vptq_hidden_states *const stream = &shape;
    uint64_t position;

    *layer = 0;
    if (vptq_comm_size(c->dev->ctx) > 1)
        return VPTQ_OK;
    state_fingerprint(c, fingerprint);
    VPTQ_CHECK(vptq_path_join(path, sizeof path, dir, VPTQ_HIDDEN_FILE, err));
    VPTQ_CHECK(vptq_hidden_states_find(&stream, 1, path, fingerprint, wanted, &position, err));
    if (position <= wanted)
        *layer = (uint32_t)position;
    return VPTQ_OK;
}

vptq_status vptq_calibrator_start(vptq_calibrator *c, const char *dir, uint32_t wanted,
                                  uint32_t last, vptq_err *err)
{
    const size_t all = vptq_calibrator_windows(c);
    const size_t count = all < VPTQ_CHUNK_WINDOWS ? all : (size_t)VPTQ_CHUNK_WINDOWS;

    c->last = last;
    c->group_rows = c->starts[vptq_forward_group(c->starts, count, 0)]; /* one window length */
    VPTQ_CHECK(vptq_calibrator_choose_own(c, err));
    if (dir && vptq_comm_size(c->dev->ctx) == 1)
        VPTQ_CHECK(
            vptq_path_join(c->state_path, sizeof c->state_path, dir, VPTQ_HIDDEN_FILE, err));
    VPTQ_CHECK(vptq_forward_open(c->model, c->dev, c->opt.length, &c->forward, err));
    VPTQ_CHECK(vptq_forward_reserve(c->forward, c->group_rows, err));
    for (int i = 0; i < vptq_input_count(&c->model->desc->experts); i++)
        if (vptq_input_occurs(c->model->desc, i))
            VPTQ_CHECK(vptq_hessian_sum_init(c->dev, vptq_input_size(c->model->desc, i),
                                             &c->sum[i], err));
    if (c->opt.weights)
        VPTQ_CHECK(vptq_calibrator_open_terms(c, dir, err));
    if (c->opt.sequential)
        VPTQ_CHECK(vptq_calibrator_open_second(c, dir, err));
    VPTQ_CHECK(vptq_calibrator_open_stream(c, dir, 1, &c->states, err));
    VPTQ_CHECK(load_states(c, wanted, err));
    c->state_time = vptq_seconds();
    return VPTQ_OK;
}

/* ---- running ---- */

/* The last input of the block that every token passes. */
static vptq_input last_of_all(const vptq_calibrator *c)
{
    return vptq_layer_has_experts(&c->model->desc->experts, c->layer) ? VPTQ_INPUT_UP
                                                                      : VPTQ_INPUT_DOWN;
}

static vptq_status on_hook(void *arg, vptq_input input, size_t sequence, size_t tokens,
                           size_t dim, const float *x, vptq_err *err)
{
    vptq_calibrator *c = arg;
    char detail[64];
    const size_t done = c->first + sequence + 1, windows = vptq_calibrator_own_windows(c);

    (void)dim;
    VPTQ_CHECK(vptq_calibrator_add(c, input, tokens, x, err));
    for (int l = 0; c->opt.weights == VPTQ_WEIGHTS_GUIDED && l < VPTQ_LINEAR_DENSE; l++)
        if (vptq_linear_input((vptq_linear)l) == input)
            VPTQ_CHECK(vptq_calibrator_add_guided(c, (vptq_linear)l, done - 1, tokens, x, err));
    if (input != last_of_all(c))
        return VPTQ_OK;
    snprintf(detail, sizeof detail, "layer %u of 0-%u", c->layer, c->last);
    vptq_progress_share(c->dev->ctx, "hessian", vptq_plural(c->last + 1, "layer", "layers"),
                        c->layer + (done == windows), c->last + 1,
                        (c->layer + (double)done / (double)windows) / (c->last + 1.0), detail);
    return VPTQ_OK;
}

/* Runs a chunk; groups never span two, so that they are the same for any number of ranks. */
static vptq_status run_chunk(vptq_calibrator *c, size_t first, size_t count, bool sum,
                             vptq_err *err)
{
    vptq_block_hooks hooks = {.arg = c};
    float *rows;

    if (sum)
        hooks.hook = on_hook;
    if (sum && c->opt.weights == VPTQ_WEIGHTS_ATTENTION)
        hooks.attention = vptq_calibrator_attention;
    /* all windows have one length, so every group has the row offsets of the first */
    for (size_t w = 0, e; w < count; w = e) {
        e = vptq_forward_group(c->starts, count, w);
        const size_t row = c->starts[first + w], n = c->starts[e] - c->starts[w];
        c->first = first + w;
        VPTQ_CHECK(vptq_hidden_states_get(&c->states, row, n, false, &rows, err));
        VPTQ_CHECK(
            vptq_forward_block_with(c->forward, c->layer, c->starts, e - w, rows, &hooks, err));
        VPTQ_CHECK(vptq_hidden_states_keep(&c->states, row, n, err));
    }
    return VPTQ_OK;
}

static vptq_status run_part(vptq_calibrator *c, vptq_part part, bool sum, vptq_err *err)
{
    const size_t rounds = vptq_calibrator_rounds(c, part);
    const vptq_experts *x = &c->model->desc->experts;
    const int inputs = vptq_input_count(x);

    for (int i = 0; sum && i < inputs; i++)
        if (vptq_input_exists(x, c->layer, i))
            VPTQ_CHECK(vptq_calibrator_begin(c, i, part, err));
    for (size_t k = 0; k < rounds; k++) {
        const vptq_calibrator_round r = vptq_calibrator_round_at(c, part, k);
        VPTQ_CHECK(run_chunk(c, r.first, r.count, sum, err));
        for (int i = 0; sum && i < inputs; i++)
            if (vptq_input_exists(x, c->layer, i))
                VPTQ_CHECK(vptq_calibrator_share(c, i, r.parts, err));
    }
    for (int i = 0; sum && i < inputs; i++)
        if (vptq_input_exists(x, c->layer, i))
            VPTQ_CHECK(vptq_calibrator_end(c, i, part, err));
    return VPTQ_OK;
}

vptq_status vptq_calibrator_run(vptq_calibrator *c, vptq_calibrator_fn fn, void *arg,
                                vptq_err *err)
{
    const int last_part = c->windows[VPTQ_PART_HELD_OUT] ? VPTQ_PART_HELD_OUT : VPTQ_PART_MAIN;

    VPTQ_BUG_IF(c->opt.sequential);
    for (int part = 0; part < VPTQ_PART_COUNT; part++) {
        if (!c->windows[part])
            continue;
        vptq_forward_hold(c->forward, true); /* for all chunks and the other part */
        VPTQ_CHECK(run_part(c, (vptq_part)part, fn != NULL, err));
        if (part == last_part && c->layer < c->last)
            VPTQ_CHECK(vptq_forward_ahead(c->forward, c->layer + 1, c->reserve, err));
        if (fn)
            VPTQ_CHECK(fn(arg, c, (vptq_part)part, err));
    }
    vptq_forward_hold(c->forward, false);
    c->layer++;
    return VPTQ_OK;
}

/* ---- checkpoint ---- */

void vptq_calibrator_checkpoint(vptq_calibrator *c)
{
    vptq_err why = {0};
    char fingerprint[17];
    vptq_hidden_states *const streams[] = {&c->states, vptq_calibrator_second(c)};

    /* the clock decides only whether a checkpoint is written, never a result */
    if (!c->state_path[0] || vptq_seconds() - c->state_time < c->opt.checkpoint_seconds)
        return;
    state_fingerprint(c, fingerprint);
    if (vptq_hidden_states_save(streams, c->opt.sequential ? 2 : 1, c->state_path, fingerprint,
                                c->layer, &why))
        vptq_log(c->dev->ctx, VPTQ_LOG_WARN, "no checkpoint of the hidden states: %s",
                 why.text);
    c->state_time = vptq_seconds();
}

/* Most of them are usually missing. */
static void remove_files(const char *dir, const char *const *names, size_t count)
{
    char path[4096];
    for (size_t i = 0; i < count; i++)
        if (vptq_path_join(path, sizeof path, dir, names[i], NULL) ||
            vptq_file_remove(path, NULL))
            return;
}

void vptq_calibrator_forget_states(const char *dir)
{
    static const char *const names[] = {VPTQ_HIDDEN_FILE, VPTQ_SPILL_FILE};
    remove_files(dir, names, sizeof names / sizeof *names);
}

void vptq_calibrator_forget(const char *dir)
{
    static const char *const saliency = VPTQ_SALIENCY_FILE;
    vptq_calibrator_forget_states(dir);
    remove_files(dir, &saliency, 1);
}
