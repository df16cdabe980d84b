/* Splits a template into tokens, as jinja2's lexer does with trim_blocks and lstrip_blocks. */
#include "lib/chat/internal.h"

/* ---- outside of tags ---- */

static void advance(tpl_parser *p, size_t to)
{
    for (; p->pos < to; p->pos++) {
        p->line_starts = p->s[p->pos] == '\n';
        p->line += p->line_starts;
    }
}

/* Makes the text up to `end` the current token. */
static void set_token(tpl_parser *p, tpl_token kind, size_t end)
{
    p->kind = kind;
    p->value = TPL_TEXT(p->s + p->pos, end - p->pos);
    advance(p, end);
}

static bool starts_with(const tpl_parser *p, size_t at, const char *word)
{
    return strncmp(p->s + at, word, strlen(word)) == 0;
}

size_t vptq_tpl_skip_space(const tpl_parser *p, size_t at)
{
    tpl_value rest = TPL_TEXT(p->s + at, p->len - at);
    return p->len - vptq_tpl_strip(p->r, rest, TPL_NULL, true, false).len;
}

/* Length of the end of a tag at `at` ("%}", "-%}" with the space after it, and with `trim`
 * "+%}", or "%}" with a newline after it), 0 if there is none. */
static size_t tag_end(const tpl_parser *p, size_t at, const char *end, bool trim)
{
    char sign = p->s[at];
    bool minus = sign == '-', plus = trim && sign == '+';
    size_t after = at + (minus || plus) + 2;
    if (!starts_with(p, after - 2, end))
        return 0;
    if (minus)
        after = vptq_tpl_skip_space(p, after);
    else if (!plus && trim && p->s[after] == '\n')
        after++;
    return after - at;
}

/* Takes the text up to `to`, where a tag with the whitespace control `sign` begins; `lstrip`:
 * without the spaces before a tag that is the first on its line. */
static void read_text(tpl_parser *p, size_t to, char sign, bool lstrip)
{
    tpl_value text = TPL_TEXT(p->s + p->pos, to - p->pos);
    size_t end = p->pos + vptq_tpl_strip(p->r, text, TPL_NULL, false, true).len, line = to;
    while (line > p->pos && p->s[line - 1] != '\n')
        line--;
    bool only_space = end <= line && (line > p->pos || p->line_starts);
    if (sign != '-')
        end = lstrip && sign != '+' && only_space ? line : to;
    set_token(p, T_TEXT, end > p->pos ? end : p->pos);
    advance(p, to);
}

static void skip_comment(tpl_parser *p)
{
    size_t at = p->pos + 2, len = 0;
    while (at < p->len && (len = tag_end(p, at, "#}", true)) == 0)
        at++;
    if (len == 0)
        TPL_ERROR(p->r, "a comment has no end");
    advance(p, at + len);
}

/* Outside of tags: T_TEXT, T_OPEN or T_END. */
static void next_outside(tpl_parser *p)
{
    for (char tag = '#'; tag == '#' && !p->r->status;) {
        size_t at = p->pos;
        p->r->line = p->line;
        while (at < p->len && !starts_with(p, at, "{{") && !starts_with(p, at, "{%") &&
               !starts_with(p, at, "{#"))
            at++;
        tag = at < p->len ? p->s[at + 1] : 0;
        char sign = tag ? p->s[at + 2] : '+';
        read_text(p, at, sign, tag != '{');
        if (p->value.len > 0)
            return;
        p->kind = T_END;
        p->r->line = p->line;
        if (tag == '#') {
            skip_comment(p);
        } else if (tag) {
            set_token(p, T_OPEN, at + 2 + (sign == '-' || sign == '+'));
            p->tag = tag;
        }
    }
}

/* ---- tokens in a tag ---- */

static const char digits[] = "0123456789";

static size_t name_length(const char *s)
{
    return strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
}

