/* Renders the tree of a template: limits, expressions, statements, macros. */
#define _GNU_SOURCE /* timegm */
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "lib/chat/internal.h"

/* ---- failures and limits ---- */

tpl_value vptq_tpl_fail(tpl_run *r, vptq_status code, const char *fmt, ...)
{
    static const char nothing[] = "";
    char text[640];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!r->status)
        r->status = vptq_fail(r->err, code, "%s: line %u: %s", r->name, r->line, text);
    return (tpl_value){.kind = TPL_UNDEFINED, .u.s = nothing};
}

bool vptq_tpl_step(tpl_run *r, size_t steps)
{
    r->steps += steps;
    if (r->steps > TPL_MAX_STEPS)
        TPL_ERROR(r, "the template takes more than %d steps", TPL_MAX_STEPS);
    return !r->status;
}

bool vptq_tpl_charge(tpl_run *r, size_t bytes)
{
    if (bytes > TPL_MAX_BYTES - r->bytes)
        TPL_ERROR(r, "the template makes more than %zu MiB of values", TPL_MAX_BYTES >> 20);
    else
        r->bytes += bytes;
    return !r->status;
}

bool vptq_tpl_enter(tpl_run *r, unsigned max)
{
    if (++r->depth > max)
        TPL_ERROR(r, "nested more than %u levels deep", max);
    return !r->status;
}

void *vptq_tpl_alloc(tpl_run *r, size_t count, size_t size)
{
    enum { ARENA_OVERHEAD = 64 }; /* of the smallest piece */
    bool fits = count <= TPL_MAX_BYTES / size;
    if (!vptq_tpl_charge(r, fits ? count * size + ARENA_OVERHEAD : TPL_MAX_BYTES + 1))
        return NULL;
    void *p = vptq_arena_alloc(r->arena, count, size, r->err);
    r->status = p ? VPTQ_OK : VPTQ_E_NOMEM;
    return p;
}

void vptq_tpl_add(tpl_run *r, const char *s, size_t len)
{
    if (len > 0 && vptq_tpl_step(r, 1) && vptq_tpl_charge(r, len))
        r->status = vptq_buf_add(r->text, s, len, r->err);
}

tpl_value vptq_tpl_take(tpl_run *r, size_t start)
{
    size_t len = r->text->len - start;
    char *copy = vptq_tpl_alloc(r, len, 1);
    if (!copy || len == 0)
        return TPL_LITERAL("");
    memcpy(copy, r->text->data + start, len);
    r->text->len = start;
    r->text->data[start] = 0;
    return TPL_TEXT(copy, len);
}

static tpl_value eval(tpl_run *r, const tpl_node *n)
{
    tpl_value v = TPL_NULL;
    r->line = n->line;
    if (vptq_tpl_step(r, 1) && vptq_tpl_enter(r, TPL_MAX_DEPTH))
        v = n->eval(r, n);
    r->depth--;
    return v;
}

/* ---- variables ---- */

static tpl_value *find_variable(tpl_run *r, tpl_value name)
{
    tpl_value *value = NULL;
    for (const tpl_scope *s = r->scope; s && !value; s = s->parent)
        value = vptq_tpl_dict_find(r, &s->vars, name);
    return value;
}

tpl_value vptq_tpl_name(tpl_run *r, const tpl_node *n)
{
    const tpl_value *value = find_variable(r, n->value);
    const tpl_function *global = value ? NULL : vptq_tpl_global(r, n->value);
    return value    ? *value
           : global ? vptq_tpl_bound(r, global, TPL_NULL)
                    : TPL_NO_VALUE(n->value);
}

static void set_variable(tpl_run *r, tpl_value name, tpl_value v)
{
    vptq_tpl_dict_set(r, &r->scope->vars, name, v);
}

