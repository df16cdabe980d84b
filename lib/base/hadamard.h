/* Internal: orthogonal transforms A_n of n numbers that spread each over many.  QuIP# (Tseng et
 * al. 2024, section 3).
 *
 * A_n is a Hadamard matrix of order n divided by sqrt(n): the Kronecker product of one of order
 * K, the smallest that Paley's constructions (1933) give with n = K 2^a and K <= 512, and
 * Sylvester's of order 2^a.  If there is none (n = 172, or n odd), A_n has the largest such
 * matrix whose order divides n as blocks on its diagonal. */
#ifndef VPTQ_BASE_HADAMARD_H
#define VPTQ_BASE_HADAMARD_H

#include <stdbool.h>
#include <stddef.h>

/* Every row x [n] of w [rows, n] becomes A_n x, or A_n^T x if transposed.  Thread safe; equal
 * inputs give equal results on every processor. */
void vptq_hadamard_rows(size_t rows, size_t n, bool transposed, float *w);

/* The order of the blocks of A_n; n where one Hadamard matrix fits. */
size_t vptq_hadamard_order(size_t n);

#endif
