/* Expressions of a template to values. */
#include <string.h>

#include "lib/chat/internal.h"

/* ---- names ---- */

static bool find_var(const tpl_scope *s, uint32_t name, tpl_value **value)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->vars[i].name == name) {
            *value = &s->vars[i].value;
            return true;
        }
    return false;
}

bool vptq_tpl_lookup(const tpl_run *r, uint32_t name, tpl_value *out)
{
    tpl_value *value;
    for (const tpl_scope *s = r->scope; s; s = s->parent)
        if (find_var(s, name, &value)) {
            *out = *value;
            return true;
        }
    return false;
}

static vptq_status eval_name(tpl_run *r, const tpl_node *n, tpl_value *out)
{
    const tpl_symbol *s = &r->t->symbols[n->name];
    size_t scopes = 0;
    for (const tpl_scope *at = r->scope; at; at = at->parent)
        scopes += 1 + at->count / 8;
    TPL_TRY(vptq_tpl_step(r, scopes));
    if (vptq_tpl_lookup(r, n->name, out))
        return VPTQ_OK;
    const tpl_function *f = vptq_tpl_global(s->text, s->len, r->has_date);
    *out = f ? (tpl_value){.kind = TPL_FUNCTION, .u.function = f}
             : vptq_tpl_undefined(s->text, s->len);
    return VPTQ_OK;
}

static vptq_status set_var(tpl_run *r, tpl_scope *s, uint32_t name, const tpl_value *v)
{
    tpl_value *value;
    if (find_var(s, name, &value)) {
        *value = *v;
        return VPTQ_OK;
    }
    if (s->count == s->cap) {
        uint32_t cap = s->cap ? 2 * s->cap : 4;
        void *more;
        TPL_TRY(vptq_tpl_alloc(r, cap, sizeof *s->vars, &more));
        if (s->count > 0)
            memcpy(more, s->vars, s->count * sizeof *s->vars);
        s->vars = more;
        s->cap = cap;
    }
    s->vars[s->count++] = (tpl_var){name, *v};
    return VPTQ_OK;
}

static vptq_status assign_tuple(tpl_run *r, const tpl_node *target, const tpl_value *v)
{
    const tpl_list *items;
    TPL_TRY(vptq_tpl_iterate(r, v, &items));
    if (items->count != target->count)
        return vptq_tpl_fail(r, "%zu values for %u names", items->count, target->count);
    for (uint32_t i = 0; i < target->count; i++)
        TPL_TRY(vptq_tpl_assign(r, target->list[i], &items->items[i]));
    return VPTQ_OK;
}

vptq_status vptq_tpl_assign(tpl_run *r, const tpl_node *target, const tpl_value *v)
{
    if (target->kind == TPL_N_NAME)
        return set_var(r, r->scope, target->name, v);
    if (target->kind == TPL_N_TUPLE)
        return assign_tuple(r, target, v);
    const tpl_symbol *name = &r->t->symbols[target->name],
                     *attribute = &r->t->symbols[target->attribute];
    tpl_value ns, key = vptq_tpl_str(attribute->text, attribute->len);
    if (!vptq_tpl_lookup(r, target->name, &ns) || ns.kind != TPL_NAMESPACE)
        return vptq_tpl_fail(r, "'%.*s' is no namespace, its attributes cannot be set",
                             name->len < 100 ? (int)name->len : 100, name->text);
    return vptq_tpl_put(r, ns.u.dict, &key, v);
}

/* ---- containers ---- */

static vptq_status eval_list(tpl_run *r, const tpl_node *n, tpl_value *out)
{
    TPL_TRY(vptq_tpl_list(r, n->kind == TPL_N_LIST ? TPL_FORM_LIST : TPL_FORM_TUPLE, n->count,
                          out));
    for (uint32_t i = 0; i < n->count; i++)
        TPL_TRY(vptq_tpl_eval(r, n->list[i], &out->u.list->items[i]));
    return VPTQ_OK;
}

