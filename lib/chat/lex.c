/* Splits a template into tokens, as jinja2's lexer does with trim_blocks and lstrip_blocks. */
#include <stdlib.h>

#include "lib/chat/internal.h"

typedef struct lexer {
    tpl_run *r;
    const char *s; /* with '\n' for every line end, and without the last one */
    size_t len, pos;
    bool line_starts; /* the previous tag ended with a newline */
    tpl_token *tokens;
    size_t count, cap;
} lexer;

static void add(lexer *x, int kind, tpl_value value)
{
    if (x->count == x->cap) {
        size_t cap = x->cap ? 2 * x->cap : 256;
        tpl_token *more = vptq_tpl_alloc(x->r, cap, sizeof *more);
        if (!more)
            return;
        if (x->count > 0)
            memcpy(more, x->tokens, x->count * sizeof *more);
        x->tokens = more;
        x->cap = cap;
    }
    x->tokens[x->count++] = (tpl_token){(uint8_t)kind, x->r->line, value};
}

static void advance(lexer *x, size_t to)
{
    for (size_t i = x->pos; i < to; i++)
        x->r->line += x->s[i] == '\n';
    x->line_starts = to > x->pos && x->s[to - 1] == '\n';
    x->pos = to;
}

static size_t skip_space(const lexer *x, size_t at)
{
    uint32_t cp;
    while (at < x->len) {
        size_t bytes = vptq_tpl_char(x->s + at, x->len - at, &cp);
        if (!vptq_tpl_is_space(cp))
            break;
        at += bytes;
    }
    return at;
}

static bool starts_with(const lexer *x, size_t at, const char *word)
{
    size_t len = strlen(word);
    return x->len - at >= len && memcmp(x->s + at, word, len) == 0;
}

/* '-' or '+' after the two characters at `at`, or 0. */
static char sign_of(const lexer *x, size_t at)
{
    return at + 2 < x->len && (x->s[at + 2] == '-' || x->s[at + 2] == '+') ? x->s[at + 2] : 0;
}

/* The text up to `to`, where a tag with the whitespace control `sign` begins; `lstrip`: without
 * the spaces before a tag that is the first on its line. */
static void add_text(lexer *x, size_t to, char sign, bool lstrip)
{
    tpl_value text = TPL_TEXT(x->s + x->pos, to - x->pos);
    size_t end = x->pos + vptq_tpl_strip(text, TPL_NULL, false, true).len, line = to;
    while (line > x->pos && x->s[line - 1] != '\n')
        line--;
    bool only_space = end <= line && (line > x->pos || x->line_starts);
    if (sign != '-')
        end = lstrip && !sign && only_space ? line : to;
    if (end > x->pos)
        add(x, TPL_T_TEXT, TPL_TEXT(x->s + x->pos, end - x->pos));
    advance(x, to);
}

/* Length of the end of a tag at `at` ("%}", "-%}" with the space after it, and with `trim`
 * "+%}", or "%}" with a newline after it), 0 if there is none. */
static size_t tag_end(const lexer *x, size_t at, const char *end, bool trim)
{
    size_t p = at;
    char sign = 0;
    if (p < x->len && (x->s[p] == '-' || (trim && x->s[p] == '+')))
        sign = x->s[p++];
    if (!starts_with(x, p, end))
        return 0;
    p += 2;
    if (sign == '-')
        p = skip_space(x, p);
    else if (!sign && trim && p < x->len && x->s[p] == '\n')
        p++;
    return p - at;
}

/* Length of "{% raw %}" or "{% endraw %}" at `at`, 0 if it is another tag. */
static size_t raw_tag(const lexer *x, size_t at, const char *word)
{
    if (!starts_with(x, at, "{%"))
        return 0;
    size_t p = skip_space(x, at + 2 + (sign_of(x, at) != 0));
    if (!starts_with(x, p, word))
        return 0;
    p = skip_space(x, p + strlen(word));
    size_t end = tag_end(x, p, "%}", word[0] == 'e');
    return end ? p + end - at : 0;
}

