/* What packing and unpacking share: the list of tensors of the model that is to be written, the
 * small files beside them, and writing it all as a directory or an archive, one tensor in
 * memory at a time. */
#ifndef VPTQ_PACK_OUT_H
#define VPTQ_PACK_OUT_H

#include "formats/hf/safetensors.h"
#include "formats/vptq/archive.h"
#include "lib/pack/pack.h"

/* What a tensor of the output is made from; exactly one is set. */
typedef struct vptq_out_source {
    const vptq_tensor *plain;
    const vptq_packed_matrix *matrix;
} vptq_out_source;

typedef struct vptq_out_tensor {
    vptq_tensor tensor; /* as it is written; data NULL, bytes set */
    vptq_out_source source;
} vptq_out_tensor;

typedef struct vptq_out_file {
    const char *name;
    const char *data;
    size_t size;
} vptq_out_file;

enum { VPTQ_OUT_MAX_FILES = 256 };

typedef struct vptq_out {
    const vptq_ctx *ctx;
    const vptq_checkpoint *from;
    const char *stage; /* for progress */
    vptq_arena arena;
    vptq_out_tensor *tensors; /* sorted by name once vptq_out_finish was called */
    size_t count, cap;
    vptq_out_file files[VPTQ_OUT_MAX_FILES];
    size_t file_count;
    uint64_t bytes; /* of all tensors and files */
} vptq_out;

/* `from` is what tensors and matrices are read from. */
void vptq_out_init(vptq_out *o, const vptq_ctx *ctx, const vptq_checkpoint *from,
                   const char *stage);
void vptq_out_release(vptq_out *o);

/* Whether a tensor of the checkpoint is, or is a part of, a matrix that is quantized: a plain
 * weight that the matrix stands for, or one of the tensors it is stored in.  A linear's own
 * bias is neither. */
bool vptq_out_is_quantized(const vptq_checkpoint *c, const char *tensor_name);

/* A copy of the description (the name, too); data is not looked at. */
vptq_status vptq_out_add(vptq_out *o, const vptq_tensor *t, vptq_out_source source,
                         vptq_err *err) VPTQ_MUST_CHECK;
/* A plain tensor as type `type` (VPTQ_DTYPE_COUNT: as it is); what holds no real numbers keeps
 * its own. */
vptq_status vptq_out_add_plain(vptq_out *o, const vptq_tensor *t, vptq_dtype type,
                               vptq_err *err) VPTQ_MUST_CHECK;
/* Sorts, and fails on a name that is there twice. */
vptq_status vptq_out_finish(vptq_out *o, vptq_err *err) VPTQ_MUST_CHECK;

/* Rows of a tensor as floats in host memory, whatever they are made from; `most` at a time. */
typedef struct vptq_out_rows {
    const vptq_ctx *ctx;
    vptq_device *dev; /* NULL for a plain tensor */
    const vptq_checkpoint *from;
    const vptq_out_tensor *t;
    size_t rows, cols, most;
    vptq_matrix *matrix; /* opened on dev */
    vptq_arena arena;    /* of a matrix that was opened for its shape only */
    void *device;        /* a matrix is dequantized here */
    void *room;          /* bytes of rows of a plain tensor that is packed */
    float *host;
} vptq_out_rows;
/* `t` is made from something of o->from; `dev` is for matrices.  `multiple`: `most` is one of
 * it, unless the tensor has fewer rows; 0 = any. */
vptq_status vptq_out_rows_open(const vptq_out *o, vptq_device *dev, const vptq_out_tensor *t,
                               size_t multiple, vptq_out_rows *r,
                               vptq_err *err) VPTQ_MUST_CHECK;
/* *x stays valid until the next call. */
vptq_status vptq_out_rows_read(vptq_out_rows *r, size_t first, size_t n, const float **x,
                               vptq_err *err) VPTQ_MUST_CHECK;
void vptq_out_rows_close(vptq_out_rows *r);

/* Where the bytes of one tensor go. */
typedef struct vptq_out_sink {
    vptq_safetensors_writer *file; /* or */
    vptq_archive_writer *archive;
} vptq_out_sink;
vptq_status vptq_out_put(vptq_out_sink *s, const void *data, size_t n,
                         vptq_err *err) VPTQ_MUST_CHECK;

/* n floats as type F32, F16 or BF16 into `stored`.  VPTQ_E_NUMERIC, naming the tensor and the
 * place, for what is not finite or does not fit.  `first` is the index of x[0] in the tensor,
 * `cols` its row length. */
