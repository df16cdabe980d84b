/* The op uniform_gemv.  Few tokens: four rows at a time are decoded piece by piece, and each
 * piece is multiplied with all tokens while it is in the first cache.  The sums are those of
 * gemv.  More tokens meet packed panels of decoded rows (batch.c). */
#include "lib/backend/cpu/uniform_gemv.h"

#include <string.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/cpu/gemv.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

enum {
    PIECE = VPTQ_UNIFORM_PIECE,
    PADDED = PIECE + VPTQ_UNIFORM_PAD,
    ROWS = VPTQ_UNIFORM_ROWS,
    TOKENS = VPTQ_UNIFORM_TOKENS,
    LANES = VPTQ_UNIFORM_LANES,
    FEW_TOKENS = 16 /* those of gemv, so that sums agree */
};

typedef struct uniform_job {
    const vptq_uniform_gemv_kernels *kernels;
    const vptq_gemv_kernels *dense;
    const vptq_uniform *w;
    vptq_dtype storage;
    const vptq_gemv_args *g;
    const float *ends; /* [tokens][LANES] the last in % LANES columns of x, then zeros */
} uniform_job;

/* Columns [first, first + n) of row r, first a multiple of 8. */
static vptq_uniform_piece piece_of(const uniform_job *job, size_t r, size_t first, size_t n,
                                   float *values)
{
    const vptq_uniform *w = job->w;
    const size_t at = r * vptq_uniform_groups(&w->shape);
    return (vptq_uniform_piece){.w = w,
                                .storage = job->storage,
                                .row = r,
                                .first = first,
                                .n = n,
                                .scales = w->scales + at,
                                .zeros = w->zeros ? w->zeros + at : NULL,
                                .values = values};
}

/* n <= PIECE; may write VPTQ_UNIFORM_PAD numbers more. */
static void decode_piece(const uniform_job *job, size_t r, size_t first, size_t n,
                         float *values)
{
    const vptq_uniform_piece p = piece_of(job, r, first, n, values);
    job->kernels->decode(&p);
}

/* ---- few tokens ---- */

typedef struct sums {
    float of[FEW_TOKENS][ROWS][LANES];
} sums;

/* Adds the products of columns [first, first + n) of all tokens. */
static void add_piece(const uniform_job *job, float values[ROWS][PADDED], size_t rows,
                      size_t first, size_t n, sums *s)
{
    const vptq_gemv_args *g = job->g;
    const size_t whole = n / LANES * LANES;
    for (size_t i = 0; i < g->n; i += TOKENS) {
        vptq_uniform_dots d = {.rows = rows,
                               .tokens = g->n - i < TOKENS ? g->n - i : TOKENS,
                               .columns = whole,
                               .w = values[0],
                               .ldw = PADDED,
                               .x = g->x + i * g->ldx + first,
                               .ldx = g->ldx,
                               .sum = s->of + i};
        job->kernels->dots(&d);
        if (whole == n)
            continue;
        d.columns = LANES;
        d.w += whole;
        d.x = job->ends + i * LANES;
        d.ldx = LANES;
        job->kernels->dots(&d);
    }
}

static void finish(const uniform_job *job, size_t i, size_t r, float sum)
{
    const vptq_gemv_args *g = job->g;
    float *y = g->y + i * g->ldy + r;
    *y = (g->beta != 0 ? *y : 0) + ((g->bias ? g->bias[r] : 0) + sum);
}

static void multiply_rows(const uniform_job *job, size_t r, size_t rows)
{
    const size_t in = job->w->shape.in;
    float values[ROWS][PADDED];
    sums s;
    memset(s.of, 0, job->g->n * sizeof *s.of);
    for (size_t c = 0; c < in; c += PIECE) {
        const size_t n = in - c < PIECE ? in - c : PIECE;
        for (size_t e = 0; e < rows; e++) {
            decode_piece(job, r + e, c, n, values[e]);
            memset(values[e] + n, 0, LANES * sizeof(float));
        }
        add_piece(job, values, rows, c, n, &s);
    }
    for (size_t i = 0; i < job->g->n; i++)
        for (size_t e = 0; e < rows; e++)
            finish(job, i, r + e, job->kernels->total(s.of[i][e]));
}

