/* Transformer rows of the `ref` table. */
#include <math.h>
#include <string.h>

#include "lib/backend/dev.h"
#include "lib/backend/ref/ref.h"
#include "lib/base/half.h"

vptq_status vptq_ref_embed(vptq_dev *dev, size_t n, size_t dim, const void *table,
                           vptq_dtype type, const int32_t *ids, float *out, vptq_err *err)
{
    (void)dev;
    for (size_t i = 0; i < n; i++, out += dim) {
        const size_t at = (size_t)ids[i] * dim;
        if (type == VPTQ_F32)
            memcpy(out, (const float *)table + at, dim * sizeof *out);
        else if (type == VPTQ_F16)
            vptq_f16_to_f32_n((const uint16_t *)table + at, out, dim);
        else if (type == VPTQ_BF16)
            vptq_bf16_to_f32_n((const uint16_t *)table + at, out, dim);
        else
            return vptq_fail(err, VPTQ_E_UNSUPPORTED,
                             "an embedding table of type %s; it must be F32, F16 or BF16",
                             vptq_dtype_get(type)->name);
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_rmsnorm(vptq_dev *dev, size_t n, size_t dim, const float *x, size_t ldx,
                             const float *weight, float eps, float *y, size_t ldy,
                             vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t r = 0; r < n; r++, x += ldx, y += ldy) {
        double s = 0;
        for (size_t i = 0; i < dim; i++)
            s += (double)x[i] * (double)x[i];
        const double scale = 1 / sqrt(s / (double)dim + (double)eps);
        for (size_t i = 0; i < dim; i++)
            y[i] = (float)((double)x[i] * scale * (double)weight[i]);
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_rope(vptq_dev *dev, size_t n, size_t heads, size_t head_dim, float *x,
                          size_t ldx, const float *cos_table, const float *sin_table,
                          size_t pos0, vptq_err *err)
{
    (void)dev;
    (void)err;
    const size_t half = head_dim / 2;
    for (size_t r = 0; r < n; r++, x += ldx) {
        const float *cosine = cos_table + (pos0 + r) * half;
        const float *sine = sin_table + (pos0 + r) * half;
        for (size_t h = 0; h < heads; h++) {
            float *lo = x + h * head_dim, *hi = lo + half;
            for (size_t i = 0; i < half; i++) {
                const double a = (double)lo[i], b = (double)hi[i];
                const double c = (double)cosine[i], s = (double)sine[i];
                lo[i] = (float)(a * c - b * s);
                hi[i] = (float)(b * c + a * s);
            }
        }
    }
    return VPTQ_OK;
}

/* Softmax of the scores of one query over positions [first, last], then the mix of values. */
static void ref_attend(const vptq_attention_args *a, size_t query, size_t head, double *p)
{
    const size_t d = a->head_dim, kv = head / (a->heads / a->kv_heads);
    const size_t last = a->pos0 + query;
    const size_t first = a->window && last + 1 > a->window ? last + 1 - a->window : 0;
    const float *q = a->q + query * a->ldq + head * d;
    float *out = a->out + query * a->ldo + head * d;

    double max = -INFINITY, sum = 0;
    for (size_t j = first; j <= last; j++) {
        const float *key = a->keys + j * a->ldk + kv * d;
        double s = 0;
        for (size_t i = 0; i < d; i++)
            s += (double)q[i] * (double)key[i];
        p[j] = s * (double)a->scale;
        max = p[j] > max ? p[j] : max;
    }
    for (size_t j = first; j <= last; j++) {
        p[j] = exp(p[j] - max);
        sum += p[j];
    }
    for (size_t i = 0; i < d; i++) {
        double s = 0;
        for (size_t j = first; j <= last; j++)
            s += p[j] * (double)a->values[j * a->ldv + kv * d + i];
        out[i] = (float)(s / sum);
    }
}

vptq_status vptq_ref_attention(vptq_dev *dev, const vptq_attention_args *a, vptq_err *err)
{
    double *p = vptq_dev_scratch(dev, a->pos0 + a->n, sizeof *p, err);
    if (!p)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < a->n; i++)
        for (size_t h = 0; h < a->heads; h++)
            ref_attend(a, i, h, p);
    return VPTQ_OK;
}

vptq_status vptq_ref_swiglu(vptq_dev *dev, size_t n, size_t dim, const float *gate,
                            const float *up, float *y, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t i = 0; i < n * dim; i++) {
        const double g = (double)gate[i];
        y[i] = (float)(g / (1 + exp(-g)) * (double)up[i]);
    }
    return VPTQ_OK;
}

static void ref_nll_row(vptq_nll_state *s, const float *logits, size_t width, int32_t first,
                        int32_t target)
{
    const double old_max = s->max;
    for (size_t j = 0; j < width; j++)
        if (logits[j] > s->best) {
            s->best = logits[j];
            s->best_id = first + (int32_t)j;
        }
    s->max = (double)s->best > s->max ? (double)s->best : s->max;
    /* While everything seen is -inf the shift must not be, or the sum would turn NaN. */
    const double shift = isinf(s->max) && s->max < 0 ? 0 : s->max;
    if (s->max > old_max)
        s->sum *= exp(old_max - s->max);
    for (size_t j = 0; j < width; j++)
        s->sum += exp((double)logits[j] - shift);
    if (target >= first && (size_t)(target - first) < width)
        s->target = logits[target - first];
}

vptq_status vptq_ref_nll(vptq_dev *dev, size_t n, size_t width, const float *logits, size_t ld,
                         int32_t first, const int32_t *targets, bool start,
                         vptq_nll_state *state, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t i = 0; i < n; i++) {
        if (start)
            state[i] = (vptq_nll_state){
                .max = -INFINITY, .target = -INFINITY, .best = -INFINITY, .best_id = -1};
        ref_nll_row(&state[i], logits + i * ld, width, first, targets[i]);
    }
    return VPTQ_OK;
}