static vptq_status eval_dict(tpl_run *r, const tpl_node *n, tpl_value *out)
{
    TPL_TRY(vptq_tpl_dict(r, TPL_DICT, n->count / 2, out));
    for (uint32_t i = 0; i + 1 < n->count; i += 2) {
        tpl_value key, value;
        TPL_TRY(vptq_tpl_eval(r, n->list[i], &key));
        TPL_TRY(vptq_tpl_eval(r, n->list[i + 1], &value));
        TPL_TRY(vptq_tpl_put(r, out->u.dict, &key, &value));
    }
    return VPTQ_OK;
}

static vptq_status eval_slice(tpl_run *r, const tpl_node *n, const tpl_value *of,
                              tpl_value *out)
{
    const tpl_node *parts[3] = {n->a, n->b, n->c};
    tpl_value bounds[3];
    for (int i = 0; i < 3; i++) {
        bounds[i] = vptq_tpl_none();
        if (parts[i])
            TPL_TRY(vptq_tpl_eval(r, parts[i], &bounds[i]));
    }
    return vptq_tpl_slice(r, of, bounds, out);
}

static vptq_status eval_item(tpl_run *r, const tpl_node *n, tpl_value *out)
{
    tpl_value of, key;
    TPL_TRY(vptq_tpl_eval(r, n->a, &of));
    if (n->b->kind == TPL_N_SLICE)
        return eval_slice(r, n->b, &of, out);
    TPL_TRY(vptq_tpl_eval(r, n->b, &key));
    r->line = n->line;
    return vptq_tpl_subscript(r, &of, &key, out);
}

static vptq_status eval_attribute(tpl_run *r, const tpl_node *n, tpl_value *out)
{
    tpl_value of;
    const tpl_symbol *s = &r->t->symbols[n->attribute];
    TPL_TRY(vptq_tpl_eval(r, n->a, &of));
    r->line = n->line;
    return vptq_tpl_attribute(r, &of, s->text, s->len, out);
}

/* ---- calls ---- */

/* A dict's entries as arguments by name. */
static vptq_status spread_named(tpl_run *r, const tpl_value *v, tpl_named *named, size_t *count)
{
    for (size_t i = 0; i < v->u.dict->count; i++) {
        const tpl_value *key = &v->u.dict->keys[i];
        TPL_TRY(vptq_tpl_want_str(r, "a key behind '**'", key));
        named[(*count)++] = (tpl_named){key->u.s, key->len, v->u.dict->values[i]};
    }
    return VPTQ_OK;
}

vptq_status vptq_tpl_eval_args(tpl_run *r, const tpl_call_node *c, tpl_args *args,
                               size_t spare_named)
{
    static const tpl_call_node none = {.count = 0};
    const tpl_list *star = NULL;
    tpl_value spread = {.kind = TPL_NONE}, v;
    void *items, *named;
    c = c ? c : &none;
    if (c->star) {
        TPL_TRY(vptq_tpl_eval(r, c->star, &v));
        TPL_TRY(vptq_tpl_iterate(r, &v, &star));
    }
    if (c->star_star) {
        TPL_TRY(vptq_tpl_eval(r, c->star_star, &spread));
        if (spread.kind != TPL_DICT)
            return vptq_tpl_fail(r, "%s behind '**', expected a dict", vptq_tpl_type(&spread));
    }
    size_t starred = star ? star->count : 0;
    size_t named_max =
        c->named_count + spare_named + (spread.kind == TPL_DICT ? spread.u.dict->count : 0);
    TPL_TRY(vptq_tpl_alloc(r, c->count + starred, sizeof(tpl_value), &items));
    TPL_TRY(vptq_tpl_alloc(r, named_max, sizeof(tpl_named), &named));
    tpl_value *list = items;
    tpl_named *names = named;
    size_t named_count = 0;
    for (uint32_t i = 0; i < c->count; i++)
        TPL_TRY(vptq_tpl_eval(r, c->items[i], &list[i]));
    if (starred > 0)
        memcpy(list + c->count, star->items, starred * sizeof *list);
    for (uint32_t i = 0; i < c->named_count; i++) {
        const tpl_symbol *s = &r->t->symbols[c->named[i].name];
        TPL_TRY(vptq_tpl_eval(r, c->named[i].value, &v));
        names[named_count++] = (tpl_named){s->text, s->len, v};
    }
    if (spread.kind == TPL_DICT)
        TPL_TRY(spread_named(r, &spread, names, &named_count));
    *args = (tpl_args){c->count + starred, named_count, list, names};
    return VPTQ_OK;
}

