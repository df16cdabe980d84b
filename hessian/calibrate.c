/* The walk of all windows through the blocks. */
#include "hessian/calibrate.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hessian/calibrate_sequential.h"
#include "lib/base/file.h"

static const char STATE_FILE[] = "hidden.state";

/* ---- weights ---- */

vptq_status vptq_token_weights_parse(const char *text, vptq_token_weights *weights,
                                     double *factor, vptq_err *err)
{
    /* What divergences on held-out text are least with (docs/encoder.md, section 5). */
    static const double fallback[VPTQ_WEIGHTS_COUNT] = {0, 0.1, 1};
    const size_t len = strcspn(text, ":");

    *weights = vptq_token_weights_find(text, len);
    if (*weights == VPTQ_WEIGHTS_COUNT || (*weights == VPTQ_WEIGHTS_PLAIN && text[len]))
        return vptq_fail(err, VPTQ_E_ARG,
                         "token weights are '%.40s', expected plain, sink[:factor] or "
                         "attention[:factor]",
                         text);
    *factor = fallback[*weights];
    if (!text[len])
        return VPTQ_OK;
    char *end = NULL;
    errno = 0;
    *factor = strtod(text + len + 1, &end);
    if (end == text + len + 1 || *end || errno || !(*factor >= 0) || isinf(*factor))
        return vptq_fail(err, VPTQ_E_ARG,
                         "the factor of token weights is '%.40s', expected a number from 0 on",
                         text + len + 1);
    return VPTQ_OK;
}

/* ---- plan ---- */

size_t vptq_calibrator_windows(const vptq_calibrator *c)
{
    return c->windows[VPTQ_PART_MAIN] + c->windows[VPTQ_PART_HELD_OUT];
}

static vptq_status split_windows(vptq_calibrator *c, size_t count, vptq_err *err)
{
    const double share = c->opt.holdout;
    if (!(share >= 0 && share < 1))
        return vptq_fail(err, VPTQ_E_ARG,
                         "a share of %g of the windows cannot be held out (0 to below 1)",
                         share);
    if (share > 0 && count < 2)
        return vptq_fail(err, VPTQ_E_ARG,
                         "nothing can be held out of one window (more text or a shorter window "
                         "is needed)");
    /* the small difference keeps 0.1 of 30 at 3 */
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
    snprintf(c->fingerprint[part], sizeof c->fingerprint[part], "%016" PRIx64, h);
}

vptq_status vptq_calibrator_plan(vptq_device *dev, const vptq_model *m,
                                 const vptq_calibrate_options *opt, vptq_calibrator *c,
                                 vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    size_t count;

    *c = (vptq_calibrator){.dev = dev, .model = m, .opt = *opt, .states = {.fd = -1}};
    vptq_arena_init(&c->arena, dev->ctx->mem);
    VPTQ_TRY(vptq_corpus_load(dev->ctx, &opt->corpus, m->tokenizer, m->desc->vocab, &c->corpus,
                              err));
    VPTQ_TRY(vptq_corpus_sample(&c->corpus, opt->length, opt->windows, opt->seed, &c->arena,
                                &c->window, &count, err));
    if (count < opt->windows)
        vptq_log(dev->ctx, VPTQ_LOG_INFO,
                 "the text has %zu windows of %zu tokens (%zu were asked for)", count,
                 opt->length, opt->windows);
    VPTQ_TRY(split_windows(c, count, err));
    c->starts = vptq_arena_alloc(&c->arena, count + 1, sizeof *c->starts, err);
    if (!c->starts)
        VPTQ_TRY(VPTQ_E_NOMEM);
    for (size_t w = 0; w <= count; w++)
        c->starts[w] = w * opt->length;
    VPTQ_TRY(vptq_checkpoint_fingerprint(&m->ckpt, dev->ctx, c->model_fingerprint, err));
    memcpy(c->ids_fingerprint, c->corpus.fingerprint, sizeof c->ids_fingerprint);
    fingerprint_part(c, VPTQ_PART_MAIN, 0);
    fingerprint_part(c, VPTQ_PART_HELD_OUT, c->windows[VPTQ_PART_MAIN]);
out:
    if (st)
        vptq_calibrator_release(c);
    return st;
}

static void release_device(vptq_calibrator *c, void *memory)
{
    if (memory)
        c->dev->ops->release(c->dev->state, memory);
}

void vptq_calibrator_release(vptq_calibrator *c)
{
    if (!c->dev)
        return;
    vptq_hidden_states_close(&c->states);
    vptq_calibrator_close_second(c);
    vptq_forward_close(c->forward);
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++)
        vptq_hessian_sum_release(c->dev, &c->sum[i]);
    vptq_hessian_sum_release(c->dev, &c->term);
    release_device(c, c->mass);
    release_device(c, c->weight);
    vptq_corpus_release(&c->corpus);
    vptq_arena_release(&c->arena);
    *c = (vptq_calibrator){.states = {.fd = -1}};
}

/* ---- start ---- */

