/* The ops of array_ops.h on all threads.  Threads divide columns or rows, never a sum, so that
 * every op gives the bits of `ref`; the small ones are those of `ref`. */
#include <math.h>
#include <string.h>

#include "lib/backend/cpu/cpu.h"
#include "lib/backend/cpu/gemm.h"
#include "lib/backend/dev.h"
#include "lib/backend/ref/ref.h"
#include "lib/base/parallel.h"

/* The ops take no longer than one pass over a small array. */
#define SAME_AS_REF(op, type)                                                                  \
    vptq_status vptq_cpu_##op(vptq_dev *dev, const type *a, vptq_err *err)                     \
    {                                                                                          \
        return vptq_ref_##op(dev, a, err);                                                     \
    }
SAME_AS_REF(dot, vptq_dot_args)
SAME_AS_REF(cg_step, vptq_cg_step_args)
SAME_AS_REF(cg_turn, vptq_cg_turn_args)
SAME_AS_REF(add_rounded, vptq_add_args)
SAME_AS_REF(move_centroids, vptq_move_args)
SAME_AS_REF(worst_vectors, vptq_worst_args)

/* Calls fn for chunks of n items of `each` elements. */
static vptq_status in_chunks(const vptq_dev *dev, size_t n, size_t each, size_t chunk,
                             vptq_range_fn fn, const void *args)
{
    void *arg = NULL;
    memcpy(&arg, &args, sizeof arg); /* only read */
    vptq_parallel_for(vptq_cpu_threads(dev, n * each), n, chunk, fn, arg);
    return VPTQ_OK;
}

/* ---- checks and statistics of weights ---- */

/* Tests blocks without leaving them early, which compiles to vectors. */
vptq_status vptq_cpu_first_outside(vptq_dev *dev, const vptq_outside_args *a, vptq_err *err)
{
    enum { BLOCK = 1024 };
    size_t i = 0;
    for (; i + BLOCK <= a->n; i += BLOCK) {
        int inside = 1;
        for (size_t j = i; j < i + BLOCK; j++)
            inside &= (a->x[j] >= a->min) & (a->x[j] <= a->max);
        if (!inside)
            break;
    }
    vptq_outside_args rest = *a;
    rest.x += i;
    rest.n -= i;
    const vptq_status st = vptq_ref_first_outside(dev, &rest, err);
    *a->first += i;
    return st;
}

static void deviations(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_norms_args *a = arg;
    (void)thread;
    for (size_t c = begin; c < end; c++)
        a->bias[c] = a->scale[c] = 0;
    for (size_t r = 0; r < a->out; r++)
        for (size_t c = begin; c < end; c++)
            a->bias[c] += (double)a->w[r * a->in + c];
    for (size_t c = begin; c < end; c++)
        a->bias[c] /= (double)a->out;
    for (size_t r = 0; r < a->out; r++)
        for (size_t c = begin; c < end; c++) {
            const double d = (double)a->w[r * a->in + c] - a->bias[c];
            a->scale[c] += d * d;
        }
    for (size_t c = begin; c < end; c++)
        a->scale[c] = sqrt(a->scale[c] / (double)a->out);
}

vptq_status vptq_cpu_column_norms(vptq_dev *dev, const vptq_norms_args *a, vptq_err *err)
{
    enum { COLUMNS = 64 };
    if (a->range)
        return vptq_ref_column_norms(dev, a, err);
    return in_chunks(dev, a->in, a->out, COLUMNS, deviations, a);
}

static void normalize(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_normalize_args *a = arg;
    (void)thread;
    for (size_t r = 0; r < a->out; r++)
        for (size_t i = begin; i < end; i++) {
            const size_t c = a->order[i];
            a->z[i * a->rows + r] = (a->w[r * a->in + c] - a->bias[c]) / a->scale[c];
        }
    for (size_t i = begin; i < end; i++)
        memset(a->z + i * a->rows + a->out, 0, (a->rows - a->out) * sizeof *a->z);
}

vptq_status vptq_cpu_normalize(vptq_dev *dev, const vptq_normalize_args *a, vptq_err *err)
{
    enum { COLUMNS = 16 };
    (void)err;
    return in_chunks(dev, a->in, a->rows, COLUMNS, normalize, a);
}

/* ---- symmetric matrices ---- */

static void metric_rows(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_metric_args *a = arg;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        for (size_t j = 0; a->a && j <= i; j++)
            a->a[i * a->n + j] = vptq_ref_metric_entry(a, i, j);
        for (size_t j = 0; a->h && j <= i; j++)
            a->h[i * a->n + j] = a->h[j * a->n + i] = (float)vptq_ref_metric_entry(a, i, j);
        if (a->diag)
            a->diag[i] = vptq_ref_metric_entry(a, i, i);
    }
}

vptq_status vptq_cpu_metric(vptq_dev *dev, const vptq_metric_args *a, vptq_err *err)
{
    enum { ROWS = 16 };
    (void)err;
    return in_chunks(dev, a->n, a->n / 2, ROWS, metric_rows, a);
}

static void add_packed_rows(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_packed_args *a = arg;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const double *from = a->x + i * a->n;
        double *to = a->packed + (a->lower ? i * (i + 1) / 2 : i * a->n);
        const size_t n = a->lower ? i + 1 : a->n;
        if (a->first)
            memcpy(to, from, n * sizeof *to);
        for (size_t j = 0; !a->first && j < n; j++)
            to[j] += from[j];
    }
}

vptq_status vptq_cpu_add_packed(vptq_dev *dev, const vptq_packed_args *a, vptq_err *err)
{
    enum { ROWS = 16 };
    (void)err;
    return in_chunks(dev, a->rows, a->n, ROWS, add_packed_rows, a);
}

