/* The products of bytes, one loop each. */
#include <math.h>
#include <string.h>

#include "lib/backend/ref/ref.h"

/* The largest magnitude of a row; NaN if there is one. */
static float largest(const float *x, size_t n)
{
    float m = 0;
    for (size_t i = 0; i < n && !isnan(m); i++)
        m = fabsf(x[i]) <= m ? m : fabsf(x[i]);
    return m;
}

vptq_status vptq_ref_quantize_rows(vptq_dev *dev, const vptq_quantize_rows_args *a,
                                   vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t r = 0; r < a->rows; r++) {
        const float *x = a->x + r * a->ldx, m = largest(x, a->cols);
        int8_t *q = a->q + r * VPTQ_BYTES_ROW(a->cols);
        memset(q, 0, VPTQ_BYTES_ROW(a->cols));
        a->scale[r] = m < VPTQ_BYTES_LEAST ? 0 : m / 127;
        if (!isfinite(m) || m < VPTQ_BYTES_LEAST)
            continue;
        const float steps = 127 / m;
        for (size_t i = 0; i < a->cols; i++)
            q[i] = (int8_t)fmaxf(-127, fminf(127, rintf(x[i] * steps)));
    }
    return VPTQ_OK;
}

vptq_status vptq_ref_multiply_bytes(vptq_dev *dev, const vptq_multiply_bytes_args *a,
                                    vptq_err *err)
{
    const size_t row = VPTQ_BYTES_ROW(a->in);
    (void)dev;
    (void)err;
    for (size_t t = 0; t < a->rows; t++)
        for (size_t o = 0; o < a->out; o++) {
            const uint8_t *codes = (const uint8_t *)a->codes + o * row;
            const int8_t *q = a->q + t * row;
            float *y = a->y + t * a->ldy + o;
            int32_t sum = 0;
            for (size_t i = 0; i < a->in; i++)
                sum += q[i] * (codes[i] - 128);
            float z = (float)sum * (a->q_scale[t] * a->scale[o]);
            if (a->bias)
                z += a->bias[o];
            *y = a->beta != 0 ? *y + z : z;
        }
    return VPTQ_OK;
}
