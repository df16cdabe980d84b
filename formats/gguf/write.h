/* Writing GGUF files, version 3: metadata is put together in memory, then header and tensor
 * list go out at once, and each tensor's bytes follow in the order given.  Atomic.
 * https://github.com/ggml-org/ggml/blob/master/docs/gguf.md */
#ifndef VPTQ_FORMATS_GGUF_WRITE_H
#define VPTQ_FORMATS_GGUF_WRITE_H

#include "formats/gguf/gguf.h"
#include "formats/vocab/vocab.h"
#include "lib/base/buf.h"

/* Metadata in the order in which it is put.  After a failure `st` holds it, and what is put
 * then is passed over: look once at the end (vptq_gguf_keys_status). */
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
void vptq_gguf_put_str(vptq_gguf_keys *k, const char *key, const char *text, size_t len);
/* Begins an array of `count` elements of a type, each of which is then added with the functions
 * below. */
void vptq_gguf_put_array(vptq_gguf_keys *k, const char *key, vptq_gguf_type type,
                         uint64_t count);
void vptq_gguf_add_str(vptq_gguf_keys *k, const char *text, size_t len);
void vptq_gguf_add_i32(vptq_gguf_keys *k, int32_t x);
void vptq_gguf_add_f32(vptq_gguf_keys *k, float x);

typedef struct vptq_gguf_writer {
    vptq_file_writer file;
    const vptq_tensor *tensors;
    size_t count, next;
    uint64_t left; /* bytes of the current tensor still to come */
} vptq_gguf_writer;

/* Tensors of types F32, F16, BF16 and Q8_0: name, type, dims (outermost first, at most 4),
 * shape and bytes are used; they outlive the writer.  The first put of bytes is the first
 * tensor's. */
vptq_status vptq_gguf_writer_open(const char *path, bool force, const vptq_gguf_keys *keys,
                                  const vptq_tensor *tensors, size_t count, vptq_gguf_writer *w,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* The next bytes of the current tensor; moves on by itself when it is full. */
vptq_status vptq_gguf_write(vptq_gguf_writer *w, const void *data, size_t n,
                            vptq_err *err) VPTQ_MUST_CHECK;
/* VPTQ_BUG when bytes are missing. */
vptq_status vptq_gguf_writer_commit(vptq_gguf_writer *w, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_gguf_writer_abort(vptq_gguf_writer *w); /* harmless after commit or a failed open */

/* ---- a model's metadata (gguf_export.c) ---- */

/* general.architecture and ARCH.*, so that vptq_gguf_desc reads the same description.
 * VPTQ_E_UNSUPPORTED for what such files cannot say: windows from a later layer on. */
vptq_status vptq_gguf_put_desc(vptq_gguf_keys *k, const vptq_model_desc *d, const char *file,
                               vptq_err *err) VPTQ_MUST_CHECK;
/* tokenizer.*, filled up to the description's vocabulary; special ids that the tokenizer does
 * not name are the description's.  VPTQ_E_UNSUPPORTED where the steps of the tokenizer are none
 * of the pre-tokenizers that have a name, VPTQ_E_MISMATCH where it has more tokens than the
 * model. */
vptq_status vptq_gguf_put_vocab(vptq_gguf_keys *k, const vptq_vocab *v,
                                const vptq_model_desc *d, vptq_err *err) VPTQ_MUST_CHECK;

/* Names of a model of `layers` blocks in the order of files, GGUF's and Hugging Face's; false
 * behind the last.  Not every model has all of them. */
bool vptq_gguf_name_pair(uint32_t layers, size_t i, char gguf[VPTQ_NAME_MAX],
                         char hf[VPTQ_NAME_MAX]);
/* The divisor of rotary frequency i that Llama 3.1's rule gives: rope_freqs.weight. */
double vptq_gguf_rope_divisor(const vptq_model_desc *d, uint32_t i);

#endif