static void assign(tpl_run *r, const tpl_node *target, tpl_value v)
{
    if (target->eval == vptq_tpl_name) {
        set_variable(r, target->value, v);
    } else if (target->eval == vptq_tpl_attribute_of) {
        const tpl_value *ns = find_variable(r, target->left->value);
        if (ns && ns->kind == TPL_NAMESPACE)
            vptq_tpl_dict_set(r, ns->u.dict, target->value, v);
        else
            TPL_ERROR(r, "'%.*s' is not a namespace, its attributes cannot be set",
                      TPL_NAME(target->left->value));
    } else {
        tpl_value items = vptq_tpl_iterate(r, v);
        const tpl_node *n = target->items;
        if (items.len != target->count)
            TPL_ERROR(r, "cannot assign %u values to %u names", items.len, target->count);
        for (uint32_t i = 0; n && !r->status; n = n->next, i++)
            assign(r, n, items.u.items[i]);
    }
}

/* A macro may keep the scope, so it lives in the arena.  Never NULL. */
static tpl_scope *new_scope(tpl_run *r, tpl_scope *parent)
{
    tpl_scope *s = vptq_tpl_alloc(r, 1, sizeof *s);
    if (!s)
        return parent ? parent : r->scope;
    *s = (tpl_scope){.parent = parent};
    return s;
}

/* ---- expressions ---- */

tpl_value vptq_tpl_constant(tpl_run *r, const tpl_node *n)
{
    (void)r;
    return n->value;
}

tpl_value vptq_tpl_items_of(tpl_run *r, const tpl_node *n)
{
    tpl_value list = vptq_tpl_list(r, (tpl_kind)n->op, n->count);
    const tpl_node *item = n->items;
    for (uint32_t i = 0; i < list.len; item = item->next, i++)
        list.u.items[i] = eval(r, item);
    return list;
}

tpl_value vptq_tpl_dict_of(tpl_run *r, const tpl_node *n)
{
    tpl_value items = vptq_tpl_items_of(r, n), dict = vptq_tpl_dict(r, TPL_DICT, n->count / 2);
    for (uint32_t i = 0; i + 1 < items.len && !r->status; i += 2)
        vptq_tpl_dict_set(r, dict.u.dict, items.u.items[i], items.u.items[i + 1]);
    return dict;
}

/* Evaluates the arguments of a call; `caller` (may be NULL) becomes one with that name. */
static tpl_args args_of(tpl_run *r, const tpl_node *n, const tpl_value *caller)
{
    tpl_value items = vptq_tpl_list(r, TPL_LIST, n->count);
    tpl_value named = vptq_tpl_list(r, TPL_LIST, 2 * (size_t)n->count + 2);
    tpl_args args = {.items = items.u.items, .named = named.u.items};
    for (const tpl_node *a = n->items; a && !r->status; a = a->next) {
        tpl_value v = eval(r, a);
        if (a->eval != vptq_tpl_keyword) {
            args.items[args.count++] = v;
        } else {
            args.named[2 * args.named_count] = a->value;
            args.named[2 * args.named_count++ + 1] = v;
        }
    }
    if (caller && !r->status) {
        args.named[2 * args.named_count] = TPL_LITERAL("caller");
        args.named[2 * args.named_count++ + 1] = *caller;
    }
    r->line = n->line;
    return args;
}

tpl_value vptq_tpl_keyword(tpl_run *r, const tpl_node *n)
{
    return eval(r, n->left);
}

static tpl_value call_macro(tpl_run *r, const tpl_macro *m, tpl_args args);

static tpl_value call(tpl_run *r, const tpl_node *n, const tpl_value *caller)
{
    tpl_value f = eval(r, n->left);
    tpl_args args = args_of(r, n, caller);
    if (f.kind == TPL_MACRO)
        return call_macro(r, f.u.macro, args);
    if (f.kind == TPL_FUNCTION)
        return vptq_tpl_call(r, f.u.method->function, f.u.method->self, args);
    if (f.kind != TPL_UNDEFINED)
        return TPL_ERROR(r, "%s cannot be called", vptq_tpl_type(f));
    if (n->left->eval == vptq_tpl_attribute_of)
        return TPL_UNSUPPORTED(r, "method '%.*s' is not supported", TPL_NAME(f));
    return TPL_ERROR(r, "'%.*s' is undefined and cannot be called", TPL_NAME(f));
}

