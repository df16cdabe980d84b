/* Reads the input as an importance matrix, in GGUF form if it begins with that magic. */
#include "formats/gguf/imatrix.h"
#include "tests/fuzz/fuzz_input.h"

static void use(const vptq_imatrix *im)
{
    for (size_t i = 0; i < im->count; i++) {
        const vptq_imatrix_entry *e = &im->entries[i];
        uint32_t layer;
        for (uint32_t c = 0; c < e->n; c++)
            if (!(e->mean_square[c] >= 0) || (e->mean && e->mean[c] != e->mean[c]))
                abort();
        if (vptq_imatrix_layer(e->name, &layer))
            for (int input = 0; input < VPTQ_INPUT_DENSE; input++)
                (void)vptq_imatrix_find(im, layer, (vptq_input)input);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX];
    vptq_imatrix im;
    if (!fuzz_input_file(path, data, size))
        return 0;
    if (!vptq_imatrix_read(path, NULL, &im, NULL)) {
        use(&im);
        vptq_imatrix_release(&im);
    }
    unlink(path);
    return 0;
}
