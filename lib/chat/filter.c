/* Filters of templates, by name; those that go through lists are in template_list.c. */
#include <math.h>
#include <string.h>

#include "lib/chat/internal.h"
#include "lib/chat/list.h"

static vptq_status no_arguments(tpl_run *r, const char *what, const tpl_args *args)
{
    return vptq_tpl_bind(r, what, args, NULL, 0, NULL);
}

/* ---- text ---- */

static vptq_status f_string(tpl_run *r, const tpl_value *v, const tpl_args *args,
                            tpl_value *out)
{
    TPL_TRY(no_arguments(r, "string", args));
    return vptq_tpl_string(r, v, out);
}

static vptq_status f_safe(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    TPL_TRY(no_arguments(r, "safe", args));
    TPL_TRY(vptq_tpl_string(r, v, out));
    out->safe = true;
    return VPTQ_OK;
}

static vptq_status f_trim(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    static const char *const names[] = {"chars"};
    tpl_value chars = vptq_tpl_none(), text;
    TPL_TRY(vptq_tpl_bind(r, "trim", args, names, 1, &chars));
    TPL_TRY(vptq_tpl_string(r, v, &text));
    if (chars.kind != TPL_NONE)
        TPL_TRY(vptq_tpl_want_str(r, "what trim takes away", &chars));
    TPL_TRY(vptq_tpl_step(r, text.len / 4 * (1 + chars.len / 8)));
    *out = vptq_tpl_strip(&text, chars.kind == TPL_NONE ? NULL : &chars, true, true);
    return VPTQ_OK;
}

static vptq_status to_case(tpl_run *r, const char *what, const tpl_value *v,
                           const tpl_args *args, tpl_case how, tpl_value *out)
{
    tpl_value text;
    TPL_TRY(no_arguments(r, what, args));
    TPL_TRY(vptq_tpl_string(r, v, &text));
    return vptq_tpl_to_case(r, &text, how, out);
}

static vptq_status f_upper(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    return to_case(r, "upper", v, args, TPL_UPPER, out);
}

static vptq_status f_lower(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    return to_case(r, "lower", v, args, TPL_LOWER, out);
}

static vptq_status f_capitalize(tpl_run *r, const tpl_value *v, const tpl_args *args,
                                tpl_value *out)
{
    return to_case(r, "capitalize", v, args, TPL_CAPITALIZE, out);
}

/* jinja2's title knows words by what stands in front of them: white space and "-({[<". */
static vptq_status title_into(tpl_run *r, const tpl_value *text, tpl_list *parts)
{
    for (size_t at = 0, end; at < text->len; at = end) {
        bool between = false;
        for (end = at; end < text->len;) {
            size_t bytes;
            uint32_t cp = vptq_tpl_char(text->u.s + end, text->len - end, &bytes);
            bool is = vptq_tpl_space(cp) || (cp && cp < 0x80 && strchr("-({[<", (int)cp));
            if (end == at)
                between = is;
            else if (is != between)
                break;
            end += bytes;
        }
        tpl_value word = vptq_tpl_str(text->u.s + at, end - at);
        TPL_TRY(vptq_tpl_to_case(r, &word, TPL_CAPITALIZE, &parts->items[parts->count++]));
    }
    return VPTQ_OK;
}

static vptq_status f_title(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    tpl_value text, parts, nothing = vptq_tpl_str("", 0);
    TPL_TRY(no_arguments(r, "title", args));
    TPL_TRY(vptq_tpl_string(r, v, &text));
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_LIST, text.len, &parts));
    parts.u.list->count = 0;
    TPL_TRY(title_into(r, &text, parts.u.list));
    return vptq_tpl_join(r, &nothing, parts.u.list, true, out);
}

static vptq_status f_replace(tpl_run *r, const tpl_value *v, const tpl_args *args,
                             tpl_value *out)
{
    static const char *const names[] = {"old", "new", "count"};
    tpl_value a[3] = {{.kind = TPL_MISSING}, {.kind = TPL_MISSING}, {.kind = TPL_NONE}}, text;
    int64_t count = -1;
    TPL_TRY(vptq_tpl_bind(r, "replace", args, names, 3, a));
    if (a[0].kind == TPL_MISSING || a[1].kind == TPL_MISSING)
        return vptq_tpl_fail(r, "replace without 'old' and 'new'");
    if (a[2].kind != TPL_NONE)
        TPL_TRY(vptq_tpl_want_int(r, "the count of replace", &a[2], &count));
    TPL_TRY(vptq_tpl_string(r, v, &text));
    TPL_TRY(vptq_tpl_string(r, &a[0], &a[0]));
    TPL_TRY(vptq_tpl_string(r, &a[1], &a[1]));
    return vptq_tpl_replace(r, &text, &a[0], &a[1], count, out);
}

