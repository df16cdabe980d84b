/* Internal: products of a batch of activations x with stored weights (ops gemv, vq_gemv) and
 * the decoding of packed weights (vq_dequant).
 *
 * Few tokens are multiplied with the matrix as it is stored, VPTQ_GEMV_ROWS at a time (gemv.c,
 * and vq_gemv.c over a vptq_layout).  More rows meet packed panels of it (batch.c,
 * vq_gemv_batch.c). The inner loops are in gemv_simd.c.  The result for a row of x depends
 * neither on the other rows nor on how the matrix is cut into blocks of vector rows. */
#ifndef VPTQ_BACKEND_CPU_GEMV_H
#define VPTQ_BACKEND_CPU_GEMV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/backend/backend.h"
#include "lib/backend/cpu/math.h"
#include "lib/base/mem.h"

enum {
    VPTQ_GEMV_ROWS = 4,         /* tokens that the kernels process at a time */
    VPTQ_DOT_ROWS = 4,          /* rows of a stored matrix that they multiply at a time */
    VPTQ_BLOCK_VECTOR_ROWS = 4, /* vector rows of a block of a layout */
    VPTQ_CODES_AHEAD = 1536,    /* bytes by which kernels prefetch the codes of a layout */
    VPTQ_BATCH_DEPTH = 320      /* largest number of columns of a panel */
};

/* ---- entries of the index stream ---- */

/* How to extract entries from a bit stream.  Eight of them begin at a whole byte; with at most
 * 25 bits each lies within four bytes. */
typedef struct vptq_fields {
    unsigned bits, main_bits; /* of an entry, of its main index */
    uint32_t v;
    bool by_bytes;       /* entries have at most 25 bits, and the rest is valid */
    unsigned half;       /* byte in which the fifth of eight entries begins */
    uint8_t shuffle[32]; /* bytes of entries 0 to 3 from the first, of 4 to 7 from `half` on */
    uint32_t shift[8];
} vptq_fields;
vptq_fields vptq_fields_of(unsigned bits, unsigned main_bits, uint32_t v);

/* An entry as offsets into the codebooks: its indices times v (of vptq_fields). */
typedef struct vptq_entry {
    uint32_t main, res;
} vptq_entry;

/* ---- layout of a packed matrix ---- */

/* A packed matrix in the form in which it is multiplied: everything that a product would have
 * to compute for each entry of the bit stream, computed once before the first product.
 *
 * Tables.  A row holds one centroid, padded with zeros to `lanes` numbers.  If that is exact,
 * the numbers are float16 and mean the values times 2^shift: half as many bytes pass through
 * the caches, which limit the speed of a product.  Codebooks stored as float16, or as bfloat16
 * over a range of less than 2^32, are exact; others stay float.
 *
 * Codes.  A block has four vector rows; for every column it holds the four codes of their main
 * centroids, then those of their residual centroids, 16 bits each.  A code counts units of 8
 * bytes or, for tables too large for that, rows (`code_scale` is then the length of a row in
 * units).  Vector rows after the last one have code 0; their sums are ignored.
 *
 * Codebooks on an int8 grid have rows of a byte per number and codes in another order
 * (grid.h), with what the offset of the digits of x adds to each sum (`starts`).
 *
 * A layout takes 4 bytes per vector (2 without residual codebook) in addition to the vptq_vq,
 * which has log2(k k_res) bits per vector. */
typedef struct vptq_layout {
    vptq_arena arena;      /* owns the arrays */
    size_t lanes;          /* 4, or v rounded up to a multiple of 8 */
    size_t blocks;         /* of VPTQ_BLOCK_VECTOR_ROWS vector rows */
    size_t record;         /* codes of a column: 4, or 8 with a residual codebook */
    size_t code_scale;     /* units of 8 bytes per count of a code */
    bool half;             /* tables of float16 */
    int shift;             /* 0 in tables of floats */
    size_t row_bytes;      /* of a table */
    const uint8_t *main;   /* [groups][k] rows */
    const uint8_t *res;    /* [groups][k_res] rows, or NULL */
    const uint16_t *codes; /* [groups][blocks][group_size][record]; NULL in an empty layout */
    /* Of codebooks on a grid, whose tables are all in `main`: [groups][k + k_res] rows */
    bool grid;
    size_t records, block_codes; /* of a block: grid.h; codes [groups][blocks][block_codes] */
    size_t block_starts;         /* 0 if x is not split into bytes */
    const float *scale;          /* [groups][2]: main, residual */
    const int32_t *starts; /* NULL, or [groups][blocks] of [pieces][vector rows][lanes][2] */
} vptq_layout;

