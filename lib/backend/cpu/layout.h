/* The form in which the cpu backend multiplies a packed matrix: what a product would have to
 * work out for every entry of the bit stream is worked out once, before the first product.
 *
 * Tables.  A row holds one centroid, padded by zeros to `lanes` numbers.  Where that loses
 * nothing, the numbers are float16 and stand for the values times 2^shift: half as many bytes
 * pass through the caches, which is what a product waits for.  Codebooks that were stored as
 * float16, or as bfloat16 over a range of less than 2^32, lose nothing; others stay float.
 *
 * Codes.  Four vector rows go side by side; for every column there are the four places of their
 * centroids, then those of their residual centroids, 16 bits each.  A place counts bytes / 8,
 * or, for tables that are too large for that, rows (`far` is then a row's length in units of 8
 * bytes).  Vector rows behind the last one have code 0; their sums are thrown away.
 *
 * It takes 4 bytes for every vector (2 without residual codebook) where the file takes log2(k
 * k_res) bits, beside the arrays of the vptq_vq it was made from. */
#ifndef VPTQ_BACKEND_CPU_LAYOUT_H
#define VPTQ_BACKEND_CPU_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/backend/backend.h"
#include "lib/base/mem.h"

enum { VPTQ_LAYOUT_STRIPS = 4 };

typedef struct vptq_layout {
    vptq_arena arena; /* of the arrays */
    size_t lanes;     /* 4, or v rounded up to a multiple of 8 */
    size_t blocks;    /* of four vector rows */
    size_t record;    /* codes of a column: 4, or 8 with a residual codebook */
    size_t far;       /* units of 8 bytes that a code counts */
    bool half;
    int shift;             /* 0 in tables of floats */
    size_t row_bytes;      /* of a table */
    const uint8_t *main;   /* [groups][k] rows */
    const uint8_t *res;    /* [groups][k_res] rows, or NULL */
    const uint16_t *codes; /* [groups][blocks][group_size][record]; NULL in an empty layout */
} vptq_layout;

/* Fills an empty layout ({0}).  VPTQ_E_NOMEM: it is empty as before. */
vptq_status vptq_layout_make(vptq_dev *dev, const vptq_vq *q, vptq_layout *l,
                             vptq_err *err) VPTQ_MUST_CHECK;
void vptq_layout_clear(vptq_layout *l); /* empty again */

#endif
