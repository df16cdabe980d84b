/* Measures output Hessians. */
#include "hessian/outputs.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hessian/sampled.h"
#include "lib/base/comm.h"
#include "lib/base/file.h"
#include "lib/base/text.h"

enum { ROWS = VPTQ_OUTPUT_ROWS, BLOCK = ROWS * ROWS };

typedef struct collector {
    vptq_device *dev;
    const vptq_calibrator *c;
    const vptq_model_desc *desc;
    size_t windows, length;
    size_t window;  /* the present one */
    size_t entries; /* of a layer */
    char fingerprint[17];
    vptq_sampled pass;
    vptq_arena arena;
    /* device memory */
    double *sums;     /* [layers, entries] of a chunk: lower triangles; a last block of n < ROWS
                         rows is [n, n] */
    vptq_total total; /* of the same */
    double *rows;     /* [ROWS] sums of gradients, which syrk_add takes; not read */
    double *dots;     /* [length] */
    float *weight;    /* [length] */
    /* host memory */
    float *k;           /* [layers * entries] */
    double *gradient;   /* [length] a */
    double *input;      /* [length] b */
    double *sorted;     /* [length]; also a block of sums, BLOCK */
    float *host_weight; /* [length] */
} collector;

size_t vptq_outputs_windows(const vptq_calibrator *c)
{
    const size_t all = c->windows[VPTQ_PART_MAIN];
    return c->opt.outputs < all ? c->opt.outputs : all;
}

/* The number of window i of those that are run. */
static size_t window_at(const vptq_calibrator *c, size_t i)
{
    return i * c->windows[VPTQ_PART_MAIN] / vptq_outputs_windows(c);
}

void vptq_outputs_fingerprint(const vptq_calibrator *c, char fingerprint[17])
{
    static const char version[] = VPTQ_VERSION; /* others may round in other ways */
    uint64_t h = vptq_hash(c->model_fingerprint, 16, vptq_hash(version, sizeof version, 0));
    for (size_t i = 0; i < vptq_outputs_windows(c); i++) {
        const uint64_t w = window_at(c, i); /* decides the labels */
        h = vptq_hash(&w, sizeof w, h);
        h = vptq_hash(c->corpus.ids.data + c->window[w], c->opt.length * sizeof(int32_t), h);
    }
    h = vptq_hash(&c->opt.seed, sizeof c->opt.seed, h);
    snprintf(fingerprint, 17, "%016" PRIx64, h);
}

/* ---- memory ---- */

static vptq_status alloc_device(collector *o, vptq_err *err)
{
    const vptq_backend *ops = o->dev->ops;
    vptq_dev *dev = o->dev->state;
    const size_t bytes = o->entries * sizeof *o->sums;
    void *p = NULL;
    VPTQ_CHECK(ops->alloc(dev, o->desc->layers, bytes, &p, err));
    o->sums = p;
    VPTQ_CHECK(ops->alloc(dev, ROWS, sizeof *o->rows, &p, err));
    o->rows = p;
    VPTQ_CHECK(ops->alloc(dev, o->length, sizeof *o->dots, &p, err));
    o->dots = p;
    VPTQ_CHECK(ops->alloc(dev, o->length, sizeof *o->weight, &p, err));
    o->weight = p;
    VPTQ_CHECK(ops->clear(dev, o->rows, ROWS * sizeof *o->rows, err));
    return vptq_total_init(o->dev, o->desc->layers * o->entries, &o->total, err);
}

static vptq_status alloc_host(collector *o, vptq_err *err)
{
    vptq_arena *a = &o->arena;
    const size_t n = o->length, layer = o->entries * sizeof *o->k;
    o->k = vptq_arena_alloc(a, o->desc->layers, layer, err);
    o->gradient = vptq_arena_alloc(a, n, sizeof *o->gradient, err);
    o->input = vptq_arena_alloc(a, n, sizeof *o->input, err);
    o->sorted = vptq_arena_alloc(a, n > BLOCK ? n : BLOCK, sizeof *o->sorted, err);
    o->host_weight = vptq_arena_alloc(a, n, sizeof *o->host_weight, err);
    return o->k && o->gradient && o->input && o->sorted && o->host_weight ? VPTQ_OK
                                                                          : VPTQ_E_NOMEM;
}

