/* Internal: opens any MODEL: a Hugging Face directory, a GGUF file, a llama2.c .bin, a packed
 * VPTQ directory, a .vptq archive or a quantize work directory.  All give the same view: a
 * description, tensors under Hugging Face names, and vector-quantized matrices by module path.
 * Uniformly quantized matrices and those of additive codes are tensors, too
 * (vptq_tensor.uniform, additive).
 *
 *     vptq_checkpoint c;
 *     VPTQ_CHECK(vptq_checkpoint_open(ctx, path, NULL, &c, err));
 *     const vptq_tensor *t = vptq_tensor_find(&c.set, "model.norm.weight");
 *     ...
 *     vptq_checkpoint_release(&c);
 */
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
    const char *tokenizer; /* --tokenizer FILE; NULL = search next to the model */
    const char *base;      /* WORK: path of the base model; NULL = as recorded */
    bool partial;          /* WORK: also one whose run has not finished */
    /* If not NULL, receives the text of every fault of a single tensor or matrix; opening then
     * continues without it (a damaged tensor stays in the set, without data).  Requires `err`
     * in every call. */
    vptq_fault_fn fault;
    void *fault_arg;
    /* PACKED, ARCHIVE: `quantized` has names, shapes and types, but no data (read it matrix by
     * matrix with vptq_packed_read), and tensors of an archive stay packed (unpack them with
     * vptq_tensor_bytes).  Tensor data is read only to report faults. */
    bool shapes_only;
    bool quiet; /* vptq_model_open: no warnings of unused tensors or of the tokenizer, which
                   were given before */
} vptq_checkpoint_options;

typedef struct vptq_checkpoint {
    vptq_checkpoint_kind kind;
    const char *path; /* as given, or the snapshot of a name on the hub (hf/hub.h) */
    vptq_arena arena;
    vptq_model_desc desc;
    vptq_tensor_set set; /* plain tensors; PACKED and ARCHIVE: every tensor of the files */
    vptq_packed_matrix *quantized; /* sorted by name */
    size_t quantized_count;
    vptq_strmap quantized_by_name;
    json_t *config;     /* config.json of HF, PACKED, ARCHIVE kinds; NULL otherwise */
    vptq_dtype storage; /* WORK: the type of its settings, to which plain tensors are rounded;
                           otherwise the type of most plain weights */
    struct vptq_checkpoint *base; /* WORK: the model it was made from; owned */
    vptq_gguf *gguf;              /* GGUF kind; owned */
    /* HF, PACKED, ARCHIVE: biases of linear layers that are left out of `set`, because
     * config.json does not declare them, and transformers ignores them. */
    const char **ignored; /* [ignored_count] names */
    size_t ignored_count;
    size_t other_parts;    /* HF: tensors left out because only the text model is read */
    const char *tokenizer; /* path the tokenizer is read from; NULL = none found */
    struct vptq_checkpoint_files *files; /* ARCHIVE, WORK: open files that hold data; owned */
    vptq_fault_fn fault;                 /* as in the options */
    void *fault_arg;
    const char *
        *faulty; /* [faulty_count] modules of uniform or additive codes, the faults of */
    size_t faulty_count; /* which were reported: `set` has neither their parts nor a weight */
    size_t skipped;      /* WORK: matrices that the run leaves plain, by its recipe */
} vptq_checkpoint;

/* `opt` may be NULL.  Errors name the path and what was expected there.  A WORK directory
 * checks the base model's fingerprint (VPTQ_E_MISMATCH), and that its last run has finished. */
vptq_status vptq_checkpoint_open(const vptq_ctx *ctx, const char *path,
                                 const vptq_checkpoint_options *opt, vptq_checkpoint *c,
                                 vptq_err *err) VPTQ_MUST_CHECK;
void vptq_checkpoint_release(vptq_checkpoint *c);
const char *vptq_checkpoint_kind_name(vptq_checkpoint_kind kind); /* "GGUF file", ... */

/* True for a failure caused by the file, false for one of the system, memory or the user. */
bool vptq_checkpoint_is_fault(vptq_status st);
/* Whether a module is one of c->faulty. */
bool vptq_checkpoint_is_faulty(const vptq_checkpoint *c, const char *module);
/* Returns st, except for a fault of a checkpoint opened with a fault callback: passes its text
 * to the callback and returns VPTQ_OK. */
