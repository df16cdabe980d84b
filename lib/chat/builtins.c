/* Filters, tests, methods and global functions of templates, as jinja2 and Python define them.
 */
#include <time.h>

#include <utf8proc.h>

#include "lib/chat/internal.h"

/* Variants of functions that have several rows. */
enum { UPPER, LOWER, TITLE };
enum { LEFT = 1, RIGHT = 2 };
enum { ATTRIBUTE = 1, REJECT = 2 };
enum { ITEMS, ITEMS_FILTER };
enum {
    SEQUENCE = 1 << TPL_UNDEFINED | 1 << TPL_STR | 1 << TPL_LIST | 1 << TPL_TUPLE |
               1 << TPL_RANGE | 1 << TPL_DICT
};

static bool is_given(tpl_value v)
{
    return v.kind != TPL_MISSING && v.kind != TPL_NONE;
}

/* Fails if v is not a string. */
static bool want_str(tpl_call *c, tpl_value v)
{
    if (v.kind != TPL_STR)
        TPL_ERROR(c->run, "an argument is %s, expected a string", vptq_tpl_type(v));
    return v.kind == TPL_STR;
}

/* An optional integer. */
static int64_t want_int(tpl_call *c, tpl_value v, int64_t other)
{
    if (is_given(v) && !tpl_is_integer(v))
        TPL_ERROR(c->run, "an argument is %s, expected an integer", vptq_tpl_type(v));
    return is_given(v) ? v.u.i : other;
}

/* ---- strings ---- */

/* variant: marks the text as safe */
static tpl_value string(tpl_call *c)
{
    tpl_value v = vptq_tpl_str(c->run, c->self);
    v.safe = v.safe || c->variant;
    return v;
}

static tpl_value strip(tpl_call *c)
{
    tpl_value text = vptq_tpl_str(c->run, c->self), chars = c->arg[0];
    if (is_given(chars) && !want_str(c, chars))
        return text;
    return vptq_tpl_strip(c->run, text, chars, c->variant & LEFT, c->variant & RIGHT);
}

/* Character by character; of those that become several only the sharp s. */
static tpl_value change_case(tpl_call *c)
{
    tpl_value s = vptq_tpl_str(c->run, c->self);
    size_t start = c->run->text->len;
    bool begins = true; /* a word */
    for (size_t at = 0, bytes; at < s.len && !c->run->status; at += bytes) {
        char text[4];
        uint32_t cp;
        bytes = vptq_tpl_char(s.u.s + at, s.len - at, &cp);
        utf8proc_int32_t u = (utf8proc_int32_t)cp;
        utf8proc_category_t category = utf8proc_category(u);
        u = c->variant == UPPER             ? utf8proc_toupper(u)
            : c->variant == TITLE && begins ? utf8proc_totitle(u)
                                            : utf8proc_tolower(u);
        begins = category < UTF8PROC_CATEGORY_LU || category > UTF8PROC_CATEGORY_LT;
        if (cp == 0xdf && (uint32_t)u != cp)
            vptq_tpl_add(c->run, c->variant == UPPER ? "SS" : "Ss", 2);
        else
            vptq_tpl_add(c->run, text, vptq_utf8_encode((uint32_t)u, text));
    }
    return vptq_tpl_take(c->run, start);
}

static tpl_value replace(tpl_call *c)
{
    tpl_run *r = c->run;
    tpl_value s = vptq_tpl_str(r, c->self), old = c->arg[0], with = c->arg[1];
    size_t start = r->text->len, from = 0, at;
    if (!want_str(c, old) || !want_str(c, with))
        return s;
    if (old.len == 0)
        return TPL_UNSUPPORTED(r, "replace of an empty text is not supported");
    for (; (at = vptq_tpl_find(r, s, old, from)) != SIZE_MAX; from = at + old.len) {
        vptq_tpl_add(r, s.u.s + from, at - from);
        vptq_tpl_add(r, with.u.s, with.len);
    }
    vptq_tpl_add(r, s.u.s + from, s.len - from);
    return vptq_tpl_take(r, start);
}

/* Lines after the first, also that with `first`, unless they are empty. */
static tpl_value indent(tpl_call *c)
{
    tpl_run *r = c->run;
    tpl_value s = c->self;
    int64_t width = want_int(c, c->arg[0], 4);
    size_t start = r->text->len, len = want_str(c, s) ? s.len : 0;
    for (size_t at = 0, end; at <= len && vptq_tpl_step(r, 1); at = end + 1) {
        for (end = at; end < len && s.u.s[end] != '\n' && s.u.s[end] != '\r';)
            end++;
        vptq_tpl_add(r, "\n", at > 0);
        bool indented = at == 0 ? vptq_tpl_truth(c->arg[1]) : end > at;
        for (int64_t i = 0; i < width && indented && !r->status; i++)
            vptq_tpl_add(r, " ", 1);
        vptq_tpl_add(r, s.u.s + at, end - at);
        end += end + 1 < len && s.u.s[end] == '\r' && s.u.s[end + 1] == '\n';
    }
    return vptq_tpl_take(r, start);
}

