/* GGUF v2 and v3: metadata and tensors by mapping.  Checked: magic, version, counts and lengths
 * against the file, types, nesting of arrays (one level), unique keys and names, offsets,
 * alignment a power of two.  https://github.com/ggml-org/ggml/blob/master/docs/gguf.md */
#ifndef VPTQ_FORMATS_GGUF_GGUF_H
#define VPTQ_FORMATS_GGUF_GGUF_H

#include "formats/model_desc.h"
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
    vptq_tensor_set
        set; /* owns mapping and arena; tensors carry their GGUF names until mapped */
    const char *path;
    uint32_t version;
    vptq_gguf_kv *kv;
    size_t kv_count;
    vptq_strmap keys;
} vptq_gguf;

/* Opens, checks, lists.  Tensors keep GGUF names and row-major shapes (outermost first). */
vptq_status vptq_gguf_open(const char *path, vptq_mem *mem, vptq_gguf *g,
                           vptq_err *err) VPTQ_MUST_CHECK;
void vptq_gguf_release(vptq_gguf *g);
bool vptq_gguf_is(const char *path); /* the file begins with "GGUF" */

const vptq_gguf_kv *vptq_gguf_find(const vptq_gguf *g, const char *key); /* NULL when missing */
/* Scalars of any integer / number type that fits; VPTQ_E_FORMAT on another type; missing =
 * fallback. */
vptq_status vptq_gguf_u64_or(const vptq_gguf *g, const char *key, uint64_t fallback,
                             uint64_t *out, vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_gguf_f64_or(const vptq_gguf *g, const char *key, double fallback, double *out,
                             vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_gguf_bool_or(const vptq_gguf *g, const char *key, bool fallback, bool *out,
                              vptq_err *err) VPTQ_MUST_CHECK;
/* Missing: *out = {NULL, 0}. */
vptq_status vptq_gguf_str_or(const vptq_gguf *g, const char *key, vptq_gguf_str *out,
                             vptq_err *err) VPTQ_MUST_CHECK;
/* Element i of a numeric array. */
double vptq_gguf_num_at(const vptq_gguf_kv *kv, uint64_t i);

/* The model's description from the metadata (general.architecture, ARCH.*; vocabulary size from
 * the token list or the embedding), and a set with Hugging Face names whose tensors point into
 * g's mapping (g must outlive it); q and k of permuted families get rope_heads. */
vptq_status vptq_gguf_desc(const vptq_gguf *g, vptq_model_desc *desc,
                           vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_gguf_hf_tensors(const vptq_gguf *g, const vptq_model_desc *desc,
                                 vptq_tensor_set *set, vptq_err *err) VPTQ_MUST_CHECK;

#endif
