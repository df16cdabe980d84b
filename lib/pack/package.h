/* Internal to lib/pack: a model that is being written.
 *
 * A vptq_package lists the tensors and small files of the result. package.c keeps the list and
 * writes it as a directory or an archive, convert.c produces the bytes of a tensor,
 * companions.c adds config.json, tokenizer and other files.  One matrix, or one tile of a plain
 * tensor, is in memory at a time. */
#ifndef VPTQ_PACK_PACKAGE_H
#define VPTQ_PACK_PACKAGE_H

#include "formats/hf/safetensors.h"
#include "formats/vptq/archive.h"
#include "lib/pack/pack.h"
#include "lib/pack/sha256.h"

/* Source of an output tensor; exactly one is set. */
typedef struct vptq_package_source {
    const vptq_tensor *plain;
    const vptq_packed_matrix *matrix;
    const vptq_tensor *coded; /* a stored part of this weight of uniform or additive codes */
} vptq_package_source;

typedef struct vptq_package_tensor {
    vptq_tensor tensor;         /* as written; data is NULL, bytes is set */
    vptq_package_source source; /* nothing if there are parts */
    uint64_t packed;            /* bytes in the archive, once it is written; else 0 */
    /* [part_count] whose rows follow each other in a fused tensor; NULL: one of its own */
    const struct vptq_package_tensor *parts;
    size_t part_count;
} vptq_package_tensor;

typedef struct vptq_package_file {
    const char *name;
    const char *data;
    size_t size;
} vptq_package_file;

enum { VPTQ_PACKAGE_MAX_FILES = 256 };

/* Of writing for an estimate: tensors may end early once it is late. */
typedef struct vptq_package_probe {
    double until;   /* vptq_seconds */
    uint64_t bytes; /* of tensors, made so far */
} vptq_package_probe;

/* Destination of the bytes of one tensor; exactly one of the first three is set. */
typedef struct vptq_package_sink {
    vptq_safetensors_writer *file;
    vptq_archive_writer *archive;
    vptq_sha256 *hash;
    vptq_package_probe *probe; /* NULL: whole tensors are written */
} vptq_package_sink;

/* Writes the bytes of `t` to `s`, exactly t->tensor.bytes of them. */
typedef vptq_status (*vptq_package_fill)(void *arg, const vptq_package_tensor *t,
                                         vptq_package_sink *s, vptq_err *err);

/* Sums over numbers as they are converted: of the squares of the differences, and of the
 * numbers. */
typedef struct vptq_package_loss {
    double error, energy;
} vptq_package_loss;

typedef struct vptq_package {
    const vptq_ctx *ctx;
    const vptq_checkpoint *from; /* tensors and matrices are read from it */
    const char *stage;           /* of progress lines */
    vptq_arena arena;
    vptq_package_tensor *tensors; /* sorted by name after vptq_package_finish */
    size_t count, cap;
    vptq_package_file files[VPTQ_PACKAGE_MAX_FILES];
    size_t file_count;
    uint64_t bytes; /* of all tensors and files */
    /* of packing, if the output may have the digest of `from`; NULL = it has another or none */
    const vptq_pack_options *same;
    vptq_package_fill fill; /* set by the caller before writing */
    void *fill_arg;
    /* of embedding and output head, and of linear layers; of the caller, who zeroed them; NULL
     * = not measured */
    vptq_package_loss *loss, *layer_loss;
} vptq_package;

/* ---- the list (package.c) ---- */

void vptq_package_init(vptq_package *o, const vptq_ctx *ctx, const vptq_checkpoint *from,
                       const char *stage);
void vptq_package_release(vptq_package *o);

/* Whether all quantized matrices are stored in the published layout, inside the model itself.
 */
static inline bool vptq_package_is_packed(const vptq_checkpoint *c)
{
    return c->kind == VPTQ_CKPT_PACKED || c->kind == VPTQ_CKPT_ARCHIVE;
}

/* The quantized matrix that a tensor of the checkpoint belongs to: the one it is a stored part
 * of, or the one that replaces this plain weight.  NULL for all other tensors, among them the
 * bias of a linear layer. */
const vptq_packed_matrix *vptq_package_matrix_of(const vptq_checkpoint *c,
                                                 const char *tensor_name);