static tpl_value split(tpl_call *c)
{
    tpl_run *r = c->run;
    tpl_value rest = c->self, sep = c->arg[0], parts = TPL_EMPTY;
    if (!is_given(sep))
        return TPL_UNSUPPORTED(r, "split without a separator is not supported");
    if (!want_str(c, sep) || sep.len == 0)
        return TPL_ERROR(r, "split at an empty separator");
    for (int64_t max = want_int(c, c->arg[1], -1); max != 0; max--) {
        size_t at = vptq_tpl_find(r, rest, sep, 0);
        if (at == SIZE_MAX)
            break;
        vptq_tpl_append(r, &parts, TPL_TEXT(rest.u.s, at));
        at += sep.len;
        rest = TPL_TEXT(rest.u.s + at, rest.len - at);
    }
    vptq_tpl_append(r, &parts, rest);
    return parts;
}

/* startswith and endswith: one string, or one of a tuple */
static tpl_value has_affix(tpl_call *c)
{
    tpl_value parts = c->arg[0], s = c->self;
    bool found = false;
    if (parts.kind != TPL_TUPLE)
        parts = (tpl_value){.kind = TPL_TUPLE, .len = 1, .u.items = &c->arg[0]};
    for (uint32_t i = 0; i < parts.len && !found && vptq_tpl_step(c->run, 1); i++) {
        tpl_value part = parts.u.items[i];
        if (want_str(c, part) && part.len <= s.len) {
            size_t at = c->variant == LEFT ? 0 : s.len - part.len;
            found = vptq_tpl_equal(c->run, TPL_TEXT(s.u.s + at, part.len), part);
        }
    }
    return TPL_BOOLEAN(found);
}

/* ---- one value ---- */

static tpl_value or_default(tpl_call *c)
{
    bool other = c->self.kind == TPL_UNDEFINED ||
                 (vptq_tpl_truth(c->arg[1]) && !vptq_tpl_truth(c->self));
    return !other ? c->self : c->arg[0].kind == TPL_MISSING ? TPL_LITERAL("") : c->arg[0];
}

static tpl_value length(tpl_call *c)
{
    return TPL_INTEGER((int64_t)vptq_tpl_length(c->run, c->self));
}

/* ---- lists and dicts ---- */

static tpl_value list(tpl_call *c)
{
    tpl_value items = vptq_tpl_iterate(c->run, c->self);
    items.kind = TPL_LIST;
    return items;
}

/* The attribute of an item; the item itself if `name` is not given. */
static tpl_value attribute_at(tpl_call *c, tpl_value item, tpl_value name)
{
    if (name.kind == TPL_STR && vptq_tpl_find(c->run, name, TPL_LITERAL("."), 0) != SIZE_MAX)
        return TPL_UNSUPPORTED(c->run, "a path of attributes is not supported");
    return is_given(name) ? vptq_tpl_get(c->run, item, name, false) : item;
}

/* first and last */
static tpl_value end_of(tpl_call *c)
{
    tpl_value items = vptq_tpl_iterate(c->run, c->self);
    if (c->variant == RIGHT && c->self.kind == TPL_ITERATOR)
        return TPL_ERROR(c->run, "last of an iterator");
    if (items.len == 0)
        return TPL_NO_VALUE(TPL_LITERAL("an item of an empty list"));
    return items.u.items[c->variant == RIGHT ? items.len - 1 : 0];
}

static tpl_value join(tpl_call *c)
{
    tpl_value items = list(c), between = vptq_tpl_str(c->run, c->arg[0]);
    size_t start = c->run->text->len;
    for (uint32_t i = 0; i < items.len && vptq_tpl_step(c->run, 1); i++) {
        vptq_tpl_add(c->run, between.u.s, i > 0 ? between.len : 0);
        vptq_tpl_print(c->run, items.u.items[i]);
    }
    return vptq_tpl_take(c->run, start);
}

