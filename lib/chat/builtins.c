/* Filters, tests, methods and global functions of templates, as jinja2 and Python define them.
 */
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include <utf8proc.h>

#include "lib/chat/internal.h"

/* Variants of functions that have several rows. */
enum { UPPER, LOWER, CAPITALIZE, TITLE, TITLE_WORDS };
enum { LEFT = 1, RIGHT = 2 };
enum { ATTRIBUTE = 1, REJECT = 2 };
enum { KEYS, VALUES, ITEMS };

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

static tpl_value string(tpl_call *c)
{
    return vptq_tpl_str(c->run, c->self);
}

static tpl_value safe(tpl_call *c)
{
    tpl_value v = string(c);
    v.safe = true;
    return v;
}

static tpl_value strip(tpl_call *c)
{
    tpl_value text = string(c), chars = c->arg[0];
    if (is_given(chars) && !want_str(c, chars))
        return text;
    vptq_tpl_step(c->run, text.len / 4 * (1 + chars.len / 8));
    return vptq_tpl_strip(text, chars, c->variant & LEFT, c->variant & RIGHT);
}

/* Character by character; of those that become several only the sharp s. */
static tpl_value change_case(tpl_call *c)
{
    tpl_value s = string(c);
    size_t start = c->run->text->len;
    bool begins = true; /* a word, or the text */
    for (size_t at = 0, bytes; at < s.len && !c->run->status; at += bytes) {
        char text[4];
        uint32_t cp;
        bytes = vptq_tpl_char(s.u.s + at, s.len - at, &cp);
        utf8proc_int32_t u = (utf8proc_int32_t)cp;
        utf8proc_category_t category = utf8proc_category(u);
        bool whole = c->variant == UPPER || (begins && c->variant == TITLE_WORDS);
        u = whole                           ? utf8proc_toupper(u)
            : begins && c->variant != LOWER ? utf8proc_totitle(u)
                                            : utf8proc_tolower(u);
        begins = c->variant == TITLE
                     ? category < UTF8PROC_CATEGORY_LU || category > UTF8PROC_CATEGORY_LT
                 : c->variant == TITLE_WORDS
                     ? vptq_tpl_is_space(cp) || (cp && cp < 0x80 && strchr("-({[<", (int)cp))
                     : false;
        if (cp == 0xdf && (uint32_t)u != cp)
            vptq_tpl_add(c->run, whole ? "SS" : "Ss", 2);
        else
            vptq_tpl_add(c->run, text, vptq_utf8_encode((uint32_t)u, text));
    }
    return vptq_tpl_take(c->run, start);
}

static tpl_value replace(tpl_call *c)
{
    tpl_run *r = c->run;
    tpl_value s = string(c), old = vptq_tpl_str(r, c->arg[0]),
              with = vptq_tpl_str(r, c->arg[1]);
    int64_t count = want_int(c, c->arg[2], -1);
    size_t start = r->text->len, from = 0, at;
    uint32_t cp;
    bool done = false;
    vptq_tpl_step(r, s.len / 16);
    for (; count != 0 && !done && vptq_tpl_step(r, 1); count--) {
        at = vptq_tpl_find(s, old, from);
        done = at == SIZE_MAX;
        if (done)
            break;
        vptq_tpl_add(r, s.u.s + from, at - from);
        vptq_tpl_add(r, with.u.s, with.len);
        from = at + old.len;
        done = old.len == 0 && at == s.len;
        if (old.len == 0 && !done) { /* before every character, and at the end */
            from += vptq_tpl_char(s.u.s + at, s.len - at, &cp);
            vptq_tpl_add(r, s.u.s + at, from - at);
        }
    }
    vptq_tpl_add(r, s.u.s + from, s.len - from);
    return vptq_tpl_take(r, start);
}

/* The method: its arguments must be strings. */
static tpl_value str_replace(tpl_call *c)
{
    return want_str(c, c->arg[0]) && want_str(c, c->arg[1]) ? replace(c) : c->self;
}