tpl_value vptq_tpl_call_of(tpl_run *r, const tpl_node *n)
{
    return call(r, n, NULL);
}

/* A filter ('|') or test. */
tpl_value vptq_tpl_filter_of(tpl_run *r, const tpl_node *n)
{
    bool filter = n->op == '|';
    const tpl_function *f = filter ? vptq_tpl_filter(n->value) : vptq_tpl_test(n->value);
    tpl_value v = eval(r, n->left);
    tpl_args args = args_of(r, n, NULL);
    return f ? vptq_tpl_call(r, f, v, args)
             : TPL_UNSUPPORTED(r, "%s '%.*s' is not supported", filter ? "filter" : "test",
                               TPL_NAME(n->value));
}

tpl_value vptq_tpl_attribute_of(tpl_run *r, const tpl_node *n)
{
    return vptq_tpl_attribute(r, eval(r, n->left), n->value);
}

tpl_value vptq_tpl_item_of(tpl_run *r, const tpl_node *n)
{
    tpl_value v = eval(r, n->left);
    return vptq_tpl_item(r, v, eval(r, n->right));
}

tpl_value vptq_tpl_slice_of(tpl_run *r, const tpl_node *n)
{
    tpl_value v = eval(r, n->left), bounds[3];
    const tpl_node *bound = n->items;
    for (int i = 0; i < 3; i++, bound = bound->next)
        bounds[i] = eval(r, bound);
    return vptq_tpl_slice(r, v, bounds);
}

tpl_value vptq_tpl_not(tpl_run *r, const tpl_node *n)
{
    return TPL_BOOLEAN(!vptq_tpl_truth(eval(r, n->left)));
}

tpl_value vptq_tpl_sign(tpl_run *r, const tpl_node *n)
{
    tpl_value v = eval(r, n->left);
    if (v.kind == TPL_FLOAT)
        return TPL_REAL(n->op == '-' ? -v.u.f : v.u.f);
    if (!tpl_is_integer(v))
        return TPL_ERROR(r, "'%c' of %s", n->op, vptq_tpl_type(v));
    return vptq_tpl_arithmetic(r, n->op, TPL_INTEGER(0), v);
}

/* `and` or `or`: the value that decides. */
tpl_value vptq_tpl_logic(tpl_run *r, const tpl_node *n)
{
    tpl_value left = eval(r, n->left);
    return vptq_tpl_truth(left) == (n->op == TPL_T_OR) ? left : eval(r, n->right);
}

tpl_value vptq_tpl_binary(tpl_run *r, const tpl_node *n)
{
    tpl_value left = eval(r, n->left), right = eval(r, n->right);
    r->line = n->line;
    return vptq_tpl_arithmetic(r, n->op, left, right);
}

/* *right: the last operand, which the next comparison of a chain has on its left. */
static bool compare(tpl_run *r, const tpl_node *n, tpl_value *right)
{
    tpl_value left;
    bool is = true;
    if (n->chained && vptq_tpl_enter(r, TPL_MAX_DEPTH))
        is = compare(r, n->left, &left);
    else
        left = eval(r, n->left);
    r->depth -= n->chained;
    if (!is)
        return false;
    *right = eval(r, n->right);
    r->line = n->line;
    return vptq_tpl_compare(r, n->op, left, *right);
}

tpl_value vptq_tpl_comparison(tpl_run *r, const tpl_node *n)
{
    tpl_value right;
    return TPL_BOOLEAN(compare(r, n, &right));
}

tpl_value vptq_tpl_condition(tpl_run *r, const tpl_node *n)
{
    if (vptq_tpl_truth(eval(r, n->right)))
        return eval(r, n->left);
    return n->other ? eval(r, n->other) : TPL_NO_VALUE(TPL_LITERAL("a missing else"));
}

/* ---- statements ---- */

static void run_body(tpl_run *r, const tpl_node *first)
{
    for (const tpl_node *n = first; n && r->flow == TPL_FLOW_ON && !r->status; n = n->next)
        (void)eval(r, n);
}

