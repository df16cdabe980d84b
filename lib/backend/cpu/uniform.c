/* The ops of uniform quantization on all threads.  A thread takes a panel of rows through all
 * columns, so that their errors stay in its cache.  As in columns.c a column first receives the
 * errors of all earlier columns, by the same operations in the same order as if each had been
 * propagated at once, and is then quantized. */
#include "lib/backend/cpu/uniform.h"

#include <string.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/dev.h"
#include "lib/backend/ref/ref.h"
#include "lib/base/parallel.h"
#include "lib/base/uniform.h"

enum { PANEL = VPTQ_PANEL };

/* ---- ranges ---- */

typedef struct range_job {
    const vptq_uniform_range_args *args;
    const vptq_uniform_kernels *kernels;
} range_job;

static void range_rows(void *arg, size_t begin, size_t end, int thread)
{
    const range_job *job = arg;
    const vptq_uniform_range_args *a = job->args;
    const size_t count = end - begin;
    float lo[PANEL] = {0}, hi[PANEL] = {0}, padded[PANEL] = {0};
    (void)thread;
    for (size_t t = 0; t < a->cols; t++) {
        const float *z = a->z + t * a->ldz + begin;
        if (count < PANEL)
            z = memcpy(padded, z, count * sizeof *z);
        job->kernels->widen(z, lo, hi);
    }
    for (size_t r = 0; r < count; r++)
        vptq_uniform_grid(a->bits, a->symmetric, a->storage, lo[r], hi[r], &a->scale[begin + r],
                          &a->zero[begin + r]);
}

vptq_status vptq_cpu_uniform_range(vptq_dev *dev, const vptq_uniform_range_args *a,
                                   vptq_err *err)
{
    range_job job = {a, vptq_uniform_kernels_get(dev->simd)};
    (void)err;
    vptq_parallel_for(vptq_cpu_threads(dev, a->rows * a->cols), a->rows, PANEL, range_rows,
                      &job);
    return VPTQ_OK;
}

/* ---- pruning ---- */

enum { DIGITS = 256, MASK_ROWS = 4096 };

typedef struct mask_job {
    const vptq_prune_mask_args *args;
    size_t chunks;            /* of MASK_ROWS rows of a column */
    size_t (*counts)[DIGITS]; /* [threads] */
    uint32_t found;           /* the digits above `shift` of the key at position rank */
    unsigned shift;
} mask_job;

/* Element t of row *r is the first of chunk i; returns the number of rows in it. */
static size_t chunk_at(const mask_job *job, size_t i, size_t *t, size_t *r)
{
    const size_t rows = job->args->rows;
    *t = i / job->chunks;
    *r = i % job->chunks * MASK_ROWS;
    return rows - *r < MASK_ROWS ? rows - *r : MASK_ROWS;
}

static void count_digits(void *arg, size_t begin, size_t end, int thread)
{
    const mask_job *job = arg;
    const vptq_prune_mask_args *a = job->args;
    size_t *counts = job->counts[thread], t, r;
    for (size_t i = begin; i < end; i++) {
        const size_t count = chunk_at(job, i, &t, &r);
        const float *z = a->z + t * a->ldz + r, u = a->u[t * a->ldu + t];
        for (size_t k = 0; k < count; k++) {
            const uint32_t key = vptq_ref_prune_key(z[k], u);
            counts[key >> job->shift & (DIGITS - 1)] +=
                (uint64_t)(key ^ job->found) >> job->shift < DIGITS;
        }
    }
}

static void write_mask(void *arg, size_t begin, size_t end, int thread)
{
    const mask_job *job = arg;
    const vptq_prune_mask_args *a = job->args;
    size_t t, r;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const size_t count = chunk_at(job, i, &t, &r);
        const float *z = a->z + t * a->ldz + r, u = a->u[t * a->ldu + t];
        for (size_t k = 0; k < count; k++)
            a->mask[t * a->ldm + r + k] = vptq_ref_prune_key(z[k], u) <= job->found;
    }
}

vptq_status vptq_cpu_prune_mask(vptq_dev *dev, const vptq_prune_mask_args *a, vptq_err *err)
{
    mask_job job = {.args = a, .chunks = (a->rows + MASK_ROWS - 1) / MASK_ROWS, .shift = 32};
    const int threads = vptq_cpu_threads(dev, a->rows * a->cols);
    const size_t bytes = (size_t)threads * sizeof *job.counts;
    size_t rank = a->rank;
    job.counts = vptq_dev_scratch(dev, (size_t)threads, sizeof *job.counts, err);
    if (!job.counts)
        return VPTQ_E_NOMEM;
    while (job.shift > 0) {
        uint32_t digit = 0;
        job.shift -= 8;
        memset(job.counts, 0, bytes);
        vptq_parallel_for(threads, a->cols * job.chunks, 1, count_digits, &job);
        for (;; digit++) {
            size_t count = 0;
            for (int i = 0; i < threads; i++)
                count += job.counts[i][digit];
            if (rank < count)
                break;
            rank -= count;
        }
        job.found |= digit << job.shift;
    }
    vptq_parallel_for(threads, a->cols * job.chunks, 1, write_mask, &job);
    return VPTQ_OK;
}

/* ---- column pass ---- */

typedef struct pass_job {
    const vptq_uniform_pass_args *args;
    const vptq_uniform_kernels *kernels;
    const vptq_nearest_kernels *nearest; /* for `eliminate` */
    float *errors;                       /* [threads][cols][PANEL], NULL without u */
} pass_job;