static vptq_status spaces(tpl_run *r, const char *what, const tpl_value *width, tpl_value *out)
{
    int64_t n;
    tpl_value one = vptq_tpl_str(" ", 1);
    if (width->kind == TPL_STR) {
        *out = *width;
        return VPTQ_OK;
    }
    TPL_TRY(vptq_tpl_want_int(r, what, width, &n));
    return vptq_tpl_binary(r, '*', &one, width, out);
}

static vptq_status f_indent(tpl_run *r, const tpl_value *v, const tpl_args *args,
                            tpl_value *out)
{
    static const char *const names[] = {"width", "first", "blank"};
    tpl_value a[3] = {vptq_tpl_int(4), vptq_tpl_bool(false), vptq_tpl_bool(false)};
    tpl_value in, text, lines, newline = vptq_tpl_str("\n", 1);
    TPL_TRY(vptq_tpl_bind(r, "indent", args, names, 3, a));
    TPL_TRY(spaces(r, "the width of indent", &a[0], &in));
    TPL_TRY(vptq_tpl_want_str(r, "what indent moves", v));
    TPL_TRY(vptq_tpl_binary(r, '+', v, &newline, &text)); /* so that an empty text is a line */
    TPL_TRY(vptq_tpl_lines(r, &text, false, &lines));
    tpl_list *l = lines.u.list;
    bool blank = vptq_tpl_truth(&a[2]);
    for (size_t i = 0; i < l->count; i++) {
        bool moves = i > 0 ? blank || l->items[i].len > 0 : vptq_tpl_truth(&a[1]);
        if (moves)
            TPL_TRY(vptq_tpl_binary(r, '+', &in, &l->items[i], &l->items[i]));
    }
    return vptq_tpl_join(r, &newline, l, true, out);
}

static vptq_status f_wordcount(tpl_run *r, const tpl_value *v, const tpl_args *args,
                               tpl_value *out)
{
    tpl_value text;
    int64_t n = 0;
    bool inside = false;
    TPL_TRY(no_arguments(r, "wordcount", args));
    TPL_TRY(vptq_tpl_string(r, v, &text));
    TPL_TRY(vptq_tpl_step(r, text.len / 4));
    for (size_t at = 0, bytes; at < text.len; at += bytes) {
        uint32_t cp = vptq_tpl_char(text.u.s + at, text.len - at, &bytes);
        /* runs of \w, as jinja2 counts them, with everything beyond ASCII taken for a letter */
        bool word = !vptq_tpl_space(cp) &&
                    !(cp < 0x80 && !((cp >= '0' && cp <= '9') || (cp >= 'A' && cp <= 'Z') ||
                                     (cp >= 'a' && cp <= 'z') || cp == '_'));
        n += word && !inside;
        inside = word;
    }
    *out = vptq_tpl_int(n);
    return VPTQ_OK;
}

/* ---- JSON ---- */

static vptq_status json_separators(tpl_run *r, const tpl_value *v, tpl_json_style *s)
{
    if (v->kind != TPL_LIST || v->u.list->count != 2 || v->u.list->items[0].kind != TPL_STR ||
        v->u.list->items[1].kind != TPL_STR)
        return vptq_tpl_fail(r, "the separators of tojson are no pair of strings");
    s->item = v->u.list->items[0];
    s->key = v->u.list->items[1];
    return VPTQ_OK;
}

