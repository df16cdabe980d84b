/* Parses a template into a tree: recursive descent, by precedence. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/chat/internal.h"

typedef tpl_node *(*parse_fn)(tpl_parser *p);

/* ---- the current token ---- */

static bool is_kind(const tpl_parser *p, tpl_token kind)
{
    return kind == (p->r->status ? T_END : p->kind);
}

/* Whether the token is this name or operator. */
static bool is(const tpl_parser *p, const char *text)
{
    return (is_kind(p, T_NAME) || is_kind(p, T_OPERATOR)) && tpl_is(p->value, text);
}

static bool take(tpl_parser *p, const char *text)
{
    bool found = is(p, text);
    if (found)
        vptq_tpl_next(p);
    return found;
}

/* Fails at the current token. */
static void unexpected(tpl_parser *p, const char *expected)
{
    if (is_kind(p, T_END))
        TPL_ERROR(p->r, "found the end of the template, expected %s", expected);
    else
        TPL_ERROR(p->r, "found '%.*s', expected %s", TPL_NAME(p->value), expected);
}

static void expect(tpl_parser *p, const char *text)
{
    char quoted[32];
    (void)snprintf(quoted, sizeof quoted, "'%s'", text);
    if (!take(p, text))
        unexpected(p, quoted);
}

static void expect_close(tpl_parser *p)
{
    if (is_kind(p, T_CLOSE))
        vptq_tpl_next(p);
    else
        unexpected(p, "the end of the tag");
}

/* ---- nodes ---- */

/* p->r->depth-- leaves. */
static void enter(tpl_parser *p)
{
    (void)vptq_tpl_enter(p->r, TPL_MAX_NESTING);
}

/* A node at the current line, over `left` (may be NULL).  Never NULL. */
static tpl_node *new_node(tpl_parser *p, tpl_node_kind kind, int op, tpl_node *left)
{
    tpl_node *n = vptq_tpl_alloc(p->r, 1, sizeof *n);
    if (!n)
        n = &p->failed;
    *n = (tpl_node){.kind = (uint8_t)kind, .op = (uint8_t)op, .line = p->r->line, .left = left};
    return n;
}

static tpl_node *new_constant(tpl_parser *p, tpl_value value)
{
    tpl_node *n = new_node(p, TPL_N_CONSTANT, 0, NULL);
    n->value = value;
    return n;
}

static tpl_node *negate(tpl_parser *p, bool negated, tpl_node *n)
{
    return negated ? new_node(p, TPL_N_NOT, 0, n) : n;
}

/* A node with the name at the current token, which is consumed. */
static tpl_node *new_named(tpl_parser *p, tpl_node_kind kind, int op, tpl_node *left)
{
    tpl_node *n = new_node(p, kind, op, left);
    n->value = p->value;
    if (is_kind(p, T_NAME) || (kind == TPL_N_APPLY && is(p, "in")))
        vptq_tpl_next(p);
    else
        unexpected(p, "a name");
    return n;
}

/* Items with commas up to `close`, which is consumed; the last may have a comma, too. */
static tpl_node *parse_items(tpl_parser *p, const char *close, parse_fn item, tpl_node *n)
{
    for (tpl_node **end = &n->items; !is(p, close) && !is_kind(p, T_END);) {
        if (n->count > 0)
            expect(p, ",");
        if (n->count > 0 && is(p, close))
            break;
        *end = item(p);
        for (; *end && !p->r->status; end = &(*end)->next)
            n->count++;
    }
    expect(p, close);
    return n;
}

static tpl_node *parse_expression(tpl_parser *p);

/* One item, or several with commas as a tuple. */
static tpl_node *parse_tuple(tpl_parser *p, parse_fn item)
{
    tpl_node *first = item(p), *last = first;
    if (!is(p, ","))
        return first;
    tpl_node *n = new_node(p, TPL_N_LIST, TPL_TUPLE, NULL);
    n->items = first;
    for (n->count = 1; take(p, ","); n->count++) {
        if (is_kind(p, T_CLOSE) || is(p, ")") || is(p, "in"))
            break;
        last->next = item(p);
        last = last->next;
    }
    return n;
}

/* ---- operands ---- */

static tpl_node *parse_name(tpl_parser *p)
{
    static const char *const unsupported[] = {"varargs", "kwargs", "caller", "self", "super"};
    tpl_node *n = new_named(p, TPL_N_NAME, 0, NULL);
    bool yes = tpl_is(n->value, "true") || tpl_is(n->value, "True");
    if (yes || tpl_is(n->value, "false") || tpl_is(n->value, "False"))
        return new_constant(p, TPL_BOOLEAN(yes));
    if (tpl_is(n->value, "none") || tpl_is(n->value, "None"))
        return new_constant(p, TPL_NULL);
    for (int i = 0; i < 5; i++)
        if (tpl_is(n->value, unsupported[i]))
            TPL_UNSUPPORTED(p->r, "variable '%s' is not supported", unsupported[i]);
    return n;
}

