/* The tables of presets (presets.h), and bits on the model that the paper used. */
#include "lib/encoder/presets.h"

#include <stdio.h>
#include <string.h>

static const vptq_preset_model llama2_7b = {"Llama-2-7B", 4096, 4096, 11008};
static const vptq_preset_model llama2_13b = {"Llama-2-13B", 5120, 5120, 13824};
static const vptq_preset_model llama2_70b = {"Llama-2-70B", 8192, 1024, 28672};
static const vptq_preset_model llama3_8b = {"Llama-3-8B", 4096, 1024, 14336};
static const vptq_preset_model llama3_70b = {"Llama-3-70B", 8192, 1024, 28672};

/* Rows of Table 10 that differ only in fine-tuning are one preset. */
static const vptq_preset presets[] = {
    {"llama2-7b-v6", "Table 8", &llama2_7b, 6, 4096, 0, 1, 0, 0, 0, 0},
    {"llama2-7b-v12", "Table 8", &llama2_7b, 12, 4096, 4096, 4, 1, 4, 8192, 0},
    {"llama2-13b-v6", "Table 8", &llama2_13b, 6, 4096, 0, 1, 0, 0, 0, 0},
    {"llama2-13b-v12", "Table 8", &llama2_13b, 12, 4096, 4096, 4, 2, 4, 8192, 0},
    {"llama2-70b-v12-g4", "Table 8", &llama2_70b, 12, 4096, 4096, 4, 1, 4, 8192, 0},
    {"llama2-70b-v12-g8", "Table 8", &llama2_70b, 12, 4096, 4096, 8, 1, 4, 8192, 0},
    {"llama3-8b-v12", "Table 8", &llama3_8b, 12, 4096, 4096, 1, 1, 4, 4096, 0},
    {"llama3-8b-v6", "Table 8", &llama3_8b, 6, 4096, 0, 16, 1, 4, 8192, 0},
    {"llama3-70b-v12", "Table 8", &llama3_70b, 12, 4096, 4096, 1, 0, 0, 0, 0},
    {"llama3-70b-v6", "Table 8", &llama3_70b, 6, 4096, 0, 16, 1, 4, 4096, 0},
    {"ablation-v2", "Table 10 #2", &llama2_13b, 2, 16, 0, 1, 0, 0, 0, 0},
    {"ablation-v4", "Table 10 #3", &llama2_13b, 4, 256, 0, 1, 0, 0, 0, 0},
    {"ablation-v6", "Table 10 #4, #11, #12", &llama2_13b, 6, 4096, 0, 1, 0, 0, 0, 0},
    {"ablation-v6-together", "Table 10 #5", &llama2_13b, 6, 4096, 0, 1, 0, 0, 0, 6},
    {"ablation-v8", "Table 10 #6", &llama2_13b, 8, 65536, 0, 1, 0, 0, 0, 0},
    {"ablation-v12", "Table 10 #7, #13", &llama2_13b, 12, 4096, 4096, 1, 0, 0, 0, 0},
    {"ablation-outliers-1", "Table 10 #8", &llama2_13b, 6, 4096, 0, 1, 1, 4, 4096, 0},
    {"ablation-outliers-2", "Table 10 #9", &llama2_13b, 6, 4096, 0, 1, 2, 4, 4096, 0},
    {"ablation-outliers-5", "Table 10 #10", &llama2_13b, 6, 4096, 0, 1, 5, 4, 4096, 0},
    {"ablation-groups-1", "Table 10 #14", &llama2_13b, 12, 4096, 4096, 1, 1, 4, 4096, 0},
    {"ablation-groups-2", "Table 10 #15", &llama2_13b, 12, 4096, 4096, 2, 1, 4, 4096, 0},
    {"ablation-groups-4", "Table 10 #16", &llama2_13b, 12, 4096, 4096, 4, 1, 4, 4096, 0},
    {"ablation-groups-8", "Table 10 #17", &llama2_13b, 12, 4096, 4096, 8, 1, 4, 4096, 0},
    {"ablation-3-bit", "Table 10 #18", &llama2_13b, 4, 4096, 0, 1, 0, 0, 0, 0},
    {"ablation-4-bit", "Table 10 #19", &llama2_13b, 6, 4096, 4096, 1, 0, 0, 0, 0},
};

