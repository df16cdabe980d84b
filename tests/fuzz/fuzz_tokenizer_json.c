/* Reads the input as a tokenizer.json; an accepted one encodes and decodes. */
#include "tests/fuzz/fuzz_encode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX];
    if (!fuzz_input_file(path, data, size))
        return 0;
    vptq_err err;
    vptq_vocab v;
    if (!vptq_vocab_read_json(path, NULL, &v, &err))
        fuzz_use_vocab(&v, data, size);
    unlink(path);
    return 0;
}
