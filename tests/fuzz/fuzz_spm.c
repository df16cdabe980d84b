/* Reads the input as a tokenizer.model or a llama2.c tokenizer.bin; an accepted one encodes and
 * decodes. */
#include "tests/fuzz/fuzz_encode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX];
    if (!fuzz_input_file(path, data, size))
        return 0;
    vptq_err err;
    vptq_vocab v;
    if (!vptq_vocab_read_spm(path, NULL, &v, &err))
        fuzz_use_vocab(&v, data, size);
    if (!vptq_vocab_read_llama2c(path, 0, NULL, &v, &err))
        fuzz_use_vocab(&v, data, size);
    unlink(path);
    return 0;
}