/* Fills an empty layout ({0}).  On VPTQ_E_NOMEM it stays empty. */
vptq_status vptq_layout_make(vptq_dev *dev, const vptq_vq *q, vptq_layout *l,
                             vptq_err *err) VPTQ_MUST_CHECK;
void vptq_layout_clear(vptq_layout *l);

/* ---- kernels ---- */

/* The columns of one group in one block of a layout. */
typedef struct vptq_gemv_block {
    const uint16_t *codes; /* [columns][record] */
    size_t columns, n;     /* n <= VPTQ_GEMV_ROWS */
    const float *x;        /* [n, columns] */
    size_t ldx;
    const uint8_t *main, *res; /* tables; res NULL without a residual codebook */
    size_t lanes, code_scale;  /* of the layout */
    bool half;
    float *sum; /* [n, VPTQ_BLOCK_VECTOR_ROWS * lanes], added to */
    size_t ld_sum;
} vptq_gemv_block;

typedef struct vptq_gemv_kernels {
    /* Extracts entries first .. first + count - 1 of a row of the stream, first a multiple
     * of 8. end: end of the array that holds the rows. */
    void (*fields)(const vptq_fields *f, const uint32_t *row, const void *end, size_t first,
                   size_t count, vptq_entry *entry);
    void (*block)(const vptq_gemv_block *b);
    /* y[i * VPTQ_DOT_ROWS + r] = sum_j w[r][j] x[i * ldx + j] for r < rows <= VPTQ_DOT_ROWS, i
     * < n <= VPTQ_GEMV_ROWS; rows of w are row_bytes apart. */
    void (*dot)(vptq_dtype type, const void *w, size_t row_bytes, size_t rows, size_t length,
                size_t n, const float *x, size_t ldx, float *y);
    /* panel[j * width + i] = element j of row i for j < length and i < n, 0 for i >= n.  Rows
     * are row_bytes apart; n <= width, the tile_cols of the level's vptq_cpu_math. */
    void (*panel)(vptq_dtype type, const void *w, size_t row_bytes, size_t n, size_t length,
                  float *panel, size_t width);
} vptq_gemv_kernels;

VPTQ_SIMD_TABLES(vptq_gemv_kernels, vptq_gemv_kernels);

static inline const vptq_gemv_kernels *vptq_gemv_kernels_get(vptq_simd simd)
{
    return VPTQ_SIMD_SELECT(simd, vptq_gemv_kernels);
}

/* ---- panels: many tokens ---- */

/* A stored matrix that can be packed into panels, piece by piece, in the memory of each thread:
 * no float copy of the matrix is ever stored. */
typedef struct vptq_batch_source {
    /* Packs columns [l, l + depth) of rows [r0, r0 + n) of the matrix as panels [depth,
     * tile_cols], one after the other; columns after the last row may hold anything.  n <=
     * piece_rows and r0 is a multiple of it.  work: work_rows * VPTQ_BATCH_DEPTH floats.
     * Called by several threads at once. */
    void (*pack)(const void *arg, const vptq_cpu_math *math, size_t r0, size_t n, size_t l,
                 size_t depth, float *work, float *panels);
    const void *arg;
    size_t out, in;
    size_t piece_rows, work_rows;
} vptq_batch_source;

/* Computes the op gemv.  start: [n] initial values of the sums of each row of x, or NULL.
 * work: vptq_batch_work floats, taken by the caller from the scratch of the device. */
size_t vptq_batch_work(const vptq_dev *dev, const vptq_batch_source *source, size_t n);
void vptq_batch_multiply(vptq_dev *dev, const vptq_batch_source *source,
                         const vptq_gemv_args *g, const float *start, float *work);

/* Starts outputs [r0, r0 + n) of row i of y: bias + start, plus what is there if beta is 1. */
static inline void vptq_gemv_start(const vptq_gemv_args *g, size_t i, float start, size_t r0,
                                   size_t n)
{
    const float *bias = g->bias;
    const bool add = g->beta != 0;
    float *y = g->y + i * g->ldy;
    for (size_t r = r0; r < r0 + n; r++)
        y[r] = (add ? y[r] : 0) + ((bias ? bias[r] : 0) + start);
}

/* ---- vq_gemv ---- */

/* x [in] = activations `from` [in] in the processing order of the columns, times their scale;
 * returns the sum of from[j] * bias[j]. */
float vptq_vq_prepare_x(const vptq_vq *q, const float *from, float *x);

/* Whether vq_gemv of n tokens packs panels instead of looking centroids up; false if vectors
 * would cross the pieces.  l: the layout, or an empty one. */
bool vptq_vq_uses_panels(const vptq_vq *q, const vptq_layout *l, size_t n);
vptq_status vptq_vq_gemv_batch(vptq_dev *dev, const vptq_vq *q, const vptq_gemv_args *g,
                               vptq_err *err);

#endif