static vptq_status f_tojson(tpl_run *r, const tpl_value *v, const tpl_args *args,
                            tpl_value *out)
{
    static const char *const names[] = {"ensure_ascii", "indent", "separators", "sort_keys"};
    tpl_value a[4] = {vptq_tpl_bool(false), vptq_tpl_none(), vptq_tpl_none(),
                      vptq_tpl_bool(false)};
    vptq_buf b;
    TPL_TRY(vptq_tpl_bind(r, "tojson", args, names, 4, a));
    tpl_json_style s = {.ascii = vptq_tpl_truth(&a[0]),
                        .sort = vptq_tpl_truth(&a[3]),
                        .indented = a[1].kind != TPL_NONE,
                        .key = vptq_tpl_str(": ", 2)};
    s.item = s.indented ? vptq_tpl_str(",", 1) : vptq_tpl_str(", ", 2);
    if (s.indented)
        TPL_TRY(spaces(r, "the indent of tojson", &a[1], &s.indent));
    if (a[2].kind != TPL_NONE)
        TPL_TRY(json_separators(r, &a[2], &s));
    vptq_buf_init(&b, r->arena.mem);
    vptq_status st = vptq_tpl_json(r, &b, v, &s);
    if (!st)
        return vptq_tpl_take(r, &b, out);
    vptq_buf_release(&b);
    return st;
}

/* ---- numbers ---- */

static vptq_status f_int(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    static const char *const names[] = {"default", "base"};
    tpl_value a[2] = {vptq_tpl_int(0), vptq_tpl_int(10)};
    int64_t base, i;
    double f;
    TPL_TRY(vptq_tpl_bind(r, "int", args, names, 2, a));
    TPL_TRY(vptq_tpl_want_int(r, "the base of int", &a[1], &base));
    if (base != 10 && base != 16 && base != 8 && base != 2)
        return vptq_tpl_unsupported(r, "int in a base of %lld", (long long)base);
    *out = a[0];
    if (v->kind == TPL_UNDEFINED)
        return vptq_tpl_fail(r, "'%.*s' is undefined, and no integer",
                             v->len < 100 ? (int)v->len : 100, v->u.s ? v->u.s : "");
    if (v->kind == TPL_INT || v->kind == TPL_BOOL)
        *out = vptq_tpl_int(v->u.i);
    bool has_float = v->kind == TPL_FLOAT;
    f = has_float ? v->u.f : 0;
    if (v->kind == TPL_STR) {
        if (base != 10 && v->len > 1 && v->u.s[0] == '0')
            return vptq_tpl_unsupported(r, "int of a text with a mark of its base");
        if (vptq_tpl_read_int(v, (int)base, &i))
            *out = vptq_tpl_int(i);
        else
            has_float = vptq_tpl_read_float(v, &f);
    }
    if (has_float && isfinite(f)) {
        if (!(fabs(f) < 0x1p63))
            return vptq_tpl_fail(r, "an integer is over 64 bits");
        *out = vptq_tpl_int((int64_t)f);
    }
    return VPTQ_OK;
}

static vptq_status f_float(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    static const char *const names[] = {"default"};
    tpl_value other = vptq_tpl_float(0);
    double f;
    TPL_TRY(vptq_tpl_bind(r, "float", args, names, 1, &other));
    if (v->kind == TPL_UNDEFINED)
        return vptq_tpl_fail(r, "'%.*s' is undefined, and no float",
                             v->len < 100 ? (int)v->len : 100, v->u.s ? v->u.s : "");
    *out = other;
    if (vptq_tpl_is_number(v))
        *out = vptq_tpl_float(vptq_tpl_number(v));
    else if (v->kind == TPL_STR && vptq_tpl_read_float(v, &f))
        *out = vptq_tpl_float(f);
    return VPTQ_OK;
}

static vptq_status f_abs(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    tpl_value zero = vptq_tpl_int(0);
    TPL_TRY(no_arguments(r, "abs", args));
    if (!vptq_tpl_is_number(v))
        return vptq_tpl_fail(r, "abs of %s", vptq_tpl_type(v));
    if (v->kind == TPL_FLOAT)
        *out = vptq_tpl_float(fabs(v->u.f));
    else if (v->u.i < 0)
        return vptq_tpl_binary(r, '-', &zero, v, out);
    else
        *out = vptq_tpl_int(v->u.i);
    return VPTQ_OK;
}

