/* Internal: the compressed-tensors layout of a linear layer at module path P, which vLLM and
 * transformers load, for whole-number weights.  Format pack-quantized has tensors
 * P.weight_packed, P.weight_scale, P.weight_shape, P.weight_zero_point and P.weight_g_idx;
 * int-quantized (and naive-quantized) P.weight of type I8, P.weight_scale and
 * P.weight_zero_point.  The `quantization_config` of config.json describes them.  Layout and
 * differences between releases of the library: docs/formats/compressed-tensors.md.
 *
 *     bool quantized;
 *     vptq_compressed_layout layout;
 *     vptq_compressed_matrix m;
 *     VPTQ_CHECK(vptq_compressed_layout_of(config, P, file, &layout, &quantized, err));
 *     if (quantized)
 *         VPTQ_CHECK(vptq_compressed_read(set, &layout, P, file, arena, &m, err));
 *
 * Signed codes q are stored; in memory they are u = q + 2^(bits - 1) (lib/base/uniform.h). */
#ifndef VPTQ_FORMATS_HF_COMPRESSED_H
#define VPTQ_FORMATS_HF_COMPRESSED_H

#include "formats/json.h"
#include "formats/tensor.h"
#include "lib/base/uniform.h"

typedef struct vptq_compressed_matrix {
    const char *name; /* module path, "model.layers.0.mlp.down_proj" */
    vptq_uniform u;
    vptq_dtype storage;       /* F16 or BF16: type of the scales */
    uint32_t activation_bits; /* 8: inputs are quantized per token when the model runs; 0: they
                                 are not */
    bool ragged; /* the last group may have fewer columns, which only work directories store */
} vptq_compressed_matrix;

/* ---- config.json ---- */

enum { VPTQ_COMPRESSED_MIN_BITS = 2, VPTQ_COMPRESSED_ACTIVATION_BITS = 8 };

/* Layout of a matrix according to its config group. */
typedef struct vptq_compressed_layout {
    uint32_t bits;
    uint32_t group_size; /* columns per group; 0 = a whole row */
    bool symmetric;
    bool bytes; /* int-quantized: P.weight is I8 */
    uint32_t activation_bits;
    bool ragged; /* the last group may have fewer columns */
} vptq_compressed_layout;

/* True if config.json has a quantization_config of quant_method compressed-tensors, at the top
 * or inside text_config. */
bool vptq_compressed_is_config(const json_t *config);

/* Finds the layout of a linear layer in the whole config.json; *quantized is false if it stays
 * plain: it is in `ignore`, no target matches it, or its group has neither weights nor
 * activations.  As in the library, a target or an entry of `ignore` is a module path, "Linear",
 * or "re:" and a regular expression that matches the beginning of the path; the first in this
 * order decides: path, expression (the first in the order of their bytes), last component of
 * the path (as a target only; the library does not know it), "Linear".  As a target, "Linear"
 * excludes lm_head.
 *
 * VPTQ_E_FORMAT or VPTQ_E_UNSUPPORTED naming file, group and key: formats other than those
 * above, real numbers as codes, bits outside of 2 to 8 (int-quantized: 8), strategies other
 * than group, channel and tensor, dynamic weights, activations other than 8 bits per token,
 * symmetric and dynamic, output activations, a quantized cache, sparse formats, transforms. */
vptq_status vptq_compressed_layout_of(const json_t *config, const char *module,
                                      const char *file, vptq_compressed_layout *out,
                                      bool *quantized, vptq_err *err) VPTQ_MUST_CHECK;

/* Makes the quantization_config for matrices as vptq_compressed_tensors stores them: one group
 * per layout, with the keys that every release of the library reads.  A single group has the
 * target "Linear", so every linear layer of the model's blocks must be among the matrices or in
 * `plain`, module paths that `ignore` lists after lm_head; several groups list module paths. If
 * only some matrices have 8-bit activations, each group names its own format, which needs
 * release 0.11 or later.  Errors as vptq_compressed_tensors, and VPTQ_E_UNSUPPORTED for
 * lm_head, which the config leaves plain.  The caller owns *config. */
vptq_status vptq_compressed_make_config(const vptq_compressed_matrix *matrices, size_t count,
                                        const char *const *plain, size_t plain_count,
                                        json_t **config, vptq_err *err) VPTQ_MUST_CHECK;

/* ---- tensors ---- */

/* Length of P for a tensor P.weight_packed, P.weight_scale, P.weight_shape, P.weight_zero_point
 * or P.weight_g_idx; 0 for other names.  (The name of an int-quantized P.weight does not tell.)
 */
size_t vptq_compressed_module_length(const char *tensor_name);

/* Reads one matrix from a set of tensors; `file` is for messages.  Packed codes and
 * P.weight_g_idx stay views of the file if they are aligned; I8 codes are packed into `arena`,
 * where everything else is.
 *
 * Checks types and shapes against each other and the layout; that the groups divide the columns
 * unless `ragged` (releases before 0.19 derive the group size from the number of scales
 * instead); that scales are finite and positive; that every group of P.weight_g_idx has
 * group_size columns (-1 for every column: there is none); and that the group's other
 * tensors do not exist.  Zero points may also be I8 [out, groups], as releases before 0.9.4
 * wrote them.  Codes of 3, 5, 6 and 7 bits with gaps in every word, as releases before 0.18
 * wrote them, are VPTQ_E_UNSUPPORTED. */
vptq_status vptq_compressed_read(const vptq_tensor_set *set,
                                 const vptq_compressed_layout *layout, const char *name,
                                 const char *file, vptq_arena *arena,
                                 vptq_compressed_matrix *out, vptq_err *err) VPTQ_MUST_CHECK;

/* VPTQ_E_UNSUPPORTED for 8-bit activations with anything but codes of 8 bits, no zero points
 * and one group per row: the library knows such layers, but models with them cannot be run. */
vptq_status vptq_compressed_check_activations(const vptq_compressed_matrix *m, const char *file,
                                              vptq_err *err) VPTQ_MUST_CHECK;

/* The weight of the linear layer as one tensor, from which rows are decoded; m must outlive it
 * and stay where it is. */
vptq_tensor vptq_compressed_weight(const vptq_compressed_matrix *m, const char *name,
                                   const char *file);

/* Appends the stored tensors of a matrix (names and data in `arena`, or views of its data) to
 * list[*count], which has space for VPTQ_COMPRESSED_MAX_TENSORS more: int-quantized if
 * activation_bits is 8, else pack-quantized.  Bits after the last code of a row are cleared.
 *
 * VPTQ_E_UNSUPPORTED for what readers refuse: 1 bit, groups that do not divide the columns or
 * have different numbers of them, other activation_bits, and 8-bit activations unless the codes
 * have 8 bits, no zero points and one group per row.  VPTQ_E_NUMERIC for scales that are not
 * positive or not exact in the storage type. */
enum { VPTQ_COMPRESSED_MAX_TENSORS = 5 };
vptq_status vptq_compressed_tensors(const vptq_compressed_matrix *m, vptq_arena *arena,
                                    vptq_tensor *list, size_t *count,
                                    vptq_err *err) VPTQ_MUST_CHECK;

#endif
