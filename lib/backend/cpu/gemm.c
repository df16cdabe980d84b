/* The op gemm, and matrix products for other ops (gemm.h). */
#include "lib/backend/cpu/gemm.h"

#include <string.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

enum {
    DEPTH_STEP = 8,
    DEPTH = 384, /* rows of B that a sum covers before it is stored in C */
    ROWS = 224,  /* rows of a task, about */
    COLS = 768,  /* columns of a task: DEPTH x COLS floats of B stay in a second-level cache */
    PACKED = 1 << 22,           /* floats of B packed at a time, at least COLS columns */
    FEW = 8,                    /* rows of A for which packing B costs more than it saves */
    FEW_COLS = 128,             /* columns of a task for few rows */
    MIN_PARALLEL_WORK = 1 << 15 /* multiplications worth waking threads for */
};

vptq_cpu_tiles vptq_cpu_tiles_of(size_t n, size_t max, size_t step)
{
    vptq_cpu_tiles t = {.n = n, .size = step};
    const size_t wanted = (n + max - 1) / max;
    if (wanted) {
        const size_t even = (n + wanted - 1) / wanted;
        t.size = (even + step - 1) / step * step;
    }
    t.count = (n + t.size - 1) / t.size;
    return t;
}

size_t vptq_cpu_tile_length(const vptq_cpu_tiles *t, size_t index)
{
    const size_t left = t->n - index * t->size;
    return left < t->size ? left : t->size;
}

void vptq_cpu_lower_tile(size_t index, size_t *row, size_t *col)
{
    size_t r = 0;
    while (index > r) {
        index -= r + 1;
        r++;
    }
    *row = r;
    *col = index;
}

int vptq_cpu_threads(const vptq_dev *dev, size_t work)
{
    return work < MIN_PARALLEL_WORK ? 1 : dev->threads;
}

/* ---- packing ---- */

void vptq_cpu_pack_left(const vptq_cpu_math *math, size_t rows, size_t k, const float *a,
                        size_t ld, bool transposed, float alpha, float *out)
{
    const size_t height = math->tile_rows;
    if (rows < height)
        memset(out, 0, k * height * sizeof *out);
    if (transposed)
        math->copy(k, rows, a, ld, alpha, out, height);
    else
        math->transpose(rows, k, a, ld, alpha, out, height);
}

static size_t panels_of(const vptq_cpu_math *math, size_t n)
{
    return (n + math->tile_cols - 1) / math->tile_cols;
}

/* Offset of panel `panel` of the block from row l on in packed B [k, n]: for every depth of k,
 * panel after panel [depth, tile_cols]; columns after n are 0. */
static size_t panel_at(const vptq_cpu_math *math, size_t n, size_t l, size_t depth,
                       size_t panel)
{
    return (l * panels_of(math, n) + panel * depth) * math->tile_cols;
}

static void pack_panel(const vptq_cpu_math *math, const vptq_gemm_args *g, size_t l,
                       size_t depth, size_t panel, float *out)
{
    const size_t width = math->tile_cols, j0 = panel * width;
    const size_t cols = g->n - j0 < width ? g->n - j0 : width;
    if (cols < width)
        memset(out, 0, depth * width * sizeof *out);
    if (g->trans_b)
        math->transpose(cols, depth, g->b + j0 * g->ldb + l, g->ldb, 1, out, width);
    else
        math->copy(depth, cols, g->b + l * g->ldb + j0, g->ldb, 1, out, width);
}

static vptq_cpu_tiles depths_of(size_t k)
{
    return vptq_cpu_tiles_of(k, DEPTH, DEPTH_STEP);
}

static void pack_right(const vptq_cpu_math *math, const vptq_gemm_args *g, size_t begin,
                       size_t end, float *packed)
{
    const vptq_cpu_tiles depths = depths_of(g->k);
    for (size_t t = 0; t < depths.count; t++) {
        const size_t l = t * depths.size, depth = vptq_cpu_tile_length(&depths, t);
        for (size_t p = begin; p < end; p++)
            pack_panel(math, g, l, depth, p, packed + panel_at(math, g->n, l, depth, p));
    }
}

/* ---- products ---- */

/* Initializes C in these rows and columns: unchanged, bias, their sum or zero. */
static void start_block(const vptq_gemm_args *g, size_t row, size_t row_end, size_t col,
                        size_t col_end)
{
    for (size_t i = row; i < row_end; i++) {
        float *c = g->c + i * g->ldc;
        if (g->bias && g->beta != 0)
            for (size_t j = col; j < col_end; j++)
                c[j] += g->bias[j];
        else if (g->bias)
            memcpy(c + col, g->bias + col, (col_end - col) * sizeof *c);
        else if (g->beta == 0)
            memset(c + col, 0, (col_end - col) * sizeof *c);
    }
}

/* Rows [row, row_end), panels [panel, panel_end) of the product from packed B; left: work space
 * for a row block. */
