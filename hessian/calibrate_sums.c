/* Shared by calibrations with one and with two streams: a stream of hidden states, the moments
 * of every input, and the token-weighted terms. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hessian/calibrate_internal.h"
#include "lib/base/comm.h"

vptq_status vptq_token_weights_parse(const char *text, vptq_token_weights *weights,
                                     double *factor, vptq_err *err)
{
    /* Least divergence on held-out text (docs/encoder.md, section 5). */
    static const double default_factor[VPTQ_WEIGHTS_COUNT] = {0, 0.1, 1, 0.5};
    const size_t len = strcspn(text, ":");

    *weights = vptq_token_weights_find(text, len);
    if (*weights == VPTQ_WEIGHTS_COUNT || (*weights == VPTQ_WEIGHTS_PLAIN && text[len]))
        return vptq_fail(err, VPTQ_E_ARG,
                         "token weights are '%.40s', expected plain, sink[:factor], "
                         "attention[:factor] or guided[:factor]",
                         text);
    *factor = default_factor[*weights];
    if (!text[len])
        return VPTQ_OK;
    char *end = NULL;
    errno = 0;
    *factor = strtod(text + len + 1, &end);
    if (end == text + len + 1 || *end || errno || !(*factor >= 0) || isinf(*factor))
        return vptq_fail(
            err, VPTQ_E_ARG,
            "the factor of token weights is '%.40s', expected zero or a positive number",
            text + len + 1);
    return vptq_term_check(*weights, *factor, err);
}

/* ---- windows ---- */

vptq_status vptq_calibrator_choose_own(vptq_calibrator *c, vptq_err *err)
{
    size_t first = 0, i = 0;
    c->own_window =
        vptq_arena_alloc(&c->arena, vptq_calibrator_windows(c), sizeof *c->own_window, err);
    if (!c->own_window)
        return VPTQ_E_NOMEM;
    for (int part = 0; part < VPTQ_PART_COUNT; first += c->windows[part++]) {
        c->own[part] = vptq_own_windows(c->dev->ctx, c->windows[part]);
        for (size_t w = 0; w < c->own[part]; w++)
            c->own_window[i++] = first + vptq_own_window(c->dev->ctx, w);
    }
    return VPTQ_OK;
}

/* The first own window of a part. */
static size_t first_own(const vptq_calibrator *c, vptq_part part)
{
    return part == VPTQ_PART_MAIN ? 0 : c->own[VPTQ_PART_MAIN];
}

size_t vptq_calibrator_rounds(const vptq_calibrator *c, vptq_part part)
{
    return vptq_rounds(c->dev->ctx, c->windows[part]);
}

vptq_calibrator_round vptq_calibrator_round_at(const vptq_calibrator *c, vptq_part part,
                                               size_t i)
{
    const size_t at = i * VPTQ_CHUNK_WINDOWS, own = c->own[part];
    const size_t left = own > at ? own - at : 0;
    return (vptq_calibrator_round){
        .first = first_own(c, part) + at,
        .count = left < VPTQ_CHUNK_WINDOWS ? left : (size_t)VPTQ_CHUNK_WINDOWS,
        .parts = vptq_round_parts(c->dev->ctx, c->windows[part], i)};
}

/* ---- memory ---- */

vptq_status vptq_calibrator_open_stream(const vptq_calibrator *c, const char *dir,
                                        size_t streams, vptq_hidden_states *s, vptq_err *err)
{
    s->rows = c->starts[vptq_calibrator_own_windows(c)];
    s->dim = c->model->desc->hidden;
    s->max_rows = c->group_rows;
    s->dev = c->dev;
    if (vptq_forward_hidden_fit(c->forward, c->group_rows, 1, c->reserve) / streams >= s->rows)
        s->resident = vptq_forward_hidden_alloc(c->forward, s->rows);
    return vptq_hidden_states_open(c->dev->ctx, dir, c->reserve, s, err);
}

/* Of all own windows, from the original model; the state of a run before it is used. */
static vptq_status measure_saliencies(vptq_calibrator *c, const char *dir, vptq_err *err)
{
    char fingerprint[17];
    static const char version[] = VPTQ_VERSION; /* others may round in other ways */
    const uint64_t h =
        vptq_hash(c->fingerprint, sizeof c->fingerprint, vptq_hash(version, sizeof version, 0));
    const vptq_saliency_options o = {.model = c->model,
                                     .ids = c->corpus.ids.data,
                                     .window = c->window,
                                     .number = c->own_window,
                                     .windows = vptq_calibrator_own_windows(c),
                                     .length = c->opt.length,
                                     .seed = c->opt.seed,
                                     .fingerprint = fingerprint,
                                     .dir = dir,
                                     .checkpoint_seconds = c->opt.checkpoint_seconds,
                                     .reserve = c->reserve};
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, h);
    return vptq_saliency_collect(c->dev, &o, &c->saliency, err);
}

static vptq_status alloc_mass(vptq_calibrator *c, vptq_err *err)
{
    void *p = NULL;
    VPTQ_CHECK(c->dev->ops->alloc(c->dev->state, c->opt.length, sizeof *c->mass, &p, err));
    c->mass = p;
    c->host_mass = vptq_arena_alloc(&c->arena, c->opt.length, sizeof *c->host_mass, err);
    return c->host_mass ? VPTQ_OK : VPTQ_E_NOMEM;
}

