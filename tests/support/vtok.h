/* Helpers for tests of tokenizers: opening, encoding and comparing, published vectors. */
#ifndef VPTQ_TESTS_SUPPORT_VTOK_H
#define VPTQ_TESTS_SUPPORT_VTOK_H

#include "formats/json.h"
#include "lib/tokenizer/tokenizer.h"
#include "tests/support/vtest.h"

typedef struct vtok {
    vptq_vocab vocab;
    vptq_tokenizer *t;
} vtok;

void vtok_open(vtok *k, const char *path); /* fails the test on an error */
/* Sets the keys of `change` in a tokenizer.json; those of "model" one by one. */
void vtok_apply(json_t *tokenizer, json_t *change);
/* Opens a base of tests/golden/tokenizer_steps.json with changes from a JSON text (NULL: none),
 * written to DIR/tokenizer.json. */
void vtok_open_base(const char *dir, vtok *k, const char *base, const char *change);
void vtok_close(vtok *k);

/* Unpacks the data file NAME.xz to DIR/tokenizer.json, and CONFIG (may be NULL, may end in .xz)
 * next to it; false if the data is missing. */
bool vtok_unpack(const char *dir, const char *name, const char *config);

/* Returns the path of the demo model, $VPTQ_DEMO_GGUF; false if that is not set. */
bool vtok_demo(char *path, size_t size);

/* Replaces the content of `ids` by the ids of a text. */
void vtok_encode(const vtok *k, const char *text, size_t len, unsigned flags, vptq_ids *ids);
/* Expects these ids for the text. */
void vtok_expect(const vtok *k, const char *text, size_t len, unsigned flags,
                 const int32_t *ids, size_t n, const char *what);
/* Expects the same ids from both for the text. */
void vtok_expect_same(const vtok *a, const vtok *b, const char *text, size_t len,
                      unsigned flags, const char *what);
/* Expects the ids to decode to the text. */
void vtok_expect_text(const vtok *k, const int32_t *ids, size_t n, bool special,
                      const char *text, size_t len, const char *what);

/* The 47 published texts of tokenizers/vectors and their ids for one name ("llama-spm"). */
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