static void run_scoped(tpl_run *r, const tpl_node *body)
{
    tpl_scope *outer = r->scope;
    r->scope = new_scope(r, outer);
    run_body(r, body);
    r->scope = outer;
}

tpl_value vptq_tpl_print_of(tpl_run *r, const tpl_node *n)
{
    vptq_tpl_print(r, eval(r, n->right));
    return TPL_NULL;
}

tpl_value vptq_tpl_if(tpl_run *r, const tpl_node *n)
{
    run_body(r, vptq_tpl_truth(eval(r, n->left)) ? n->body : n->other);
    return TPL_NULL;
}

/* The items for which the filter of a loop holds. */
static tpl_value filter_items(tpl_run *r, const tpl_node *n, tpl_value items)
{
    tpl_value kept = vptq_tpl_list(r, TPL_LIST, 0);
    tpl_scope *outer = r->scope;
    r->scope = new_scope(r, outer);
    for (uint32_t i = 0; i < items.len && vptq_tpl_step(r, 1); i++) {
        assign(r, n->left, items.u.items[i]);
        if (vptq_tpl_truth(eval(r, n->filter)))
            vptq_tpl_append(r, &kept, items.u.items[i]);
    }
    r->scope = outer;
    return kept;
}

tpl_value vptq_tpl_for(tpl_run *r, const tpl_node *n)
{
    tpl_value items = vptq_tpl_iterate(r, eval(r, n->right));
    tpl_scope *outer = r->scope;
    if (n->filter)
        items = filter_items(r, n, items);
    tpl_loop *loop = vptq_tpl_alloc(r, 1, sizeof *loop);
    if (items.len == 0)
        run_scoped(r, n->other);
    if (!loop || items.len == 0)
        return TPL_NULL;
    *loop = (tpl_loop){.items = items};
    r->scope = new_scope(r, outer);
    tpl_scope *scope = r->scope;
    for (; loop->index < items.len && r->flow != TPL_FLOW_BREAK && vptq_tpl_step(r, 1);
         loop->index++) {
        r->flow = TPL_FLOW_ON;
        scope->vars.count = 0; /* an iteration sees nothing of the previous one */
        set_variable(r, TPL_LITERAL("loop"), (tpl_value){.kind = TPL_LOOP, .u.loop = loop});
        assign(r, n->left, items.u.items[loop->index]);
        run_body(r, n->body);
    }
    r->flow = TPL_FLOW_ON;
    r->scope = outer;
    return TPL_NULL;
}

tpl_value vptq_tpl_set(tpl_run *r, const tpl_node *n)
{
    assign(r, n->left, eval(r, n->right));
    return TPL_NULL;
}

tpl_value vptq_tpl_block(tpl_run *r, const tpl_node *n)
{
    size_t start = r->text->len;
    run_scoped(r, n->body);
    tpl_value text = vptq_tpl_take(r, start);
    if (r->flow != TPL_FLOW_ON)
        return TPL_NULL;
    set_variable(r, TPL_LITERAL(TPL_BLOCK_TEXT), text);
    return n->left ? vptq_tpl_set(r, n) : vptq_tpl_print_of(r, n);
}

tpl_value vptq_tpl_generation(tpl_run *r, const tpl_node *n)
{
    run_scoped(r, n->body);
    return TPL_NULL;
}

tpl_value vptq_tpl_jump(tpl_run *r, const tpl_node *n)
{
    r->flow = (tpl_flow)n->op;
    return TPL_NULL;
}

static tpl_value make_macro(tpl_run *r, const tpl_node *n)
{
    tpl_macro *m = vptq_tpl_alloc(r, 1, sizeof *m);
    if (m)
        *m = (tpl_macro){n, r->scope};
    return m ? (tpl_value){.kind = TPL_MACRO, .u.macro = m} : TPL_NULL;
}

tpl_value vptq_tpl_macro_of(tpl_run *r, const tpl_node *n)
{
    set_variable(r, n->value, make_macro(r, n));
    return TPL_NULL;
}

tpl_value vptq_tpl_call_block(tpl_run *r, const tpl_node *n)
{
    tpl_value caller = make_macro(r, n);
    vptq_tpl_print(r, call(r, n->right, &caller));
    return TPL_NULL;
}

