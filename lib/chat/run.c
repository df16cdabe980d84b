/* Statements of a template, and a rendering as a whole. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/chat/internal.h"

/* ---- bounds and failures ---- */

static vptq_status say(tpl_run *r, vptq_status code, const char *fmt, va_list args,
                       const char *end)
{
    char text[640];
    vsnprintf(text, sizeof text, fmt, args);
    return vptq_fail(r->err, code, "%s: line %u: %s%s", r->t->name, r->line, text, end);
}

vptq_status vptq_tpl_fail(tpl_run *r, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vptq_status st = say(r, VPTQ_E_FORMAT, fmt, args, "");
    va_end(args);
    return st;
}

vptq_status vptq_tpl_unsupported(tpl_run *r, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vptq_status st = say(r, VPTQ_E_UNSUPPORTED, fmt, args, " is not supported");
    va_end(args);
    return st;
}

vptq_status vptq_tpl_step(tpl_run *r, size_t steps)
{
    r->steps += steps;
    return r->steps > TPL_MAX_STEPS
               ? vptq_tpl_fail(r, "the template takes more than %d steps", TPL_MAX_STEPS)
               : VPTQ_OK;
}

vptq_status vptq_tpl_charge(tpl_run *r, size_t bytes)
{
    if (bytes > TPL_MAX_BYTES - r->bytes)
        return vptq_tpl_fail(r, "the template makes more than %zu MiB of values",
                             TPL_MAX_BYTES >> 20);
    r->bytes += bytes;
    return VPTQ_OK;
}

vptq_status vptq_tpl_deeper(tpl_run *r)
{
    return ++r->depth > TPL_MAX_DEPTH
               ? vptq_tpl_fail(r, "nested more than %d deep", TPL_MAX_DEPTH)
               : VPTQ_OK;
}

vptq_status vptq_tpl_alloc(tpl_run *r, size_t count, size_t size, void **out)
{
    enum { LEAST = 64 }; /* what an arena takes for the smallest piece */
    size_t bytes;
    if (!vptq_size_mul(count, size, &bytes) || bytes > TPL_MAX_BYTES)
        bytes = TPL_MAX_BYTES;
    TPL_TRY(vptq_tpl_charge(r, bytes + LEAST));
    *out = vptq_arena_alloc(&r->arena, count, size, r->err);
    return *out ? VPTQ_OK : VPTQ_E_NOMEM;
}

vptq_status vptq_tpl_add(tpl_run *r, vptq_buf *b, const void *data, size_t n)
{
    TPL_TRY(vptq_tpl_charge(r, n));
    TPL_TRY(vptq_tpl_step(r, 1));
    return n > 0 ? vptq_buf_add(b, data, n, r->err) : VPTQ_OK;
}

/* ---- statements ---- */

static vptq_status run_body(tpl_run *r, const tpl_node *first);

static void enter_scope(tpl_run *r, tpl_scope *s)
{
    *s = (tpl_scope){.parent = r->scope};
    r->scope = s;
}

static vptq_status run_scoped(tpl_run *r, const tpl_node *first)
{
    void *scope;
    TPL_TRY(vptq_tpl_alloc(r, 1, sizeof(tpl_scope), &scope)); /* a macro may keep it */
    enter_scope(r, scope);
    TPL_TRY(run_body(r, first));
    r->scope = r->scope->parent;
    return VPTQ_OK;
}

/* What a body prints, as a value; in a scope of its own with `scoped`. */
static vptq_status capture(tpl_run *r, const tpl_node *body, bool scoped, tpl_value *out)
{
    vptq_buf text, *outer = r->out;
    vptq_buf_init(&text, r->arena.mem);
    r->out = &text;
    vptq_status st = scoped ? run_scoped(r, body) : run_body(r, body);
    r->out = outer;
    if (!st)
        return vptq_tpl_take(r, &text, out);
    vptq_buf_release(&text);
    return st;
}

static vptq_status run_print(tpl_run *r, const tpl_node *n)
{
    tpl_value v;
    TPL_TRY(vptq_tpl_eval(r, n->a, &v));
    r->line = n->line;
    return vptq_tpl_print(r, r->out, &v);
}

static vptq_status run_if(tpl_run *r, const tpl_node *n)
{
    tpl_value test;
    TPL_TRY(vptq_tpl_eval(r, n->a, &test));
    return run_body(r, vptq_tpl_truth(&test) ? n->body : n->other);
}

