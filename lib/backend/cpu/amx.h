/* Internal: products of bfloat16 numbers by AMX, in tiles of 16 rows and 64 bytes, two by two.
 * For `bf16` of the op gemm; call them on processors that have it (vptq_cpu_amx). */
#ifndef VPTQ_BACKEND_CPU_AMX_H
#define VPTQ_BACKEND_CPU_AMX_H

#include <stdbool.h>
#include <stddef.h>

enum {
    VPTQ_AMX_TILE = 32, /* rows and columns of a block of C */
    VPTQ_AMX_STEP = 32  /* steps of k in a tile */
};

/* Pack rows of A (see vptq_cpu_pack_left), or columns of B, of length k, at most VPTQ_AMX_TILE:
 * out holds VPTQ_AMX_TILE 16-bit numbers for every step of k, which is filled up with zeros to
 * a multiple of VPTQ_AMX_STEP.  Element (l, j) of B is at l * ld + j, or at j * ld + l with
 * `transposed`. */
void vptq_amx_pack_left(size_t rows, size_t k, const float *a, size_t ld, bool transposed,
                        float alpha, float *out);
void vptq_amx_pack_right(size_t cols, size_t k, const float *b, size_t ld, bool transposed,
                         float *out);
/* Around calls of vptq_amx_tile, and of the products of bytes in bytes_vnni.c, on each thread.
 */
void vptq_amx_begin(void);
void vptq_amx_end(void);
/* C [rows, cols] = A B, or with `add` C += A B; k is a multiple of VPTQ_AMX_STEP. */
void vptq_amx_tile(size_t k, const float *a, const float *b, bool add, float *c, size_t ldc,
                   size_t rows, size_t cols);

#endif
