/* The ops vq_pass and vq_descend.  A thread takes a few vector rows through all columns before
 * it continues with the next rows, so that their errors stay in its cache.  A column first
 * receives the changes of all earlier columns, by the same operations in the same order as if
 * each had been propagated at once, and is then quantized. */
#include <string.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/search.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

/* The vector rows that a thread processes: two columns, work space for the search, and the
 * changes of all columns. */
typedef struct chunk {
    size_t row, count, panels;
    float *z, *q;  /* [floats] padded with 0 to whole panels */
    float *search; /* work space of the search */
    float *change; /* [panels][cols][VPTQ_PANEL] */
} chunk;

/* An op over all vector rows; `column` processes column t of a chunk. */
typedef struct column_job {
    void (*column)(const void *args, const chunk *c, size_t t);
    const void *args;
    const vptq_search_index *index;
    size_t cols, rows;
    size_t floats;  /* of a column of a chunk, whole panels */
    size_t slice;   /* floats of a thread */
    float *scratch; /* one slice per thread */
} column_job;

/* Vector rows per chunk: whole tiles of about 256 floats, so that the errors of a block of 128
 * columns fit into part of L2, but fewer if a thread would get none. */
static size_t chunk_vector_rows(const vptq_dev *dev, size_t vector_rows, size_t v)
{
    size_t threads = (size_t)dev->ctx->threads;
    size_t max = v < 8 ? 256 / v / 32 * 32 : 32;
    size_t share = vptq_round_up((vector_rows + threads - 1) / threads, 16);
    return share < max ? share : max;
}

static void run_chunk(void *arg, size_t begin, size_t end, int thread)
{
    const column_job *job = arg;
    const size_t v = job->index->codebooks.v;
    chunk c = {.row = begin * v, .count = (end - begin) * v};
    c.panels = vptq_round_up(c.count, VPTQ_PANEL) / VPTQ_PANEL;
    c.z = job->scratch + (size_t)thread * job->slice;
    c.q = c.z + job->floats;
    c.search = c.q + job->floats;
    c.change = c.search + vptq_search_index_work(job->index);
    memset(c.z, 0, 2 * job->floats * sizeof *c.z);
    for (size_t t = 0; t < job->cols; t++)
        job->column(job->args, &c, t);
}

static vptq_status run_columns(vptq_dev *dev, column_job *job, vptq_err *err)
{
    const size_t v = job->index->codebooks.v, vector_rows = job->rows / v;
    if (!vector_rows || !job->cols)
        return VPTQ_OK;
    const size_t size = chunk_vector_rows(dev, vector_rows, v);
    job->floats = vptq_round_up(size * v, VPTQ_PANEL);
    job->slice = job->floats * (2 + job->cols) + vptq_search_index_work(job->index);
    job->scratch = vptq_dev_scratch(dev, (size_t)dev->ctx->threads * job->slice,
                                    sizeof *job->scratch, err);
    if (!job->scratch)
        return VPTQ_E_NOMEM;
    vptq_parallel_for(dev->ctx->threads, vector_rows, size, run_chunk, job);
    return VPTQ_OK;
}

/* c->z -= changes of columns 0 .. t - 1 times their factors */
static void propagate(const vptq_nearest_kernels *kernels, const chunk *c, size_t cols,
                      size_t t, const float *factors, size_t ld)
{
    for (size_t b = 0; b < c->panels; b++)
        kernels->eliminate(t, c->change + b * cols * VPTQ_PANEL, factors + t, ld,
                           c->z + b * VPTQ_PANEL);
}

/* ---- column pass ---- */

static void pass_column(const void *args, const chunk *c, size_t t)
{
    const vptq_pass_args *p = args;
    const vptq_search_index *f = p->index;
    const size_t v = f->codebooks.v, at = t * p->ldi + c->row / v;
    uint32_t *idx_res = p->idx_res ? p->idx_res + at : NULL;
    float *z_out = p->z + t * p->ldz + c->row;
    memcpy(c->z, z_out, c->count * sizeof *c->z);
    propagate(f->kernels, c, p->cols, t, p->u, p->ldu);
    memcpy(z_out, c->z, c->count * sizeof *c->z);
    vptq_search(f, c->count / v, c->z, false, c->search, p->idx + at, idx_res);
    vptq_decode(&f->codebooks, c->count / v, p->idx + at, idx_res, c->q);
    memcpy(p->q + t * p->ldq + c->row, c->q, c->count * sizeof *c->q);
    const float pivot = p->u[t * p->ldu + t];
    for (size_t b = 0; b < c->panels; b++) {
        float *e = c->change + (b * p->cols + t) * VPTQ_PANEL;
        const float *z = c->z + b * VPTQ_PANEL, *q = c->q + b * VPTQ_PANEL;
        const size_t left = c->count - b * VPTQ_PANEL;
        for (size_t r = 0; r < VPTQ_PANEL; r++)
            e[r] = (z[r] - q[r]) / pivot;
        memcpy(p->err + t * p->lde + c->row + b * VPTQ_PANEL, e,
               (left < VPTQ_PANEL ? left : VPTQ_PANEL) * sizeof *e);
    }
}

vptq_status vptq_cpu_vq_pass(vptq_dev *dev, const vptq_pass_args *p, vptq_err *err)
{
    column_job job = {
        .column = pass_column, .args = p, .index = p->index, .cols = p->cols, .rows = p->rows};
    return run_columns(dev, &job, err);
}

/* ---- coordinate descent ---- */

/* `change` holds old - new, so that `propagate` subtracts it like the errors of a pass. */
static void descend_column(const void *args, const chunk *c, size_t t)
{
    const vptq_descend_args *d = args;
    const vptq_search_index *f = d->index;
    const size_t v = f->codebooks.v, at = t * d->ldi + c->row / v;
    uint32_t *idx_res = d->idx_res ? d->idx_res + at : NULL;
    float *q = d->q + t * d->ldq + c->row;
    const float h = d->h[t * d->ldh + t];
    if (h > 0) {
        memcpy(c->z, d->g + t * d->ldg + c->row, c->count * sizeof *c->z);
        propagate(f->kernels, c, d->cols, t, d->h, d->ldh);
        for (size_t r = 0; r < c->count; r++)
            c->z[r] = q[r] - c->z[r] / h;
        vptq_search(f, c->count / v, c->z, true, c->search, d->idx + at, idx_res);
        vptq_decode(&f->codebooks, c->count / v, d->idx + at, idx_res, c->q);
    } else {
        memcpy(c->q, q, c->count * sizeof *q);
    }
    for (size_t b = 0; b < c->panels; b++) {
        float *change = c->change + (b * d->cols + t) * VPTQ_PANEL;
        const size_t first = b * VPTQ_PANEL, left = c->count - first;
        const size_t count = left < VPTQ_PANEL ? left : VPTQ_PANEL;
        memset(change, 0, VPTQ_PANEL * sizeof *change);
        for (size_t r = 0; r < count; r++) {
            change[r] = q[first + r] - c->q[first + r];
            d->delta[t * d->ldd + c->row + first + r] = -change[r];
        }
    }
    memcpy(q, c->q, c->count * sizeof *q);
}

vptq_status vptq_cpu_vq_descend(vptq_dev *dev, const vptq_descend_args *d, vptq_err *err)
{
    column_job job = {.column = descend_column,
                      .args = d,
                      .index = d->index,
                      .cols = d->cols,
                      .rows = d->rows};
    return run_columns(dev, &job, err);
}
