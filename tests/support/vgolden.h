/* Golden files of losses of published code on matrices with Hessians
 * (tests/golden/matrices.py). */
#ifndef VPTQ_TESTS_SUPPORT_VGOLDEN_H
#define VPTQ_TESTS_SUPPORT_VGOLDEN_H

#include "formats/hf/safetensors.h"
#include "tests/support/problem.h"

/* Opens the set of a file; the caller releases it. */
void vgolden_open(vptq_tensor_set *set, const char *path);

/* Returns matrix i; the caller frees it with problem_free. */
problem vgolden_problem(const vptq_tensor_set *set, int i);
/* Copies the losses of matrix i; the file has n of each matrix. */
void vgolden_losses(const vptq_tensor_set *set, int i, size_t n, double *loss);

#endif
