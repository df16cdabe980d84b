/* Expressions of a template, with jinja2's precedences. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/chat/internal.h"

/* ---- what both parsers use ---- */

vptq_status vptq_tpl_syntax(tpl_parser *p, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return vptq_fail(p->err, VPTQ_E_FORMAT, "%s: line %u: %s", p->t->name, p->token->line,
                     text);
}

void vptq_tpl_token_text(const tpl_token *t, char text[64])
{
    static const char *const twos[] = {"==", "!=", ">=", "<=", "//", "**"};
    switch ((tpl_token_kind)t->kind) {
    case TPL_T_EOF:
        snprintf(text, 64, "the end of the template");
        return;
    case TPL_T_DATA:
    case TPL_T_VAR_BEGIN:
    case TPL_T_BLOCK_BEGIN:
        snprintf(text, 64, "the text behind a tag");
        return;
    case TPL_T_VAR_END:
    case TPL_T_BLOCK_END:
        snprintf(text, 64, "the end of the tag");
        return;
    case TPL_T_NAME:
        snprintf(text, 64, "'%.*s'", t->len < 48 ? (int)t->len : 48, t->u.text);
        return;
    case TPL_T_STRING:
        snprintf(text, 64, "a string");
        return;
    case TPL_T_INT:
    case TPL_T_FLOAT:
        snprintf(text, 64, "a number");
        return;
    case TPL_T_OP:
        if (t->op >= TPL_OP_EQ)
            snprintf(text, 64, "'%s'", twos[t->op - TPL_OP_EQ]);
        else
            snprintf(text, 64, "'%c'", t->op);
        return;
    }
}

static vptq_status unexpected(tpl_parser *p, const char *expected)
{
    char found[64];
    vptq_tpl_token_text(p->token, found);
    return vptq_tpl_syntax(p, "found %s, expected %s", found, expected);
}

bool vptq_tpl_is_op(const tpl_parser *p, int op)
{
    return p->token->kind == TPL_T_OP && p->token->op == op;
}

static bool token_is_name(const tpl_token *t, const char *name)
{
    return t->kind == TPL_T_NAME && t->len == strlen(name) &&
           memcmp(t->u.text, name, t->len) == 0;
}

bool vptq_tpl_is_name(const tpl_parser *p, const char *name)
{
    return token_is_name(p->token, name);
}

bool vptq_tpl_take_op(tpl_parser *p, int op)
{
    bool is = vptq_tpl_is_op(p, op);
    p->token += is;
    return is;
}

bool vptq_tpl_take_name(tpl_parser *p, const char *name)
{
    bool is = vptq_tpl_is_name(p, name);
    p->token += is;
    return is;
}

vptq_status vptq_tpl_expect_op(tpl_parser *p, int op)
{
    char want[8];
    snprintf(want, sizeof want, "'%c'", op);
    return vptq_tpl_take_op(p, op) ? VPTQ_OK : unexpected(p, want);
}

static vptq_status intern(tpl_parser *p, const char *text, uint32_t len, uint32_t *symbol)
{
    vptq_template *t = p->t;
    if (vptq_strmap_get(&t->symbol_ids, text, len, symbol))
        return VPTQ_OK;
    if (t->symbol_count == t->symbol_cap) {
        uint32_t cap = t->symbol_cap ? 2 * t->symbol_cap : 64;
        tpl_symbol *more = vptq_arena_alloc(&t->arena, cap, sizeof *more, p->err);
        if (!more)
            return VPTQ_E_NOMEM;
        if (t->symbol_count > 0)
            memcpy(more, t->symbols, t->symbol_count * sizeof *more);
        t->symbols = more;
        t->symbol_cap = cap;
    }
    bool fresh;
    *symbol = t->symbol_count;
    t->symbols[t->symbol_count++] = (tpl_symbol){text, len};
    return vptq_strmap_add(&t->symbol_ids, text, len, *symbol, &fresh, p->err);
}