vptq_status vptq_checkpoint_report_fault(const vptq_checkpoint *c, vptq_status st,
                                         const vptq_err *err) VPTQ_MUST_CHECK;

/* Drops all mapped pages of the checkpoint from this process's memory, for walks over a whole
 * model (see vptq_tensor_forget). */
void vptq_checkpoint_forget(const vptq_checkpoint *c);

/* WORK: the file that quantized matrix i was read from; NULL for the other kinds. */
const struct vptq_layer_file *vptq_checkpoint_layer(const vptq_checkpoint *c, size_t i);

/* NULL if the module is not quantized. */
const vptq_packed_matrix *vptq_checkpoint_quantized(const vptq_checkpoint *c,
                                                    const char *module);

/* Whether the linear layer of that module path has a bias: by the `bias` key of its entry in
 * the config.json of a packed model, else by the description. */
bool vptq_checkpoint_declares_bias(const vptq_checkpoint *c, const char *module, vptq_linear l);

/* Number of uniformly quantized matrices: tensors of the set with `uniform`. */
size_t vptq_checkpoint_uniform_count(const vptq_checkpoint *c);

/* Number of matrices of additive codes: tensors of the set with `additive`. */
size_t vptq_checkpoint_additive_count(const vptq_checkpoint *c);

/* Matrices that are plain tensors of the set: WORK: those that were changed; uniformly
 * quantized models: those that are not quantized. */
size_t vptq_checkpoint_dense_count(const vptq_checkpoint *c);
bool vptq_checkpoint_is_dense(const vptq_checkpoint *c, const vptq_tensor *t);

/* Number of matrices that were quantized or changed, however they are stored. */
size_t vptq_checkpoint_matrix_count(const vptq_checkpoint *c);
/* The same once all are: the matrices of the model's blocks that no recipe skips. */
size_t vptq_checkpoint_all_matrices(const vptq_checkpoint *c);

/* Matrices by their codes; those that are stored plain do not count. */
typedef struct vptq_code_counts {
    size_t vectors, uniform, additive;
} vptq_code_counts;

/* Fails for codes that no packed model holds: one config.json describes one kind of them, and
 * no layout of directories (`dir`) additive ones.  VPTQ_E_UNSUPPORTED, its sentence beginning
 * with `path`. */
vptq_status vptq_code_counts_check(const vptq_code_counts *n, bool dir, const char *path,
                                   vptq_err *err) VPTQ_MUST_CHECK;

/* Reads the tokenizer; VPTQ_E_FORMAT if the model has none. */
vptq_status vptq_checkpoint_vocab(const vptq_checkpoint *c, const vptq_ctx *ctx, vptq_vocab *v,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* A whole file in memory, with a 0 after its `len` bytes; data NULL = no such file. */
typedef struct vptq_text {
    char *data;
    size_t len;
} vptq_text;
/* Reads a text file that belongs to the model into `arena`: DIR/NAME, or the archive's file of
 * that name; of a work directory, its base model's.  With `tokenizer` the file belongs to the
 * tokenizer and is searched where that was read from.  VPTQ_E_FORMAT for more than `limit`
 * bytes. */
vptq_status vptq_checkpoint_companion(const vptq_checkpoint *c, const char *name,
                                      bool tokenizer, size_t limit, vptq_arena *arena,
                                      vptq_text *text, vptq_err *err) VPTQ_MUST_CHECK;

/* VPTQ_E_ARG if writing `output` would replace a file of the model or of its base.  c NULL: no
 * model. */
vptq_status vptq_checkpoint_check_output(const vptq_checkpoint *c, const char *output,
                                         vptq_err *err) VPTQ_MUST_CHECK;

/* 16 hex digits over the description and over names, types, shapes and bytes of all tensors:
 * models with the same fingerprint give the same results. */
vptq_status vptq_checkpoint_fingerprint(const vptq_checkpoint *c, const vptq_ctx *ctx,
                                        char hex[17], vptq_err *err) VPTQ_MUST_CHECK;

/* The manifest of a work directory.  Keys read here: "base_model" (path), "base_fingerprint",
 * "dtype" ("f16"|"bf16"), "tokenizer" (path or null), "matrices" (by name; those with "skip":
 * true are counted).  The matrices are the layer_*.safetensors files next to it. */
#define VPTQ_WORK_FILE   "quantize.json"
#define VPTQ_WORK_REPORT "report.jsonl"
#define VPTQ_WORK_FORMAT 1

#endif