/* The argument with the name of a parameter, NULL if there is none; *used counts them. */
static const tpl_value *named_argument(tpl_args args, tpl_value name, uint32_t *used)
{
    const tpl_value *found = NULL;
    for (uint32_t i = 0; i < args.named_count; i++) {
        const tpl_value *pair = &args.named[2 * i];
        if (pair->len != name.len || memcmp(pair->u.s, name.u.s, name.len) != 0)
            continue;
        found = pair + 1;
        ++*used;
    }
    return found;
}

static void bind_parameters(tpl_run *r, const tpl_node *macro, tpl_args args)
{
    const tpl_value caller = TPL_LITERAL("caller");
    uint32_t i = 0, used = 0;
    for (const tpl_node *p = macro->items; p && vptq_tpl_step(r, 1); p = p->next, i++) {
        const tpl_value *named = named_argument(args, p->value, &used);
        if (named && i < args.count)
            TPL_ERROR(r, "the macro gets its parameter '%.*s' twice", TPL_NAME(p->value));
        set_variable(r, p->value,
                     named            ? *named
                     : i < args.count ? args.items[i]
                     : p->left        ? eval(r, p->left)
                                      : TPL_NO_VALUE(p->value));
    }
    const tpl_value *block = macro->has_caller ? named_argument(args, caller, &used) : NULL;
    if (block)
        set_variable(r, caller, *block);
    if (args.count > macro->count)
        TPL_ERROR(r, "the macro takes at most %u arguments, found %u", macro->count,
                  args.count);
    if (used < args.named_count)
        TPL_ERROR(r, "the macro has no parameter for a named argument");
}

static tpl_value call_macro(tpl_run *r, const tpl_macro *m, tpl_args args)
{
    tpl_scope *outer = r->scope;
    size_t start = r->text->len;
    r->scope = new_scope(r, m->scope);
    bind_parameters(r, m->node, args);
    run_body(r, m->node->body);
    r->scope = outer;
    return vptq_tpl_take(r, start);
}

/* ---- a rendering ---- */

static vptq_status read_date(const char *text, struct tm *date, vptq_err *err)
{
    int n = -1;
    if (strlen(text) == 10)
        (void)sscanf(text, "%4d-%2d-%2d%n", &date->tm_year, &date->tm_mon, &date->tm_mday, &n);
    else
        (void)sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d%n", &date->tm_year, &date->tm_mon,
                     &date->tm_mday, &date->tm_hour, &date->tm_min, &date->tm_sec, &n);
    date->tm_year -= 1900;
    date->tm_mon--;
    const struct tm given = *date;
    (void)timegm(date); /* sets the day of the week, and changes what is not a date */
    if (n <= 0 || text[n] || given.tm_year < 1 - 1900 || given.tm_mon != date->tm_mon ||
        given.tm_mday != date->tm_mday || given.tm_hour != date->tm_hour ||
        given.tm_min != date->tm_min || given.tm_sec != date->tm_sec)
        return vptq_fail(err, VPTQ_E_ARG,
                         "'%.40s' is not a date, expected YYYY-MM-DD or YYYY-MM-DDThh:mm:ss",
                         text);
    return VPTQ_OK;
}

vptq_status vptq_template_render(const vptq_template *t, const vptq_template_input *in,
                                 vptq_buf *out, vptq_err *err)
{
    struct tm date = {0};
    vptq_arena arena;
    tpl_scope root = {NULL, {0}};
    tpl_run r = {.name = t->name, .err = err, .arena = &arena, .text = out, .scope = &root};
    if (in->date)
        VPTQ_CHECK(read_date(in->date, &date, err));
    r.date = in->date ? &date : NULL;
    vptq_arena_init(&arena, t->mem);
    tpl_value variables = vptq_tpl_from_json(&r, in->variables);
    if (variables.kind == TPL_DICT)
        root.vars = *variables.u.dict;
    run_body(&r, t->body);
    vptq_arena_release(&arena);
    return r.status;
}
