/* Final norm and output head: the vocabulary goes through in tiles, so that logits of a whole
 * window never exist at once. */
#include <string.h>

#include "lib/model/forward_internal.h"

static void head_free(vptq_forward *f)
{
    const vptq_backend *ops = f->dev->ops;
    ops->release(f->dev->state, f->logits);
    ops->release(f->dev->state, f->states);
    ops->release(f->dev->state, f->targets);
    f->logits = NULL;
    f->states = NULL;
    f->targets = NULL;
    f->head_rows = 0;
}

/* Room for the head over `rows` rows. */
static vptq_status head_reserve(vptq_forward *f, size_t rows, vptq_err *err)
{
    if (rows <= f->head_rows)
        return VPTQ_OK;
    vptq_status st = VPTQ_OK;
    const vptq_backend *ops = f->dev->ops;
    void *p[3] = {NULL, NULL, NULL};
    head_free(f);
    VPTQ_TRY(
        ops->alloc(f->dev->state, rows, VPTQ_FORWARD_TILE_ROWS * sizeof(float), &p[0], err));
    f->logits = p[0];
    if (!ops->host_memory) {
        VPTQ_TRY(ops->alloc(f->dev->state, rows, sizeof *f->states, &p[1], err));
        f->states = p[1];
        VPTQ_TRY(ops->alloc(f->dev->state, rows, sizeof *f->targets, &p[2], err));
        f->targets = p[2];
    }
    f->head_rows = rows;
out:
    if (st) {
        head_free(f);
        vptq_err_context(err, "logits of %zu tokens", rows);
    }
    return st;
}

static vptq_weight head_weight(const vptq_forward *f)
{
    return (vptq_weight){.rows = f->d->vocab, .cols = f->d->hidden, .tensor = f->m->head};
}

/* f->x [rows, hidden] = the normalized states of `rows` <= VPTQ_FORWARD_ROWS rows in host
 * memory. */
static vptq_status normalize(vptq_forward *f, size_t rows, const float *hidden, vptq_err *err)
{
    const vptq_backend *ops = f->dev->ops;
    size_t dim = f->d->hidden;
    VPTQ_CHECK(vptq_forward_grow(f, rows, err));
    if (!ops->host_memory) {
        VPTQ_CHECK(vptq_forward_reserve_hidden(f, rows, err));
        VPTQ_CHECK(
            ops->upload(f->dev->state, f->hidden, hidden, rows * dim * sizeof *hidden, err));
        hidden = f->hidden;
    }
    return ops->rmsnorm(f->dev->state,
                        &(vptq_rmsnorm_args){.n = rows,
                                             .dim = dim,
                                             .x = hidden,
                                             .ldx = dim,
                                             .weight = f->final_norm,
                                             .eps = f->d->norm_eps,
                                             .y = f->x,
                                             .ldy = dim},
                        err);
}

/* The next tile of the head, rows [first, first + *width) with *width <= step: f->logits [rows,
 * *width]. */
static vptq_status head_tile(vptq_forward *f, size_t rows, size_t step, size_t first,
                             size_t *width, vptq_err *err)
{
    vptq_weight w = head_weight(f);
    *width = w.rows - first < step ? w.rows - first : step;
    VPTQ_CHECK(vptq_check_cancel(f->dev->ctx, err));
    VPTQ_CHECK(vptq_weight_tile(&w, NULL, f->dev, first, *width, f->tile, err));
    vptq_gemm_args g = {.m = rows,
                        .n = *width,
                        .k = w.cols,
                        .a = f->x,
                        .b = f->tile,
                        .c = f->logits,
                        .lda = w.cols,
                        .ldb = w.cols,
                        .ldc = *width,
                        .trans_b = true,
                        .alpha = 1};
    return f->dev->ops->gemm(f->dev->state, &g, err);
}

/* A sum that goes from tile to tile needs tiles that do not depend on the threads, as those
 * of many rows. */
size_t vptq_forward_head_step(const vptq_forward *f)
{
    return vptq_forward_tile_rows(f, VPTQ_FORWARD_ROWS, f->d->hidden);
}

