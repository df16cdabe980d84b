/* Saliencies: windows forwards, labels drawn from the model, gradients back to every linear
 * layer. */
#include "hessian/saliency.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "lib/model/backward.h"

typedef struct saliency {
    vptq_device *dev;
    const vptq_saliency_options *o;
    vptq_hidden_states *s;
    vptq_arena arena;
    vptq_forward *f;
    vptq_backward *b;
    char path[4096];
    /* device memory */
    float *states;  /* [layers + 1][length, hidden]: what went into every block */
    float *dhidden; /* [length, hidden] */
    double *sums;   /* [length] of squared gradients */
    /* host memory */
    float *embedded;   /* [length, hidden] */
    double *draws;     /* [length] */
    double *loss;      /* [length] */
    double *host_sums; /* [length] */
    float *window;     /* [layers * VPTQ_LINEAR_COUNT, length] of the present window */
} saliency;

/* ---- memory ---- */

static vptq_status on_device(saliency *a, size_t count, size_t size, void **p, vptq_err *err)
{
    return a->dev->ops->alloc(a->dev->state, count, size, p, err);
}

static vptq_status alloc_arrays(saliency *a, vptq_err *err)
{
    const vptq_model_desc *d = a->o->model->desc;
    const size_t length = a->o->length, size = length * d->hidden;
    void *p = NULL;
    VPTQ_CHECK(on_device(a, (size_t)d->layers + 1, size * sizeof *a->states, &p, err));
    a->states = p;
    VPTQ_CHECK(on_device(a, size, sizeof *a->dhidden, &p, err));
    a->dhidden = p;
    VPTQ_CHECK(on_device(a, length, sizeof *a->sums, &p, err));
    a->sums = p;
    a->embedded = vptq_arena_alloc(&a->arena, size, sizeof *a->embedded, err);
    a->draws = vptq_arena_alloc(&a->arena, length, sizeof *a->draws, err);
    a->loss = vptq_arena_alloc(&a->arena, length, sizeof *a->loss, err);
    a->host_sums = vptq_arena_alloc(&a->arena, length, sizeof *a->host_sums, err);
    return a->embedded && a->draws && a->loss && a->host_sums ? VPTQ_OK : VPTQ_E_NOMEM;
}

static vptq_status open_pass(saliency *a, vptq_err *err)
{
    const vptq_saliency_options *o = a->o;
    vptq_status st = alloc_arrays(a, err);
    if (st) {
        vptq_err_context(err, "gradients of %zu tokens (shorter windows need less)", o->length);
        return st;
    }
    VPTQ_CHECK(vptq_forward_open(o->model, a->dev, o->length, &a->f, err));
    return vptq_backward_open(a->f, o->length, 1, &a->b, err);
}

static void close_pass(saliency *a)
{
    vptq_backward_close(a->b);
    vptq_forward_close(a->f);
    a->dev->ops->release(a->dev->state, a->states);
    a->dev->ops->release(a->dev->state, a->dhidden);
    a->dev->ops->release(a->dev->state, a->sums);
    vptq_arena_release(&a->arena);
}

/* ---- one window ---- */

/* The saliencies of the window at one linear layer. */
static vptq_status on_linear(void *arg, uint32_t layer, vptq_linear l, size_t rows,
                             const float *x, const float *dz, vptq_err *err)
{
    saliency *a = arg;
    const vptq_backend *ops = a->dev->ops;
    uint32_t out, in;
    vptq_linear_shape(a->o->model->desc, l, &out, &in);
    const vptq_dots_args squares = {
        .cols = rows, .rows = out, .x = dz, .y = dz, .ldx = out, .ldy = out, .sums = a->sums};
    float *to = a->window + vptq_saliency_row(a->o->model->desc, 0, layer, l) * rows;

    (void)x;
    VPTQ_CHECK(ops->column_dots(a->dev->state, &squares, err));
    VPTQ_CHECK(
        ops->download(a->dev->state, a->host_sums, a->sums, rows * sizeof *a->sums, err));
    for (size_t t = 0; t < rows; t++) {
        to[t] = (float)(a->host_sums[t] / out);
        if (!isfinite(to[t]))
            return vptq_fail(err, VPTQ_E_NUMERIC, "the gradient of token %zu is not finite", t);
    }
    return VPTQ_OK;
}

static vptq_status run_window(saliency *a, size_t w, vptq_err *err)
{
    const vptq_saliency_options *o = a->o;
    const size_t size = o->length * o->model->desc->hidden;
    const uint32_t layers = o->model->desc->layers;
    const vptq_rng rng = vptq_rng_make(o->seed, 0, 0, VPTQ_RNG_LABELS);
    const vptq_backward_hooks hooks = {.linear = on_linear, .arg = a};
    const vptq_backward_loss loss = {
        .hidden = a->states + layers * size, .draws = a->draws, .scale = 1};

    for (size_t t = 0; t < o->length; t++)
        a->draws[t] = vptq_rng_uniform(&rng, (uint64_t)w * o->length + t);
    VPTQ_CHECK(
        vptq_backward_run(a->b, o->ids + o->window[w], NULL, a->embedded, a->states, err));
    VPTQ_CHECK(vptq_backward_head(a->b, &loss, a->loss, a->dhidden, err));
    for (uint32_t l = layers; l-- > 0;)
        VPTQ_CHECK(vptq_backward_block(a->b, l, a->states + l * size, a->dhidden, &hooks, err));
    return VPTQ_OK;
}