vptq_status vptq_tpl_symbol(tpl_parser *p, uint32_t *symbol)
{
    if (p->token->kind != TPL_T_NAME)
        return unexpected(p, "a name");
    TPL_TRY(intern(p, p->token->u.text, p->token->len, symbol));
    p->token++;
    return VPTQ_OK;
}

vptq_status vptq_tpl_node(tpl_parser *p, tpl_node_kind kind, tpl_node **n)
{
    *n = vptq_arena_zalloc(&p->t->arena, 1, sizeof **n, p->err);
    if (!*n)
        return VPTQ_E_NOMEM;
    (*n)->kind = (uint8_t)kind;
    (*n)->line = p->token->line;
    return VPTQ_OK;
}

vptq_status vptq_tpl_enter(tpl_parser *p)
{
    return ++p->depth > TPL_MAX_NESTING ? vptq_tpl_syntax(p, "nested too deeply") : VPTQ_OK;
}

void vptq_tpl_leave(tpl_parser *p)
{
    p->depth--;
}

vptq_status vptq_tpl_push(tpl_parser *p, tpl_nodes *list, tpl_node *n)
{
    if (list->count == list->cap) {
        uint32_t cap = list->cap ? 2 * list->cap : 4;
        tpl_node **more = vptq_arena_alloc(&p->t->arena, cap, sizeof *more, p->err);
        if (!more)
            return VPTQ_E_NOMEM;
        if (list->count > 0)
            memcpy(more, list->items, list->count * sizeof *more);
        list->items = more;
        list->cap = cap;
    }
    list->items[list->count++] = n;
    return VPTQ_OK;
}

static void take_list(tpl_node *n, const tpl_nodes *list)
{
    n->list = list->items;
    n->count = list->count;
}

static vptq_status unary_node(tpl_parser *p, tpl_node_kind kind, tpl_node *a, tpl_node *b,
                              tpl_node **out)
{
    TPL_TRY(vptq_tpl_node(p, kind, out));
    (*out)->line = a ? a->line : (*out)->line;
    (*out)->a = a;
    (*out)->b = b;
    return VPTQ_OK;
}

/* ---- operands ---- */

static vptq_status parse_constant(tpl_parser *p, tpl_value v, tpl_node **out)
{
    TPL_TRY(vptq_tpl_node(p, TPL_N_CONST, out));
    (*out)->value = v;
    p->token++;
    return VPTQ_OK;
}

static vptq_status parse_name(tpl_parser *p, tpl_node **out)
{
    const tpl_token *t = p->token;
    if (token_is_name(t, "true") || token_is_name(t, "True"))
        return parse_constant(p, vptq_tpl_bool(true), out);
    if (token_is_name(t, "false") || token_is_name(t, "False"))
        return parse_constant(p, vptq_tpl_bool(false), out);
    if (token_is_name(t, "none") || token_is_name(t, "None"))
        return parse_constant(p, vptq_tpl_none(), out);
    if (p->macro) {
        p->macro->varargs |= token_is_name(t, "varargs");
        p->macro->kwargs |= token_is_name(t, "kwargs");
        p->macro->caller |= token_is_name(t, "caller");
    }
    TPL_TRY(vptq_tpl_node(p, TPL_N_NAME, out));
    return vptq_tpl_symbol(p, &(*out)->name);
}

/* Neighbouring strings are one. */
static vptq_status parse_string(tpl_parser *p, tpl_node **out)
{
    size_t len = 0, n = 0;
    for (const tpl_token *t = p->token; t->kind == TPL_T_STRING; t++)
        len += t->len;
    TPL_TRY(vptq_tpl_node(p, TPL_N_CONST, out));
    char *text = vptq_arena_alloc(&p->t->arena, len + 1, 1, p->err);
    if (!text)
        return VPTQ_E_NOMEM;
    for (; p->token->kind == TPL_T_STRING; p->token++) {
        memcpy(text + n, p->token->u.text, p->token->len);
        n += p->token->len;
    }
    (*out)->value = vptq_tpl_str(text, len);
    return VPTQ_OK;
}

