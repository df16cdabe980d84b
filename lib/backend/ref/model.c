/* Transformer ops of the reference backend: one element at a time, sums in double. */
#include <math.h>
#include <string.h>

#include "lib/backend/ref/ref.h"
#include "lib/base/half.h"

vptq_status vptq_ref_embed(vptq_dev *dev, const vptq_embed_args *a, vptq_err *err)
{
    (void)dev;
    for (size_t i = 0; i < a->n; i++) {
        const size_t at = (size_t)a->ids[i] * a->dim;
        float *out = a->out + i * a->dim;
        if (a->type == VPTQ_F32)
            memcpy(out, (const float *)a->table + at, a->dim * sizeof *out);
        else if (a->type == VPTQ_F16)
            vptq_f16_to_f32_n((const uint16_t *)a->table + at, out, a->dim);
        else if (a->type == VPTQ_BF16)
            vptq_bf16_to_f32_n((const uint16_t *)a->table + at, out, a->dim);
        else
            return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                             "an embedding table of type %s; it must be F32, F16 or BF16",
                             vptq_dtype_get(a->type)->name);
        for (size_t j = 0; a->scale != 0 && j < a->dim; j++)
            out[j] *= a->scale;
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_rmsnorm(vptq_dev *dev, const vptq_rmsnorm_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t r = 0; r < a->n; r++) {
        const float *x = a->x + r * a->ldx;
        float *y = a->y + r * a->ldy;
        double sum = 0, s = 0;
        for (size_t i = 0; a->bias && i < a->dim; i++)
            sum += (double)x[i];
        const double mean = sum / (double)a->dim;
        for (size_t i = 0; i < a->dim; i++)
            s += ((double)x[i] - mean) * ((double)x[i] - mean);
        const double scale = 1 / sqrt(s / (double)a->dim + (double)a->eps);
        for (size_t i = 0; i < a->dim; i++) {
            const float more = a->bias ? a->bias[i] : a->add ? y[i] : 0;
            y[i] = (float)(((double)x[i] - mean) * scale * (double)a->weight[i] + (double)more);
        }
    }
    return VPTQ_OK;
}

/* Rotates one row of x at `position`. */
static void rotate_row(const vptq_rope_args *args, float *x, size_t position)
{
    const size_t half = vptq_rope_pairs(args);
    const float *cosine = args->cos_table + position * half;
    const float *sine = args->sin_table + position * half;
    for (size_t h = 0; h < args->heads; h++) {
        float *lo = x + h * args->head_dim, *hi = lo + half;
        for (size_t i = 0; i < half; i++) {
            const double a = (double)lo[i], b = (double)hi[i];
            const double c = (double)cosine[i];
            const double s = (double)(args->back ? -sine[i] : sine[i]);
            lo[i] = (float)(a * c - b * s);
            hi[i] = (float)(b * c + a * s);
        }
    }
}

vptq_status vptq_ref_rope(vptq_dev *dev, const vptq_rope_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t r = 0; r < a->n; r++)
        rotate_row(a, a->x + r * a->ldx, a->pos0 + r);
    return VPTQ_OK;
}

vptq_status vptq_ref_rope_rows(vptq_dev *dev, const vptq_kv_rows *rows, const vptq_rope_args *a,
                               vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t s = 0; s < rows->sequences; s++)
        for (size_t r = rows->starts[s]; r < rows->starts[s + 1]; r++)
            rotate_row(a, a->x + r * a->ldx, rows->positions[s] + r - rows->starts[s]);
    return VPTQ_OK;
}

vptq_status vptq_ref_swiglu(vptq_dev *dev, const vptq_swiglu_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t i = 0; i < a->n * a->dim; i++) {
        const double g = (double)a->gate[i];
        const double z = a->gelu ? g * (VPTQ_GELU_C + VPTQ_GELU_D * g * g) : g;
        a->y[i] = (float)(g / (1 + exp(-z)) * (a->up ? (double)a->up[i] : 1));
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_soft_cap(vptq_dev *dev, const vptq_soft_cap_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    const double cap = (double)a->cap;
    for (size_t i = 0; i < a->n; i++)
        a->x[i] = (float)(cap * tanh((double)a->x[i] / cap));
    return VPTQ_OK;
}

static void add_logits(const vptq_nll_args *a, size_t row)
{
    const float *logits = a->logits + row * a->ld;
    const int32_t target = a->targets[row];
    vptq_nll_state *s = &a->state[row];
    const double old_max = s->max;
    for (size_t j = 0; j < a->width; j++)
        if (logits[j] > s->best) {
            s->best = logits[j];
            s->best_id = a->first + (int32_t)j;
        }
    s->max = (double)s->best > s->max ? (double)s->best : s->max;
    /* While all logits so far are -inf, subtracting the maximum would give NaN. */
    const double shift = isinf(s->max) && s->max < 0 ? 0 : s->max;
    if (s->max > old_max)
        s->sum *= exp(old_max - s->max);
    for (size_t j = 0; j < a->width; j++)
        s->sum += exp((double)logits[j] - shift);
    if (target >= a->first && (size_t)(target - a->first) < a->width)
        s->target = logits[target - a->first];
}

vptq_status vptq_ref_nll(vptq_dev *dev, const vptq_nll_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t i = 0; i < a->n; i++) {
        if (a->start)
            a->state[i] = (vptq_nll_state){
                .max = -INFINITY, .target = -INFINITY, .best = -INFINITY, .best_id = -1};
        add_logits(a, i);
    }
    return VPTQ_OK;
}
