/* Parses the tokens of a template into a tree: statements, and expressions by precedence. */
#include <stdio.h>

#include "lib/chat/internal.h"

/* After a failure the current token is the end of the template, which ends every construct. */
typedef struct parser {
    tpl_run *r;
    const tpl_token *token; /* the current one */
    tpl_node failed;        /* stands for nodes that cannot be allocated */
} parser;

typedef tpl_node *(*parse_fn)(parser *p);

/* ---- tokens ---- */

static void stop(parser *p)
{
    static const tpl_token end = {.kind = TPL_T_END};
    p->token = &end;
}

/* Records a failure at the current token. */
#define FAIL(p, code, ...)                                                                     \
    do {                                                                                       \
        (p)->r->line = (p)->token->line;                                                       \
        vptq_tpl_fail((p)->r, code, __VA_ARGS__);                                              \
        stop(p);                                                                               \
    } while (0)

static void unexpected(parser *p, const char *expected)
{
    tpl_value found = p->token->value;
    if (p->token->kind == TPL_T_END)
        FAIL(p, VPTQ_E_FORMAT, "found the end of the template, expected %s", expected);
    else if (found.kind != TPL_STR)
        FAIL(p, VPTQ_E_FORMAT, "found a number, expected %s", expected);
    else
        FAIL(p, VPTQ_E_FORMAT, "found '%.*s', expected %s", TPL_NAME(found), expected);
}

static bool is(const parser *p, int kind)
{
    return p->token->kind == kind;
}

static bool is_name(const parser *p, const char *name)
{
    return is(p, TPL_T_NAME) && tpl_is(p->token->value, name);
}

static bool take(parser *p, int kind)
{
    bool found = is(p, kind);
    p->token += found;
    return found;
}

static bool take_name(parser *p, const char *name)
{
    bool found = is_name(p, name);
    p->token += found;
    return found;
}

/* Consumes a token of the kind and returns its value. */
static tpl_value expect(parser *p, int kind)
{
    const char text[] = {'\'', (char)kind, '\'', 0};
    tpl_value value = p->token->value;
    if (!take(p, kind))
        unexpected(p, kind == TPL_T_NAME    ? "a name"
                      : kind == TPL_T_CLOSE ? "the end of the tag"
                      : kind == TPL_T_IN    ? "'in'"
                                            : text);
    return value;
}

/* ---- nodes ---- */

static void enter(parser *p)
{
    if (!vptq_tpl_enter(p->r, TPL_MAX_NESTING))
        stop(p);
}

static void leave(parser *p)
{
    p->r->depth--;
}

/* A node at the current line, over `left` (may be NULL).  Never NULL. */
static tpl_node *new_node(parser *p, tpl_node_kind kind, tpl_node *left)
{
    tpl_node *n = vptq_tpl_alloc(p->r, 1, sizeof *n);
    if (!n) {
        stop(p);
        n = &p->failed;
    }
    *n = (tpl_node){.kind = (uint8_t)kind, .line = p->token->line, .left = left};
    return n;
}

static tpl_node *new_constant(parser *p, tpl_value value)
{
    tpl_node *n = new_node(p, TPL_N_CONSTANT, NULL);
    n->value = value;
    return n;
}

/* A node with the name at the current token. */
static tpl_node *new_named(parser *p, tpl_node_kind kind, tpl_node *left)
{
    tpl_node *n = new_node(p, kind, left);
    n->value = expect(p, TPL_T_NAME);
    return n;
}

/* Items with commas up to `close`, which is consumed; the last may have a comma, too. */
static tpl_node *parse_items(parser *p, int close, parse_fn item, tpl_node *n)
{
    for (tpl_node **end = &n->items; !is(p, close) && !is(p, TPL_T_END);) {
        if (n->count > 0)
            expect(p, ',');
        if (n->count > 0 && is(p, close))
            break;
        *end = item(p);
        for (; *end && !p->r->status; end = &(*end)->next)
            n->count++;
    }
    expect(p, close);
    return n;
}

static tpl_node *parse_expression(parser *p);

