/* Tokens of a template: jinja2's lexer with trim_blocks and lstrip_blocks. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/chat/internal.h"

typedef struct lexer {
    vptq_template *t;
    const char *s;
    size_t n, pos;
    uint32_t line;
    bool line_starting; /* the last tag ended with a newline */
    tpl_token *tokens;
    size_t count, cap;
    vptq_err *err;
} lexer;

static vptq_status fail(const lexer *x, const char *what)
{
    return vptq_fail(x->err, VPTQ_E_FORMAT, "%s: line %u: %s", x->t->name, x->line, what);
}

static vptq_status add(lexer *x, tpl_token token)
{
    if (x->count == x->cap) {
        size_t cap = x->cap ? 2 * x->cap : 256;
        tpl_token *more = vptq_arena_alloc(&x->t->arena, cap, sizeof *more, x->err);
        if (!more)
            return VPTQ_E_NOMEM;
        if (x->count > 0)
            memcpy(more, x->tokens, x->count * sizeof *more);
        x->tokens = more;
        x->cap = cap;
    }
    token.line = x->line;
    x->tokens[x->count++] = token;
    return VPTQ_OK;
}

static void count_lines(lexer *x, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        x->line += x->s[i] == '\n';
}

static size_t skip_space(const lexer *x, size_t at)
{
    size_t bytes;
    while (at < x->n && vptq_tpl_space(vptq_tpl_char(x->s + at, x->n - at, &bytes)))
        at += bytes;
    return at;
}

/* Where the white space at the end of s[from, to) begins. */
static size_t without_end_space(const lexer *x, size_t from, size_t to)
{
    tpl_value text = vptq_tpl_str(x->s + from, to - from);
    return from + vptq_tpl_strip(&text, NULL, false, true).len;
}

/* Text in front of a tag whose white space control is `sign`. */
static vptq_status add_data(lexer *x, size_t from, size_t to, char sign, bool variable)
{
    size_t end = to;
    if (sign == '-') {
        end = without_end_space(x, from, to);
    } else if (sign != '+' && !variable) {
        size_t line = to;
        while (line > from && x->s[line - 1] != '\n')
            line--;
        bool at_start = line > from || x->line_starting;
        /* of nothing there is nothing to take away */
        if (at_start && without_end_space(x, line, to) == line)
            end = line;
    }
    vptq_status st = VPTQ_OK;
    if (end > from)
        st = add(x, (tpl_token){.kind = TPL_T_DATA,
                                .len = (uint32_t)(end - from),
                                .u.text = x->s + from});
    count_lines(x, from, to);
    return st;
}

/* Length of the end of a tag ("%}", "+%}", "-%}" with the space behind it) at `at`, 0 for none;
 * `trim`: a newline behind it belongs to it. */
static size_t tag_end(const lexer *x, size_t at, const char *end, bool plus, bool trim)
{
    size_t p = at;
    char sign = 0;
    if (p < x->n && (x->s[p] == '-' || (plus && x->s[p] == '+')))
        sign = x->s[p++];
    if (x->n - p < 2 || memcmp(x->s + p, end, 2) != 0)
        return 0;
    p += 2;
    if (sign == '-')
        p = skip_space(x, p);
    else if (!sign && trim && p < x->n && x->s[p] == '\n')
        p++;
    return p - at;
}

static void pass(lexer *x, size_t to)
{
    count_lines(x, x->pos, to);
    x->line_starting = to > x->pos && x->s[to - 1] == '\n';
    x->pos = to;
}

static vptq_status lex_comment(lexer *x)
{
    for (size_t at = x->pos; at < x->n; at++) {
        size_t len = tag_end(x, at, "#}", true, true);
        if (len) {
            pass(x, at + len);
            return VPTQ_OK;
        }
    }
    return fail(x, "a comment has no end");
}

/* Length of "{%- raw -%}" at `at` (word: "raw" or "endraw"), 0 for none; *sign: the control at
 * its begin. */
