/* The published VPTQ layout: tensors P.centroids.weight, P.res_centroids.weight, P.indices,
 * P.outlier_centroids.weight, P.outlier_indices, P.perm, P.weight_scale, P.weight_bias, P.bias
 * of a linear at module path P, and the `quantization_config` of config.json.  Byte layout and
 * quirks: docs/formats.md.  Reads everything upstream or its forks wrote (shared_layer_config,
 * text_config, the two extra keys, indices_as_float null or true, unpacked I16 indices, k_res >
 * k); writes only the portable form. */
#ifndef VPTQ_FORMATS_VPTQ_PACKED_H
#define VPTQ_FORMATS_VPTQ_PACKED_H

#include "formats/json.h"
#include "formats/tensor.h"
#include "lib/base/vq.h"

typedef struct vptq_packed_matrix {
    const char *name; /* "model.layers.0.mlp.down_proj" */
    vptq_vq vq;
    vptq_dtype storage; /* F16 or BF16: type of every stored number */
} vptq_packed_matrix;

/* The shape of a matrix as vptq_packed_tensors stores it. */
vptq_vq_shape vptq_packed_stored_shape(const vptq_vq_shape *s);

/* What a config entry says, before any tensor is seen. */
typedef struct vptq_packed_layout {
    vptq_vq_shape shape; /* has_perm, has_norm as flagged */
    bool bit_packed;     /* false: the training form, I16 `indices` and `res_indices` */
    bool as_float;       /* 16-bit indices may be called F16: their bits are those of u16 */
    bool has_bias;
} vptq_packed_layout;

/* The quantization_config, at the top or inside text_config; NULL when there is none. */
const json_t *vptq_packed_config(const json_t *config);
/* Looks up the entry of a module: config_for_layers by full name, else shared_layer_config by
 * last component; NULL when the module is not quantized.  `config` is the whole config.json. */
const json_t *vptq_packed_entry(const json_t *config, const char *module);
/* Whether config.json says quant_method vptq (also inside text_config). */
bool vptq_packed_is_config(const json_t *config);

/* Missing keys, wrong types, impossible shapes: VPTQ_E_FORMAT or VPTQ_E_SHAPE naming file,
 * module and key.  Keys that no reader needs are ignored. */
vptq_status vptq_packed_parse_entry(const json_t *entry, const char *name, const char *file,
                                    vptq_packed_layout *out, vptq_err *err) VPTQ_MUST_CHECK;

/* The module that a tensor of the layout belongs to: length of P when the name is P and one of
 * the parts above (P.bias, which is a plain tensor, not counted), else 0. */
size_t vptq_packed_module_length(const char *tensor_name);

/* One matrix out of a set; codebooks are widened to float in `arena`, indices stay views where
 * the file allows it.  Everything is checked: shapes against the entry and the file, indices
 * below k, perm a permutation, finite numbers.  What is packed in an archive is unpacked into
 * `arena`.  `file` is for messages. */
vptq_status vptq_packed_read(const vptq_tensor_set *set, const json_t *entry, const char *name,
                             const char *file, vptq_arena *arena, vptq_packed_matrix *out,
                             vptq_err *err) VPTQ_MUST_CHECK;

/* What reading sees without a look at any bytes: shapes and types against the entry, and what
 * is missing; the matrix has no data. */
vptq_status vptq_packed_read_shape(const vptq_tensor_set *set, const json_t *entry,
                                   const char *name, const char *file, vptq_arena *arena,
                                   vptq_packed_matrix *out, vptq_err *err) VPTQ_MUST_CHECK;

/* As reading, but tells everything that is wrong, part by part, instead of stopping at the
 * first; parts that nothing reads count as wrong, too.  *whole: nothing was, and *out is what
 * reading gives.  A tensor of the set without data or source is one whose bytes are known to
 * be damaged: the matrix is not whole, and nothing more is said of it.  Fails for lack of
 * memory and where the file cannot be read. */
typedef void (*vptq_fault_fn)(void *arg, const char *text);
vptq_status vptq_packed_check(const vptq_tensor_set *set, const json_t *entry, const char *name,
                              const char *file, vptq_arena *arena, vptq_fault_fn fault,
                              void *arg, vptq_packed_matrix *out, bool *whole,
                              vptq_err *err) VPTQ_MUST_CHECK;

/* Rows of `indices` in which bits behind the last index are set. */
size_t vptq_packed_count_dirty_rows(const vptq_vq *q);

/* The tensors of a matrix as they are to be stored (names and data in `arena`), appended to
 * list[*count]; the list has room for 8 more.  G = 1 without outliers is written with its
 * permutation absorbed; bits behind the last index of a row are cleared; a matrix without
 * normalization gets scale 1 and bias 0 (upstream's kernels want them; x * 1 + 0 is x).
 * VPTQ_E_UNSUPPORTED for k_res > k, whose indices upstream's readers cut. */
enum { VPTQ_PACKED_MAX_TENSORS = 8 };
vptq_status vptq_packed_tensors(const vptq_packed_matrix *m, vptq_arena *arena,
                                vptq_tensor *list, size_t *count,
                                vptq_err *err) VPTQ_MUST_CHECK;
/* Its config_for_layers entry (portable keys); has_bias: the linear has a bias of its own.  The
 * caller owns *entry.  Describes the matrix as vptq_packed_tensors stores it. */
vptq_status vptq_packed_make_entry(const vptq_packed_matrix *m, bool has_bias, json_t **entry,
                                   vptq_err *err) VPTQ_MUST_CHECK;

/* Main and residual codebook change places, in the indices, too (k_res > 0): their sum is the
 * same. New indices in `arena`. */
vptq_status vptq_packed_swap_codebooks(vptq_vq *q, vptq_arena *arena,
                                       vptq_err *err) VPTQ_MUST_CHECK;

/* The permutation folded into the indices (G = 1, no outliers), new indices in `arena`. */
vptq_status vptq_packed_absorb_perm(vptq_vq *q, vptq_arena *arena,
                                    vptq_err *err) VPTQ_MUST_CHECK;

#endif
