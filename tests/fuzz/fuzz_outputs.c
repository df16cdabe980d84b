/* Reads the input as a file of output Hessians of a tiny model: the header and the beginning of
 * the numbers, with zeros up to the size of all K.  An input with a wrong checksum is read
 * again with the right one, so that mutations get past it. */
#include "hessian/outputs.h"
#include "tests/fuzz/fuzz_input.h"

static const vptq_family gated = {.model_type = "llama"};
static const vptq_model_desc desc = {.family = &gated,
                                     .hidden = 32,
                                     .intermediate = 80, /* two blocks */
                                     .layers = 1,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 16};

/* Makes the file of the size that the header asks for, if it is a small one. */
static bool pad(const char *path, const uint8_t *data, size_t size)
{
    uint64_t header = 0;
    for (int i = 0; i < VPTQ_SAFETENSORS_LENGTH_BYTES && size >= VPTQ_SAFETENSORS_LENGTH_BYTES;
         i++)
        header |= (uint64_t)data[i] << 8 * i;
    const size_t numbers = vptq_output_layer_entries(&desc) * sizeof(float);
    return header > 4096 ||
           truncate(path, (off_t)(VPTQ_SAFETENSORS_LENGTH_BYTES + header + numbers)) == 0;
}

/* Aborts unless K is as an open file promises. */
static void check(const vptq_outputs *o)
{
    if (!o->windows || !o->tokens)
        abort();
    for (int l = 0; l < VPTQ_LINEAR_DENSE; l++) {
        const float *k = vptq_outputs_load(o, 0, (vptq_linear)l);
        const size_t n = vptq_output_entries(&desc, (vptq_linear)l);
        for (size_t i = 0; i < n; i++)
            if (!(k[i] > -1e24f && k[i] < 1e24f))
                abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX];
    vptq_outputs o;
    vptq_err err = {0};
    if (!fuzz_input_file(path, data, size))
        return 0;
    if (pad(path, data, size) &&
        (!vptq_outputs_open(path, &desc, NULL, &o, &err) ||
         (fuzz_correct(path, err.text) && !vptq_outputs_open(path, &desc, NULL, &o, &err)))) {
        check(&o);
        vptq_outputs_close(&o);
    }
    unlink(path);
    return 0;
}
