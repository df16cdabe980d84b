/* Reads a config.json, a 0 byte and a safetensors file as the layouts of AutoGPTQ and AutoAWQ;
 * every accepted matrix is dequantized and written as compressed-tensors. */
#include <string.h>

#include "formats/hf/gptq.h"
#include "formats/hf/safetensors.h"
#include "tests/fuzz/fuzz_input.h"

enum { MAX_MODULES = 8, MAX_WEIGHTS = 1 << 20, MAX_NAME = 256 };

static void use_matrix(const vptq_compressed_matrix *m)
{
    const vptq_uniform_shape *s = &m->u.shape;
    vptq_arena arena;
    vptq_tensor list[VPTQ_COMPRESSED_MAX_TENSORS];
    size_t count = 0;
    if ((uint64_t)s->out * s->in <= MAX_WEIGHTS) {
        float *w = malloc((size_t)s->out * s->in * sizeof *w);
        if (w)
            vptq_uniform_read(&m->u, 0, s->out, w);
        free(w);
    }
    vptq_arena_init(&arena, NULL);
    vptq_status st = vptq_compressed_tensors(m, &arena, list, &count, NULL);
    if (st && st != VPTQ_E_UNSUPPORTED && st != VPTQ_E_NOMEM)
        abort();
    vptq_arena_release(&arena);
}

static void read_modules(const vptq_gptq_layout *layout, vptq_tensor_set *set)
{
    const size_t count = set->count;
    for (size_t i = 0, n = 0; i < count && n < MAX_MODULES; i++) {
        const char *name = set->tensors[i].name;
        const size_t len = vptq_gptq_module_length(name);
        char module[MAX_NAME];
        vptq_compressed_matrix m;
        bool quantized;
        if (len == 0 || len >= sizeof module)
            continue;
        memcpy(module, name, len);
        module[len] = 0;
        n++;
        if (!vptq_gptq_read(set, layout, module, "input", &set->arena, &m, &quantized, NULL) &&
            quantized)
            use_matrix(&m);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_MAX];
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    json_t *config = NULL;
    vptq_gptq_layout layout;
    if (!end ||
        vptq_json_parse((const char *)data, (size_t)(end - data), "input", &config, NULL))
        return 0;
    if (vptq_gptq_is_config(config) && !vptq_gptq_layout_of(config, "input", &layout, NULL) &&
        fuzz_input_file(path, end + 1, size - (size_t)(end + 1 - data))) {
        vptq_tensor_set set;
        vptq_tensor_set_init(&set, NULL);
        if (vptq_safetensors_read(path, &set, NULL, NULL) == VPTQ_OK &&
            vptq_tensor_set_finish(&set, NULL) == VPTQ_OK)
            read_modules(&layout, &set);
        vptq_tensor_set_release(&set);
        unlink(path);
    }
    json_decref(config);
    return 0;
}
