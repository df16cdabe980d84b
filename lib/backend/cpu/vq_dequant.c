/* The op vq_dequant: 256 columns of one vector row at a time, so that their centroids stay in
 * L1 while the rows of the vector row are written one after the other. */
#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/gemv.h"
#include "lib/backend/dev.h"
#include "lib/base/parallel.h"

enum { PIECE = 256 };

/* Columns of one vector row with their extracted entries. */
typedef struct piece {
    size_t count;
    vptq_entry entry[PIECE];
    uint32_t column[PIECE]; /* input channel */
    float scale[PIECE], bias[PIECE];
    const float *codebook, *res_codebook; /* res_codebook NULL without a residual codebook */
    bool norm;
} piece;

/* Looks up the input channels of positions from `first` on, with their scale and bias. */
static void look_up_columns(const vptq_vq *q, size_t first, piece *p)
{
    p->norm = q->scale != NULL;
    for (size_t i = 0; i < p->count; i++)
        p->column[i] = q->perm ? q->perm[first + i] : (uint32_t)(first + i);
    if (!p->norm)
        return;
    for (size_t i = 0; i < p->count; i++) {
        p->scale[i] = q->scale[p->column[i]];
        p->bias[i] = q->bias[p->column[i]];
    }
}

/* Writes element e of every vector of the piece to one row of W; called with constants, so that
 * every kind of matrix gets a loop of its own. */
static inline __attribute__((always_inline)) void
write_kind(const piece *p, size_t e, bool residual, bool norm, bool in_order, float *restrict w)
{
    const float *codebook = p->codebook + e,
                *res_codebook = residual ? p->res_codebook + e : NULL;
    for (size_t i = 0; i < p->count; i++) {
        float value = codebook[p->entry[i].main];
        if (residual)
            value += res_codebook[p->entry[i].res];
        if (norm)
            value = value * p->scale[i] + p->bias[i];
        w[in_order ? i : p->column[i]] = value;
    }
}

static void write_row(const piece *p, size_t e, bool in_order, float *w)
{
    if (in_order) {
        w += p->column[0];
        if (p->res_codebook && p->norm)
            write_kind(p, e, true, true, true, w);
        else if (p->res_codebook)
            write_kind(p, e, true, false, true, w);
        else if (p->norm)
            write_kind(p, e, false, true, true, w);
        else
            write_kind(p, e, false, false, true, w);
    } else if (p->norm) {
        if (p->res_codebook)
            write_kind(p, e, true, true, false, w);
        else
            write_kind(p, e, false, true, false, w);
    } else {
        write_kind(p, e, p->res_codebook != NULL, false, false, w);
    }
}

typedef struct decode_job {
    const vptq_gemv_kernels *kernels;
    const vptq_vq *q;
    vptq_fields fields;
    size_t r0, n;
    float *w;
    size_t ldw;
} decode_job;

/* Writes the requested rows of a vector row; v: length of its vectors. */
static void write_vector_row(const decode_job *job, const piece *p, size_t vector_row, size_t v)
{
    size_t first = vector_row * v, end = first + v;
    if (first < job->r0)
        first = job->r0;
    if (end > job->r0 + job->n)
        end = job->r0 + job->n;
    for (size_t r = first; r < end; r++)
        write_row(p, r - vector_row * v, job->q->perm == NULL,
                  job->w + (r - job->r0) * job->ldw);
}

static void decode_vector_rows(void *arg, size_t begin, size_t end, int thread)
{
    const decode_job *job = arg;
    const vptq_vq *q = job->q;
    const vptq_vq_shape *s = &q->shape;
    const size_t words = vptq_vq_row_words(s), vector_rows = vptq_vq_vector_rows(s);
    const uint32_t *end_of_indices = q->indices + s->groups * vector_rows * words;
    size_t first_vector_row = job->r0 / s->v;
    piece p;
    (void)thread;
    for (size_t g = 0; g < s->groups; g++) {
        p.codebook = q->centroids + g * s->k * s->v;
        p.res_codebook = s->k_res ? q->res_centroids + g * s->k_res * s->v : NULL;
        for (size_t c = 0; c < s->group_size; c += PIECE) {
            p.count = s->group_size - c < PIECE ? s->group_size - c : PIECE;
            look_up_columns(q, s->outliers + g * s->group_size + c, &p);
            for (size_t vector_row = first_vector_row + begin;
                 vector_row < first_vector_row + end; vector_row++) {
                job->kernels->fields(&job->fields,
                                     q->indices + (g * vector_rows + vector_row) * words,
                                     end_of_indices, c, p.count, p.entry);
                write_vector_row(job, &p, vector_row, s->v);
            }
        }
    }
}

static void decode_outliers(void *arg, size_t begin, size_t end, int thread)
{
    const decode_job *job = arg;
    const vptq_vq *q = job->q;
    const vptq_vq_shape *s = &q->shape;
    size_t first_vector_row = job->r0 / s->v0;
    piece p;
    (void)thread;
    p.codebook = q->outlier_centroids;
    p.res_codebook = NULL;
    for (size_t c = 0; c < s->outliers; c += PIECE) {
        p.count = s->outliers - c < PIECE ? s->outliers - c : PIECE;
        look_up_columns(q, c, &p);
        for (size_t vector_row = first_vector_row + begin; vector_row < first_vector_row + end;
             vector_row++) {
            for (size_t i = 0; i < p.count; i++)
                p.entry[i].main = q->outlier_indices[vector_row * s->outliers + c + i] * s->v0;
            write_vector_row(job, &p, vector_row, s->v0);
        }
    }
}

/* Number of vectors of length v that rows r0 .. r0 + n - 1 touch. */
static size_t count_vector_rows(size_t r0, size_t n, size_t v)
{
    return n ? (r0 + n - 1) / v - r0 / v + 1 : 0;
}

vptq_status vptq_cpu_vq_dequant(vptq_dev *dev, const vptq_matrix *m, size_t r0, size_t n,
                                float *w, size_t ldw, vptq_err *err)
{
    const vptq_vq_shape *s = &m->q.shape;
    decode_job job = {.kernels = vptq_gemv_kernels_get(dev->simd),
                      .q = &m->q,
                      .fields = vptq_fields_of(vptq_vq_index_bits(s), vptq_log2u(s->k), s->v),
                      .r0 = r0,
                      .n = n,
                      .w = w,
                      .ldw = ldw};
    (void)err;
    vptq_parallel_for(dev->ctx->threads, count_vector_rows(r0, n, s->v), 8, decode_vector_rows,
                      &job);
    if (s->outliers)
        vptq_parallel_for(dev->ctx->threads, count_vector_rows(r0, n, s->v0), 8,
                          decode_outliers, &job);
    return VPTQ_OK;
}