static vptq_status f_round(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    static const char *const names[] = {"precision", "method"};
    tpl_value a[2] = {vptq_tpl_int(0), vptq_tpl_str("common", 6)};
    TPL_TRY(vptq_tpl_bind(r, "round", args, names, 2, a));
    if (!vptq_tpl_is_number(v))
        return vptq_tpl_fail(r, "round of %s", vptq_tpl_type(v));
    if (a[0].kind != TPL_INT || a[0].u.i != 0)
        return vptq_tpl_unsupported(r, "round to other places than whole numbers");
    if (vptq_tpl_same_text(&a[1], "common") && v->kind != TPL_FLOAT)
        *out = vptq_tpl_int(v->u.i);
    else if (vptq_tpl_same_text(&a[1], "common"))
        *out = vptq_tpl_float(nearbyint(v->u.f));
    else if (vptq_tpl_same_text(&a[1], "ceil"))
        *out = vptq_tpl_float(ceil(vptq_tpl_number(v)));
    else if (vptq_tpl_same_text(&a[1], "floor"))
        *out = vptq_tpl_float(floor(vptq_tpl_number(v)));
    else
        return vptq_tpl_fail(r, "the method of round is not common, ceil or floor");
    return VPTQ_OK;
}

/* ---- values ---- */

static vptq_status f_default(tpl_run *r, const tpl_value *v, const tpl_args *args,
                             tpl_value *out)
{
    static const char *const names[] = {"default_value", "boolean"};
    tpl_value a[2] = {vptq_tpl_str("", 0), vptq_tpl_bool(false)};
    TPL_TRY(vptq_tpl_bind(r, "default", args, names, 2, a));
    bool other = v->kind == TPL_UNDEFINED || (vptq_tpl_truth(&a[1]) && !vptq_tpl_truth(v));
    *out = other ? a[0] : *v;
    return VPTQ_OK;
}

static vptq_status f_length(tpl_run *r, const tpl_value *v, const tpl_args *args,
                            tpl_value *out)
{
    size_t n;
    TPL_TRY(no_arguments(r, "length", args));
    TPL_TRY(vptq_tpl_length(r, v, &n));
    *out = vptq_tpl_int((int64_t)n);
    return VPTQ_OK;
}

/* As getattr alone: keys do not count, so that of what templates hold only namespaces have any.
 */
static vptq_status f_attr(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    static const char *const names[] = {"name"};
    tpl_value name = {.kind = TPL_MISSING};
    TPL_TRY(vptq_tpl_bind(r, "attr", args, names, 1, &name));
    TPL_TRY(vptq_tpl_want_str(r, "the name of attr", &name));
    if (v->kind != TPL_NAMESPACE && v->kind != TPL_LOOP)
        return vptq_tpl_unsupported(r, "attr of %s", vptq_tpl_type(v));
    return vptq_tpl_attribute(r, v, name.u.s, name.len, out);
}

const tpl_function *vptq_tpl_filter(const char *name, size_t len)
{
    static const tpl_function table[] = {{"string", f_string, false},
                                         {"safe", f_safe, false},
                                         {"trim", f_trim, false},
                                         {"upper", f_upper, false},
                                         {"lower", f_lower, false},
                                         {"capitalize", f_capitalize, false},
                                         {"title", f_title, false},
                                         {"replace", f_replace, false},
                                         {"indent", f_indent, false},
                                         {"wordcount", f_wordcount, false},
                                         {"tojson", f_tojson, false},
                                         {"int", f_int, false},
                                         {"float", f_float, false},
                                         {"abs", f_abs, false},
                                         {"round", f_round, false},
                                         {"default", f_default, false},
                                         {"d", f_default, false},
                                         {"length", f_length, false},
                                         {"count", f_length, false},
                                         {"attr", f_attr, false},
                                         {"batch", NULL, false},
                                         {"center", NULL, false},
                                         {"e", NULL, false},
                                         {"escape", NULL, false},
                                         {"filesizeformat", NULL, false},
                                         {"forceescape", NULL, false},
                                         {"format", NULL, false},
                                         {"groupby", NULL, false},
                                         {"pprint", NULL, false},
                                         {"random", NULL, false},
                                         {"slice", NULL, false},
                                         {"striptags", NULL, false},
                                         {"truncate", NULL, false},
                                         {"urlencode", NULL, false},
                                         {"urlize", NULL, false},
                                         {"wordwrap", NULL, false},
                                         {"xmlattr", NULL, false}};
    const tpl_function *f =
        vptq_tpl_lookup_function(table, sizeof table / sizeof *table, name, len);
    return f ? f : vptq_tpl_list_filter(name, len);
}