/* Bits per weight of all matrices together; `stored`: with the permutation absorbed wherever
 * the published layout allows it. */
double vptq_package_mean_bits(const vptq_packed_matrix *matrices, size_t count, bool stored);

/* Adds a copy of the description `t`, with its name; its data is ignored. */
vptq_status vptq_package_add(vptq_package *o, const vptq_tensor *t, vptq_package_source source,
                             vptq_err *err) VPTQ_MUST_CHECK;
/* Adds a plain tensor converted to `type` (VPTQ_DTYPE_COUNT: unchanged).  Tensors that do not
 * hold real numbers keep their type. */
vptq_status vptq_package_add_plain(vptq_package *o, const vptq_tensor *t, vptq_dtype type,
                                   vptq_err *err) VPTQ_MUST_CHECK;
/* Warns that blocks of an archive are written as numbers of `type`. */
void vptq_package_warn_decoding(const vptq_package *o, const vptq_tensor *t, vptq_dtype type);
/* Adds every matrix and tensor of o->from as a plain tensor under its Hugging Face name:
 * matrices as `matrix_type`, plain tensors as `plain_type` (VPTQ_DTYPE_COUNT: unchanged).
 * `skip` (may be NULL) returns true for plain tensors to leave out. */
typedef bool (*vptq_package_skip)(const vptq_checkpoint *c, const char *name);
vptq_status vptq_package_add_dequantized(vptq_package *o, vptq_dtype plain_type,
                                         vptq_dtype matrix_type, vptq_package_skip skip,
                                         vptq_err *err) VPTQ_MUST_CHECK;
/* Puts the fused tensors of the family (vptq_fused_layers) in place of their parts. */
vptq_status vptq_package_fuse(vptq_package *o, vptq_err *err) VPTQ_MUST_CHECK;
/* Adds a small file; `data` must outlive the output. */
vptq_status vptq_package_add_file(vptq_package *o, const char *name, const char *data,
                                  size_t size, vptq_err *err) VPTQ_MUST_CHECK;
bool vptq_package_has_file(const vptq_package *o, const char *name);
/* Sorts the tensors; VPTQ_E_FORMAT for a duplicate name. */
vptq_status vptq_package_finish(vptq_package *o, vptq_err *err) VPTQ_MUST_CHECK;

/* Sets r->file_bits_per_weight from r->bytes, r->embedding (its bytes as written or listed),
 * and the losses as measured by writing. */
void vptq_package_summarize(const vptq_package *o, bool dry_run, vptq_pack_result *r);

/* ---- writing (package.c) ---- */

/* Both write everything or nothing; *bytes = size of the result. */
/* shard_bytes: 0 = 4 GiB. */
vptq_status vptq_package_write_dir(vptq_package *o, const char *path, bool force,
                                   uint64_t shard_bytes, uint64_t *bytes,
                                   vptq_err *err) VPTQ_MUST_CHECK;
/* level: of zstd; 0 = the measured best for each kind of entry. */
vptq_status vptq_package_write_archive(vptq_package *o, const char *path, bool force, int level,
                                       uint64_t *bytes, vptq_err *err) VPTQ_MUST_CHECK;

/* ---- estimates (estimate.c) ---- */

/* Makes [count] tensors and drops their bytes, or ends them early (vptq_package_is_late). */
typedef vptq_status (*vptq_package_try)(void *arg, const vptq_package_tensor *t, size_t count,
                                        vptq_package_probe *p, vptq_err *err);
bool vptq_package_is_late(const vptq_package_probe *p); /* false for NULL */
/* Sets r->estimated_seconds and r->memory_bytes of writing all tensors. */
vptq_status vptq_package_estimate(const vptq_package *o, vptq_package_try fn, void *arg,
                                  vptq_pack_result *r, vptq_err *err) VPTQ_MUST_CHECK;
