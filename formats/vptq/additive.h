/* Internal: additive codes (lib/base/additive.h) of a linear layer at module path P: tensors
 * P.codes.M, P.codebooks.M and P.codebook_scales.M of every stage M, P.scales, P.stage_scales,
 * P.row_signs and P.column_signs, and an entry in JSON with what their shapes do not tell.
 * Work directories and archives hold them.  Byte layout: docs/formats/additive.md.
 *
 *     vptq_additive_matrix m;
 *     VPTQ_CHECK(vptq_additive_read(set, entry, P, file, arena, &m, err));
 *     VPTQ_CHECK(vptq_additive_weight(ctx, &m, file, arena, &tensor, err)); */
#ifndef VPTQ_FORMATS_VPTQ_ADDITIVE_H
#define VPTQ_FORMATS_VPTQ_ADDITIVE_H

#include "formats/json.h"
#include "formats/tensor.h"
#include "lib/base/additive.h"

typedef struct vptq_additive_matrix {
    const char *name; /* module path, "model.layers.0.mlp.down_proj" */
    vptq_additive a;
    vptq_dtype storage; /* F16 or BF16: of codebooks, scales and decoded weights */
} vptq_additive_matrix;

/* ---- JSON ---- */

/* Whether the entry of a matrix is one of additive codes. */
bool vptq_additive_is_entry(const json_t *entry);
/* The caller owns *entry. */
vptq_status vptq_additive_make_entry(const vptq_additive_matrix *m, json_t **entry,
                                     vptq_err *err) VPTQ_MUST_CHECK;

/* Whether the quantization_config of a config.json has quant_method additive. */
bool vptq_additive_is_config(const json_t *config);
/* The entry of a module in it, or NULL. */
const json_t *vptq_additive_entry(const json_t *config, const char *module);
/* Makes the quantization_config of matrices.  The caller owns *config. */
vptq_status vptq_additive_make_config(const vptq_additive_matrix *matrices, size_t count,
                                      json_t **config, vptq_err *err) VPTQ_MUST_CHECK;

/* ---- tensors ---- */

/* Length of P for a tensor that is a stored part; 0 for other names. */
size_t vptq_additive_module_length(const char *tensor_name);

/* Reads one matrix from a set of tensors; `file` is for messages.  Codes stay views of the file
 * if they are aligned; the rest is in `arena`.  Checks the entry, types and shapes, that
 * numbers are finite, codes of int8 codebooks and their products as writers make them, and that
 * neither P.weight nor parts that the entry rules out exist. */
vptq_status vptq_additive_read(const vptq_tensor_set *set, const json_t *entry,
                               const char *name, const char *file, vptq_arena *arena,
                               vptq_additive_matrix *out, vptq_err *err) VPTQ_MUST_CHECK;

/* Decodes the matrix into a plain tensor P.weight of the storage type, in `arena`, which points
 * to m->a: m must outlive it and stay where it is.  VPTQ_E_NUMERIC for a weight that the type
 * cannot hold. */
vptq_status vptq_additive_weight(const vptq_ctx *ctx, const vptq_additive_matrix *m,
                                 const char *file, vptq_arena *arena, vptq_tensor *t,
                                 vptq_err *err) VPTQ_MUST_CHECK;

/* Appends the stored tensors of a matrix (names and data in `arena`, or views of its data) to
 * list[*count], which has space for VPTQ_ADDITIVE_MAX_TENSORS more.  Bits after the last code
 * of a row are cleared.  VPTQ_E_NUMERIC for numbers that are not finite and exact in the
 * storage type, and for codebooks off an int8 grid where the shape says int8. */
enum { VPTQ_ADDITIVE_MAX_TENSORS = 3 * VPTQ_ADDITIVE_MAX_STAGES + 4 };
vptq_status vptq_additive_tensors(const vptq_additive_matrix *m, vptq_arena *arena,
                                  vptq_tensor *list, size_t *count,
                                  vptq_err *err) VPTQ_MUST_CHECK;

#endif
