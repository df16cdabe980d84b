/* Internal to the op `sample` of cpu and cuda: probabilities as integers, so that their sums do
 * not depend on the order and both backends choose the same ids, to the last bit of u.  The
 * weight of a token is its probability divided by that of the likeliest one, in units of 2^-40.
 *
 * Neither compiler may fuse multiplications and additions. */
#ifndef VPTQ_BACKEND_SAMPLE_H
#define VPTQ_BACKEND_SAMPLE_H

#include <stdint.h>
#include <string.h>

#include "lib/base/bits.h"

/* The threshold is found digit by digit of its key, the highest first: three digits of 11 bits,
 * of which the last shares a bit with the second. */
enum { VPTQ_SAMPLE_BINS = 1 << 11, VPTQ_SAMPLE_FIRST = 21, VPTQ_SAMPLE_SECOND = 10 };

/* Maps logits to integers in the same order; both zeros have the same key, NaN the largest. */
static inline VPTQ_HD uint32_t vptq_sample_key(float logit)
{
    uint32_t bits;
    const float sum = logit + 0.0f; /* -0 becomes 0 */
    memcpy(&bits, &sum, sizeof bits);
    if (logit != logit)
        return UINT32_MAX;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static inline VPTQ_HD float vptq_sample_logit(uint32_t key)
{
    const uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float logit;
    memcpy(&logit, &bits, sizeof logit);
    return logit;
}

/* Returns 2^40 exp(x) for x <= 0, rounded; 0 below exp(-30). */
static inline VPTQ_HD uint64_t vptq_sample_exp(double x)
{
    const double to_integer = 0x1.8p52, ln2_high = 0x1.62e42fefa38p-1,
                 ln2_low = 0x1.ef35793c7673p-45;
    x = x > -30 ? x : -30;
    const double shifted = x * 0x1.71547652b82fep0 + to_integer, n = shifted - to_integer;
    const double r = x - n * ln2_high - n * ln2_low; /* |r| <= ln 2 / 2 */
    double p = 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1;
    p = p * r + 1;
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023 + 40) << 52; /* 2^(n + 40): n is in the lowest bits of `shifted` */
    double scale, sum;
    memcpy(&scale, &bits, sizeof scale);
    sum = p * scale + 0x1p52; /* an integer in the lowest bits */
    memcpy(&bits, &sum, sizeof bits);
    return bits & ((UINT64_C(1) << 52) - 1);
}

/* The weight of a logit that is a number; max: the largest logit.  If max is infinite, only its
 * equals have a weight. */
static inline VPTQ_HD uint64_t vptq_sample_weight(float logit, float max, double temperature)
{
    return logit == max ? UINT64_C(1) << 40
                        : vptq_sample_exp(((double)logit - (double)max) / temperature);
}

/* The sum that the weights of the kept tokens must reach, 1 .. total. */
static inline VPTQ_HD uint64_t vptq_sample_reach(double top_p, uint64_t total)
{
    const double want = top_p * (double)total;
    uint64_t reach = (uint64_t)want;
    if ((double)reach < want)
        reach++;
    return reach < 1 ? 1 : reach < total ? reach : total;
}

/* The unit, 0 .. kept - 1, that u draws. */
static inline VPTQ_HD uint64_t vptq_sample_unit(double u, uint64_t kept)
{
    const uint64_t unit = (uint64_t)(u * (double)kept);
    return unit < kept ? unit : kept - 1;
}

#endif
