/* The ops of array_ops.h, one loop each; uniform.c has those of uniform quantization. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/backend/dev.h"
#include "lib/backend/ref/ref.h"

/* ---- checks and statistics of weights ---- */

vptq_status vptq_ref_first_outside(vptq_dev *dev, const vptq_outside_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    *a->first = 0;
    while (*a->first < a->n && a->x[*a->first] >= a->min && a->x[*a->first] <= a->max)
        ++*a->first;
    return VPTQ_OK;
}

static void mean_and_deviation(const vptq_norms_args *a)
{
    const size_t out = a->out, in = a->in;
    memset(a->bias, 0, in * sizeof *a->bias);
    memset(a->scale, 0, in * sizeof *a->scale);
    for (size_t r = 0; r < out; r++)
        for (size_t c = 0; c < in; c++)
            a->bias[c] += (double)a->w[r * in + c];
    for (size_t c = 0; c < in; c++)
        a->bias[c] /= (double)out;
    for (size_t r = 0; r < out; r++)
        for (size_t c = 0; c < in; c++) {
            const double d = (double)a->w[r * in + c] - a->bias[c];
            a->scale[c] += d * d;
        }
    for (size_t c = 0; c < in; c++)
        a->scale[c] = sqrt(a->scale[c] / (double)out);
}

static void minimum_and_range(const vptq_norms_args *a)
{
    for (size_t c = 0; c < a->in; c++) {
        double min = (double)a->w[c], max = min;
        for (size_t r = 1; r < a->out; r++) {
            const double x = (double)a->w[r * a->in + c];
            min = x < min ? x : min;
            max = x > max ? x : max;
        }
        a->bias[c] = min;
        a->scale[c] = max - min;
    }
}

vptq_status vptq_ref_column_norms(vptq_dev *dev, const vptq_norms_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    if (a->range)
        minimum_and_range(a);
    else
        mean_and_deviation(a);
    return VPTQ_OK;
}

vptq_status vptq_ref_normalize(vptq_dev *dev, const vptq_normalize_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t i = 0; i < a->in; i++) {
        const size_t c = a->order[i];
        float *z = a->z + i * a->rows;
        for (size_t r = 0; r < a->out; r++)
            z[r] = (a->w[r * a->in + c] - a->bias[c]) / a->scale[c];
        for (size_t r = a->out; r < a->rows; r++)
            z[r] = 0;
    }
    return VPTQ_OK;
}

/* ---- symmetric matrices ---- */

static size_t row_of(const vptq_metric_args *a, size_t position)
{
    const size_t i = a->reversed ? a->n - 1 - position : position;
    return a->order ? a->order[i] : i;
}

double vptq_ref_metric_entry(const vptq_metric_args *a, size_t i, size_t j)
{
    const size_t o = row_of(a, i), p = row_of(a, j), hi = o > p ? o : p, lo = o > p ? p : o;
    double h = (double)a->lower[hi * (hi + 1) / 2 + lo] / a->divisor;
    if (i == j)
        h += a->ridge;
    if (a->scale)
        h = (double)a->scale[o] * h * (double)a->scale[p];
    return i == j ? h + a->damping : h;
}

vptq_status vptq_ref_metric(vptq_dev *dev, const vptq_metric_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t i = 0; i < a->n; i++) {
        for (size_t j = 0; j <= i && (a->a || a->h); j++) {
            const double h = vptq_ref_metric_entry(a, i, j);
            if (a->a)
                a->a[i * a->n + j] = h;
            if (a->h)
                a->h[i * a->n + j] = a->h[j * a->n + i] = (float)h;
        }
        if (a->diag)
            a->diag[i] = vptq_ref_metric_entry(a, i, i);
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_add_packed(vptq_dev *dev, const vptq_packed_args *a, vptq_err *err)
{
    double *to = a->packed;
    (void)dev;
    (void)err;
    for (size_t i = 0; i < a->rows; i++)
        for (size_t j = 0; j < (a->lower ? i + 1 : a->n); j++, to++)
            *to = a->first ? a->x[i * a->n + j] : *to + a->x[i * a->n + j];
    return VPTQ_OK;
}

vptq_status vptq_ref_reverse_upper(vptq_dev *dev, const vptq_upper_args *a, vptq_err *err)
{
    const size_t n = a->n;
    (void)dev;
    (void)err;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            a->u[i * n + j] = j < i ? 0 : (float)a->a[(n - 1 - i) * n + (n - 1 - j)];
    return VPTQ_OK;
}

/* ---- matrices by columns ---- */

vptq_status vptq_ref_subtract(vptq_dev *dev, const vptq_subtract_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t t = 0; t < a->cols; t++)
        for (size_t r = 0; r < a->rows; r++)
            a->z[t * a->ldz + r] = a->x[t * a->ldx + r] - a->y[t * a->ldy + r];
    return VPTQ_OK;
}

vptq_status vptq_ref_affine(vptq_dev *dev, const vptq_affine_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t t = 0; t < a->cols; t++)
        for (size_t r = 0; r < a->rows; r++) {
            float y = a->x && r < a->valid ? a->x[t * a->ldx + r] : 0;
            if (a->a && a->x)
                y *= a->a[t];
            if (a->b)
                y = a->x ? y + a->b[t] : a->b[t];
            a->y[t * a->ldy + r] = r < a->valid ? y : 0;
        }
    return VPTQ_OK;
}