/* One item, or several with commas as a TUPLE. */
static tpl_node *parse_tuple(parser *p, parse_fn item)
{
    tpl_node *first = item(p), *last = first;
    if (!is(p, ','))
        return first;
    tpl_node *n = new_node(p, TPL_N_TUPLE, NULL);
    n->items = first;
    for (n->count = 1; take(p, ','); n->count++) {
        if (is(p, TPL_T_CLOSE) || is(p, ')') || is(p, TPL_T_IN))
            break;
        last->next = item(p);
        last = last->next;
    }
    return n;
}

/* ---- operands ---- */

static tpl_node *parse_name(parser *p)
{
    static const char *const unsupported[] = {"varargs", "kwargs", "caller", "self", "super"};
    tpl_node *n = new_named(p, TPL_N_NAME, NULL);
    bool yes = tpl_is(n->value, "true") || tpl_is(n->value, "True");
    if (yes || tpl_is(n->value, "false") || tpl_is(n->value, "False"))
        return new_constant(p, TPL_BOOLEAN(yes));
    if (tpl_is(n->value, "none") || tpl_is(n->value, "None"))
        return new_constant(p, TPL_NULL);
    for (int i = 0; i < 5; i++)
        if (tpl_is(n->value, unsupported[i]))
            FAIL(p, VPTQ_E_UNSUPPORTED, "variable '%s' is not supported", unsupported[i]);
    return n;
}

static tpl_node *parse_pair(parser *p)
{
    tpl_node *key = parse_expression(p);
    expect(p, ':');
    key->next = parse_expression(p);
    return key;
}

static tpl_node *parse_operand(parser *p)
{
    tpl_node *n = NULL;
    if (is(p, TPL_T_NAME)) {
        n = parse_name(p);
    } else if (is(p, TPL_T_STRING) || is(p, TPL_T_NUMBER)) {
        n = new_constant(p, p->token++->value);
        if (is(p, TPL_T_STRING))
            FAIL(p, VPTQ_E_UNSUPPORTED, "a string after another value is not supported");
    } else if (take(p, '[')) {
        n = parse_items(p, ']', parse_expression, new_node(p, TPL_N_LIST, NULL));
    } else if (take(p, '{')) {
        n = parse_items(p, '}', parse_pair, new_node(p, TPL_N_DICT, NULL));
    } else if (take(p, '(')) {
        n = is(p, ')') ? new_node(p, TPL_N_TUPLE, NULL) : parse_tuple(p, parse_expression);
        expect(p, ')');
    } else {
        unexpected(p, "an expression");
        n = new_constant(p, TPL_NULL);
    }
    return n;
}

/* ---- attributes, subscripts, calls, filters, tests ---- */

static tpl_node *parse_argument(parser *p)
{
    if (!is(p, TPL_T_NAME) || p->token[1].kind != '=')
        return parse_expression(p);
    tpl_node *n = new_named(p, TPL_N_KEYWORD, NULL);
    expect(p, '=');
    n->left = parse_expression(p);
    return n;
}

static tpl_node *parse_parameter(parser *p)
{
    tpl_node *n = new_named(p, TPL_N_NAME, NULL);
    if (take(p, '='))
        n->left = parse_expression(p);
    return n;
}

/* "(a, b=1)" into the items of n; what has a name or default comes last. */
static tpl_node *parse_arguments(parser *p, parse_fn item, tpl_node *n)
{
    bool call = item == parse_argument, named = false;
    expect(p, '(');
    parse_items(p, ')', item, n);
    for (const tpl_node *a = n->items; !p->r->status && a; a = a->next) {
        bool plain = call ? a->kind != TPL_N_KEYWORD : !a->left;
        if (named && plain)
            FAIL(p, VPTQ_E_FORMAT, "an argument with a name before one without");
        named = !plain;
    }
    return n;
}

/* Between brackets: an index, or the bounds of a slice. */
static tpl_node *parse_subscript(parser *p, tpl_node *of)
{
    tpl_node *n = new_node(p, TPL_N_ITEM, of), **end = &n->items;
    if (!is(p, ':'))
        n->right = parse_expression(p);
    if (n->right && take(p, ']'))
        return n;
    if (is(p, ','))
        FAIL(p, VPTQ_E_UNSUPPORTED, "a subscript with ',' is not supported");
    n->kind = TPL_N_SLICE;
    n->count = 3;
    for (int i = 0; i < 3 && !p->r->status; i++) {
        bool given = i > 0 && take(p, ':') && !is(p, ':') && !is(p, ']');
        *end = given                ? parse_expression(p)
               : i == 0 && n->right ? n->right
                                    : new_constant(p, TPL_NULL);
        end = &(*end)->next;
    }
    expect(p, ']');
    return n;
}

