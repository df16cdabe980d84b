/* Inside lib/quant: the blocked column pass (paper Algorithm 1). */
#ifndef VPTQ_QUANT_COLUMN_PASS_H
#define VPTQ_QUANT_COLUMN_PASS_H

#include "lib/quant/quant.h"

enum { VPTQ_PASS_BLOCK = 128 }; /* columns between updates of the rest by one matrix product */

/* z [in][rows]: normalized, ordered, transposed weights; destroyed.  u [in][in]: upper factor.
 * centroids [k][v].  idx [in][rows / v] and q [in][rows] (the chosen centroids) are filled. */
vptq_status vptq_column_pass(vptq_device *dev, size_t in, size_t rows, uint32_t v, uint32_t k,
                             float *z, const float *u, const float *centroids, uint32_t *idx,
                             float *q, vptq_err *err) VPTQ_MUST_CHECK;

#endif
