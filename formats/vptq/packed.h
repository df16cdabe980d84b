/* Internal: the published VPTQ layout of a linear layer at module path P: tensors
 * P.centroids.weight, P.res_centroids.weight, P.indices, P.outlier_centroids.weight,
 * P.outlier_indices, P.perm, P.weight_scale, P.weight_bias and P.bias, described by the
 * `quantization_config` of config.json.  Byte layout and quirks: docs/formats/vptq-layout.md.
 *
 * Archives and work directories, which only this project reads, may store codebooks as int8: a
 * P.*centroids.weight of type I8, and a P.*centroids.scale [G] in the type of the other
 * numbers.
 *
 * Reads every form that upstream or its forks wrote (shared_layer_config, text_config, the two
 * extra keys, indices_as_float null or true, unpacked I16 indices, k_res > k); writes only the
 * portable form. */
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

/* ---- config.json ---- */

/* Layout of a matrix according to its config entry. */
typedef struct vptq_packed_layout {
    vptq_vq_shape shape; /* has_perm, has_norm as flagged */
    bool bit_packed;     /* false: the training form, I16 `indices` and `res_indices` */
    bool as_float;       /* 16-bit indices may be labelled F16; their bits are those of U16 */
    bool has_bias;
} vptq_packed_layout;

/* The quantization_config, at the top or inside text_config; NULL if there is none. */
const json_t *vptq_packed_config(const json_t *config);
/* Entry of a module: from config_for_layers by full name, else from shared_layer_config by last
 * component; NULL if the module is not quantized.  `config` is the whole config.json. */
const json_t *vptq_packed_entry(const json_t *config, const char *module);
/* True if config.json has quant_method vptq (also inside text_config). */
bool vptq_packed_is_config(const json_t *config);

/* Missing keys, wrong types and impossible shapes are VPTQ_E_FORMAT or VPTQ_E_SHAPE naming
 * file, module and key.  Ignores keys that readers do not need. */
vptq_status vptq_packed_parse_entry(const json_t *entry, const char *name, const char *file,
                                    vptq_packed_layout *out, vptq_err *err) VPTQ_MUST_CHECK;

/* The shape that vptq_packed_tensors stores for a matrix of shape *s. */
vptq_vq_shape vptq_packed_stored_shape(const vptq_vq_shape *s);
/* Makes the config_for_layers entry (portable keys) of the matrix as vptq_packed_tensors stores
 * it.  has_bias: the linear layer has a bias.  The caller owns *entry. */
vptq_status vptq_packed_make_entry(const vptq_packed_matrix *m, bool has_bias, json_t **entry,
                                   vptq_err *err) VPTQ_MUST_CHECK;

/* ---- reading ---- */

/* Length of P for a tensor named P plus one of the parts above except P.bias, which is a plain
 * tensor; 0 for other names. */
size_t vptq_packed_module_length(const char *tensor_name);

/* One matrix within a set of tensors. */
typedef struct vptq_packed_source {
    const vptq_tensor_set *set;
    const json_t *entry;
    const char *name; /* module path */
    const char *file; /* for messages */
} vptq_packed_source;

/* Reads one matrix.  Codebooks are widened to float in `arena`; indices stay views if the file
 * allows it; archived tensors are unpacked into `arena`.  Checks shapes against the entry and
 * the file, indices against k, that perm is a permutation, and that numbers are finite. */
vptq_status vptq_packed_read(const vptq_packed_source *source, vptq_arena *arena,
                             vptq_packed_matrix *out, vptq_err *err) VPTQ_MUST_CHECK;

typedef void (*vptq_fault_fn)(void *arg, const char *text);
typedef struct vptq_packed_mode {
    /* Checks only shapes, types and presence of the tensors; the matrix has no data. */
    bool shapes_only;
    /* If not NULL, receives every fault of every part; reading then does not stop at the first.
     * Parts that no reader uses count as faults.  A tensor with neither data nor source is
     * damaged: the matrix is not whole, and the fault has already been reported.  Fails only
     * for lack of memory or if the file cannot be read. */
    vptq_fault_fn fault;
    void *fault_arg;
} vptq_packed_mode;
/* Like vptq_packed_read, in a mode.  *whole: there was no fault, and *out is valid. */
vptq_status vptq_packed_check(const vptq_packed_source *source, const vptq_packed_mode *mode,
                              vptq_arena *arena, vptq_packed_matrix *out, bool *whole,
                              vptq_err *err) VPTQ_MUST_CHECK;

/* *out = the numbers of a tensor of type F16 or BF16 that is in memory and aligned, as floats
 * in `arena`.  VPTQ_E_NUMERIC naming `file`, tensor and the first element that is not finite.
 */
vptq_status vptq_packed_widen(const vptq_tensor *t, const char *file, vptq_arena *arena,
                              const float **out, vptq_err *err) VPTQ_MUST_CHECK;

/* ---- writing ---- */

/* Completes *t, of which type, dims and shape are set, to the part P.`part` of the module with
 * `data`, which it points to; its name is in `arena`. */
vptq_status vptq_packed_part(vptq_tensor *t, const char *module, const char *part,
                             const void *data, vptq_arena *arena,
                             vptq_err *err) VPTQ_MUST_CHECK;

/* Number of rows of `indices` with bits set after the last index. */
size_t vptq_packed_count_dirty_rows(const vptq_vq *q);

/* Whether the codebooks of *m can be stored as int8 (vq.shape.int8) with every bit of every
 * number kept: each lies on an int8 grid and is exact in the storage type. */
bool vptq_packed_fits_int8(const vptq_packed_matrix *m);

/* Appends the stored tensors of a matrix (names and data in `arena`) to list[*count]; the list
 * has space for VPTQ_PACKED_MAX_TENSORS more.  With G = 1 and no outliers the permutation is
 * absorbed into the indices.  Bits after the last index of a row are cleared.  A matrix without
 * normalization gets scale 1 and bias 0, which upstream's kernels require (x * 1 + 0 is x).
 * VPTQ_E_UNSUPPORTED for k_res > k, because upstream's readers truncate such indices.  With
 * vq.shape.int8 the matrix must fit (vptq_packed_fits_int8): VPTQ_E_NUMERIC off the grid. */
enum { VPTQ_PACKED_MAX_TENSORS = 11 };
vptq_status vptq_packed_tensors(const vptq_packed_matrix *m, vptq_arena *arena,
                                vptq_tensor *list, size_t *count,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* Exchanges main and residual codebook and their fields in the indices (k_res > 0), which
 * leaves the decoded weights the same.  The new indices are in `arena`. */
vptq_status vptq_packed_swap_codebooks(vptq_vq *q, vptq_arena *arena,
                                       vptq_err *err) VPTQ_MUST_CHECK;

#endif