static size_t raw_tag(const lexer *x, size_t at, const char *word, char *sign)
{
    size_t p = at + 2, len = strlen(word);
    if (x->n - at < 2 || memcmp(x->s + at, "{%", 2) != 0)
        return 0;
    *sign = p < x->n && (x->s[p] == '-' || x->s[p] == '+') ? x->s[p++] : 0;
    p = skip_space(x, p);
    if (x->n - p < len || memcmp(x->s + p, word, len) != 0)
        return 0;
    p = skip_space(x, p + len);
    bool is_end = word[0] == 'e';
    size_t end = tag_end(x, p, "%}", is_end, is_end);
    return end ? p + end - at : 0;
}

static vptq_status lex_raw(lexer *x)
{
    for (size_t at = x->pos; at < x->n; at++) {
        char sign;
        size_t len = raw_tag(x, at, "endraw", &sign);
        if (!len)
            continue;
        TPL_TRY(add_data(x, x->pos, at, sign, false));
        x->pos = at;
        pass(x, at + len);
        return VPTQ_OK;
    }
    return fail(x, "{% raw %} has no {% endraw %}");
}

/* ---- inside of a tag ---- */

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (c >= '0' && c <= '9');
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int digit(char c)
{
    return is_digit(c)            ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : 99;
}

/* Behind a run of digits that may have single underscores inside. */
static size_t digits_end(const lexer *x, size_t p, int base)
{
    while (p < x->n && (digit(x->s[p]) < base ||
                        (x->s[p] == '_' && p + 1 < x->n && digit(x->s[p + 1]) < base)))
        p++;
    return p;
}

static vptq_status lex_int(lexer *x)
{
    size_t from = x->pos, p = from;
    int base = 10;
    char mark = p + 1 < x->n && x->s[p] == '0' ? (char)(x->s[p + 1] | 0x20) : 0;
    if (mark == 'b' || mark == 'o' || mark == 'x') {
        base = mark == 'b' ? 2 : mark == 'o' ? 8 : 16;
        if (digits_end(x, p + 2, base) == p + 2)
            base = 10;
        else
            from = p = p + 2;
    }
    p = digits_end(x, p, base);
    int64_t v = 0;
    for (size_t i = from; i < p; i++) {
        if (x->s[i] != '_' && (__builtin_mul_overflow(v, (int64_t)base, &v) ||
                               __builtin_add_overflow(v, (int64_t)digit(x->s[i]), &v)))
            return fail(x, "a number is over 64 bits");
    }
    if (base == 10 && v != 0 && x->s[from] == '0')
        return fail(x, "a decimal number begins with 0");
    x->pos = p;
    return add(x, (tpl_token){.kind = TPL_T_INT, .u.i = v});
}

/* Behind a float at the position, or the position itself where there is none. */
static size_t float_end(const lexer *x)
{
    size_t p = digits_end(x, x->pos, 10);
    bool is_float = false;
    if (x->pos > 0 && x->s[x->pos - 1] == '.')
        return x->pos;
    if (p + 1 < x->n && x->s[p] == '.' && is_digit(x->s[p + 1])) {
        p = digits_end(x, p + 1, 10);
        is_float = true;
    }
    if (p < x->n && (x->s[p] | 0x20) == 'e') {
        size_t e = p + 1;
        if (e < x->n && (x->s[e] == '+' || x->s[e] == '-'))
            e++;
        if (e < x->n && is_digit(x->s[e])) {
            p = digits_end(x, e, 10);
            is_float = true;
        }
    }
    return is_float ? p : x->pos;
}

static vptq_status lex_number(lexer *x)
{
    char text[64];
    size_t end = float_end(x), n = 0;
    if (end == x->pos)
        return lex_int(x);
    for (size_t i = x->pos; i < end; i++) {
        if (x->s[i] == '_')
            continue;
        if (n + 1 == sizeof text)
            return fail(x, "a number has too many digits");
        text[n++] = x->s[i];
    }
    text[n] = 0;
    x->pos = end;
    return add(x, (tpl_token){.kind = TPL_T_FLOAT, .u.f = strtod(text, NULL)});
}

