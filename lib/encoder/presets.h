/* Settings with a name: the rows of the tables in the paper (Liu et al. 2024, Table 8: models
 * at about 2 bits; Table 10: ablation), as far as they decide what is stored. */
#ifndef VPTQ_ENCODER_PRESETS_H
#define VPTQ_ENCODER_PRESETS_H

#include "lib/encoder/settings.h"

/* The linears of a block, of which bits per weight follow. */
typedef struct vptq_preset_model {
    const char *name; /* "Llama-2-7B" */
    uint32_t hidden, key_value, intermediate;
} vptq_preset_model;

typedef struct vptq_preset {
    const char *name;  /* "llama2-7b-v6" */
    const char *paper; /* "Table 8", "Table 10 #4, #11, #12" */
    const vptq_preset_model *model;
    uint32_t v, k, k_res, groups;
    double outliers;       /* percent */
    uint32_t v0, k0;       /* 0 without outliers */
    uint32_t pass_columns; /* how the pass is done, where the row is about that; else 0 */
} vptq_preset;

const vptq_preset *vptq_preset_table(size_t *count);
/* Sets what is stored, but the storage type, and the pass' columns where the row is about them;
 * VPTQ_E_ARG for a name that is not in the table. */
vptq_status vptq_preset_apply(const char *name, vptq_encoder_settings *s,
                              vptq_err *err) VPTQ_MUST_CHECK;
/* Every stored bit of the seven linears of a block of the preset's model, over their weights.
 */
double vptq_preset_bits(const vptq_preset *p);

#endif