static vptq_status call_function(tpl_run *r, const tpl_function *f, const tpl_value *self,
                                 const tpl_args *args, tpl_value *out)
{
    if (f->changes)
        return vptq_tpl_fail(r, "'%s' would change %s, which templates may not", f->name,
                             vptq_tpl_type(self));
    if (!f->call)
        return vptq_tpl_unsupported(r, "the function '%s'", f->name);
    return f->call(r, self, args, out);
}

vptq_status vptq_tpl_call(tpl_run *r, const tpl_value *f, const tpl_args *args, tpl_value *out)
{
    if (f->kind == TPL_MACRO)
        return vptq_tpl_call_macro(r, f->u.macro, args, out);
    if (f->kind == TPL_FUNCTION)
        return call_function(r, f->u.function, f, args, out);
    if (f->kind == TPL_METHOD)
        return call_function(r, f->u.bound->function, &f->u.bound->self, args, out);
    if (f->kind == TPL_UNDEFINED)
        return vptq_tpl_fail(r, "'%.*s' is undefined, and cannot be called",
                             f->len < 100 ? (int)f->len : 100, f->u.s ? f->u.s : "");
    return vptq_tpl_fail(r, "%s cannot be called", vptq_tpl_type(f));
}

static vptq_status eval_call(tpl_run *r, const tpl_node *n, tpl_value *out)
{
    tpl_value f;
    tpl_args args;
    TPL_TRY(vptq_tpl_eval(r, n->a, &f));
    TPL_TRY(vptq_tpl_eval_args(r, n->call, &args, 0));
    r->line = n->line;
    return vptq_tpl_call(r, &f, &args, out);
}

/* A filter or test over a value. */
static vptq_status apply(tpl_run *r, const tpl_node *n, const tpl_value *v, tpl_value *out)
{
    const tpl_symbol *s = &r->t->symbols[n->name];
    bool filter = n->kind == TPL_N_FILTER;
    const tpl_function *f =
        filter ? vptq_tpl_filter(s->text, s->len) : vptq_tpl_test(s->text, s->len);
    tpl_args args;
    TPL_TRY(vptq_tpl_eval_args(r, n->call, &args, 0));
    r->line = n->line;
    if (!f || !f->call)
        return vptq_tpl_unsupported(r, "the %s '%.*s'", filter ? "filter" : "test",
                                    s->len < 64 ? (int)s->len : 64, s->text);
    return f->call(r, v, &args, out);
}

vptq_status vptq_tpl_chain(tpl_run *r, const tpl_node *chain, tpl_value *v)
{
    tpl_value before;
    if (!chain)
        return VPTQ_OK;
    TPL_TRY(vptq_tpl_deeper(r));
    TPL_TRY(vptq_tpl_chain(r, chain->a, v));
    r->depth--;
    before = *v;
    return apply(r, chain, &before, v);
}

static vptq_status eval_filter(tpl_run *r, const tpl_node *n, tpl_value *out)
{
    tpl_value v;
    TPL_TRY(vptq_tpl_eval(r, n->a, &v));
    return apply(r, n, &v, out);
}

/* ---- operators ---- */

static vptq_status eval_unary(tpl_run *r, const tpl_node *n, tpl_value *out)
{
    tpl_value v, zero = vptq_tpl_int(0);
    TPL_TRY(vptq_tpl_eval(r, n->a, &v));
    if (n->kind == TPL_N_NOT) {
        *out = vptq_tpl_bool(!vptq_tpl_truth(&v));
        return VPTQ_OK;
    }
    if (!vptq_tpl_is_number(&v))
        return vptq_tpl_fail(r, "a sign in front of %s", vptq_tpl_type(&v));
    if (v.kind == TPL_FLOAT)
        *out = vptq_tpl_float(n->kind == TPL_N_NEGATIVE ? -v.u.f : v.u.f);
    else
        return vptq_tpl_binary(r, n->kind == TPL_N_NEGATIVE ? '-' : '+', &zero, &v, out);
    return VPTQ_OK;
}

