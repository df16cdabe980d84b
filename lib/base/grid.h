/* Internal: codebooks on an int8 grid.  Such a codebook has a scale of its own, and every value
 * in it is a whole number from -127 to 127 (its code) times that scale.  Readers that know
 * nothing of grids decode the stored values as ever; the packed products recognize the grid and
 * keep 8 values in 8 bytes.
 *
 * The encoder takes scales whose 255 products are all exact in the storage type, so that the
 * grid survives being stored:
 *
 *     F16   m * 2^e, m in 8..15 and e >= -24: 127 * 15 = 1905 fits into 11 significant bits
 *     BF16  2^e: 127 fits into 8 significant bits, 127 * 3 does not
 *
 * Recognition does not depend on these rules.  It is the greatest common divisor: the largest
 * scale of which all values are whole multiples. */
#ifndef VPTQ_BASE_GRID_H
#define VPTQ_BASE_GRID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/vptq.h"

enum { VPTQ_GRID_MAX = 127 }; /* largest absolute code */

/* Whether the n values of one codebook lie on a grid.  If so, *scale is the largest one, a
 * positive float, and codes [n] (may be NULL) are the codes: codes[i] * *scale == c[i] exactly
 * in float arithmetic; -0 has the code 0.  Without any value but zeros *scale is 1.  Returns
 * false for values that need larger codes, for infinities and for NaN; *scale and codes are
 * then undefined.  O(n); a codebook that is not on a grid is rejected after a few values. */
bool vptq_grid_find(const float *c, size_t n, float *scale, int8_t *codes);

/* The scale with which vptq_grid_round changes a codebook c [k, v] least, among the scales
 * above that are exact for `storage` (F16 or BF16): the smallest that reaches the largest
 * value, the two next larger ones, so that a codebook on a grid stays as it is, and smaller
 * ones down to a quarter, which clip.  The change is the sum of weight[i] |c_i - rounded c_i|^2
 * over the centroids.  Returns 0 if a value is not finite in `storage`.  Equal inputs give
 * equal results on every processor. */
float vptq_grid_choose(vptq_dtype storage, size_t k, size_t v, const float *c,
                       const double *weight);

/* Moves n values to the nearest multiples of `scale`, halves to even, with codes of at most
 * 127.  Zeros become +0. */
void vptq_grid_round(float scale, float *c, size_t n);

#endif