static vptq_status parse_list(tpl_parser *p, tpl_node **out)
{
    tpl_nodes items = {0};
    TPL_TRY(vptq_tpl_node(p, TPL_N_LIST, out));
    p->token++;
    while (!vptq_tpl_is_op(p, ']')) {
        tpl_node *item;
        if (items.count > 0)
            TPL_TRY(vptq_tpl_expect_op(p, ','));
        if (vptq_tpl_is_op(p, ']'))
            break;
        TPL_TRY(vptq_tpl_expression(p, true, &item));
        TPL_TRY(vptq_tpl_push(p, &items, item));
    }
    take_list(*out, &items);
    return vptq_tpl_expect_op(p, ']');
}

static vptq_status parse_dict(tpl_parser *p, tpl_node **out)
{
    tpl_nodes items = {0};
    TPL_TRY(vptq_tpl_node(p, TPL_N_DICT, out));
    p->token++;
    while (!vptq_tpl_is_op(p, '}')) {
        tpl_node *key, *value;
        if (items.count > 0)
            TPL_TRY(vptq_tpl_expect_op(p, ','));
        if (vptq_tpl_is_op(p, '}'))
            break;
        TPL_TRY(vptq_tpl_expression(p, true, &key));
        TPL_TRY(vptq_tpl_expect_op(p, ':'));
        TPL_TRY(vptq_tpl_expression(p, true, &value));
        TPL_TRY(vptq_tpl_push(p, &items, key));
        TPL_TRY(vptq_tpl_push(p, &items, value));
    }
    take_list(*out, &items);
    return vptq_tpl_expect_op(p, '}');
}

static vptq_status parse_parentheses(tpl_parser *p, tpl_node **out)
{
    p->token++;
    if (vptq_tpl_is_op(p, ')'))
        TPL_TRY(vptq_tpl_node(p, TPL_N_TUPLE, out));
    else
        TPL_TRY(vptq_tpl_tuple(p, true, out));
    return vptq_tpl_expect_op(p, ')');
}

static vptq_status parse_primary(tpl_parser *p, tpl_node **out)
{
    switch (p->token->kind) {
    case TPL_T_NAME:
        return parse_name(p, out);
    case TPL_T_STRING:
        return parse_string(p, out);
    case TPL_T_INT:
        return parse_constant(p, vptq_tpl_int(p->token->u.i), out);
    case TPL_T_FLOAT:
        return parse_constant(p, vptq_tpl_float(p->token->u.f), out);
    default:
        break;
    }
    if (vptq_tpl_is_op(p, '('))
        return parse_parentheses(p, out);
    if (vptq_tpl_is_op(p, '['))
        return parse_list(p, out);
    if (vptq_tpl_is_op(p, '{'))
        return parse_dict(p, out);
    return unexpected(p, "an expression");
}

/* ---- calls and subscripts ---- */

typedef struct arguments {
    tpl_nodes items, values;
    tpl_nodes names; /* NAME nodes, one for each of `values` */
    tpl_node *star, *star_star;
} arguments;

static bool is_keyword(const tpl_parser *p)
{
    return p->token->kind == TPL_T_NAME && p->token[1].kind == TPL_T_OP &&
           p->token[1].op == '=';
}

static vptq_status parse_argument(tpl_parser *p, arguments *a)
{
    static const char order[] = "arguments are in an order that no call has";
    tpl_node *n, *name;
    if (vptq_tpl_is_op(p, '*') || vptq_tpl_is_op(p, TPL_OP_POW)) {
        bool star = vptq_tpl_is_op(p, '*');
        if (a->star_star || (star && a->star))
            return vptq_tpl_syntax(p, order);
        p->token++;
        return vptq_tpl_expression(p, true, star ? &a->star : &a->star_star);
    }
    if (is_keyword(p)) {
        if (a->star_star)
            return vptq_tpl_syntax(p, order);
        TPL_TRY(vptq_tpl_node(p, TPL_N_NAME, &name));
        TPL_TRY(vptq_tpl_symbol(p, &name->name));
        p->token++;
        TPL_TRY(vptq_tpl_expression(p, true, &n));
        TPL_TRY(vptq_tpl_push(p, &a->names, name));
        return vptq_tpl_push(p, &a->values, n);
    }
    if (a->star || a->star_star || a->values.count > 0)
        return vptq_tpl_syntax(p, order);
    TPL_TRY(vptq_tpl_expression(p, true, &n));
    return vptq_tpl_push(p, &a->items, n);
}

