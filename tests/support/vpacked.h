/* A small packed model of one block, as tensors and a config.json that a test can damage before
 * writing them. gate_proj has the training form, down_proj the published form with groups,
 * outlier columns and padding; all other tensors are plain. */
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
    const char *config_bytes; /* written instead of config, unless NULL; not owned */
} vpacked_plan;

/* Without `quantized`, makes the base model of the same shapes. */
void vpacked_make(vpacked_plan *p, bool quantized);
void vpacked_free(vpacked_plan *p);
/* Returns the tensor; fails the test if it does not exist. */
vptq_tensor *vpacked_tensor(vpacked_plan *p, const char *name);
json_t *vpacked_entry(vpacked_plan *p, const char *module);
void vpacked_write_directory(const vpacked_plan *p, const char *dir);
void vpacked_write_archive(const vpacked_plan *p, const char *path);

/* Reads the tensors and the config.json (its path goes to `path`) of the model that upstream
 * packed, from VPTQ_DATA. Prints a note and returns false if it is missing. The caller releases
 * both. */
bool vpacked_stories(vptq_tensor_set *set, json_t **config, char *path, size_t size);

#endif
