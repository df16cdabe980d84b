/* Statements of a template. */
#include <stdio.h>
#include <string.h>

#include "lib/chat/internal.h"

/* Names that end a list of statements, at most 3, NULL behind the last. */
typedef const char *const *tpl_ends;

static vptq_status parse_body(tpl_parser *p, tpl_ends ends, tpl_node **first);

static vptq_status block_end(tpl_parser *p)
{
    if (p->token->kind != TPL_T_BLOCK_END) {
        char found[64];
        vptq_tpl_token_text(p->token, found);
        return vptq_tpl_syntax(p, "found %s, expected the end of the tag", found);
    }
    p->token++;
    return VPTQ_OK;
}

/* ":"? "%}" statements up to "{% END", of which END is the current token then. */
static vptq_status parse_statements(tpl_parser *p, tpl_ends ends, tpl_node **first)
{
    (void)vptq_tpl_take_op(p, ':');
    TPL_TRY(block_end(p));
    return parse_body(p, ends, first);
}

/* The same up to "{% END", which is passed. */
static vptq_status parse_until(tpl_parser *p, const char *end, tpl_node **first)
{
    const char *ends[] = {end, NULL};
    TPL_TRY(parse_statements(p, ends, first));
    p->token++;
    return VPTQ_OK;
}

/* A body that is a function of its own: a break cannot leave it. */
static vptq_status parse_function(tpl_parser *p, const char *end, tpl_node *n, bool macro)
{
    unsigned loops = p->loops;
    tpl_node *outer = p->macro;
    p->loops = 0;
    if (macro)
        p->macro = n;
    TPL_TRY(parse_until(p, end, &n->body));
    p->loops = loops;
    p->macro = outer;
    return VPTQ_OK;
}

static vptq_status parse_if(tpl_parser *p, tpl_node **out)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    tpl_node *n, **place = out;
    for (;;) {
        TPL_TRY(vptq_tpl_node(p, TPL_N_IF, &n));
        *place = n;
        TPL_TRY(vptq_tpl_tuple(p, false, &n->a));
        TPL_TRY(parse_statements(p, ends, &n->body));
        if (vptq_tpl_take_name(p, "elif")) {
            place = &n->other;
            continue;
        }
        if (vptq_tpl_take_name(p, "else"))
            return parse_until(p, "endif", &n->other);
        p->token++;
        return VPTQ_OK;
    }
}

static vptq_status parse_for(tpl_parser *p, tpl_node **out)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    tpl_node *n;
    TPL_TRY(vptq_tpl_node(p, TPL_N_FOR, out));
    n = *out;
    TPL_TRY(vptq_tpl_target(p, false, &n->a));
    if (!vptq_tpl_take_name(p, "in"))
        return vptq_tpl_syntax(p, "a for without 'in'");
    TPL_TRY(vptq_tpl_tuple(p, false, &n->b));
    if (vptq_tpl_take_name(p, "if"))
        TPL_TRY(vptq_tpl_expression(p, true, &n->c));
    if (vptq_tpl_is_name(p, "recursive"))
        return vptq_fail(p->err, VPTQ_E_UNSUPPORTED,
                         "%s: line %u: recursive loops are not supported", p->t->name,
                         p->token->line);
    p->loops++;
    TPL_TRY(parse_statements(p, ends, &n->body));
    p->loops--;
    if (vptq_tpl_take_name(p, "else"))
        return parse_until(p, "endfor", &n->other);
    p->token++;
    return VPTQ_OK;
}

static vptq_status parse_set(tpl_parser *p, tpl_node **out)
{
    TPL_TRY(vptq_tpl_node(p, TPL_N_SET, out));
    tpl_node *n = *out;
    TPL_TRY(vptq_tpl_target(p, true, &n->a));
    if (vptq_tpl_take_op(p, '='))
        return vptq_tpl_tuple(p, true, &n->b);
    n->kind = TPL_N_SET_BLOCK;
    TPL_TRY(vptq_tpl_filters(p, false, &n->b));
    return parse_until(p, "endset", &n->body);
}

/* "(a, b=1)" into n->list: NAME nodes with the default in `a`. */
static vptq_status parse_signature(tpl_parser *p, tpl_node *n)
{
    tpl_nodes params = {0};
    bool defaults = false;
    TPL_TRY(vptq_tpl_expect_op(p, '('));
    while (!vptq_tpl_is_op(p, ')')) {
        tpl_node *param;
        if (params.count > 0)
            TPL_TRY(vptq_tpl_expect_op(p, ','));
        TPL_TRY(vptq_tpl_node(p, TPL_N_NAME, &param));
        TPL_TRY(vptq_tpl_symbol(p, &param->name));
        if (vptq_tpl_take_op(p, '=')) {
            TPL_TRY(vptq_tpl_expression(p, true, &param->a));
            defaults = true;
        } else if (defaults) {
            return vptq_tpl_syntax(p,
                                   "a parameter without a default behind one with a default");
        }
        TPL_TRY(vptq_tpl_push(p, &params, param));
    }
    n->list = params.items;
    n->count = params.count;
    return vptq_tpl_expect_op(p, ')');
}

