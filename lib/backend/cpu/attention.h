/* Internal: parts of attention.c that attention_mass.c and paged.c use. */
#ifndef VPTQ_BACKEND_CPU_ATTENTION_H
#define VPTQ_BACKEND_CPU_ATTENTION_H

#include "lib/backend/backend.h"
#include "lib/backend/cpu/math.h"

/* Largest number of stacked rows (queries times query heads of a kv head) of a sequence for
 * which packing keys and values costs more than it saves. */
enum { VPTQ_ATTENTION_FEW = 8 };

/* First key that a query sees. */
static inline size_t vptq_attention_first_key(const vptq_attention_args *a, size_t query)
{
    const size_t end = a->pos0 + query + 1;
    return a->window && end > a->window ? end - a->window : 0;
}

/* A panel of up to tile_cols stacked rows [row, row + count); row / group is the query. */
typedef struct vptq_attention_panel {
    const vptq_cpu_math *math;
    const vptq_attention_args *a;
    size_t row, count, group;
    float *q;     /* [head_dim, tile_cols], scaled */
    float *score; /* [keys, tile_cols] */
} vptq_attention_panel;

/* Fills q with the queries of a kv head; missing columns are 0. */
void vptq_attention_pack_queries(const vptq_attention_panel *p, size_t kv);

/* Scores the panel against packed keys [k0, k0 + max), up to the last that any row sees; -inf
 * where a row must not see a key.  Returns their number, 0 if no row sees any. */
size_t vptq_attention_score(const vptq_attention_panel *p, const float *keys, size_t k0,
                            size_t max);

/* A source of keys and values that are not stored as rows of floats: writes tokens [token,
 * token + count) of a kv head as keys [head_dim, ld] and values [count, head_dim]. */
typedef struct vptq_attention_source {
    void (*fetch)(const void *arg, size_t kv, size_t token, size_t count, float *keys,
                  size_t ld, float *values);
    const void *arg;
} vptq_attention_source;

/* The op attention with such a source; keys and values of `a` are not read. */
vptq_status vptq_cpu_attention_from(vptq_dev *dev, const vptq_attention_args *a,
                                    const vptq_attention_source *source, vptq_err *err);

#endif