static tpl_value indent(tpl_call *c)
{
    tpl_run *r = c->run;
    tpl_value in = c->arg[0], s = c->self;
    if (in.kind != TPL_STR)
        in = vptq_tpl_arithmetic(r, '*', TPL_LITERAL(" "), TPL_INTEGER(want_int(c, in, 4)));
    size_t start = r->text->len, len = want_str(c, s) ? s.len : 0;
    for (size_t at = 0, end; at <= len && vptq_tpl_step(r, 1); at = end + 1) {
        for (end = at; end < len && s.u.s[end] != '\n' && s.u.s[end] != '\r';)
            end++;
        vptq_tpl_add(r, "\n", at > 0);
        if (at == 0 ? vptq_tpl_truth(c->arg[1]) : end > at || vptq_tpl_truth(c->arg[2]))
            vptq_tpl_add(r, in.u.s, in.len);
        vptq_tpl_add(r, s.u.s + at, end - at);
        end += end + 1 < len && s.u.s[end] == '\r' && s.u.s[end + 1] == '\n';
    }
    return vptq_tpl_take(r, start);
}

static tpl_value split(tpl_call *c)
{
    tpl_run *r = c->run;
    tpl_value rest = c->self, sep = c->arg[0], parts = vptq_tpl_list(r, TPL_LIST, 0);
    int64_t max = want_int(c, c->arg[1], -1);
    bool space = !is_given(sep);
    uint32_t cp;
    if (!space && (!want_str(c, sep) || sep.len == 0))
        return TPL_ERROR(r, "split at an empty separator");
    vptq_tpl_step(r, rest.len / 16);
    for (; vptq_tpl_step(r, 1); max--) {
        size_t at = 0;
        if (space)
            rest = vptq_tpl_strip(rest, TPL_NULL, true, false);
        if (space && rest.len == 0)
            break;
        while (space && at < rest.len &&
               !vptq_tpl_is_space((vptq_tpl_char(rest.u.s + at, rest.len - at, &cp), cp)))
            at += vptq_tpl_char(rest.u.s + at, rest.len - at, &cp);
        if (!space)
            at = vptq_tpl_find(rest, sep, 0);
        bool last = max == 0 || at >= rest.len;
        vptq_tpl_append(r, &parts, TPL_TEXT(rest.u.s, last ? rest.len : at));
        if (last)
            break;
        at += space ? 0 : sep.len;
        rest = TPL_TEXT(rest.u.s + at, rest.len - at);
    }
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
        found = want_str(c, part) && part.len <= s.len &&
                (part.len == 0 || memcmp(s.u.s + (c->variant == LEFT ? 0 : s.len - part.len),
                                         part.u.s, part.len) == 0);
    }
    return TPL_BOOLEAN(found);
}

/* ---- one value ---- */

/* Of a string: decimal, also as a float; otherwise the default. */
static tpl_value to_int(tpl_call *c)
{
    tpl_value v = c->self, s = vptq_tpl_strip(string(c), TPL_NULL, true, true);
    char text[64] = "", *end;
    memcpy(text, s.u.s, s.len < 63 ? s.len : 63);
    if (v.kind == TPL_UNDEFINED || (v.kind == TPL_STR && strchr(text, '_')))
        return TPL_ERROR(c->run, "int of undefined, or of a number with '_'");
    if (v.kind == TPL_STR && strspn(text, "0123456789+-.eE") == s.len && s.len > 0) {
        v = TPL_INTEGER(strtoll(text, &end, 10));
        v = *end ? TPL_REAL(strtod(text, &end)) : v;
        v = *end ? TPL_NULL : v;
    }
    if (v.kind == TPL_FLOAT)
        v = fabs(v.u.f) < 0x1p63 ? TPL_INTEGER((int64_t)v.u.f) : TPL_NULL;
    return tpl_is_integer(v)               ? TPL_INTEGER(v.u.i)
           : c->arg[0].kind == TPL_MISSING ? TPL_INTEGER(0)
                                           : c->arg[0];
}

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