static vptq_status open_pass(collector *o, vptq_err *err)
{
    const vptq_calibrator *c = o->c;
    vptq_status st = alloc_device(o, err);
    if (!st)
        st = alloc_host(o, err);
    if (st) {
        vptq_err_context(err, "output Hessians of %u layers", o->desc->layers);
        return st;
    }
    return vptq_sampled_open(o->dev, c->model, o->length, c->opt.seed, &o->pass, err);
}

static void close_pass(collector *o)
{
    const vptq_backend *ops = o->dev->ops;
    vptq_sampled_close(&o->pass);
    ops->release(o->dev->state, o->sums);
    vptq_total_release(&o->total);
    ops->release(o->dev->state, o->rows);
    ops->release(o->dev->state, o->dots);
    ops->release(o->dev->state, o->weight);
    vptq_arena_release(&o->arena);
}

/* ---- weights ---- */

/* squares [length] = |x_t|^2 of x [length, n]; VPTQ_E_NUMERIC naming `what`. */
static vptq_status measure(collector *o, const float *x, uint32_t n, const char *what,
                           double *squares, vptq_err *err)
{
    const vptq_backend *ops = o->dev->ops;
    const vptq_dots_args a = {
        .cols = o->length, .rows = n, .x = x, .y = x, .ldx = n, .ldy = n, .sums = o->dots};
    VPTQ_CHECK(ops->column_dots(o->dev->state, &a, err));
    VPTQ_CHECK(
        ops->download(o->dev->state, squares, o->dots, o->length * sizeof *squares, err));
    for (size_t t = 0; t < o->length; t++)
        if (!isfinite(squares[t]))
            return vptq_fail(err, VPTQ_E_NUMERIC, "the %s of token %zu is not finite", what, t);
    return VPTQ_OK;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The quantile 0.99 of x [n]. */
static double quantile(collector *o, const double *x, size_t n)
{
    static const double kept = 0.99;
    memcpy(o->sorted, x, n * sizeof *x);
    qsort(o->sorted, n, sizeof *x, by_value);
    return o->sorted[(size_t)(kept * (double)(n - 1))];
}

/* Uploads the weights of the window's tokens. */
static vptq_status set_weights(collector *o, vptq_err *err)
{
    static const double least = 0.2;
    const size_t n = o->length - 1; /* without the first token */
    const double *a = o->gradient + 1, *b = o->input + 1;
    const double most_a = quantile(o, a, n), most_b = quantile(o, b, n);
    float *w = o->host_weight;
    double mean = 0;

    for (size_t t = 0; t < n; t++)
        mean += fmin(b[t], most_b) / (double)n;
    *w++ = 0;
    for (size_t t = 0; t < n; t++) {
        const double share = mean > 0 ? fmin(b[t], most_b) / mean : 1;
        const double clip = a[t] > most_a ? most_a / a[t] : 1;
        w[t] = a[t] > 0 ? (float)(clip * (least + (1 - least) * share)) : 0;
    }
    return o->dev->ops->upload(o->dev->state, o->weight, o->host_weight, o->length * sizeof *w,
                               err);
}

/* ---- one window ---- */

static size_t first_entry(const collector *o, uint32_t layer, vptq_linear l)
{
    size_t at = layer * o->entries;
    for (int i = 0; i < (int)l; i++)
        at += vptq_output_entries(o->desc, (vptq_linear)i);
    return at;
}

static vptq_status add_linear(collector *o, uint32_t layer, vptq_linear l, const float *x,
                              const float *dz, vptq_err *err)
{
    double *sums = o->sums + first_entry(o, layer, l);
    uint32_t out, in;

    vptq_linear_shape(o->desc, l, &out, &in);
    VPTQ_CHECK(measure(o, dz, out, "gradient", o->gradient, err));
    VPTQ_CHECK(measure(o, x, in, "input", o->input, err));
    VPTQ_CHECK(set_weights(o, err));
    for (size_t row = 0; row < out; row += ROWS, sums += BLOCK) {
        const vptq_syrk_args a = {.tokens = o->length,
                                  .n = out - row < ROWS ? out - row : ROWS,
                                  .x = dz + row,
                                  .ldx = out,
                                  .w = o->weight,
                                  .h = sums,
                                  .sum = o->rows};
        VPTQ_CHECK(o->dev->ops->syrk_add(o->dev->state, &a, err));
    }
    return VPTQ_OK;
}

static vptq_status on_linear(void *arg, uint32_t layer, vptq_linear l, size_t rows,
                             const float *x, const float *dz, vptq_err *err)
{
    collector *o = arg;
    (void)rows;
    const vptq_status st = add_linear(o, layer, l, x, dz, err);
    if (st == VPTQ_E_NUMERIC) /* the pass names window and layer */
        vptq_err_context(err, "%s", vptq_linear_name(o->desc, l).text);
    return st;
}

/* Runs own windows [first, end). */
static vptq_status run_chunk(collector *o, size_t first, size_t end, size_t own, vptq_err *err)
{
    const vptq_calibrator *c = o->c;
    const size_t layers = o->desc->layers;
    if (first >= end)
        return VPTQ_OK;
    VPTQ_CHECK(
        o->dev->ops->clear(o->dev->state, o->sums, layers * o->entries * sizeof *o->sums, err));
    for (size_t i = first; i < end; i++) {
        const size_t w = window_at(o->c, vptq_own_window(o->dev->ctx, i));
        VPTQ_CHECK(vptq_check_cancel(o->dev->ctx, err));
        VPTQ_CHECK(vptq_sampled_run(&o->pass, w, c->corpus.ids.data + c->window[w], on_linear,
                                    o, err));
        vptq_progress(o->dev->ctx, "outputs", vptq_plural(own, "window", "windows"), i + 1, own,
                      NULL);
    }
    return vptq_total_add(&o->total, 0, layers, o->entries, false, o->sums, err);
}

static vptq_status run_windows(collector *o, vptq_err *err)
{
    const vptq_ctx *ctx = o->dev->ctx;
    const size_t own = vptq_own_windows(ctx, o->windows), rounds = vptq_rounds(ctx, o->windows);
    vptq_total_clear(&o->total, o->desc->layers * o->entries);
    for (size_t k = 0; k < rounds; k++) {
        const size_t first = k * VPTQ_CHUNK_WINDOWS, end = first + VPTQ_CHUNK_WINDOWS;
        VPTQ_CHECK(run_chunk(o, first, end < own ? end : own, own, err));
        VPTQ_CHECK(vptq_total_share(&o->total, vptq_round_parts(ctx, o->windows, k), err));
    }
    return vptq_total_finish(&o->total, err);
}

/* ---- the file ---- */

static uint64_t token_count(const collector *o)
{
    return (uint64_t)o->windows * (o->length - 1);
}

/* k [ROWS, ROWS] = sums divided by the tokens, lower triangle of [n, n]. */
static void finish_block(const collector *o, size_t n, const double *sums, float *k)
{
    memset(k, 0, BLOCK * sizeof *k);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++) {
            k[i * ROWS + j] = (float)(sums[i * n + j] / (double)token_count(o));
            k[j * ROWS + i] = k[i * ROWS + j];
        }
}