static vptq_status embed_all(vptq_calibrator *c, vptq_hidden_states *s, vptq_err *err)
{
    float *rows;
    for (size_t w = 0; w < vptq_calibrator_windows(c); w++) {
        VPTQ_CHECK(vptq_hidden_states_get(s, c->starts[w], c->opt.length, true, &rows, err));
        VPTQ_CHECK(vptq_forward_embed(c->forward, c->corpus.ids.data + c->window[w],
                                      c->opt.length, rows, err));
        VPTQ_CHECK(vptq_hidden_states_keep(s, c->starts[w], c->opt.length, err));
    }
    return VPTQ_OK;
}

/* What the attention of one window is turned into weights with. */
static vptq_status open_weights(vptq_calibrator *c, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    void *p = NULL;
    const size_t n = c->opt.length;
    VPTQ_TRY(vptq_hessian_sum_init(c->dev, c->model->desc->hidden, &c->term, err));
    if (c->opt.weights != VPTQ_WEIGHTS_ATTENTION)
        goto out;
    VPTQ_TRY(c->dev->ops->alloc(c->dev->state, n, sizeof *c->mass, &p, err));
    c->mass = p;
    VPTQ_TRY(c->dev->ops->alloc(c->dev->state, n, sizeof *c->weight, &p, err));
    c->weight = p;
    c->host_mass = vptq_arena_alloc(&c->arena, n, sizeof *c->host_mass, err);
    c->host_weight =
        c->host_mass ? vptq_arena_alloc(&c->arena, n, sizeof *c->host_weight, err) : NULL;
    if (!c->host_weight)
        st = VPTQ_E_NOMEM;
out:
    return st;
}

/* The checkpoint is of both parts, and of both streams where there are two. */
static void state_fingerprint(const vptq_calibrator *c, char out[17])
{
    uint64_t h = vptq_hash(c->fingerprint, sizeof c->fingerprint, 0);
    h = vptq_hash(&c->run, sizeof c->run, h);
    snprintf(out, 17, "%016" PRIx64, h);
}

static vptq_status load_states(vptq_calibrator *c, uint32_t wanted, vptq_err *err)
{
    char fingerprint[17];
    vptq_hidden_states *const streams[] = {&c->states, vptq_calibrator_passed(c)};
    uint64_t position;
    bool found;

    c->layer = 0;
    state_fingerprint(c, fingerprint);
    VPTQ_CHECK(vptq_hidden_states_load(streams, c->opt.sequential ? 2 : 1, c->state_path,
                                       fingerprint, wanted, &found, &position, err));
    if (found)
        c->layer = (uint32_t)position;
    else if (vptq_path_exists(c->state_path))
        vptq_log(c->dev->ctx, VPTQ_LOG_WARN,
                 "%s cannot be used here; the blocks before layer %u are run again",
                 c->state_path, wanted);
    if (!found)
        VPTQ_CHECK(embed_all(c, &c->states, err));
    if (!found && c->opt.sequential)
        VPTQ_CHECK(embed_all(c, streams[1], err));
    return VPTQ_OK;
}

vptq_status vptq_calibrator_start(vptq_calibrator *c, const char *dir, uint32_t wanted,
                                  uint32_t last, vptq_err *err)
{
    const size_t count = vptq_calibrator_windows(c);

    c->last = last;
    c->most = c->starts[vptq_forward_group(c->starts, count, 0)]; /* windows are as long */
    VPTQ_CHECK(vptq_path_join(c->state_path, sizeof c->state_path, dir, STATE_FILE, err));
    VPTQ_CHECK(vptq_forward_open(c->model, c->dev, c->opt.length, &c->forward, err));
    VPTQ_CHECK(vptq_forward_reserve(c->forward, c->most, err));
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++)
        VPTQ_CHECK(vptq_hessian_sum_init(c->dev, vptq_input_size(c->model->desc, (vptq_input)i),
                                         &c->sum[i], err));
    if (c->opt.weights)
        VPTQ_CHECK(open_weights(c, err));
    VPTQ_CHECK(vptq_hidden_states_open(c->dev->ctx, dir, c->starts[count],
                                       c->model->desc->hidden, c->most, c->reserve, &c->states,
                                       err));
    if (c->opt.sequential)
        VPTQ_CHECK(vptq_calibrator_open_second(c, dir, err));
    VPTQ_CHECK(load_states(c, wanted, err));
    c->state_time = vptq_seconds();
    return VPTQ_OK;
}

/* ---- running ---- */

vptq_status vptq_calibrator_add(vptq_calibrator *c, vptq_input input, size_t tokens, size_t dim,
                                const float *x, vptq_err *err)
{
    vptq_status st = vptq_hessian_sum_add(c->dev, &c->sum[input], tokens, x, dim, err);
    if (!st && input == VPTQ_INPUT_QKV && c->opt.weights == VPTQ_WEIGHTS_SINK)
        st = vptq_hessian_sum_add_window(c->dev, &c->term, 1, x, dim, NULL, err);
    return st;
}

