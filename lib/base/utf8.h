/* Internal: UTF-8 with strict decoding: no surrogates, no overlong forms, nothing over
 * U+10FFFF. */
#ifndef VPTQ_BASE_UTF8_H
#define VPTQ_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes the character at s into *cp and returns its bytes (1..4), or 0 if the n bytes do not
 * begin with a valid character. */
static inline size_t vptq_utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    static const uint32_t min[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (n == 0)
        return 0;
    uint32_t c = (unsigned char)s[0];
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    size_t len = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
    if (c < 0xC2 || c > 0xF4 || len > n)
        return 0;
    uint32_t v = c & (0xFFU >> (len + 1));
    for (size_t i = 1; i < len; i++) {
        uint32_t b = (unsigned char)s[i];
        if ((b & 0xC0) != 0x80)
            return 0;
        v = v << 6 | (b & 0x3F);
    }
    if (v < min[len] || v > 0x10FFFF || (v >= 0xD800 && v < 0xE000))
        return 0;
    *cp = v;
    return len;
}

/* Whether a byte continues a character that began before it. */
static inline bool vptq_utf8_continues(char byte)
{
    return ((unsigned char)byte & 0xC0) == 0x80;
}

/* Decodes the last character of n bytes into *cp and returns its bytes (1..4), or 0 if they do
 * not end with a valid character. */
static inline size_t vptq_utf8_decode_last(const char *s, size_t n, uint32_t *cp)
{
    size_t bytes = 1;
    if (n == 0)
        return 0;
    while (bytes < 4 && bytes < n && vptq_utf8_continues(s[n - bytes]))
        bytes++;
    return vptq_utf8_decode(s + n - bytes, bytes, cp) == bytes ? bytes : 0;
}

/* The number of characters in n bytes of valid UTF-8. */
static inline size_t vptq_utf8_count(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += !vptq_utf8_continues(s[i]);
    return count;
}

/* Encodes a code point in 1..4 bytes at out, not terminated; returns their number. */
static inline size_t vptq_utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = len - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3F));
        cp >>= 6;
    }
    out[0] = (char)((0xF00U >> len & 0xF0) | cp);
    return len;
}

/* The length of the longest valid prefix. */
static inline size_t vptq_utf8_valid_prefix(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint32_t cp = 0;
        size_t k = vptq_utf8_decode(s + i, n - i, &cp);
        if (k == 0)
            break;
        i += k;
    }
    return i;
}

/* The length of the maximal part [n > 0] at the start of bytes that do not begin with a valid
 * character: what decoders replace with one U+FFFD (The Unicode Standard, 3.9, table 3-8). */
static inline size_t vptq_utf8_invalid_part(const char *s, size_t n)
{
    const unsigned char lead = (unsigned char)s[0];
    if (lead < 0xC2 || lead > 0xF4)
        return 1;
    const size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    size_t i = 1;
    while (i < want && i < n && (unsigned char)s[i] >= low && (unsigned char)s[i] <= high) {
        i++;
        low = 0x80;
        high = 0xBF;
    }
    return i;
}

/* Whether a character has Unicode's property White_Space. */
static inline bool vptq_utf8_space(uint32_t cp)
{
    if (cp < 0x80)
        return cp == ' ' || (cp >= 9 && cp <= 13);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

/* Python's str.isspace() of one character: white space, and four control characters. */
static inline bool vptq_utf8_python_space(uint32_t cp)
{
    return vptq_utf8_space(cp) || (cp >= 0x1C && cp <= 0x1F);
}

#endif