/* The items in the order of an attribute, strings without case: stable. */
static tpl_value sort(tpl_call *c)
{
    tpl_value in = list(c), out = vptq_tpl_list(c->run, TPL_LIST, in.len);
    tpl_value keys = vptq_tpl_list(c->run, TPL_LIST, in.len);
    for (uint32_t i = 0; i < keys.len && out.len > 0 && vptq_tpl_step(c->run, 1); i++) {
        tpl_call lower = {.run = c->run, .variant = LOWER};
        lower.self = attribute_at(c, in.u.items[i], c->arg[0]);
        tpl_value key = lower.self.kind == TPL_STR ? change_case(&lower) : lower.self;
        uint32_t at = i;
        for (; at > 0 && !vptq_tpl_equal(c->run, keys.u.items[at - 1], key) &&
               vptq_tpl_truth(vptq_tpl_binary(c->run, '<', key, keys.u.items[at - 1]));
             at--) {
            out.u.items[at] = out.u.items[at - 1];
            keys.u.items[at] = keys.u.items[at - 1];
        }
        out.u.items[at] = in.u.items[i];
        keys.u.items[at] = key;
    }
    return out;
}

static tpl_value minimum(tpl_call *c)
{
    c->self = sort(c);
    return end_of(c);
}

/* (key, value) of a dict, which shares its pairs. */
static tpl_value dict_view(tpl_call *c)
{
    tpl_value d = c->self.kind == TPL_UNDEFINED ? TPL_EMPTY : c->self;
    if (c->self.kind != TPL_DICT && c->self.kind != TPL_UNDEFINED)
        return TPL_ERROR(c->run, "items of %s, expected a dict", vptq_tpl_type(c->self));
    tpl_value view = vptq_tpl_list(c->run, TPL_VIEW, d.len / 2);
    for (uint32_t i = 0; i < view.len && vptq_tpl_step(c->run, 1); i++)
        view.u.items[i] =
            (tpl_value){.kind = TPL_TUPLE, .len = 2, .u.items = &d.u.items[2 * i]};
    if (c->variant == ITEMS_FILTER)
        view.kind = TPL_ITERATOR;
    return view;
}

static tpl_value dictsort(tpl_call *c)
{
    if (c->self.kind != TPL_DICT)
        return TPL_ERROR(c->run, "dictsort of %s, expected a dict", vptq_tpl_type(c->self));
    c->self = dict_view(c);
    c->arg[0] = TPL_INTEGER(0); /* the key */
    return sort(c);
}

static tpl_value dict_get(tpl_call *c)
{
    const tpl_value *found = vptq_tpl_dict_find(c->run, &c->self, c->arg[0]);
    return found ? *found : c->arg[1].kind == TPL_MISSING ? TPL_NULL : c->arg[1];
}

/* ---- filters over a filter or test ---- */

/* The items of self, none if it is false. */
static tpl_value items_if_true(tpl_call *c)
{
    return vptq_tpl_truth(c->self) ? list(c) : TPL_EMPTY;
}

/* The filter or test that argument `at` names, if there is one; *rest: the arguments after. */
static const tpl_function *named_function(tpl_call *c, uint32_t at, int use, tpl_args *rest)
{
    *rest = c->args;
    if (c->args.list.len <= at)
        return NULL;
    tpl_value name = c->args.list.u.items[at];
    const tpl_function *f = want_str(c, name) ? vptq_tpl_function(name, use) : NULL;
    if (!f)
        TPL_UNSUPPORTED(c->run, "%s '%.*s' is not supported",
                        use == TPL_TEST ? "test" : "filter", TPL_NAME(name));
    rest->list.u.items += at + 1;
    rest->list.len -= at + 1;
    return f;
}

static tpl_value map(tpl_call *c)
{
    tpl_args rest;
    const tpl_function *f = named_function(c, 0, TPL_FILTER, &rest);
    const tpl_value *named = &c->args.named;
    const tpl_value *attribute = vptq_tpl_dict_find(c->run, named, TPL_LITERAL("attribute")),
                    *other = vptq_tpl_dict_find(c->run, named, TPL_LITERAL("default"));
    if (!f && !attribute)
        return TPL_ERROR(c->run, "map without a filter or attribute");
    tpl_value in = items_if_true(c), out = vptq_tpl_list(c->run, TPL_ITERATOR, in.len);
    for (uint32_t i = 0; i < out.len && vptq_tpl_step(c->run, 1); i++) {
        tpl_value v = f ? vptq_tpl_call(c->run, f, in.u.items[i], rest)
                        : attribute_at(c, in.u.items[i], *attribute);
        out.u.items[i] = v.kind == TPL_UNDEFINED && other && !f ? *other : v;
    }
    return out;
}

