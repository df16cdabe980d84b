/* Internal: safetensors files: an 8-byte little-endian header length, a JSON header {name:
 * {dtype, shape, data_offsets}}, then the bytes.
 *
 * Reading maps the file.  Checks the header length against the
 * file and 100 MB, offsets (inside the file, without gap or overlap), bytes against shape and
 * type, and unique names.  Writing is atomic and pads the header to 8 bytes. */
#ifndef VPTQ_FORMATS_HF_SAFETENSORS_H
#define VPTQ_FORMATS_HF_SAFETENSORS_H

#include "formats/tensor.h"

enum { VPTQ_SAFETENSORS_LENGTH_BYTES = 8, VPTQ_SAFETENSORS_MAX_HEADER = 100000000 };
#define VPTQ_SAFETENSORS_INDEX  "model.safetensors.index.json"
#define VPTQ_SAFETENSORS_SINGLE "model.safetensors"

typedef struct vptq_metadata {
    const char *key, *value;
} vptq_metadata;
typedef struct vptq_metadata_list {
    vptq_metadata *items;
    size_t count;
} vptq_metadata_list;
/* Value of a key; NULL if there is none. */
const char *vptq_metadata_find(const vptq_metadata_list *list, const char *key);
/* *out = the value of a key; VPTQ_E_FORMAT unless it is a whole number above 0 and below 2^63.
 */
vptq_status vptq_metadata_count(const char *path, const vptq_metadata_list *list,
                                const char *key, uint64_t *out, vptq_err *err) VPTQ_MUST_CHECK;

/* Adds all tensors of one file to the set; the caller finishes it.  `meta` (may be NULL) gets
 * the strings of __metadata__, in the set's arena. */
vptq_status vptq_safetensors_read(const char *path, vptq_tensor_set *set,
                                  vptq_metadata_list *meta, vptq_err *err) VPTQ_MUST_CHECK;

/* Hex digits of a checksum, with the 0 after them. */
enum { VPTQ_SAFETENSORS_SUM = 17 };
/* Checksum of a file's content: a chain of XXH3 over key and value of each metadata, then over
 * name and bytes of each tensor; texts with their 0, tensors sorted by name, `bytes` set. */
void vptq_safetensors_sum(const vptq_tensor *sorted, size_t count, const vptq_metadata *meta,
                          size_t meta_count, char hex[VPTQ_SAFETENSORS_SUM]);
/* VPTQ_E_CHECKSUM if `hex` is not what the file recorded. */
vptq_status vptq_safetensors_check_sum(const char *path, const char *hex, const char *recorded,
                                       vptq_err *err) VPTQ_MUST_CHECK;

/* Writes a whole file from tensors with data, replacing an old one; name, type, dims, shape and
 * data are used. */
vptq_status vptq_safetensors_save(const char *path, const vptq_tensor *tensors, size_t count,
                                  const vptq_metadata *meta, size_t meta_count,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* Appends bytes to the tensor being written. */
typedef struct vptq_safetensors_writer vptq_safetensors_writer;
vptq_status vptq_safetensors_write(vptq_safetensors_writer *w, const void *data, size_t n,
                                   vptq_err *err) VPTQ_MUST_CHECK;

/* Writes the weights of a Hugging Face directory into `dir`, which must exist:
 * model.safetensors, or an index and shards of at most `shard_bytes` (more if a single tensor
 * is larger).  Calls `fill` for each tensor in file order with a copy of its description,
 * `bytes` set; `fill` writes them all with vptq_safetensors_write.  File order is the order
 * given, except that tensors whose size is not a multiple of 8 bytes come last in their shard,
 * wide types first, so that all are aligned to their element.  Sharding depends only on the
 * list. */
typedef vptq_status (*vptq_tensor_fill)(void *arg, const vptq_tensor *t,
                                        vptq_safetensors_writer *w, vptq_err *err);
vptq_status vptq_safetensors_write_dir(const char *dir, const vptq_tensor *tensors,
                                       size_t count, uint64_t shard_bytes,
                                       vptq_tensor_fill fill, void *arg,
                                       vptq_err *err) VPTQ_MUST_CHECK;

#endif
