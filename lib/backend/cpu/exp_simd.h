/* Internal: the exponential, for files named *_simd.c. */
#ifndef VPTQ_BACKEND_CPU_EXP_SIMD_H
#define VPTQ_BACKEND_CPU_EXP_SIMD_H

#include "lib/base/simd.h"

/* exp by Cody and Waite: x = n ln 2 + r, with ln 2 in two parts of which the first is so short
 * that n times it is exact, and the polynomial of Cephes expf for |r| <= ln 2 / 2. */
static inline vf vf_exp(vf x)
{
    /* Outside of these bounds the result is 0 or infinity; they keep n small. NaN passes
     * through. */
    x = vf_min(vf_set1(89.0f), vf_max(vf_set1(-104.0f), x));
    const vf n = vf_round(vf_mul(x, vf_set1(1.44269504088896341f)));
    vf r = vf_fma(n, vf_set1(-0.693359375f), x);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_fma(p, vf_mul(r, r), r);
    return vf_ldexp(vf_add(p, vf_set1(1)), n);
}

#endif