static tpl_node *parse_number(tpl_parser *p)
{
    errno = 0;
    tpl_node *n = new_constant(p, TPL_INTEGER(strtoll(p->value.u.s, NULL, 10)));
    if (errno)
        TPL_ERROR(p->r, "a number exceeds 64 bits");
    vptq_tpl_next(p);
    return n;
}

static tpl_node *parse_pair(tpl_parser *p)
{
    tpl_node *key = parse_expression(p);
    expect(p, ":");
    key->next = parse_expression(p);
    return key;
}

static tpl_node *parse_operand(tpl_parser *p)
{
    tpl_node *n = NULL;
    if (is_kind(p, T_NAME)) {
        n = parse_name(p);
    } else if (is_kind(p, T_NUMBER)) {
        n = parse_number(p);
    } else if (is_kind(p, T_STRING)) {
        n = new_constant(p, p->value);
        vptq_tpl_next(p);
    } else if (take(p, "[")) {
        n = parse_items(p, "]", parse_expression, new_node(p, TPL_N_LIST, TPL_LIST, NULL));
    } else if (take(p, "{")) {
        n = parse_items(p, "}", parse_pair, new_node(p, TPL_N_DICT, TPL_LIST, NULL));
    } else if (take(p, "(")) {
        n = is(p, ")") ? new_node(p, TPL_N_LIST, TPL_TUPLE, NULL)
                       : parse_tuple(p, parse_expression);
        expect(p, ")");
    } else {
        if (is(p, "*"))
            TPL_UNSUPPORTED(p->r, "'*' is not supported");
        unexpected(p, "an expression");
        n = new_constant(p, TPL_NULL);
    }
    if (n->kind == TPL_N_CONSTANT && is_kind(p, T_STRING))
        TPL_UNSUPPORTED(p->r, "a string after another value is not supported");
    return n;
}

/* ---- attributes, subscripts, calls, filters, tests ---- */

/* An argument of a call, or a parameter of a macro, which may have a default. */
static tpl_node *parse_argument(tpl_parser *p)
{
    size_t after = is_kind(p, T_NAME) ? vptq_tpl_skip_space(p, p->pos) : p->len;
    if (p->s[after] != '=' || p->s[after + 1] == '=')
        return parse_expression(p);
    tpl_node *n = new_named(p, TPL_N_KEYWORD, 0, NULL);
    expect(p, "=");
    n->left = parse_expression(p);
    return n;
}

/* "(a, b=1)" into the items of n. */
static tpl_node *parse_arguments(tpl_parser *p, tpl_node *n)
{
    bool named = false;
    expect(p, "(");
    parse_items(p, ")", parse_argument, n);
    for (const tpl_node *a = n->items; !p->r->status && a; a = a->next) {
        if (named && a->kind != TPL_N_KEYWORD)
            TPL_ERROR(p->r, "an argument with a name before one without");
        if (n->kind == TPL_N_MACRO && a->kind != TPL_N_NAME && a->kind != TPL_N_KEYWORD)
            TPL_ERROR(p->r, "a parameter of a macro is not a name");
        named = a->kind == TPL_N_KEYWORD;
    }
    return n;
}

/* Between brackets: an index, or the bounds of a slice. */
static tpl_node *parse_subscript(tpl_parser *p, tpl_node *of)
{
    tpl_node *n = new_node(p, TPL_N_BINARY, '[', of), **end = &n->items;
    if (!is(p, ":"))
        n->right = parse_expression(p);
    if (n->right && take(p, "]"))
        return n;
    if (is(p, ","))
        TPL_UNSUPPORTED(p->r, "a subscript with ',' is not supported");
    n->kind = TPL_N_SLICE;
    n->op = TPL_LIST;
    n->count = 3;
    for (int i = 0; i < 3 && !p->r->status; i++) {
        bool given = i > 0 && take(p, ":") && !is(p, ":") && !is(p, "]");
        *end = given                ? parse_expression(p)
               : i == 0 && n->right ? n->right
                                    : new_constant(p, TPL_NULL);
        end = &(*end)->next;
    }
    expect(p, "]");
    return n;
}

static tpl_node *parse_postfix(tpl_parser *p, tpl_node *n)
{
    for (;;) {
        if (take(p, "[")) {
            n = parse_subscript(p, n);
        } else if (is(p, "(")) {
            n = parse_arguments(p, new_node(p, TPL_N_CALL, 0, n));
        } else if (!take(p, ".")) {
            return n;
        } else {
            n = new_named(p, TPL_N_ATTRIBUTE, 0, n);
        }
    }
}

