/* Packing, unpacking, listing and checking a whole model. */
#ifndef VPTQ_PACK_PACK_H
#define VPTQ_PACK_PACK_H

#include "formats/checkpoint.h"
#include "formats/vptq/quirks.h"
#include "lib/backend/backend.h"

/* ---- pack and unpack ---- */

typedef enum {
    VPTQ_PACK_HF,
    VPTQ_PACK_ARCHIVE,
    VPTQ_PACK_GGUF /* unpack only */
} vptq_pack_form;

typedef struct vptq_pack_options {
    const char *input, *output;
    const char *base; /* another place of the base model; NULL = the recorded one */
    const char *tokenizer;
    vptq_pack_form form;
    vptq_dtype dtype; /* pack: VPTQ_DTYPE_COUNT = as quantized; another one is re-rounded from
                         the float codebooks with a warning.  unpack: F16, BF16 or F32 */
    vptq_dtype embeddings; /* GGUF: of embedding and output head; F16, BF16, F32 or Q8_0 */
    uint64_t shard_bytes;  /* 0 = 4 GiB */
    uint32_t level;        /* archive: zstd's, 1 to 22; 0 = by kind of tensor */
    bool repair;  /* pack: the input must be packed already, as a directory or an archive */
    bool lm_head; /* pack: a head that is tied to the embedding is stored all the same, which
                     the `vptq` package's own loader asks for */
    bool force, dry_run;
} vptq_pack_options;

typedef struct vptq_pack_result {
    uint64_t bytes;                      /* written */
    uint32_t quantized, plain;           /* tensors or matrices of each kind */
    uint32_t repaired[VPTQ_QUIRK_COUNT]; /* matrices with the quirk in a packed input */
    double bits_per_weight;
    double seconds;
} vptq_pack_result;

/* A work directory (or any quantized MODEL) -> published layout or archive.  Of a packed
 * input one matrix, or a piece of a plain tensor, is in memory at a time. */
vptq_status vptq_pack_model(const vptq_ctx *ctx, const vptq_pack_options *opt,
                            vptq_pack_result *r, vptq_err *err) VPTQ_MUST_CHECK;
/* Any MODEL -> a plain Hugging Face directory with config and tokenizer, or one GGUF file with
 * both inside (vectors in F32 there, as its readers want them). */
vptq_status vptq_unpack_model(vptq_device *dev, const vptq_pack_options *opt,
                              vptq_pack_result *r, vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_list_row {
    const char *name;
    bool quantized;
    uint32_t rows, columns;
    vptq_vq_shape shape; /* quantized only */
    vptq_vq_bits bits;
    const char *dtype;
    uint64_t bytes; /* in the file */
} vptq_list_row;
typedef vptq_status (*vptq_list_fn)(void *arg, const vptq_list_row *row, vptq_err *err);
/* All matrices and tensors of any MODEL; total_bytes = size of the files.  `open` may be NULL.
 */
vptq_status vptq_list_model(const vptq_ctx *ctx, const char *path,
                            const vptq_checkpoint_options *open, vptq_list_fn fn, void *arg,
                            uint64_t *total_bytes, double *bits_per_weight,
                            vptq_err *err) VPTQ_MUST_CHECK;

/* Reads everything and checks what opening does not: every index and number, checksums, that
 * all tensors the architecture needs are there, that config entries are portable.  Findings go
 * to fn with a severity; the status is VPTQ_OK when the file could be checked, *errors counts
 * the bad ones.  `open` may be NULL. */
typedef void (*vptq_finding_fn)(void *arg, bool is_error, const char *text);
vptq_status vptq_check_model(vptq_device *dev, const char *path,
                             const vptq_checkpoint_options *open, vptq_finding_fn fn, void *arg,
                             uint32_t *errors, uint32_t *warnings,
                             vptq_err *err) VPTQ_MUST_CHECK;

#endif
