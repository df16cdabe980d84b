/* Inner loops of the rows gemv, vq_gemv and vq_dequant, one set per instruction set; for
 * cpu_gemv.c, cpu_layout.c, cpu_vq_gemv.c, cpu_vq_many.c and cpu_vq_decode.c alone.  What they
 * give for a row of x depends neither on the other rows nor on how a matrix is cut into blocks
 * of vector rows. */
#ifndef VPTQ_BACKEND_CPU_GEMV_H
#define VPTQ_BACKEND_CPU_GEMV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/cpu.h"
#include "lib/base/dtype.h"

enum { VPTQ_GEMV_ROWS = 4 /* rows of x, at most */ };

/* How the entries of a bit stream are told apart.  Eight of them begin at a whole byte; with at
 * most 25 bits each lies in four bytes of its own. */
typedef struct vptq_fields {
    unsigned bits, main_bits; /* of an entry, of its main index */
    uint32_t v;
    bool by_bytes;       /* the rest is set */
    unsigned half;       /* byte in which the fifth of eight entries begins */
    uint8_t shuffle[32]; /* bytes of entries 0 to 3 from the first, of 4 to 7 from `half` on */
    uint32_t shift[8];
} vptq_fields;
vptq_fields vptq_fields_of(unsigned bits, unsigned main_bits, uint32_t v);

/* The indices of an entry, each times v (of vptq_fields). */
typedef struct vptq_place {
    uint32_t main, res;
} vptq_place;

/* The columns of one group in one block of vector rows, as in cpu_layout.h. */
typedef struct vptq_gemv_block {
    const uint16_t
        *codes;        /* [columns][STRIPS], or [columns][2][STRIPS] with a residual table */
    size_t columns, n; /* n <= VPTQ_GEMV_ROWS */
    const float *x;    /* [n, columns] */
    size_t ldx;
    const uint8_t *main, *res; /* tables; res NULL = none */
    size_t lanes, far;         /* of the layout */
    bool half;
    float *sum; /* [n, STRIPS * lanes], added to */
    size_t ld_sum;
} vptq_gemv_block;

typedef struct vptq_gemv_kernels {
    /* Places of entries first .. first + count - 1 of a row, first a multiple of 8; `end`: of
     * the array that holds the rows. */
    void (*fields)(const vptq_fields *f, const uint32_t *row, const void *end, size_t first,
                   size_t count, vptq_place *place);
    void (*block)(const vptq_gemv_block *b);
    /* y[i] = sum_j w[j] x[i * ldx + j] for i < n, n <= VPTQ_GEMV_ROWS */
    void (*dot)(vptq_dtype type, const void *w, size_t length, size_t n, const float *x,
                size_t ldx, float *y);
    /* panel[j * width + i] = element j of row i, for j < length and i < n; 0 for the columns i
     * from n on.  Rows begin row_bytes apart; n <= width, the tile_cols of the set's math,
     * which whole registers make up. */
    void (*panel)(vptq_dtype type, const void *w, size_t row_bytes, size_t n, size_t length,
                  float *panel, size_t width);
} vptq_gemv_kernels;

/* The entries one after the other, of any width. */
void vptq_fields_plain(const vptq_fields *f, const uint32_t *row, size_t first, size_t count,
                       vptq_place *place);

extern const vptq_gemv_kernels vptq_gemv_kernels_none, vptq_gemv_kernels_avx2,
    vptq_gemv_kernels_avx512;
const vptq_gemv_kernels *vptq_gemv_kernels_get(vptq_simd simd);

#endif
