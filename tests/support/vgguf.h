/* Writes GGUF files for tests, with keys and tensors in call order, in memory, so that a test
 * can also damage the bytes. */
#ifndef VPTQ_TESTS_SUPPORT_VGGUF_H
#define VPTQ_TESTS_SUPPORT_VGGUF_H

#include <stddef.h>
#include <stdint.h>

#include "formats/gguf/gguf.h"

/* ggml type numbers. */
enum { VGGUF_F32 = 0, VGGUF_F16 = 1, VGGUF_Q4_0 = 2, VGGUF_IQ4_NL = 20, VGGUF_BF16 = 30 };

typedef struct vgguf_bytes {
    uint8_t *data;
    size_t len, cap;
} vgguf_bytes;

typedef struct vgguf {
    vgguf_bytes keys, tensors, data, file; /* file: filled by vgguf_finish */
    uint32_t version;
    uint64_t key_count, tensor_count;
    size_t alignment;
} vgguf;

void vgguf_init(vgguf *g); /* version 3, alignment 32 */
void vgguf_free(vgguf *g);

void vgguf_add(vgguf_bytes *b, const void *data, size_t n);
void vgguf_add_u32(vgguf_bytes *b, uint32_t x);
void vgguf_add_u64(vgguf_bytes *b, uint64_t x);
void vgguf_add_str(vgguf_bytes *b, const char *s);

/* Adds a key whose value of GGUF type `type` is given as bytes. */
void vgguf_key(vgguf *g, const char *key, uint32_t type, const void *value, size_t n);
void vgguf_u32(vgguf *g, const char *key, uint32_t x);
void vgguf_f32(vgguf *g, const char *key, float x);
void vgguf_bool(vgguf *g, const char *key, uint8_t x);
void vgguf_str(vgguf *g, const char *key, const char *s);
void vgguf_array(vgguf *g, const char *key, uint32_t type, uint64_t count, const void *elements,
                 size_t n);
void vgguf_strs(vgguf *g, const char *key, const char *const *list, size_t count);

/* Adds a tensor; `type` is a ggml type number, the shape begins with the outermost dimension.
 */
void vgguf_tensor(vgguf *g, const char *name, uint32_t type, uint32_t dims,
                  const uint64_t *shape, const void *data, size_t n);
/* Adds only an entry of the tensor list, with any offset. */
void vgguf_entry(vgguf *g, const char *name, uint32_t type, uint32_t dims,
                 const uint64_t *shape, uint64_t offset);

/* Joins the parts into g->file; may be called again after changes. */
void vgguf_finish(vgguf *g);
void vgguf_write(vgguf *g, const char *path);
/* Writes DIR/x.gguf and opens it. */
vptq_status vgguf_open(const char *dir, vgguf *w, vptq_gguf *g, vptq_err *err);

/* Adds a complete small model of architecture `arch` ("llama", "qwen2", "qwen3"): hidden 8, 2
 * heads of 4, 1 key-value head, ffn 12, 2 blocks, vocabulary 16, F32 values from vgguf_value. q
 * and k of llama are interleaved as in real files; qwen2 gets q, k, v biases, qwen3 q and k
 * norms; no output.weight unless `head`. */
enum {
    VGGUF_HIDDEN = 8,
    VGGUF_HEADS = 2,
    VGGUF_KV_HEADS = 1,
    VGGUF_HEAD_DIM = 4,
    VGGUF_FFN = 12,
    VGGUF_LAYERS = 2,
    VGGUF_VOCAB = 16
};
void vgguf_model(vgguf *g, const char *arch, int head);
/* Element i of the tensor of this Hugging Face name, before any interleaving. */
float vgguf_value(const char *hf_name, size_t i);

#endif
