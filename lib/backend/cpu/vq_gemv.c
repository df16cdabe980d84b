/* The op vq_gemv. x is brought into the processing order of the columns and scaled once; then
 * each vector row is a sum of centroids, each times one number. Centroids are read from a
 * layout (gemv.h), which is built for the first product with a matrix and kept with it.  The
 * inner loops are in gemv_simd.c, which is compiled for each level of lib/base/simd.h.
 *
 *     y[r] = sum_p x[perm[p]] scale[perm[p]] q[r][p] + sum_j x[j] bias[j]
 */
#include <math.h>
#include <string.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/cpu/gemv.h"
#include "lib/backend/cpu/grid.h"
#include "lib/backend/dev.h"
#include "lib/backend/ref/ref.h"
#include "lib/base/parallel.h"

enum {
    ROWS = VPTQ_BLOCK_VECTOR_ROWS,
    /* blocks of vector rows that pass through the groups together, so that the tables of a
       group are read once for all of them */
    BLOCKS = 8,
    LOOKUP_COST = 4, /* cost of a look-up, in multiplications of a dense product */
    MAX_SUMS = VPTQ_GEMV_ROWS * BLOCKS * ROWS * VPTQ_VQ_MAX_V
};

/* ---- vector rows ---- */

typedef struct gemv_job {
    const vptq_gemv_kernels *kernels;
    vptq_simd simd;
    const vptq_vq *q;
    const vptq_layout *layout;
    const vptq_gemv_args *g;
    float *x;     /* [n, ldx] in processing order, scaled; groups are `group` apart */
    float *start; /* [n] initial values of the sums of a row, without y and the bias */
    size_t ldx, group;
    uint8_t *digits; /* [n, groups, group * digits] on a grid, or NULL */
    float *unit;     /* [n, groups, pieces] */
    size_t pieces;   /* of a group */
    size_t row0, n;  /* tokens processed now */
    int threads;
    bool *fetched; /* [threads] whether a thread has prefetched the tables */
} gemv_job;

/* sum [n, ld_sum] += the columns of all groups in blocks [begin, end). */
static void add_groups(const gemv_job *job, size_t begin, size_t end, float *sum, size_t ld_sum)
{
    const vptq_layout *l = job->layout;
    const vptq_vq_shape *s = &job->q->shape;
    const size_t size = s->group_size * l->record; /* codes of a block */
    vptq_gemv_block b = {.columns = s->group_size,
                         .n = job->n,
                         .ldx = job->ldx,
                         .lanes = l->lanes,
                         .code_scale = l->code_scale,
                         .half = l->half,
                         .ld_sum = ld_sum};
    for (size_t g = 0; g < s->groups; g++) {
        b.main = l->main + g * s->k * l->row_bytes;
        b.res = l->res ? l->res + g * s->k_res * l->row_bytes : NULL;
        b.x = job->x + job->row0 * job->ldx + s->outliers + g * job->group;
        for (size_t i = begin; i < end; i++) {
            b.codes = l->codes + (g * l->blocks + i) * size;
            b.sum = sum + (i - begin) * ROWS * l->lanes;
            job->kernels->block(&b);
        }
    }
}

