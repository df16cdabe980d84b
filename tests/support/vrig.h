/* A model with its device, token ids and forward pass, for tests that run models. */
#ifndef VPTQ_TESTS_SUPPORT_VRIG_H
#define VPTQ_TESTS_SUPPORT_VRIG_H

#include "lib/model/forward.h"

/* The tiny models of tests/golden: one of each family, the first VRIG_FAMILIES with packed
 * models, gradients and the hidden size below; those after the first VRIG_DEVICE_FAMILIES run
 * on devices that work in host memory only. */
#define VRIG_TINY_OF(family) "tests/golden/tiny_" family
#define VRIG_TINY            VRIG_TINY_OF("mistral")
enum { VRIG_VOCAB = 48, VRIG_HIDDEN = 32, VRIG_TOKENS = 40, VRIG_FAMILIES = 4 };
enum { VRIG_DEVICE_FAMILIES = 9, VRIG_ALL_FAMILIES = 12, VRIG_MAX_HIDDEN = 48 };
extern const char *const vrig_families[VRIG_ALL_FAMILIES];

/* Must not be moved after opening: the device points into it. */
typedef struct vrig {
    vptq_mem mem;
    vptq_ctx ctx;
    vptq_device dev;
    vptq_model m, base; /* base: the model to compare with, if opened */
    vptq_forward *f;    /* NULL unless opened */
} vrig;

/* Opens the model at `path` on cpu with two threads; tokenizer NULL: its own, if it has one. */
void vrig_open(vrig *r, const char *path, const char *tokenizer, bool need_tokenizer);
/* The same on another backend or number of threads; the tokenizer is read if given. */
void vrig_open_on(vrig *r, const char *path, const char *tokenizer, const char *backend,
                  int threads);
void vrig_open_base(vrig *r, const char *path);
/* Opens a model without tokenizer, and its forward pass for sequences of `length` tokens. */
void vrig_open_forward(vrig *r, const char *path, const char *backend, int threads,
                       size_t length);
/* The same with the demo model in float16: unpacked ($VPTQ_DEMO_F16), or a GGUF file
 * ($VPTQ_DEMO_GGUF) with every value rounded when read.  Returns false if neither is set. */
bool vrig_open_demo(vrig *r, size_t length);
/* Puts a final norm of equal values in place of that of a tiny model, for as long as *norm
 * lives.
 */
typedef struct vrig_norm {
    vptq_tensor tensor;
    float values[VRIG_HIDDEN];
} vrig_norm;
void vrig_set_final_norm(vrig *r, vrig_norm *norm, float value);
/* Closes everything and asserts that no memory is still allocated. */
void vrig_close(vrig *r);

/* Computes the hidden states of these sequences after all blocks. */
void vrig_run_blocks(vrig *r, const int32_t *ids, const size_t *starts, size_t count,
                     float *hidden);

/* Continues the cached sequence by n ids as vptq_forward_next does, and returns the logits
 * [vocab] of the last one; vrig_reset empties the cache. */
vptq_status vrig_step(vptq_forward *f, const int32_t *ids, size_t n, float *logits,
                      vptq_err *err) VPTQ_MUST_CHECK;
void vrig_reset(vptq_forward *f);
/* Returns n random ids of the tiny vocabulary and writes them to DIR/ids, whose path it stores
 * in `path`; the caller frees them with free(). */
int32_t *vrig_ids(const char *dir, size_t n, char *path, size_t size);
/* Returns the VRIG_TOKENS ids for which a tiny model has golden logits; the caller frees them
 * with free(). */
int32_t *vrig_tiny_ids(const char *family);

/* Sums over the windows of a run.  vrig_log_window takes one as `arg` and fails
 * the test if a window is missing or out of order. */
typedef struct vrig_windows {
    uint64_t count, tokens;
    double sum; /* of the means times the tokens */
} vrig_windows;
void vrig_log_window(void *arg, uint64_t window, double mean, uint64_t tokens);

#endif