static void read_number(tpl_parser *p)
{
    set_token(p, T_NUMBER, p->pos + strspn(p->s + p->pos, digits));
    const char *after = p->s + p->pos;
    if (name_length(after) > 0 || (*after == '.' && strspn(after + 1, digits) > 0))
        TPL_UNSUPPORTED(p->r, "a number that is not a decimal integer is not supported");
}

static void read_string(tpl_parser *p)
{
    static const char escapes[] = "\\'\"nrt", meanings[] = "\\'\"\n\r\t";
    size_t from = p->pos + 1, end = from, n = 0;
    while (end < p->len && p->s[end] != p->s[p->pos])
        end += p->s[end] == '\\' ? 2 : 1;
    if (end >= p->len) {
        TPL_ERROR(p->r, "a string has no end");
        return;
    }
    char *out = vptq_tpl_alloc(p->r, end - from, 1);
    for (size_t at = from; at < end && out; at++) {
        const char *known = NULL;
        if (p->s[at] == '\\' && (!p->s[++at] || !(known = strchr(escapes, p->s[at]))))
            TPL_UNSUPPORTED(p->r, "the escape '\\%.*s' in a string is not supported",
                            (int)vptq_tpl_char(p->s + at, p->len - at, &(uint32_t){0}),
                            p->s + at);
        out[n++] = known ? meanings[known - escapes] : p->s[at];
    }
    set_token(p, T_STRING, end + 1);
    p->value = TPL_TEXT(out, n);
}

static void read_operator(tpl_parser *p)
{
    const char *s = p->s + p->pos;
    bool two = *s && strchr("=!<>", *s) && s[1] == '=';
    if (*s == '/')
        TPL_UNSUPPORTED(p->r, "'/' is not supported");
    else if (!two && (!*s || !strchr("+-*%~[](){}><=.:|,;", *s)))
        TPL_ERROR(p->r, "unexpected character 0x%02x", (unsigned)(unsigned char)*s);
    else if (strchr("([{", *s))
        p->brackets++;
    else if (p->brackets > 0 && strchr(")]}", *s))
        p->brackets--;
    set_token(p, T_OPERATOR, p->pos + 1 + two);
}

static void next_in_tag(tpl_parser *p)
{
    advance(p, vptq_tpl_skip_space(p, p->pos));
    p->r->line = p->line;
    const char *close = p->tag == '{' ? "}}" : "%}", *s = p->s + p->pos;
    size_t end = p->brackets ? 0 : tag_end(p, p->pos, close, p->tag == '%');
    if (end) {
        set_token(p, T_CLOSE, p->pos + end);
        p->value = TPL_TEXT(close, 2);
        p->tag = 0;
    } else if (p->pos == p->len) {
        TPL_ERROR(p->r, p->tag == '{' ? "'{{' has no '}}'" : "'{%%' has no '%%}'");
    } else if (strspn(s, digits) > 0) {
        read_number(p);
    } else if (name_length(s) > 0) {
        set_token(p, T_NAME, p->pos + name_length(s));
        if (tpl_is(p->value, "in") || tpl_is(p->value, "and") || tpl_is(p->value, "or"))
            p->kind = T_OPERATOR;
    } else if (*s == '\'' || *s == '"') {
        read_string(p);
    } else {
        read_operator(p);
    }
}

void vptq_tpl_next(tpl_parser *p)
{
    if (p->tag)
        next_in_tag(p);
    else
        next_outside(p);
}

void vptq_tpl_lex(tpl_parser *p, const char *text, size_t len)
{
    char *s = vptq_tpl_alloc(p->r, len + 1, 1);
    if (!s)
        return;
    for (size_t i = 0; i < len; i++)
        if (text[i] != '\r' || i + 1 == len || text[i + 1] != '\n')
            s[p->len++] = text[i] == '\r' ? '\n' : text[i];
    p->len -= p->len > 0 && s[p->len - 1] == '\n';
    s[p->len] = 0;
    p->s = s;
    p->line = 1;
    p->line_starts = true;
    vptq_tpl_next(p);
}