static vptq_status on_hook(void *arg, vptq_input input, size_t sequence, size_t tokens,
                           size_t dim, const float *x, vptq_err *err)
{
    vptq_calibrator *c = arg;
    char detail[64];
    size_t done = c->first + sequence + 1;

    vptq_status st = vptq_calibrator_add(c, input, tokens, dim, x, err);
    if (st || input != VPTQ_INPUT_DOWN)
        return st;
    snprintf(detail, sizeof detail, "layer %u of 0-%u", c->layer, c->last);
    vptq_progress(c->dev->ctx, "hessian",
                  (uint64_t)c->layer * vptq_calibrator_windows(c) + done,
                  (uint64_t)(c->last + 1) * vptq_calibrator_windows(c), detail);
    return VPTQ_OK;
}

/* T += sum_t a_t x_t x_t^T of one window. */
vptq_status vptq_calibrator_attention(void *arg, size_t sequence, size_t tokens, size_t dim,
                                      const float *x, const vptq_attention_args *a,
                                      vptq_err *err)
{
    vptq_calibrator *c = arg;
    const vptq_backend *ops = c->dev->ops;
    vptq_dev *dev = c->dev->state;
    const double pairs = (double)a->heads * (double)a->n;

    (void)sequence;
    memset(c->host_mass, 0, tokens * sizeof *c->host_mass);
    VPTQ_CHECK(ops->upload(dev, c->mass, c->host_mass, tokens * sizeof *c->mass, err));
    VPTQ_CHECK(ops->attention_mass(dev, a, c->mass, err));
    VPTQ_CHECK(ops->download(dev, c->host_mass, c->mass, tokens * sizeof *c->mass, err));
    for (size_t t = 0; t < tokens; t++)
        c->host_weight[t] = (float)(c->host_mass[t] / pairs);
    VPTQ_CHECK(ops->upload(dev, c->weight, c->host_weight, tokens * sizeof *c->weight, err));
    return vptq_hessian_sum_add_window(c->dev, &c->term, tokens, x, dim, c->weight, err);
}

static vptq_status run_part(vptq_calibrator *c, size_t first, size_t count, bool sum,
                            vptq_err *err)
{
    vptq_block_hooks hooks = {.arg = c};
    float *rows;

    if (sum)
        hooks.hook = on_hook;
    if (sum && c->opt.weights == VPTQ_WEIGHTS_ATTENTION)
        hooks.attention = vptq_calibrator_attention;
    /* all windows are as long, so the rows of any of them begin like the first ones' */
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

static void clear_sums(vptq_calibrator *c)
{
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++)
        vptq_hessian_sum_clear(&c->sum[i]);
    if (c->opt.weights)
        vptq_hessian_sum_clear(&c->term);
}

vptq_status vptq_calibrator_run(vptq_calibrator *c, vptq_calibrator_fn fn, void *arg,
                                vptq_err *err)
{
    size_t first = 0;

    VPTQ_BUG_IF(c->opt.sequential);
    for (int part = 0; part < VPTQ_PART_COUNT; first += c->windows[part++]) {
        if (!c->windows[part])
            continue;
        clear_sums(c);
        VPTQ_CHECK(run_part(c, first, c->windows[part], fn != NULL, err));
        if (fn)
            VPTQ_CHECK(fn(arg, c, (vptq_part)part, err));
    }
    c->layer++;
    return VPTQ_OK;
}

vptq_status vptq_calibrator_finish(const vptq_hessian_sum *s, uint32_t layer, const char *input,
                                   float *lower, float *mean, vptq_err *err)
{
    vptq_status st = vptq_hessian_sum_finish(s, lower, mean, err);
    if (st)
        vptq_err_context(err, "layer %u: the hessian of %s", layer, input);
    for (size_t j = 0; !st && j < s->n; j++)
        if (!isfinite(lower[j * (j + 1) / 2 + j]))
            st = vptq_fail(err, VPTQ_E_NUMERIC,
                           "layer %u: the input of %s has a value that is not finite in "
                           "column %zu (the model overflows on this text)",
                           layer, input, j);
    return st;
}

/* ---- checkpoint ---- */

void vptq_calibrator_checkpoint(vptq_calibrator *c)
{
    vptq_err why = {0};
    char fingerprint[17];
    vptq_hidden_states *const streams[] = {&c->states, vptq_calibrator_passed(c)};

    /* no result depends on the time */
    if (vptq_seconds() - c->state_time < c->opt.checkpoint_seconds)
        return;
    state_fingerprint(c, fingerprint);
    if (vptq_hidden_states_save(streams, c->opt.sequential ? 2 : 1, c->state_path, fingerprint,
                                c->layer, &why))
        vptq_log(c->dev->ctx, VPTQ_LOG_WARN, "no checkpoint of the hidden states: %s",
                 why.text);
    c->state_time = vptq_seconds();
}

void vptq_calibrator_forget(const char *dir)
{
    char path[4096];
    if (!vptq_path_join(path, sizeof path, dir, STATE_FILE, NULL))
        (void)unlink(path); /* usually not there */
}
