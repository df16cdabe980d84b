/* The row vq_gemv: columns are brought into processing order and scaled once, on the side of x;
 * then every strip is a sum of centroids, each times one number.
 *
 *     y[r] = sum_p x[perm[p]] scale[perm[p]] q[r][p] + sum_j x[j] bias[j]
 */
#include <string.h>

#include "lib/backend/cpu_gemm.h"
#include "lib/backend/cpu_gemv.h"
#include "lib/backend/cpu_vq.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

/* Blocks of strips that go through the groups together, so that a group's book is read once for
 * all of them. */
enum { BLOCKS = 8, MAX_SUMS = VPTQ_GEMV_ROWS * BLOCKS * VPTQ_GEMV_STRIPS * VPTQ_VQ_MAX_V };

/* ---- entries of the stream ---- */

vptq_fields vptq_fields_of(unsigned bits, unsigned main_bits, uint32_t v)
{
    enum { MOST = 25, HALF = 4 };
    vptq_fields f = {.bits = bits, .main_bits = main_bits, .v = v, .by_bytes = bits <= MOST};
    f.half = HALF * bits / 8;
    for (unsigned i = 0; i < 2 * HALF; i++) {
        unsigned bit = i < HALF ? i * bits : i * bits - 8 * f.half;
        f.shift[i] = bit % 8;
        for (unsigned b = 0; b < 4; b++)
            f.shuffle[4 * i + b] = (uint8_t)((bit / 8 + b) & 15);
    }
    return f;
}

void vptq_fields_plain(const vptq_fields *f, const uint32_t *row, size_t first, size_t count,
                       vptq_place *place)
{
    const uint64_t mask = (UINT64_C(1) << f->bits) - 1;
    const uint32_t main_mask = (uint32_t)((UINT64_C(1) << f->main_bits) - 1);
    size_t bit = first * f->bits;
    const uint32_t *word = row + bit / 32;
    uint64_t have = (uint64_t)*word++ >> (bit & 31);
    unsigned left = 32 - (unsigned)(bit & 31);
    for (size_t i = 0; i < count; i++) {
        if (left < f->bits) {
            have |= (uint64_t)*word++ << left;
            left += 32;
        }
        uint32_t entry = (uint32_t)(have & mask);
        have >>= f->bits;
        left -= f->bits;
        place[i].main = (entry & main_mask) * f->v;
        place[i].res = (uint32_t)((uint64_t)entry >> f->main_bits) * f->v;
    }
}

const vptq_gemv_kernels *vptq_gemv_kernels_get(vptq_simd simd)
{
#if defined(__x86_64__)
    if (simd == VPTQ_SIMD_AVX512)
        return &vptq_gemv_kernels_avx512;
    if (simd == VPTQ_SIMD_AVX2)
        return &vptq_gemv_kernels_avx2;
#endif
    (void)simd;
    return &vptq_gemv_kernels_none;
}

/* ---- strips ---- */

typedef struct gemv_job {
    const vptq_gemv_kernels *kernels;
    const vptq_vq *q;
    const vptq_gemv_args *g;
    const float *x; /* [n, in] in processing order, scaled */
    vptq_fields fields;
    size_t row0, n; /* rows of x that are taken */
} gemv_job;

/* The rows of block `first` of strips; the strips behind the last one are the last one again,
 * and their sums are thrown away. */
static void find_rows(const vptq_vq *q, size_t group, size_t first, vptq_gemv_block *b)
{
    const size_t strips = vptq_vq_strips(&q->shape), words = vptq_vq_row_words(&q->shape);
    for (size_t i = 0; i < VPTQ_GEMV_STRIPS; i++) {
        size_t strip = first + i < strips ? first + i : strips - 1;
        b->row[i] = q->indices + (group * strips + strip) * words;
    }
}

/* sum [n, ld_sum] += the columns of all groups in strips [begin, end). */
static void add_groups(const gemv_job *job, size_t begin, size_t end, float *sum, size_t ld_sum)
{
    const vptq_vq *q = job->q;
    const vptq_vq_shape *s = &q->shape;
    const size_t words = s->groups * vptq_vq_strips(s) * vptq_vq_row_words(s);
    vptq_gemv_block b = {.fields = &job->fields,
                         .end = q->indices + words,
                         .n = job->n,
                         .ldx = s->in,
                         .ld_sum = ld_sum};
    for (size_t g = 0; g < s->groups; g++) {
        b.book = q->centroids + g * s->k * s->v;
        b.res_book = s->k_res ? q->res_centroids + g * s->k_res * s->v : NULL;
        for (size_t strip = begin; strip < end; strip += VPTQ_GEMV_STRIPS) {
            find_rows(q, g, strip, &b);
            b.sum = sum + (strip - begin) * s->v;
            for (size_t c = 0; c < s->group_size; c += VPTQ_GEMV_PIECE) {
                size_t left = s->group_size - c;
                b.first = c;
                b.columns = left < VPTQ_GEMV_PIECE ? left : VPTQ_GEMV_PIECE;
                b.x = job->x + job->row0 * s->in + s->outliers + g * s->group_size + c;
                job->kernels->block(&b);
            }
        }
    }
}

