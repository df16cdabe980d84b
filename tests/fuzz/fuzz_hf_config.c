/* Reads the input as a config.json; accepted input gives rotary tables and a configuration that
 * is accepted again. */
#include "formats/hf/config.h"
#include "tests/fuzz/fuzz_input.h"

enum { POSITIONS = 3, MOST_PAIRS = 1 << 15 };

static void use(const vptq_model_desc *d)
{
    vptq_err err;
    vptq_model_desc again;
    json_t *made = NULL;
    size_t pairs = vptq_rotary_dim(d) / 2;
    float *tables = pairs <= MOST_PAIRS ? malloc(2 * POSITIONS * pairs * sizeof *tables) : NULL;
    if (tables)
        vptq_rope_tables(d, POSITIONS, tables, tables + POSITIONS * pairs);
    free(tables);
    if (vptq_hf_config_make(d, "float16", &made, &err))
        return;
    if (vptq_hf_config_parse(made, "made", &again, &err) || again.hidden != d->hidden ||
        again.rope_scaling != d->rope_scaling || again.window != d->window)
        abort();
    json_decref(made);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    vptq_err err;
    json_t *config = NULL;
    vptq_model_desc d;
    if (vptq_json_parse((const char *)data, size, "fuzz", &config, &err))
        return 0;
    if (vptq_hf_config_parse(config, "fuzz", &d, &err) == VPTQ_OK)
        use(&d);
    json_decref(config);
    return 0;
}
