/* Windows forwards, labels drawn from the model, gradients back to every linear layer. */
#include "hessian/sampled.h"

#include "lib/base/rng.h"

static vptq_status alloc_arrays(vptq_sampled *s, vptq_err *err)
{
    const vptq_backend *ops = s->dev->ops;
    const vptq_model_desc *d = s->model->desc;
    const size_t size = s->length * d->hidden;
    void *p = NULL;
    VPTQ_CHECK(
        ops->alloc(s->dev->state, (size_t)d->layers + 1, size * sizeof *s->states, &p, err));
    s->states = p;
    VPTQ_CHECK(ops->alloc(s->dev->state, size, sizeof *s->dhidden, &p, err));
    s->dhidden = p;
    s->embedded = vptq_arena_alloc(&s->arena, size, sizeof *s->embedded, err);
    s->draws = vptq_arena_alloc(&s->arena, s->length, sizeof *s->draws, err);
    s->loss = vptq_arena_alloc(&s->arena, s->length, sizeof *s->loss, err);
    return s->embedded && s->draws && s->loss ? VPTQ_OK : VPTQ_E_NOMEM;
}

vptq_status vptq_sampled_open(vptq_device *dev, const vptq_model *m, size_t length,
                              uint64_t seed, vptq_sampled *s, vptq_err *err)
{
    *s = (vptq_sampled){.dev = dev, .model = m, .length = length, .seed = seed};
    vptq_arena_init(&s->arena, dev->ctx->mem);
    const vptq_status st = alloc_arrays(s, err);
    if (st) {
        vptq_err_context(err, "gradients of %zu tokens (shorter windows need less)", length);
        return st;
    }
    VPTQ_CHECK(vptq_forward_open(m, dev, length, &s->f, err));
    return vptq_backward_open(s->f, length, 1, &s->b, err);
}

void vptq_sampled_close(vptq_sampled *s)
{
    if (!s->dev)
        return;
    vptq_backward_close(s->b);
    vptq_forward_close(s->f);
    s->dev->ops->release(s->dev->state, s->states);
    s->dev->ops->release(s->dev->state, s->dhidden);
    vptq_arena_release(&s->arena);
    *s = (vptq_sampled){0};
}

static vptq_status run(vptq_sampled *s, size_t w, const int32_t *ids,
                       const vptq_backward_hooks *hooks, vptq_err *err)
{
    const uint32_t layers = s->model->desc->layers;
    const size_t size = s->length * s->model->desc->hidden;
    const vptq_rng rng = vptq_rng_make(s->seed, 0, 0, VPTQ_RNG_LABELS);
    const vptq_backward_loss loss = {
        .hidden = s->states + layers * size, .draws = s->draws, .scale = 1};

    for (size_t t = 0; t < s->length; t++)
        s->draws[t] = vptq_rng_uniform(&rng, (uint64_t)w * s->length + t);
    VPTQ_CHECK(vptq_backward_run(s->b, ids, NULL, s->embedded, s->states, err));
    VPTQ_CHECK(vptq_backward_head(s->b, &loss, s->loss, s->dhidden, err));
    for (uint32_t l = layers; l-- > 0;)
        VPTQ_CHECK(vptq_backward_block(s->b, l, s->states + l * size, s->dhidden, hooks, err));
    return VPTQ_OK;
}

vptq_status vptq_sampled_run(vptq_sampled *s, size_t w, const int32_t *ids, vptq_backward_fn fn,
                             void *arg, vptq_err *err)
{
    const vptq_backward_hooks hooks = {.linear = fn, .arg = arg};
    const vptq_status st = run(s, w, ids, &hooks, err);
    if (st == VPTQ_E_NUMERIC)
        vptq_err_context(err, "window %zu", w);
    return st;
}
