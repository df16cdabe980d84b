/* Reads the input as a llama2.c checkpoint and every accepted tensor to its end. */
#include "formats/llama2c.h"
#include "tests/fuzz/fuzz_tensor.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX];
    if (!fuzz_input_file(path, data, size))
        return 0;
    vptq_err err;
    vptq_tensor_set set;
    vptq_model_desc d;
    vptq_tensor_set_init(&set, NULL);
    bool is = vptq_llama2c_is(path);
    bool read = vptq_llama2c_read(path, &set, &d, &err) == VPTQ_OK;
    if (is != read)
        abort();
    for (size_t i = 0; read && i < set.count; i++)
        fuzz_read_tensor(&set.tensors[i]);
    vptq_tensor_set_release(&set);
    unlink(path);
    return 0;
}