/* A comment, or the text after a "{% raw %}", with its end. */
static void lex_verbatim(lexer *x, bool raw)
{
    for (size_t at = x->pos + (raw ? 0 : 2); at < x->len; at++) {
        size_t len = raw ? raw_tag(x, at, "endraw") : tag_end(x, at, "#}", true);
        if (len && raw)
            add_text(x, at, sign_of(x, at), true);
        if (len) {
            advance(x, at + len);
            return;
        }
    }
    TPL_ERROR(x->r, raw ? "{%% raw %%} has no {%% endraw %%}" : "a comment has no end");
}

/* ---- in a tag ---- */

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (c >= '0' && c <= '9');
}

static size_t digits_end(const lexer *x, size_t p)
{
    while (p < x->len && x->s[p] >= '0' && x->s[p] <= '9')
        p++;
    return p;
}

/* A decimal integer or, except after a '.', a float. */
static void lex_number(lexer *x)
{
    char text[64];
    size_t from = x->pos, end = digits_end(x, from), e = end;
    bool after_dot = from > 0 && x->s[from - 1] == '.';
    if (!after_dot && starts_with(x, e, ".") && digits_end(x, e + 1) > e + 1)
        e = digits_end(x, e + 1);
    if (!after_dot && (starts_with(x, e, "e") || starts_with(x, e, "E"))) {
        size_t digits = e + 1 + (starts_with(x, e + 1, "-") || starts_with(x, e + 1, "+"));
        e = digits_end(x, digits) > digits ? digits_end(x, digits) : e;
    }
    if (e - from >= sizeof text || (e < x->len && is_name(x->s[e]))) {
        TPL_ERROR(x->r, "a number is not decimal or has too many digits");
        return;
    }
    memcpy(text, x->s + from, e - from);
    text[e - from] = 0;
    int64_t v = 0;
    for (const char *c = text; e == end && *c; c++)
        if (__builtin_mul_overflow(v, (int64_t)10, &v) ||
            __builtin_add_overflow(v, (int64_t)(*c - '0'), &v))
            TPL_ERROR(x->r, "a number exceeds 64 bits");
    add(x, TPL_T_NUMBER, e == end ? TPL_INTEGER(v) : TPL_REAL(strtod(text, NULL)));
    x->pos = e;
}

/* Writes what the escape with the character at *p stands for to out; returns its bytes. */
static size_t unescape(lexer *x, size_t *p, char *out)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = x->s[*p], hex[9] = {0};
    const char *known = c ? strchr(from, c) : NULL;
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    out[0] = known ? to[known - from] : '\\';
    if (c == 'N' || (c >= '0' && c <= '7'))
        TPL_UNSUPPORTED(x->r, "the escape '\\%c' in a string is not supported", c);
    *p += known || c == '\n';
    if (digits == 0)
        return c != '\n'; /* an unknown escape stays as it is */
    memcpy(hex, x->s + *p + 1, digits < x->len - *p - 1 ? digits : x->len - *p - 1);
    unsigned long cp =
        strspn(hex, "0123456789abcdefABCDEF") == digits ? strtoul(hex, NULL, 16) : UINT32_MAX;
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000)) {
        TPL_ERROR(x->r, "an escape in a string is not a character");
        return 0;
    }
    *p += 1 + digits;
    return vptq_utf8_encode((uint32_t)cp, out);
}

static void lex_string(lexer *x)
{
    size_t from = x->pos + 1, end = from, n = 0;
    while (end < x->len && x->s[end] != x->s[x->pos])
        end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->len) {
        TPL_ERROR(x->r, "a string has no end");
        return;
    }
    /* an escape is never shorter than its character */
    char *out = vptq_tpl_alloc(x->r, end - from + 4, 1);
    for (size_t p = from; p < end && !x->r->status;) {
        if (x->s[p++] != '\\')
            out[n++] = x->s[p - 1];
        else
            n += unescape(x, &p, out + n);
    }
    add(x, TPL_T_STRING, TPL_TEXT(out, n));
    advance(x, end + 1);
}