/* "(...)" into n->call. */
static vptq_status parse_call_args(tpl_parser *p, tpl_node *n)
{
    arguments a = {.star = NULL};
    TPL_TRY(vptq_tpl_expect_op(p, '('));
    for (bool first = true; !vptq_tpl_is_op(p, ')'); first = false) {
        if (!first)
            TPL_TRY(vptq_tpl_expect_op(p, ','));
        if (vptq_tpl_is_op(p, ')') && !first)
            break;
        TPL_TRY(parse_argument(p, &a));
    }
    tpl_call_node *c = vptq_arena_zalloc(&p->t->arena, 1, sizeof *c, p->err);
    if (!c)
        return VPTQ_E_NOMEM;
    c->named = vptq_arena_alloc(&p->t->arena, a.values.count, sizeof *c->named, p->err);
    if (!c->named)
        return VPTQ_E_NOMEM;
    c->items = a.items.items;
    c->count = a.items.count;
    c->named_count = a.values.count;
    for (uint32_t i = 0; i < c->named_count; i++)
        c->named[i] = (tpl_keyword){a.names.items[i]->name, a.values.items[i]};
    c->star = a.star;
    c->star_star = a.star_star;
    n->call = c;
    return vptq_tpl_expect_op(p, ')');
}

/* What stands between brackets: an index, or a slice. */
static vptq_status parse_subscript(tpl_parser *p, tpl_node **out)
{
    tpl_node *part[3] = {NULL, NULL, NULL};
    if (!vptq_tpl_is_op(p, ':')) {
        TPL_TRY(vptq_tpl_expression(p, true, &part[0]));
        if (!vptq_tpl_is_op(p, ':')) {
            *out = part[0];
            return VPTQ_OK;
        }
    }
    TPL_TRY(vptq_tpl_node(p, TPL_N_SLICE, out));
    for (int i = 1; i < 3 && vptq_tpl_take_op(p, ':'); i++)
        if (!vptq_tpl_is_op(p, ':') && !vptq_tpl_is_op(p, ']') && !vptq_tpl_is_op(p, ','))
            TPL_TRY(vptq_tpl_expression(p, true, &part[i]));
    (*out)->a = part[0];
    (*out)->b = part[1];
    (*out)->c = part[2];
    return VPTQ_OK;
}

static vptq_status parse_dot(tpl_parser *p, tpl_node *of, tpl_node **out)
{
    p->token++;
    if (p->token->kind == TPL_T_INT) {
        TPL_TRY(unary_node(p, TPL_N_ITEM, of, NULL, out));
        return parse_constant(p, vptq_tpl_int(p->token->u.i), &(*out)->b);
    }
    TPL_TRY(unary_node(p, TPL_N_ATTR, of, NULL, out));
    (*out)->line = p->token->line;
    return vptq_tpl_symbol(p, &(*out)->attribute);
}

static vptq_status parse_brackets(tpl_parser *p, tpl_node *of, tpl_node **out)
{
    tpl_node *key;
    TPL_TRY(unary_node(p, TPL_N_ITEM, of, NULL, out));
    (*out)->line = p->token->line;
    p->token++;
    TPL_TRY(parse_subscript(p, &key));
    (*out)->b = key;
    if (vptq_tpl_is_op(p, ','))
        return vptq_tpl_syntax(p, "a subscript of several parts is not supported");
    return vptq_tpl_expect_op(p, ']');
}

static vptq_status parse_call(tpl_parser *p, tpl_node *of, tpl_node **out)
{
    TPL_TRY(unary_node(p, TPL_N_CALL, of, NULL, out));
    (*out)->line = p->token->line;
    return parse_call_args(p, *out);
}

