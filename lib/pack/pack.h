/* Internal: packing, unpacking, listing and checking a whole model (lib/vptq.h has the
 * options). */
#ifndef VPTQ_PACK_PACK_H
#define VPTQ_PACK_PACK_H

#include "formats/checkpoint.h"
#include "formats/vptq/quirks.h"
#include "lib/backend/backend.h"
#include "lib/vptq.h"

/* Embedding and output head as written. */
typedef struct vptq_pack_embedding {
    const char *type;    /* NULL = there is none */
    uint64_t bytes;      /* in the file; of an archive in a dry run, before compression */
    double relative_mse; /* of the numbers as the input is evaluated; NaN in a dry run */
} vptq_pack_embedding;

/* Linear layers that a GGUF file has in blocks. */
typedef struct vptq_pack_layers {
    const char *type;    /* NULL = there are none */
    double relative_mse; /* as of the embedding */
} vptq_pack_layers;

typedef struct vptq_pack_result {
    uint64_t bytes;                      /* written */
    uint32_t quantized, plain;           /* matrices and tensors of each kind */
    uint32_t repaired[VPTQ_QUIRK_COUNT]; /* matrices of the input with each defect */
    double bits_per_weight;
    double file_bits_per_weight; /* all bytes written, per weight of the model */
    vptq_pack_embedding embedding;
    vptq_pack_layers layers;
    double seconds;
    /* of a dry run: of writing, without the disk, and the peak of its memory */
    double estimated_seconds;
    uint64_t memory_bytes;
} vptq_pack_result;

/* VPTQ_E_ARG for options of a work directory with another model. */
vptq_status vptq_pack_check_work(const char *path, const char *base, bool partial,
                                 vptq_err *err) VPTQ_MUST_CHECK;

/* How the line of a model card (vptq_pack_options.card) begins that has the digest. */
#define VPTQ_CARD_DIGEST "| digest | `"

/* Packs a work directory, or any quantized MODEL, into the published layout or an archive.  Of
 * a packed input one matrix, or a piece of a plain tensor, is in memory at a time. */
vptq_status vptq_pack_model(const vptq_ctx *ctx, const vptq_pack_options *opt,
                            vptq_pack_result *r, vptq_err *err) VPTQ_MUST_CHECK;
/* Fails as vptq_pack_model would, once a quantized form of `model` is ready, because of its
 * types, its tokenizer or its output: one that exists, cannot be replaced or written, or holds
 * the model.  Creates the folder of the output; a dry run writes nothing. */
vptq_status vptq_pack_check_output(const vptq_ctx *ctx, const char *model,
                                   const vptq_pack_options *opt, vptq_err *err) VPTQ_MUST_CHECK;
/* Unpacks any MODEL to a plain Hugging Face directory with config and tokenizer, or to one GGUF
 * file that contains both (and vectors in F32, as its readers expect). */
vptq_status vptq_unpack_model(vptq_device *dev, const vptq_pack_options *opt,
                              vptq_pack_result *r, vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_digest_result {
    const char *model;
    char digest[VPTQ_DIGEST_SIZE];
    /* quantized ones, and those of the model's blocks that no recipe skips */
    uint32_t matrices, all_matrices;
    uint32_t tensors; /* of the packed model, without a copied head */
} vptq_digest_result;

/* As vptq_digest, without a report.  The digest of a work directory is that of what packing
 * with the types of `pack` (NULL = its own) writes, and "" while matrices are missing.  `open`
 * may be NULL. */
vptq_status vptq_digest_model(const vptq_ctx *ctx, const char *path,
                              const vptq_checkpoint_options *open,
                              const vptq_pack_options *pack, vptq_digest_result *r,
                              vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_list_row {
    const char *name;
    bool quantized, vectors; /* vectors: by method vptq */
    uint32_t rows, columns;
    vptq_vq_shape shape; /* vectors only */
    vptq_vq_bits bits;   /* quantized only */
    const char *dtype;
    uint64_t bytes; /* in the file */
} vptq_list_row;
typedef vptq_status (*vptq_list_fn)(void *arg, const vptq_list_row *row, vptq_err *err);

/* Calls fn for all matrices and tensors of any MODEL, by name; *total_bytes = size of the
 * files; *bits_per_weight of the quantized matrices, NAN without any.  `open` may be NULL. */
vptq_status vptq_list_model(const vptq_ctx *ctx, const char *path,
                            const vptq_checkpoint_options *open, vptq_list_fn fn, void *arg,
                            uint64_t *total_bytes, double *bits_per_weight,
                            vptq_err *err) VPTQ_MUST_CHECK;

typedef void (*vptq_finding_fn)(void *arg, bool is_error, const char *text);

typedef struct vptq_check_result {
    const char *model;
    uint32_t errors, warnings;
    bool has_sums;    /* the directory has a SHA256SUMS */
    uint32_t digests; /* files that agree with it */
} vptq_check_result;

/* Reads everything and checks what opening does not: every index and number, checksums, missing
 * and extra tensors, portable config entries.  fn gets the findings; VPTQ_OK if the model could
 * be checked, whatever was found.  `open` may be NULL. */
vptq_status vptq_check_model(vptq_device *dev, const char *path,
                             const vptq_checkpoint_options *open, vptq_finding_fn fn, void *arg,
                             vptq_check_result *result, vptq_err *err) VPTQ_MUST_CHECK;

/* ---- reports (print.c) ---- */

/* vptq_check on a device. */
vptq_status vptq_check_report(vptq_device *dev, const char *path,
                              const vptq_checkpoint_options *open, const vptq_output *out,
                              uint32_t *errors, vptq_err *err) VPTQ_MUST_CHECK;
/* Reports a digest. */
vptq_status vptq_digest_report(const vptq_digest_result *r, const vptq_output *out,
                               vptq_err *err) VPTQ_MUST_CHECK;
/* Reports what was packed or unpacked. */
vptq_status vptq_pack_report(const vptq_pack_options *opt, bool unpacked,
                             const vptq_pack_result *r, const vptq_output *out,
                             vptq_err *err) VPTQ_MUST_CHECK;

#endif