static vptq_status finish_linear(collector *o, uint32_t layer, vptq_linear l, vptq_err *err)
{
    size_t at = first_entry(o, layer, l);
    uint32_t out, in;

    vptq_linear_shape(o->desc, l, &out, &in);
    for (size_t row = 0; row < out; row += ROWS, at += BLOCK) {
        const size_t n = out - row < ROWS ? out - row : ROWS;
        VPTQ_CHECK(o->dev->ops->download(o->dev->state, o->sorted, o->total.sum + at,
                                         n * n * sizeof *o->sums, err));
        finish_block(o, n, o->sorted, o->k + at);
        for (size_t i = 0; i < BLOCK; i++)
            if (!vptq_hessian_usable(o->k[at + i]))
                return vptq_fail(err, VPTQ_E_NUMERIC,
                                 "layer %u: %s: the output Hessian of row %zu is not finite "
                                 "(the model overflows on this text)",
                                 layer, vptq_linear_name(o->desc, l).text, row + i / ROWS);
    }
    return VPTQ_OK;
}

static vptq_status write_file(collector *o, const char *path, vptq_err *err)
{
    const vptq_outputs_data data = {.desc = o->desc,
                                    .fingerprint = o->fingerprint,
                                    .model_fingerprint = o->c->model_fingerprint,
                                    .windows = o->windows,
                                    .tokens = token_count(o),
                                    .k = o->k};
    for (uint32_t layer = 0; layer < o->desc->layers; layer++)
        for (int l = 0; l < VPTQ_LINEAR_DENSE; l++)
            VPTQ_CHECK(finish_linear(o, layer, (vptq_linear)l, err));
    return vptq_outputs_write(path, &data, o->dev->ctx->mem, err);
}