/* The items for which the filter of a for holds. */
static vptq_status filter_items(tpl_run *r, const tpl_node *n, const tpl_list **items)
{
    tpl_value kept;
    size_t count = 0;
    void *scope;
    if (!n->c)
        return VPTQ_OK;
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_LIST, (*items)->count, &kept));
    TPL_TRY(vptq_tpl_alloc(r, 1, sizeof(tpl_scope), &scope));
    enter_scope(r, scope);
    for (size_t i = 0; i < (*items)->count; i++) {
        tpl_value is;
        TPL_TRY(vptq_tpl_assign(r, n->a, &(*items)->items[i]));
        TPL_TRY(vptq_tpl_eval(r, n->c, &is));
        if (vptq_tpl_truth(&is))
            kept.u.list->items[count++] = (*items)->items[i];
    }
    r->scope = r->scope->parent;
    kept.u.list->count = count;
    *items = kept.u.list;
    return VPTQ_OK;
}

/* The symbol of a name, if the template uses it at all. */
static bool symbol_of(const vptq_template *t, const char *name, uint32_t *symbol)
{
    return vptq_strmap_get(&t->symbol_ids, name, strlen(name), symbol);
}

static vptq_status set_named(tpl_run *r, const char *name, const tpl_value *v)
{
    tpl_node target = {.kind = TPL_N_NAME};
    return symbol_of(r->t, name, &target.name) ? vptq_tpl_assign(r, &target, v) : VPTQ_OK;
}

static vptq_status run_items(tpl_run *r, const tpl_node *n, const tpl_list *items)
{
    void *memory;
    TPL_TRY(vptq_tpl_alloc(r, 1, sizeof(tpl_loop), &memory));
    tpl_loop *loop = memory;
    *loop = (tpl_loop){.items = items, .depth = r->loops++};
    TPL_TRY(vptq_tpl_alloc(r, 1, sizeof(tpl_scope), &memory));
    enter_scope(r, memory);
    const tpl_value value = {.kind = TPL_LOOP, .u.loop = loop};
    for (; loop->index < items->count && r->flow != TPL_FLOW_BREAK; loop->index++) {
        r->flow = TPL_FLOW_ON;
        r->scope->count = 0; /* nothing is kept from one round to the next */
        TPL_TRY(set_named(r, "loop", &value));
        TPL_TRY(vptq_tpl_assign(r, n->a, &items->items[loop->index]));
        TPL_TRY(vptq_tpl_step(r, 1));
        TPL_TRY(run_body(r, n->body));
    }
    r->flow = TPL_FLOW_ON;
    r->scope = r->scope->parent;
    r->loops--;
    return VPTQ_OK;
}

static vptq_status run_for(tpl_run *r, const tpl_node *n)
{
    tpl_value over;
    const tpl_list *items;
    TPL_TRY(vptq_tpl_eval(r, n->b, &over));
    TPL_TRY(vptq_tpl_iterate(r, &over, &items));
    TPL_TRY(filter_items(r, n, &items));
    if (items->count == 0)
        return run_scoped(r, n->other);
    return run_items(r, n, items);
}

static vptq_status run_set(tpl_run *r, const tpl_node *n)
{
    tpl_value v;
    if (n->kind == TPL_N_SET) {
        TPL_TRY(vptq_tpl_eval(r, n->b, &v));
    } else {
        TPL_TRY(capture(r, n->body, true, &v));
        if (r->flow != TPL_FLOW_ON)
            return VPTQ_OK;
        TPL_TRY(vptq_tpl_chain(r, n->b, &v));
    }
    r->line = n->line;
    return vptq_tpl_assign(r, n->a, &v);
}

static vptq_status run_filter_block(tpl_run *r, const tpl_node *n)
{
    tpl_value v;
    TPL_TRY(capture(r, n->body, true, &v));
    if (r->flow != TPL_FLOW_ON)
        return VPTQ_OK;
    TPL_TRY(vptq_tpl_chain(r, n->b, &v));
    return vptq_tpl_print(r, r->out, &v);
}