/* An item's attribute by a path such as "function.name" or an index; the item itself if the
 * path is not given. */
static tpl_value attribute_at(tpl_call *c, tpl_value item, tpl_value path)
{
    if (!is_given(path))
        return item;
    if (path.kind == TPL_INT)
        return vptq_tpl_item(c->run, item, path);
    for (size_t from = 0, to; want_str(c, path) && from <= path.len && !c->run->status;
         from = to + 1) {
        to = vptq_tpl_find(path, TPL_LITERAL("."), from);
        to = to < path.len ? to : path.len;
        tpl_value key = TPL_TEXT(path.u.s + from, to - from);
        if (key.len == 1 && key.u.s[0] >= '0' && key.u.s[0] <= '9')
            key = TPL_INTEGER(key.u.s[0] - '0');
        item = vptq_tpl_item(c->run, item, key);
    }
    return item;
}

/* The attributes of items, as keys that are compared without case unless `case_sensitive`. */
static tpl_value keys_of(tpl_call *c, tpl_value items, tpl_value path, tpl_value case_sensitive)
{
    tpl_value keys = vptq_tpl_list(c->run, TPL_LIST, items.len);
    for (uint32_t i = 0; i < keys.len && vptq_tpl_step(c->run, 1); i++) {
        tpl_call key = {.run = c->run, .variant = LOWER};
        key.self = attribute_at(c, items.u.items[i], path);
        bool fold = key.self.kind == TPL_STR && !vptq_tpl_truth(case_sensitive);
        keys.u.items[i] = fold ? change_case(&key) : key.self;
    }
    return keys;
}

static tpl_value list(tpl_call *c)
{
    tpl_value items = vptq_tpl_iterate(c->run, c->self);
    items.kind = TPL_LIST;
    return items;
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
        vptq_tpl_print(c->run, attribute_at(c, items.u.items[i], c->arg[1]));
    }
    return vptq_tpl_take(c->run, start);
}

/* The method: self is the separator, and all items must be strings. */
static tpl_value str_join(tpl_call *c)
{
    tpl_value separator = c->self;
    c->self = c->arg[0];
    c->arg[0] = separator;
    tpl_value items = list(c);
    for (uint32_t i = 0; i < items.len && want_str(c, items.u.items[i]); i++)
        continue;
    return join(c);
}

/* A copy of the items of self. */
static tpl_value copy(tpl_call *c, tpl_kind kind)
{
    tpl_value items = list(c), out = vptq_tpl_list(c->run, kind, items.len);
    for (uint32_t i = 0; i < out.len; i++)
        out.u.items[i] = items.u.items[i];
    return out;
}

static tpl_value sort(tpl_call *c)
{
    tpl_value items = copy(c, TPL_LIST), keys = keys_of(c, items, c->arg[2], c->arg[1]);
    vptq_tpl_sort(c->run, items.u.items, keys.u.items, keys.len, vptq_tpl_truth(c->arg[0]));
    return items;
}

/* min and max */
static tpl_value extreme(tpl_call *c)
{
    c->arg[2] = c->arg[1];
    c->arg[1] = c->arg[0];
    c->arg[0] = TPL_BOOLEAN(c->variant == '>');
    c->self = sort(c);
    c->variant = LEFT;
    return end_of(c);
}

static tpl_value unique(tpl_call *c)
{
    tpl_value items = list(c), keys = keys_of(c, items, c->arg[1], c->arg[0]);
    tpl_value kept = vptq_tpl_list(c->run, TPL_ITERATOR, 0);
    tpl_dict *seen = vptq_tpl_dict(c->run, TPL_DICT, 0).u.dict;
    for (uint32_t i = 0; i < keys.len && !c->run->status; i++) {
        uint32_t before = seen->count;
        vptq_tpl_dict_set(c->run, seen, keys.u.items[i], TPL_NULL);
        if (seen->count > before)
            vptq_tpl_append(c->run, &kept, items.u.items[i]);
    }
    return kept;
}

