/* Internal: one finished matrix of a work directory: a safetensors file with the tensors of the
 * published layout (formats/vptq/packed.h) and the float codebooks before rounding
 * (`centroids_f32`, `res_centroids_f32`), or with those of the compressed-tensors layout
 * (formats/hf/compressed.h), or with additive codes (formats/vptq/additive.h), or one dense
 * tensor P.weight, and metadata: matrix name, config entry as JSON, fingerprint of the
 * settings, report row, and an XXH3 checksum, which reading verifies.
 *
 * A method that moves scales between a matrix and what computes its input (docs/methods.md)
 * changes a layer as a whole: its files say so (`folded` in the config entry), those of q_proj
 * and gate_proj have the changed norm before them (tensor `norm`, F32), and readers use them
 * only if all files of the layer are there. */
#ifndef VPTQ_FORMATS_VPTQ_LAYER_FILE_H
#define VPTQ_FORMATS_VPTQ_LAYER_FILE_H

#include "formats/hf/compressed.h"
#include "formats/hf/safetensors.h"
#include "formats/vptq/additive.h"
#include "formats/vptq/packed.h"

typedef struct vptq_layer_file {
    vptq_tensor_set set; /* owns everything below */
    bool is_uniform;     /* `uniform` is set */
    bool is_additive;    /* `additive` is set */
    const char *dense;   /* module path; not NULL: `weight` is set; none of them: `matrix` */
    vptq_packed_matrix matrix;
    vptq_compressed_matrix uniform;
    vptq_additive_matrix additive;
    vptq_tensor weight; /* dense: F16 or BF16, one or two dimensions, finite.  Reading also sets
                           it for `uniform`, whose weights it decodes, and
                           vptq_layer_file_decode for `additive` */
    const float *centroids_f32;     /* [groups][k][v] */
    const float *res_centroids_f32; /* or NULL */
    bool folded;
    const float *norm; /* [norm_size] or NULL */
    uint32_t norm_size;
    const char *fingerprint;
    const char *report; /* the matrix's report row as JSON text */
} vptq_layer_file;

/* "layer_003_gate_proj.safetensors" */
enum { VPTQ_LAYER_FILE_NAME_MAX = 96 };
void vptq_layer_file_name(char name[VPTQ_LAYER_FILE_NAME_MAX], uint32_t layer,
                          const char *linear);
/* True for a name of this form. */
bool vptq_layer_file_is(const char *name);

/* Module path of the matrix. */
static inline const char *vptq_layer_file_matrix(const vptq_layer_file *f)
{
    return f->dense         ? f->dense
           : f->is_uniform  ? f->uniform.name
           : f->is_additive ? f->additive.name
                            : f->matrix.name;
}
/* Type of every stored number. */
static inline vptq_dtype vptq_layer_file_storage(const vptq_layer_file *f)
{
    return f->dense         ? f->weight.type
           : f->is_uniform  ? f->uniform.storage
           : f->is_additive ? f->additive.storage
                            : f->matrix.storage;
}
/* Whether the matrix has method vptq: `matrix` is set. */
static inline bool vptq_layer_file_is_packed(const vptq_layer_file *f)
{
    return !f->dense && !f->is_uniform && !f->is_additive;
}

/* Writes f (all but `set`); atomic, replaces an old file.  The float codebooks are those of
 * f->matrix before rounding. */
vptq_status vptq_layer_file_write(const char *path, const vptq_layer_file *f, vptq_mem *mem,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* VPTQ_E_CHECKSUM if the data is damaged. */
vptq_status vptq_layer_file_read(const char *path, vptq_mem *mem, vptq_layer_file *f,
                                 vptq_err *err) VPTQ_MUST_CHECK;
/* Decodes additive codes into f->weight; does nothing for other matrices.  f must stay where it
 * is. */
vptq_status vptq_layer_file_decode(const vptq_ctx *ctx, vptq_layer_file *f,
                                   vptq_err *err) VPTQ_MUST_CHECK;
void vptq_layer_file_release(vptq_layer_file *f);

#endif
