/* Internal: inner loops of products of bytes on the cpu backend, one set per SIMD level
 * (bytes_simd.c). */
#ifndef VPTQ_BACKEND_CPU_BYTES_H
#define VPTQ_BACKEND_CPU_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/cpu.h"

/* Rows of codes times quantized rows; rows may be repeated where there are fewer. */
enum { VPTQ_BYTES_OUT = 4, VPTQ_BYTES_TOKENS = 4 };
typedef struct vptq_bytes_tile {
    size_t bytes; /* of a row, a multiple of 4 */
    const uint8_t *codes[VPTQ_BYTES_OUT];
    const int8_t *q[VPTQ_BYTES_TOKENS];
    int32_t sum[VPTQ_BYTES_TOKENS][VPTQ_BYTES_OUT];
} vptq_bytes_tile;

typedef void vptq_bytes_multiply(vptq_bytes_tile *t);

typedef struct vptq_bytes_kernels {
    /* Quantizes the n numbers of a row, as the op does; false, and nothing is written, if one
     * is not finite. */
    bool (*quantize)(const float *x, size_t n, int8_t *q, float *scale);
    vptq_bytes_multiply *one; /* only the first row of q */
    vptq_bytes_multiply *all;
    /* The same with AVX-512 VNNI; NULL if this level has none. */
    vptq_bytes_multiply *one_vnni, *all_vnni;
} vptq_bytes_kernels;

VPTQ_SIMD_TABLES(vptq_bytes_kernels, vptq_bytes_kernels);

static inline const vptq_bytes_kernels *vptq_bytes_kernels_get(vptq_simd simd)
{
    return VPTQ_SIMD_SELECT(simd, vptq_bytes_kernels);
}

#endif
