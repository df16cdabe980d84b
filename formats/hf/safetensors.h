/* safetensors: an 8-byte little-endian header length, a JSON header {name: {dtype, shape,
 * data_offsets}}, then the bytes.  Read by mapping; single files, or directories with
 * model.safetensors or model.safetensors.index.json.  Checked: header length against the file
 * and a 100 MB bound, offsets inside the file, in order, without gap or overlap, bytes = shape
 * x type, unique names.  Written atomically, tensors in the order given, 8-byte aligned header.
 */
#ifndef VPTQ_FORMATS_HF_SAFETENSORS_H
#define VPTQ_FORMATS_HF_SAFETENSORS_H

#include "formats/tensor.h"

typedef struct vptq_metadata {
    const char *key, *value;
} vptq_metadata;

/* Adds all tensors of one file to the set (not finished).  `meta` (may be NULL) gets the
 * strings of
 * __metadata__ in the set's arena. */
vptq_status vptq_safetensors_read(const char *path, vptq_tensor_set *set, vptq_metadata **meta,
                                  size_t *meta_count, vptq_err *err) VPTQ_MUST_CHECK;

/* All tensors of a Hugging Face directory: the index's shards, else model.safetensors, else
 * every
 * *.safetensors in name order. */
vptq_status vptq_safetensors_read_dir(const char *dir, vptq_tensor_set *set,
                                      vptq_err *err) VPTQ_MUST_CHECK;

/* Streaming writer: the header is fixed first, then each tensor's bytes follow in the order
 * given. */
typedef struct vptq_safetensors_writer {
    vptq_file_writer file;
    const vptq_tensor *tensors; /* data may be NULL; name, type, dims, shape are used */
    size_t count, next;
    uint64_t left; /* bytes of the current tensor still to come */
} vptq_safetensors_writer;

vptq_status vptq_safetensors_writer_open(const char *path, bool force,
                                         const vptq_tensor *tensors, size_t count,
                                         const vptq_metadata *meta, size_t meta_count,
                                         vptq_safetensors_writer *w,
                                         vptq_err *err) VPTQ_MUST_CHECK;
/* The next bytes of the current tensor; moves on by itself when it is full. */
vptq_status vptq_safetensors_write(vptq_safetensors_writer *w, const void *data, size_t n,
                                   vptq_err *err) VPTQ_MUST_CHECK;
/* VPTQ_BUG when bytes are missing. */
vptq_status vptq_safetensors_writer_commit(vptq_safetensors_writer *w,
                                           vptq_err *err) VPTQ_MUST_CHECK;
void vptq_safetensors_writer_abort(vptq_safetensors_writer *w);

/* All at once, from tensors whose data is set. */
vptq_status vptq_safetensors_save(const char *path, bool force, const vptq_tensor *tensors,
                                  size_t count, const vptq_metadata *meta, size_t meta_count,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* A Hugging Face directory's weights: model.safetensors, or shards of at most `shard_bytes`
 * (more where one tensor is larger) with an index, in `dir` (which exists).  `fill` is called
 * for each tensor in file order with a copy of its description whose `bytes` is set, and gives
 * them in pieces through vptq_safetensors_write.  File order is the order given, but tensors
 * whose size is not a multiple of 8 bytes stand at the end of their shard, wide types first, so
 * that all are aligned to their element.  Sharding depends on nothing but the list. */
typedef vptq_status (*vptq_tensor_fill)(void *arg, const vptq_tensor *t,
                                        vptq_safetensors_writer *w, vptq_err *err);
vptq_status vptq_safetensors_write_dir(const char *dir, const vptq_tensor *tensors,
                                       size_t count, uint64_t shard_bytes,
                                       vptq_tensor_fill fill, void *arg,
                                       vptq_err *err) VPTQ_MUST_CHECK;

#endif
