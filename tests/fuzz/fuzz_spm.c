/* Reads the input as a tokenizer.model or a llama2.c tokenizer.bin; an accepted one encodes and
 * decodes. */
#include "formats/vocab/internal.h"
#include "tests/fuzz/fuzz_encode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const vptq_vocab_file file = {.map = {data, size}};
    vptq_err err;
    vptq_vocab v;
    if (!vptq_vocab_make("input", vptq_vocab_fill_spm, &file, NULL, &v, &err))
        fuzz_use_vocab(&v, data, size);
    if (!vptq_vocab_make("input", vptq_vocab_fill_llama2c, &file, NULL, &v, &err))
        fuzz_use_vocab(&v, data, size);
    return 0;
}