/* A filter, or a test, whose argument may have no parentheses; at its name. */
static tpl_node *parse_apply(tpl_parser *p, int use, tpl_node *of)
{
    tpl_node *n = new_named(p, TPL_N_APPLY, use, of);
    if (is(p, "("))
        return parse_arguments(p, n);
    if (use == TPL_TEST && (is_kind(p, T_STRING) || is_kind(p, T_NUMBER) || is(p, "[") ||
                            is(p, "{") || (is_kind(p, T_NAME) && !is(p, "else")))) {
        n->items = parse_postfix(p, parse_operand(p));
        n->count = 1;
    }
    return n;
}

static tpl_node *parse_unary(tpl_parser *p, bool with_filters)
{
    tpl_node *n;
    enter(p);
    if (is(p, "-") || is(p, "+")) {
        n = new_node(p, TPL_N_BINARY, p->value.u.s[0], new_constant(p, TPL_INTEGER(0)));
        vptq_tpl_next(p);
        n->right = parse_unary(p, false);
    } else {
        n = parse_operand(p);
    }
    n = parse_postfix(p, n);
    while (with_filters) {
        if (take(p, "|")) {
            n = parse_apply(p, TPL_FILTER, n);
        } else if (take(p, "is")) {
            bool negated = take(p, "not");
            n = negate(p, negated, parse_apply(p, TPL_TEST, n));
        } else {
            break;
        }
    }
    p->r->depth--;
    return n;
}

/* ---- operators ---- */

/* From the loosest to the tightest; jinja2 has '~' between sums and products. */
enum { BY_OR, BY_AND, BY_NOT, BY_COMPARISON, BY_SUM, BY_CONCAT, BY_PRODUCT, BY_SIGN };

typedef struct operator_row {
    const char *text;
    uint8_t level, op;
    bool negated;
} operator_row;

static const operator_row operators[] = {
    {"or", BY_OR, '|', false},         {"and", BY_AND, '&', false},
    {"==", BY_COMPARISON, '=', false}, {"!=", BY_COMPARISON, '=', true},
    {">=", BY_COMPARISON, '<', true},  {"<=", BY_COMPARISON, '>', true},
    {"in", BY_COMPARISON, 'i', false}, {"not", BY_COMPARISON, 'i', true}, /* not in */
    {"<", BY_COMPARISON, '<', false},  {">", BY_COMPARISON, '>', false},
    {"+", BY_SUM, '+', false},         {"-", BY_SUM, '-', false},
    {"~", BY_CONCAT, '~', false},      {"*", BY_PRODUCT, '*', false},
    {"%", BY_PRODUCT, '%', false}};

/* Consumes an operator of the level; NULL if there is none. */
static const operator_row *take_operator(tpl_parser *p, int level)
{
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        bool not = is(p, "not");
        if (operators[i].level == level && take(p, operators[i].text)) {
            if (not )
                expect(p, "in");
            return &operators[i];
        }
    }
    return NULL;
}

static tpl_node *parse_operators(tpl_parser *p, int level)
{
    if (level == BY_SIGN)
        return parse_unary(p, true);
    if (level == BY_NOT && take(p, "not")) {
        enter(p);
        tpl_node *operand = parse_operators(p, BY_NOT);
        p->r->depth--;
        return negate(p, true, operand);
    }
    tpl_node *n = parse_operators(p, level + 1);
    const operator_row *row;
    for (int count = 0; (row = take_operator(p, level)) != NULL; count++) {
        if (level == BY_COMPARISON && count > 0)
            TPL_UNSUPPORTED(p->r, "a chain of comparisons is not supported");
        n = new_node(p, TPL_N_BINARY, row->op, n);
        n->right = parse_operators(p, level + 1);
        n = negate(p, row->negated, n);
    }
    return n;
}

static tpl_node *parse_expression(tpl_parser *p)
{
    enter(p);
    tpl_node *n = parse_operators(p, BY_OR);
    if (take(p, "if")) {
        tpl_node *value = n;
        n = new_node(p, TPL_N_IF, 0, NULL);
        n->body = value;
        n->left = parse_operators(p, BY_OR);
        if (take(p, "else"))
            n->other = parse_expression(p);
    }
    p->r->depth--;
    return n;
}

/* ---- statements ---- */

static tpl_node *parse_part(tpl_parser *p);

/* Statements up to a tag with "elif", "else" or "end...", which is the current token then. */
static tpl_node *parse_body(tpl_parser *p)
{
    tpl_node *body = NULL, **last = &body;
    enter(p);
    while (!is_kind(p, T_END) && (*last = parse_part(p)) != NULL && !p->r->status)
        last = &(*last)->next;
    p->r->depth--;
    return body;
}