/* The same for codebooks on a grid. */
static void add_grid_groups(const gemv_job *job, size_t begin, size_t end, float *sum,
                            size_t ld_sum)
{
    const vptq_layout *l = job->layout;
    const vptq_vq_shape *s = &job->q->shape;
    const vptq_grid_kernels *kernels = vptq_grid_kernels_get(job->simd);
    const size_t group_digits = job->group * VPTQ_GRID_SPACE;
    vptq_grid_block b = {.records = l->records,
                         .n = job->n,
                         .residual = s->k_res > 0,
                         .ld_digits = s->groups * group_digits,
                         .ld_unit = s->groups * job->pieces,
                         .lanes = l->lanes,
                         .code_scale = l->code_scale,
                         .ld_sum = ld_sum};
    for (size_t g = 0; g < s->groups; g++) {
        b.table = (const int8_t *)l->main + g * ((size_t)s->k + s->k_res) * l->row_bytes;
        b.scale = l->scale + 2 * g;
        b.digits = job->digits + job->row0 * b.ld_digits + g * group_digits;
        b.unit = job->unit + job->row0 * b.ld_unit + g * job->pieces;
        for (size_t i = begin; i < end; i++) {
            b.codes = l->codes + (g * l->blocks + i) * l->block_codes;
            b.sum = sum + (i - begin) * ROWS * l->lanes;
            if (!l->starts) {
                kernels->block(&b);
                continue;
            }
            b.start = l->starts + (g * l->blocks + i) * l->block_starts;
            kernels->block_bytes(&b);
        }
    }
}

/* count rows of y from `first` on += sums */
static void add_to_row(const gemv_job *job, size_t i, size_t first, size_t count,
                       const float *sum)
{
    float *y = job->g->y + (job->row0 + i) * job->g->ldy + first;
    for (size_t r = 0; r < count; r++)
        y[r] += sum[r];
}

/* For every row of x, y += sums of vector rows [first, first + vector_rows), ld rows apart. */
static void add_vector_rows(const gemv_job *job, size_t first, size_t vector_rows, size_t v,
                            size_t lanes, const float *sum, size_t ld_sum)
{
    const size_t out = job->q->shape.out;
    for (size_t i = 0; i < job->n; i++)
        for (size_t s = 0; s < vector_rows; s++) {
            const size_t row = (first + s) * v;
            add_to_row(job, i, row, out - row < v ? out - row : v,
                       sum + i * ld_sum + s * lanes);
        }
}

static void prefetch(const uint8_t *table, size_t begin, size_t end)
{
    enum { LINE = 64 };
    for (size_t i = begin; i < end; i += LINE)
        __builtin_prefetch(table + i, 0, 2);
}

/* Prefetches the tables in order, once per thread, instead of entry by entry as they are used.
 * Each thread starts at another point: what one has fetched is near for the others. */
static void prefetch_tables(const gemv_job *job, int thread)
{
    enum { MAX = 512 << 10 };
    const vptq_layout *l = job->layout;
    const vptq_vq_shape *s = &job->q->shape;
    const size_t in_main = l->grid ? (size_t)s->k + s->k_res : s->k;
    const size_t main = s->groups * in_main * l->row_bytes;
    const size_t res = l->grid ? 0 : s->groups * s->k_res * l->row_bytes;
    const size_t begin = main / (size_t)job->threads * (size_t)thread;
    if (job->fetched[thread] || main + res > MAX)
        return;
    job->fetched[thread] = true;
    prefetch(l->res, 0, res);
    prefetch(l->main, begin, main);
    prefetch(l->main, 0, begin);
}

/* Advances to the next tokens; returns false after the last. */
static bool advance_rows(gemv_job *job)
{
    job->row0 += job->n;
    const size_t left = job->g->n - job->row0;
    job->n = left < VPTQ_GEMV_ROWS ? left : VPTQ_GEMV_ROWS;
    return left > 0;
}

static void multiply_rows(const gemv_job *job, size_t first, size_t blocks, float *sum)
{
    const size_t v = job->q->shape.v, lanes = job->layout->lanes;
    const size_t vector_rows = vptq_vq_vector_rows(&job->q->shape), vector_row = first * ROWS;
    const size_t ld_sum = blocks * ROWS * lanes;
    const size_t count =
        vector_rows - vector_row < blocks * ROWS ? vector_rows - vector_row : blocks * ROWS;
    memset(sum, 0, job->n * ld_sum * sizeof *sum);
    if (job->layout->grid)
        add_grid_groups(job, first, first + blocks, sum, ld_sum);
    else
        add_groups(job, first, first + blocks, sum, ld_sum);
    add_vector_rows(job, vector_row, count, v, lanes, sum, ld_sum);
}

