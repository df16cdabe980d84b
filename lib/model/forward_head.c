/* Final norm and output head.  Logits are computed in tiles of the vocabulary; those of a whole
 * window never exist at once. */
#include "lib/model/forward_internal.h"

static void head_free(vptq_forward *f)
{
    const vptq_backend *ops = f->dev->ops;
    ops->release(f->dev->state, f->logits);
    ops->release(f->dev->state, f->nll);
    ops->release(f->dev->state, f->targets);
    f->logits = NULL;
    f->nll = NULL;
    f->targets = NULL;
    f->head_rows = 0;
}

/* Allocates logits, and on other devices losses and targets, of `rows` rows. */
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
        VPTQ_TRY(ops->alloc(f->dev->state, rows, sizeof *f->nll, &p[1], err));
        f->nll = p[1];
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

/* f->x = the normalized hidden states of n rows in device memory. */
static vptq_status normalize(vptq_forward *f, size_t n, const float *hidden, vptq_err *err)
{
    return vptq_forward_rmsnorm(f, n, f->d->hidden, hidden, &f->final_norm, f->x, err);
}

/* The same for n <= VPTQ_FORWARD_ROWS rows of the caller. */
static vptq_status normalize_rows(vptq_forward *f, size_t n, const float *hidden, vptq_err *err)
{
    const vptq_backend *ops = f->dev->ops;
    const size_t bytes = n * f->d->hidden * sizeof *hidden;
    VPTQ_CHECK(vptq_forward_grow(f, n, err));
    if (ops->host_memory || vptq_forward_is_resident(f, hidden))
        return normalize(f, n, hidden, err);
    VPTQ_CHECK(vptq_forward_reserve_hidden(f, n, err));
    VPTQ_CHECK(ops->upload(f->dev->state, f->hidden, hidden, bytes, err));
    return normalize(f, n, f->hidden, err);
}

/* Caps n logits, if the model does so. */
static vptq_status cap_logits(vptq_forward *f, size_t n, float *logits, vptq_err *err)
{
    const vptq_soft_cap_args a = {.n = n, .cap = (float)f->d->logit_cap, .x = logits};
    return a.cap > 0 ? f->dev->ops->soft_cap(f->dev->state, &a, err) : VPTQ_OK;
}

/* f->logits [rows, *width] = the logits of the ids from `first` on, *width <= step. */
static vptq_status head_tile(vptq_forward *f, size_t rows, size_t step, size_t first,
                             size_t *width, vptq_err *err)
{
    const vptq_weight w = vptq_forward_head_weight(f);
    const vptq_forward_linear_args a = {.w = &w, .opened = &f->head, .rows = rows, .x = f->x};
    *width = w.rows - first < step ? w.rows - first : step;
    VPTQ_CHECK(vptq_forward_linear_tile(f, &a, first, *width, f->logits, *width, err));
    return cap_logits(f, rows * *width, f->logits, err);
}

/* A sum over tiles needs tiles that do not depend on the number of threads: those of many rows.
 */
size_t vptq_forward_head_step(const vptq_forward *f)
{
    return vptq_forward_tile_rows(f, VPTQ_FORWARD_ROWS, f->d->hidden);
}

/* Losses of the rows in f->x. */
static vptq_status loss_rows(vptq_forward *f, size_t rows, const int32_t *targets,
                             vptq_nll_state *nll, vptq_err *err)
{
    const vptq_backend *ops = f->dev->ops;
    const bool host = ops->host_memory;
    const size_t step = vptq_forward_head_step(f);
    vptq_nll_args a = {.n = rows,
                       .logits = f->logits,
                       .targets = host ? targets : f->targets,
                       .state = host ? nll : f->nll};
    if (!host)
        VPTQ_CHECK(
            ops->upload(f->dev->state, f->targets, targets, rows * sizeof *targets, err));
    for (size_t first = 0; first < f->d->vocab; first += a.width) {
        VPTQ_CHECK(head_tile(f, rows, step, first, &a.width, err));
        a.ld = a.width;
        a.first = (int32_t)first;
        a.start = first == 0;
        VPTQ_CHECK(ops->nll(f->dev->state, &a, err));
    }
    if (!host)
        VPTQ_CHECK(ops->download(f->dev->state, nll, f->nll, rows * sizeof *nll, err));
    return VPTQ_OK;
}

