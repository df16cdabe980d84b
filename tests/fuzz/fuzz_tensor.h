/* Reads a tensor to its end, for the targets of formats that hold tensors. */
#ifndef VPTQ_TESTS_FUZZ_TENSOR_H
#define VPTQ_TESTS_FUZZ_TENSOR_H

#include "formats/tensor.h"
#include "tests/fuzz/fuzz_input.h"

static inline void fuzz_read_tensor(const vptq_tensor *t)
{
    size_t rows = vptq_tensor_rows(t), cols = vptq_tensor_cols(t);
    float *row = malloc(cols * sizeof *row);
    for (size_t r = 0; row && r < rows; r++)
        if (vptq_tensor_read(t, r, 1, row, NULL))
            abort();
    free(row);
}

#endif
