/* Reads the input as a tokenizer.json; an accepted one encodes and decodes. */
#include "tests/fuzz/fuzz_encode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    vptq_err err;
    vptq_vocab v;
    if (!vptq_vocab_parse_json((const char *)data, size, NULL, 0, "input", NULL, &v, &err))
        fuzz_use_vocab(&v, data, size);
    return 0;
}
