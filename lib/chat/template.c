/* Templates: the limits of a run, the evaluation of the tree (variables, statements, macros,
 * expressions), parsing and rendering. */
#define _GNU_SOURCE /* timegm, strptime */
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "lib/chat/internal.h"

struct vptq_template {
    vptq_mem *mem;
    vptq_arena arena;
    const char *name;
    tpl_node *body;
};

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
    if (r->steps > r->max_steps)
        TPL_ERROR(r, "the template takes more than %zu steps", r->max_steps);
    if (!r->status)
        r->status = vptq_check_cancel(r->ctx, r->err);
    return !r->status;
}

static bool charge(tpl_run *r, size_t bytes)
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
    if (!charge(r, fits ? count * size + ARENA_OVERHEAD : TPL_MAX_BYTES + 1))
        return NULL;
    void *p = vptq_arena_alloc(r->arena, count, size, r->err);
    r->status = p ? VPTQ_OK : VPTQ_E_NOMEM;
    return p;
}

void vptq_tpl_add(tpl_run *r, const char *s, size_t len)
{
    if (len > 0 && vptq_tpl_step(r, 1) && charge(r, len))
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

static tpl_value eval(tpl_run *r, const tpl_node *n);

/* ---- variables ---- */

static tpl_value *find_variable(tpl_run *r, tpl_value name)
{
    tpl_value *value = NULL;
    for (const tpl_scope *s = r->scope; s && !value; s = s->parent)
        value = vptq_tpl_dict_find(r, &s->vars, name);
    return value;
}

static tpl_value value_of(tpl_run *r, tpl_value name)
{
    const tpl_value *value = find_variable(r, name);
    const tpl_function *global = value ? NULL : vptq_tpl_function(name, TPL_GLOBAL);
    if (global && (r->date || !tpl_is(name, "strftime_now")))
        return vptq_tpl_bound(r, global, TPL_NULL);
    return value ? *value : TPL_NO_VALUE(name);
}

static void set_variable(tpl_run *r, tpl_value name, tpl_value v)
{
    vptq_tpl_dict_set(r, &r->scope->vars, name, v);
}

static void assign(tpl_run *r, const tpl_node *target, tpl_value v)
{
    if (target->kind == TPL_N_NAME) {
        set_variable(r, target->value, v);
    } else if (target->kind == TPL_N_ATTRIBUTE) {
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

/* Opens a scope, which lives in the arena because a macro may keep it; returns the outer one.
 */
static tpl_scope *open_scope(tpl_run *r, tpl_scope *parent)
{
    tpl_scope *outer = r->scope, *s = vptq_tpl_alloc(r, 1, sizeof *s);
    if (s)
        *s = (tpl_scope){parent, TPL_EMPTY};
    r->scope = s ? s : outer;
    return outer;
}

/* ---- statements ---- */

/* The value of the last one. */
static tpl_value run_body(tpl_run *r, const tpl_node *first)
{
    tpl_value v = TPL_NO_VALUE(TPL_LITERAL("a missing else"));
    for (const tpl_node *n = first; n && r->flow == TPL_FLOW_ON && !r->status; n = n->next)
        v = eval(r, n);
    return v;
}

/* Runs the statements of a template or macro: its output follows r->text. */
static void run_all(tpl_run *r, const tpl_node *body)
{
    (void)run_body(r, body);
    if (r->flow != TPL_FLOW_ON)
        TPL_ERROR(r, "'break' or 'continue' outside of a loop");
}

static void run_scoped(tpl_run *r, const tpl_node *body)
{
    tpl_scope *outer = open_scope(r, r->scope);
    (void)run_body(r, body);
    r->scope = outer;
}

/* The items for which the filter of a loop holds. */
static tpl_value filter_items(tpl_run *r, const tpl_node *n, tpl_value items)
{
    tpl_value kept = TPL_EMPTY;
    tpl_scope *outer = open_scope(r, r->scope);
    for (uint32_t i = 0; i < items.len && vptq_tpl_step(r, 1); i++) {
        assign(r, n->left, items.u.items[i]);
        if (vptq_tpl_truth(eval(r, n->filter)))
            vptq_tpl_append(r, &kept, items.u.items[i]);
    }
    r->scope = outer;
    return kept;
}

/* Sets the attributes of the variable `loop`. */
static void set_loop(tpl_run *r, tpl_value *loop, tpl_value items, uint32_t i)
{
    const tpl_value none = TPL_NO_VALUE(TPL_LITERAL("an item outside of the loop"));
    const tpl_value attributes[] = {
        TPL_LITERAL("index"),     TPL_INTEGER(i + 1),
        TPL_LITERAL("index0"),    TPL_INTEGER(i),
        TPL_LITERAL("revindex"),  TPL_INTEGER(items.len - i),
        TPL_LITERAL("revindex0"), TPL_INTEGER(items.len - i - 1),
        TPL_LITERAL("length"),    TPL_INTEGER(items.len),
        TPL_LITERAL("first"),     TPL_BOOLEAN(i == 0),
        TPL_LITERAL("last"),      TPL_BOOLEAN(i + 1 == items.len),
        TPL_LITERAL("previtem"),  i > 0 ? items.u.items[i - 1] : none,
        TPL_LITERAL("nextitem"),  i + 1 < items.len ? items.u.items[i + 1] : none};
    loop->len = 0;
    for (size_t k = 0; k < sizeof attributes / sizeof *attributes; k++)
        vptq_tpl_append(r, loop, attributes[k]);
}

static void run_for(tpl_run *r, const tpl_node *n)
{
    tpl_value items = vptq_tpl_iterate(r, eval(r, n->right));
    if (n->filter)
        items = filter_items(r, n, items);
    if (items.len == 0) {
        run_scoped(r, n->other);
        return;
    }
    tpl_value loop = vptq_tpl_namespace(r, TPL_EMPTY);
    tpl_scope *outer = open_scope(r, r->scope), *scope = r->scope;
    for (uint32_t i = 0; i < items.len && r->flow != TPL_FLOW_BREAK && vptq_tpl_step(r, 1);
         i++) {
        r->flow = TPL_FLOW_ON;
        scope->vars.len = 0; /* an iteration sees nothing of the previous one */
        set_loop(r, loop.u.dict, items, i);
        set_variable(r, TPL_LITERAL("loop"), loop);
        assign(r, n->left, items.u.items[i]);
        (void)run_body(r, n->body);
    }
    r->flow = TPL_FLOW_ON;
    r->scope = outer;
}

static void run_set(tpl_run *r, const tpl_node *n)
{
    size_t start = r->text->len;
    if (n->body)
        run_scoped(r, n->body);
    assign(r, n->left, n->right ? eval(r, n->right) : vptq_tpl_take(r, start));
}

static void define_macro(tpl_run *r, const tpl_node *n)
{
    tpl_macro *m = vptq_tpl_alloc(r, 1, sizeof *m);
    if (!m)
        return;
    *m = (tpl_macro){n, r->scope};
    set_variable(r, n->value, (tpl_value){.kind = TPL_MACRO, .u.macro = m});
}

/* ---- expressions ---- */

static tpl_value list_of(tpl_run *r, const tpl_node *n)
{
    tpl_value list = vptq_tpl_list(r, (tpl_kind)n->op, n->count);
    const tpl_node *item = n->items;
    for (uint32_t i = 0; i < list.len; item = item->next, i++)
        list.u.items[i] = eval(r, item);
    return list;
}

static tpl_value dict_of(tpl_run *r, const tpl_node *n)
{
    tpl_value items = list_of(r, n), dict = TPL_EMPTY;
    dict.kind = TPL_DICT;
    for (uint32_t i = 0; i + 1 < items.len && !r->status; i += 2)
        vptq_tpl_dict_set(r, &dict, items.u.items[i], items.u.items[i + 1]);
    return dict;
}

static tpl_args args_of(tpl_run *r, const tpl_node *n)
{
    tpl_args args = {TPL_EMPTY, TPL_EMPTY};
    for (const tpl_node *a = n->items; a && !r->status; a = a->next) {
        bool named = a->kind == TPL_N_KEYWORD;
        tpl_value v = eval(r, named ? a->left : a);
        if (named)
            vptq_tpl_append(r, &args.named, a->value);
        vptq_tpl_append(r, named ? &args.named : &args.list, v);
    }
    r->line = n->line;
    return args;
}

static void bind_parameters(tpl_run *r, const tpl_node *macro, tpl_args args)
{
    uint32_t i = 0, used = 0;
    for (const tpl_node *p = macro->items; p && vptq_tpl_step(r, 1); p = p->next, i++) {
        const tpl_value *named = vptq_tpl_dict_find(r, &args.named, p->value);
        if (named && i < args.list.len)
            TPL_ERROR(r, "the macro gets its parameter '%.*s' twice", TPL_NAME(p->value));
        used += named != NULL;
        set_variable(r, p->value,
                     named               ? *named
                     : i < args.list.len ? args.list.u.items[i]
                     : p->left           ? eval(r, p->left)
                                         : TPL_NO_VALUE(p->value));
    }
    if (args.list.len > macro->count)
        TPL_ERROR(r, "the macro takes at most %u arguments, found %u", macro->count,
                  args.list.len);
    if (2 * used < args.named.len)
        TPL_ERROR(r, "the macro has no parameter for a named argument");
}

static tpl_value call_macro(tpl_run *r, const tpl_macro *m, tpl_args args)
{
    size_t start = r->text->len;
    tpl_scope *outer = open_scope(r, m->scope);
    bind_parameters(r, m->node, args);
    run_all(r, m->node->body);
    r->scope = outer;
    return vptq_tpl_take(r, start);
}

static tpl_value call(tpl_run *r, const tpl_node *n)
{
    tpl_value f = eval(r, n->left);
    tpl_args args = args_of(r, n);
    if (f.kind == TPL_MACRO)
        return call_macro(r, f.u.macro, args);
    if (f.kind == TPL_FUNCTION)
        return vptq_tpl_call(r, f.u.method->function, f.u.method->self, args);
    if (f.kind != TPL_UNDEFINED)
        return TPL_ERROR(r, "%s cannot be called", vptq_tpl_type(f));
    if (n->left->kind == TPL_N_ATTRIBUTE)
        return TPL_UNSUPPORTED(r, "method '%.*s' is not supported", TPL_NAME(f));
    return TPL_ERROR(r, "'%.*s' is undefined and cannot be called", TPL_NAME(f));
}

/* A filter or test. */
static tpl_value apply(tpl_run *r, const tpl_node *n)
{
    const tpl_function *f = vptq_tpl_function(n->value, n->op);
    tpl_value v = eval(r, n->left);
    tpl_args args = args_of(r, n);
    return f ? vptq_tpl_call(r, f, v, args)
             : TPL_UNSUPPORTED(r, "%s '%.*s' is not supported",
                               n->op == TPL_FILTER ? "filter" : "test", TPL_NAME(n->value));
}

static tpl_value binary(tpl_run *r, const tpl_node *n)
{
    tpl_value left = eval(r, n->left);
    if (n->op == '&' || n->op == '|')
        return vptq_tpl_truth(left) == (n->op == '|') ? left : eval(r, n->right);
    tpl_value right = eval(r, n->right);
    r->line = n->line;
    return vptq_tpl_binary(r, n->op, left, right);
}

/* ---- nodes ---- */

static tpl_value eval_node(tpl_run *r, const tpl_node *n)
{
    tpl_value v;
    switch (n->kind) {
    case TPL_N_CONSTANT:
        return n->value;
    case TPL_N_NAME:
        return value_of(r, n->value);
    case TPL_N_LIST:
        return list_of(r, n);
    case TPL_N_DICT:
        return dict_of(r, n);
    case TPL_N_ATTRIBUTE:
        return vptq_tpl_get(r, eval(r, n->left), n->value, true);
    case TPL_N_SLICE:
        v = eval(r, n->left);
        return vptq_tpl_slice(r, v, list_of(r, n));
    case TPL_N_CALL:
        return call(r, n);
    case TPL_N_APPLY:
        return apply(r, n);
    case TPL_N_NOT:
        return TPL_BOOLEAN(!vptq_tpl_truth(eval(r, n->left)));
    case TPL_N_BINARY:
        return binary(r, n);
    case TPL_N_IF:
        return run_body(r, vptq_tpl_truth(eval(r, n->left)) ? n->body : n->other);
    case TPL_N_PRINT:
        vptq_tpl_print(r, eval(r, n->left));
        break;
    case TPL_N_FOR:
        run_for(r, n);
        break;
    case TPL_N_SET:
        run_set(r, n);
        break;
    case TPL_N_MACRO:
        define_macro(r, n);
        break;
    case TPL_N_SCOPE:
        run_scoped(r, n->body);
        break;
    default: /* TPL_N_JUMP */
        r->flow = (tpl_flow)n->op;
        break;
    }
    return TPL_NULL;
}

static tpl_value eval(tpl_run *r, const tpl_node *n)
{
    tpl_value v = TPL_NULL;
    r->line = n->line;
    if (vptq_tpl_step(r, 1) && vptq_tpl_enter(r, TPL_MAX_DEPTH))
        v = eval_node(r, n);
    r->depth--;
    return v;
}

/* ---- parsing ---- */

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
    tpl_run r = {
        .name = t->name, .line = 1, .err = err, .arena = &t->arena, .max_steps = TPL_MAX_STEPS};
    r.status = t->name ? VPTQ_OK : VPTQ_E_NOMEM;
    t->body = vptq_tpl_parse(&r, text, len);
    if (r.status)
        vptq_template_free(t);
    else
        *out = t;
    return r.status;
}

/* ---- rendering ---- */

static vptq_status read_date(const char *text, struct tm *date, vptq_err *err)
{
    const char *form = strlen(text) == 10 ? "%Y-%m-%d" : "%Y-%m-%dT%H:%M:%S";
    const char *end = strptime(text, form, date);
    const struct tm given = *date;
    (void)timegm(date); /* sets the day of the week, and changes what is not a date */
    if (!end || *end || given.tm_year < 1 - 1900 || given.tm_mday != date->tm_mday ||
        given.tm_sec != date->tm_sec)
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
    tpl_scope root = {NULL, TPL_EMPTY};
    tpl_run r = {.name = t->name,
                 .ctx = in->ctx,
                 .err = err,
                 .arena = &arena,
                 .max_steps = in->max_steps ? in->max_steps : TPL_MAX_STEPS,
                 .text = out,
                 .scope = &root};
    if (in->date)
        VPTQ_CHECK(read_date(in->date, &date, err));
    r.date = in->date ? &date : NULL;
    vptq_arena_init(&arena, t->mem);
    tpl_value variables = vptq_tpl_from_json(&r, in->variables);
    if (variables.kind == TPL_DICT)
        root.vars = variables;
    run_all(&r, t->body);
    vptq_arena_release(&arena);
    return r.status;
}
