/* Parses the tokens of a template into a tree: statements, and expressions by precedence. */
#include "lib/chat/internal.h"

/* After a failure the current token is the end of the template, which ends every construct. */
typedef struct parser {
    tpl_run *r;
    const tpl_token *token; /* the current one */
    tpl_node *macro;        /* the innermost one */
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

static bool token_is(const tpl_token *t, const char *name)
{
    return t->kind == TPL_T_NAME && tpl_is(t->value, name);
}

static bool is_name(const parser *p, const char *name)
{
    return token_is(p->token, name);
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
        unexpected(p, kind == TPL_T_NAME        ? "a name"
                      : kind == TPL_T_PRINT_END ? "'}}'"
                      : kind == TPL_T_TAG_END   ? "'%}'"
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
static tpl_node *new_node(parser *p, tpl_eval_fn *eval, tpl_node *left)
{
    tpl_node *n = vptq_tpl_alloc(p->r, 1, sizeof *n);
    if (!n) {
        stop(p);
        n = &p->failed;
    }
    *n = (tpl_node){.eval = eval, .line = p->token->line, .left = left};
    return n;
}

static tpl_node *new_constant(parser *p, tpl_value value)
{
    tpl_node *n = new_node(p, vptq_tpl_constant, NULL);
    n->value = value;
    return n;
}

static tpl_node *new_list(parser *p, tpl_kind kind)
{
    tpl_node *n = new_node(p, vptq_tpl_items_of, NULL);
    n->op = (uint8_t)kind;
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
static tpl_node *parse_tuple(parser *p, parse_fn item);

/* ---- operands ---- */

static tpl_node *parse_name(parser *p)
{
    tpl_node *n = new_node(p, vptq_tpl_name, NULL);
    n->value = expect(p, TPL_T_NAME);
    bool yes = tpl_is(n->value, "true") || tpl_is(n->value, "True");
    if (yes || tpl_is(n->value, "false") || tpl_is(n->value, "False"))
        return new_constant(p, TPL_BOOLEAN(yes));
    if (tpl_is(n->value, "none") || tpl_is(n->value, "None"))
        return new_constant(p, TPL_NULL);
    if (p->macro && (tpl_is(n->value, "varargs") || tpl_is(n->value, "kwargs")))
        FAIL(p, VPTQ_E_UNSUPPORTED, "variable '%.*s' is not supported", TPL_NAME(n->value));
    if (p->macro && tpl_is(n->value, "caller"))
        p->macro->has_caller = true;
    return n;
}

/* Adjacent strings are one. */
static tpl_node *parse_string(parser *p)
{
    size_t len = 0, n = 0;
    for (const tpl_token *t = p->token; t->kind == TPL_T_STRING; t++)
        len += t->value.len;
    char *text = vptq_tpl_alloc(p->r, len + 1, 1);
    for (; text && is(p, TPL_T_STRING); n += p->token++->value.len)
        memcpy(text + n, p->token->value.u.s, p->token->value.len);
    return new_constant(p, TPL_TEXT(text, n));
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
    if (is(p, TPL_T_NAME))
        return parse_name(p);
    if (is(p, TPL_T_STRING))
        return parse_string(p);
    if (take(p, '['))
        return parse_items(p, ']', parse_expression, new_list(p, TPL_LIST));
    if (take(p, '{')) {
        tpl_node *dict = new_list(p, TPL_LIST);
        dict->eval = vptq_tpl_dict_of;
        return parse_items(p, '}', parse_pair, dict);
    }
    if (!take(p, '(')) {
        if (!is(p, TPL_T_NUMBER))
            unexpected(p, "an expression");
        return new_constant(p, is(p, TPL_T_NUMBER) ? p->token++->value : TPL_NULL);
    }
    tpl_node *n = is(p, ')') ? new_list(p, TPL_TUPLE) : parse_tuple(p, parse_expression);
    expect(p, ')');
    return n;
}

/* ---- attributes, subscripts, calls, filters, tests ---- */

static tpl_node *parse_argument(parser *p)
{
    if (is(p, '*') || is(p, TPL_T_POWER))
        FAIL(p, VPTQ_E_UNSUPPORTED, "'*' in a call is not supported");
    if (!is(p, TPL_T_NAME) || p->token[1].kind != '=')
        return parse_expression(p);
    tpl_node *n = new_node(p, vptq_tpl_keyword, NULL);
    n->value = expect(p, TPL_T_NAME);
    expect(p, '=');
    n->left = parse_expression(p);
    return n;
}

/* "(a, b=1)" into the items of n; what has a name or default comes last. */
static tpl_node *parse_arguments(parser *p, parse_fn item, tpl_node *n)
{
    expect(p, '(');
    parse_items(p, ')', item, n);
    for (const tpl_node *a = n->items; !p->r->status && a && a->next; a = a->next)
        if (item == parse_argument
                ? a->eval == vptq_tpl_keyword && a->next->eval != vptq_tpl_keyword
                : a->left && !a->next->left)
            FAIL(p, VPTQ_E_FORMAT, "an argument with a name before one without");
    return n;
}

/* Between brackets: an index, or the bounds of a slice. */
static tpl_node *parse_subscript(parser *p, tpl_node *of)
{
    tpl_node *n = new_node(p, vptq_tpl_item_of, of), **end = &n->items;
    if (!is(p, ':'))
        n->right = parse_expression(p);
    if (n->right && take(p, ']'))
        return n;
    if (is(p, ','))
        FAIL(p, VPTQ_E_UNSUPPORTED, "a subscript with ',' is not supported");
    n->eval = vptq_tpl_slice_of;
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
            n = parse_arguments(p, parse_argument, new_node(p, vptq_tpl_call_of, n));
        } else if (!take(p, '.')) {
            return n;
        } else if (is(p, TPL_T_NUMBER)) {
            n = new_node(p, vptq_tpl_item_of, n);
            n->right = parse_operand(p);
        } else {
            n = new_node(p, vptq_tpl_attribute_of, n);
            n->value = expect(p, TPL_T_NAME);
        }
    }
}

/* A filter or test, at its name. */
static tpl_node *parse_filter(parser *p, char op, tpl_node *of)
{
    tpl_node *n = new_node(p, vptq_tpl_filter_of, of);
    n->op = (uint8_t)op;
    n->value = expect(p, TPL_T_NAME);
    return is(p, '(') ? parse_arguments(p, parse_argument, n) : n;
}

/* After "is": its argument may have no parentheses. */
static tpl_node *parse_test(parser *p, tpl_node *of)
{
    bool negated = take_name(p, "not"), call = p->token[!is(p, TPL_T_END)].kind == '(';
    tpl_node *n = parse_filter(p, '?', of);
    bool argument =
        is(p, TPL_T_NAME)
            ? !is_name(p, "else") && !is_name(p, "or") && !is_name(p, "and")
            : is(p, TPL_T_STRING) || is(p, TPL_T_NUMBER) || is(p, '[') || is(p, '{');
    if (!call && argument) {
        if (is_name(p, "is"))
            FAIL(p, VPTQ_E_FORMAT, "a test of a test");
        n->items = parse_postfix(p, parse_operand(p));
        n->count = 1;
    }
    return negated ? new_node(p, vptq_tpl_not, n) : n;
}

static tpl_node *parse_unary(parser *p, bool with_filters)
{
    tpl_node *n;
    enter(p);
    if (is(p, '-') || is(p, '+')) {
        n = new_node(p, vptq_tpl_sign, NULL);
        n->op = p->token++->kind;
        n->left = parse_unary(p, false);
    } else {
        n = parse_operand(p);
    }
    n = parse_postfix(p, n);
    while (with_filters) {
        if (take(p, '|'))
            n = parse_filter(p, '|', n);
        else if (take_name(p, "is"))
            n = parse_test(p, n);
        else if (is(p, '('))
            n = parse_arguments(p, parse_argument, new_node(p, vptq_tpl_call_of, n));
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
    static const uint8_t levels[][7] = {
        [BY_COMPARISON] = {TPL_T_EQ, TPL_T_NE, TPL_T_GE, TPL_T_LE, '<', '>'},
        [BY_SUM] = {'+', '-'},
        [BY_CONCAT] = {'~'},
        [BY_PRODUCT] = {'*', '/', TPL_T_FLOORDIV, '%'}};
    if (level == BY_OR || level == BY_AND)
        return take_name(p, level == BY_OR ? "or" : "and") ? TPL_T_AND + (level == BY_OR) : 0;
    for (const uint8_t *op = levels[level]; *op; op++)
        if (take(p, *op))
            return *op;
    if (level == BY_COMPARISON && take_name(p, "in"))
        return TPL_T_IN;
    if (level != BY_COMPARISON || !is_name(p, "not") || !token_is(p->token + 1, "in"))
        return 0;
    p->token += 2;
    return TPL_T_NOT_IN;
}

static tpl_node *parse_operators(parser *p, int level)
{
    static tpl_eval_fn *const kinds[] = {vptq_tpl_logic,      vptq_tpl_logic,  vptq_tpl_not,
                                         vptq_tpl_comparison, vptq_tpl_binary, vptq_tpl_binary,
                                         vptq_tpl_binary};
    if (level == BY_SIGN)
        return parse_unary(p, true);
    if (level == BY_NOT && !is_name(p, "not"))
        return parse_operators(p, level + 1);
    if (level == BY_NOT) {
        p->token++;
        enter(p);
        tpl_node *operand = parse_operators(p, BY_NOT);
        leave(p);
        return new_node(p, vptq_tpl_not, operand);
    }
    tpl_node *n = parse_operators(p, level + 1);
    bool chained = false;
    for (int op; (op = take_operator(p, level)) != 0; chained = true) {
        n = new_node(p, kinds[level], n);
        n->op = (uint8_t)op;
        n->chained = chained;
        n->right = parse_operators(p, level + 1);
    }
    if (is(p, TPL_T_POWER))
        FAIL(p, VPTQ_E_UNSUPPORTED, "'**' is not supported");
    return n;
}

/* An expression without a condition. */
static tpl_node *parse_plain(parser *p)
{
    return parse_operators(p, BY_OR);
}

static tpl_node *parse_expression(parser *p)
{
    enter(p);
    tpl_node *n = parse_plain(p);
    while (take_name(p, "if")) {
        n = new_node(p, vptq_tpl_condition, n);
        n->right = parse_plain(p);
        if (take_name(p, "else"))
            n->other = parse_expression(p);
    }
    leave(p);
    return n;
}

/* One item, or several with commas as a TUPLE. */
static tpl_node *parse_tuple(parser *p, parse_fn item)
{
    tpl_node *first = item(p), *last = first;
    if (!is(p, ','))
        return first;
    tpl_node *n = new_list(p, TPL_TUPLE);
    n->items = first;
    for (n->count = 1; take(p, ','); n->count++) {
        if (is(p, TPL_T_PRINT_END) || is(p, TPL_T_TAG_END) || is(p, ')') || is_name(p, "in"))
            break;
        last->next = item(p);
        last = last->next;
    }
    return n;
}

/* ---- statements ---- */

static tpl_node *parse_body(parser *p, const char *const *ends);

/* "%}", then statements up to a tag that begins with one of `ends`: the current token then. */
static tpl_node *parse_block(parser *p, const char *const *ends)
{
    (void)take(p, ':');
    expect(p, TPL_T_TAG_END);
    return parse_body(p, ends);
}

/* The same with one end, which is consumed. */
static tpl_node *parse_until(parser *p, const char *end)
{
    tpl_node *body = parse_block(p, (const char *const[]){end, NULL});
    (void)take_name(p, end);
    return body;
}

/* The statements after "else", if there is one, and the end. */
static tpl_node *parse_else(parser *p, const char *end)
{
    tpl_node *body = take_name(p, "else") ? parse_until(p, end) : NULL;
    (void)take_name(p, end);
    return body;
}

/* A body that no break can leave; `macro`: the macro whose body it is, if any. */
static tpl_node *parse_function(parser *p, const char *end, tpl_node *macro)
{
    unsigned loops = p->r->loops;
    tpl_node *outer = p->macro;
    p->r->loops = 0;
    p->macro = macro ? macro : outer;
    tpl_node *body = parse_until(p, end);
    p->r->loops = loops;
    p->macro = outer;
    return body;
}

static tpl_node *parse_if(parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    tpl_node *first = new_node(p, vptq_tpl_if, NULL), *n = first;
    for (;; n = n->other) {
        n->left = parse_tuple(p, parse_plain);
        n->body = parse_block(p, ends);
        if (!take_name(p, "elif"))
            break;
        n->other = new_node(p, vptq_tpl_if, NULL);
    }
    n->other = parse_else(p, "endif");
    return first;
}

static tpl_node *parse_target(parser *p)
{
    tpl_node *n;
    if (take(p, '(')) {
        enter(p);
        n = parse_tuple(p, parse_target);
        leave(p);
        expect(p, ')');
        return n;
    }
    n = parse_name(p);
    if (n->eval != vptq_tpl_name)
        FAIL(p, VPTQ_E_FORMAT, "a constant cannot be assigned to");
    if (!take(p, '.'))
        return n;
    n = new_node(p, vptq_tpl_attribute_of, n);
    n->value = expect(p, TPL_T_NAME);
    return n;
}

static tpl_node *parse_for(parser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    tpl_node *n = new_node(p, vptq_tpl_for, NULL);
    n->left = parse_tuple(p, parse_target);
    if (!take_name(p, "in"))
        unexpected(p, "'in'");
    n->right = parse_tuple(p, parse_plain);
    if (take_name(p, "if"))
        n->filter = parse_expression(p);
    if (is_name(p, "recursive"))
        FAIL(p, VPTQ_E_UNSUPPORTED, "a recursive loop is not supported");
    p->r->loops++;
    n->body = parse_block(p, ends);
    p->r->loops--;
    n->other = parse_else(p, "endfor");
    return n;
}

/* Filters over the text of a block; `first`: the first one has no '|'. */
static tpl_node *parse_block_filters(parser *p, bool first)
{
    tpl_node *n = new_node(p, vptq_tpl_name, NULL);
    n->value = TPL_LITERAL(TPL_BLOCK_TEXT);
    for (; first || take(p, '|'); first = false)
        n = parse_filter(p, '|', n);
    return n;
}

static tpl_node *parse_set(parser *p)
{
    tpl_node *n = new_node(p, vptq_tpl_set, NULL);
    n->left = parse_tuple(p, parse_target);
    if (take(p, '=')) {
        n->right = parse_tuple(p, parse_expression);
        return n;
    }
    n->eval = vptq_tpl_block;
    n->right = parse_block_filters(p, false);
    n->body = parse_until(p, "endset");
    return n;
}

static tpl_node *parse_filter_block(parser *p)
{
    tpl_node *n = new_node(p, vptq_tpl_block, NULL);
    n->right = parse_block_filters(p, true);
    n->body = parse_until(p, "endfilter");
    return n;
}

static tpl_node *parse_parameter(parser *p)
{
    tpl_node *n = new_node(p, vptq_tpl_name, NULL);
    n->value = expect(p, TPL_T_NAME);
    if (take(p, '='))
        n->left = parse_expression(p);
    return n;
}

static tpl_node *parse_macro(parser *p)
{
    tpl_node *n = new_node(p, vptq_tpl_macro_of, NULL);
    n->value = expect(p, TPL_T_NAME);
    parse_arguments(p, parse_parameter, n);
    n->body = parse_function(p, "endmacro", n);
    return n;
}

static tpl_node *parse_call_block(parser *p)
{
    tpl_node *n = new_node(p, vptq_tpl_call_block, NULL);
    if (is(p, '('))
        parse_arguments(p, parse_parameter, n);
    n->right = parse_expression(p);
    if (n->right->eval != vptq_tpl_call_of)
        FAIL(p, VPTQ_E_FORMAT, "'{%% call %%}' without a call");
    n->body = parse_function(p, "endcall", n);
    return n;
}

static tpl_node *parse_generation(parser *p)
{
    tpl_node *n = new_node(p, vptq_tpl_generation, NULL);
    n->body = parse_function(p, "endgeneration", NULL);
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
                 {"call", parse_call_block},
                 {"filter", parse_filter_block},
                 {"generation", parse_generation}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (take_name(p, table[i].name))
            return table[i].parse(p);
    tpl_value name = p->token->value;
    bool leaves = is_name(p, "break"), known = leaves || is_name(p, "continue");
    if (!is(p, TPL_T_NAME))
        unexpected(p, "a statement");
    else if (known && p->r->loops == 0)
        FAIL(p, VPTQ_E_FORMAT, "'%.*s' outside of a loop", TPL_NAME(name));
    else if ((name.len > 3 && memcmp(name.u.s, "end", 3) == 0) || name.u.s[0] == 'e')
        FAIL(p, VPTQ_E_FORMAT, "unexpected '%.*s'", TPL_NAME(name));
    else if (!known)
        FAIL(p, VPTQ_E_UNSUPPORTED, "statement '%.*s' is not supported", TPL_NAME(name));
    else
        p->token++;
    tpl_node *n = new_node(p, vptq_tpl_jump, NULL);
    n->op = leaves ? TPL_FLOW_BREAK : TPL_FLOW_CONTINUE;
    return n;
}

/* Text, "{{ }}" or "{% %}"; NULL at a tag that begins with one of `ends`. */
static tpl_node *parse_part(parser *p, const char *const *ends)
{
    tpl_node *n;
    bool text = is(p, TPL_T_TEXT), print = take(p, TPL_T_PRINT_BEGIN);
    if (text || print) {
        n = new_node(p, vptq_tpl_print_of, NULL);
        n->right =
            text ? new_constant(p, expect(p, TPL_T_TEXT)) : parse_tuple(p, parse_expression);
        if (print)
            expect(p, TPL_T_PRINT_END);
        return n;
    }
    (void)take(p, TPL_T_TAG_BEGIN);
    for (; *ends; ends++)
        if (is_name(p, *ends))
            return NULL;
    n = parse_statement(p);
    expect(p, TPL_T_TAG_END);
    return n;
}

/* Statements up to a tag that begins with one of `ends`; none: to the end of the template. */
static tpl_node *parse_body(parser *p, const char *const *ends)
{
    tpl_node *body = NULL, **last = &body;
    enter(p);
    while (!is(p, TPL_T_END) && (*last = parse_part(p, ends)) != NULL && !p->r->status)
        last = &(*last)->next;
    leave(p);
    if (is(p, TPL_T_END) && *ends) {
        while (ends[1])
            ends++;
        FAIL(p, VPTQ_E_FORMAT, "the template ends before '%s'", *ends);
    }
    return body;
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
    static const char *const no_ends[] = {NULL};
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
        t->body = parse_body(&p, no_ends);
    if (r.status)
        vptq_template_free(t);
    else
        *out = t;
    return r.status;
}
