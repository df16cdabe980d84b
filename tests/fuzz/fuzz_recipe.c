/* Reads the input as a recipe; accepted settings can be written and read again, and checked. */
#include <string.h>

#include "lib/quantize/settings.h"
#include "tests/fuzz/fuzz_input.h"

enum { LAYERS = 3, TEXT = 64 };

static void use(const vptq_matrix_settings *m)
{
    char text[TEXT];
    vptq_err err;
    size_t count;
    const vptq_setting *table = vptq_setting_table(&count);
    vptq_encoder_settings again = vptq_encoder_defaults();

    for (size_t i = 0; i < count; i++) {
        vptq_setting_print(&table[i], &m->settings, text, sizeof text);
        if (vptq_setting_parse(&table[i], text, &again, &err) ||
            !vptq_setting_equal(&table[i], &again, &m->settings))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const vptq_text_file recipe = {.name = "x", .data = (const char *)data, .size = size};
    vptq_err err;
    vptq_arena arena;
    vptq_matrix_settings *rows;
    json_t *rules;
    vptq_encoder_settings usual = vptq_encoder_defaults();
    vptq_model_desc d = {.family = vptq_family_by_model_type("llama"),
                         .hidden = 64,
                         .intermediate = 96,
                         .layers = LAYERS,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_dim = 16};

    vptq_arena_init(&arena, NULL);
    if (!vptq_settings_resolve(&d, &usual, &recipe, &arena, &rows, &rules, &err)) {
        for (size_t i = 0; i < (size_t)LAYERS * VPTQ_LINEAR_DENSE; i++)
            use(&rows[i]);
        vptq_status st = vptq_settings_check(&d, rows, &err);
        if (st != VPTQ_OK && st != VPTQ_E_ARG && st != VPTQ_E_SHAPE)
            abort();
        json_decref(rules);
    }
    vptq_arena_release(&arena);
    return 0;
}
