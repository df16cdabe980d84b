/* Shared by calibrations with one and with two streams: a stream of hidden states, the moments
 * of every input, and the token-weighted term of k and v. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "hessian/calibrate_internal.h"

vptq_status vptq_token_weights_parse(const char *text, vptq_token_weights *weights,
                                     double *factor, vptq_err *err)
{
    /* Least divergence on held-out text (docs/encoder.md, section 5). */
    static const double default_factor[VPTQ_WEIGHTS_COUNT] = {0, 0.1, 1};
    const size_t len = strcspn(text, ":");

    *weights = vptq_token_weights_find(text, len);
    if (*weights == VPTQ_WEIGHTS_COUNT || (*weights == VPTQ_WEIGHTS_PLAIN && text[len]))
        return vptq_fail(err, VPTQ_E_ARG,
                         "token weights are '%.40s', expected plain, sink[:factor] or "
                         "attention[:factor]",
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
    return VPTQ_OK;
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

vptq_status vptq_calibrator_open_term(vptq_calibrator *c, vptq_err *err)
{
    void *p = NULL;
    const size_t n = c->opt.length;

    VPTQ_CHECK(vptq_hessian_sum_init(c->dev, c->model->desc->hidden, &c->term, err));
    if (c->opt.weights != VPTQ_WEIGHTS_ATTENTION)
        return VPTQ_OK;
    VPTQ_CHECK(c->dev->ops->alloc(c->dev->state, n, sizeof *c->mass, &p, err));
    c->mass = p;
    VPTQ_CHECK(c->dev->ops->alloc(c->dev->state, n, sizeof *c->weight, &p, err));
    c->weight = p;
    c->host_mass = vptq_arena_alloc(&c->arena, n, sizeof *c->host_mass, err);
    c->host_weight =
        c->host_mass ? vptq_arena_alloc(&c->arena, n, sizeof *c->host_weight, err) : NULL;
    return c->host_weight ? VPTQ_OK : VPTQ_E_NOMEM;
}

vptq_status vptq_calibrator_add(vptq_calibrator *c, vptq_input input, size_t tokens,
                                const float *x, vptq_err *err)
{
    VPTQ_CHECK(vptq_hessian_sum_add(&c->sum[input], tokens, x, err));
    if (input == VPTQ_INPUT_QKV && c->opt.weights == VPTQ_WEIGHTS_SINK)
        VPTQ_CHECK(vptq_hessian_sum_add_window(&c->term, 1, x, NULL, err));
    return VPTQ_OK;
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
    return vptq_hessian_sum_add_window(&c->term, tokens, x, c->weight, err);
}

vptq_status vptq_calibrator_finish(const vptq_hessian_sum *s, uint32_t layer, const char *input,
                                   float *lower, float *mean, vptq_err *err)
{
    vptq_status st = vptq_hessian_sum_finish(s, lower, mean, err);
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
