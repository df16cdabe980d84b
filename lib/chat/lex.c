/* Splits a template into tokens, as jinja2's lexer does with trim_blocks and lstrip_blocks. */
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
    tpl_value rest = TPL_TEXT(x->s + at, x->len - at);
    return x->len - vptq_tpl_strip(rest, TPL_NULL, true, false).len;
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

static void skip_comment(lexer *x)
{
    for (size_t at = x->pos + 2; at < x->len; at++) {
        size_t len = tag_end(x, at, "#}", true);
        if (len) {
            advance(x, at + len);
            return;
        }
    }
    TPL_ERROR(x->r, "a comment has no end");
}

/* ---- in a tag ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c);
}

static void lex_number(lexer *x)
{
    int64_t v = 0;
    bool index = x->pos > 0 && x->s[x->pos - 1] == '.'; /* as in x.0.y */
    for (; x->pos < x->len && is_digit(x->s[x->pos]); x->pos++)
        if (__builtin_mul_overflow(v, (int64_t)10, &v) ||
            __builtin_add_overflow(v, (int64_t)(x->s[x->pos] - '0'), &v))
            TPL_ERROR(x->r, "a number exceeds 64 bits");
    size_t dot = x->pos;
    if (dot < x->len && (is_name(x->s[dot]) || (!index && x->s[dot] == '.' &&
                                                dot + 1 < x->len && is_digit(x->s[dot + 1]))))
        TPL_UNSUPPORTED(x->r, "a number that is not a decimal integer is not supported");
    add(x, TPL_T_NUMBER, TPL_INTEGER(v));
}

static void lex_string(lexer *x)
{
    static const char escapes[] = "\\'\"nrt", meanings[] = "\\'\"\n\r\t";
    size_t from = x->pos + 1, end = from, n = 0;
    while (end < x->len && x->s[end] != x->s[x->pos])
        end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->len) {
        TPL_ERROR(x->r, "a string has no end");
        return;
    }
    char *out = vptq_tpl_alloc(x->r, end - from, 1);
    for (size_t p = from; p < end && out; p++) {
        const char *known = NULL;
        if (x->s[p] == '\\' && (!x->s[++p] || !(known = strchr(escapes, x->s[p]))))
            TPL_UNSUPPORTED(x->r, "the escape '\\%.*s' in a string is not supported",
                            (int)vptq_tpl_char(x->s + p, x->len - p, &(uint32_t){0}), x->s + p);
        out[n++] = known ? meanings[known - escapes] : x->s[p];
    }
    add(x, TPL_T_STRING, TPL_TEXT(out, n));
    advance(x, end + 1);
}

/* `open`: the closing characters of the open brackets. */
static void lex_operator(lexer *x, char *open, size_t *depth)
{
    static const char *const pairs[] = {"==", "!=", ">=", "<="};
    char c = x->s[x->pos];
    for (int i = 0; i < 4; i++)
        if (starts_with(x, x->pos, pairs[i])) {
            add(x, TPL_T_EQ + i, TPL_TEXT(x->s + x->pos, 2));
            x->pos += 2;
            return;
        }
    if (c == '*' || c == '/')
        TPL_UNSUPPORTED(x->r, "'%c' is not supported", c);
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

static void lex_name(lexer *x)
{
    static const char *const operators[] = {"in", "and", "or"};
    size_t from = x->pos;
    int kind = TPL_T_NAME;
    while (x->pos < x->len && is_name(x->s[x->pos]))
        x->pos++;
    tpl_value name = TPL_TEXT(x->s + from, x->pos - from);
    for (int i = 0; i < 3; i++)
        kind = tpl_is(name, operators[i]) ? TPL_T_IN + i : kind;
    add(x, kind, name);
}

/* The inside of "{{ }}" (print) or "{% %}". */
static void lex_tag(lexer *x, bool print)
{
    const char *close = print ? "}}" : "%}";
    char open[TPL_MAX_NESTING];
    size_t depth = 0;
    add(x, print ? TPL_T_PRINT : TPL_T_TAG, TPL_TEXT(x->s + x->pos, 2));
    advance(x, x->pos + 2 + (sign_of(x, x->pos) != 0));
    while (x->pos < x->len && !x->r->status) {
        size_t end = depth ? 0 : tag_end(x, x->pos, close, !print);
        size_t from = x->pos, after = skip_space(x, from);
        char c = x->s[from];
        if (end) {
            add(x, TPL_T_CLOSE, TPL_TEXT(close, 2));
            advance(x, from + end);
            return;
        }
        if (after > from) {
            advance(x, after);
        } else if (is_digit(c)) {
            lex_number(x);
        } else if (is_name(c)) {
            lex_name(x);
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
        add_text(&x, at, at < x.len ? sign_of(&x, at) : '+', !print);
        if (comment)
            skip_comment(&x);
        else if (at < x.len)
            lex_tag(&x, print);
    }
    add(&x, TPL_T_END, TPL_NULL);
    return x.tokens;
}
