/* The ops of uniform quantization, one loop each. */
#include <math.h>

#include "lib/backend/ref/ref.h"
#include "lib/base/uniform.h"

/* NaN becomes 0. */
static float clamp(float x, float max)
{
    const float low = x > 0 ? x : 0;
    return low < max ? low : max;
}

vptq_status vptq_ref_uniform_range(vptq_dev *dev, const vptq_uniform_range_args *a,
                                   vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t r = 0; r < a->rows; r++) {
        float lo = 0, hi = 0;
        for (size_t t = 0; t < a->cols; t++) {
            const float z = a->z[t * a->ldz + r];
            lo = z < lo ? z : lo;
            hi = z > hi ? z : hi;
        }
        vptq_uniform_grid(a->bits, a->symmetric, a->storage, lo, hi, &a->scale[r],
                          &a->zero[r]);
    }
    return VPTQ_OK;
}

/* Writes the code of element r of column t; returns what a reader decodes it to. */
static float quantize(const vptq_uniform_pass_args *a, size_t t, size_t r)
{
    const float scale = a->scale[r], zero = (float)a->zero[r];
    const float max = (float)((1U << a->bits) - 1);
    const float code = clamp(rintf(a->z[t * a->ldz + r] / scale) + zero, max);
    a->codes[t * a->ldc + r] = (uint8_t)code;
    return vptq_round_to(a->storage, (code - zero) * scale);
}

vptq_status vptq_ref_uniform_pass(vptq_dev *dev, const vptq_uniform_pass_args *a, vptq_err *err)
{
    (void)dev;
    (void)err;
    for (size_t t = 0; t < a->cols; t++) {
        for (size_t r = 0; r < a->rows; r++) {
            const float d = quantize(a, t, r);
            if (a->u)
                a->err[t * a->lde + r] = (a->z[t * a->ldz + r] - d) / a->u[t * a->ldu + t];
        }
        for (size_t s = t + 1; a->u && s < a->cols; s++)
            for (size_t r = 0; r < a->rows; r++)
                a->z[s * a->ldz + r] -= a->err[t * a->lde + r] * a->u[t * a->ldu + s];
    }
    return VPTQ_OK;
}
