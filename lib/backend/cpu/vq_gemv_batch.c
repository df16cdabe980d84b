/* vq_gemv for many tokens. Order, scale and bias of the matrix are applied to x, as in
 * vq_gemv.c, so that a vector is the sum of a centroid and a residual centroid: v adjacent
 * elements of a panel, without transposing. */
#include <string.h>

#include "lib/backend/cpu/gemv.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"
#include "lib/base/simd.h"

enum {
    PIECE = 256, /* positions whose entries are extracted at once, */
    VECTORS = 4, /* for so many vector rows, */
    NEAR = 32,   /* and written so many at a time: their lines of a panel stay in L1 */
    EIGHT = 8,
    LINE = 16 /* floats of a cache line */
};

/* Largest number of tokens for which look-ups, four tokens at a time, are faster: with AVX2
 * steps of 16, 20, 24 and 32 sequences take 0.86, 0.85, 0.93 and 1.0 times as long, with
 * AVX-512 steps of 16 and 32 0.8 and 1.2 times (v 8, codebooks of 4096 + 256).  Digits (grid.h)
 * cost three instructions per token instead of one: 1.2 times at 16. */
enum { MAX_LOOKUP_ROWS = 24, MAX_DIGIT_ROWS = 12 };

enum {
    PIECE_ROWS = 96 /* rows of a piece: a multiple of tile_cols and usual vector lengths */
};

typedef struct vq_job {
    const vptq_gemv_kernels *kernels;
    const vptq_vq *q;
    vptq_fields fields;
    const vptq_gemv_args *g;
    float *x;     /* [n, in] in processing order, scaled */
    float *start; /* [n] */
} vq_job;

bool vptq_vq_uses_panels(const vptq_vq *q, const vptq_layout *l, size_t n)
{
    const vptq_vq_shape *s = &q->shape;
    const size_t most = l->grid ? MAX_DIGIT_ROWS : MAX_LOOKUP_ROWS;
    return n > most && PIECE_ROWS % s->v == 0 && (!s->outliers || PIECE_ROWS % s->v0 == 0);
}

/* ---- panels ---- */

/* The panels [depth, width], one after the other, that receive a piece. */
typedef struct panel_target {
    float *to;
    size_t width, depth;
} panel_target;

/* Address of row r of the piece at position p; the next position is `width` further. */
static float *panel_position(const panel_target *at, size_t p, size_t r)
{
    return at->to + r / at->width * at->width * at->depth + p * at->width + r % at->width;
}

/* Writes the vectors of `count` positions, `ld` apart; v is a constant at the call.  Plain
 * loops over eight elements are compiled into pieces of 4, 2, 1 and 1. */
static inline __attribute__((always_inline)) void
write_vectors(size_t v, const vptq_entry *entry, size_t count, const float *codebook,
              const float *res_codebook, float *restrict to, size_t ld)
{
    const size_t whole = v / SIMD_LANES * SIMD_LANES;
    for (size_t i = 0; i < count; i++, to += ld) {
        const float *c = codebook + entry[i].main;
        const float *r = res_codebook ? res_codebook + entry[i].res : NULL;
        for (size_t e = 0; e < whole; e += SIMD_LANES)
            vf_store(to + e, r ? vf_add(vf_load(c + e), vf_load(r + e)) : vf_load(c + e));
        for (size_t e = whole; e < v; e++)
            to[e] = r ? c[e] + r[e] : c[e];
    }
}

static void write_positions(size_t v, const vptq_entry *entry, size_t count,
                            const float *codebook, const float *res_codebook, float *to,
                            size_t ld)
{
    VPTQ_WITH_V(v, write_vectors(V, entry, count, codebook, res_codebook, to, ld));
}

/* A group of columns: the indices of its first vector row, `words` apart, and its codebooks. */
typedef struct group_source {
    const uint32_t *row, *end; /* end: of all indices */
    size_t words;
    const float *codebook, *res_codebook; /* res_codebook NULL without one */
} group_source;

/* Extracts n entries from position p on of a row, and requests those that the next piece reads.
 */
static void extract(const vq_job *job, const group_source *g, size_t vector_row, size_t p,
                    size_t n, vptq_entry *entry)
{
    const uint32_t *row = g->row + vector_row * g->words;
    const size_t bits = job->fields.bits;
    const char *next = (const char *)row + (p + n) * bits / 8;
    const size_t left = (size_t)((const char *)g->end - next), bytes = n * bits / 8;
    job->kernels->fields(&job->fields, row, g->end, p, n, entry);
    for (size_t i = 0; i < bytes && i < left; i += LINE * sizeof(float))
        __builtin_prefetch(next + i);
}

/* Writes positions [p, end) of one group for vector rows from row r0 on; `first` is the
 * position of p in the piece. */