static void multiply_blocks(void *arg, size_t begin, size_t end, int thread)
{
    const gemv_job *job = arg;
    _Alignas(64) float sum[MAX_SUMS];
    prefetch_tables(job, thread);
    for (size_t first = begin; first < end; first += BLOCKS)
        for (gemv_job rows = *job; advance_rows(&rows);)
            multiply_rows(&rows, first, end - first < BLOCKS ? end - first : BLOCKS, sum);
}

static void multiply_outlier_vector_row(const gemv_job *job, size_t vector_row)
{
    const vptq_vq *q = job->q;
    const vptq_vq_shape *s = &q->shape;
    const uint16_t *index = q->outlier_indices + vector_row * s->outliers;
    float sum[VPTQ_GEMV_ROWS * VPTQ_VQ_MAX_V];
    memset(sum, 0, job->n * s->v0 * sizeof *sum);
    for (size_t i = 0; i < job->n; i++) {
        const float *x = job->x + (job->row0 + i) * job->ldx;
        for (size_t p = 0; p < s->outliers; p++) {
            const float *c = q->outlier_centroids + (size_t)index[p] * s->v0;
            for (size_t e = 0; e < s->v0; e++)
                sum[i * s->v0 + e] += x[p] * c[e];
        }
    }
    add_vector_rows(job, vector_row, 1, s->v0, s->v0, sum, s->v0);
}

static void multiply_outliers(void *arg, size_t begin, size_t end, int thread)
{
    const gemv_job *job = arg;
    (void)thread;
    for (size_t vector_row = begin; vector_row < end; vector_row++)
        for (gemv_job rows = *job; advance_rows(&rows);)
            multiply_outlier_vector_row(&rows, vector_row);
}

/* ---- the op ---- */

float vptq_vq_prepare_x(const vptq_vq *q, const float *from, float *x)
{
    const size_t in = q->shape.in;
    double sum = 0;
    for (size_t p = 0; p < in; p++) {
        const size_t j = q->perm ? q->perm[p] : p;
        x[p] = q->scale ? from[j] * q->scale[j] : from[j];
    }
    for (size_t j = 0; q->bias && j < in; j++)
        sum += (double)from[j] * (double)q->bias[j];
    return (float)sum;
}

/* Prepares x of the groups for a grid: pads it to whole records and splits it into digits. */
static void prepare_grid_row(const gemv_job *job, size_t i, float *x)
{
    const vptq_vq_shape *s = &job->q->shape;
    for (size_t g = s->groups; g-- > 0;) {
        float *to = x + g * job->group;
        memmove(to, x + g * s->group_size, s->group_size * sizeof *x);
        memset(to + s->group_size, 0, (job->group - s->group_size) * sizeof *x);
        const size_t at = i * s->groups + g;
        vptq_grid_split(to, s->group_size, s->k_res > 0, job->layout->starts != NULL,
                        job->digits + at * job->group * VPTQ_GRID_SPACE,
                        job->unit + at * job->pieces);
    }
}

/* Prepares row i of x for the tables. */
static void prepare_row(const gemv_job *job, size_t i)
{
    const vptq_vq_shape *s = &job->q->shape;
    const float unit = ldexpf(1, -job->layout->shift);
    float *x = job->x + i * job->ldx;
    job->start[i] = vptq_vq_prepare_x(job->q, job->g->x + i * job->g->ldx, x);
    for (size_t p = s->outliers; job->layout->shift && p < s->in; p++)
        x[p] *= unit;
    if (job->layout->grid)
        prepare_grid_row(job, i, x + s->outliers);
}

static void begin_rows(void *arg, size_t begin, size_t end, int thread)
{
    const gemv_job *job = arg;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        prepare_row(job, i);
        vptq_gemv_start(job->g, i, job->start[i], 0, job->q->shape.out);
    }
}

