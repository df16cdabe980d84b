/* Internal: inner loops of products with uniformly quantized matrices, one set per SIMD level
 * (uniform_gemv_simd.c).  Rows are decoded piece by piece into memory that stays in the first
 * cache, and multiplied from there. */
#ifndef VPTQ_BACKEND_CPU_UNIFORM_GEMV_H
#define VPTQ_BACKEND_CPU_UNIFORM_GEMV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/cpu.h"
#include "lib/base/uniform.h"

enum {
    VPTQ_UNIFORM_PIECE = 320, /* columns that are decoded at a time, at most */
    VPTQ_UNIFORM_PAD = 32,    /* elements after them that kernels may write */
    VPTQ_UNIFORM_ROWS = 4,    /* rows that are multiplied at a time */
    VPTQ_UNIFORM_TOKENS = 2,  /* tokens, likewise */
    VPTQ_UNIFORM_LANES = 16   /* of a sum along a row */
};

/* Columns [first, first + n) of a row, first a multiple of 8. */
typedef struct vptq_uniform_piece {
    const vptq_uniform *w;
    vptq_dtype storage; /* F16 or BF16 */
    size_t row, first, n;
    const float *scales;  /* of the row: [groups] */
    const uint8_t *zeros; /* likewise, or NULL */
    float *values;        /* [n], and VPTQ_UNIFORM_PAD more that may be written */
} vptq_uniform_piece;

/* Decoded rows and the tokens that they are multiplied by. */
typedef struct vptq_uniform_dots {
    size_t rows, tokens; /* at most VPTQ_UNIFORM_ROWS, VPTQ_UNIFORM_TOKENS */
    size_t columns;      /* a multiple of VPTQ_UNIFORM_LANES */
    const float *w, *x;  /* [rows, ldw], [tokens, ldx] */
    size_t ldw, ldx;
    /* [tokens][rows][lanes]: element j of the row is added to lane j % 16 */
    float (*sum)[VPTQ_UNIFORM_ROWS][VPTQ_UNIFORM_LANES];
} vptq_uniform_dots;

typedef struct vptq_uniform_gemv_kernels {
    /* values[i] = (code - zero) * scale rounded to storage. */
    void (*decode)(const vptq_uniform_piece *p);
    /* *y = the product of a whole row and one token, without memory in between; false if the
     * level has no such kernel for this matrix.  values is not used. */
    bool (*dot)(const vptq_uniform_piece *p, const float *x, float *y);
    void (*dots)(const vptq_uniform_dots *d);
    /* The sum of 16 lanes, as gemv adds them. */
    float (*total)(const float *lanes);
} vptq_uniform_gemv_kernels;

VPTQ_SIMD_TABLES(vptq_uniform_gemv_kernels, vptq_uniform_gemv_kernels);

static inline const vptq_uniform_gemv_kernels *vptq_uniform_gemv_kernels_get(vptq_simd simd)
{
    return VPTQ_SIMD_SELECT(simd, vptq_uniform_gemv_kernels);
}

#endif