enum {
    SMOOTH = VPTQ_METHOD_SMOOTH,
    SPARSE = VPTQ_METHOD_SPARSE,
    GPTQ = VPTQ_METHOD_GPTQ,
    AWQ = VPTQ_METHOD_AWQ
};

/* quantization/quantize_model.py of the benchmark.  What it calls "ptq" is GPTQ with a
 * dampening of 0. */
static const vptq_served_preset served[] = {
    {"w8a16_awq", AWQ, 0, 0, 0.01},
    {"w8a16_smooth_awq", SMOOTH | AWQ, 0, 0.5, 0.01},
    {"w8a16_sparse_awq", SPARSE | AWQ, 0, 0, 0.01},
    {"w8a8_smooth_ptq", SMOOTH | GPTQ, 8, 0.8, 0},
    {"w8a8_smooth_gptq", SMOOTH | GPTQ, 8, 0.8, 0.01},
    {"w8a8_sparse_smooth_gptq", SPARSE | SMOOTH | GPTQ, 8, 0.8, 0.01},
};

const vptq_preset *vptq_preset_table(size_t *count)
{
    *count = sizeof presets / sizeof presets[0];
    return presets;
}

const vptq_served_preset *vptq_served_preset_table(size_t *count)
{
    *count = sizeof served / sizeof served[0];
    return served;
}

static void apply(const vptq_preset *p, vptq_encoder_settings *s)
{
    vptq_encoder_settings stored = vptq_encoder_defaults();

    stored.v = p->v;
    stored.k = p->k;
    stored.k_res = p->k_res;
    stored.groups = p->groups;
    stored.outliers = p->outliers;
    stored.v0 = p->v0 ? p->v0 : stored.v0;
    stored.k0 = p->k0 ? p->k0 : stored.k0;
    stored.storage = s->storage;
    vptq_encoder_copy_stored(s, &stored);
    if (p->pass_columns)
        s->pass_columns = p->pass_columns;
}

static void apply_served(const vptq_served_preset *p, vptq_encoder_settings *s)
{
    const vptq_encoder_settings defaults = vptq_encoder_defaults();
    vptq_encoder_set_method(s, p->method);
    s->weight_bits = 8;
    s->symmetric = true;
    s->activation_bits = p->activation_bits;
    s->group_size = p->activation_bits ? 0 : 128;
    s->fit_groups = !p->activation_bits;
    s->smooth_alpha = p->method & SMOOTH ? p->smooth_alpha : defaults.smooth_alpha;
    s->sparsity = defaults.sparsity;
    s->sparsity_pattern = defaults.sparsity_pattern;
    s->ridge = p->ridge;
}

vptq_status vptq_preset_apply(const char *name, vptq_encoder_settings *s, vptq_err *err)
{
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++)
        if (!strcmp(presets[i].name, name)) {
            apply(&presets[i], s);
            return VPTQ_OK;
        }
    for (size_t i = 0; i < sizeof served / sizeof served[0]; i++)
        if (!strcmp(served[i].name, name)) {
            apply_served(&served[i], s);
            return VPTQ_OK;
        }
    return vptq_fail(err, VPTQ_E_ARG, "preset is '%.60s', expected a name of --preset list",
                     name);
}

double vptq_preset_bits(const vptq_preset *p)
{
    const vptq_preset_model *m = p->model;
    const uint32_t linear[7][2] = {
        {m->hidden, m->hidden},       {m->key_value, m->hidden},
        {m->key_value, m->hidden},    {m->hidden, m->hidden},
        {m->intermediate, m->hidden}, {m->intermediate, m->hidden},
        {m->hidden, m->intermediate},
    };
    vptq_encoder_settings s = vptq_encoder_defaults();
    double bits = 0, weights = 0;

    apply(p, &s);
    for (size_t i = 0; i < sizeof linear / sizeof linear[0]; i++) {
        vptq_vq_shape shape = vptq_encoder_shape(&s, linear[i][0], linear[i][1]);
        bits += (double)vptq_vq_count_bits(&shape).total;
        weights += (double)linear[i][0] * linear[i][1];
    }
    return bits / weights;
}
