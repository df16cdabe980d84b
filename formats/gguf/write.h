/* Internal: writes GGUF files, version 3, atomically: metadata is collected in memory, written
 * together with header and tensor list, and followed by each tensor's bytes in the order given.
 * https://github.com/ggml-org/ggml/blob/master/docs/gguf.md */
#ifndef VPTQ_FORMATS_GGUF_WRITE_H
#define VPTQ_FORMATS_GGUF_WRITE_H

#include "formats/gguf/gguf.h"
#include "lib/base/buf.h"

/* Metadata in the order it is put.  The first failure is kept in `st` and later puts do
 * nothing, so that callers check once at the end (vptq_gguf_keys_status). */
typedef struct vptq_gguf_keys {
    vptq_buf bytes;
    uint64_t count;
    vptq_status st;
    vptq_err err;
} vptq_gguf_keys;

void vptq_gguf_keys_init(vptq_gguf_keys *k, vptq_mem *mem);
void vptq_gguf_keys_release(vptq_gguf_keys *k);
vptq_status vptq_gguf_keys_status(const vptq_gguf_keys *k, vptq_err *err) VPTQ_MUST_CHECK;

void vptq_gguf_put_u32(vptq_gguf_keys *k, const char *key, uint32_t x);
void vptq_gguf_put_f32(vptq_gguf_keys *k, const char *key, float x);
void vptq_gguf_put_bool(vptq_gguf_keys *k, const char *key, bool x);
void vptq_gguf_put_str(vptq_gguf_keys *k, const char *key, const char *text);
/* Begins an array of `count` elements of a type; add each one with the functions below. */
void vptq_gguf_put_array(vptq_gguf_keys *k, const char *key, vptq_gguf_type type,
                         uint64_t count);
void vptq_gguf_add_str(vptq_gguf_keys *k, const char *text, size_t len);
void vptq_gguf_add_i32(vptq_gguf_keys *k, int32_t x);
void vptq_gguf_add_f32(vptq_gguf_keys *k, float x);

typedef struct vptq_gguf_writer {
    vptq_file_writer file;
    const vptq_tensor *tensors;
    size_t count, next;
    uint64_t left; /* bytes of the current tensor not written yet */
} vptq_gguf_writer;

/* Tensors have types that the reader knows and at most 4 dims; name, type, dims, shape
 * (outermost first) and bytes are used.  The list must outlive the writer. */
vptq_status vptq_gguf_writer_open(const char *path, bool force, const vptq_gguf_keys *keys,
                                  const vptq_tensor *tensors, size_t count, vptq_gguf_writer *w,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* Appends bytes to the current tensor; continues with the next one after its last byte. */
vptq_status vptq_gguf_write(vptq_gguf_writer *w, const void *data, size_t n,
                            vptq_err *err) VPTQ_MUST_CHECK;
/* All bytes of all tensors must have been written. */
vptq_status vptq_gguf_writer_commit(vptq_gguf_writer *w, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_gguf_writer_abort(vptq_gguf_writer *w); /* harmless after commit or a failed open */

#endif
