/* A small packed model of one block, as tensors and config.json that a test may spoil before it
 * writes them: gate_proj in the training form, down_proj in the published one with groups,
 * outlier columns and padding, everything else plain. */
#ifndef VPTQ_TESTS_SUPPORT_VPACKED_H
#define VPTQ_TESTS_SUPPORT_VPACKED_H

#include "formats/json.h"
#include "formats/tensor.h"

#define VPACKED_GATE "model.layers.0.mlp.gate_proj"
#define VPACKED_DOWN "model.layers.0.mlp.down_proj"

enum { VPACKED_MAX_TENSORS = 40, VPACKED_HIDDEN = 16, VPACKED_FFN = 24 };

typedef struct vpacked_plan {
    vptq_tensor list[VPACKED_MAX_TENSORS]; /* names and data are malloc'ed */
    size_t count;
    json_t *config;
    const char *config_bytes; /* in place of it; not owned */
} vpacked_plan;

/* Not quantized: the base model of the same shapes. */
void vpacked_make(vpacked_plan *p, bool quantized);
void vpacked_free(vpacked_plan *p);
/* The test fails when there is none. */
vptq_tensor *vpacked_tensor(vpacked_plan *p, const char *name);
json_t *vpacked_entry(vpacked_plan *p, const char *module);
void vpacked_write_directory(const vpacked_plan *p, const char *dir);
void vpacked_write_archive(const vpacked_plan *p, const char *path);

/* The tensors and the config.json (path for messages) of the model that upstream packed, in
 * VPTQ_DATA; false, having said so, where it is not there.  Release both. */
bool vpacked_stories(vptq_tensor_set *set, json_t **config, char *path, size_t size);

#endif
