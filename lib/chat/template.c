/* Templates from parsing to rendering, and the limits of both. */
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
    if (r->steps > TPL_MAX_STEPS)
        TPL_ERROR(r, "the template takes more than %d steps", TPL_MAX_STEPS);
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
    tpl_run r = {.name = t->name, .line = 1, .err = err, .arena = &t->arena};
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
                 .text = out,
                 .scope = &root};
    if (in->date)
        VPTQ_CHECK(read_date(in->date, &date, err));
    r.date = in->date ? &date : NULL;
    vptq_arena_init(&arena, t->mem);
    tpl_value variables = vptq_tpl_from_json(&r, in->variables);
    if (variables.kind == TPL_DICT)
        root.vars = variables;
    vptq_tpl_run(&r, t->body);
    vptq_arena_release(&arena);
    return r.status;
}