static vptq_status parse_macro(tpl_parser *p, tpl_node **out)
{
    TPL_TRY(vptq_tpl_node(p, TPL_N_MACRO, out));
    TPL_TRY(vptq_tpl_symbol(p, &(*out)->name));
    TPL_TRY(parse_signature(p, *out));
    return parse_function(p, "endmacro", *out, true);
}

static vptq_status parse_call_block(tpl_parser *p, tpl_node **out)
{
    TPL_TRY(vptq_tpl_node(p, TPL_N_CALL_BLOCK, out));
    tpl_node *n = *out;
    if (vptq_tpl_is_op(p, '('))
        TPL_TRY(parse_signature(p, n));
    TPL_TRY(vptq_tpl_expression(p, true, &n->a));
    if (n->a->kind != TPL_N_CALL)
        return vptq_tpl_syntax(p, "a call block without a call");
    return parse_function(p, "endcall", n, true);
}

static vptq_status parse_filter_block(tpl_parser *p, tpl_node **out)
{
    TPL_TRY(vptq_tpl_node(p, TPL_N_FILTER_BLOCK, out));
    TPL_TRY(vptq_tpl_filters(p, true, &(*out)->b));
    return parse_until(p, "endfilter", &(*out)->body);
}

static vptq_status parse_with(tpl_parser *p, tpl_node **out)
{
    tpl_nodes items = {0};
    TPL_TRY(vptq_tpl_node(p, TPL_N_WITH, out));
    while (p->token->kind != TPL_T_BLOCK_END) {
        tpl_node *n;
        if (items.count > 0)
            TPL_TRY(vptq_tpl_expect_op(p, ','));
        TPL_TRY(vptq_tpl_node(p, TPL_N_NAME, &n));
        TPL_TRY(vptq_tpl_symbol(p, &n->name));
        TPL_TRY(vptq_tpl_push(p, &items, n));
        TPL_TRY(vptq_tpl_expect_op(p, '='));
        TPL_TRY(vptq_tpl_expression(p, true, &n));
        TPL_TRY(vptq_tpl_push(p, &items, n));
    }
    (*out)->list = items.items;
    (*out)->count = items.count;
    return parse_until(p, "endwith", &(*out)->body);
}

static vptq_status parse_generation(tpl_parser *p, tpl_node **out)
{
    TPL_TRY(vptq_tpl_node(p, TPL_N_GENERATION, out));
    return parse_function(p, "endgeneration", *out, false);
}

static vptq_status parse_print(tpl_parser *p, tpl_node **out)
{
    TPL_TRY(vptq_tpl_node(p, TPL_N_PRINT, out));
    return vptq_tpl_expression(p, true, &(*out)->a);
}

static vptq_status leave_loop(tpl_parser *p, tpl_node_kind kind, tpl_node **out)
{
    if (p->loops == 0)
        return vptq_tpl_syntax(p, "'%s' outside of a loop",
                               kind == TPL_N_BREAK ? "break" : "continue");
    return vptq_tpl_node(p, kind, out);
}

static vptq_status parse_break(tpl_parser *p, tpl_node **out)
{
    return leave_loop(p, TPL_N_BREAK, out);
}

static vptq_status parse_continue(tpl_parser *p, tpl_node **out)
{
    return leave_loop(p, TPL_N_CONTINUE, out);
}

/* The statement at the current token, a name. */
static vptq_status parse_statement(tpl_parser *p, tpl_node **out)
{
    static const struct {
        const char *name;
        vptq_status (*parse)(tpl_parser *, tpl_node **);
    } table[] = {{"if", parse_if},
                 {"for", parse_for},
                 {"set", parse_set},
                 {"macro", parse_macro},
                 {"call", parse_call_block},
                 {"filter", parse_filter_block},
                 {"with", parse_with},
                 {"generation", parse_generation},
                 {"print", parse_print},
                 {"break", parse_break},
                 {"continue", parse_continue}};
    char found[64];
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (vptq_tpl_is_name(p, table[i].name)) {
            p->token++;
            return table[i].parse(p, out);
        }
    vptq_tpl_token_text(p->token, found);
    static const char *const ends[] = {"end", "else", "elif"};
    for (int i = 0; i < 3; i++)
        if (p->token->kind == TPL_T_NAME && p->token->len >= strlen(ends[i]) &&
            memcmp(p->token->u.text, ends[i], strlen(ends[i])) == 0)
            return vptq_tpl_syntax(p, "unexpected %s", found);
    return vptq_fail(p->err, p->token->kind == TPL_T_NAME ? VPTQ_E_UNSUPPORTED : VPTQ_E_FORMAT,
                     "%s: line %u: the statement %s is not supported", p->t->name,
                     p->token->line, found);
}