static tpl_node *parse_postfix(parser *p, tpl_node *n)
{
    for (;;) {
        if (take(p, '[')) {
            n = parse_subscript(p, n);
        } else if (is(p, '(')) {
            n = parse_arguments(p, parse_argument, new_node(p, TPL_N_CALL, n));
        } else if (!take(p, '.')) {
            return n;
        } else if (is(p, TPL_T_NUMBER)) {
            n = new_node(p, TPL_N_ITEM, n);
            n->right = parse_operand(p);
        } else {
            n = new_named(p, TPL_N_ATTRIBUTE, n);
        }
    }
}

/* A filter or test, at its name. */
static tpl_node *parse_filter(parser *p, tpl_node_kind kind, tpl_node *of)
{
    tpl_node *n = new_node(p, kind, of);
    n->value = is(p, TPL_T_IN) ? p->token++->value : expect(p, TPL_T_NAME);
    return is(p, '(') ? parse_arguments(p, parse_argument, n) : n;
}

/* After "is": its argument may have no parentheses. */
static tpl_node *parse_test(parser *p, tpl_node *of)
{
    bool negated = take_name(p, "not"), call = p->token[!is(p, TPL_T_END)].kind == '(';
    tpl_node *n = parse_filter(p, TPL_N_TEST, of);
    if (!call && (is(p, TPL_T_STRING) || is(p, TPL_T_NUMBER) || is(p, '[') || is(p, '{') ||
                  (is(p, TPL_T_NAME) && !is_name(p, "else")))) {
        n->items = parse_postfix(p, parse_operand(p));
        n->count = 1;
    }
    return negated ? new_node(p, TPL_N_NOT, n) : n;
}

static tpl_node *parse_unary(parser *p, bool with_filters)
{
    tpl_node *n;
    enter(p);
    if (is(p, '-') || is(p, '+')) {
        n = new_node(p, TPL_N_ARITHMETIC, new_constant(p, TPL_INTEGER(0)));
        n->op = p->token++->kind;
        n->right = parse_unary(p, false);
    } else {
        n = parse_operand(p);
    }
    n = parse_postfix(p, n);
    while (with_filters) {
        if (take(p, '|'))
            n = parse_filter(p, TPL_N_FILTER, n);
        else if (take_name(p, "is"))
            n = parse_test(p, n);
        else if (is(p, '('))
            n = parse_arguments(p, parse_argument, new_node(p, TPL_N_CALL, n));
        else
            break;
    }
    leave(p);
    return n;
}

/* ---- operators ---- */

/* From the loosest to the tightest; jinja2 has '~' between sums and products. */
enum { BY_OR, BY_AND, BY_NOT, BY_COMPARISON, BY_SUM, BY_CONCAT, BY_PRODUCT, BY_SIGN };

/* Consumes an operator of the level; 0 if there is none. */
static int take_operator(parser *p, int level)
{
    static const uint8_t levels[][8] = {
        [BY_OR] = {TPL_T_OR},
        [BY_AND] = {TPL_T_AND},
        [BY_COMPARISON] = {TPL_T_EQ, TPL_T_NE, TPL_T_GE, TPL_T_LE, TPL_T_IN, '<', '>'},
        [BY_SUM] = {'+', '-'},
        [BY_CONCAT] = {'~'},
        [BY_PRODUCT] = {'%'}};
    for (const uint8_t *op = levels[level]; *op; op++)
        if (take(p, *op))
            return *op;
    if (level != BY_COMPARISON || !is_name(p, "not") || p->token[1].kind != TPL_T_IN)
        return 0;
    p->token += 2;
    return TPL_T_NOT_IN;
}