vptq_status vptq_ref_column_dots(vptq_dev *dev, const vptq_dots_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t t = 0; t < a->cols; t++) {
        double sum = 0;
        for (size_t r = 0; r < a->rows; r++)
            sum += (double)a->x[t * a->ldx + r] * (a->y ? (double)a->y[t * a->ldy + r] : 1);
        a->sums[t] = sum;
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_solve_upper(vptq_dev *dev, const vptq_solve_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t t = 0; t < a->cols; t++) {
        float *x = a->x + t * a->ldx;
        for (size_t s = 0; s < t; s++)
            for (size_t r = 0; r < a->rows; r++)
                x[r] -= a->u[s * a->ldu + t] * a->x[s * a->ldx + r];
        for (size_t r = 0; r < a->rows; r++)
            x[r] /= a->u[t * a->ldu + t];
    }
    return VPTQ_OK;
}

/* ---- conjugate gradients ---- */

vptq_status vptq_ref_dot(vptq_dev *dev, const vptq_dot_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    *a->sum = 0;
    for (size_t i = 0; i < a->n; i++)
        *a->sum += a->x[i] * a->y[i];
    return VPTQ_OK;
}

vptq_status vptq_ref_cg_step(vptq_dev *dev, const vptq_cg_step_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    *a->rho = 0;
    for (size_t i = 0; i < a->n; i++) {
        a->x[i] += a->alpha * a->d[i];
        a->r[i] -= a->alpha * a->ad[i];
        a->s[i] = a->m[i] > 0 ? a->r[i] / a->m[i] : 0;
        *a->rho += a->r[i] * a->s[i];
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_cg_turn(vptq_dev *dev, const vptq_cg_turn_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t i = 0; i < a->n; i++) {
        a->d[i] = a->s[i] + a->beta * a->d[i];
        a->rounded[i] = (float)a->d[i];
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_add_widened(vptq_dev *dev, const vptq_widen_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t i = 0; i < a->n; i++)
        a->sum[i] += (double)a->x[i];
    return VPTQ_OK;
}

vptq_status vptq_ref_narrow(vptq_dev *dev, const vptq_narrow_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t i = 0; i < a->n; i++)
        a->y[i] = (float)(a->x[i] / a->divisor);
    return VPTQ_OK;
}

vptq_status vptq_ref_add_rounded(vptq_dev *dev, const vptq_add_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t i = 0; i < a->n; i++)
        a->y[i] = (float)((double)a->y[i] + a->x[i]);
    return VPTQ_OK;
}

/* ---- clustering ---- */

vptq_status vptq_ref_move_centroids(vptq_dev *dev, const vptq_move_args *a, vptq_err *err)
{
    const size_t v = a->v;
    (void)dev;
    (void)err;
    *a->moved = 0;
    *a->empty = 0;
    memcpy(a->before, a->centroids, a->k * v * sizeof *a->before);
    for (size_t j = 0; j < a->k; j++) {
        if (!(a->weights[j] > 0)) {
            ++*a->empty;
            continue;
        }
        for (size_t e = j * v; e < (j + 1) * v; e++) {
            const double from = (double)a->centroids[e], to = a->sums[e] / a->weights[j];
            a->centroids[e] = (float)to;
            *a->moved += (to - from) * (to - from);
        }
    }
    return VPTQ_OK;
}

typedef struct ranked {
    double loss;
    size_t at;
} ranked;

/* Whether a ranks after b: smaller loss, or the same loss at a higher index. */
static bool after(const ranked *a, const ranked *b)
{
    return a->loss < b->loss || (a->loss <= b->loss && a->at > b->at);
}

static int by_rank(const void *pa, const void *pb)
{
    const ranked *a = pa, *b = pb;
    return after(a, b) ? 1 : after(b, a) ? -1 : 0;
}

/* Restores the heap order from entry i down; the root ranks after all others. */
static void sift_down(ranked *heap, size_t size, size_t i)
{
    for (;;) {
        size_t last = i;
        for (size_t child = 2 * i + 1; child <= 2 * i + 2 && child < size; child++) {
            if (after(&heap[child], &heap[last]))
                last = child;
        }
        if (last == i)
            return;
        const ranked swap = heap[i];
        heap[i] = heap[last];
        heap[last] = swap;
        i = last;
    }
}

vptq_status vptq_ref_worst_vectors(vptq_dev *dev, const vptq_worst_args *a, vptq_err *err)
{
    if (!a->count)
        return VPTQ_OK;
    ranked *heap = vptq_dev_scratch(dev, a->count, sizeof *heap, err);
    if (!heap)
        return VPTQ_E_NOMEM;
    for (size_t h = 0; h < a->count; h++)
        heap[h] = (ranked){.loss = 0, .at = SIZE_MAX};
    for (size_t i = 0; i < a->n; i++) {
        const double distance =
            vptq_ref_distance(a->x + i * a->v, a->centroids + (size_t)a->idx[i] * a->v, a->v);
        const ranked here = {.loss = a->w ? (double)a->w[i] * distance : distance, .at = i};
        if (after(&heap[0], &here)) {
            heap[0] = here;
            sift_down(heap, a->count, 0);
        }
    }
    qsort(heap, a->count, sizeof *heap, by_rank);
    for (size_t h = 0; h < a->count; h++) {
        a->loss[h] = heap[h].loss;
        a->at[h] = (uint32_t)heap[h].at;
    }
    return VPTQ_OK;
}

/* ---- packing ---- */

vptq_status vptq_ref_vq_pack(vptq_dev *dev, const vptq_pack_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t i = 0; i < a->vector_rows; i++) {
        uint32_t *words = a->words + i * a->ldw;
        memset(words, 0, vptq_bits_words(a->cols, a->bits) * sizeof *words);
        for (size_t e = 0; e < a->cols; e++) {
            const size_t at = (a->column ? a->column[e] : e) * a->vector_rows + i;
            const uint32_t res = a->idx_res ? a->idx_res[at] << a->main_bits : 0;
            vptq_bits_put(words, e, a->bits, a->idx[at] | res);
        }
    }
    return VPTQ_OK;
}