/* ---- all windows ---- */

/* Writes a checkpoint of the first `done` windows; a full disk costs time only. */
static void checkpoint(const saliency *a, size_t done)
{
    vptq_err why = {0};
    if (vptq_hidden_states_save(&(vptq_hidden_states *){a->s}, 1, a->path, a->o->fingerprint,
                                done, &why))
        vptq_log(a->dev->ctx, VPTQ_LOG_WARN, "no checkpoint of the saliencies: %s", why.text);
}

static vptq_status run_windows(saliency *a, size_t first, vptq_err *err)
{
    const vptq_saliency_options *o = a->o;
    double saved = vptq_seconds();

    for (size_t w = first; w < o->windows; w++) {
        const size_t rows = (size_t)o->model->desc->layers * VPTQ_LINEAR_COUNT;
        VPTQ_CHECK(vptq_check_cancel(a->dev->ctx, err));
        VPTQ_CHECK(vptq_hidden_states_get(a->s, w * rows, rows, true, &a->window, err));
        const vptq_status st = run_window(a, w, err);
        if (st == VPTQ_E_NUMERIC)
            vptq_err_context(err, "window %zu", w);
        if (st)
            return st;
        VPTQ_CHECK(vptq_hidden_states_keep(a->s, w * rows, rows, err));
        vptq_progress(a->dev->ctx, "saliency", w + 1, o->windows, NULL);
        if (vptq_seconds() - saved < o->checkpoint_seconds && w + 1 < o->windows)
            continue;
        checkpoint(a, w + 1);
        saved = vptq_seconds();
    }
    return VPTQ_OK;
}

/* A checkpoint holds all rows, also of windows that come later. */
static vptq_status clear_rows(vptq_hidden_states *s, vptq_err *err)
{
    float *rows;
    for (size_t at = 0; at < s->rows; at += s->max_rows) {
        VPTQ_CHECK(vptq_hidden_states_get(s, at, s->max_rows, true, &rows, err));
        memset(rows, 0, s->max_rows * s->dim * sizeof *rows);
        VPTQ_CHECK(vptq_hidden_states_keep(s, at, s->max_rows, err));
    }
    return VPTQ_OK;
}

/* *done: the windows that a checkpoint has. */
static vptq_status open_rows(saliency *a, size_t *done, vptq_err *err)
{
    const vptq_saliency_options *o = a->o;
    const size_t rows = (size_t)o->model->desc->layers * VPTQ_LINEAR_COUNT;
    uint64_t position;

    *a->s = (vptq_hidden_states){
        .fd = -1, .rows = o->windows * rows, .dim = o->length, .max_rows = rows, .dev = a->dev};
    VPTQ_CHECK(vptq_path_join(a->path, sizeof a->path, o->dir, VPTQ_SALIENCY_FILE, err));
    VPTQ_CHECK(vptq_hidden_states_open(a->dev->ctx, o->dir, o->reserve, a->s, err));
    VPTQ_CHECK(
        vptq_hidden_states_load(&a->s, 1, a->path, o->fingerprint, o->windows, &position, err));
    *done = position <= o->windows ? (size_t)position : 0;
    if (position <= o->windows)
        return VPTQ_OK;
    if (vptq_path_exists(a->path))
        vptq_log(a->dev->ctx, VPTQ_LOG_WARN,
                 "%s belongs to another run or is damaged; measuring saliencies again",
                 a->path);
    return clear_rows(a->s, err);
}

vptq_status vptq_saliency_collect(vptq_device *dev, const vptq_saliency_options *o,
                                  vptq_hidden_states *s, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    saliency a = {.dev = dev, .o = o, .s = s};
    size_t done;

    *s = (vptq_hidden_states){.fd = -1};
    vptq_arena_init(&a.arena, dev->ctx->mem);
    VPTQ_TRY(open_pass(&a, err)); /* under a memory cap the saliencies give way to it */
    VPTQ_TRY(open_rows(&a, &done, err));
    VPTQ_TRY(run_windows(&a, done, err));
out:
    close_pass(&a);
    if (st)
        vptq_hidden_states_close(s);
    return st;
}

/* ---- weights ---- */

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

vptq_saliency_scale vptq_saliency_scale_of(float *values, size_t count)
{
    static const double kept = 0.95;
    vptq_saliency_scale k;
    double sum = 0;

    qsort(values, count, sizeof *values, by_value);
    k.clip = values[(size_t)(kept * (double)(count - 1))];
    for (size_t i = 0; i < count; i++)
        sum += (double)fminf(values[i], k.clip);
    k.mean = sum / (double)count;
    return k;
}

void vptq_saliency_weights(const vptq_saliency_scale *k, const float *s, size_t count, float *w)
{
    for (size_t i = 0; i < count; i++)
        w[i] = (float)((k->mean > 0 ? (double)fminf(s[i], k->clip) / k->mean : 1.0) /
                       (double)count);
}
