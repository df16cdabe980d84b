/* Reads the input as a sensitivity.json.  What it lacks of this run's identity is added, and a
 * valid checksum, so that its rows are read.  Accepted rows are numbers that rate a matrix. */
#include "lib/quantize/sensitivity.c"
#include "tests/fuzz/fuzz_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { LAYERS = 2, ROWS = LAYERS * VPTQ_LINEAR_DENSE };
    static const vptq_family gated = {.model_type = "llama"};
    static const vptq_model_desc desc = {.family = &gated, .layers = LAYERS};
    char path[FUZZ_PATH_MAX];
    const vptq_ctx ctx = {.threads = 1};
    vptq_device dev = {.ctx = &ctx};
    const vptq_model model = {.desc = &desc};
    const vptq_hessian_source hessians = {.fingerprint = "0123456789abcdef"};
    const vptq_sensitivity_options opt = {
        .file = path, .base_fingerprint = "fedcba9876543210", .hessians = &hessians};
    vptq_sensitivity rows[ROWS] = {{0}};
    meter t = {.dev = &dev, .m = &model, .opt = &opt, .rows = rows};
    vptq_err err = {0};
    json_t *object = NULL;
    if (!fuzz_input_file(path, data, size) || make_doc(&t, &err))
        abort();
    (void)resume(&t, &err);
    if (!vptq_json_parse((const char *)data, size, "input", &object, &err) &&
        json_is_object(object) && !json_object_update_missing(object, t.doc) &&
        !vptq_json_save_sealed(path, object, &err) && !resume(&t, &err)) {
        if (t.done > LAYERS)
            abort();
        for (uint32_t i = 0; i < t.done * VPTQ_LINEAR_DENSE; i++)
            if (!(rows[i].loss >= 0) || !(rows[i].norm >= 0) || !(rows[i].kld >= 0))
                abort();
    }
    json_decref(object);
    json_decref(t.doc);
    unlink(path);
    return 0;
}