/* `open`: the closing characters of the open brackets. */
static void lex_operator(lexer *x, char *open, size_t *depth)
{
    static const char pairs[][3] = {"==", "!=", ">=", "<=", "//", "**"};
    char c = x->s[x->pos];
    for (int i = 0; i < 6; i++)
        if (starts_with(x, x->pos, pairs[i])) {
            add(x, TPL_T_EQ + i, TPL_TEXT(x->s + x->pos, 2));
            x->pos += 2;
            return;
        }
    const char *bracket = c ? strchr("([{)]}", c) : NULL;
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c))
        TPL_ERROR(x->r, "unexpected character 0x%02x", (unsigned)(unsigned char)c);
    else if (bracket && strchr("([{", c) && *depth == TPL_MAX_NESTING)
        TPL_ERROR(x->r, "brackets are nested more than %d levels deep", TPL_MAX_NESTING);
    else if (bracket && strchr("([{", c))
        open[(*depth)++] = bracket[3];
    else if (bracket && (*depth == 0 || open[--*depth] != c))
        TPL_ERROR(x->r, "unexpected '%c'", c);
    add(x, c, TPL_TEXT(x->s + x->pos, 1));
    x->pos++;
}

/* The inside of "{{ }}" (print) or "{% %}". */
static void lex_tag(lexer *x, bool print)
{
    char open[TPL_MAX_NESTING];
    size_t depth = 0;
    add(x, print ? TPL_T_PRINT_BEGIN : TPL_T_TAG_BEGIN, TPL_TEXT(x->s + x->pos, 2));
    advance(x, x->pos + 2 + (sign_of(x, x->pos) != 0));
    while (x->pos < x->len && !x->r->status) {
        size_t end = depth ? 0 : tag_end(x, x->pos, print ? "}}" : "%}", !print);
        size_t from = x->pos, after = skip_space(x, from);
        char c = x->s[from];
        if (end) {
            add(x, print ? TPL_T_PRINT_END : TPL_T_TAG_END, TPL_TEXT(print ? "}}" : "%}", 2));
            advance(x, from + end);
            return;
        }
        if (after > from) {
            advance(x, after);
        } else if (c >= '0' && c <= '9') {
            lex_number(x);
        } else if (is_name(c)) {
            while (x->pos < x->len && is_name(x->s[x->pos]))
                x->pos++;
            add(x, TPL_T_NAME, TPL_TEXT(x->s + from, x->pos - from));
        } else if (c == '\'' || c == '"') {
            lex_string(x);
        } else {
            lex_operator(x, open, &depth);
        }
    }
    TPL_ERROR(x->r, print ? "'{{' has no '}}'" : "'{%%' has no '%%}'");
}

tpl_token *vptq_tpl_lex(tpl_run *r, const char *text, size_t len)
{
    lexer x = {.r = r, .line_starts = true};
    char *s = vptq_tpl_alloc(r, len + 1, 1);
    for (size_t i = 0; s && i < len; i++)
        if (text[i] != '\r' || i + 1 == len || text[i + 1] != '\n')
            s[x.len++] = text[i] == '\r' ? '\n' : text[i];
    x.len -= x.len > 0 && s[x.len - 1] == '\n';
    x.s = s;
    while (x.pos < x.len && !r->status) {
        size_t at = x.pos;
        while (at < x.len && !starts_with(&x, at, "{{") && !starts_with(&x, at, "{%") &&
               !starts_with(&x, at, "{#"))
            at++;
        bool print = starts_with(&x, at, "{{"), comment = starts_with(&x, at, "{#");
        size_t raw = raw_tag(&x, at, "raw");
        add_text(&x, at, at < x.len ? sign_of(&x, at) : '+', !print);
        if (raw)
            advance(&x, at + raw);
        if (raw || comment)
            lex_verbatim(&x, !comment);
        else if (at < x.len)
            lex_tag(&x, print);
    }
    add(&x, TPL_T_END, TPL_NULL);
    return x.tokens;
}
