/* Internal: kernels for packed matrices whose codebooks lie on an int8 grid (lib/base/grid.h).
 *
 * A row of a table is one centroid as int8 codes, padded with zeros to a multiple of 8.  All
 * codebooks of a group are one table: main centroids, then residual centroids.  The columns of
 * a group come in records of eight look-ups per vector row: with a residual codebook four
 * columns, their main centroids before their residual centroids; otherwise eight columns.  The
 * first four look-ups and the last four have separate sums, because main and residual
 * codebooks have different scales.
 *
 * x becomes whole numbers of 24 bits, relative to the largest of 1024 columns: the error of an
 * element is at most 2^-23 of that.  Sums of such numbers times codes are exact, so that every
 * way to compute them gives the same bits.  `block` splits x into two words of 12 bits, of
 * which one instruction multiplies two with the codes of two look-ups.  `block_bytes` needs
 * AVX-512 VNNI and VBMI: three unsigned digits of a byte, of which one instruction multiplies
 * those of 4 columns with the codes of 8 rows.  Eight look-ups are one gather. */
#ifndef VPTQ_BACKEND_CPU_GRID_H
#define VPTQ_BACKEND_CPU_GRID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/backend/cpu/gemv.h"

enum {
    VPTQ_GRID_LOOKUPS = 8, /* per record and vector row */
    VPTQ_GRID_HALF = 4,    /* of them, with one scale */
    VPTQ_GRID_LANES = 8,   /* rows that are multiplied at a time */
    VPTQ_GRID_WORDS = 2,
    VPTQ_GRID_WORD_BITS = 12, /* of the lower word, which is not negative */
    VPTQ_GRID_BYTES = 3,
    VPTQ_GRID_OFFSET = 128, /* of the highest byte, which is unsigned */
    VPTQ_GRID_SPACE = 4,    /* bytes of x per column in either form */
    VPTQ_GRID_PIECE = 1024  /* columns with a common exponent; a multiple of a record */
};

/* Columns of a record. */
static inline size_t vptq_grid_columns(bool residual)
{
    return residual ? VPTQ_GRID_HALF : VPTQ_GRID_LOOKUPS;
}

/* The columns of one group in one block of a layout, padded to whole records. */
typedef struct vptq_grid_block {
    const uint16_t *codes; /* [records][VPTQ_BLOCK_VECTOR_ROWS][VPTQ_GRID_LOOKUPS] */
    size_t records, n;     /* n <= VPTQ_GEMV_ROWS */
    bool residual;
    const uint8_t *digits; /* [n][records] of VPTQ_GRID_SPACE bytes per column, which begin with
                              int16 [WORDS][columns] or uint8 [BYTES][columns] */
    size_t ld_digits;
    const float *unit; /* [n][pieces] values of the last digit */
    size_t ld_unit;
    const int32_t *start; /* sums without the offset, as in the layout; of this block */
    const int8_t *table;
    size_t lanes, code_scale; /* of the layout */
    const float *scale;       /* [2] of the first and the last look-ups of a record */
    float *sum;               /* [n, VPTQ_BLOCK_VECTOR_ROWS * lanes], added to */
    size_t ld_sum;
} vptq_grid_block;

typedef struct vptq_grid_kernels {
    void (*block)(const vptq_grid_block *b);
    /* NULL if this level has none.  Needs vptq_grid_uses_bytes(). */
    void (*block_bytes)(const vptq_grid_block *b);
} vptq_grid_kernels;

VPTQ_SIMD_TABLES(vptq_grid_kernels, vptq_grid_kernels);

static inline const vptq_grid_kernels *vptq_grid_kernels_get(vptq_simd simd)
{
    return VPTQ_SIMD_SELECT(simd, vptq_grid_kernels);
}

/* Whether products at this level split x into bytes: the processor has the instructions. */
bool vptq_grid_uses_bytes(vptq_simd simd);

/* Splits x [columns], which is padded to whole records, into words or bytes, and writes the
 * value of the last digit of each piece.  A piece with a value that is not finite gets NaN. */
void vptq_grid_split(const float *x, size_t columns, bool residual, bool bytes, uint8_t *digits,
                     float *unit);

/* Tries to fill the tables, codes, scales and starts of a layout.  Sets l->grid, and leaves the
 * layout as it was if the codebooks are not on a grid or too large for codes of 16 bits. */
vptq_status vptq_grid_layout_make(vptq_dev *dev, const vptq_vq *q, vptq_layout *l,
                                  vptq_err *err) VPTQ_MUST_CHECK;

#endif