/* Keys, values or (key, value) of a dict, which shares its pairs. */
static tpl_value dict_view(tpl_call *c)
{
    if (c->self.kind != TPL_DICT && c->self.kind != TPL_UNDEFINED)
        return TPL_ERROR(c->run, "items of %s, expected a dict", vptq_tpl_type(c->self));
    tpl_dict none = {0}, *d = c->self.kind == TPL_DICT ? c->self.u.dict : &none;
    tpl_value view = vptq_tpl_list(c->run, TPL_VIEW, d->count);
    for (uint32_t i = 0; i < view.len && vptq_tpl_step(c->run, 1); i++) {
        tpl_value *pair = &d->items[2 * i];
        view.u.items[i] = c->variant == ITEMS
                              ? (tpl_value){.kind = TPL_TUPLE, .len = 2, .u.items = pair}
                              : pair[c->variant];
    }
    return view;
}

static tpl_value items(tpl_call *c)
{
    tpl_value view = dict_view(c);
    view.kind = view.kind == TPL_VIEW ? TPL_ITERATOR : view.kind;
    return view;
}

static tpl_value dictsort(tpl_call *c)
{
    bool by_value = tpl_is(c->arg[1], "value");
    if (c->self.kind != TPL_DICT)
        return TPL_ERROR(c->run, "dictsort of %s, expected a dict", vptq_tpl_type(c->self));
    if (is_given(c->arg[1]) && !by_value && !tpl_is(c->arg[1], "key"))
        return TPL_ERROR(c->run, "dictsort by neither 'key' nor 'value'");
    tpl_value pairs = dict_view(c), keys = keys_of(c, pairs, TPL_INTEGER(by_value), c->arg[0]);
    vptq_tpl_sort(c->run, pairs.u.items, keys.u.items, keys.len, vptq_tpl_truth(c->arg[2]));
    pairs.kind = TPL_LIST;
    return pairs;
}

static tpl_value dict_get(tpl_call *c)
{
    const tpl_value *found = vptq_tpl_dict_find(c->run, c->self.u.dict, c->arg[0]);
    return found ? *found : c->arg[1].kind == TPL_MISSING ? TPL_NULL : c->arg[1];
}

/* ---- filters over a filter or test ---- */

/* The items of self, none if it is false. */
static tpl_value items_if_true(tpl_call *c)
{
    return vptq_tpl_truth(c->self) ? list(c) : vptq_tpl_list(c->run, TPL_LIST, 0);
}

/* The filter or test that argument `at` names; *rest: the arguments after it. */
static const tpl_function *named_function(tpl_call *c, uint32_t at, bool test, tpl_args *rest)
{
    const tpl_function *f = NULL;
    if (want_str(c, c->args.items[at]))
        f = test ? vptq_tpl_test(c->args.items[at]) : vptq_tpl_filter(c->args.items[at]);
    if (!f)
        TPL_UNSUPPORTED(c->run, "%s '%.*s' is not supported", test ? "test" : "filter",
                        TPL_NAME(c->args.items[at]));
    *rest = c->args;
    rest->items += at + 1;
    rest->count -= at + 1;
    return f;
}

