/* Internal: runs the pickle of a PyTorch file (protocols 2 to 5) on a machine that can build
 * only None, booleans, numbers, texts, lists, tuples, dictionaries (also OrderedDict) and
 * tensors over storages of float, half, bfloat16, long and bool.  Drops attributes of
 * dictionaries.  Refuses every other global by
 * name and every other opcode by code; nothing is ever called. */
#ifndef VPTQ_FORMATS_TORCH_PICKLE_H
#define VPTQ_FORMATS_TORCH_PICKLE_H

#include "formats/tensor.h"

typedef enum {
    VPTQ_PICKLE_MARK, /* on the stack only */
    VPTQ_PICKLE_NONE,
    VPTQ_PICKLE_BOOL,
    VPTQ_PICKLE_INT,
    VPTQ_PICKLE_FLOAT,
    VPTQ_PICKLE_TEXT,
    VPTQ_PICKLE_LIST,
    VPTQ_PICKLE_TUPLE,
    VPTQ_PICKLE_DICT, /* items are key, value, key, value .. */
    VPTQ_PICKLE_GLOBAL,
    VPTQ_PICKLE_STORAGE,
    VPTQ_PICKLE_TENSOR
} vptq_pickle_kind;

/* Values refer to each other by index and may contain themselves. */
typedef struct vptq_pickle_value {
    vptq_pickle_kind kind;
    union {
        int64_t i; /* also of a bool; of a global its index in a table */
        double f;
        struct {
            const char *at; /* in the pickle, not terminated */
            uint32_t len;
        } text;
        struct {
            uint32_t first, last, count; /* cells; 0 = none */
        } items;
        struct {
            uint64_t count; /* elements */
            uint32_t key;   /* the text that names its entry */
            vptq_dtype type;
        } storage;
        struct {
            int64_t offset;                  /* elements */
            uint32_t storage, shape, stride; /* a storage and two tuples of numbers */
        } tensor;
    } as;
} vptq_pickle_value;

typedef struct vptq_pickle_cell {
    uint32_t value, next; /* next cell; 0 = the last */
} vptq_pickle_cell;

typedef struct vptq_pickle {
    const vptq_pickle_value *values;
    const vptq_pickle_cell *cells;
    uint32_t result;
} vptq_pickle;

enum { VPTQ_PICKLE_MAX = 1 << 20 }; /* bytes */

/* "torch.FloatStorage"; NULL for a type without storage. */
const char *vptq_pickle_storage_name(vptq_dtype type);

/* The result is in the arena, its texts point into `data`.  `path` is for messages. */
vptq_status vptq_pickle_run(const char *path, const uint8_t *data, size_t size,
                            vptq_arena *arena, vptq_pickle *p, vptq_err *err) VPTQ_MUST_CHECK;

#endif
