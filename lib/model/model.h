/* A model ready to run: a checkpoint with its weights found and checked once.  Weights stay
 * views into the files and are converted tile by tile. */
#ifndef VPTQ_MODEL_MODEL_H
#define VPTQ_MODEL_MODEL_H

#include "formats/checkpoint.h"
#include "lib/backend/backend.h"
#include "lib/tokenizer/tokenizer.h"

/* A matrix [rows, cols] that gives out rows: exactly one of the two is set. */
typedef struct vptq_weight {
    size_t rows, cols;
    const vptq_tensor *tensor;
    const vptq_packed_matrix *packed;
} vptq_weight;

/* Rows [r0, r0 + n) as float into dst [n, cols] in HOST memory: of a weight that is read once
 * and for all. */
vptq_status vptq_weight_read(const vptq_weight *w, vptq_device *dev, size_t r0, size_t n,
                             float *dst, vptq_err *err) VPTQ_MUST_CHECK;

/* What `dev` makes of a packed weight before it is read tile by tile or multiplied with: *m is
 * closed by the backend's matrix_close, and the model must outlive it.  NULL for a plain
 * weight, of which nothing is made. */
vptq_status vptq_weight_open(const vptq_weight *w, vptq_device *dev, vptq_matrix **m,
                             vptq_err *err) VPTQ_MUST_CHECK;
/* The same rows of an opened weight into device memory. */
vptq_status vptq_weight_tile(const vptq_weight *w, const vptq_matrix *m, vptq_device *dev,
                             size_t r0, size_t n, float *dst, vptq_err *err) VPTQ_MUST_CHECK;

/* Rows of activations up to which the weight is multiplied as it is stored (vptq_weight_gemv)
 * rather than converted first.  kept: it is open for many products, and the device says how
 * many rows.  Else none of a packed one, since to make it ready for one product costs more than
 * to decode it, and a few of a plain one.  Plain ones must be in host memory, of type F32, F16
 * or BF16, and read as they stand; 0 where that cannot be. */
size_t vptq_weight_gemv_rows(const vptq_weight *w, const vptq_device *dev, bool kept);
/* As the row gemv of the backend, of an opened weight. */
vptq_status vptq_weight_gemv(const vptq_weight *w, const vptq_matrix *m, vptq_device *dev,
                             const vptq_gemv_args *g, vptq_err *err) VPTQ_MUST_CHECK;

/* After the last use for a while; see vptq_tensor_forget. */
void vptq_weight_forget(const vptq_weight *w);
/* Before the first one; see vptq_tensor_ahead. */
void vptq_weight_ahead(const vptq_weight *w);

typedef struct vptq_block {
    vptq_weight linear[VPTQ_LINEAR_COUNT];
    const vptq_tensor *linear_bias[VPTQ_LINEAR_COUNT]; /* NULL where there is none */
    const vptq_tensor *input_norm, *post_norm;
    const vptq_tensor *q_norm, *k_norm; /* [head_dim], Qwen3; else NULL */
} vptq_block;

typedef struct vptq_model {
    vptq_checkpoint ckpt;
    const vptq_model_desc *desc;
    vptq_block *blocks;                               /* [layers] */
    const vptq_tensor *embedding, *final_norm, *head; /* head == embedding when tied */
    vptq_vocab vocab;                                 /* only when tokenizer != NULL */
    vptq_tokenizer *tokenizer;
    char fingerprint[17]; /* of the checkpoint, set for serving; "" = not computed */
} vptq_model;

/* Opens and checks every tensor's presence and shape (names what is missing).  With
 * `need_tokenizer` a model without one is an error; without, the tokenizer is not looked at and
 * stays NULL.  The model must stay where it is (desc points into it).  With opt->fault set,
 * what is missing or has another shape is told there, too, and stays NULL: a model to look at,
 * not to run. */
vptq_status vptq_model_open(const vptq_ctx *ctx, const char *path,
                            const vptq_checkpoint_options *opt, bool need_tokenizer,
                            vptq_model *m, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_model_release(vptq_model *m);

/* Bits that are stored for the linears of the blocks, over their weights: of plain ones what
 * the file holds (16 for F16, 5 for a GGUF's Q4_1), everything for quantized ones. */
double vptq_model_bits_per_weight(const vptq_model *m);

#endif