static vptq_status parse_postfix(tpl_parser *p, tpl_node **n)
{
    for (;;) {
        if (vptq_tpl_is_op(p, '.'))
            TPL_TRY(parse_dot(p, *n, n));
        else if (vptq_tpl_is_op(p, '['))
            TPL_TRY(parse_brackets(p, *n, n));
        else if (vptq_tpl_is_op(p, '('))
            TPL_TRY(parse_call(p, *n, n));
        else
            return VPTQ_OK;
    }
}

/* The name of a filter or test, with its arguments where `call` allows them. */
static vptq_status parse_filter(tpl_parser *p, tpl_node *of, tpl_node **out)
{
    TPL_TRY(unary_node(p, TPL_N_FILTER, of, NULL, out));
    (*out)->line = p->token->line;
    TPL_TRY(vptq_tpl_symbol(p, &(*out)->name));
    return vptq_tpl_is_op(p, '(') ? parse_call_args(p, *out) : VPTQ_OK;
}

static bool begins_test_argument(const tpl_parser *p)
{
    const tpl_token *t = p->token;
    if (t->kind == TPL_T_NAME)
        return !token_is_name(t, "else") && !token_is_name(t, "or") && !token_is_name(t, "and");
    return t->kind == TPL_T_STRING || t->kind == TPL_T_INT || t->kind == TPL_T_FLOAT ||
           vptq_tpl_is_op(p, '[') || vptq_tpl_is_op(p, '{');
}

static vptq_status parse_test(tpl_parser *p, tpl_node *of, tpl_node **out)
{
    p->token++;
    bool negated = vptq_tpl_take_name(p, "not");
    tpl_node *test, *argument;
    TPL_TRY(unary_node(p, TPL_N_TEST, of, NULL, &test));
    test->line = p->token->line;
    TPL_TRY(vptq_tpl_symbol(p, &test->name));
    if (vptq_tpl_is_op(p, '(')) {
        TPL_TRY(parse_call_args(p, test));
    } else if (begins_test_argument(p)) {
        tpl_nodes items = {0};
        if (vptq_tpl_is_name(p, "is"))
            return vptq_tpl_syntax(p, "a test behind a test");
        TPL_TRY(parse_primary(p, &argument));
        TPL_TRY(parse_postfix(p, &argument));
        TPL_TRY(vptq_tpl_push(p, &items, argument));
        test->call = vptq_arena_zalloc(&p->t->arena, 1, sizeof *test->call, p->err);
        if (!test->call)
            return VPTQ_E_NOMEM;
        test->call->items = items.items;
        test->call->count = 1;
    }
    *out = test;
    return negated ? unary_node(p, TPL_N_NOT, test, NULL, out) : VPTQ_OK;
}

vptq_status vptq_tpl_filters(tpl_parser *p, bool inline_first, tpl_node **out)
{
    *out = NULL;
    while (inline_first || vptq_tpl_take_op(p, '|')) {
        TPL_TRY(parse_filter(p, *out, out));
        inline_first = false;
    }
    return VPTQ_OK;
}

static vptq_status parse_filters_and_tests(tpl_parser *p, tpl_node **n)
{
    for (;;) {
        if (vptq_tpl_take_op(p, '|'))
            TPL_TRY(parse_filter(p, *n, n));
        else if (vptq_tpl_is_name(p, "is"))
            TPL_TRY(parse_test(p, *n, n));
        else if (vptq_tpl_is_op(p, '('))
            TPL_TRY(parse_call(p, *n, n));
        else
            return VPTQ_OK;
    }
}

/* ---- operators, from the tightest ---- */

static vptq_status parse_unary(tpl_parser *p, bool with_filters, tpl_node **out)
{
    TPL_TRY(vptq_tpl_enter(p));
    if (vptq_tpl_is_op(p, '-') || vptq_tpl_is_op(p, '+')) {
        tpl_node_kind kind = vptq_tpl_is_op(p, '-') ? TPL_N_NEGATIVE : TPL_N_POSITIVE;
        tpl_node *a;
        p->token++;
        TPL_TRY(parse_unary(p, false, &a));
        TPL_TRY(unary_node(p, kind, a, NULL, out));
    } else {
        TPL_TRY(parse_primary(p, out));
    }
    TPL_TRY(parse_postfix(p, out));
    if (with_filters)
        TPL_TRY(parse_filters_and_tests(p, out));
    vptq_tpl_leave(p);
    return VPTQ_OK;
}

