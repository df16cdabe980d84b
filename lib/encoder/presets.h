/* Internal: presets.  Named settings, one for each row of the paper's tables (Liu et al. 2024,
 * Table 8: models at about 2 bits; Table 10: ablation), as far as they decide what is stored;
 * and one for each quantized model of a published serving benchmark (mtilyxuegao,
 * qwen_quantization: Qwen3-4B by llm-compressor 0.8.1), with 8-bit uniform codes. */
#ifndef VPTQ_ENCODER_PRESETS_H
#define VPTQ_ENCODER_PRESETS_H

#include "lib/encoder/settings.h"
#include "lib/vptq.h"

/* The weight matrices of a block, from which bits per weight follow. */
typedef struct vptq_preset_model {
    const char *name; /* "Llama-2-7B" */
    uint32_t hidden, key_value, intermediate;
} vptq_preset_model;

/* A row of the paper's tables, as far as it decides what is stored. */
typedef struct vptq_preset {
    const char *name;  /* "llama2-7b-v6" */
    const char *paper; /* "Table 8", "Table 10 #4, #11, #12" */
    const vptq_preset_model *model;
    uint32_t v, k, k_res, groups;
    double outliers;       /* percent of the columns */
    uint32_t v0, k0;       /* vector length and centroids of outlier columns; 0 without */
    uint32_t pass_columns; /* columns per step of the column pass if the row is about it */
} vptq_preset;

/* [*count] presets; static. */
const vptq_preset *vptq_preset_table(size_t *count);
/* Stored bits per weight of the seven linear layers of a block of the preset's model. */
double vptq_preset_bits(const vptq_preset *preset);

/* A model of the serving benchmark: symmetric 8-bit codes. */
typedef struct vptq_served_preset {
    const char *name;         /* "w8a8_smooth_gptq", the model's in the benchmark */
    uint32_t method;          /* its stages, added */
    uint32_t activation_bits; /* 8 with a scale per row; 0 with one per 128 columns */
    double smooth_alpha;      /* 0 without smooth */
    double ridge;             /* dampening of gptq */
} vptq_served_preset;

/* [*count] presets; static. */
const vptq_served_preset *vptq_served_preset_table(size_t *count);

/* Applies a preset of either table.  Of vptq: sets everything that is stored, except the
 * storage type, and pass_columns if the row is about it.  Of uniform codes: sets the method
 * with its defaults, and everything that the method uses but storage type, damping and seed.
 * VPTQ_E_ARG for an unknown name. */
vptq_status vptq_preset_apply(const char *name, vptq_encoder_settings *s,
                              vptq_err *err) VPTQ_MUST_CHECK;
#endif
