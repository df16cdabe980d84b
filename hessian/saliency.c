/* Saliencies: squares of the gradients at every linear layer. */
#include "hessian/saliency.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "hessian/sampled.h"
#include "lib/base/comm.h"
#include "lib/base/file.h"
#include "lib/base/text.h"

typedef struct saliency {
    vptq_device *dev;
    const vptq_saliency_options *o;
    vptq_hidden_states *s;
    vptq_sampled pass;
    vptq_arena arena;
    char path[4096];
    double *sums;      /* [length] of squared gradients, device memory */
    double *host_sums; /* [length] */
    float *window;     /* [layers * VPTQ_LINEAR_DENSE, length] of the present window */
} saliency;

/* ---- memory ---- */

static vptq_status open_pass(saliency *a, vptq_err *err)
{
    const vptq_saliency_options *o = a->o;
    void *p = NULL;
    VPTQ_CHECK(vptq_sampled_open(a->dev, o->model, o->length, o->seed, &a->pass, err));
    VPTQ_CHECK(a->dev->ops->alloc(a->dev->state, o->length, sizeof *a->sums, &p, err));
    a->sums = p;
    a->host_sums = vptq_arena_alloc(&a->arena, o->length, sizeof *a->host_sums, err);
    return a->host_sums ? VPTQ_OK : VPTQ_E_NOMEM;
}

static void close_pass(saliency *a)
{
    vptq_sampled_close(&a->pass);
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
        const size_t rows = (size_t)o->model->desc->layers * VPTQ_LINEAR_DENSE;
        VPTQ_CHECK(vptq_check_cancel(a->dev->ctx, err));
        VPTQ_CHECK(vptq_hidden_states_get(a->s, w * rows, rows, true, &a->window, err));
        const size_t number = o->number ? o->number[w] : w;
        VPTQ_CHECK(
            vptq_sampled_run(&a->pass, number, o->ids + o->window[number], on_linear, a, err));
        VPTQ_CHECK(vptq_hidden_states_keep(a->s, w * rows, rows, err));
        vptq_progress(a->dev->ctx, "saliency", vptq_plural(o->windows, "window", "windows"),
                      w + 1, o->windows, NULL);
        if (!a->path[0] ||
            (vptq_seconds() - saved < o->checkpoint_seconds && w + 1 < o->windows))
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
    const size_t rows = (size_t)o->model->desc->layers * VPTQ_LINEAR_DENSE;
    uint64_t position = UINT64_MAX;

    *a->s = (vptq_hidden_states){
        .fd = -1, .rows = o->windows * rows, .dim = o->length, .max_rows = rows, .dev = a->dev};
    if (vptq_comm_size(a->dev->ctx) == 1)
        VPTQ_CHECK(vptq_path_join(a->path, sizeof a->path, o->dir, VPTQ_SALIENCY_FILE, err));
    VPTQ_CHECK(vptq_hidden_states_open(a->dev->ctx, o->dir, o->reserve, a->s, err));
    if (a->path[0])
        VPTQ_CHECK(vptq_hidden_states_load(&a->s, 1, a->path, o->fingerprint, o->windows,
                                           &position, err));
    *done = position <= o->windows ? (size_t)position : 0;
    if (position <= o->windows)
        return VPTQ_OK;
    if (a->path[0] && vptq_path_exists(a->path))
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