/* The values are those of the scope around. */
static vptq_status run_with(tpl_run *r, const tpl_node *n)
{
    void *values, *scope;
    TPL_TRY(vptq_tpl_alloc(r, n->count / 2, sizeof(tpl_value), &values));
    TPL_TRY(vptq_tpl_alloc(r, 1, sizeof(tpl_scope), &scope));
    for (uint32_t i = 0; i < n->count / 2; i++)
        TPL_TRY(vptq_tpl_eval(r, n->list[2 * i + 1], (tpl_value *)values + i));
    enter_scope(r, scope);
    for (uint32_t i = 0; i < n->count / 2; i++)
        TPL_TRY(vptq_tpl_assign(r, n->list[2 * i], (tpl_value *)values + i));
    TPL_TRY(run_body(r, n->body));
    r->scope = r->scope->parent;
    return VPTQ_OK;
}

/* ---- macros ---- */

static vptq_status make_macro(tpl_run *r, const tpl_node *n, tpl_value *out)
{
    void *macro;
    TPL_TRY(vptq_tpl_alloc(r, 1, sizeof(tpl_macro), &macro));
    *(tpl_macro *)macro = (tpl_macro){n, r->scope};
    *out = (tpl_value){.kind = TPL_MACRO, .u.macro = macro};
    return VPTQ_OK;
}

static vptq_status run_macro(tpl_run *r, const tpl_node *n)
{
    tpl_value v;
    tpl_node target = {.kind = TPL_N_NAME, .name = n->name};
    TPL_TRY(make_macro(r, n, &v));
    return vptq_tpl_assign(r, &target, &v);
}

static vptq_status run_call_block(tpl_run *r, const tpl_node *n)
{
    tpl_value f, caller, v;
    tpl_args args;
    TPL_TRY(vptq_tpl_eval(r, n->a->a, &f));
    TPL_TRY(make_macro(r, n, &caller));
    TPL_TRY(vptq_tpl_eval_args(r, n->a->call, &args, 1));
    tpl_named *named = (tpl_named *)(uintptr_t)args.named; /* there is room for one more */
    named[args.named_count++] = (tpl_named){"caller", 6, caller};
    TPL_TRY(vptq_tpl_call(r, &f, &args, &v));
    return vptq_tpl_print(r, r->out, &v);
}

/* Arguments by name that are no parameters: `caller` and, where the body uses it, `kwargs`. */
static vptq_status extra_named(tpl_run *r, const tpl_node *n, const tpl_args *args,
                               const bool *used)
{
    tpl_value rest;
    TPL_TRY(vptq_tpl_dict(r, TPL_DICT, 0, &rest));
    for (size_t i = 0; i < args->named_count; i++) {
        const tpl_named *a = &args->named[i];
        tpl_value key = vptq_tpl_str(a->name, a->len);
        if (used[i])
            continue;
        if (n->caller && vptq_tpl_same_text(&key, "caller"))
            TPL_TRY(set_named(r, "caller", &a->value));
        else if (n->kwargs)
            TPL_TRY(vptq_tpl_put(r, rest.u.dict, &key, &a->value));
        else
            return vptq_tpl_fail(r, "the macro has no parameter '%.*s'",
                                 a->len < 64 ? (int)a->len : 64, a->name);
    }
    return n->kwargs ? set_named(r, "kwargs", &rest) : VPTQ_OK;
}

static vptq_status bind_parameter(tpl_run *r, const tpl_node *param, size_t i,
                                  const tpl_args *args, bool *used)
{
    const tpl_symbol *s = &r->t->symbols[param->name];
    tpl_value v = {.kind = TPL_MISSING};
    if (i < args->count)
        v = args->items[i];
    for (size_t k = 0; k < args->named_count; k++) {
        const tpl_named *a = &args->named[k];
        if (a->len != s->len || memcmp(a->name, s->text, s->len) != 0)
            continue;
        if (v.kind != TPL_MISSING)
            return vptq_tpl_fail(r, "the macro gets its parameter '%.*s' twice",
                                 s->len < 64 ? (int)s->len : 64, s->text);
        v = a->value;
        used[k] = true;
    }
    if (v.kind == TPL_MISSING && param->a)
        TPL_TRY(vptq_tpl_eval(r, param->a, &v));
    else if (v.kind == TPL_MISSING)
        v = vptq_tpl_undefined(s->text, s->len);
    tpl_node target = {.kind = TPL_N_NAME, .name = param->name};
    return vptq_tpl_assign(r, &target, &v);
}

