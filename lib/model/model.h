/* Internal: a model ready to run: a checkpoint whose weights are found and checked.  Weights
 * stay views into the files and are converted tile by tile. */
#ifndef VPTQ_MODEL_MODEL_H
#define VPTQ_MODEL_MODEL_H

#include "formats/checkpoint.h"
#include "lib/backend/backend.h"
#include "lib/tokenizer/tokenizer.h"

/* A matrix [rows, cols], plain or packed: exactly one of the two pointers is set; none for a
 * linear layer that blocks do not have, which has no rows. */
typedef struct vptq_weight {
    size_t rows, cols;
    const vptq_tensor *tensor;
    const vptq_packed_matrix *packed;
} vptq_weight;

/* Reads rows [r0, r0 + n) as float into dst [n, cols] in HOST memory; for weights that are read
 * only once. */
vptq_status vptq_weight_read(const vptq_weight *w, vptq_device *dev, size_t r0, size_t n,
                             float *dst, vptq_err *err) VPTQ_MUST_CHECK;

/* A weight prepared on a device for tiles and products. */
typedef struct vptq_opened {
    vptq_matrix *matrix; /* a packed weight */
    void *stored;        /* a plain one in the device's own memory, as vptq_weight_type, or
                            uniform codes with all that belongs to them; NULL: tiles are
                            uploaded again for each product */
} vptq_opened;
/* Prepares a packed weight; a plain one needs no preparation.  The model must outlive it. */
vptq_status vptq_weight_open(const vptq_weight *w, vptq_device *dev, vptq_opened *o,
                             vptq_err *err) VPTQ_MUST_CHECK;
void vptq_weight_close(vptq_device *dev, vptq_opened *o); /* accepts a zeroed struct */
/* Stores an opened plain weight in the device's own memory, in vptq_weight_bytes; those are 0
 * for weights that cannot be stored: packed ones, and all on host devices. */
vptq_status vptq_weight_store(const vptq_weight *w, vptq_device *dev, vptq_opened *o,
                              vptq_err *err) VPTQ_MUST_CHECK;
size_t vptq_weight_bytes(const vptq_weight *w, const vptq_device *dev);
/* The type in which a device with its own memory has a weight: 16 bits for plain weights that
 * are read as such numbers, with the same values, else F32. */
vptq_dtype vptq_weight_type(const vptq_weight *w);
/* *rows = the same rows of an opened weight in device memory, as vptq_weight_type or, on a host
 * device, as F32: in `buffer` (n * cols floats) or where they are stored. */
vptq_status vptq_weight_tile(const vptq_weight *w, const vptq_opened *o, vptq_device *dev,
                             size_t r0, size_t n, float *buffer, const void **rows,
                             vptq_err *err) VPTQ_MUST_CHECK;

/* Maximum number of activation rows for which multiplying with the stored weight
 * (vptq_weight_gemv) is faster than converting it first.  kept: the weight stays open for many
 * products, and the device decides.  Otherwise 0 for a packed weight, since preparing it for
 * one product costs more than decoding it, and a few rows for a plain one.  A plain weight in
 * host memory must have uniform codes, or type F32, F16 or BF16 and be read as it is stored,
 * else 0.  A device
 * with its own memory multiplies by 16-bit weights for any number of rows and converts none. */
size_t vptq_weight_gemv_rows(const vptq_weight *w, const vptq_device *dev, bool kept);
/* Whether the product can take the weight as a whole, without tiles. */
bool vptq_weight_is_whole(const vptq_weight *w, const vptq_opened *o, const vptq_device *dev);
/* As the op `gemv` of the backend, for an opened whole weight; uniform codes are multiplied by
 * `uniform_gemv`, with the bits of their 16-bit numbers. */
vptq_status vptq_weight_gemv(const vptq_weight *w, const vptq_opened *o, vptq_device *dev,
                             const vptq_gemv_args *g, vptq_err *err) VPTQ_MUST_CHECK;

/* Whether the inputs of the linear layer are quantized per token, so that the op
 * `multiply_bytes` takes its codes.  Such a weight has no tiles of numbers and no gemv. */
bool vptq_weight_takes_bytes(const vptq_weight *w);
/* Codes and scales of rows [r0, r0 + n) of an opened weight that takes bytes, in device memory:
 * in `buffer` (n * cols floats, at least 2 columns) or where they are stored. */
