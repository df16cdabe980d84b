/* Internal: comparisons of texts. */
#ifndef VPTQ_BASE_TEXT_H
#define VPTQ_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Whether `len` bytes, which need not be terminated, are this word. */
static inline bool vptq_text_is(const void *text, size_t len, const char *word)
{
    return len == strlen(word) && memcmp(text, word, len) == 0;
}

/* Length of the part before a suffix; 0 if it is empty or the text does not end with the
 * suffix. */
static inline size_t vptq_text_before(const char *text, const char *suffix)
{
    size_t n = strlen(text), m = strlen(suffix);
    return n > m && strcmp(text + n - m, suffix) == 0 ? n - m : 0;
}

#endif
