/* Internal: little-endian integers at any address, as files hold them. */
#ifndef VPTQ_BASE_LE_H
#define VPTQ_BASE_LE_H

#include <stdint.h>

/* The low `bytes` bytes of x, at most 8. */
static inline void vptq_put_le(uint8_t *p, uint64_t x, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        p[i] = (uint8_t)(x >> (8 * i));
}

static inline uint64_t vptq_get_le(const uint8_t *p, unsigned bytes)
{
    uint64_t x = 0;
    for (unsigned i = 0; i < bytes; i++)
        x |= (uint64_t)p[i] << (8 * i);
    return x;
}

#endif