static void write_group(const vq_job *job, size_t group, size_t p, size_t end, size_t r0,
                        size_t rows, const panel_target *at, size_t first)
{
    const vptq_vq *q = job->q;
    const vptq_vq_shape *s = &q->shape;
    const size_t words = vptq_vq_row_words(s), vector_rows = vptq_vq_vector_rows(s), v = s->v;
    const group_source g = {.row = q->indices + (group * vector_rows + r0 / v) * words,
                            .end = q->indices + s->groups * vector_rows * words,
                            .words = words,
                            .codebook = q->centroids + group * s->k * v,
                            .res_codebook =
                                s->k_res ? q->res_centroids + group * s->k_res * v : NULL};
    const size_t vectors = (rows + v - 1) / v;
    vptq_entry entry[VECTORS][PIECE + EIGHT];
    for (size_t n; p < end; p += n, first += n) {
        const size_t lead = p % EIGHT; /* entries are extracted from a multiple of eight on */
        n = end - p < PIECE - lead ? end - p : PIECE - lead;
        for (size_t j0 = 0; j0 < vectors; j0 += VECTORS) {
            const size_t count = vectors - j0 < VECTORS ? vectors - j0 : VECTORS;
            for (size_t j = 0; j < count; j++)
                extract(job, &g, j0 + j, p - lead, lead + n, entry[j]);
            for (size_t i = 0; i < n; i += NEAR)
                for (size_t j = 0; j < count; j++)
                    write_positions(v, entry[j] + lead + i, n - i < NEAR ? n - i : NEAR,
                                    g.codebook, g.res_codebook,
                                    panel_position(at, first + i, (j0 + j) * v), at->width);
        }
    }
}

static void write_outliers(const vq_job *job, size_t p, size_t end, size_t r0, size_t rows,
                           const panel_target *at)
{
    const vptq_vq *q = job->q;
    const size_t v = q->shape.v0, outliers = q->shape.outliers;
    for (size_t i = 0; p < end; p++, i++)
        for (size_t r = 0; r < rows; r += v) {
            const vptq_entry entry = {.main = q->outlier_indices[(r0 + r) / v * outliers + p] *
                                              (uint32_t)v};
            write_positions(v, &entry, 1, q->outlier_centroids, NULL, panel_position(at, i, r),
                            at->width);
        }
}

/* Writes columns [l, l + depth) of rows [r0, r0 + n). */
static void write_piece(const vq_job *job, size_t r0, size_t n, size_t l,
                        const panel_target *at)
{
    const vptq_vq_shape *s = &job->q->shape;
    const size_t outliers = s->outliers, end = l + at->depth;
    size_t p = l;
    if (p < outliers) {
        const size_t to = end < outliers ? end : outliers;
        write_outliers(job, p, to, r0, n, at);
        p = to;
    }
    while (p < end) {
        const size_t group = (p - outliers) / s->group_size;
        const size_t first = outliers + group * s->group_size;
        const size_t to = end < first + s->group_size ? end : first + s->group_size;
        write_group(job, group, p - first, to - first, r0, n, at, p - l);
        p = to;
    }
}

/* Writes vectors directly if panels consist of whole ones, otherwise by way of one wide panel.
 */
static void pack_vectors(const void *arg, const vptq_cpu_math *math, size_t r0, size_t n,
                         size_t l, size_t depth, float *work, float *panels)
{
    const vq_job *job = arg;
    const vptq_vq_shape *s = &job->q->shape;
    const size_t width = math->tile_cols;
    if (width % s->v == 0 && (!s->outliers || width % s->v0 == 0)) {
        if (n % width) /* columns after the last vector must not be undefined */
            memset(panels + n / width * width * depth, 0, depth * width * sizeof *panels);
        write_piece(job, r0, n, l, &(panel_target){panels, width, depth});
        return;
    }
    write_piece(job, r0, n, l, &(panel_target){work, PIECE_ROWS, depth});
    for (size_t j = 0; j < n; j += width, panels += depth * width) {
        const size_t columns = n - j < width ? n - j : width;
        if (columns < width)
            memset(panels, 0, depth * width * sizeof *panels);
        math->copy(depth, columns, work + j, PIECE_ROWS, 1, panels, width);
    }
}

/* ---- x ---- */

static void prepare_rows(void *arg, size_t begin, size_t end, int thread)
{
    const vq_job *job = arg;
    const size_t in = job->q->shape.in;
    (void)thread;
    for (size_t i = begin; i < end; i++)
        job->start[i] = vptq_vq_prepare_x(job->q, job->g->x + i * job->g->ldx, job->x + i * in);
}

vptq_status vptq_vq_gemv_batch(vptq_dev *dev, const vptq_vq *q, const vptq_gemv_args *g,
                               vptq_err *err)
{
    const vptq_vq_shape *s = &q->shape;
    vq_job job = {.kernels = vptq_gemv_kernels_get(dev->simd),
                  .q = q,
                  .fields = vptq_fields_of(vptq_vq_index_bits(s), vptq_log2u(s->k), s->v),
                  .g = g};
    const vptq_batch_source source = {.pack = pack_vectors,
                                      .arg = &job,
                                      .out = s->out,
                                      .in = s->in,
                                      .piece_rows = PIECE_ROWS,
                                      .work_rows = PIECE_ROWS};
    const size_t numbers = (g->n * ((size_t)s->in + 1) + LINE - 1) / LINE * LINE;
    job.x = vptq_dev_scratch(dev, numbers + vptq_batch_work(dev, &source, g->n), sizeof *job.x,
                             err);
    if (!job.x)
        return VPTQ_E_NOMEM;
    job.start = job.x + g->n * s->in;
    vptq_parallel_for(dev->ctx->threads, g->n, 1, prepare_rows, &job);
    vptq_gemv_args own = *g;
    own.x = job.x;
    own.ldx = s->in;
    vptq_batch_multiply(dev, &source, &own, job.start, job.x + numbers);
    return VPTQ_OK;
}