vptq_status vptq_outputs_find(const vptq_calibrator *c, const char *path, bool *finished,
                              vptq_err *err)
{
    vptq_outputs old;
    vptq_err why = {0};
    const vptq_ctx *ctx = c->dev->ctx;
    char fingerprint[17];

    *finished = false;
    if (!vptq_path_exists(path))
        return VPTQ_OK;
    const vptq_status st = vptq_outputs_open(path, c->model->desc, ctx->mem, &old, &why);
    if (st == VPTQ_E_IO || st == VPTQ_E_NOMEM) /* the file may be whole */
        return vptq_fail(err, st, "%s", why.text);
    if (st) {
        vptq_log(ctx, VPTQ_LOG_WARN, "%s; it is measured again", why.text);
        return VPTQ_OK;
    }
    vptq_outputs_fingerprint(c, fingerprint);
    *finished = strcmp(old.fingerprint, fingerprint) == 0;
    vptq_outputs_close(&old);
    return VPTQ_OK;
}

static vptq_status run(collector *o, const char *path, vptq_err *err)
{
    const vptq_ctx *ctx = o->dev->ctx;
    bool finished = false;
    if (vptq_comm_rank(ctx) == 0)
        VPTQ_CHECK(vptq_outputs_find(o->c, path, &finished, err));
    VPTQ_CHECK(vptq_comm_broadcast(ctx, 0, &finished, sizeof finished, err));
    if (finished)
        return VPTQ_OK;
    VPTQ_CHECK(open_pass(o, err));
    VPTQ_CHECK(run_windows(o, err));
    return vptq_comm_rank(ctx) ? VPTQ_OK : write_file(o, path, err);
}

vptq_status vptq_outputs_collect(const vptq_calibrator *c, const char *path, vptq_err *err)
{
    collector o = {.dev = c->dev,
                   .c = c,
                   .desc = c->model->desc,
                   .windows = vptq_outputs_windows(c),
                   .length = c->opt.length,
                   .entries = vptq_output_layer_entries(c->model->desc)};

    VPTQ_BUG_IF(!o.windows);
    vptq_arena_init(&o.arena, c->dev->ctx->mem);
    vptq_outputs_fingerprint(c, o.fingerprint);
    const vptq_status st = run(&o, path, err);
    close_pass(&o);
    return vptq_comm_agree(c->dev->ctx, st, err);
}