static vptq_status open_term(vptq_calibrator *c, vptq_linear l, vptq_err *err)
{
    const size_t n = vptq_input_size(c->model->desc, vptq_linear_input(l));
    VPTQ_CHECK(vptq_hessian_sum_init(c->dev, (uint32_t)n, &c->term[l], err));
    c->term[l].term = true;
    return VPTQ_OK;
}

vptq_status vptq_calibrator_open_terms(vptq_calibrator *c, const char *dir, vptq_err *err)
{
    void *p = NULL;
    const size_t n = c->opt.length;

    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        if (vptq_term_of(c->opt.weights, (vptq_linear)l) == (vptq_linear)l)
            VPTQ_CHECK(open_term(c, (vptq_linear)l, err));
    if (c->opt.weights <= VPTQ_WEIGHTS_SINK)
        return VPTQ_OK;
    VPTQ_CHECK(c->dev->ops->alloc(c->dev->state, n, sizeof *c->weight, &p, err));
    c->weight = p;
    c->host_weight = vptq_arena_alloc(&c->arena, n, sizeof *c->host_weight, err);
    if (!c->host_weight)
        return VPTQ_E_NOMEM;
    return c->opt.weights == VPTQ_WEIGHTS_GUIDED ? measure_saliencies(c, dir, err)
                                                 : alloc_mass(c, err);
}

/* ---- saliencies of guided weights ---- */

/* all [windows of the part, length] = the saliencies at linear layer l, of own windows only. */
static vptq_status read_saliencies(vptq_calibrator *c, vptq_linear l, vptq_part part,
                                   float *all, vptq_err *err)
{
    const size_t length = c->opt.length, first = first_own(c, part);
    float *s;
    for (size_t w = 0; w < c->own[part]; w++) {
        const size_t row = vptq_saliency_row(c->model->desc, first + w, c->layer, l);
        VPTQ_CHECK(vptq_hidden_states_get(&c->saliency, row, 1, false, &s, err));
        memcpy(all + vptq_own_window(c->dev->ctx, w) * length, s, length * sizeof *s);
    }
    return VPTQ_OK;
}

/* Adds the saliencies of the windows of other ranks, which are 0 in `all` [count]. */
static vptq_status share_saliencies(const vptq_ctx *ctx, size_t count, float *all,
                                    vptq_err *err)
{
    if (vptq_comm_size(ctx) == 1)
        return VPTQ_OK;
    double *values = vptq_mem_alloc(ctx->mem, count, sizeof *values, err);
    if (!values)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < count; i++)
        values[i] = (double)all[i];
    const vptq_status st = vptq_comm_gather(ctx, values, count, err);
    for (size_t i = 0; i < count && !st; i++)
        all[i] = (float)values[i];
    vptq_mem_free(ctx->mem, values);
    return st;
}

/* Finds the scale of the weights of linear layer l. */
static vptq_status find_scale(vptq_calibrator *c, vptq_linear l, vptq_part part, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_ctx *ctx = c->dev->ctx;
    const size_t count = c->windows[part] * c->opt.length;
    vptq_arena arena;

    vptq_arena_init(&arena, ctx->mem);
    float *all = vptq_arena_zalloc(&arena, count, sizeof *all, err);
    if (!all)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(read_saliencies(c, l, part, all, err));
    VPTQ_TRY(share_saliencies(ctx, count, all, err));
    c->scale[l] = vptq_saliency_scale_of(all, count);
out:
    vptq_arena_release(&arena);
    return st;
}

/* ---- sums ---- */

static bool reads(const vptq_calibrator *c, int l, vptq_input input)
{
    return c->term[l].dev && vptq_linear_input((vptq_linear)l) == input;
}