/* A panel of rows on its way through the columns.  Rows after the last one are quantized too:
 * with scale 1. */
typedef struct panel {
    const pass_job *job;
    size_t first, count;
    vptq_uniform_panel grid;
    float *errors;                           /* [cols][PANEL], NULL without u */
    float z[PANEL], code[PANEL], d[PANEL];   /* the current column */
    uint8_t pruned[VPTQ_PRUNE_MAX_M][PANEL]; /* the columns of its n:m pattern */
} panel;

static vptq_uniform_panel grid_of(const vptq_uniform_pass_args *a, size_t first, size_t count)
{
    vptq_uniform_panel p = {.storage = a->storage, .max = (float)((1U << a->bits) - 1)};
    for (size_t r = 0; r < PANEL; r++) {
        const bool used = a->scale && r < count;
        p.scale[r] = used ? a->scale[first + r] : 1;
        p.zero[r] = used ? (float)a->zero[first + r] : 0;
    }
    return p;
}

static void store_codes(const float *code, size_t count, uint8_t *codes)
{
    uint8_t whole[PANEL];
    for (size_t r = 0; r < PANEL; r++)
        whole[r] = (uint8_t)code[r];
    memcpy(codes, whole, count);
}

/* p->z = column t after the errors of the first `before` columns. */
static void load_column(panel *p, size_t t, size_t before)
{
    const vptq_uniform_pass_args *a = p->job->args;
    memcpy(p->z, a->z + t * a->ldz + p->first, p->count * sizeof *p->z);
    if (a->u)
        p->job->nearest->eliminate(before, p->errors, a->u + t, a->ldu, p->z);
}

/* Chooses what is pruned of the columns of the pattern that begins at t. */
static void choose_pattern(panel *p, size_t t)
{
    const vptq_uniform_pass_args *a = p->job->args;
    uint32_t keys[PANEL][VPTQ_PRUNE_MAX_M];
    for (size_t i = 0; i < a->prune_m; i++) {
        load_column(p, t + i, t);
        for (size_t r = 0; r < p->count; r++)
            keys[r][i] = vptq_ref_prune_key(p->z[r], a->u[(t + i) * a->ldu + t + i]);
    }
    for (size_t r = 0; r < p->count; r++) {
        const unsigned smallest = vptq_ref_prune_smallest(keys[r], a->prune_n, a->prune_m);
        for (size_t i = 0; i < a->prune_m; i++)
            p->pruned[i][r] = smallest >> i & 1;
    }
}

/* p->code and p->d of column t. */
static void quantize_column(panel *p, size_t t)
{
    const vptq_uniform_pass_args *a = p->job->args;
    const uint8_t *pruned = a->prune_m ? p->pruned[t % a->prune_m]
                            : a->mask  ? a->mask + t * a->ldm + p->first
                                       : NULL;
    if (a->scale)
        p->job->kernels->quantize(&p->grid, p->z, p->code, p->d);
    else
        memcpy(p->d, p->z, sizeof p->d);
    for (size_t r = 0; pruned && r < p->count; r++) {
        p->code[r] = pruned[r] ? p->grid.zero[r] : p->code[r];
        p->d[r] = pruned[r] ? 0 : p->d[r];
    }
}

static void pass_column(panel *p, size_t t)
{
    const vptq_uniform_pass_args *a = p->job->args;
    const size_t bytes = p->count * sizeof *p->z;
    if (a->prune_m && t % a->prune_m == 0)
        choose_pattern(p, t);
    load_column(p, t, t);
    quantize_column(p, t);
    if (a->scale)
        store_codes(p->code, p->count, a->codes + t * a->ldc + p->first);
    if (!a->u)
        return;
    float *e = p->errors + t * PANEL;
    const float pivot = a->u[t * a->ldu + t];
    for (size_t r = 0; r < PANEL; r++)
        e[r] = (p->z[r] - p->d[r]) / pivot;
    memcpy(a->z + t * a->ldz + p->first, a->scale ? p->z : p->d, bytes);
    memcpy(a->err + t * a->lde + p->first, e, bytes);
}

static void pass_rows(void *arg, size_t begin, size_t end, int thread)
{
    const pass_job *job = arg;
    const vptq_uniform_pass_args *a = job->args;
    panel p = {.job = job,
               .first = begin,
               .count = end - begin,
               .grid = grid_of(a, begin, end - begin),
               .errors = a->u ? job->errors + (size_t)thread * a->cols * PANEL : NULL};
    for (size_t t = 0; t < a->cols; t++)
        pass_column(&p, t);
}

vptq_status vptq_cpu_uniform_pass(vptq_dev *dev, const vptq_uniform_pass_args *a, vptq_err *err)
{
    pass_job job = {a, vptq_uniform_kernels_get(dev->simd), vptq_nearest_kernels_get(dev->simd),
                    NULL};
    const size_t each = a->u ? a->cols * a->cols : a->cols;
    if (!a->rows || !a->cols)
        return VPTQ_OK;
    if (a->u) {
        job.errors = vptq_dev_scratch(dev, (size_t)dev->ctx->threads * a->cols * PANEL,
                                      sizeof *job.errors, err);
        if (!job.errors)
            return VPTQ_E_NOMEM;
    }
    vptq_parallel_for(vptq_cpu_threads(dev, a->rows * each), a->rows, PANEL, pass_rows, &job);
    return VPTQ_OK;
}
