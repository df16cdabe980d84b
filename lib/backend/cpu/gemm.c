/* The op gemm, and matrix products for other ops (gemm.h). */
#include "lib/backend/cpu/gemm.h"

#include <string.h>

#include "lib/backend/cpu/amx.h"
#include "lib/backend/cpu/cpu.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

enum {
    DEPTH_STEP = 8,
    DEPTH = 384, /* rows of B that a sum covers before it is stored in C */
    BF16_DEPTH = 576,
    ROWS = 224, /* rows of a task, about */
    COLS = 768, /* columns of a task: DEPTH x COLS floats of B stay in a second-level cache */
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
    return work < MIN_PARALLEL_WORK ? 1 : dev->ctx->threads;
}

/* ---- packing ---- */

/* How operands are packed, and what multiplies them.  In packed memory a step of k takes
 * `rows` (left) or `cols` (right) numbers, `per_float` of them in a float. */
typedef struct product {
    const vptq_cpu_math *math;
    size_t rows, cols; /* of a tile of C */
    size_t depth;      /* largest part of k at a time */
    size_t step;       /* packed operands are filled up to a multiple of so many steps of k */
    size_t per_float;
    bool bf16, amx;
} product;

static product product_of(const vptq_cpu_math *math, bool bf16, bool amx)
{
    product p = {math, math->tile_rows, math->tile_cols, DEPTH, 1, 1, bf16, bf16 && amx};
    if (bf16) {
        p.depth = BF16_DEPTH;
        p.step = VPTQ_AMX_STEP;
    }
    if (p.amx) {
        p.rows = p.cols = VPTQ_AMX_TILE;
        p.per_float = 2;
    }
    return p;
}

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

/* Fills up and rounds a packed operand of `width` numbers per step. */
static void round_packed(const product *p, size_t width, size_t k, float *packed)
{
    const size_t padded = vptq_round_up(k, p->step);
    memset(packed + k * width, 0, (padded - k) * width * sizeof *packed);
    vptq_round_to_n(VPTQ_BF16, packed, padded * width);
}

static void pack_left(const product *p, const vptq_gemm_args *g, size_t i, size_t rows,
                      size_t l, size_t depth, float *out)
{
    const float *a = g->a + (g->trans_a ? l * g->lda + i : i * g->lda + l);
    if (p->amx) {
        vptq_amx_pack_left(rows, depth, a, g->lda, g->trans_a, g->alpha, out);
        return;
    }
    vptq_cpu_pack_left(p->math, rows, depth, a, g->lda, g->trans_a, g->alpha, out);
    if (p->bf16)
        round_packed(p, p->rows, depth, out);
}

static size_t panels_of(const product *p, size_t n)
{
    return (n + p->cols - 1) / p->cols;
}

/* Offset of panel `panel` of the block from row l on in packed B [k, n]: for every depth of k,
 * panel after panel [depth, cols]; columns after n are 0. */
static size_t panel_at(const product *p, size_t n, size_t l, size_t depth, size_t panel)
{
    return (l * panels_of(p, n) + panel * vptq_round_up(depth, p->step)) * p->cols /
           p->per_float;
}

static void pack_panel(const product *p, const vptq_gemm_args *g, size_t l, size_t depth,
                       size_t panel, float *out)
{
    const size_t width = p->cols, j0 = panel * width;
    const size_t cols = g->n - j0 < width ? g->n - j0 : width;
    const float *b = g->b + (g->trans_b ? j0 * g->ldb + l : l * g->ldb + j0);
    if (p->amx) {
        vptq_amx_pack_right(cols, depth, b, g->ldb, g->trans_b, out);
        return;
    }
    if (cols < width)
        memset(out, 0, depth * width * sizeof *out);
    if (g->trans_b)
        p->math->transpose(cols, depth, b, g->ldb, 1, out, width);
    else
        p->math->copy(depth, cols, b, g->ldb, 1, out, width);
    if (p->bf16)
        round_packed(p, width, depth, out);
}

static vptq_cpu_tiles depths_of(const product *p, size_t k)
{
    return vptq_cpu_tiles_of(k, p->depth, p->bf16 ? p->step : DEPTH_STEP);
}