/* select, reject, selectattr, rejectattr */
static tpl_value choose(tpl_call *c)
{
    uint32_t at = (c->variant & ATTRIBUTE) != 0;
    tpl_args rest;
    if (c->args.list.len < at)
        return TPL_ERROR(c->run, "the name of an attribute is missing");
    const tpl_function *f = named_function(c, at, TPL_TEST, &rest);
    tpl_value in = items_if_true(c), out = TPL_EMPTY;
    for (uint32_t i = 0; i < in.len && vptq_tpl_step(c->run, 1); i++) {
        tpl_value v = attribute_at(c, in.u.items[i], at ? c->args.list.u.items[0] : TPL_NULL);
        if (vptq_tpl_truth(f ? vptq_tpl_call(c->run, f, v, rest) : v) !=
            ((c->variant & REJECT) != 0))
            vptq_tpl_append(c->run, &out, in.u.items[i]);
    }
    out.kind = TPL_ITERATOR;
    return out;
}

/* ---- tests ---- */

/* variant: a set of kinds */
static tpl_value has_kind(tpl_call *c)
{
    return TPL_BOOLEAN(c->variant >> c->self.kind & 1);
}

static tpl_value is_boolean(tpl_call *c)
{
    return TPL_BOOLEAN(c->self.kind == TPL_BOOL && c->self.u.i == c->variant);
}

/* variant: an operator */
static tpl_value compares(tpl_call *c)
{
    return vptq_tpl_binary(c->run, c->variant, c->self, c->arg[0]);
}

/* ---- global functions ---- */

static tpl_value range(tpl_call *c)
{
    int64_t from = want_int(c, c->arg[0], 0), step = want_int(c, c->arg[2], 1), to = from;
    if (c->arg[1].kind == TPL_MISSING)
        from = 0;
    else
        to = want_int(c, c->arg[1], 0);
    if (step == 0)
        return TPL_ERROR(c->run, "range with a step of 0");
    tpl_value out = TPL_EMPTY;
    out.kind = TPL_RANGE;
    for (; (step > 0 ? from < to : from > to) && vptq_tpl_step(c->run, 1);) {
        if (out.len == TPL_MAX_RANGE)
            return TPL_ERROR(c->run, "range of more than %d items", TPL_MAX_RANGE);
        vptq_tpl_append(c->run, &out, TPL_INTEGER(from));
        if (__builtin_add_overflow(from, step, &from))
            break;
    }
    return out;
}

static tpl_value new_namespace(tpl_call *c)
{
    if (c->args.list.len > 0)
        return TPL_UNSUPPORTED(c->run, "namespace() of a value is not supported");
    return vptq_tpl_namespace(c->run, c->args.named);
}

static tpl_value raise_exception(tpl_call *c)
{
    tpl_value text = vptq_tpl_str(c->run, c->arg[0]);
    size_t len = text.len < 400 ? text.len : vptq_utf8_valid_prefix(text.u.s, 400);
    return TPL_ERROR(c->run, "the template refuses: %.*s", (int)len, text.u.s);
}

static tpl_value strftime_now(tpl_call *c)
{
    /* through a pointer: the compiler cannot check the format of a template */
    size_t (*const format_date)(char *, size_t, const char *, const struct tm *) = strftime;
    char format[64] = "", text[256];
    tpl_value f = c->arg[0];
    size_t start = c->run->text->len, len = 0;
    if (want_str(c, f) && f.len > 0 && f.len < sizeof format) {
        memcpy(format, f.u.s, f.len);
        len = format_date(text, sizeof text, format, c->run->date);
    }
    if (len == 0)
        return TPL_ERROR(c->run, "strftime_now needs a format of 1 to 63 characters");
    vptq_tpl_add(c->run, text, len);
    return vptq_tpl_take(c->run, start);
}

/* ---- the table ---- */

