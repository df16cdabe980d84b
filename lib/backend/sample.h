/* What the rows `sample` of cpu and cuda share: probabilities as integers, so that a sum of
 * them is the same in every order and both choose the same ids, to the last bit of u.  The
 * weight of a token is its probability over that of the likeliest one, in units of 2^-40.
 *
 * Nothing here needs fused multiplications; both compilers are told to make none. */
#ifndef VPTQ_BACKEND_SAMPLE_H
#define VPTQ_BACKEND_SAMPLE_H

#include <stdint.h>
#include <string.h>

#include "lib/base/bits.h"

/* The threshold is found by three digits of its key, from above: 11 bits each, of which the
 * last one shares a bit with the one before. */
enum { VPTQ_SAMPLE_BINS = 1 << 11, VPTQ_SAMPLE_FIRST = 21, VPTQ_SAMPLE_SECOND = 10 };

/* Numbers in the order of the logits; both zeros have the same, NaN the largest of all. */
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

/* 2^40 exp(x) for x <= 0, rounded; exp(-30) and less are 0. */
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

/* Of a logit that is a number, max the largest.  Where that is infinite, its equals alone. */
static inline VPTQ_HD uint64_t vptq_sample_weight(float logit, float max, double temperature)
{
    return logit == max ? UINT64_C(1) << 40
                        : vptq_sample_exp(((double)logit - (double)max) / temperature);
}

/* What the weights that are kept must sum up to at least, 1 .. total. */
static inline VPTQ_HD uint64_t vptq_sample_reach(double top_p, uint64_t total)
{
    const double want = top_p * (double)total;
    uint64_t reach = (uint64_t)want;
    if ((double)reach < want)
        reach++;
    return reach < 1 ? 1 : reach < total ? reach : total;
}

/* Which of `kept` units u draws. */
static inline VPTQ_HD uint64_t vptq_sample_unit(double u, uint64_t kept)
{
    const uint64_t unit = (uint64_t)(u * (double)kept);
    return unit < kept ? unit : kept - 1;
}

#endif