static tpl_node *parse_operators(parser *p, int level)
{
    static const uint8_t kinds[] = {TPL_N_OR,         TPL_N_AND,        TPL_N_NOT,
                                    TPL_N_COMPARISON, TPL_N_ARITHMETIC, TPL_N_ARITHMETIC,
                                    TPL_N_ARITHMETIC};
    if (level == BY_SIGN)
        return parse_unary(p, true);
    if (level == BY_NOT && take_name(p, "not")) {
        enter(p);
        tpl_node *operand = parse_operators(p, BY_NOT);
        leave(p);
        return new_node(p, TPL_N_NOT, operand);
    }
    tpl_node *n = parse_operators(p, level + 1);
    for (int op, count = 0; (op = take_operator(p, level)) != 0; count++) {
        if (level == BY_COMPARISON && count > 0)
            FAIL(p, VPTQ_E_UNSUPPORTED, "a chain of comparisons is not supported");
        n = new_node(p, kinds[level], n);
        n->op = (uint8_t)op;
        n->right = parse_operators(p, level + 1);
    }
    return n;
}

static tpl_node *parse_expression(parser *p)
{
    enter(p);
    tpl_node *n = parse_operators(p, BY_OR);
    if (take_name(p, "if")) {
        n = new_node(p, TPL_N_CONDITION, n);
        n->right = parse_operators(p, BY_OR);
        if (take_name(p, "else"))
            n->other = parse_expression(p);
    }
    leave(p);
    return n;
}

/* ---- statements ---- */

static tpl_node *parse_part(parser *p);

/* Statements up to a tag with "elif", "else" or "end...", which is the current token then. */
static tpl_node *parse_body(parser *p)
{
    tpl_node *body = NULL, **last = &body;
    enter(p);
    while (!is(p, TPL_T_END) && (*last = parse_part(p)) != NULL && !p->r->status)
        last = &(*last)->next;
    leave(p);
    return body;
}

/* The end of a tag, then statements up to the tag `end`. */
static tpl_node *parse_until(parser *p, const char *end)
{
    char expected[32];
    expect(p, TPL_T_CLOSE);
    tpl_node *body = parse_body(p);
    if (!take_name(p, end)) {
        (void)snprintf(expected, sizeof expected, "'%s'", end);
        unexpected(p, expected);
    }
    return body;
}

/* The end of a tag, the statements of n, and those after "else" up to the tag `end`. */
static tpl_node *parse_branches(parser *p, tpl_node *n, const char *end)
{
    expect(p, TPL_T_CLOSE);
    n->body = parse_body(p);
    if (n->kind == TPL_N_IF && take_name(p, "elif")) {
        enter(p);
        n->other = new_node(p, TPL_N_IF, parse_expression(p));
        parse_branches(p, n->other, end);
        leave(p);
    } else if (take_name(p, "else")) {
        n->other = parse_until(p, end);
    } else if (!take_name(p, end)) {
        unexpected(p, n->kind == TPL_N_IF ? "'endif'" : "'endfor'");
    }
    return n;
}

static tpl_node *parse_if(parser *p)
{
    return parse_branches(p, new_node(p, TPL_N_IF, parse_expression(p)), "endif");
}

static tpl_node *parse_target(parser *p)
{
    if (is(p, '('))
        FAIL(p, VPTQ_E_UNSUPPORTED, "names in parentheses are not supported");
    tpl_node *n = parse_name(p);
    if (n->kind != TPL_N_NAME)
        FAIL(p, VPTQ_E_FORMAT, "a constant cannot be assigned to");
    return take(p, '.') ? new_named(p, TPL_N_ATTRIBUTE, n) : n;
}

static tpl_node *parse_for(parser *p)
{
    tpl_node *n = new_node(p, TPL_N_FOR, parse_tuple(p, parse_target));
    expect(p, TPL_T_IN);
    n->right = parse_operators(p, BY_OR);
    if (take_name(p, "if"))
        n->filter = parse_expression(p);
    if (is_name(p, "recursive"))
        FAIL(p, VPTQ_E_UNSUPPORTED, "a recursive loop is not supported");
    return parse_branches(p, n, "endfor");
}

static tpl_node *parse_set(parser *p)
{
    tpl_node *n = new_node(p, TPL_N_SET, parse_tuple(p, parse_target));
    if (take(p, '=')) {
        n->right = parse_tuple(p, parse_expression);
        return n;
    }
    if (is(p, '|'))
        FAIL(p, VPTQ_E_UNSUPPORTED, "a filter of a block that is set is not supported");
    n->kind = TPL_N_SET_BLOCK;
    n->body = parse_until(p, "endset");
    return n;
}