/* The product of one token with a row that need not be decoded to memory. */
static bool multiply_row(const uniform_job *job, size_t r)
{
    const vptq_uniform_piece p = piece_of(job, r, 0, job->w->shape.in, NULL);
    float sum;
    if (job->g->n != 1 || !job->kernels->dot(&p, job->g->x, &sum))
        return false;
    finish(job, 0, r, sum);
    return true;
}

static void multiply_range(void *arg, size_t begin, size_t end, int thread)
{
    const uniform_job *job = arg;
    (void)thread;
    size_t r = begin;
    while (r < end && multiply_row(job, r))
        r++;
    for (; r < end; r += ROWS)
        multiply_rows(job, r, end - r < ROWS ? end - r : ROWS);
}

static void multiply_few(vptq_dev *dev, uniform_job *job)
{
    enum { CHUNK = 1 << 15 /* elements */ };
    const size_t out = job->w->shape.out, in = job->w->shape.in, last = in % LANES;
    float ends[FEW_TOKENS * LANES] = {0};
    for (size_t i = 0; i < job->g->n; i++)
        memcpy(ends + i * LANES, job->g->x + i * job->g->ldx + in - last, last * sizeof *ends);
    job->ends = ends;
    vptq_parallel_for(vptq_cpu_threads(dev, out * in), out,
                      (CHUNK / (in + 1) / ROWS + 1) * ROWS, multiply_range, job);
}

/* ---- many tokens ---- */

static void pack_rows(const void *arg, const vptq_cpu_math *math, size_t r0, size_t n, size_t l,
                      size_t depth, float *work, float *panels)
{
    const uniform_job *job = arg;
    const size_t width = math->tile_cols;
    for (size_t j = 0; j < n; j += width, panels += depth * width) {
        const size_t rows = n - j < width ? n - j : width;
        for (size_t r = 0; r < rows; r++) /* each writes a few numbers after its end */
            decode_piece(job, r0 + j + r, l, depth, work + r * depth);
        job->dense->panel(VPTQ_F32, work, depth * sizeof *work, rows, depth, panels, width);
    }
}

static vptq_status multiply_many(vptq_dev *dev, const uniform_job *job, vptq_err *err)
{
    enum { PANELS = 3 }; /* panels of a piece */
    const size_t width = vptq_cpu_math_get(dev->simd)->tile_cols;
    const vptq_batch_source source = {.pack = pack_rows,
                                      .arg = job,
                                      .out = job->w->shape.out,
                                      .in = job->w->shape.in,
                                      .piece_rows = PANELS * width,
                                      .work_rows = width + 1};
    float *work =
        vptq_dev_scratch(dev, vptq_batch_work(dev, &source, job->g->n), sizeof *work, err);
    if (!work)
        return VPTQ_E_NOMEM;
    vptq_batch_multiply(dev, &source, job->g, NULL, work);
    return VPTQ_OK;
}

vptq_status vptq_cpu_uniform_gemv(vptq_dev *dev, const vptq_uniform *w, vptq_dtype storage,
                                  const vptq_gemv_args *g, vptq_err *err)
{
    _Static_assert((int)PIECE >= (int)VPTQ_BATCH_DEPTH && PIECE % LANES == 0, "pieces of both");
    uniform_job job = {.kernels = vptq_uniform_gemv_kernels_get(dev->simd),
                       .dense = vptq_gemv_kernels_get(dev->simd),
                       .w = w,
                       .storage = storage,
                       .g = g};
    VPTQ_BUG_IF(storage != VPTQ_F16 && storage != VPTQ_BF16);
    if (g->n > FEW_TOKENS)
        return multiply_many(dev, &job, err);
    multiply_few(dev, &job);
    return VPTQ_OK;
}
