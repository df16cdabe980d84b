/* Tokenizers in tests: opened from the data directory, unpacked where they are packed. */
#ifndef VPTQ_TESTS_SUPPORT_VTOK_H
#define VPTQ_TESTS_SUPPORT_VTOK_H

#include "lib/tokenizer/tokenizer.h"
#include "tests/support/vtest.h"

typedef struct vtok {
    vptq_vocab vocab;
    vptq_tokenizer *t;
} vtok;

void vtok_open(vtok *k, const char *path); /* fails the test when it cannot */
void vtok_close(vtok *k);

/* DIR/tokenizer.json out of the data file NAME.xz, and CONFIG (may be NULL, may end in .xz)
 * beside it; false where the data is missing. */
bool vtok_unpack(const char *dir, const char *name, const char *config);

/* The model of the demo, $VPTQ_DEMO_GGUF; false where that is not set. */
bool vtok_demo(char *path, size_t size);

/* The ids of a text, in `ids` (which is emptied first). */
void vtok_encode(const vtok *k, const char *text, size_t len, unsigned flags, vptq_ids *ids);
/* Encodes and compares. */
void vtok_expect(const vtok *k, const char *text, size_t len, unsigned flags,
                 const int32_t *ids, size_t n, const char *what);
/* Both give the same ids for the text. */
void vtok_expect_same(const vtok *a, const vtok *b, const char *text, size_t len,
                      unsigned flags, const char *what);
/* Decoding the ids gives the text. */
void vtok_expect_text(const vtok *k, const int32_t *ids, size_t n, bool special,
                      const char *text, size_t len, const char *what);

/* The 47 published texts of tokenizers/vectors and their ids under a name ("llama-spm"). */
typedef struct vtok_vectors {
    char *file;
    size_t count;
    struct {
        const char *text;
        size_t len;
        int32_t ids[512];
        size_t n;
    } of[64];
} vtok_vectors;
bool vtok_vectors_load(vtok_vectors *v, const char *name);
void vtok_vectors_free(vtok_vectors *v);

#endif