/* The value of n hexadecimal digits at p, -1 when they are not there. */
static int64_t hex_at(const lexer *x, size_t p, size_t end, size_t n)
{
    int64_t v = 0;
    if (end - p < n)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (digit(x->s[p + i]) > 15)
            return -1;
        v = v * 16 + digit(x->s[p + i]);
    }
    return v;
}

/* The escape behind a backslash at *p (its character) into out; Python leaves an unknown one as
 * it stands. */
static vptq_status unescape(lexer *x, size_t *p, size_t end, char *out, size_t *n)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = x->s[*p];
    const char *known = c ? strchr(from, c) : NULL;
    if (known) {
        out[(*n)++] = to[known - from];
        ++*p;
        return VPTQ_OK;
    }
    if (c == '\n') {
        ++*p;
        return VPTQ_OK;
    }
    int64_t v = -1;
    if (c == 'x' || c == 'u' || c == 'U') {
        size_t len = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        v = hex_at(x, *p + 1, end, len);
        *p += 1 + len;
    } else if (c >= '0' && c <= '7') {
        v = 0;
        for (int i = 0; i < 3 && *p < end && x->s[*p] >= '0' && x->s[*p] <= '7'; i++, ++*p)
            v = v * 8 + (x->s[*p] - '0');
    } else if (c == 'N') {
        return fail(x, "characters by name, '\\N{...}', are not supported");
    } else {
        out[(*n)++] = '\\';
        return VPTQ_OK;
    }
    if (v < 0 || v > 0x10FFFF || (v >= 0xD800 && v < 0xE000))
        return fail(x, "a string has an escape that is no character");
    *n += vptq_utf8_encode((uint32_t)v, out + *n);
    return VPTQ_OK;
}

static vptq_status lex_string(lexer *x)
{
    char quote = x->s[x->pos];
    size_t from = x->pos + 1, end = from, n = 0;
    while (end < x->n && x->s[end] != quote)
        end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->n)
        return fail(x, "a string has no end");
    /* no escape is longer than what it stands for */
    char *out = vptq_arena_alloc(&x->t->arena, end - from + 1, 1, x->err);
    if (!out)
        return VPTQ_E_NOMEM;
    for (size_t p = from; p < end;) {
        if (x->s[p] != '\\') {
            out[n++] = x->s[p++];
            continue;
        }
        p++;
        TPL_TRY(unescape(x, &p, end, out, &n));
    }
    TPL_TRY(add(x, (tpl_token){.kind = TPL_T_STRING, .len = (uint32_t)n, .u.text = out}));
    count_lines(x, x->pos, end);
    x->pos = end + 1;
    return VPTQ_OK;
}

static int operator_at(const lexer *x, size_t *len)
{
    static const char twos[][3] = {"==", "!=", ">=", "<=", "//", "**"};
    if (x->n - x->pos >= 2)
        for (int i = 0; i < 6; i++)
            if (memcmp(x->s + x->pos, twos[i], 2) == 0) {
                *len = 2;
                return TPL_OP_EQ + i;
            }
    *len = 1;
    char c = x->s[x->pos];
    return c && strchr("+-/*%~[](){}><=.:|,;", c) ? c : 0;
}

/* `open`: the brackets that are open, the last one's closing character at open[*depth - 1]. */
static vptq_status lex_operator(lexer *x, char *open, size_t *depth)
{
    size_t len;
    int op = operator_at(x, &len);
    if (!op)
        return vptq_fail(x->err, VPTQ_E_FORMAT, "%s: line %u: unexpected character 0x%02x",
                         x->t->name, x->line, (unsigned)(unsigned char)x->s[x->pos]);
    if (op == '(' || op == '[' || op == '{') {
        if (*depth == TPL_MAX_NESTING)
            return fail(x, "brackets are nested too deeply");
        open[(*depth)++] = op == '(' ? ')' : op == '[' ? ']' : '}';
    } else if (op == ')' || op == ']' || op == '}') {
        if (*depth == 0 || open[*depth - 1] != op)
            return vptq_fail(x->err, VPTQ_E_FORMAT, "%s: line %u: unexpected '%c'", x->t->name,
                             x->line, op);
        --*depth;
    }
    x->pos += len;
    return add(x, (tpl_token){.kind = TPL_T_OP, .op = (uint8_t)op});
}

