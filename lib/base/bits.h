/* Internal: streams of fields of 1..32 bits, least significant bit first, in little-endian
 * 32-bit words: the packing of `indices` in the published layout. */
#ifndef VPTQ_BASE_BITS_H
#define VPTQ_BASE_BITS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define VPTQ_HD __host__ __device__ /* also called by kernels */
#else
#define VPTQ_HD
#endif

/* Words that hold n fields of `width` bits (the tail of the last word is zero). */
static inline size_t vptq_bits_words(size_t n, unsigned width)
{
    return (n * width + 31) / 32;
}

/* Field i of a stream; reads no word beyond the one that holds the field's last bit. */
static inline VPTQ_HD uint32_t vptq_bits_get(const uint32_t *words, size_t i, unsigned width)
{
    size_t bit = i * width;
    size_t w = bit >> 5;
    unsigned shift = (unsigned)(bit & 31);
    uint64_t two = words[w];
    if (shift + width > 32)
        two |= (uint64_t)words[w + 1] << 32;
    return (uint32_t)((two >> shift) & ((UINT64_C(1) << width) - 1));
}

/* Writes field i by OR: its bits must be zero before. */
static inline void vptq_bits_put(uint32_t *words, size_t i, unsigned width, uint32_t value)
{
    size_t bit = i * width;
    size_t w = bit >> 5;
    unsigned shift = (unsigned)(bit & 31);
    uint64_t two = (uint64_t)value << shift;
    words[w] |= (uint32_t)two;
    if (shift + width > 32)
        words[w + 1] |= (uint32_t)(two >> 32);
}

/* floor(log2 k) for k >= 1. */
static inline unsigned vptq_log2u(uint32_t k)
{
    return 31U - (unsigned)__builtin_clz(k | 1);
}

#endif