vptq_status vptq_out_narrow(const vptq_tensor *t, vptq_dtype type, const float *x, size_t n,
                            size_t first, size_t cols, void *stored,
                            vptq_err *err) VPTQ_MUST_CHECK;

/* Gives out the bytes of `t`, exactly t->tensor.bytes of them. */
typedef vptq_status (*vptq_out_fill)(void *arg, const vptq_out_tensor *t, vptq_out_sink *s,
                                     vptq_err *err);
/* The fill of whatever is converted: rows as the type of `t`, tile by tile. */
vptq_status vptq_out_fill_rows(const vptq_out *o, vptq_device *dev, const vptq_out_tensor *t,
                               vptq_out_sink *s, vptq_err *err) VPTQ_MUST_CHECK;
/* The fill of every plain tensor: converted, or as it is piece by piece. */
vptq_status vptq_out_fill_plain(const vptq_out *o, const vptq_out_tensor *t, vptq_out_sink *s,
                                vptq_err *err) VPTQ_MUST_CHECK;
/* Walks over the bytes of a tensor of `from`, a piece in memory at a time: real numbers must be
 * finite, and without a sink that is all. */
vptq_status vptq_out_walk(const vptq_ctx *ctx, const vptq_checkpoint *from,
                          const vptq_tensor *t, vptq_out_sink *s,
                          vptq_err *err) VPTQ_MUST_CHECK;

/* Both appear whole or not at all; *bytes = size of what was written.  A shard has 4 GiB at
 * most where shard_bytes is 0.  `level` is zstd's, 0 =
 * what measurements say for each kind of entry. */
vptq_status vptq_out_write_dir(vptq_out *o, const char *path, bool force, uint64_t shard_bytes,
                               vptq_out_fill fill, void *arg, uint64_t *bytes,
                               vptq_err *err) VPTQ_MUST_CHECK;
vptq_status vptq_out_write_archive(vptq_out *o, const char *path, bool force, int level,
                                   vptq_out_fill fill, void *arg, uint64_t *bytes,
                                   vptq_err *err) VPTQ_MUST_CHECK;

/* The model as one GGUF file (pipeline_gguf.c); fills r but for seconds. */
vptq_status vptq_unpack_gguf(vptq_device *dev, const vptq_pack_options *opt,
                             vptq_pack_result *r, vptq_err *err) VPTQ_MUST_CHECK;

/* ---- small files (pipeline_out_files.c) ---- */

/* config.json of the model without its quantization, weights of type `type` (VPTQ_DTYPE_COUNT:
 * as it is).  The caller owns *config. */
vptq_status vptq_out_config(const vptq_checkpoint *c, vptq_dtype type, json_t **config,
                            vptq_err *err) VPTQ_MUST_CHECK;
/* The object of config.json that quantization_config belongs into. */
json_t *vptq_out_config_holder(json_t *config);
vptq_status vptq_out_add_config(vptq_out *o, const json_t *config,
                                vptq_err *err) VPTQ_MUST_CHECK;
/* Tokenizer, generation settings, license and every other file: copied from beside a Hugging
 * Face model or out of an archive; the tokenizer is made from what the model has otherwise.  A
 * model without a tokenizer gets a warning. `beside` is the output's path: what is made needs a
 * temporary directory next to it (NULL: a dry run, nothing is made). */
vptq_status vptq_out_add_tokenizer(vptq_out *o, const vptq_checkpoint *c,
                                   const char *given_tokenizer, const char *beside,
                                   vptq_err *err) VPTQ_MUST_CHECK;

/* chat_template.jinja that belongs to the model's own tokenizer, a text in the arena; NULL
 * where there is none, or where the tokenizer comes from somewhere else. */
vptq_status vptq_out_chat_template(const vptq_ctx *ctx, const vptq_checkpoint *c,
                                   const char *given_tokenizer, vptq_arena *arena,
                                   const char **text, vptq_err *err) VPTQ_MUST_CHECK;

/* VPTQ_E_ARG when the output is the input or its base model, or the directory that one of them
 * lies in, which would go away with what it holds. */
vptq_status vptq_out_check_place(const vptq_checkpoint *c, const char *output,
                                 vptq_err *err) VPTQ_MUST_CHECK;
/* Bytes of a file, or of the files of a directory. */
vptq_status vptq_out_path_bytes(const vptq_ctx *ctx, const char *path, uint64_t *bytes,
                                vptq_err *err) VPTQ_MUST_CHECK;

#endif
