/* Reads the input as a .npy file and every element of an accepted matrix. */
#include "formats/torch/npy.h"
#include "tests/fuzz/fuzz_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX];
    vptq_npy a;
    if (!fuzz_input_file(path, data, size))
        return 0;
    if (!vptq_npy_open(path, &a, NULL)) {
        const vptq_tensor *t = &a.tensor;
        volatile double number = 0; /* forces the reads */
        if (t->dims == 2 && t->bytes > 0)
            for (size_t i = 0; i < t->shape[0]; i++)
                for (size_t j = 0; j < t->shape[1]; j++)
                    number = vptq_npy_at(&a, i, j);
        (void)number;
        vptq_npy_release(&a);
    }
    unlink(path);
    return 0;
}