static vptq_status eval_logic(tpl_run *r, const tpl_node *n, tpl_value *out)
{
    TPL_TRY(vptq_tpl_eval(r, n->a, out));
    bool decided = vptq_tpl_truth(out) == (n->kind == TPL_N_OR);
    return decided ? VPTQ_OK : vptq_tpl_eval(r, n->b, out);
}

static vptq_status eval_concat(tpl_run *r, const tpl_node *n, tpl_value *out)
{
    tpl_value items, nothing = vptq_tpl_str("", 0);
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_LIST, n->count, &items));
    for (uint32_t i = 0; i < n->count; i++)
        TPL_TRY(vptq_tpl_eval(r, n->list[i], &items.u.list->items[i]));
    return vptq_tpl_join(r, &nothing, items.u.list, false, out);
}

static vptq_status eval_compare(tpl_run *r, const tpl_node *n, tpl_value *out)
{
    tpl_value left, right;
    TPL_TRY(vptq_tpl_eval(r, n->a, &left));
    for (uint32_t i = 0; i < n->count; i++) {
        bool is;
        TPL_TRY(vptq_tpl_eval(r, n->list[i]->a, &right));
        r->line = n->line;
        TPL_TRY(vptq_tpl_compare(r, n->list[i]->compare, &left, &right, &is));
        *out = vptq_tpl_bool(is);
        if (!is)
            break;
        left = right;
    }
    return VPTQ_OK;
}

static vptq_status eval_binary(tpl_run *r, const tpl_node *n, tpl_value *out)
{
    tpl_value left, right;
    TPL_TRY(vptq_tpl_eval(r, n->a, &left));
    TPL_TRY(vptq_tpl_eval(r, n->b, &right));
    r->line = n->line;
    return vptq_tpl_binary(r, n->op, &left, &right, out);
}

static vptq_status eval_condition(tpl_run *r, const tpl_node *n, tpl_value *out)
{
    tpl_value test;
    TPL_TRY(vptq_tpl_eval(r, n->b, &test));
    if (vptq_tpl_truth(&test))
        return vptq_tpl_eval(r, n->a, out);
    if (n->c)
        return vptq_tpl_eval(r, n->c, out);
    *out = vptq_tpl_undefined("the else of a condition without one", 35);
    return VPTQ_OK;
}

static vptq_status eval_kind(tpl_run *r, const tpl_node *n, tpl_value *out)
{
    switch ((tpl_node_kind)n->kind) {
    case TPL_N_CONST:
        *out = n->value;
        return VPTQ_OK;
    case TPL_N_NAME:
        return eval_name(r, n, out);
    case TPL_N_LIST:
    case TPL_N_TUPLE:
        return eval_list(r, n, out);
    case TPL_N_DICT:
        return eval_dict(r, n, out);
    case TPL_N_ATTR:
        return eval_attribute(r, n, out);
    case TPL_N_ITEM:
        return eval_item(r, n, out);
    case TPL_N_CALL:
        return eval_call(r, n, out);
    case TPL_N_FILTER:
    case TPL_N_TEST:
        return eval_filter(r, n, out);
    case TPL_N_NOT:
    case TPL_N_NEGATIVE:
    case TPL_N_POSITIVE:
        return eval_unary(r, n, out);
    case TPL_N_AND:
    case TPL_N_OR:
        return eval_logic(r, n, out);
    case TPL_N_BINARY:
        return eval_binary(r, n, out);
    case TPL_N_CONCAT:
        return eval_concat(r, n, out);
    case TPL_N_COMPARE:
        return eval_compare(r, n, out);
    case TPL_N_COND:
        return eval_condition(r, n, out);
    default:
        break;
    }
    return vptq_tpl_fail(r, "no expression");
}

vptq_status vptq_tpl_eval(tpl_run *r, const tpl_node *n, tpl_value *out)
{
    TPL_TRY(vptq_tpl_step(r, 1));
    TPL_TRY(vptq_tpl_deeper(r));
    r->line = n->line;
    TPL_TRY(eval_kind(r, n, out));
    r->depth--;
    return VPTQ_OK;
}