static void pack_right(const product *p, const vptq_gemm_args *g, size_t begin, size_t end,
                       float *packed)
{
    const vptq_cpu_tiles depths = depths_of(p, g->k);
    for (size_t t = 0; t < depths.count; t++) {
        const size_t l = t * depths.size, depth = vptq_cpu_tile_length(&depths, t);
        for (size_t i = begin; i < end; i++)
            pack_panel(p, g, l, depth, i, packed + panel_at(p, g->n, l, depth, i));
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

static void multiply_tile(const product *p, size_t depth, const float *left, const float *right,
                          bool add, float *c, size_t ldc, size_t rows, size_t cols)
{
    const size_t padded = vptq_round_up(depth, p->step);
    if (p->amx)
        vptq_amx_tile(padded, left, right, add, c, ldc, rows, cols);
    else if (p->bf16)
        p->math->tile_bf16(padded, left, right, add, c, ldc, rows, cols);
    else
        p->math->tile(depth, left, right, add, c, ldc, rows, cols);
}

/* Rows [row, row_end), panels [panel, panel_end) of the product from packed B; left: work space
 * for a row block. */
static void multiply(const product *p, const vptq_gemm_args *g, const float *packed, size_t row,
                     size_t row_end, size_t panel, size_t panel_end, float *left)
{
    const size_t width = p->cols, height = p->rows;
    const vptq_cpu_tiles depths = depths_of(p, g->k);
    if (g->bias || g->k == 0)
        start_block(g, row, row_end, panel * width,
                    panel_end * width < g->n ? panel_end * width : g->n);
    if (p->amx)
        vptq_amx_begin();
    for (size_t t = 0; t < depths.count; t++) {
        const size_t l = t * depths.size, depth = vptq_cpu_tile_length(&depths, t);
        const bool add = t > 0 || g->bias || g->beta != 0;
        for (size_t i = row; i < row_end; i += height) {
            const size_t rows = row_end - i < height ? row_end - i : height;
            pack_left(p, g, i, rows, l, depth, left);
            for (size_t q = panel; q < panel_end; q++) {
                const size_t j = q * width, cols = g->n - j < width ? g->n - j : width;
                multiply_tile(p, depth, left, packed + panel_at(p, g->n, l, depth, q), add,
                              g->c + i * g->ldc + j, g->ldc, rows, cols);
            }
        }
    }
    if (p->amx)
        vptq_amx_end();
}

static size_t left_size(const product *p)
{
    return p->rows * p->depth / p->per_float;
}

/* Floats of packed B. */
static size_t right_size(const product *p, size_t n, size_t k)
{
    return panels_of(p, n) * p->cols * vptq_round_up(k, p->step) / p->per_float;
}

size_t vptq_cpu_gemm_work(const vptq_cpu_math *math, size_t n, size_t k)
{
    const product p = product_of(math, false, false);
    return right_size(&p, n, k) + left_size(&p);
}

void vptq_cpu_gemm_serial(const vptq_cpu_math *math, const vptq_gemm_args *g, float *work)
{
    const product p = product_of(math, false, false);
    const size_t panels = panels_of(&p, g->n);
    float *left = work + right_size(&p, g->n, g->k);
    pack_right(&p, g, 0, panels, work);
    multiply(&p, g, work, 0, g->m, 0, panels, left);
}

/* ---- the op ---- */

typedef struct gemm_job {
    product p;
    vptq_gemm_args g; /* restricted to the current columns */
    vptq_cpu_tiles rows, cols;
    float *packed, *left;
} gemm_job;

static void gemm_pack(void *arg, size_t begin, size_t end, int thread)
{
    const gemm_job *job = arg;
    (void)thread;
    pack_right(&job->p, &job->g, begin, end, job->packed);
}

static void gemm_tile(void *arg, size_t begin, size_t end, int thread)
{
    const gemm_job *job = arg;
    (void)end; /* each task is one tile */
    const size_t row = begin % job->rows.count, col = begin / job->rows.count;
    const size_t i = row * job->rows.size, j = col * job->cols.size;
    const size_t i_end = i + vptq_cpu_tile_length(&job->rows, row);
    const size_t j_end = j + vptq_cpu_tile_length(&job->cols, col);
    multiply(&job->p, &job->g, job->packed, i, i_end, j / job->p.cols,
             panels_of(&job->p, j_end), job->left + (size_t)thread * left_size(&job->p));
}

/* Few rows: every column of B is read once, in place. */
static void gemm_few(void *arg, size_t begin, size_t end, int thread)
{
    const gemm_job *job = arg;
    const vptq_gemm_args *g = &job->g;
    const vptq_cpu_math *math = job->p.math;
    (void)thread;
    start_block(g, 0, g->m, begin, end);
    if (g->trans_b)
        math->dots(g->m, end - begin, g->k, g->alpha, g->a, g->lda, g->b + begin * g->ldb,
                   g->ldb, g->c + begin, g->ldc);
    else
        math->axpys(g->m, end - begin, g->k, g->alpha, g->a, g->lda, g->b + begin, g->ldb,
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
    const int threads = vptq_cpu_threads(dev, g->m * g->n * g->k);
    gemm_job job = {.p = product_of(vptq_cpu_math_get(dev->simd), g->bf16, dev->amx), .g = *g};
    const product *p = &job.p;
    if (g->m <= FEW && !g->trans_a && !g->bf16) {
        vptq_parallel_for(threads, g->n, FEW_COLS, gemm_few, &job);
        return VPTQ_OK;
    }

    const size_t fit = g->k ? PACKED / g->k : g->n;
    const vptq_cpu_tiles pieces = vptq_cpu_tiles_of(g->n, fit > COLS ? fit : COLS, p->cols);
    const size_t packed = right_size(p, pieces.size, g->k);
    job.packed = vptq_dev_scratch(dev, packed + (size_t)dev->ctx->threads * left_size(p),
                                  sizeof *job.packed, err);
    if (!job.packed)
        return VPTQ_E_NOMEM;
    job.left = job.packed + packed;
    job.rows = vptq_cpu_tiles_of(g->m, ROWS, p->rows);
    for (size_t s = 0; s < pieces.count; s++) {
        job.g = columns_of(g, s * pieces.size, vptq_cpu_tile_length(&pieces, s));
        job.cols = vptq_cpu_tiles_of(job.g.n, COLS, p->cols);
        vptq_parallel_for(threads, panels_of(p, job.g.n), 4, gemm_pack, &job);
        vptq_parallel_for(threads, job.rows.count * job.cols.count, 1, gemm_tile, &job);
    }
    return VPTQ_OK;
}