/* The same for a directory, or an archive with that level (vptq_package_write_archive). */
vptq_status vptq_package_estimate_dir(const vptq_package *o, vptq_pack_result *r,
                                      vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_package_estimate_archive(const vptq_package *o, int level, vptq_pack_result *r,
                                          vptq_err *err) VPTQ_MUST_CHECK;

/* ---- the digest (digest.c, pack.c) ---- */

/* Digest of the tensors as either would write them, with matrices of these shapes as stored;
 * sets r->digest and r->tensors. */
vptq_status vptq_package_digest(const vptq_package *o, const vptq_packed_matrix *matrices,
                                size_t count, vptq_digest_result *r,
                                vptq_err *err) VPTQ_MUST_CHECK;
/* Digest of what packing with the types of `opt` writes; NULL = those of the model. */
vptq_status vptq_digest_packing(const vptq_ctx *ctx, const vptq_checkpoint *c,
                                const vptq_pack_options *opt, vptq_digest_result *r,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* VPTQ_E_ARG for a type that embedding and output head cannot be stored as. */
vptq_status vptq_package_check_embeddings(const vptq_pack_options *opt,
                                          vptq_err *err) VPTQ_MUST_CHECK;

/* ---- paths (package.c) ---- */

/* VPTQ_E_ARG if the output is the input, its base model, or a directory that contains one of
 * them: replacing it would delete them.  The same for ".." after a folder that does not exist
 * yet, where this is unknown. */
vptq_status vptq_package_check_path(const vptq_checkpoint *c, const char *output,
                                    vptq_err *err) VPTQ_MUST_CHECK;
/* VPTQ_E_MISMATCH if the path is a directory that holds other files than a model's: replacing
 * it would delete them. */
vptq_status vptq_package_check_replaced(const vptq_ctx *ctx, const char *path,
                                        vptq_err *err) VPTQ_MUST_CHECK;
/* Fails as both, and if the output exists and may not be replaced; before a model is read, and
 * of a plan.  An output of NULL passes. */
vptq_status vptq_package_check_output(const vptq_ctx *ctx, const vptq_checkpoint *c,
                                      const vptq_pack_options *opt,
                                      vptq_err *err) VPTQ_MUST_CHECK;
/* Size of a file, or of all files in a directory. */
vptq_status vptq_package_path_bytes(const vptq_ctx *ctx, const char *path, uint64_t *bytes,
                                    vptq_err *err) VPTQ_MUST_CHECK;

/* ---- bytes of a tensor (convert.c) ---- */

/* Rows of a tensor as floats in host memory, read from a plain tensor or dequantized from a
 * matrix, at most tile_rows at a time. */
typedef struct vptq_package_rows {
    const vptq_ctx *ctx;
    vptq_device *dev; /* NULL for a plain tensor */
    const vptq_checkpoint *from;
    const vptq_package_tensor *t;
    size_t rows, cols, tile_rows;
    vptq_matrix *matrix; /* opened on dev */
    vptq_arena arena;    /* of a matrix that the checkpoint opened for its shape only */
    void *device;        /* [tile_rows, cols] dequantized on dev */
    void *raw;           /* stored bytes of a tile of a plain tensor that is not in memory */
    float *host;         /* [tile_rows, cols] */
    vptq_package_loss *loss; /* to which converting adds; NULL = not measured */
} vptq_package_rows;
/* Opens `t`, whose source belongs to o->from.  `dev` is needed for matrices.  tile_rows becomes
 * a multiple of `multiple` (0 = any), or the number of rows if that is smaller. */
vptq_status vptq_package_rows_open(const vptq_package *o, vptq_device *dev,
                                   const vptq_package_tensor *t, size_t multiple,
                                   vptq_package_rows *r, vptq_err *err) VPTQ_MUST_CHECK;
/* Reads rows [first, first + n); *x stays valid until the next call. */
vptq_status vptq_package_rows_read(vptq_package_rows *r, size_t first, size_t n,
                                   const float **x, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_package_rows_close(vptq_package_rows *r);

vptq_status vptq_package_put(vptq_package_sink *s, const void *data, size_t n,
                             vptq_err *err) VPTQ_MUST_CHECK;

/* Converts rows [first, first + n), a tile of `r` in x, to t's type: F32, F16, BF16 or blocks.
 * VPTQ_E_NUMERIC with tensor, row and column for a value that is not finite or too large for
 * the type. */
vptq_status vptq_package_convert(const vptq_package_rows *r, const vptq_tensor *t,
                                 const float *x, size_t first, size_t n, void *stored,
                                 vptq_err *err) VPTQ_MUST_CHECK;

/* A vptq_package_fill of converted and dequantized tensors, tile by tile. */
vptq_status vptq_package_fill_rows(const vptq_package *o, vptq_device *dev,
                                   const vptq_package_tensor *t, vptq_package_sink *s,
                                   vptq_err *err) VPTQ_MUST_CHECK;
/* A vptq_package_fill of plain tensors, converted or copied. */
vptq_status vptq_package_fill_plain(const vptq_package *o, const vptq_package_tensor *t,
                                    vptq_package_sink *s, vptq_err *err) VPTQ_MUST_CHECK;
/* Copies the bytes of a tensor of `from` to `s`, piece by piece, and fails on a number that is
 * not finite.  With s NULL it only checks. */
vptq_status vptq_package_copy(const vptq_ctx *ctx, const vptq_checkpoint *from,
                              const vptq_tensor *t, vptq_package_sink *s,
                              vptq_err *err) VPTQ_MUST_CHECK;

/* ---- small files (companions.c) ---- */

/* config.json of the model without its quantization, for weights of `type` (VPTQ_DTYPE_COUNT:
 * unchanged).  The caller releases *config with json_decref. */
vptq_status vptq_package_make_config(const vptq_checkpoint *c, vptq_dtype type, json_t **config,
                                     vptq_err *err) VPTQ_MUST_CHECK;
/* Describes a model of a fused family, whose linear layers are stored one by one, as Mistral,
 * which is the same but for the names of tensors, where the whole head is rotated.  Other
 * models stay as they are. */
vptq_status vptq_package_split_config(const vptq_model_desc *d, json_t *config,
                                      vptq_err *err) VPTQ_MUST_CHECK;
/* The object of config.json that holds quantization_config. */
json_t *vptq_package_config_holder(json_t *config);
vptq_status vptq_package_add_config(vptq_package *o, const json_t *config,
                                    vptq_err *err) VPTQ_MUST_CHECK;
/* Fails if vptq_package_add_companions will convert the tokenizer and cannot read it. */
vptq_status vptq_package_check_tokenizer(const vptq_checkpoint *c, const vptq_ctx *ctx,
                                         const char *given_tokenizer,
                                         vptq_err *err) VPTQ_MUST_CHECK;
/* Adds tokenizer, generation settings, license and all other small files of the model, from its
 * directory or archive.  A tokenizer in another form is converted to tokenizer.json.  Warns if
 * the model has none.  `output` is the output's path: converting needs a temporary directory
 * next to it.  NULL in a dry run, which converts nothing. */
vptq_status vptq_package_add_companions(vptq_package *o, const vptq_checkpoint *c,
                                        const char *given_tokenizer, const char *output,
                                        vptq_err *err) VPTQ_MUST_CHECK;
/* Text of the chat_template.jinja that belongs to the tokenizer, in `arena`: the model's, or of
 * a tokenizer from elsewhere the one next to it.  NULL if there is none. */
vptq_status vptq_package_chat_template(const vptq_ctx *ctx, const vptq_checkpoint *c,
                                       const char *given_tokenizer, vptq_arena *arena,
                                       const char **text, vptq_err *err) VPTQ_MUST_CHECK;

/* ---- SHA256SUMS (sums.c) ---- */

/* Writes DIR/SHA256SUMS over all files of a directory that was just written. */
vptq_status vptq_sums_write(const vptq_ctx *ctx, const char *dir,
                            vptq_err *err) VPTQ_MUST_CHECK;
/* Checks a directory against its list, if it has one, and reports each file that differs, is
 * missing or is not listed.  Sets has_sums and digests.  A list that cannot be used is
 * VPTQ_E_FORMAT. */
vptq_status vptq_sums_check(const vptq_ctx *ctx, const char *dir, vptq_finding_fn report,
                            void *arg, vptq_check_result *r, vptq_err *err) VPTQ_MUST_CHECK;

/* ---- gguf.c ---- */

/* Writes the model as one GGUF file and fills r, except seconds. */
vptq_status vptq_unpack_gguf(vptq_device *dev, const vptq_pack_options *opt,
                             vptq_pack_result *r, vptq_err *err) VPTQ_MUST_CHECK;

#endif