/* Rows [first, first + count) of y += sums that begin with row `first`. */
static void add_to_rows(const gemv_job *job, size_t first, size_t count, const float *sum,
                        size_t ld_sum)
{
    for (size_t i = 0; i < job->n; i++) {
        float *y = job->g->y + (job->row0 + i) * job->g->ldy + first;
        for (size_t r = 0; r < count; r++)
            y[r] += sum[i * ld_sum + r];
    }
}

static size_t rows_in(uint32_t out, size_t first, size_t strips, size_t v)
{
    return first + strips * v < out ? strips * v : out - first;
}

static void multiply_strips(void *arg, size_t begin, size_t end, int thread)
{
    const gemv_job *job = arg;
    const vptq_vq_shape *s = &job->q->shape;
    _Alignas(64) float sum[MAX_SUMS];
    (void)thread;
    for (size_t first = begin; first < end; first += BLOCKS * VPTQ_GEMV_STRIPS) {
        size_t left = end - first, most = BLOCKS * VPTQ_GEMV_STRIPS;
        size_t strips = left < most ? left : most;
        size_t ld_sum =
            (strips + VPTQ_GEMV_STRIPS - 1) / VPTQ_GEMV_STRIPS * VPTQ_GEMV_STRIPS * s->v;
        memset(sum, 0, job->n * ld_sum * sizeof *sum);
        add_groups(job, first, first + strips, sum, ld_sum);
        add_to_rows(job, first * s->v, rows_in(s->out, first * s->v, strips, s->v), sum,
                    ld_sum);
    }
}

static void multiply_outliers(void *arg, size_t begin, size_t end, int thread)
{
    const gemv_job *job = arg;
    const vptq_vq *q = job->q;
    const vptq_vq_shape *s = &q->shape;
    float sum[VPTQ_GEMV_ROWS * VPTQ_VQ_MAX_V];
    (void)thread;
    for (size_t strip = begin; strip < end; strip++) {
        const uint16_t *index = q->outlier_indices + strip * s->outliers;
        memset(sum, 0, job->n * s->v0 * sizeof *sum);
        for (size_t i = 0; i < job->n; i++) {
            const float *x = job->x + (job->row0 + i) * s->in;
            for (size_t p = 0; p < s->outliers; p++) {
                const float *c = q->outlier_centroids + (size_t)index[p] * s->v0;
                for (size_t e = 0; e < s->v0; e++)
                    sum[i * s->v0 + e] += x[p] * c[e];
            }
        }
        add_to_rows(job, strip * s->v0, rows_in(s->out, strip * s->v0, 1, s->v0), sum, s->v0);
    }
}

/* ---- the row ---- */

/* x in processing order and scaled; start[i] = sum of x[i] times the matrix's bias. */
static void prepare_x(const vptq_vq *q, const vptq_gemv_args *g, float *x, float *start)
{
    const size_t in = q->shape.in;
    for (size_t i = 0; i < g->n; i++, x += in) {
        const float *from = g->x + i * g->ldx;
        double sum = 0;
        for (size_t p = 0; p < in; p++) {
            size_t j = q->perm ? q->perm[p] : p;
            x[p] = q->scale ? from[j] * q->scale[j] : from[j];
        }
        for (size_t j = 0; q->bias && j < in; j++)
            sum += (double)from[j] * (double)q->bias[j];
        start[i] = (float)sum;
    }
}

static void begin_rows(const vptq_gemv_args *g, size_t out, const float *start)
{
    for (size_t i = 0; i < g->n; i++) {
        float *y = g->y + i * g->ldy;
        for (size_t r = 0; r < out; r++)
            y[r] = (g->beta != 0 ? y[r] : 0) + ((g->bias ? g->bias[r] : 0) + start[i]);
    }
}

/* A share for each thread, in whole blocks. */
static size_t share(size_t strips, int threads)
{
    size_t each = (strips + (size_t)threads - 1) / (size_t)threads;
    return (each + VPTQ_GEMV_STRIPS - 1) / VPTQ_GEMV_STRIPS * VPTQ_GEMV_STRIPS;
}

vptq_status vptq_cpu_vq_gemv(vptq_dev *dev, const vptq_matrix *m, const vptq_gemv_args *g,
                             vptq_err *err)
{
    const vptq_vq *q = &m->q;
    const vptq_vq_shape *s = &q->shape;
    float *x = vptq_dev_scratch(dev, g->n * ((size_t)s->in + 1), sizeof *x, err);
    if (!x)
        return VPTQ_E_NOMEM;
    float *start = x + g->n * s->in;
    gemv_job job = {.kernels = vptq_gemv_kernels_get(dev->simd),
                    .q = q,
                    .g = g,
                    .x = x,
                    .fields = vptq_fields_of(vptq_vq_index_bits(s), vptq_log2u(s->k), s->v)};
    prepare_x(q, g, x, start);
    begin_rows(g, s->out, start);
    const size_t strips = vptq_vq_strips(s);
    const int threads = vptq_cpu_threads(dev, (size_t)s->out * s->in / s->v);
    for (; job.row0 < g->n; job.row0 += job.n) {
        size_t left = g->n - job.row0;
        job.n = left < VPTQ_GEMV_ROWS ? left : VPTQ_GEMV_ROWS;
        if (s->outliers)
            vptq_parallel_for(threads, (s->out + s->v0 - 1) / s->v0, 8, multiply_outliers,
                              &job);
        vptq_parallel_for(threads, strips, share(strips, threads), multiply_strips, &job);
    }
    return VPTQ_OK;
}