static void reverse_rows(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_upper_args *a = arg;
    const size_t n = a->n;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        memset(a->u + i * n, 0, i * sizeof *a->u);
        for (size_t j = i; j < n; j++)
            a->u[i * n + j] = (float)a->a[(n - 1 - i) * n + (n - 1 - j)];
    }
}

vptq_status vptq_cpu_reverse_upper(vptq_dev *dev, const vptq_upper_args *a, vptq_err *err)
{
    enum { ROWS = 16 };
    (void)err;
    return in_chunks(dev, a->n, a->n, ROWS, reverse_rows, a);
}

/* ---- matrices by columns ---- */

static void subtract(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_subtract_args *a = arg;
    (void)thread;
    for (size_t t = begin; t < end; t++) {
        const float *x = a->x + t * a->ldx, *y = a->y + t * a->ldy;
        float *z = a->z + t * a->ldz;
        for (size_t r = 0; r < a->rows; r++)
            z[r] = x[r] - y[r];
    }
}

vptq_status vptq_cpu_subtract(vptq_dev *dev, const vptq_subtract_args *a, vptq_err *err)
{
    (void)err;
    return in_chunks(dev, a->cols, a->rows, 1, subtract, a);
}

static void affine(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_affine_args *a = arg;
    (void)thread;
    for (size_t t = begin; t < end; t++) {
        const float *x = a->x ? a->x + t * a->ldx : NULL;
        const float b = a->b ? a->b[t] : 0;
        float *y = a->y + t * a->ldy;
        if (!x)
            for (size_t r = 0; r < a->valid; r++)
                y[r] = b;
        else if (a->a)
            for (size_t r = 0; r < a->valid; r++)
                y[r] = a->a[t] * x[r];
        else if (x != y)
            memcpy(y, x, a->valid * sizeof *y);
        for (size_t r = 0; x && a->b && r < a->valid; r++)
            y[r] += b;
        for (size_t r = a->valid; r < a->rows; r++)
            y[r] = 0;
    }
}

vptq_status vptq_cpu_affine(vptq_dev *dev, const vptq_affine_args *a, vptq_err *err)
{
    (void)err;
    return in_chunks(dev, a->cols, a->rows, 1, affine, a);
}

static void column_dots(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_dots_args *a = arg;
    (void)thread;
    for (size_t t = begin; t < end; t++) {
        const float *x = a->x + t * a->ldx, *y = a->y ? a->y + t * a->ldy : NULL;
        double sum = 0;
        for (size_t r = 0; r < a->rows; r++)
            sum += y ? (double)x[r] * (double)y[r] : (double)x[r];
        a->sums[t] = sum;
    }
}

vptq_status vptq_cpu_column_dots(vptq_dev *dev, const vptq_dots_args *a, vptq_err *err)
{
    (void)err;
    return in_chunks(dev, a->cols, a->rows, 1, column_dots, a);
}

/* A range of rows of all columns. */
static void solve_rows(void *arg, size_t begin, size_t end, int thread)
{
    vptq_solve_args part = *(const vptq_solve_args *)arg;
    (void)thread;
    part.x += begin;
    part.rows = end - begin;
    (void)vptq_ref_solve_upper(NULL, &part, NULL);
}

vptq_status vptq_cpu_solve_upper(vptq_dev *dev, const vptq_solve_args *a, vptq_err *err)
{
    enum { ROWS = 256 };
    (void)err;
    return in_chunks(dev, a->rows, a->cols * a->cols, ROWS, solve_rows, a);
}

/* ---- numbers in double ---- */

enum { NUMBERS = 1 << 14 }; /* that one thread takes at a time */

static void add_widened(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_widen_args *a = arg;
    (void)thread;
    for (size_t i = begin; i < end; i++)
        a->sum[i] += (double)a->x[i];
}

vptq_status vptq_cpu_add_widened(vptq_dev *dev, const vptq_widen_args *a, vptq_err *err)
{
    (void)err;
    return in_chunks(dev, a->n, 1, NUMBERS, add_widened, a);
}

static void narrow(void *arg, size_t begin, size_t end, int thread)
{
    const vptq_narrow_args *a = arg;
    (void)thread;
    for (size_t i = begin; i < end; i++)
        a->y[i] = (float)(a->x[i] / a->divisor);
}

vptq_status vptq_cpu_narrow(vptq_dev *dev, const vptq_narrow_args *a, vptq_err *err)
{
    (void)err;
    return in_chunks(dev, a->n, 1, NUMBERS, narrow, a);
}

/* ---- packing ---- */

static void pack_rows(void *arg, size_t begin, size_t end, int thread)
{
    vptq_pack_args part = *(const vptq_pack_args *)arg;
    (void)thread;
    for (size_t i = begin; i < end; i++) {
        uint32_t *words = part.words + i * part.ldw;
        memset(words, 0, vptq_bits_words(part.cols, part.bits) * sizeof *words);
        for (size_t e = 0; e < part.cols; e++) {
            const size_t at = (part.column ? part.column[e] : e) * part.vector_rows + i;
            const uint32_t res = part.idx_res ? part.idx_res[at] << part.main_bits : 0;
            vptq_bits_put(words, e, part.bits, part.idx[at] | res);
        }
    }
}

vptq_status vptq_cpu_vq_pack(vptq_dev *dev, const vptq_pack_args *a, vptq_err *err)
{
    enum { ROWS = 16 };
    (void)err;
    return in_chunks(dev, a->vector_rows, a->cols, ROWS, pack_rows, a);
}