enum { F = TPL_FILTER, T = TPL_TEST, S = TPL_STR_METHOD, D = TPL_DICT_METHOD, G = TPL_GLOBAL };
static const tpl_function table[] = {
    {"boolean", T, has_kind, "", 0, 1 << TPL_BOOL},
    {"default", F, or_default, "default_value boolean", 0, 0},
    {"defined", T, has_kind, "", 0, ~(1 << TPL_UNDEFINED)},
    {"dictsort", F, dictsort, "", 0, ITEMS},
    {"endswith", S, has_affix, "suffix", 1, RIGHT},
    {"eq", T, compares, "other", 1, '='},
    {"equalto", T, compares, "other", 1, '='},
    {"false", T, is_boolean, "", 0, false},
    {"first", F, end_of, "", 0, LEFT},
    {"get", D, dict_get, "key default", 1, 0},
    {"indent", F, indent, "width first", 0, 0},
    {"items", F, dict_view, "", 0, ITEMS_FILTER},
    {"items", D, dict_view, "", 0, ITEMS},
    {"iterable", T, has_kind, "", 0, SEQUENCE | 1 << TPL_VIEW | 1 << TPL_ITERATOR},
    {"join", F, join, "d", 0, 0},
    {"last", F, end_of, "", 0, RIGHT},
    {"length", F, length, "", 0, 0},
    {"list", F, list, "", 0, 0},
    {"lower", F, change_case, "", 0, LOWER},
    {"lstrip", S, strip, "chars", 0, LEFT},
    {"map", F, map, "*", 0, 0},
    {"mapping", T, has_kind, "", 0, 1 << TPL_DICT},
    {"min", F, minimum, "", 0, LEFT},
    {"namespace", G, new_namespace, "*", 0, 0},
    {"none", T, has_kind, "", 0, 1 << TPL_NONE},
    {"number", T, has_kind, "", 0, 1 << TPL_BOOL | 1 << TPL_INT | 1 << TPL_FLOAT},
    {"raise_exception", G, raise_exception, "message", 1, 0},
    {"range", G, range, "start stop step", 1, 0},
    {"reject", F, choose, "*", 0, REJECT},
    {"rejectattr", F, choose, "*", 0, REJECT | ATTRIBUTE},
    {"replace", F | S, replace, "old new", 2, 0},
    {"rstrip", S, strip, "chars", 0, RIGHT},
    {"safe", F, string, "", 0, true},
    {"selectattr", F, choose, "*", 0, ATTRIBUTE},
    {"sequence", T, has_kind, "", 0, SEQUENCE},
    {"sort", F, sort, "attribute", 0, 0},
    {"split", S, split, "sep maxsplit", 0, 0},
    {"startswith", S, has_affix, "prefix", 1, LEFT},
    {"strftime_now", G, strftime_now, "format", 1, 0},
    {"string", F, string, "", 0, false},
    {"string", T, has_kind, "", 0, 1 << TPL_STR},
    {"strip", S, strip, "chars", 0, LEFT | RIGHT},
    {"title", S, change_case, "", 0, TITLE},
    {"tojson", F, vptq_tpl_json, "ensure_ascii indent separators", 0, 0},
    {"trim", F, strip, "chars", 0, LEFT | RIGHT},
    {"true", T, is_boolean, "", 0, true},
    {"undefined", T, has_kind, "", 0, 1 << TPL_UNDEFINED},
    {"upper", F | S, change_case, "", 0, UPPER}};

const tpl_function *vptq_tpl_function(tpl_value name, int use)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].uses & use && strlen(table[i].name) == name.len &&
            memcmp(table[i].name, name.u.s, name.len) == 0)
            return &table[i];
    return NULL;
}

/* The number of the parameter `name`, or that of all parameters. */
static uint32_t param_index(const char *params, tpl_value name)
{
    uint32_t i = 0;
    for (size_t len; *params; params += len + (params[len] == ' '), i++) {
        len = strcspn(params, " ");
        if (name.len == len && memcmp(params, name.u.s, len) == 0)
            break;
    }
    return i;
}

tpl_value vptq_tpl_call(tpl_run *r, const tpl_function *f, tpl_value self, tpl_args args)
{
    tpl_call c = {.run = r, .self = self, .args = args, .variant = f->variant};
    uint32_t count = param_index(f->params, TPL_LITERAL(""));
    bool any = f->params[0] == '*';
    if (!any && args.list.len > count)
        return TPL_UNSUPPORTED(r, "argument %u of '%s' is not supported", count + 1, f->name);
    for (uint32_t i = 0; i < args.list.len && !any; i++)
        c.arg[i] = args.list.u.items[i];
    for (uint32_t i = 0; i < args.named.len && !any; i += 2) {
        const tpl_value *pair = &args.named.u.items[i];
        uint32_t at = param_index(f->params, pair[0]);
        if (at == count)
            return TPL_UNSUPPORTED(r, "argument '%.*s' of '%s' is not supported",
                                   TPL_NAME(pair[0]), f->name);
        c.arg[at] = pair[1];
    }
    for (uint32_t i = 0; i < f->required && !any; i++)
        if (c.arg[i].kind == TPL_MISSING)
            return TPL_ERROR(r, "'%s' needs %u arguments", f->name, f->required);
    return vptq_tpl_step(r, 1) ? f->call(&c) : TPL_NULL;
}