static vptq_status lex_tag(lexer *x, bool variable)
{
    char open[TPL_MAX_NESTING];
    size_t depth = 0;
    TPL_TRY(add(x, (tpl_token){.kind = variable ? TPL_T_VAR_BEGIN : TPL_T_BLOCK_BEGIN}));
    while (x->pos < x->n) {
        size_t end = depth      ? 0
                     : variable ? tag_end(x, x->pos, "}}", false, false)
                                : tag_end(x, x->pos, "%}", true, true);
        if (end) {
            TPL_TRY(add(x, (tpl_token){.kind = variable ? TPL_T_VAR_END : TPL_T_BLOCK_END}));
            pass(x, x->pos + end);
            return VPTQ_OK;
        }
        size_t after = skip_space(x, x->pos);
        char c = x->s[x->pos];
        if (after > x->pos) {
            pass(x, after);
        } else if (is_digit(c)) {
            TPL_TRY(lex_number(x));
        } else if (is_name(c)) {
            size_t from = x->pos;
            while (x->pos < x->n && is_name(x->s[x->pos]))
                x->pos++;
            TPL_TRY(add(x, (tpl_token){.kind = TPL_T_NAME,
                                       .len = (uint32_t)(x->pos - from),
                                       .u.text = x->s + from}));
        } else if (c == '\'' || c == '"') {
            TPL_TRY(lex_string(x));
        } else {
            TPL_TRY(lex_operator(x, open, &depth));
        }
    }
    return fail(x, variable ? "'{{' has no '}}'" : "'{%' has no '%}'");
}

/* ---- outside of tags ---- */

static vptq_status lex_root(lexer *x)
{
    while (x->pos < x->n) {
        size_t at = x->pos;
        while (at + 1 < x->n &&
               !(x->s[at] == '{' && x->s[at + 1] && strchr("{%#", x->s[at + 1])))
            at++;
        if (at + 1 >= x->n) {
            TPL_TRY(add_data(x, x->pos, x->n, '+', false));
            break;
        }
        char sign, what = x->s[at + 1];
        size_t raw = raw_tag(x, at, "raw", &sign);
        if (!raw)
            sign = at + 2 < x->n && (x->s[at + 2] == '-' || x->s[at + 2] == '+') ? x->s[at + 2]
                                                                                 : 0;
        TPL_TRY(add_data(x, x->pos, at, sign, what == '{'));
        x->pos = at;
        if (raw) {
            pass(x, at + raw);
            TPL_TRY(lex_raw(x));
            continue;
        }
        pass(x, at + 2 + (sign != 0));
        if (what == '#')
            TPL_TRY(lex_comment(x));
        else
            TPL_TRY(lex_tag(x, what == '{'));
    }
    return add(x, (tpl_token){.kind = TPL_T_EOF});
}

vptq_status vptq_tpl_lex(vptq_template *t, const char *text, size_t len, tpl_token **tokens,
                         vptq_err *err)
{
    lexer x = {.t = t, .line = 1, .line_starting = true, .err = err};
    char *s = vptq_arena_alloc(&t->arena, len + 1, 1, err);
    size_t n = 0;
    if (!s)
        return VPTQ_E_NOMEM;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\r' && i + 1 < len && text[i + 1] == '\n')
            continue;
        s[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (n > 0 && s[n - 1] == '\n')
        n--;
    x.s = s;
    x.n = n;
    vptq_status st = lex_root(&x);
    *tokens = x.tokens;
    return st;
}
