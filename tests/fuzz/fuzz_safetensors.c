/* Reads the input as a safetensors file and every accepted tensor to its end. */
#include "formats/hf/safetensors.h"
#include "tests/fuzz/fuzz_input.h"

static void read_all(const vptq_tensor *t)
{
    size_t rows = vptq_tensor_rows(t), cols = vptq_tensor_cols(t);
    unsigned sum = 0;
    for (size_t i = 0; i < t->bytes; i++)
        sum += t->data[i];
    if (vptq_tensor_check_finite(t, NULL) || sum == 0 || rows == 0 || cols > 1 << 20)
        return;
    float *row = malloc(cols * sizeof *row + 1);
    for (size_t r = 0; row && r < rows && r < 100; r++)
        if (vptq_tensor_read(t, r, 1, row, NULL))
            break;
    free(row);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX];
    if (!fuzz_input_file(path, data, size))
        return 0;
    vptq_err err;
    vptq_tensor_set set;
    vptq_metadata_list meta;
    vptq_tensor_set_init(&set, NULL);
    if (vptq_safetensors_read(path, &set, &meta, &err) == VPTQ_OK &&
        vptq_tensor_set_finish(&set, &err) == VPTQ_OK)
        for (size_t i = 0; i < set.count; i++)
            read_all(&set.tensors[i]);
    vptq_tensor_set_release(&set);
    unlink(path);
    return 0;
}