static tpl_value map(tpl_call *c)
{
    tpl_value attribute = TPL_NULL, other = {.kind = TPL_MISSING};
    tpl_args rest;
    const tpl_function *f = NULL;
    for (uint32_t i = 0; i < c->args.named_count && c->args.count == 0; i++) {
        const tpl_value *pair = &c->args.named[2 * i];
        if (tpl_is(pair[0], "attribute"))
            attribute = pair[1];
        else if (tpl_is(pair[0], "default"))
            other = pair[1];
        else
            TPL_ERROR(c->run, "map has no argument '%.*s'", TPL_NAME(pair[0]));
    }
    if (c->args.count > 0)
        f = named_function(c, 0, false, &rest);
    else if (!is_given(attribute))
        TPL_ERROR(c->run, "map without a filter or attribute");
    tpl_value in = items_if_true(c), out = vptq_tpl_list(c->run, TPL_ITERATOR, in.len);
    for (uint32_t i = 0; i < out.len && vptq_tpl_step(c->run, 1); i++) {
        tpl_value v = f ? vptq_tpl_call(c->run, f, in.u.items[i], rest)
                        : attribute_at(c, in.u.items[i], attribute);
        out.u.items[i] = v.kind == TPL_UNDEFINED && other.kind != TPL_MISSING ? other : v;
    }
    return out;
}

/* select, reject, selectattr, rejectattr */
static tpl_value choose(tpl_call *c)
{
    uint32_t at = (c->variant & ATTRIBUTE) != 0;
    tpl_args rest;
    const tpl_function *f = NULL;
    if (c->args.count < at)
        return TPL_ERROR(c->run, "the name of an attribute is missing");
    if (c->args.count > at)
        f = named_function(c, at, true, &rest);
    tpl_value in = items_if_true(c), out = vptq_tpl_list(c->run, TPL_ITERATOR, 0);
    for (uint32_t i = 0; i < in.len && vptq_tpl_step(c->run, 1); i++) {
        tpl_value v = attribute_at(c, in.u.items[i], at ? c->args.items[0] : TPL_NULL);
        if (vptq_tpl_truth(f ? vptq_tpl_call(c->run, f, v, rest) : v) !=
            ((c->variant & REJECT) != 0))
            vptq_tpl_append(c->run, &out, in.u.items[i]);
    }
    return out;
}

/* ---- tests ---- */

static tpl_value is_kind(tpl_call *c)
{
    return TPL_BOOLEAN(c->self.kind == c->variant);
}

static tpl_value is_defined(tpl_call *c)
{
    return TPL_BOOLEAN((c->self.kind != TPL_UNDEFINED) == c->variant);
}

static tpl_value is_boolean(tpl_call *c)
{
    return TPL_BOOLEAN(c->self.kind == TPL_BOOL && c->self.u.i == c->variant);
}

static tpl_value is_number(tpl_call *c)
{
    return TPL_BOOLEAN(tpl_is_number(c->self));
}

/* variant: iterable */
static tpl_value is_sequence(tpl_call *c)
{
    tpl_kind kind = c->self.kind;
    bool is = kind >= TPL_STR && kind <= TPL_DICT && kind != TPL_VIEW && kind != TPL_ITERATOR;
    return TPL_BOOLEAN(
        kind == TPL_UNDEFINED || is ||
        (c->variant && kind >= TPL_STR && kind <= TPL_LOOP && kind != TPL_NAMESPACE));
}

static tpl_value compares(tpl_call *c)
{
    return TPL_BOOLEAN(vptq_tpl_compare(c->run, c->variant, c->self, c->arg[0]));
}

/* ---- global functions ---- */

static tpl_value range(tpl_call *c)
{
    int64_t from = want_int(c, c->arg[0], 0), step = want_int(c, c->arg[2], 1), to;
    bool only_end = c->arg[1].kind == TPL_MISSING;
    to = only_end ? from : want_int(c, c->arg[1], 0);
    from = only_end ? 0 : from;
    if (step == 0)
        return TPL_ERROR(c->run, "range with a step of 0");
    double span = ceil(((double)to - (double)from) / (double)step);
    if (span > TPL_MAX_RANGE)
        return TPL_ERROR(c->run, "range of more than %d items", TPL_MAX_RANGE);
    tpl_value out = vptq_tpl_list(c->run, TPL_RANGE, span > 0 ? (size_t)span : 0);
    for (uint32_t i = 0; i < out.len && vptq_tpl_step(c->run, 1); i++)
        out.u.items[i] = TPL_INTEGER(from + i * step);
    return out;
}

