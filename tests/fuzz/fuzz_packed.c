/* Reads a config.json, a 0 byte and a safetensors file; every accepted matrix is dequantized
 * and written again. */
#include <string.h>

#include "formats/hf/safetensors.h"
#include "formats/vptq/packed.h"
#include "lib/backend/backend.h"
#include "tests/fuzz/fuzz_input.h"

enum { MAX_MODULES = 8, MAX_WEIGHTS = 1 << 20 };

static void use_matrix(vptq_device *dev, const vptq_packed_matrix *m)
{
    const vptq_vq_shape *s = &m->vq.shape;
    vptq_arena arena;
    vptq_tensor list[VPTQ_PACKED_MAX_TENSORS];
    size_t count = 0;
    if ((uint64_t)s->out * s->in <= MAX_WEIGHTS) {
        float *w = malloc((size_t)s->out * s->in * sizeof *w + 1);
        if (w && vptq_device_decode(dev, &m->vq, 0, s->out, w, s->in, NULL))
            abort();
        free(w);
    }
    vptq_arena_init(&arena, NULL);
    if (vptq_packed_tensors(m, &arena, list, &count, NULL) == VPTQ_OK) {
        unsigned sum = 0;
        for (size_t i = 0; i < count; i++)
            for (size_t b = 0; b < list[i].bytes; b++)
                sum += list[i].data[b];
        if (sum == 1 && count == 0)
            abort();
    }
    vptq_arena_release(&arena);
}

static void read_modules(const json_t *config, vptq_tensor_set *set)
{
    const json_t *layers =
        json_object_get(json_object_get(config, "quantization_config"), "config_for_layers");
    vptq_ctx ctx = {.threads = 1};
    vptq_device dev;
    const char *module;
    json_t *entry;
    int n = 0;
    if (vptq_device_open(&ctx, "ref", &dev, NULL))
        return;
    void *it = json_object_iter((json_t *)(uintptr_t)layers);
    for (; it && n < MAX_MODULES; n++) {
        vptq_packed_matrix m;
        module = json_object_iter_key(it);
        entry = json_object_iter_value(it);
        if (vptq_packed_read(&(vptq_packed_source){set, entry, module, "input"}, &set->arena,
                             &m, NULL) == VPTQ_OK)
            use_matrix(&dev, &m);
        it = json_object_iter_next((json_t *)(uintptr_t)layers, it);
    }
    vptq_device_close(&dev);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX];
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    json_t *config = NULL;
    if (!end ||
        vptq_json_parse((const char *)data, (size_t)(end - data), "input", &config, NULL))
        return 0;
    if (fuzz_input_file(path, end + 1, size - (size_t)(end + 1 - data))) {
        vptq_tensor_set set;
        vptq_tensor_set_init(&set, NULL);
        if (vptq_safetensors_read(path, &set, NULL, NULL) == VPTQ_OK &&
            vptq_tensor_set_finish(&set, NULL) == VPTQ_OK)
            read_modules(config, &set);
        vptq_tensor_set_release(&set);
        unlink(path);
    }
    json_decref(config);
    return 0;
}