static tpl_node *parse_macro(parser *p)
{
    tpl_node *n = new_named(p, TPL_N_MACRO, NULL);
    parse_arguments(p, parse_parameter, n);
    n->body = parse_until(p, "endmacro");
    return n;
}

static tpl_node *parse_generation(parser *p)
{
    tpl_node *n = new_node(p, TPL_N_SCOPE, NULL);
    n->body = parse_until(p, "endgeneration");
    return n;
}

static tpl_node *parse_jump(parser *p)
{
    tpl_node *n = new_node(p, TPL_N_JUMP, NULL);
    n->op = tpl_is(p->token[-1].value, "break") ? TPL_FLOW_BREAK : TPL_FLOW_CONTINUE;
    return n;
}

/* A statement, at its name. */
static tpl_node *parse_statement(parser *p)
{
    static const struct {
        const char *name;
        parse_fn parse;
    } table[] = {{"if", parse_if},
                 {"for", parse_for},
                 {"set", parse_set},
                 {"macro", parse_macro},
                 {"generation", parse_generation},
                 {"break", parse_jump},
                 {"continue", parse_jump}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (take_name(p, table[i].name))
            return table[i].parse(p);
    tpl_value name = p->token->value;
    if (is(p, TPL_T_NAME))
        FAIL(p, VPTQ_E_UNSUPPORTED, "statement '%.*s' is not supported", TPL_NAME(name));
    else
        unexpected(p, "a statement");
    return NULL;
}

static bool ends_block(const parser *p)
{
    return is_name(p, "elif") || is_name(p, "else") ||
           (is(p, TPL_T_NAME) && p->token->value.len > 3 &&
            memcmp(p->token->value.u.s, "end", 3) == 0);
}

/* Text, "{{ }}" or "{% %}"; NULL at a tag that ends a block. */
static tpl_node *parse_part(parser *p)
{
    tpl_node *n = NULL;
    if (take(p, TPL_T_TAG)) {
        if (ends_block(p))
            return NULL;
        n = parse_statement(p);
    } else {
        n = new_node(p, TPL_N_PRINT, NULL);
        bool text = is(p, TPL_T_TEXT);
        tpl_value value = p->token++->value;
        n->right = text ? new_constant(p, value) : parse_tuple(p, parse_expression);
        if (text)
            return n;
    }
    expect(p, TPL_T_CLOSE);
    return n;
}

/* ---- the template ---- */

void vptq_template_free(vptq_template *t)
{
    if (!t)
        return;
    vptq_arena_release(&t->arena);
    vptq_mem_free(t->mem, t);
}

vptq_status vptq_template_parse(const char *text, size_t len, const char *name, vptq_mem *mem,
                                vptq_template **out, vptq_err *err)
{
    size_t valid = vptq_utf8_valid_prefix(text, len);
    if (len > VPTQ_TEMPLATE_LIMIT)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: %zu bytes, expected at most %d", name, len,
                         VPTQ_TEMPLATE_LIMIT);
    if (valid < len)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: not valid UTF-8 at byte %zu", name, valid);
    vptq_template *t = vptq_mem_alloc(mem, 1, sizeof *t, err);
    if (!t)
        return VPTQ_E_NOMEM;
    *t = (vptq_template){.mem = mem};
    vptq_arena_init(&t->arena, mem);
    t->name = vptq_arena_strdup(&t->arena, name, err);
    tpl_run r = {.name = t->name, .line = 1, .err = err, .arena = &t->arena};
    r.status = t->name ? VPTQ_OK : VPTQ_E_NOMEM;
    parser p = {.r = &r, .token = vptq_tpl_lex(&r, text, len)};
    if (!r.status)
        t->body = parse_body(&p);
    if (!r.status && !is(&p, TPL_T_END))
        FAIL(&p, VPTQ_E_FORMAT, "unexpected '%.*s'", TPL_NAME(p.token->value));
    if (r.status)
        vptq_template_free(t);
    else
        *out = t;
    return r.status;
}
