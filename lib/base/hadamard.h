/* Internal: orthogonal transforms A_n of n numbers that spread each over many: A Hadamard
 * matrix divided by sqrt(n) where one of order n can be constructed here, otherwise the same in
 * blocks.  QuIP# (Tseng et al. 2024, section 3). */
#ifndef VPTQ_BASE_HADAMARD_H
#define VPTQ_BASE_HADAMARD_H

#include <stdbool.h>
#include <stddef.h>

/* Every row x [n] of w [rows, n] becomes A_n x, or A_n^T x if transposed.  Thread safe; equal
 * inputs give equal results on every processor. */
void vptq_hadamard_rows(size_t rows, size_t n, bool transposed, float *w);

#endif
