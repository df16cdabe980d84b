/* The rows vq_pass and vq_descend.  A thread takes a few strips through all columns before it
 * takes the next ones, so that their errors stay in its cache.  A column first receives the
 * changes of all earlier ones (the same operations in the same order as if each had been
 * propagated at once), then is quantized. */
#include <string.h>

#include "lib/backend/cpu_search.h"
#include "lib/backend/cpu_vq.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

/* What a thread has of its chunk: three columns, and the changes of all. */
typedef struct chunk_room {
    size_t floats;  /* of a column of the chunk, whole panels */
    size_t slice;   /* floats of a thread */
    float *scratch; /* one slice per thread */
} chunk_room;

typedef struct chunk {
    size_t row, count, panels;
    float *z, *q;  /* [room] what fills the last panel counts as 0 */
    float *search; /* room for searching */
    float *change; /* [panels][cols][VPTQ_PANEL] */
} chunk;

/* Strips per chunk: about 256 floats, so that the errors of a block of 128 columns fit into a
 * part of L2, in whole tiles; smaller where there would not be one for every thread. */
static size_t chunk_strips(const vptq_dev *dev, size_t strips, size_t v)
{
    size_t threads = (size_t)dev->threads;
    size_t most = v < 8 ? 256 / v / 32 * 32 : 32;
    size_t share = vptq_round_up((strips + threads - 1) / threads, 16);
    return share < most ? share : most;
}

static vptq_status make_room(vptq_dev *dev, const vptq_finder *f, size_t strips, size_t cols,
                             chunk_room *room, vptq_err *err)
{
    room->floats = vptq_round_up(strips * f->books.v, VPTQ_PANEL);
    room->slice = room->floats * (2 + cols) + vptq_finder_room(f);
    room->scratch =
        vptq_dev_scratch(dev, (size_t)dev->threads * room->slice, sizeof *room->scratch, err);
    return room->scratch ? VPTQ_OK : VPTQ_E_NOMEM;
}

static chunk take_chunk(const chunk_room *room, const vptq_finder *f, int thread, size_t begin,
                        size_t end)
{
    const size_t v = f->books.v;
    chunk c = {.row = begin * v, .count = (end - begin) * v};
    c.panels = vptq_round_up(c.count, VPTQ_PANEL) / VPTQ_PANEL;
    c.z = room->scratch + (size_t)thread * room->slice;
    c.q = c.z + room->floats;
    c.search = c.q + room->floats;
    c.change = c.search + vptq_finder_room(f);
    memset(c.z, 0, 2 * room->floats * sizeof *c.z);
    return c;
}

/* c->z -= the changes of columns 0 .. t - 1 times their factors. */
static void propagate(const vptq_vq_kernels *kernels, const chunk *c, size_t cols, size_t t,
                      const float *factors, size_t ld)
{
    for (size_t b = 0; b < c->panels; b++)
        kernels->eliminate(t, c->change + b * cols * VPTQ_PANEL, factors + t, ld,
                           c->z + b * VPTQ_PANEL);
}

/* ---- column pass ---- */

typedef struct pass_job {
    const vptq_pass_args *p;
    chunk_room room;
} pass_job;

static void pass_column(const vptq_pass_args *p, const chunk *c, size_t t)
{
    const vptq_finder *f = p->finder;
    const size_t v = f->books.v, at = t * p->ldi + c->row / v;
    uint32_t *idx_res = p->idx_res ? p->idx_res + at : NULL;
    float *z_out = p->z + t * p->ldz + c->row;
    memcpy(c->z, z_out, c->count * sizeof *c->z);
    propagate(f->kernels, c, p->cols, t, p->u, p->ldu);
    memcpy(z_out, c->z, c->count * sizeof *c->z);
    vptq_search(f, c->count / v, c->z, false, c->search, p->idx + at, idx_res);
    vptq_decode(f, c->count / v, p->idx + at, idx_res, c->q);
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

static void pass_chunk(void *arg, size_t begin, size_t end, int thread)
{
    const pass_job *job = arg;
    const chunk c = take_chunk(&job->room, job->p->finder, thread, begin, end);
    for (size_t t = 0; t < job->p->cols; t++)
        pass_column(job->p, &c, t);
}

vptq_status vptq_cpu_vq_pass(vptq_dev *dev, const vptq_pass_args *p, vptq_err *err)
{
    const size_t v = p->finder->books.v, strips = p->rows / v;
    if (!strips || !p->cols)
        return VPTQ_OK;
    const size_t size = chunk_strips(dev, strips, v);
    pass_job job = {.p = p};
    vptq_status st = make_room(dev, p->finder, size, p->cols, &job.room, err);
    if (!st)
        vptq_parallel_for(dev->threads, strips, size, pass_chunk, &job);
    return st;
}

/* ---- coordinate descent ---- */

typedef struct descend_job {
    const vptq_descend_args *d;
    chunk_room room;
} descend_job;

/* `change` holds old - new, so that propagating subtracts it as the errors of a pass. */
static void descend_column(const vptq_descend_args *d, const chunk *c, size_t t)
{
    const vptq_finder *f = d->finder;
    const size_t v = f->books.v, at = t * d->ldi + c->row / v;
    uint32_t *idx_res = d->idx_res ? d->idx_res + at : NULL;
    float *q = d->q + t * d->ldq + c->row;
    const float h = d->h[t * d->ldh + t];
    if (h > 0) {
        memcpy(c->z, d->g + t * d->ldg + c->row, c->count * sizeof *c->z);
        propagate(f->kernels, c, d->cols, t, d->h, d->ldh);
        for (size_t r = 0; r < c->count; r++)
            c->z[r] = q[r] - c->z[r] / h;
        vptq_search(f, c->count / v, c->z, true, c->search, d->idx + at, idx_res);
        vptq_decode(f, c->count / v, d->idx + at, idx_res, c->q);
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

static void descend_chunk(void *arg, size_t begin, size_t end, int thread)
{
    const descend_job *job = arg;
    const chunk c = take_chunk(&job->room, job->d->finder, thread, begin, end);
    for (size_t t = 0; t < job->d->cols; t++)
        descend_column(job->d, &c, t);
}

vptq_status vptq_cpu_vq_descend(vptq_dev *dev, const vptq_descend_args *d, vptq_err *err)
{
    const size_t v = d->finder->books.v, strips = d->rows / v;
    if (!strips || !d->cols)
        return VPTQ_OK;
    const size_t size = chunk_strips(dev, strips, v);
    descend_job job = {.d = d};
    vptq_status st = make_room(dev, d->finder, size, d->cols, &job.room, err);
    if (!st)
        vptq_parallel_for(dev->threads, strips, size, descend_chunk, &job);
    return st;
}
