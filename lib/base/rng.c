/* Philox random numbers (rng.h). */
#include "lib/base/rng.h"

/* Multipliers and key increments of the paper's table 2 (Philox4x32). */
enum { ROUNDS = 10 };
#define MUL0 UINT32_C(0xD2511F53)
#define MUL1 UINT32_C(0xCD9E8D57)
#define KEY0 UINT32_C(0x9E3779B9)
#define KEY1 UINT32_C(0xBB67AE85)

void vptq_philox4x32(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t x0 = ctr[0], x1 = ctr[1], x2 = ctr[2], x3 = ctr[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t p0 = (uint64_t)MUL0 * x0;
        uint64_t p1 = (uint64_t)MUL1 * x2;
        x0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0;
        x1 = (uint32_t)p1;
        x2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
        x3 = (uint32_t)p0;
        k0 += KEY0;
        k1 += KEY1;
    }
    out[0] = x0;
    out[1] = x1;
    out[2] = x2;
    out[3] = x3;
}

vptq_rng vptq_rng_make(uint64_t seed, uint32_t matrix, uint32_t group, vptq_rng_purpose purpose)
{
    /* A matrix has at most 65536 columns, hence groups: the purpose fits above them. */
    return (vptq_rng){.key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
                      .stream = {matrix, (uint32_t)purpose << 24 ^ group}};
}

uint64_t vptq_rng_u64(const vptq_rng *rng, uint64_t counter)
{
    const uint32_t ctr[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), rng->stream[0],
                             rng->stream[1]};
    uint32_t x[4];
    vptq_philox4x32(ctr, rng->key, x);
    return (uint64_t)x[1] << 32 | x[0];
}

double vptq_rng_uniform(const vptq_rng *rng, uint64_t counter)
{
    return (double)(vptq_rng_u64(rng, counter) >> 11) * 0x1p-53;
}

/* floor(x * n / 2^64) from 32-bit halves.  Its bias is below n / 2^64. */
uint64_t vptq_rng_below(const vptq_rng *rng, uint64_t counter, uint64_t n)
{
    uint64_t x = vptq_rng_u64(rng, counter);
    uint64_t x0 = (uint32_t)x, x1 = x >> 32, n0 = (uint32_t)n, n1 = n >> 32;
    uint64_t low = x0 * n0;
    uint64_t mid = x1 * n0 + (low >> 32);
    uint64_t mid2 = x0 * n1 + (uint32_t)mid;
    return x1 * n1 + (mid >> 32) + (mid2 >> 32);
}