vptq_status vptq_calibrator_begin(vptq_calibrator *c, vptq_input input, vptq_part part,
                                  vptq_err *err)
{
    vptq_hessian_sum_clear(&c->sum[input]);
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
        if (!reads(c, l, input))
            continue;
        vptq_hessian_sum_clear(&c->term[l]);
        if (c->opt.weights == VPTQ_WEIGHTS_GUIDED)
            VPTQ_CHECK(find_scale(c, (vptq_linear)l, part, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_calibrator_share(vptq_calibrator *c, vptq_input input, int parts,
                                  vptq_err *err)
{
    VPTQ_CHECK(vptq_hessian_sum_share(&c->sum[input], parts, err));
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        if (reads(c, l, input))
            VPTQ_CHECK(vptq_hessian_sum_share(&c->term[l], parts, err));
    return VPTQ_OK;
}

/* *tokens = those of all ranks that reached the expert of the input. */
static vptq_status count_routed(const vptq_calibrator *c, vptq_input input, uint64_t *tokens,
                                vptq_err *err)
{
    const vptq_ctx *ctx = c->dev->ctx;
    const double own = (double)c->sum[input].tokens;
    double all = 0;
    VPTQ_CHECK(vptq_comm_sum(ctx, vptq_comm_size(ctx), &own, &all, 1, err));
    *tokens = (uint64_t)all;
    return VPTQ_OK;
}

vptq_status vptq_calibrator_end(vptq_calibrator *c, vptq_input input, vptq_part part,
                                vptq_err *err)
{
    const uint64_t windows = c->windows[part];
    uint64_t tokens = windows * c->opt.length;
    if (vptq_input_expert(input) >= 0)
        VPTQ_CHECK(count_routed(c, input, &tokens, err));
    VPTQ_CHECK(vptq_hessian_sum_end(&c->sum[input], tokens, err));
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        if (reads(c, l, input))
            VPTQ_CHECK(vptq_hessian_sum_end(&c->term[l], windows, err));
    return VPTQ_OK;
}

bool vptq_calibrator_has_term(const vptq_calibrator *c, vptq_linear term)
{
    return c->term[term].dev && (!c->opt.sequential || vptq_linear_input(term) == c->next);
}

vptq_status vptq_calibrator_add(vptq_calibrator *c, vptq_input input, size_t tokens,
                                const float *x, vptq_err *err)
{
    VPTQ_CHECK(vptq_hessian_sum_add(&c->sum[input], tokens, x, err));
    if (input == VPTQ_INPUT_QKV && c->opt.weights == VPTQ_WEIGHTS_SINK)
        VPTQ_CHECK(vptq_hessian_sum_add_window(&c->term[VPTQ_LINEAR_K], 1, x, NULL, err));
    return VPTQ_OK;
}

vptq_status vptq_calibrator_add_guided(vptq_calibrator *c, vptq_linear l, size_t w,
                                       size_t tokens, const float *x, vptq_err *err)
{
    const size_t row = vptq_saliency_row(c->model->desc, w, c->layer, l);
    float *s;
    VPTQ_CHECK(vptq_hidden_states_get(&c->saliency, row, 1, false, &s, err));
    vptq_saliency_weights(&c->scale[l], s, tokens, c->host_weight);
    VPTQ_CHECK(c->dev->ops->upload(c->dev->state, c->weight, c->host_weight,
                                   tokens * sizeof *c->weight, err));
    return vptq_hessian_sum_add_window(&c->term[l], tokens, x, c->weight, err);
}

vptq_status vptq_calibrator_attention(void *arg, size_t sequence, size_t tokens, size_t dim,
                                      const float *x, const vptq_attention_args *a,
                                      vptq_err *err)
{
    vptq_calibrator *c = arg;
    const vptq_backend *ops = c->dev->ops;
    vptq_dev *dev = c->dev->state;
    const double pairs = (double)a->heads * (double)a->n;

    (void)sequence;
    (void)dim;
    VPTQ_CHECK(ops->clear(dev, c->mass, tokens * sizeof *c->mass, err));
    VPTQ_CHECK(ops->attention_mass(dev, a, c->mass, err));
    VPTQ_CHECK(ops->download(dev, c->host_mass, c->mass, tokens * sizeof *c->mass, err));
    for (size_t t = 0; t < tokens; t++)
        c->host_weight[t] = (float)(c->host_mass[t] / pairs);
    VPTQ_CHECK(ops->upload(dev, c->weight, c->host_weight, tokens * sizeof *c->weight, err));
    return vptq_hessian_sum_add_window(&c->term[VPTQ_LINEAR_K], tokens, x, c->weight, err);
}

static void set_identity(size_t n, float *lower, float *mean)
{
    memset(lower, 0, vptq_triangle(n) * sizeof *lower);
    memset(mean, 0, n * sizeof *mean);
    for (size_t j = 0; j < n; j++)
        lower[j * (j + 1) / 2 + j] = 1;
}

vptq_status vptq_calibrator_finish(const vptq_hessian_sum *s, uint32_t layer, const char *input,
                                   float *lower, float *mean, vptq_err *err)
{
    vptq_status st = s->tokens ? vptq_hessian_sum_finish(s, lower, mean, err) : VPTQ_OK;
    if (!s->tokens)
        set_identity(s->n, lower, mean);
    if (st)
        vptq_err_context(err, "layer %u: the hessian of %s", layer, input);
    for (size_t j = 0; !st && j < s->n; j++)
        if (!vptq_hessian_usable(lower[j * (j + 1) / 2 + j]))
            st = vptq_fail(err, VPTQ_E_NUMERIC,
                           "layer %u: the input of %s has a value that is not finite in "
                           "column %zu (the model overflows on this text)",
                           layer, input, j);
    return st;
}

vptq_status vptq_calibrator_range(const vptq_hessian_sum *s, uint32_t layer, const char *input,
                                  float *abs_mean, float *min, float *max, vptq_err *err)
{
    for (size_t j = 0; !s->tokens && j < s->n; j++) {
        abs_mean[j] = max[j] = 1;
        min[j] = -1;
    }
    if (!s->tokens)
        return VPTQ_OK;
    const vptq_status st = vptq_hessian_sum_range(s, abs_mean, min, max, err);
    if (st)
        vptq_err_context(err, "layer %u: the channel ranges of %s", layer, input);
    return st;
}
