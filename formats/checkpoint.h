/* MODEL, whatever it is: a Hugging Face directory, a GGUF file, a llama2.c .bin, a packed VPTQ
 * directory, a .vptq archive or a quantize work directory; opened into one picture:
 * description, tensors under Hugging Face names, quantized matrices by module path. */
#ifndef VPTQ_FORMATS_CHECKPOINT_H
#define VPTQ_FORMATS_CHECKPOINT_H

#include "formats/model_desc.h"
#include "formats/tensor.h"
#include "formats/vocab/vocab.h"
#include "formats/vptq/packed.h"
#include "lib/base/ctx.h"

typedef enum {
    VPTQ_CKPT_HF,
    VPTQ_CKPT_GGUF,
    VPTQ_CKPT_LLAMA2C,
    VPTQ_CKPT_PACKED, /* Hugging Face directory with quant_method vptq */
    VPTQ_CKPT_ARCHIVE,
    VPTQ_CKPT_WORK /* quantize work directory: finished matrices over the base model */
} vptq_checkpoint_kind;

typedef struct vptq_checkpoint_options {
    const char *tokenizer; /* --tokenizer FILE, or NULL to look beside the model */
    const char *base; /* WORK: another place of the base model, or NULL for the recorded one */
    /* Not NULL: what is wrong with one tensor or matrix is told here, and opening goes on
     * without it (a damaged tensor stays in the set, without data); callers must give an err */
    vptq_fault_fn fault;
    void *fault_arg;
    /* PACKED, ARCHIVE: `quantized` has names, shapes and types, but no data (vptq_packed_read
     * gives it matrix by matrix), and the tensors of an archive stay packed (vptq_tensor_bytes
     * unpacks).  Bytes of tensors are looked at only to tell faults. */
    bool shapes_only;
} vptq_checkpoint_options;

typedef struct vptq_checkpoint {
    vptq_checkpoint_kind kind;
    const char *path; /* as given */
    vptq_arena arena;
    vptq_model_desc desc;
    vptq_tensor_set set; /* plain tensors (for the packed kinds: everything in the files) */
    vptq_packed_matrix *quantized; /* sorted by name */
    size_t quantized_count;
    vptq_strmap quantized_by_name;
    json_t *config;     /* config.json of HF, PACKED, ARCHIVE kinds; NULL otherwise */
    vptq_dtype storage; /* WORK: the type of its settings, which also rounds all plain tensors;
                           otherwise the type most plain weights are stored in */
    const char *base_path;        /* WORK: the model it was made from; NULL otherwise */
    struct vptq_checkpoint *base; /* WORK: that model, opened; owned */
    vptq_gguf *gguf;              /* GGUF kind; owned */
    const char *tokenizer;        /* where the tokenizer is read from, NULL = none found */
    void *extra;                  /* archive handle and layer files that hold bytes; owned */
    vptq_fault_fn fault;          /* as in the options */
    void *fault_arg;
} vptq_checkpoint;

/* Errors name the path and what was expected there.  A WORK directory checks the base model's
 * fingerprint (VPTQ_E_MISMATCH). */
vptq_status vptq_checkpoint_open(const vptq_ctx *ctx, const char *path,
                                 const vptq_checkpoint_options *opt, vptq_checkpoint *c,
                                 vptq_err *err) VPTQ_MUST_CHECK;
void vptq_checkpoint_release(vptq_checkpoint *c);
const char *vptq_checkpoint_kind_name(vptq_checkpoint_kind kind);

/* Whether a status says something about the file, and not about the run. */
bool vptq_checkpoint_is_fault(vptq_status st);
/* st; but a fault is told where the checkpoint was opened to tell them, and VPTQ_OK. */
vptq_status vptq_checkpoint_tell(const vptq_checkpoint *c, vptq_status st,
                                 const vptq_err *err) VPTQ_MUST_CHECK;

/* vptq_tensor_forget for all that the checkpoint has mapped: for walks over all of a model,
 * whose matrices have their parts in many places. */
void vptq_checkpoint_forget(const vptq_checkpoint *c);

/* WORK: the file that quantized matrix i was read from; NULL for the other kinds. */
const struct vptq_layer_file *vptq_checkpoint_layer(const vptq_checkpoint *c, size_t i);

/* NULL when the module is not quantized. */
const vptq_packed_matrix *vptq_checkpoint_quantized(const vptq_checkpoint *c,
                                                    const char *module);

/* The tokenizer's description; VPTQ_E_FORMAT when the model has none ("give --tokenizer FILE").
 */
vptq_status vptq_checkpoint_vocab(const vptq_checkpoint *c, const vptq_ctx *ctx, vptq_vocab *v,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* A text that came with the model: DIR/NAME, or the archive's file of that name; of a work
 * directory that of its base model.  `tokenizer`: one that belongs to the tokenizer, and so
 * lies where that was read from.  *text is in `arena` with a 0 behind its *len bytes; NULL
 * where there is none (as for a GGUF file).  More than `limit` bytes are VPTQ_E_FORMAT. */
vptq_status vptq_checkpoint_companion(const vptq_checkpoint *c, const vptq_ctx *ctx,
                                      const char *name, bool tokenizer, size_t limit,
                                      vptq_arena *arena, char **text, size_t *len,
                                      vptq_err *err) VPTQ_MUST_CHECK;

/* 16 hex digits over names, types, shapes and bytes of all tensors and the description: two
 * models with the same fingerprint give the same results. */
vptq_status vptq_checkpoint_fingerprint(const vptq_checkpoint *c, const vptq_ctx *ctx,
                                        char hex[17], vptq_err *err) VPTQ_MUST_CHECK;

/* quantize.json of a work directory, as far as a reader of the result needs it. */
#define VPTQ_WORK_FILE "quantize.json"
/* Keys in it: "base_model" (path), "base_fingerprint", "dtype" ("f16"|"bf16"), "tokenizer"
 * (path or null); the matrices are the layer_*.safetensors files beside it. */

#endif
