/* Internal: tensors of any file: a name, a type, a shape and bytes that stay in a mapping, in
 * the memory of the set, or in the frames of an archive.  Rows are converted to float on
 * demand, so that weights are never copied whole. */
#ifndef VPTQ_FORMATS_TENSOR_H
#define VPTQ_FORMATS_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/additive.h"
#include "lib/base/dtype.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/strmap.h"
#include "lib/base/uniform.h"

enum { VPTQ_MAX_DIMS = 8, VPTQ_TENSOR_PIECE = 16 << 20 };

/* Reads a tensor's bytes [offset, offset + n) on demand, for data packed in an archive. */
typedef struct vptq_tensor_source {
    vptq_status (*read)(const void *arg, size_t offset, size_t n, void *dst, vptq_err *err);
    const void *arg;
} vptq_tensor_source;

typedef struct vptq_tensor {
    const char *name; /* Hugging Face name, also for GGUF and llama2.c */
    vptq_dtype type;
    uint32_t dims;
    uint64_t shape[VPTQ_MAX_DIMS]; /* outermost first; a scalar has dims 0 */
    const uint8_t *data;
    size_t bytes;
    /* Llama GGUF and llama2.c files store the rows of q_proj and k_proj for interleaved rotary
     * pairs.  With rope_heads > 0, row h*d + half*d/2 + i is stored row h*d + 2*i + half (d =
     * rows / rope_heads).  The elements of a vector (a bias, of a plain type) are reordered in
     * the same way. */
    uint32_t rope_heads;
    vptq_dtype round_to; /* F16 or BF16: reading rounds every value to it; F32: exact */
    const char *file;    /* path, for messages */
    bool mapped;         /* data lies in a mapping of the file */
    const vptq_tensor_source *source; /* reads the bytes if data is NULL; NULL = damaged */
    /* A uniformly quantized matrix, from which rows are decoded: neither data nor source.
     * `type` is that of its scales, `bytes` is what it stores.  Several tensors of the file, or
     * a file of a work directory, in one. */
    const vptq_uniform *uniform;
    /* A matrix of additive codes: `data` has its weights, decoded, and this what is stored. */
    const vptq_additive *additive;
    uint32_t activation_bits; /* of a uniformly quantized matrix: 8 if the inputs of its linear
                                 layer are quantized per token when the model runs, else 0 */
} vptq_tensor;

/* Rows/columns of a matrix: shape[0] x product of the rest; a vector is 1 x n. */
size_t vptq_tensor_rows(const vptq_tensor *t);
size_t vptq_tensor_cols(const vptq_tensor *t);

/* "3, 4": text of a shape for messages. */
enum { VPTQ_SHAPE_TEXT = VPTQ_MAX_DIMS * 22 + 1 };
void vptq_shape_text(const uint64_t *shape, uint32_t dims, char text[VPTQ_SHAPE_TEXT]);

/* Bytes [offset, offset + n): a view if they are in memory, else read into `buf` (n bytes).
 * VPTQ_E_CHECKSUM if there is no source, which means the tensor is damaged. */
vptq_status vptq_tensor_bytes(const vptq_tensor *t, size_t offset, size_t n, void *buf,
                              const uint8_t **bytes, vptq_err *err) VPTQ_MUST_CHECK;
/* Size of the piece to process from `offset` on: at most VPTQ_TENSOR_PIECE bytes of whole
 * elements or blocks, or the rest. */
size_t vptq_tensor_piece(const vptq_tensor *t, size_t offset);

/* The tensor's bytes, which must be in memory, aligned to its elements: copied into `arena` if
 * necessary; NULL if out of memory. */
const void *vptq_tensor_aligned(const vptq_tensor *t, vptq_arena *arena,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* Converts rows [r0, r0 + n) to float into dst [n, cols].  VPTQ_E_UNSUPPORTED for integer
 * types.  The tensor's bytes must be in memory, or those of `uniform`.  Blocks run through all
 * elements in order, so a row may begin within one.  Thread safe. */
vptq_status vptq_tensor_read(const vptq_tensor *t, size_t r0, size_t n, float *dst,
                             vptq_err *err) VPTQ_MUST_CHECK;

/* VPTQ_E_NUMERIC naming tensor, row and column of the first NaN or infinity. */
vptq_status vptq_tensor_check_finite(const vptq_tensor *t, vptq_err *err) VPTQ_MUST_CHECK;
/* The same for a piece of the tensor, its bytes [offset, offset + n). */
vptq_status vptq_tensor_check_piece(const vptq_tensor *t, const uint8_t *bytes, size_t offset,
                                    size_t n, vptq_err *err) VPTQ_MUST_CHECK;

/* Drops mapped bytes from this process's memory until they are needed again, so that a walk
 * over all weights holds one tensor at a time. */
void vptq_tensor_forget(const vptq_tensor *t);
/* Lets the system begin to read mapped bytes that will be needed soon. */
void vptq_tensor_ahead(const vptq_tensor *t);

/* Compares two tensors by name, for qsort. */
int vptq_tensor_by_name(const void *a, const void *b);

/* A set of tensors with unique names, with the mappings that hold their bytes. */
typedef struct vptq_tensor_set {
    vptq_arena arena;
    vptq_tensor *tensors; /* sorted by name */
    size_t count, cap;
    vptq_strmap by_name;
    vptq_map *maps;
    size_t map_count;
} vptq_tensor_set;

void vptq_tensor_set_init(vptq_tensor_set *s, vptq_mem *mem);
void vptq_tensor_set_release(vptq_tensor_set *s);
/* NULL if there is no such tensor. */
const vptq_tensor *vptq_tensor_find(const vptq_tensor_set *s, const char *name);
/* Like find, but fails: VPTQ_E_FORMAT if the tensor is missing, VPTQ_E_SHAPE if it is not rows
 * x cols (rows 0 = a vector of cols). */
vptq_status vptq_tensor_need(const vptq_tensor_set *s, const char *name, uint64_t rows,
                             uint64_t cols, const vptq_tensor **out,
                             vptq_err *err) VPTQ_MUST_CHECK;
/* Adds a copy of the description (name and file are copied into the arena, data is not).  Call
 * _finish after the last add or new name, before find.  Both return VPTQ_E_FORMAT for a
 * duplicate name. */
vptq_status vptq_tensor_set_add(vptq_tensor_set *s, const vptq_tensor *t,
                                vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_tensor_set_finish(vptq_tensor_set *s, vptq_err *err) VPTQ_MUST_CHECK;
/* Moves the mapping into the set; on failure releases it. */
vptq_status vptq_tensor_set_own_map(vptq_tensor_set *s, vptq_map *map,
                                    vptq_err *err) VPTQ_MUST_CHECK;
/* Applies vptq_tensor_forget to all mappings. */
void vptq_tensor_set_forget(const vptq_tensor_set *s);

#endif