vptq_status vptq_forward_loss(vptq_forward *f, size_t n, const float *hidden,
                              const int32_t *targets, vptq_nll_state *nll, vptq_err *err)
{
    for (size_t i = 0, rows; i < n; i += rows) {
        rows = vptq_forward_chunk(f, n, i);
        VPTQ_CHECK(vptq_forward_head_begin(f, rows, hidden + i * f->d->hidden, err));
        VPTQ_CHECK(loss_rows(f, rows, targets + i, nll + i, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_forward_normalized(vptq_forward *f, size_t n, const float *hidden, float *out,
                                    vptq_err *err)
{
    const size_t dim = f->d->hidden;
    for (size_t i = 0, rows; i < n; i += rows) {
        rows = vptq_forward_chunk(f, n, i);
        VPTQ_CHECK(normalize_rows(f, rows, hidden + i * dim, err));
        VPTQ_CHECK(f->dev->ops->download(f->dev->state, out + i * dim, f->x,
                                         rows * dim * sizeof *out, err));
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
    VPTQ_CHECK(normalize_rows(f, n, hidden, err));
    return vptq_forward_head_store(f, err);
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
    const vptq_weight w = vptq_forward_head_weight(f);
    const vptq_forward_linear_args a = {
        .w = &w, .opened = &f->head, .rows = rows, .x = f->x, .out = logits};
    /* Not `kept`, though the head stays open: results must not depend on how windows are
     * grouped. */
    const vptq_backend *ops = f->dev->ops;
    const size_t vocab = f->d->vocab;
    if (ops->host_memory && rows <= vptq_weight_gemv_rows(&w, f->dev, false)) {
        VPTQ_CHECK(vptq_forward_linear(f, &a, err));
        return cap_logits(f, rows * vocab, logits, err);
    }
    const size_t step = vptq_forward_tile_rows(f, rows, f->d->hidden);
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
        rows = vptq_forward_chunk(f, n, i);
        VPTQ_CHECK(vptq_forward_head_begin(f, rows, hidden + i * f->d->hidden, err));
        VPTQ_CHECK(logits_rows(f, rows, logits + i * f->d->vocab, err));
    }
    return VPTQ_OK;
}

/* ---- sampling ---- */

/* Bytes of u [n] and ids [n] before the logits, which begin on a cache line. */
static size_t sample_bytes(size_t n)
{
    enum { LINE = 64 };
    return (n * (sizeof(double) + sizeof(int32_t)) + LINE - 1) / LINE * LINE;
}

static vptq_status reserve_samples(vptq_forward *f, size_t n, vptq_err *err)
{
    const vptq_backend *ops = f->dev->ops;
    const size_t bytes = sample_bytes(n) + n * f->d->vocab * sizeof(float);
    if (n <= f->sample_rows)
        return VPTQ_OK;
    ops->release(f->dev->state, f->samples);
    f->samples = NULL;
    f->sample_rows = 0;
    const vptq_status st = ops->alloc(f->dev->state, 1, bytes, &f->samples, err);
    if (st)
        vptq_err_context(err, "logits of %zu tokens", n);
    else
        f->sample_rows = n;
    return st;
}

vptq_status vptq_forward_choose(vptq_forward *f, size_t n, const float *hidden,
                                const vptq_forward_sampling *s, int32_t *next, vptq_err *err)
{
    const vptq_backend *ops = f->dev->ops;
    const vptq_weight w = vptq_forward_head_weight(f);
    VPTQ_CHECK(reserve_samples(f, n, err));
    double *u = f->samples;
    int32_t *ids = (int32_t *)(void *)(u + n);
    float *logits = (float *)(void *)((char *)f->samples + sample_bytes(n));
    const vptq_forward_linear_args head = {
        .w = &w, .opened = &f->head, .kept = true, .rows = n, .x = f->x, .out = logits};
    const vptq_sample_args a = {.n = n,
                                .vocab = w.rows,
                                .logits = logits,
                                .ld = w.rows,
                                .temperature = s->temperature,
                                .top_p = s->top_p,
                                .u = u,
                                .ids = ids};
    VPTQ_CHECK(normalize(f, n, hidden, err));
    VPTQ_CHECK(vptq_forward_linear(f, &head, err));
    VPTQ_CHECK(cap_logits(f, n * w.rows, logits, err));
    VPTQ_CHECK(ops->upload(f->dev->state, u, s->u, n * sizeof *u, err));
    VPTQ_CHECK(ops->sample(f->dev->state, &a, err));
    return ops->download(f->dev->state, next, ids, n * sizeof *next, err);
}