static tpl_value new_namespace(tpl_call *c)
{
    tpl_value d = vptq_tpl_dict(c->run, TPL_NAMESPACE, c->args.named_count);
    if (c->args.count > 0)
        return TPL_UNSUPPORTED(c->run, "namespace() of a value is not supported");
    for (uint32_t i = 0; i < c->args.named_count && !c->run->status; i++)
        vptq_tpl_dict_set(c->run, d.u.dict, c->args.named[2 * i], c->args.named[2 * i + 1]);
    return d;
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

/* ---- tables ---- */

#define FIND(table, name) find_row(table, sizeof(table) / sizeof *(table), name, 0)

static const tpl_function *find_row(const tpl_function *table, size_t rows, tpl_value name,
                                    uint8_t self)
{
    for (size_t i = 0; i < rows; i++)
        if (table[i].self == self && strlen(table[i].name) == name.len &&
            memcmp(table[i].name, name.u.s, name.len) == 0)
            return &table[i];
    return NULL;
}

const tpl_function *vptq_tpl_filter(tpl_value name)
{
    static const tpl_function table[] = {
        {"capitalize", change_case, "", 0, CAPITALIZE, 0},
        {"count", length, "", 0, 0, 0},
        {"d", or_default, "default_value boolean", 0, 0, 0},
        {"default", or_default, "default_value boolean", 0, 0, 0},
        {"dictsort", dictsort, "case_sensitive by reverse", 0, ITEMS, 0},
        {"first", end_of, "", 0, LEFT, 0},
        {"indent", indent, "width first blank", 0, 0, 0},
        {"int", to_int, "default", 0, 0, 0},
        {"items", items, "", 0, ITEMS, 0},
        {"join", join, "d attribute", 0, 0, 0},
        {"last", end_of, "", 0, RIGHT, 0},
        {"length", length, "", 0, 0, 0},
        {"list", list, "", 0, 0, 0},
        {"lower", change_case, "", 0, LOWER, 0},
        {"map", map, "*", 0, 0, 0},
        {"max", extreme, "case_sensitive attribute", 0, '>', 0},
        {"min", extreme, "case_sensitive attribute", 0, '<', 0},
        {"reject", choose, "*", 0, REJECT, 0},
        {"rejectattr", choose, "*", 0, REJECT | ATTRIBUTE, 0},
        {"replace", replace, "old new count", 2, 0, 0},
        {"safe", safe, "", 0, 0, 0},
        {"select", choose, "*", 0, 0, 0},
        {"selectattr", choose, "*", 0, ATTRIBUTE, 0},
        {"sort", sort, "reverse case_sensitive attribute", 0, 0, 0},
        {"string", string, "", 0, 0, 0},
        {"title", change_case, "", 0, TITLE_WORDS, 0},
        {"tojson", vptq_tpl_json, "ensure_ascii indent separators sort_keys", 0, 0, 0},
        {"trim", strip, "chars", 0, LEFT | RIGHT, 0},
        {"unique", unique, "case_sensitive attribute", 0, 0, 0},
        {"upper", change_case, "", 0, UPPER, 0}};
    return FIND(table, name);
}

const tpl_function *vptq_tpl_test(tpl_value name)
{
    static const tpl_function table[] = {
        {"boolean", is_kind, "", 0, TPL_BOOL, 0},  {"defined", is_defined, "", 0, true, 0},
        {"eq", compares, "/", 1, TPL_T_EQ, 0},     {"equalto", compares, "/", 1, TPL_T_EQ, 0},
        {"false", is_boolean, "", 0, false, 0},    {"float", is_kind, "", 0, TPL_FLOAT, 0},
        {"ge", compares, "/", 1, TPL_T_GE, 0},     {"gt", compares, "/", 1, '>', 0},
        {"in", compares, "/", 1, TPL_T_IN, 0},     {"integer", is_kind, "", 0, TPL_INT, 0},
        {"iterable", is_sequence, "", 0, true, 0}, {"le", compares, "/", 1, TPL_T_LE, 0},
        {"lt", compares, "/", 1, '<', 0},          {"mapping", is_kind, "", 0, TPL_DICT, 0},
        {"ne", compares, "/", 1, TPL_T_NE, 0},     {"none", is_kind, "", 0, TPL_NONE, 0},
        {"number", is_number, "", 0, 0, 0},        {"sequence", is_sequence, "", 0, false, 0},
        {"string", is_kind, "", 0, TPL_STR, 0},    {"true", is_boolean, "", 0, true, 0},
        {"undefined", is_defined, "", 0, false, 0}};
    return FIND(table, name);
}

const tpl_function *vptq_tpl_method(tpl_value self, tpl_value name)
{
    static const tpl_function table[] = {
        {"capitalize", change_case, "", 0, CAPITALIZE, TPL_STR},
        {"endswith", has_affix, "/", 1, RIGHT, TPL_STR},
        {"get", dict_get, "/ /", 1, 0, TPL_DICT},
        {"items", dict_view, "", 0, ITEMS, TPL_DICT},
        {"join", str_join, "/", 1, 0, TPL_STR},
        {"keys", dict_view, "", 0, KEYS, TPL_DICT},
        {"lower", change_case, "", 0, LOWER, TPL_STR},
        {"lstrip", strip, "/", 0, LEFT, TPL_STR},
        {"replace", str_replace, "/ / /", 2, 0, TPL_STR},
        {"rstrip", strip, "/", 0, RIGHT, TPL_STR},
        {"split", split, "sep maxsplit", 0, 0, TPL_STR},
        {"startswith", has_affix, "/", 1, LEFT, TPL_STR},
        {"strip", strip, "/", 0, LEFT | RIGHT, TPL_STR},
        {"title", change_case, "", 0, TITLE, TPL_STR},
        {"upper", change_case, "", 0, UPPER, TPL_STR},
        {"values", dict_view, "", 0, VALUES, TPL_DICT}};
    return find_row(table, sizeof table / sizeof *table, name, self.kind);
}

const tpl_function *vptq_tpl_global(const tpl_run *r, tpl_value name)
{
    static const tpl_function table[] = {
        {"namespace", new_namespace, "*", 0, 0, 0},
        {"raise_exception", raise_exception, "message", 1, 0, 0},
        {"range", range, "/ / /", 1, 0, 0},
        {"strftime_now", strftime_now, "/", 1, 0, 0}};
    const tpl_function *f = FIND(table, name);
    return f && f->call == strftime_now && !r->date ? NULL : f;
}

/* The place of a parameter among `params`, or their number. */
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
    if (!any && args.count > count)
        TPL_ERROR(r, "'%s' takes at most %u arguments, found %u", f->name, count, args.count);
    for (uint32_t i = 0; i < args.count && !any && !r->status; i++)
        c.arg[i] = args.items[i];
    for (uint32_t i = 0; i < args.named_count && !any && !r->status; i++) {
        const tpl_value *pair = &args.named[2 * i];
        uint32_t at = param_index(f->params, pair[0]);
        if (at == count)
            TPL_ERROR(r, "'%s' has no argument '%.*s'", f->name, TPL_NAME(pair[0]));
        else if (c.arg[at].kind != TPL_MISSING)
            TPL_ERROR(r, "'%s' gets its argument '%.*s' twice", f->name, TPL_NAME(pair[0]));
        else
            c.arg[at] = pair[1];
    }
    for (uint32_t i = 0; i < f->required && !r->status; i++)
        if (c.arg[i].kind == TPL_MISSING)
            TPL_ERROR(r, "'%s' needs %u arguments", f->name, f->required);
    return vptq_tpl_step(r, 1) ? f->call(&c) : TPL_NULL;
}
