/* Tensors as readers give them out: a name, a type, a shape and bytes that stay where they are
 * (in a mapping, in the memory of the set, or in frames of an archive).  Rows are converted on
 * demand, so that weights are never copied whole. */
#ifndef VPTQ_FORMATS_TENSOR_H
#define VPTQ_FORMATS_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/strmap.h"

enum { VPTQ_MAX_DIMS = 8, VPTQ_TENSOR_PIECE = 16 << 20 };

/* What gives out bytes that are in no memory yet, but packed in an archive: n of a tensor's
 * from `at` on. */
typedef struct vptq_tensor_source {
    vptq_status (*read)(const void *arg, size_t at, size_t n, void *dst, vptq_err *err);
    const void *arg;
} vptq_tensor_source;

typedef struct vptq_tensor {
    const char *name; /* Hugging Face name, also for GGUF and llama2.c */
    vptq_dtype type;
    uint32_t dims;
    uint64_t shape[VPTQ_MAX_DIMS]; /* outermost first; a scalar has dims 0 */
    const uint8_t *data;
    size_t bytes;
    /* Rows of q_proj and k_proj of Llama GGUF and llama2.c files are stored for interleaved
     * rotary pairs; with rope_heads > 0 reading row h*d + half*d/2 + i takes stored row h*d +
     * 2*i + half (d = rows / rope_heads).  Of a vector (a bias, of a plain type) the elements
     * are taken in that order. */
    uint32_t rope_heads;
    vptq_dtype round_to; /* F32 = as it is; F16/BF16 = every value is rounded to it when read */
    const char *file;    /* path, for messages */
    bool mapped;         /* data lies in a mapping of the file */
    const vptq_tensor_source *source; /* where data is NULL: gives the bytes; NULL = none do */
} vptq_tensor;

/* Rows/columns of a matrix: shape[0] x product of the rest; a vector is 1 x n. */
size_t vptq_tensor_rows(const vptq_tensor *t);
size_t vptq_tensor_cols(const vptq_tensor *t);

/* "3, 4": sizes as messages name them; at most VPTQ_MAX_DIMS. */
enum { VPTQ_SHAPE_TEXT = VPTQ_MAX_DIMS * 22 + 1 };
void vptq_shape_text(const uint64_t *shape, uint32_t dims, char text[VPTQ_SHAPE_TEXT]);

/* Bytes [at, at + n): a view where they are in memory, else read into `room` (n bytes; not used
 * otherwise).  Without a source VPTQ_E_CHECKSUM: only damage leaves a tensor without bytes. */
vptq_status vptq_tensor_bytes(const vptq_tensor *t, size_t at, size_t n, void *room,
                              const uint8_t **bytes, vptq_err *err) VPTQ_MUST_CHECK;
/* As many of the bytes from `at` on as make a piece: whole elements (whole blocks), about
 * VPTQ_TENSOR_PIECE of them, or what is left. */
size_t vptq_tensor_piece(const vptq_tensor *t, size_t at);

/* Rows [r0, r0 + n) as float into dst [n, cols].  VPTQ_E_UNSUPPORTED for types that are not
 * numbers to calculate with.  The tensor's bytes must be in memory.  Thread safe. */
vptq_status vptq_tensor_read(const vptq_tensor *t, size_t r0, size_t n, float *dst,
                             vptq_err *err) VPTQ_MUST_CHECK;

/* VPTQ_E_NUMERIC naming tensor, row and column of the first NaN or infinity. */
vptq_status vptq_tensor_check_finite(const vptq_tensor *t, vptq_err *err) VPTQ_MUST_CHECK;
/* The same of a piece, its bytes [at, at + n). */
vptq_status vptq_tensor_check_piece(const vptq_tensor *t, const uint8_t *bytes, size_t at,
                                    size_t n, vptq_err *err) VPTQ_MUST_CHECK;

/* The bytes will not be needed soon: where they are mapped, they leave the memory of this
 * process, so that running through all weights once never holds more than one tensor. */
void vptq_tensor_forget(const vptq_tensor *t);
/* They will be needed soon: where they are mapped, the system may begin to read them. */
void vptq_tensor_ahead(const vptq_tensor *t);

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
/* NULL when there is none. */
const vptq_tensor *vptq_tensor_find(const vptq_tensor_set *s, const char *name);
/* As find, but VPTQ_E_FORMAT when it is missing and VPTQ_E_SHAPE when it is not rows x cols
 * (rows 0 = a vector of cols). */
vptq_status vptq_tensor_need(const vptq_tensor_set *s, const char *name, uint64_t rows,
                             uint64_t cols, const vptq_tensor **out,
                             vptq_err *err) VPTQ_MUST_CHECK;
/* Adds a copy of the description (name and file are copied into the arena; data is not).  A
 * name that is already there is VPTQ_E_FORMAT.  Call _finish once after the last add, before
 * find. */
vptq_status vptq_tensor_set_add(vptq_tensor_set *s, const vptq_tensor *t,
                                vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_tensor_set_finish(vptq_tensor_set *s, vptq_err *err) VPTQ_MUST_CHECK;
/* The set takes the mapping over, also when it fails. */
vptq_status vptq_tensor_set_own_map(vptq_tensor_set *s, vptq_map *map,
                                    vptq_err *err) VPTQ_MUST_CHECK;
/* vptq_tensor_forget for all that is mapped. */
void vptq_tensor_set_forget(const vptq_tensor_set *s);

#endif
