/* Printable forms of texts that come from files and command lines. */
#include "lib/base/text.h"

#include <stdio.h>

#include "lib/base/utf8.h"

bool vptq_text_is_control(uint32_t cp)
{
    return cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == 0x2028 || cp == 0x2029 ||
           (cp >= 0x202a && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069);
}

size_t vptq_text_escape(const char *s, size_t n, char escape[VPTQ_TEXT_ESCAPE])
{
    uint32_t cp = 0;
    const size_t len = vptq_utf8_decode(s, n, &cp);
    escape[0] = 0;
    if (len && !vptq_text_is_control(cp))
        return len;
    if (len && (cp == '\n' || cp == '\t' || cp == '\r'))
        snprintf(escape, VPTQ_TEXT_ESCAPE, "\\%c", cp == '\n' ? 'n' : cp == '\t' ? 't' : 'r');
    else
        snprintf(escape, VPTQ_TEXT_ESCAPE, len > 1 ? "\\u%04x" : "\\x%02x",
                 len ? (unsigned)cp : (unsigned)(unsigned char)*s);
    return len ? len : 1;
}

size_t vptq_text_printable(char *to, size_t size, const char *s)
{
    size_t used = 0, n = strlen(s);
    while (n) {
        char escape[VPTQ_TEXT_ESCAPE];
        const size_t len = vptq_text_escape(s, n, escape);
        const size_t add = *escape ? strlen(escape) : len;
        if (used + add >= size)
            break;
        memcpy(to + used, *escape ? escape : s, add);
        used += add;
        s += len;
        n -= len;
    }
    to[used] = 0;
    return used;
}

size_t vptq_text_width(const char *s)
{
    size_t width = 0;
    for (size_t n = strlen(s), len; n; s += len, n -= len) {
        char escape[VPTQ_TEXT_ESCAPE];
        len = vptq_text_escape(s, n, escape);
        width += *escape ? strlen(escape) : 1;
    }
    return width;
}

size_t vptq_text_vformat(char *to, size_t size, const char *fmt, va_list ap)
{
    char text[1024];
    const int n = vsnprintf(text, sizeof text, fmt, ap);
    if (n < 0)
        text[0] = 0;
    if (n >= (int)sizeof text) { /* drops the part of a character that was cut */
        size_t end = sizeof text - 1;
        for (size_t k = 0; k < 3 && ((unsigned char)text[end - 1] & 0xC0) == 0x80; k++)
            end--;
        const size_t lead = end - ((unsigned char)text[end - 1] >= 0xC0);
        if (vptq_utf8_valid_prefix(text + lead, sizeof text - 1 - lead) == 0)
            text[lead] = 0;
    }
    return vptq_text_printable(to, size, text);
}
