/* What cpu_attention.c lends to attention over a cache in pages. */
#ifndef VPTQ_BACKEND_CPU_ATTENTION_H
#define VPTQ_BACKEND_CPU_ATTENTION_H

#include "lib/backend/backend.h"

/* Stacked rows (queries times query heads of a kv head) of a sequence for which packing keys
 * and values costs more than it saves. */
enum { VPTQ_ATTENTION_FEW = 8 };

/* Where keys and values come from when they are not rows of floats: tokens [token, token +
 * count) of a kv head as keys [head_dim, ld] and values [count, head_dim]. */
typedef struct vptq_attention_source {
    void (*fetch)(const void *arg, size_t kv, size_t token, size_t count, float *keys,
                  size_t ld, float *values);
    const void *arg;
} vptq_attention_source;

/* The row attention from such a source; keys and values of `a` are not read. */
vptq_status vptq_cpu_attention_from(vptq_dev *dev, const vptq_attention_args *a,
                                    const vptq_attention_source *source, vptq_err *err);

#endif