static bool at_end(const tpl_parser *p, tpl_ends ends)
{
    for (; ends && *ends; ends++)
        if (vptq_tpl_is_name(p, *ends))
            return true;
    return false;
}

static vptq_status parse_data(tpl_parser *p, tpl_node **out)
{
    TPL_TRY(vptq_tpl_node(p, TPL_N_DATA, out));
    (*out)->value = vptq_tpl_str(p->token->u.text, p->token->len);
    p->token++;
    return VPTQ_OK;
}

static vptq_status parse_variable(tpl_parser *p, tpl_node **out)
{
    p->token++;
    TPL_TRY(vptq_tpl_node(p, TPL_N_PRINT, out));
    TPL_TRY(vptq_tpl_tuple(p, true, &(*out)->a));
    if (p->token->kind != TPL_T_VAR_END) {
        char found[64];
        vptq_tpl_token_text(p->token, found);
        return vptq_tpl_syntax(p, "found %s, expected '}}'", found);
    }
    p->token++;
    return VPTQ_OK;
}

/* Statements up to a tag that begins with one of `ends` (the current token then), or, with
 * NULL, to the end. */
static vptq_status parse_body(tpl_parser *p, tpl_ends ends, tpl_node **first)
{
    tpl_node **place = first;
    *first = NULL;
    TPL_TRY(vptq_tpl_enter(p));
    while (p->token->kind != TPL_T_EOF) {
        tpl_node *n;
        if (p->token->kind == TPL_T_DATA) {
            TPL_TRY(parse_data(p, &n));
        } else if (p->token->kind == TPL_T_VAR_BEGIN) {
            TPL_TRY(parse_variable(p, &n));
        } else {
            p->token++;
            if (at_end(p, ends)) {
                vptq_tpl_leave(p);
                return VPTQ_OK;
            }
            TPL_TRY(parse_statement(p, &n));
            TPL_TRY(block_end(p));
        }
        *place = n;
        place = &n->next;
    }
    vptq_tpl_leave(p);
    if (!ends)
        return VPTQ_OK;
    const char *last = ends[0];
    for (; *ends; ends++)
        last = *ends;
    return vptq_tpl_syntax(p, "the template ends before '%s'", last);
}

vptq_status vptq_tpl_statements(tpl_parser *p)
{
    return parse_body(p, NULL, &p->t->body);
}

/* ---- the template ---- */

void vptq_template_free(vptq_template *t)
{
    if (!t)
        return;
    vptq_mem *mem = t->mem;
    vptq_strmap_release(&t->symbol_ids);
    vptq_arena_release(&t->arena);
    vptq_mem_free(mem, t);
}

vptq_status vptq_template_parse(const char *text, size_t len, const char *name, vptq_mem *mem,
                                vptq_template **out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    tpl_token *tokens;
    if (len > VPTQ_TEMPLATE_LIMIT)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: a template of %zu bytes, at most %d are read",
                         name, len, VPTQ_TEMPLATE_LIMIT);
    if (vptq_utf8_valid_prefix(text, len) < len)
        return vptq_fail(err, VPTQ_E_FORMAT, "%s: is not valid UTF-8 from byte %zu on", name,
                         vptq_utf8_valid_prefix(text, len));
    vptq_template *t = vptq_mem_alloc(mem, 1, sizeof *t, err);
    if (!t)
        return VPTQ_E_NOMEM;
    *t = (vptq_template){.mem = mem};
    vptq_arena_init(&t->arena, mem);
    VPTQ_TRY(vptq_strmap_init(&t->symbol_ids, mem, 64, err));
    t->name = vptq_arena_strdup(&t->arena, name, err);
    if (!t->name)
        VPTQ_TRY(VPTQ_E_NOMEM);
    VPTQ_TRY(vptq_tpl_lex(t, text, len, &tokens, err));
    tpl_parser p = {.t = t, .token = tokens, .err = err};
    st = vptq_tpl_statements(&p);
out:
    if (st)
        vptq_template_free(t);
    else
        *out = t;
    return st;
}
