/* Internal: reads GGUF files, versions 2 and 3, by mapping.  Checks magic, version, counts and
 * lengths against the file, types, nesting of arrays (one level), unique keys and names, and
 * offsets. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md */
#ifndef VPTQ_FORMATS_GGUF_GGUF_H
#define VPTQ_FORMATS_GGUF_GGUF_H

#include "formats/tensor.h"

typedef enum {
    VPTQ_GGUF_U8 = 0,
    VPTQ_GGUF_I8 = 1,
    VPTQ_GGUF_U16 = 2,
    VPTQ_GGUF_I16 = 3,
    VPTQ_GGUF_U32 = 4,
    VPTQ_GGUF_I32 = 5,
    VPTQ_GGUF_F32 = 6,
    VPTQ_GGUF_BOOL = 7,
    VPTQ_GGUF_STRING = 8,
    VPTQ_GGUF_ARRAY = 9,
    VPTQ_GGUF_U64 = 10,
    VPTQ_GGUF_I64 = 11,
    VPTQ_GGUF_F64 = 12
} vptq_gguf_type;

typedef struct vptq_gguf_str {
    const char *data; /* not terminated; in the mapping */
    size_t len;
} vptq_gguf_str;

typedef struct vptq_gguf_kv {
    vptq_gguf_str key;
    vptq_gguf_type type; /* of the value, or of the elements of an array */
    bool is_array;
    uint64_t count;           /* elements; 1 for a scalar */
    const uint8_t *data;      /* first element in the mapping (unaligned) */
    const vptq_gguf_str *str; /* [count] for strings, NULL otherwise */
} vptq_gguf_kv;

typedef struct vptq_gguf {
    vptq_tensor_set set; /* owns mapping and arena; tensors have their GGUF names */
    const char *path;
    uint32_t version;
    vptq_gguf_kv *kv;
    size_t kv_count;
    vptq_strmap keys;
} vptq_gguf;

/* Opens a file and checks all of it.  Tensors have GGUF names and shapes outermost first. */
vptq_status vptq_gguf_open(const char *path, vptq_mem *mem, vptq_gguf *g,
                           vptq_err *err) VPTQ_MUST_CHECK;
void vptq_gguf_release(vptq_gguf *g);
bool vptq_gguf_is(const char *path); /* true if the file begins with "GGUF" */

const vptq_gguf_kv *vptq_gguf_find(const vptq_gguf *g, const char *key); /* NULL when missing */
/* Scalars of any integer or number type; `fallback` if the key is missing, VPTQ_E_FORMAT for
 * another type. */
vptq_status vptq_gguf_u64_or(const vptq_gguf *g, const char *key, uint64_t fallback,
                             uint64_t *out, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_gguf_f64_or(const vptq_gguf *g, const char *key, double fallback, double *out,
                             vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_gguf_bool_or(const vptq_gguf *g, const char *key, bool fallback, bool *out,
                              vptq_err *err) VPTQ_MUST_CHECK;
/* {NULL, 0} if the key is missing. */
vptq_status vptq_gguf_str_or(const vptq_gguf *g, const char *key, vptq_gguf_str *out,
                             vptq_err *err) VPTQ_MUST_CHECK;
/* Element i of a number or an array of numbers. */
double vptq_gguf_num_at(const vptq_gguf_kv *kv, uint64_t i);

/* ggml's number of a type that the format has. */
uint32_t vptq_gguf_type_number(vptq_dtype type);

#endif