vptq_status vptq_cpu_matrix_open(vptq_dev *dev, const vptq_vq *q, vptq_matrix **m,
                                 vptq_err *err)
{
    VPTQ_CHECK(vptq_ref_matrix_open(dev, q, m, err));
    (*m)->layout = vptq_mem_alloc(dev->ctx->mem, 1, sizeof *(*m)->layout, err);
    if ((*m)->layout) {
        *(*m)->layout = (vptq_layout){0};
        return VPTQ_OK;
    }
    vptq_ref_matrix_close(dev, *m);
    *m = NULL;
    return VPTQ_E_NOMEM;
}

void vptq_cpu_matrix_close(vptq_dev *dev, vptq_matrix *m)
{
    if (!m)
        return;
    vptq_layout_clear(m->layout);
    vptq_mem_free(dev->ctx->mem, m->layout);
    vptq_ref_matrix_close(dev, m);
}

/* Blocks per task: two tasks per thread, because a thread may start late. */
static size_t share(size_t blocks, int threads)
{
    enum { TIMES = 2 };
    return (blocks + TIMES * (size_t)threads - 1) / (TIMES * (size_t)threads);
}

/* Allocates the arrays of a job for n rows. */
static vptq_status allocate(vptq_dev *dev, size_t n, gemv_job *job, vptq_err *err)
{
    const vptq_vq_shape *s = &job->q->shape;
    const vptq_layout *l = job->layout;
    job->group = l->grid ? l->records * vptq_grid_columns(s->k_res > 0) : s->group_size;
    job->ldx = s->outliers + s->groups * job->group;
    job->pieces = l->grid ? (job->group + VPTQ_GRID_PIECE - 1) / VPTQ_GRID_PIECE : 0;
    const size_t numbers = n * (job->ldx + 1 + s->groups * job->pieces);
    const size_t bytes = l->grid ? n * s->groups * job->group * VPTQ_GRID_SPACE : 0;
    uint8_t *at =
        vptq_dev_scratch(dev, numbers * sizeof(float) + (size_t)job->threads + bytes, 1, err);
    if (!at)
        return VPTQ_E_NOMEM;
    job->x = (float *)(void *)at;
    job->start = job->x + n * job->ldx;
    job->unit = job->start + n;
    job->fetched = (bool *)(job->x + numbers);
    job->digits = l->grid ? at + numbers * sizeof(float) + job->threads : NULL;
    memset(job->fetched, 0, (size_t)job->threads * sizeof *job->fetched);
    return VPTQ_OK;
}

vptq_status vptq_cpu_vq_gemv(vptq_dev *dev, const vptq_matrix *m, const vptq_gemv_args *g,
                             vptq_err *err)
{
    const vptq_vq *q = &m->q;
    const vptq_vq_shape *s = &q->shape;
    if (!m->layout->codes && !vptq_vq_uses_panels(q, m->layout, g->n))
        VPTQ_CHECK(vptq_layout_make(dev, q, m->layout, err));
    if (vptq_vq_uses_panels(q, m->layout, g->n))
        return vptq_vq_gemv_batch(dev, q, g, err);
    const int threads = vptq_cpu_threads(dev, LOOKUP_COST * ((size_t)s->out * s->in / s->v));
    const size_t blocks = m->layout->blocks;
    gemv_job job = {.kernels = vptq_gemv_kernels_get(dev->simd),
                    .simd = dev->simd,
                    .q = q,
                    .layout = m->layout,
                    .g = g,
                    .threads = threads};
    VPTQ_CHECK(allocate(dev, g->n, &job, err));
    vptq_parallel_for(threads, g->n, VPTQ_GEMV_ROWS, begin_rows, &job);
    if (s->outliers)
        vptq_parallel_for(threads, (s->out + s->v0 - 1) / s->v0, 8, multiply_outliers, &job);
    vptq_parallel_for(threads, blocks, share(blocks, threads), multiply_blocks, &job);
    return VPTQ_OK;
}