/* Levels of operators that group from the left: '**', then products, then (above '~') sums. */
static bool is_operator(const tpl_parser *p, int level)
{
    static const uint8_t power[] = {TPL_OP_POW, 0},
                         product[] = {'*', '/', TPL_OP_FLOORDIV, '%', 0}, sum[] = {'+', '-', 0};
    const uint8_t *ops = level == 0 ? power : level == 1 ? product : sum;
    for (; *ops; ops++)
        if (vptq_tpl_is_op(p, *ops))
            return true;
    return false;
}

static vptq_status parse_binary(tpl_parser *p, int level, tpl_node **out);

static vptq_status parse_concat(tpl_parser *p, tpl_node **out)
{
    tpl_nodes items = {0};
    TPL_TRY(parse_binary(p, 1, out));
    if (!vptq_tpl_is_op(p, '~'))
        return VPTQ_OK;
    TPL_TRY(vptq_tpl_push(p, &items, *out));
    while (vptq_tpl_take_op(p, '~')) {
        tpl_node *item;
        TPL_TRY(parse_binary(p, 1, &item));
        TPL_TRY(vptq_tpl_push(p, &items, item));
    }
    TPL_TRY(vptq_tpl_node(p, TPL_N_CONCAT, out));
    (*out)->line = items.items[0]->line;
    take_list(*out, &items);
    return VPTQ_OK;
}

static vptq_status parse_operand(tpl_parser *p, int level, tpl_node **out)
{
    return level == 0   ? parse_unary(p, true, out)
           : level == 1 ? parse_binary(p, 0, out)
                        : parse_concat(p, out);
}

static vptq_status parse_binary(tpl_parser *p, int level, tpl_node **out)
{
    TPL_TRY(parse_operand(p, level, out));
    while (is_operator(p, level)) {
        uint8_t op = p->token->op;
        tpl_node *right;
        p->token++;
        TPL_TRY(parse_operand(p, level, &right));
        TPL_TRY(unary_node(p, TPL_N_BINARY, *out, right, out));
        (*out)->op = op;
    }
    return VPTQ_OK;
}

/* The comparison at the current token, which is passed; 0 for none. */
static int take_comparison(tpl_parser *p)
{
    static const uint8_t ops[] = {TPL_OP_EQ, TPL_OP_NE, TPL_OP_GE, TPL_OP_LE, '<', '>', 0};
    for (const uint8_t *op = ops; *op; op++)
        if (vptq_tpl_take_op(p, *op))
            return *op;
    if (vptq_tpl_take_name(p, "in"))
        return TPL_OP_IN;
    if (vptq_tpl_is_name(p, "not") && token_is_name(p->token + 1, "in")) {
        p->token += 2;
        return TPL_OP_NOT_IN;
    }
    return 0;
}

static vptq_status parse_compare(tpl_parser *p, tpl_node **out)
{
    tpl_nodes operands = {0};
    tpl_node *first;
    TPL_TRY(parse_binary(p, 2, out));
    first = *out;
    for (int op; (op = take_comparison(p));) {
        tpl_node *n, *holder;
        TPL_TRY(parse_binary(p, 2, &n));
        TPL_TRY(unary_node(p, TPL_N_CONST, n, NULL, &holder));
        holder->compare = (uint8_t)op;
        TPL_TRY(vptq_tpl_push(p, &operands, holder));
    }
    if (operands.count == 0)
        return VPTQ_OK;
    TPL_TRY(unary_node(p, TPL_N_COMPARE, first, NULL, out));
    take_list(*out, &operands);
    return VPTQ_OK;
}

static vptq_status parse_not(tpl_parser *p, tpl_node **out)
{
    if (!vptq_tpl_take_name(p, "not"))
        return parse_compare(p, out);
    tpl_node *a;
    TPL_TRY(vptq_tpl_enter(p));
    TPL_TRY(parse_not(p, &a));
    vptq_tpl_leave(p);
    return unary_node(p, TPL_N_NOT, a, NULL, out);
}