static void multiply(const vptq_cpu_math *math, const vptq_gemm_args *g, const float *packed,
                     size_t row, size_t row_end, size_t panel, size_t panel_end, float *left)
{
    const size_t width = math->tile_cols, height = math->tile_rows;
    const vptq_cpu_tiles depths = depths_of(g->k);
    if (g->bias || g->k == 0)
        start_block(g, row, row_end, panel * width,
                    panel_end * width < g->n ? panel_end * width : g->n);
    for (size_t t = 0; t < depths.count; t++) {
        const size_t l = t * depths.size, depth = vptq_cpu_tile_length(&depths, t);
        const bool add = t > 0 || g->bias || g->beta != 0;
        for (size_t i = row; i < row_end; i += height) {
            const size_t rows = row_end - i < height ? row_end - i : height;
            const float *a = g->a + (g->trans_a ? l * g->lda + i : i * g->lda + l);
            vptq_cpu_pack_left(math, rows, depth, a, g->lda, g->trans_a, g->alpha, left);
            for (size_t p = panel; p < panel_end; p++) {
                const size_t j = p * width, cols = g->n - j < width ? g->n - j : width;
                math->tile(depth, left, packed + panel_at(math, g->n, l, depth, p), add,
                           g->c + i * g->ldc + j, g->ldc, rows, cols);
            }
        }
    }
}

static size_t left_size(const vptq_cpu_math *math)
{
    return math->tile_rows * DEPTH;
}

size_t vptq_cpu_gemm_work(const vptq_cpu_math *math, size_t n, size_t k)
{
    return panels_of(math, n) * math->tile_cols * k + left_size(math);
}

void vptq_cpu_gemm_serial(const vptq_cpu_math *math, const vptq_gemm_args *g, float *work)
{
    const size_t panels = panels_of(math, g->n);
    float *left = work + panels * math->tile_cols * g->k;
    pack_right(math, g, 0, panels, work);
    multiply(math, g, work, 0, g->m, 0, panels, left);
}

/* ---- the op ---- */

typedef struct gemm_job {
    const vptq_cpu_math *math;
    vptq_gemm_args g; /* restricted to the current columns */
    vptq_cpu_tiles rows, cols;
    float *packed, *left;
} gemm_job;

static void gemm_pack(void *arg, size_t begin, size_t end, int thread)
{
    const gemm_job *job = arg;
    (void)thread;
    pack_right(job->math, &job->g, begin, end, job->packed);
}

static void gemm_tile(void *arg, size_t begin, size_t end, int thread)
{
    const gemm_job *job = arg;
    (void)end; /* each task is one tile */
    const size_t row = begin % job->rows.count, col = begin / job->rows.count;
    const size_t i = row * job->rows.size, j = col * job->cols.size;
    const size_t i_end = i + vptq_cpu_tile_length(&job->rows, row);
    const size_t j_end = j + vptq_cpu_tile_length(&job->cols, col);
    multiply(job->math, &job->g, job->packed, i, i_end, j / job->math->tile_cols,
             panels_of(job->math, j_end), job->left + (size_t)thread * left_size(job->math));
}

/* Few rows: every column of B is read once, in place. */
static void gemm_few(void *arg, size_t begin, size_t end, int thread)
{
    const gemm_job *job = arg;
    const vptq_gemm_args *g = &job->g;
    (void)thread;
    start_block(g, 0, g->m, begin, end);
    if (g->trans_b)
        job->math->dots(g->m, end - begin, g->k, g->alpha, g->a, g->lda, g->b + begin * g->ldb,
                        g->ldb, g->c + begin, g->ldc);
    else
        job->math->axpys(g->m, end - begin, g->k, g->alpha, g->a, g->lda, g->b + begin, g->ldb,
                         g->c + begin, g->ldc);
}

/* Columns [j, j + n) of the product, as a product of its own. */
static vptq_gemm_args columns_of(const vptq_gemm_args *g, size_t j, size_t n)
{
    vptq_gemm_args part = *g;
    part.n = n;
    part.b += g->trans_b ? j * g->ldb : j;
    part.c += j;
    if (part.bias)
        part.bias += j;
    return part;
}

vptq_status vptq_cpu_gemm(vptq_dev *dev, const vptq_gemm_args *g, vptq_err *err)
{
    const vptq_cpu_math *math = vptq_cpu_math_get(dev->simd);
    const int threads = vptq_cpu_threads(dev, g->m * g->n * g->k);
    gemm_job job = {.math = math, .g = *g};
    if (g->m <= FEW && !g->trans_a) {
        vptq_parallel_for(threads, g->n, FEW_COLS, gemm_few, &job);
        return VPTQ_OK;
    }

    const size_t fit = g->k ? PACKED / g->k : g->n;
    const vptq_cpu_tiles pieces =
        vptq_cpu_tiles_of(g->n, fit > COLS ? fit : COLS, math->tile_cols);
    const size_t packed = panels_of(math, pieces.size) * math->tile_cols * g->k;
    job.packed = vptq_dev_scratch(dev, packed + (size_t)dev->threads * left_size(math),
                                  sizeof *job.packed, err);
    if (!job.packed)
        return VPTQ_E_NOMEM;
    job.left = job.packed + packed;
    job.rows = vptq_cpu_tiles_of(g->m, ROWS, math->tile_rows);
    for (size_t s = 0; s < pieces.count; s++) {
        job.g = columns_of(g, s * pieces.size, vptq_cpu_tile_length(&pieces, s));
        job.cols = vptq_cpu_tiles_of(job.g.n, COLS, math->tile_cols);
        vptq_parallel_for(threads, panels_of(math, job.g.n), 4, gemm_pack, &job);
        vptq_parallel_for(threads, job.rows.count * job.cols.count, 1, gemm_tile, &job);
    }
    return VPTQ_OK;
}
