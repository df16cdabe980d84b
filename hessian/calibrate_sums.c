/* Shared by calibrations with one and with two streams: a stream of hidden states, the moments
 * of every input, and the token-weighted terms. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hessian/calibrate_internal.h"

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

vptq_status vptq_calibrator_open_stream(const vptq_calibrator *c, const char *dir,
                                        size_t streams, vptq_hidden_states *s, vptq_err *err)
{
    s->rows = c->starts[vptq_calibrator_windows(c)];
    s->dim = c->model->desc->hidden;
    s->max_rows = c->group_rows;
    s->dev = c->dev;
    if (vptq_forward_hidden_fit(c->forward, c->group_rows, 1, c->reserve) / streams >= s->rows)
        s->resident = vptq_forward_hidden_alloc(c->forward, s->rows);
    return vptq_hidden_states_open(c->dev->ctx, dir, c->reserve, s, err);
}

/* Of all windows, from the original model; the state of a run before it is used. */
static vptq_status measure_saliencies(vptq_calibrator *c, const char *dir, vptq_err *err)
{
    char fingerprint[17];
    static const char version[] = VPTQ_VERSION; /* others may round in other ways */
    const uint64_t h =
        vptq_hash(c->fingerprint, sizeof c->fingerprint, vptq_hash(version, sizeof version, 0));
    const vptq_saliency_options o = {.model = c->model,
                                     .ids = c->corpus.ids.data,
                                     .window = c->window,
                                     .windows = vptq_calibrator_windows(c),
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

vptq_status vptq_calibrator_open_terms(vptq_calibrator *c, const char *dir, vptq_err *err)
{
    void *p = NULL;
    const size_t n = c->opt.length;

    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
        if (vptq_term_of(c->opt.weights, (vptq_linear)l) == (vptq_linear)l)
            VPTQ_CHECK(vptq_hessian_sum_init(
                c->dev, vptq_input_size(c->model->desc, vptq_linear_input((vptq_linear)l)),
                &c->term[l], err));
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

/* Finds the scale of the weights of linear layer l. */
static vptq_status find_scale(vptq_calibrator *c, vptq_linear l, size_t first, size_t count,
                              vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const size_t length = c->opt.length;
    vptq_mem *mem = c->dev->ctx->mem;
    float *all = vptq_mem_alloc(mem, count, length * sizeof *all, err), *s;

    if (!all)
        return VPTQ_E_NOMEM;
    for (size_t w = 0; w < count; w++) {
        const size_t row = vptq_saliency_row(c->model->desc, first + w, c->layer, l);
        VPTQ_TRY(vptq_hidden_states_get(&c->saliency, row, 1, false, &s, err));
        memcpy(all + w * length, s, length * sizeof *s);
    }
    c->scale[l] = vptq_saliency_scale_of(all, count * length);
out:
    vptq_mem_free(mem, all);
    return st;
}

vptq_status vptq_calibrator_begin(vptq_calibrator *c, vptq_input input, size_t first,
                                  size_t count, vptq_err *err)
{
    vptq_hessian_sum_clear(&c->sum[input]);
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
        if (vptq_linear_input((vptq_linear)l) != input || !c->term[l].dev)
            continue;
        vptq_hessian_sum_clear(&c->term[l]);
        if (c->opt.weights == VPTQ_WEIGHTS_GUIDED)
            VPTQ_CHECK(find_scale(c, (vptq_linear)l, first, count, err));
    }
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