static vptq_status loss_rows(vptq_forward *f, size_t rows, const int32_t *targets,
                             vptq_nll_state *state, vptq_err *err)
{
    const vptq_backend *ops = f->dev->ops;
    const int32_t *t = targets;
    vptq_nll_state *s = state;
    const size_t step = vptq_forward_head_step(f);
    if (!ops->host_memory) {
        VPTQ_CHECK(
            ops->upload(f->dev->state, f->targets, targets, rows * sizeof *targets, err));
        t = f->targets;
        s = f->states;
    }
    for (size_t first = 0, width; first < f->d->vocab; first += width) {
        VPTQ_CHECK(head_tile(f, rows, step, first, &width, err));
        VPTQ_CHECK(ops->nll(f->dev->state,
                            &(vptq_nll_args){.n = rows,
                                             .width = width,
                                             .logits = f->logits,
                                             .ld = width,
                                             .first = (int32_t)first,
                                             .targets = t,
                                             .start = first == 0,
                                             .state = s},
                            err));
    }
    if (!ops->host_memory)
        VPTQ_CHECK(ops->download(f->dev->state, state, s, rows * sizeof *s, err));
    return VPTQ_OK;
}

vptq_status vptq_forward_loss(vptq_forward *f, size_t n, const float *hidden,
                              const int32_t *targets, vptq_nll_state *state, vptq_err *err)
{
    for (size_t i = 0, rows; i < n; i += rows) {
        rows = vptq_forward_chunk(f, n, i, true);
        VPTQ_CHECK(head_reserve(f, rows, err));
        VPTQ_CHECK(normalize(f, rows, hidden + i * f->d->hidden, err));
        VPTQ_CHECK(loss_rows(f, rows, targets + i, state + i, err));
    }
    return VPTQ_OK;
}

size_t vptq_forward_head_fit(const vptq_forward *f, size_t rows)
{
    return vptq_forward_fit(f, rows, 0, true);
}

vptq_status vptq_forward_head_begin(vptq_forward *f, size_t n, const float *hidden,
                                    vptq_err *err)
{
    VPTQ_CHECK(head_reserve(f, n, err));
    return normalize(f, n, hidden, err);
}

vptq_status vptq_forward_head_tile(vptq_forward *f, size_t n, size_t first, float *logits,
                                   size_t *width, vptq_err *err)
{
    VPTQ_CHECK(head_tile(f, n, vptq_forward_head_step(f), first, width, err));
    return f->dev->ops->download(f->dev->state, logits, f->logits, n * *width * sizeof *logits,
                                 err);
}