static vptq_status bind_parameters(tpl_run *r, const tpl_node *n, const tpl_args *args)
{
    void *memory;
    tpl_value rest;
    TPL_TRY(vptq_tpl_alloc(r, args->named_count, sizeof(bool), &memory));
    bool *used = memory;
    for (size_t i = 0; i < args->named_count; i++)
        used[i] = false;
    if (args->count > n->count && !n->varargs)
        return vptq_tpl_fail(r, "the macro takes at most %u arguments, found %zu", n->count,
                             args->count);
    for (uint32_t i = 0; i < n->count; i++)
        TPL_TRY(bind_parameter(r, n->list[i], i, args, used));
    TPL_TRY(extra_named(r, n, args, used));
    if (!n->varargs)
        return VPTQ_OK;
    size_t more = args->count > n->count ? args->count - n->count : 0;
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_TUPLE, more, &rest));
    if (more > 0)
        memcpy(rest.u.list->items, args->items + n->count, more * sizeof(tpl_value));
    return set_named(r, "varargs", &rest);
}

vptq_status vptq_tpl_call_macro(tpl_run *r, const tpl_macro *m, const tpl_args *args,
                                tpl_value *out)
{
    void *scope;
    tpl_scope *outer = r->scope;
    unsigned loops = r->loops;
    TPL_TRY(vptq_tpl_deeper(r));
    TPL_TRY(vptq_tpl_alloc(r, 1, sizeof(tpl_scope), &scope));
    r->scope = m->scope;
    r->loops = 0;
    enter_scope(r, scope);
    TPL_TRY(bind_parameters(r, m->node, args));
    TPL_TRY(capture(r, m->node->body, false, out));
    r->scope = outer;
    r->loops = loops;
    r->depth--;
    return VPTQ_OK;
}

/* ---- a rendering ---- */

static vptq_status run_statement(tpl_run *r, const tpl_node *n)
{
    switch ((tpl_node_kind)n->kind) {
    case TPL_N_DATA:
        return vptq_tpl_add(r, r->out, n->value.u.s, n->value.len);
    case TPL_N_PRINT:
        return run_print(r, n);
    case TPL_N_IF:
        return run_if(r, n);
    case TPL_N_FOR:
        return run_for(r, n);
    case TPL_N_SET:
    case TPL_N_SET_BLOCK:
        return run_set(r, n);
    case TPL_N_MACRO:
        return run_macro(r, n);
    case TPL_N_CALL_BLOCK:
        return run_call_block(r, n);
    case TPL_N_FILTER_BLOCK:
        return run_filter_block(r, n);
    case TPL_N_WITH:
        return run_with(r, n);
    case TPL_N_GENERATION:
        return run_scoped(r, n->body);
    case TPL_N_BREAK:
        r->flow = TPL_FLOW_BREAK;
        return VPTQ_OK;
    case TPL_N_CONTINUE:
        r->flow = TPL_FLOW_CONTINUE;
        return VPTQ_OK;
    default:
        return vptq_tpl_fail(r, "no statement");
    }
}

static vptq_status run_body(tpl_run *r, const tpl_node *first)
{
    TPL_TRY(vptq_tpl_deeper(r));
    for (const tpl_node *n = first; n && r->flow == TPL_FLOW_ON; n = n->next) {
        r->line = n->line;
        TPL_TRY(vptq_tpl_step(r, 1));
        TPL_TRY(run_statement(r, n));
    }
    r->depth--;
    return VPTQ_OK;
}

/* Those of the variables that the template mentions. */
static vptq_status set_variables(tpl_run *r, const json_t *variables)
{
    for (void *at = json_object_iter((json_t *)(uintptr_t)variables); at;
         at = json_object_iter_next((json_t *)(uintptr_t)variables, at)) {
        tpl_node target = {.kind = TPL_N_NAME};
        tpl_value v;
        if (!symbol_of(r->t, json_object_iter_key(at), &target.name))
            continue;
        TPL_TRY(vptq_tpl_from_json(r, json_object_iter_value(at), &v));
        TPL_TRY(vptq_tpl_assign(r, &target, &v));
    }
    return VPTQ_OK;
}

vptq_status vptq_template_render(const vptq_template *t, const vptq_template_input *in,
                                 vptq_buf *out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    tpl_scope root;
    tpl_run r = {.t = t, .err = err, .out = out, .line = 1};
    vptq_arena_init(&r.arena, t->mem);
    enter_scope(&r, &root);
    if (in->date)
        VPTQ_TRY(vptq_tpl_read_date(in->date, r.date, err));
    r.has_date = in->date != NULL;
    VPTQ_TRY(set_variables(&r, in->variables));
    st = run_body(&r, t->body);
out:
    vptq_arena_release(&r.arena);
    return st;
}