vptq_status vptq_weight_codes(const vptq_weight *w, const vptq_opened *o, vptq_device *dev,
                              size_t r0, size_t n, float *buffer, const uint32_t **codes,
                              const float **scales, vptq_err *err) VPTQ_MUST_CHECK;

/* Call after the last use for a while; see vptq_tensor_forget. */
void vptq_weight_forget(const vptq_weight *w);
/* Call before the first use; see vptq_tensor_ahead. */
void vptq_weight_ahead(const vptq_weight *w);

typedef struct vptq_block {
    vptq_weight *linear; /* [vptq_linear_count]; zeroed where the layer has none */
    const vptq_tensor *linear_bias[VPTQ_LINEAR_DENSE]; /* NULL if there is none */
    /* [hidden], of q and k [head_dim]; NULL if the family has no such norm */
    const vptq_tensor *norm[VPTQ_BLOCK_NORM_COUNT];
    const vptq_tensor *norm_bias[VPTQ_BLOCK_NORM_COUNT]; /* the same; NULL without bias */
    /* With experts [count, hidden], and [1, hidden] of the shared one; else NULL. */
    const vptq_tensor *router, *shared_gate;
} vptq_block;

typedef struct vptq_model {
    vptq_checkpoint ckpt;
    const vptq_model_desc *desc;
    vptq_block *blocks;                               /* [layers] */
    vptq_short_name *names;                           /* [vptq_linear_count] */
    const vptq_tensor *embedding, *final_norm, *head; /* head == embedding when tied */
    const vptq_tensor *final_norm_bias;               /* or NULL */
    vptq_vocab vocab;                                 /* only when tokenizer != NULL */
    vptq_tokenizer *tokenizer;
    char fingerprint[17]; /* of the checkpoint, computed for serving; "" otherwise */
} vptq_model;

/* Opens a model and checks that every tensor is present with its shape.  Without
 * `need_tokenizer` the tokenizer is not read and stays NULL; with it, a model without one, or
 * with that of a larger vocabulary, is an error.  Do not move or copy the model: desc points
 * into it.  With opt->fault set, missing tensors and wrong shapes are reported there and stay
 * NULL; such a model can be inspected but not run. */
vptq_status vptq_model_open(const vptq_ctx *ctx, const char *path,
                            const vptq_checkpoint_options *opt, bool need_tokenizer,
                            vptq_model *m, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_model_release(vptq_model *m);

/* Tokens of a window: `given`, or for 0 the default of 2048, less if the model's context is
 * shorter. */
size_t vptq_model_window(const vptq_model *m, size_t given);

/* Whether the architecture uses a plain tensor of that name, or it is common and harmless: a
 * buffer that old releases of transformers saved, or the head of a model that ties it to the
 * embedding. */
bool vptq_model_knows(const vptq_checkpoint *c, const char *name);
/* Warns of tensors that nothing uses, in one line for biases that config.json does not declare
 * and one for others; VPTQ_LOG_MORE names them all.  Says nothing of a work directory, since
 * the run that made it did. */
void vptq_model_warn_of_unused(const vptq_ctx *ctx, const vptq_checkpoint *c);

/* Reads a JSON file that came with the model, or with its tokenizer, its numbers as reals.
 * *json: NULL if there is none. */
vptq_status vptq_model_companion_json(const vptq_model *m, const char *name, bool tokenizer,
                                      vptq_arena *arena, json_t **json,
                                      vptq_err *err) VPTQ_MUST_CHECK;

/* Appends the ids that end a text, each once: eos of the tokenizer, eos_token_id of config.json
 * and generation_config.json (a number or a list), and of a GGUF file the ends of a turn and of
 * a message.  Ids outside of the vocabulary are ignored. */
vptq_status vptq_model_stop_tokens(const vptq_ctx *ctx, const vptq_model *m, vptq_ids *stop,
                                   vptq_err *err) VPTQ_MUST_CHECK;
/* Appends one such id, unless it is in the list or outside of the vocabulary. */
vptq_status vptq_model_add_stop_token(const vptq_model *m, int64_t id, vptq_ids *stop,
                                      vptq_err *err) VPTQ_MUST_CHECK;

/* Stored bits of the linear layers of the blocks per weight: the bits in the file for plain
 * ones (16 for F16, 5 for Q4_1 of a GGUF file), everything that is stored for quantized ones.
 */
double vptq_model_bits_per_weight(const vptq_model *m);

#endif