/* logits [rows, vocab] in host memory of the rows in f->x, tile by tile. */
static vptq_status logits_rows(vptq_forward *f, size_t rows, float *logits, vptq_err *err)
{
    const vptq_weight w = head_weight(f);
    /* Figures must not depend on how windows are grouped, so that the head counts as one that
     * is used once, though it stays open. */
    if (f->dev->ops->host_memory && rows <= vptq_weight_gemv_rows(&w, f->dev, false))
        return vptq_forward_linear(f, &w, NULL, NULL, false, rows, f->x, 0, logits, err);
    const vptq_backend *ops = f->dev->ops;
    const size_t vocab = f->d->vocab, step = vptq_forward_tile_rows(f, rows, f->d->hidden);
    for (size_t first = 0, width; first < vocab; first += width) {
        VPTQ_CHECK(head_tile(f, rows, step, first, &width, err));
        for (size_t r = 0; r < rows; r++)
            VPTQ_CHECK(ops->download(f->dev->state, logits + r * vocab + first,
                                     f->logits + r * width, width * sizeof *logits, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_forward_logits(vptq_forward *f, size_t n, const float *hidden, float *logits,
                                vptq_err *err)
{
    for (size_t i = 0, rows; i < n; i += rows) {
        rows = vptq_forward_chunk(f, n, i, true);
        VPTQ_CHECK(head_reserve(f, rows, err));
        VPTQ_CHECK(normalize(f, rows, hidden + i * f->d->hidden, err));
        VPTQ_CHECK(logits_rows(f, rows, logits + i * f->d->vocab, err));
    }
    return VPTQ_OK;
}

/* f->x = the normalized states of n rows in device memory. */
static vptq_status normalize_states(vptq_forward *f, size_t n, const float *hidden,
                                    vptq_err *err)
{
    size_t dim = f->d->hidden;
    return f->dev->ops->rmsnorm(f->dev->state,
                                &(vptq_rmsnorm_args){.n = n,
                                                     .dim = dim,
                                                     .x = hidden,
                                                     .ldx = dim,
                                                     .weight = f->final_norm,
                                                     .eps = f->d->norm_eps,
                                                     .y = f->x,
                                                     .ldy = dim},
                                err);
}

vptq_status vptq_forward_device_logits(vptq_forward *f, const float *hidden, float *logits,
                                       vptq_err *err)
{
    VPTQ_CHECK(head_reserve(f, 1, err));
    VPTQ_CHECK(normalize_states(f, 1, hidden, err));
    return logits_rows(f, 1, logits, err);
}

/* What f->chosen holds for a row in front of all logits. */
typedef struct chosen {
    double u;
    int32_t id;
} chosen;
enum { CHOSEN_LINE = 64 }; /* bytes; logits begin at a multiple */

static size_t chosen_bytes(size_t n)
{
    return (n * sizeof(chosen) + CHOSEN_LINE - 1) / CHOSEN_LINE * CHOSEN_LINE;
}

static vptq_status reserve_chosen(vptq_forward *f, size_t n, vptq_err *err)
{
    const size_t row = f->d->vocab * sizeof(float);
    if (n <= f->chosen_rows)
        return VPTQ_OK;
    f->dev->ops->release(f->dev->state, f->chosen);
    f->chosen = NULL;
    f->chosen_rows = 0;
    const vptq_status st =
        f->dev->ops->alloc(f->dev->state, 1, chosen_bytes(n) + n * row, &f->chosen, err);
    if (st)
        vptq_err_context(err, "logits of %zu tokens", n);
    else
        f->chosen_rows = n;
    return st;
}

vptq_status vptq_forward_choose(vptq_forward *f, size_t n, const float *hidden,
                                double temperature, double top_p, const double *u,
                                int32_t *next, vptq_err *err)
{
    const vptq_backend *ops = f->dev->ops;
    const vptq_weight w = head_weight(f);
    VPTQ_CHECK(reserve_chosen(f, n, err));
    double *device_u = f->chosen;
    int32_t *ids = (int32_t *)(void *)(device_u + n);
    float *logits = (float *)(void *)((char *)f->chosen + chosen_bytes(n));
    VPTQ_CHECK(normalize_states(f, n, hidden, err));
    VPTQ_CHECK(vptq_forward_linear(f, &w, NULL, NULL, true, n, f->x, 0, logits, err));
    VPTQ_CHECK(ops->upload(f->dev->state, device_u, u, n * sizeof *u, err));
    const vptq_sample_args s = {.n = n,
                                .vocab = w.rows,
                                .logits = logits,
                                .ld = w.rows,
                                .temperature = temperature,
                                .top_p = top_p,
                                .u = device_u,
                                .ids = ids};
    VPTQ_CHECK(ops->sample(f->dev->state, &s, err));
    return ops->download(f->dev->state, next, ids, n * sizeof *next, err);
}

vptq_status vptq_forward_final_norm(vptq_forward *f, size_t n, const float *hidden, float *out,
                                    vptq_err *err)
{
    size_t dim = f->d->hidden;
    for (size_t i = 0, rows; i < n; i += rows) {
        rows = vptq_forward_chunk(f, n, i, false);
        VPTQ_CHECK(normalize(f, rows, hidden + i * dim, err));
        VPTQ_CHECK(f->dev->ops->download(f->dev->state, out + i * dim, f->x,
                                         rows * dim * sizeof *out, err));
    }
    return VPTQ_OK;
}
