/* Internal: comparisons of texts, plurals, and the printable form.
 *
 * A text from a file must not command the terminal or forge a second message.  Its printable
 * form shows control characters (C0, DEL, C1), line and paragraph separators, and bidirectional
 * overrides and isolates as \n, \t, \r, \x1b or \u202e, and bytes that are not UTF-8 as \xff.
 * Everything else, backslashes too, stays, so the printable form of a printable form is
 * itself. */
#ifndef VPTQ_BASE_TEXT_H
#define VPTQ_BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { VPTQ_TEXT_ESCAPE = 8 }; /* bytes of an escape and its terminator */

/* Whether the printable form shows a character as an escape. */
bool vptq_text_is_control(uint32_t cp);
/* Returns the bytes of the first character of s [n > 0], or 1 for an invalid byte, and writes
 * its escape: "" for a character that stays. */
size_t vptq_text_escape(const char *s, size_t n, char escape[VPTQ_TEXT_ESCAPE]);
/* Writes the printable form of s, cut to whole characters and escapes.  Returns its length. */
size_t vptq_text_printable(char *to, size_t size, const char *s);
/* Columns of the printable form on a terminal, counting one per character. */
size_t vptq_text_width(const char *s);
/* vptq_text_printable of a formatted text, which may be cut at 1023 bytes; `to` may be an
 * argument. */
size_t vptq_text_vformat(char *to, size_t size, const char *fmt, va_list ap);

/* The longest length up to `max` that cuts no character of valid UTF-8 of at least `max` bytes.
 */
static inline size_t vptq_text_cut(const char *s, size_t max)
{
    while (max && ((unsigned char)s[max] & 0xC0) == 0x80)
        max--;
    return max;
}

/* The form of a noun or its ending for a number: "1 layer", "2 layers". */
static inline const char *vptq_plural(uint64_t n, const char *one, const char *many)
{
    return n == 1 ? one : many;
}

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