static vptq_status parse_and(tpl_parser *p, tpl_node **out)
{
    TPL_TRY(parse_not(p, out));
    while (vptq_tpl_take_name(p, "and")) {
        tpl_node *right;
        TPL_TRY(parse_not(p, &right));
        TPL_TRY(unary_node(p, TPL_N_AND, *out, right, out));
    }
    return VPTQ_OK;
}

static vptq_status parse_or(tpl_parser *p, tpl_node **out)
{
    TPL_TRY(parse_and(p, out));
    while (vptq_tpl_take_name(p, "or")) {
        tpl_node *right;
        TPL_TRY(parse_and(p, &right));
        TPL_TRY(unary_node(p, TPL_N_OR, *out, right, out));
    }
    return VPTQ_OK;
}

vptq_status vptq_tpl_expression(tpl_parser *p, bool with_condition, tpl_node **out)
{
    TPL_TRY(vptq_tpl_enter(p));
    TPL_TRY(parse_or(p, out));
    while (with_condition && vptq_tpl_take_name(p, "if")) {
        tpl_node *value = *out, *test, *other = NULL;
        TPL_TRY(parse_or(p, &test));
        if (vptq_tpl_take_name(p, "else"))
            TPL_TRY(vptq_tpl_expression(p, true, &other));
        TPL_TRY(unary_node(p, TPL_N_COND, value, test, out));
        (*out)->c = other;
    }
    vptq_tpl_leave(p);
    return VPTQ_OK;
}

static bool is_tuple_end(const tpl_parser *p)
{
    return p->token->kind == TPL_T_VAR_END || p->token->kind == TPL_T_BLOCK_END ||
           vptq_tpl_is_op(p, ')') || vptq_tpl_is_name(p, "in") ||
           vptq_tpl_is_name(p, "recursive");
}

/* One thing, or several with commas as a TUPLE. */
static vptq_status parse_list_of(tpl_parser *p,
                                 vptq_status (*parse)(tpl_parser *, bool, tpl_node **),
                                 bool flag, tpl_node **out)
{
    tpl_nodes items = {0};
    tpl_node *n;
    TPL_TRY(parse(p, flag, out));
    if (!vptq_tpl_is_op(p, ','))
        return VPTQ_OK;
    TPL_TRY(vptq_tpl_push(p, &items, *out));
    while (vptq_tpl_take_op(p, ',') && !is_tuple_end(p)) {
        TPL_TRY(parse(p, flag, &n));
        TPL_TRY(vptq_tpl_push(p, &items, n));
    }
    TPL_TRY(vptq_tpl_node(p, TPL_N_TUPLE, out));
    (*out)->line = items.items[0]->line;
    take_list(*out, &items);
    return VPTQ_OK;
}

vptq_status vptq_tpl_tuple(tpl_parser *p, bool with_condition, tpl_node **out)
{
    return parse_list_of(p, vptq_tpl_expression, with_condition, out);
}

static vptq_status parse_one_target(tpl_parser *p, bool ns, tpl_node **out)
{
    if (vptq_tpl_take_op(p, '(')) {
        TPL_TRY(vptq_tpl_enter(p));
        TPL_TRY(vptq_tpl_target(p, ns, out));
        vptq_tpl_leave(p);
        return vptq_tpl_expect_op(p, ')');
    }
    TPL_TRY(parse_name(p, out));
    if ((*out)->kind != TPL_N_NAME)
        return vptq_tpl_syntax(p, "a constant cannot be assigned to");
    if (ns && vptq_tpl_take_op(p, '.')) {
        (*out)->kind = TPL_N_NS_ATTR;
        return vptq_tpl_symbol(p, &(*out)->attribute);
    }
    return VPTQ_OK;
}

vptq_status vptq_tpl_target(tpl_parser *p, bool ns, tpl_node **out)
{
    return parse_list_of(p, parse_one_target, ns, out);
}
