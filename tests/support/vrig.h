/* A model with its device and token ids, for tests of evaluations. */
#ifndef VPTQ_TESTS_SUPPORT_VRIG_H
#define VPTQ_TESTS_SUPPORT_VRIG_H

#include "lib/model/model.h"

#define VRIG_TINY "tests/golden/tiny_mistral"
enum { VRIG_VOCAB = 48, VRIG_HIDDEN = 32 }; /* of that model */

/* Must not be moved after opening: the device points into it. */
typedef struct vrig {
    vptq_mem mem;
    vptq_ctx ctx;
    vptq_device dev;
    vptq_model m, base; /* base: what m is compared with, where it was opened */
} vrig;

/* Opens the model at `path` on cpu with two threads; tokenizer NULL: its own, if it has one. */
void vrig_open(vrig *r, const char *path, const char *tokenizer, bool need_tokenizer);
void vrig_open_base(vrig *r, const char *path);
void vrig_close(vrig *r); /* asserts that nothing is still allocated */

/* n random ids of the tiny vocabulary, also written to DIR/ids, of which `path` [size] becomes
 * the name; free(). */
int32_t *vrig_ids(const char *dir, size_t n, char *path, size_t size);

#endif
