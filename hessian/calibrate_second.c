/* How far the inputs of the original model are from those that passed quantized blocks. */
#include <string.h>

#include "hessian/calibrate_second.h"
#include "lib/base/parallel.h"

enum {
    TOKENS = 256,             /* of a product in float, as in the Hessians */
    PRODUCT_FLOATS = 1 << 22, /* of a product at a time */
    ADD_ROWS = 16             /* that one thread adds at a time */
};

static size_t largest_input(const vptq_calibrator *c)
{
    size_t most = 0;
    for (int i = 0; i < VPTQ_INPUT_COUNT; i++)
        most = c->sum[i].n > most ? c->sum[i].n : most;
    return most;
}

static vptq_status device_floats(vptq_calibrator *c, size_t rows, size_t n, float **out,
                                 vptq_err *err)
{
    void *p = NULL;
    vptq_status st = c->dev->ops->alloc(c->dev->state, rows, n * sizeof(float), &p, err);
    *out = p;
    return st;
}

vptq_status vptq_calibrator_open_second(vptq_calibrator *c, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    vptq_arena *a = &c->arena;
    const size_t hidden = c->model->desc->hidden, n = largest_input(c);

    for (int i = 0; i < VPTQ_INPUT_COUNT; i++) {
        const size_t dim = c->sum[i].n;
        c->shift[i] = vptq_arena_alloc(a, dim, dim * sizeof *c->shift[i], err);
        c->record[i] =
            c->shift[i] ? vptq_arena_alloc(a, c->most, dim * sizeof *c->record[i], err) : NULL;
        if (!c->record[i])
            return VPTQ_E_NOMEM;
    }
    c->copy = vptq_arena_alloc(a, c->most, hidden * sizeof *c->copy, err);
    if (!c->copy)
        return VPTQ_E_NOMEM;
    c->product_floats = n * n < PRODUCT_FLOATS ? n * n : PRODUCT_FLOATS; /* over one row */
    VPTQ_TRY(device_floats(c, 1, c->product_floats, &c->product, err));
    if (c->dev->ops->host_memory)
        return VPTQ_OK;
    VPTQ_TRY(device_floats(c, c->opt.length, n, &c->tokens, err));
    c->host_tokens = vptq_arena_alloc(a, c->opt.length, n * sizeof *c->host_tokens, err);
    c->host_product = c->host_tokens
                          ? vptq_arena_alloc(a, c->product_floats, sizeof *c->host_product, err)
                          : NULL;
    if (!c->host_product)
        st = VPTQ_E_NOMEM;
out:
    return st;
}

void vptq_calibrator_close_second(vptq_calibrator *c)
{
    vptq_states_close(&c->passed);
    c->dev->ops->release(c->dev->state, c->product);
    c->dev->ops->release(c->dev->state, c->tokens);
}

vptq_status vptq_calibrator_record(void *arg, vptq_input input, size_t sequence, size_t tokens,
                                   size_t dim, const float *x, vptq_err *err)
{
    vptq_calibrator *c = arg;
    return c->dev->ops->download(c->dev->state,
                                 c->record[input] + sequence * c->opt.length * dim, x,
                                 tokens * dim * sizeof *x, err);
}

typedef struct add_job {
    size_t n;
    const float *product;
    double *sum;
} add_job;

static void add_rows(void *arg, size_t begin, size_t end, int thread)
{
    const add_job *job = arg;
    (void)thread;
    for (size_t i = begin * job->n; i < end * job->n; i++)
        job->sum[i] += (double)job->product[i];
}

/* sum [n, n] += d^T x for t <= TOKENS tokens of device memory, some rows at a time. */
static vptq_status add_product(vptq_calibrator *c, size_t t, size_t n, const float *d,
                               const float *x, double *sum, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_backend *ops = c->dev->ops;
    const size_t step = c->product_floats / n;

    for (size_t i = 0; i < n; i += step) {
        const size_t rows = n - i < step ? n - i : step;
        const vptq_gemm_args g = {.m = rows,
                                  .n = n,
                                  .k = t,
                                  .a = d + i,
                                  .b = x,
                                  .c = c->product,
                                  .lda = n,
                                  .ldb = n,
                                  .ldc = n,
                                  .trans_a = true,
                                  .alpha = 1};
        add_job job = {n, c->product, sum + i * n};
        VPTQ_TRY(ops->gemm(c->dev->state, &g, err));
        if (c->host_product) {
            job.product = c->host_product;
            VPTQ_TRY(ops->download(c->dev->state, c->host_product, c->product,
                                   rows * n * sizeof *c->product, err));
        }
        vptq_parallel_for(c->dev->ctx->threads, rows, ADD_ROWS, add_rows, &job);
    }
out:
    return st;
}

vptq_status vptq_calibrator_add_shift(vptq_calibrator *c, vptq_input input, size_t sequence,
                                      size_t tokens, size_t dim, const float *x, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const vptq_backend *ops = c->dev->ops;
    float *record = c->record[input] + sequence * c->opt.length * dim;
    const float *passed = x, *d = record;
    bool differ = false;

    if (c->host_tokens) {
        VPTQ_TRY(
            ops->download(c->dev->state, c->host_tokens, x, tokens * dim * sizeof *x, err));
        passed = c->host_tokens;
        d = c->tokens;
    }
    for (size_t i = 0; i < tokens * dim; i++) {
        record[i] -= passed[i];
        differ = differ || record[i] != 0;
    }
    if (!differ) /* in front of the first quantized block */
        goto out;
    if (c->host_tokens)
        VPTQ_TRY(ops->upload(c->dev->state, c->tokens, record, tokens * dim * sizeof *x, err));
    for (size_t t = 0; t < tokens; t += TOKENS)
        VPTQ_TRY(add_product(c, tokens - t < TOKENS ? tokens - t : TOKENS, dim, d + t * dim,
                             x + t * dim, c->shift[input], err));
out:
    return st;
}

void vptq_calibrator_shift(const vptq_calibrator *c, vptq_input input, float *shift)
{
    const size_t n = c->sum[input].n;
    const double tokens = (double)c->sum[input].tokens;
    for (size_t i = 0; i < n * n; i++)
        shift[i] = (float)(c->shift[input][i] / tokens);
}