/* The end of a tag, the statements of n, and of "if" and "for" those after "else", up to the
 * tag `end`. */
static tpl_node *parse_block(tpl_parser *p, tpl_node *n, const char *end)
{
    expect_close(p);
    n->body = parse_body(p);
    if (n->kind == TPL_N_IF && take(p, "elif")) {
        enter(p);
        n->other = parse_block(p, new_node(p, TPL_N_IF, 0, parse_expression(p)), end);
        p->r->depth--;
        return n;
    }
    if ((n->kind == TPL_N_IF || n->kind == TPL_N_FOR) && take(p, "else")) {
        expect_close(p);
        n->other = parse_body(p);
    }
    expect(p, end);
    return n;
}

static tpl_node *parse_target(tpl_parser *p)
{
    if (is(p, "("))
        TPL_UNSUPPORTED(p->r, "names in parentheses are not supported");
    tpl_node *n = parse_name(p);
    if (n->kind != TPL_N_NAME)
        TPL_ERROR(p->r, "a constant cannot be assigned to");
    return take(p, ".") ? new_named(p, TPL_N_ATTRIBUTE, 0, n) : n;
}

static tpl_node *parse_for(tpl_parser *p)
{
    tpl_node *n = new_node(p, TPL_N_FOR, 0, parse_tuple(p, parse_target));
    expect(p, "in");
    n->right = parse_operators(p, BY_OR);
    if (take(p, "if"))
        n->filter = parse_expression(p);
    if (is(p, "recursive"))
        TPL_UNSUPPORTED(p->r, "a recursive loop is not supported");
    return parse_block(p, n, "endfor");
}

static tpl_node *parse_set(tpl_parser *p)
{
    tpl_node *n = new_node(p, TPL_N_SET, 0, parse_tuple(p, parse_target));
    if (is(p, "|"))
        TPL_UNSUPPORTED(p->r, "a filter of a block that is set is not supported");
    if (!take(p, "="))
        return parse_block(p, n, "endset");
    n->right = parse_tuple(p, parse_expression);
    return n;
}

/* A statement, at its name. */
static tpl_node *parse_statement(tpl_parser *p)
{
    if (take(p, "if"))
        return parse_block(p, new_node(p, TPL_N_IF, 0, parse_expression(p)), "endif");
    if (take(p, "for"))
        return parse_for(p);
    if (take(p, "set"))
        return parse_set(p);
    if (take(p, "macro"))
        return parse_block(p, parse_arguments(p, new_named(p, TPL_N_MACRO, 0, NULL)),
                           "endmacro");
    if (take(p, "generation"))
        return parse_block(p, new_node(p, TPL_N_SCOPE, 0, NULL), "endgeneration");
    if (take(p, "break"))
        return new_node(p, TPL_N_JUMP, TPL_FLOW_BREAK, NULL);
    if (take(p, "continue"))
        return new_node(p, TPL_N_JUMP, TPL_FLOW_CONTINUE, NULL);
    if (is_kind(p, T_NAME))
        TPL_UNSUPPORTED(p->r, "statement '%.*s' is not supported", TPL_NAME(p->value));
    else
        unexpected(p, "a statement");
    return NULL;
}

static bool ends_block(const tpl_parser *p)
{
    return is(p, "elif") || is(p, "else") ||
           (is_kind(p, T_NAME) && p->value.len > 3 && memcmp(p->value.u.s, "end", 3) == 0);
}

/* Text, "{{ }}" or "{% %}"; NULL at a tag that ends a block. */
static tpl_node *parse_part(tpl_parser *p)
{
    tpl_node *n;
    if (is_kind(p, T_TEXT)) {
        n = new_node(p, TPL_N_PRINT, 0, new_constant(p, p->value));
        vptq_tpl_next(p);
        return n;
    }
    bool print = p->tag == '{';
    n = print ? new_node(p, TPL_N_PRINT, 0, NULL) : NULL;
    vptq_tpl_next(p);
    if (print)
        n->left = parse_tuple(p, parse_expression);
    else if (ends_block(p))
        return NULL;
    else
        n = parse_statement(p);
    expect_close(p);
    return n;
}

tpl_node *vptq_tpl_parse(tpl_run *r, const char *text, size_t len)
{
    tpl_parser p = {.r = r};
    vptq_tpl_lex(&p, text, len);
    tpl_node *body = parse_body(&p);
    if (!is_kind(&p, T_END))
        TPL_ERROR(r, "unexpected '%.*s'", TPL_NAME(p.value));
    return body;
}
