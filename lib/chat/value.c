/* Values of templates with Python's rules: containers, characters, operators, iteration,
 * attributes, subscripts and slices; as text: str and repr, and JSON as json.dumps writes it.
 */
#define _GNU_SOURCE /* memmem */
#include <stdio.h>
#include <stdlib.h>

#include <utf8proc.h>

#include "lib/chat/internal.h"

/* ---- containers ---- */

tpl_value vptq_tpl_list(tpl_run *r, tpl_kind kind, size_t count)
{
    tpl_value *items = vptq_tpl_alloc(r, count, sizeof *items);
    if (!items)
        count = 0;
    for (size_t i = 0; i < count; i++)
        items[i] = TPL_NULL;
    return (tpl_value){.kind = (uint8_t)kind, .len = (uint32_t)count, .u.items = items};
}

/* Doubles the list when it is full. */
void vptq_tpl_append(tpl_run *r, tpl_value *list, tpl_value item)
{
    if (list->log_cap == 0 || list->len == 1u << list->log_cap) {
        uint8_t log_cap = list->log_cap ? (uint8_t)(list->log_cap + 1) : 2;
        tpl_value *more = vptq_tpl_alloc(r, (size_t)1 << log_cap, sizeof *more);
        if (!more)
            return;
        if (list->len > 0)
            memcpy(more, list->u.items, list->len * sizeof *more);
        list->u.items = more;
        list->log_cap = log_cap;
    }
    list->u.items[list->len++] = item;
}

tpl_value vptq_tpl_namespace(tpl_run *r, tpl_value pairs)
{
    static tpl_value empty;
    tpl_value *d = vptq_tpl_alloc(r, 1, sizeof *d);
    if (d)
        *d = pairs;
    return (tpl_value){.kind = TPL_NAMESPACE, .u.dict = d ? d : &empty};
}

static bool is_hashable(tpl_value v)
{
    return v.kind != TPL_LIST && v.kind != TPL_DICT;
}

/* Searches all pairs: the dicts of templates are small. */
tpl_value *vptq_tpl_dict_find(tpl_run *r, const tpl_value *dict, tpl_value key)
{
    if (!is_hashable(key))
        TPL_ERROR(r, "%s cannot be a key", vptq_tpl_type(key));
    for (uint32_t i = 0; i < dict->len && !r->status; i += 2)
        if (vptq_tpl_equal(r, dict->u.items[i], key))
            return &dict->u.items[i + 1];
    return NULL;
}

void vptq_tpl_dict_set(tpl_run *r, tpl_value *dict, tpl_value key, tpl_value value)
{
    tpl_value *found = vptq_tpl_dict_find(r, dict, key);
    if (found) {
        *found = value;
    } else if (!r->status) {
        vptq_tpl_append(r, dict, key);
        vptq_tpl_append(r, dict, value);
    }
}

tpl_value vptq_tpl_bound(tpl_run *r, const tpl_function *f, tpl_value self)
{
    tpl_method *m = vptq_tpl_alloc(r, 1, sizeof *m);
    if (m)
        *m = (tpl_method){f, self};
    return m ? (tpl_value){.kind = TPL_FUNCTION, .u.method = m} : TPL_NULL;
}

tpl_value vptq_tpl_from_json(tpl_run *r, const json_t *j)
{
    tpl_value v = json_is_boolean(j) ? TPL_BOOLEAN(json_is_true(j)) : TPL_NULL;
    const char *name;
    json_t *item;
    if (vptq_tpl_step(r, 1) && vptq_tpl_enter(r, TPL_MAX_DEPTH) && json_is_object(j)) {
        v = (tpl_value){.kind = TPL_DICT};
        json_object_foreach((json_t *)(uintptr_t)j, name, item)
        {
            vptq_tpl_append(r, &v, TPL_TEXT(name, strlen(name)));
            vptq_tpl_append(r, &v, vptq_tpl_from_json(r, item));
        }
    } else if (json_is_array(j)) {
        v = vptq_tpl_list(r, TPL_LIST, json_array_size(j));
        for (uint32_t i = 0; i < v.len; i++)
            v.u.items[i] = vptq_tpl_from_json(r, json_array_get(j, i));
    } else if (json_is_string(j)) {
        v = TPL_TEXT(json_string_value(j), json_string_length(j));
    } else if (json_is_real(j)) {
        v = (tpl_value){.kind = TPL_FLOAT, .u.f = json_real_value(j)};
    } else if (json_is_integer(j)) {
        v = TPL_INTEGER(json_integer_value(j));
    }
    r->depth--;
    return v;
}

/* ---- properties ---- */

const char *vptq_tpl_type(tpl_value v)
{
    static const char *const names[] = {
        "undefined",   "undefined",   "none",    "a boolean", "an integer",  "a float",
        "a string",    "a list",      "a tuple", "a range",   "a dict view", "a dict",
        "an iterator", "a namespace", "a macro", "a function"};
    return names[v.kind];
}

bool vptq_tpl_truth(tpl_value v)
{
    if (v.kind == TPL_FLOAT)
        return v.u.f != 0;
    if (tpl_is_integer(v))
        return v.u.i != 0;
    return v.kind >= TPL_ITERATOR || (v.kind >= TPL_STR && v.len > 0);
}

/* ---- characters ---- */

size_t vptq_tpl_char(const char *s, size_t len, uint32_t *cp)
{
    size_t bytes = vptq_utf8_decode(s, len, cp);
    VPTQ_BUG_IF(bytes == 0);
    return bytes;
}

/* Byte offset of character `index`, or the length of s. */
static size_t char_offset(tpl_value s, size_t index)
{
    for (size_t i = 0; i < s.len; i++)
        if (!vptq_utf8_continues(s.u.s[i]) && index-- == 0)
            return i;
    return s.len;
}

tpl_value vptq_tpl_strip(tpl_run *r, tpl_value v, tpl_value chars, bool left, bool right)
{
    while (v.len > 0 && (left || right) && vptq_tpl_step(r, 1)) {
        uint32_t cp;
        size_t at = left ? 0 : v.len - 1;
        while (vptq_utf8_continues(v.u.s[at]))
            at--;
        size_t bytes = vptq_tpl_char(v.u.s + at, v.len - at, &cp);
        bool strips = chars.kind == TPL_STR
                          ? vptq_tpl_find(r, chars, TPL_TEXT(v.u.s + at, bytes), 0) != SIZE_MAX
                          : vptq_utf8_python_space(cp);
        v.u.s += strips && left ? bytes : 0;
        v.len -= strips ? (uint32_t)bytes : 0;
        if (!strips && !left)
            break;
        left = left && strips;
    }
    return v;
}

size_t vptq_tpl_find(tpl_run *r, tpl_value s, tpl_value part, size_t from)
{
    if (r->status || from > s.len || part.len > s.len - from)
        return SIZE_MAX;
    if (part.len == 0)
        return from;
    const char *at = memmem(s.u.s + from, s.len - from, part.u.s, part.len);
    size_t found = at ? (size_t)(at - s.u.s) : SIZE_MAX;
    return vptq_tpl_step(r, TPL_READ((at ? found + part.len : s.len) - from)) ? found
                                                                              : SIZE_MAX;
}

/* ---- equality and order ---- */

static double number(tpl_value v)
{
    return v.kind == TPL_FLOAT ? v.u.f : (double)v.u.i;
}

static bool equal_items(tpl_run *r, tpl_value a, tpl_value b)
{
    bool dict = a.kind == TPL_DICT;
    bool is = a.len == b.len;
    for (uint32_t i = 0; i < a.len && is; i += 1 + dict) {
        const tpl_value *other = dict ? vptq_tpl_dict_find(r, &b, a.u.items[i]) : &b.u.items[i];
        is = other && vptq_tpl_equal(r, a.u.items[i + dict], *other);
    }
    return is;
}

bool vptq_tpl_equal(tpl_run *r, tpl_value a, tpl_value b)
{
    bool is = false;
    if (tpl_is_integer(a) && tpl_is_integer(b))
        is = a.u.i == b.u.i;
    else if (tpl_is_number(a) && tpl_is_number(b))
        is = number(a) == number(b);
    else if (a.kind != b.kind)
        is = false;
    else if (a.kind <= TPL_NONE)
        is = true;
    else if (a.kind == TPL_STR)
        is = a.len == b.len && (a.len == 0 || memcmp(a.u.s, b.u.s, a.len) == 0);
    else if (!tpl_is_sequence(a) && a.kind != TPL_DICT)
        is = a.u.items == b.u.items; /* others only equal themselves */
    else {
        is = vptq_tpl_enter(r, TPL_MAX_DEPTH) && equal_items(r, a, b);
        r->depth--;
    }
    return vptq_tpl_step(r, TPL_READ(a.len == b.len ? a.len : 0)) && is;
}

/* a < b; an error for values without an order. */
static bool less(tpl_run *r, tpl_value a, tpl_value b)
{
    uint32_t len = a.len < b.len ? a.len : b.len;
    if (!vptq_tpl_step(r, TPL_READ(len)))
        return false;
    if (tpl_is_integer(a) && tpl_is_integer(b))
        return a.u.i < b.u.i;
    if (tpl_is_number(a) && tpl_is_number(b))
        return number(a) < number(b);
    if (a.kind == TPL_STR && b.kind == TPL_STR) { /* UTF-8 has the order of code points */
        int order = len ? memcmp(a.u.s, b.u.s, len) : 0;
        return order < 0 || (order == 0 && a.len < b.len);
    }
    if (tpl_is_sequence(a) && a.kind == b.kind)
        TPL_UNSUPPORTED(r, "the order of lists is not supported");
    TPL_ERROR(r, "%s and %s have no order", vptq_tpl_type(a), vptq_tpl_type(b));
    return false;
}

static bool contains(tpl_run *r, tpl_value box, tpl_value item)
{
    if (box.kind == TPL_DICT)
        return vptq_tpl_dict_find(r, &box, item) != NULL;
    if (box.kind == TPL_STR) {
        if (item.kind != TPL_STR)
            TPL_ERROR(r, "%s cannot be in a string", vptq_tpl_type(item));
        return vptq_tpl_find(r, box, item, 0) != SIZE_MAX;
    }
    tpl_value items = vptq_tpl_iterate(r, box);
    for (uint32_t i = 0; i < items.len && !r->status; i++)
        if (vptq_tpl_equal(r, items.u.items[i], item))
            return true;
    return false;
}

/* ---- operators ---- */

static tpl_value integer_arithmetic(tpl_run *r, int op, int64_t a, int64_t b)
{
    int64_t v = 0;
    bool exceeds = false;
    if (op == '%' && b == 0)
        return TPL_ERROR(r, "division by zero");
    if (op == '+')
        exceeds = __builtin_add_overflow(a, b, &v);
    else if (op == '-')
        exceeds = __builtin_sub_overflow(a, b, &v);
    else if (op == '*')
        exceeds = __builtin_mul_overflow(a, b, &v);
    else if (b != -1) /* the sign is that of b */
        v = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
    return exceeds ? TPL_ERROR(r, "an integer exceeds 64 bits") : TPL_INTEGER(v);
}

/* a + b of two strings, or of two lists or tuples. */
static tpl_value join(tpl_run *r, tpl_value a, tpl_value b)
{
    if (a.kind == TPL_STR && a.safe != b.safe)
        return TPL_UNSUPPORTED(r, "'+' of a safe text and another is not supported");
    size_t size = a.kind == TPL_STR ? 1 : sizeof(tpl_value);
    char *both = vptq_tpl_alloc(r, (size_t)a.len + b.len, size);
    if (!both)
        return TPL_NULL;
    if (a.len > 0)
        memcpy(both, a.u.s, a.len * size);
    if (b.len > 0)
        memcpy(both + a.len * size, b.u.s, b.len * size);
    return (tpl_value){
        .kind = a.kind, .safe = a.safe || b.safe, .len = a.len + b.len, .u.s = both};
}

/* A string, n times. */
static tpl_value repeat(tpl_run *r, tpl_value s, int64_t n)
{
    size_t count = n > 0 && s.len > 0 ? (size_t)n : 0;
    char *text = vptq_tpl_alloc(r, count, s.len + 1);
    if (!text || !vptq_tpl_step(r, TPL_READ(count * s.len)))
        return TPL_NULL;
    for (size_t i = 0; i < count; i++)
        memcpy(text + i * s.len, s.u.s, s.len);
    s.len *= (uint32_t)count;
    s.u.s = text;
    return s;
}

static tpl_value arithmetic(tpl_run *r, int op, tpl_value a, tpl_value b)
{
    size_t start = r->text->len;
    if (op == '~') {
        vptq_tpl_print(r, a);
        vptq_tpl_print(r, b);
        return vptq_tpl_take(r, start);
    }
    if (tpl_is_integer(a) && tpl_is_integer(b))
        return integer_arithmetic(r, op, a.u.i, b.u.i);
    if (tpl_is_number(a) && tpl_is_number(b))
        return TPL_UNSUPPORTED(r, "arithmetic of floats is not supported");
    if (op == '+' && a.kind == b.kind && a.kind >= TPL_STR && a.kind <= TPL_TUPLE)
        return join(r, a, b);
    if (op == '*' && a.kind == TPL_STR && tpl_is_integer(b))
        return repeat(r, a, b.u.i);
    if (op == '*' && b.kind == TPL_STR && tpl_is_integer(a))
        return repeat(r, b, a.u.i);
    if (op == '*' && (tpl_is_sequence(a) || tpl_is_sequence(b)))
        return TPL_UNSUPPORTED(r, "'*' of a list is not supported");
    if (op == '%' && a.kind == TPL_STR)
        return TPL_UNSUPPORTED(r, "formatting with '%%' is not supported");
    return TPL_ERROR(r, "'%c' of %s and %s", op, vptq_tpl_type(a), vptq_tpl_type(b));
}

tpl_value vptq_tpl_binary(tpl_run *r, int op, tpl_value a, tpl_value b)
{
    switch (op) {
    case '=':
        return TPL_BOOLEAN(vptq_tpl_equal(r, a, b));
    case '<':
        return TPL_BOOLEAN(less(r, a, b));
    case '>':
        return TPL_BOOLEAN(less(r, b, a));
    case 'i':
        return TPL_BOOLEAN(contains(r, b, a));
    case '[':
        return vptq_tpl_get(r, a, b, false);
    default:
        return arithmetic(r, op, a, b);
    }
}

/* ---- iteration, attributes, subscripts ---- */

size_t vptq_tpl_length(tpl_run *r, tpl_value v)
{
    size_t length = v.kind == TPL_DICT ? v.len / 2 : v.len;
    for (uint32_t i = 0; v.kind == TPL_STR && i < v.len; i++)
        length -= vptq_utf8_continues(v.u.s[i]);
    vptq_tpl_step(r, TPL_READ(v.kind == TPL_STR ? v.len : 0));
    if (v.kind == TPL_UNDEFINED)
        return 0;
    if (v.kind < TPL_STR || v.kind > TPL_DICT)
        TPL_ERROR(r, "%s has no length", vptq_tpl_type(v));
    return length;
}

tpl_value vptq_tpl_iterate(tpl_run *r, tpl_value v)
{
    size_t at = 0;
    uint32_t cp;
    if (v.kind >= TPL_LIST && v.kind <= TPL_ITERATOR && v.kind != TPL_DICT)
        return v;
    if (v.kind != TPL_UNDEFINED && v.kind != TPL_STR && v.kind != TPL_DICT)
        TPL_ERROR(r, "%s cannot be iterated", vptq_tpl_type(v));
    tpl_value items = vptq_tpl_list(r, TPL_LIST, r->status ? 0 : vptq_tpl_length(r, v));
    for (uint32_t i = 0; i < items.len && vptq_tpl_step(r, 1); i++) {
        size_t bytes = v.kind == TPL_STR ? vptq_tpl_char(v.u.s + at, v.len - at, &cp) : 0;
        items.u.items[i] = bytes ? TPL_TEXT(v.u.s + at, bytes) : v.u.items[2 * i];
        at += bytes;
    }
    return items;
}

/* v[key] alone. */
static tpl_value get_item(tpl_run *r, tpl_value v, tpl_value key)
{
    tpl_value none = TPL_NO_VALUE(key.kind == TPL_STR ? key : TPL_LITERAL("a missing item"));
    if (v.kind == TPL_DICT && is_hashable(key)) {
        const tpl_value *value = vptq_tpl_dict_find(r, &v, key);
        return value ? *value : none;
    }
    if ((v.kind != TPL_STR && !tpl_is_sequence(v)) || !tpl_is_integer(key))
        return none;
    int64_t length = (int64_t)vptq_tpl_length(r, v);
    int64_t i = key.u.i < 0 ? key.u.i + length : key.u.i;
    if (i < 0 || i >= length)
        return none;
    if (v.kind != TPL_STR)
        return v.u.items[i];
    size_t at = char_offset(v, (size_t)i);
    return TPL_TEXT(v.u.s + at, vptq_tpl_char(v.u.s + at, v.len - at, &(uint32_t){0}));
}

/* Attributes are first those of Python (methods, variables of a namespace), then items. */
tpl_value vptq_tpl_get(tpl_run *r, tpl_value v, tpl_value key, bool attribute)
{
    if (v.kind == TPL_UNDEFINED)
        return TPL_ERROR(r, "'%.*s' is undefined and has no %s", TPL_NAME(v),
                         attribute ? "attributes" : "items");
    tpl_value item = attribute ? TPL_NO_VALUE(key) : get_item(r, v, key);
    if (item.kind != TPL_UNDEFINED || key.kind != TPL_STR)
        return item;
    int use = v.kind == TPL_STR ? TPL_STR_METHOD : v.kind == TPL_DICT ? TPL_DICT_METHOD : 0;
    const tpl_function *f = vptq_tpl_function(key, use);
    if (f)
        return vptq_tpl_bound(r, f, v);
    const tpl_value *found =
        v.kind == TPL_NAMESPACE ? vptq_tpl_dict_find(r, v.u.dict, key) : NULL;
    return found ? *found : attribute ? get_item(r, v, key) : item;
}

/* A bound of a slice over n items, as Python clips it; `other` if it is not given. */
static size_t clip(tpl_value bound, int64_t n, int64_t other)
{
    int64_t i = bound.kind == TPL_NONE ? other : bound.u.i < 0 ? bound.u.i + n : bound.u.i;
    return (size_t)(i < 0 ? 0 : i > n ? n : i);
}

tpl_value vptq_tpl_slice(tpl_run *r, tpl_value v, tpl_value given)
{
    const tpl_value *bounds = given.u.items;
    if (given.len < 3)
        return TPL_NULL;
    bool backwards = bounds[2].kind == TPL_INT && bounds[2].u.i == -1;
    for (int i = 0; i < 3; i++)
        if (bounds[i].kind != TPL_NONE && !tpl_is_integer(bounds[i]))
            return TPL_ERROR(r, "%s cannot be the bound of a slice", vptq_tpl_type(bounds[i]));
    if (!tpl_is_sequence(v) && v.kind != TPL_STR)
        return TPL_ERROR(r, "a slice of %s", vptq_tpl_type(v));
    if (bounds[2].kind != TPL_NONE &&
        (!backwards || v.kind == TPL_STR || bounds[0].kind != TPL_NONE ||
         bounds[1].kind != TPL_NONE))
        return TPL_UNSUPPORTED(r, "a slice with a step is not supported, except LIST[::-1]");
    size_t n = vptq_tpl_length(r, v);
    size_t from = clip(bounds[0], (int64_t)n, 0), to = clip(bounds[1], (int64_t)n, (int64_t)n);
    size_t count = to > from ? to - from : 0;
    if (v.kind == TPL_STR) {
        size_t at = char_offset(v, from);
        tpl_value rest = TPL_TEXT(v.u.s + at, v.len - at);
        return TPL_TEXT(rest.u.s, char_offset(rest, count));
    }
    tpl_value slice = vptq_tpl_list(r, v.kind, count);
    for (uint32_t i = 0; i < slice.len && vptq_tpl_step(r, 1); i++)
        slice.u.items[i] = v.u.items[backwards ? n - 1 - i : from + i];
    return slice;
}

/* ---- text ---- */

typedef struct style {
    bool json;      /* or Python's repr */
    bool ascii;     /* JSON with escapes for other characters */
    int64_t indent; /* of one level; -1: everything on one line */
    tpl_value item_separator, key_separator;
} style;

static void put(tpl_run *r, const char *text)
{
    vptq_tpl_add(r, text, strlen(text));
}

/* A finite number (JSON has no others): the fewest digits that read back the same, laid out as
 * Python's repr of a float. */
static void put_float(tpl_run *r, double f)
{
    char digits[40], text[64];
    int precision = 1;
    do
        snprintf(digits, sizeof digits, "%.*e", precision - 1, f);
    while (strtod(digits, NULL) != f && ++precision <= 17);
    char *e = strchr(digits, 'e');
    int exponent = (int)strtol(e + 1, NULL, 10), decimals = precision - 1 - exponent;
    *e = 0;
    if (exponent < -4 || exponent >= 16)
        snprintf(text, sizeof text, "%se%c%02d", digits, exponent < 0 ? '-' : '+',
                 abs(exponent));
    else
        snprintf(text, sizeof text, "%.*f", decimals > 0 ? decimals : 1, f);
    put(r, text);
}

/* str.isprintable of a character. */
static bool is_printable(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return cp == ' ' || (c != UTF8PROC_CATEGORY_CN && c < UTF8PROC_CATEGORY_ZS);
}

/* A character of a string in quotes. */
static void put_char(tpl_run *r, const char *s, size_t bytes, uint32_t cp, const style *o,
                     char quote)
{
    static const char plain[] = "\n\r\t\f\b", letters[] = "nrtfb";
    const char *at = cp && cp < 0x80 ? strchr(plain, (int)cp) : NULL;
    char text[16];
    if (cp == '\\' || cp == (uint32_t)quote)
        snprintf(text, sizeof text, "\\%c", (char)cp);
    else if (at && (o->json || at < plain + 3))
        snprintf(text, sizeof text, "\\%c", letters[at - plain]);
    else if (o->json ? cp >= 0x20 && (cp < 0x80 || !o->ascii) : is_printable(cp))
        snprintf(text, sizeof text, "%.*s", (int)bytes, s);
    else if (!o->json && cp < 0x100)
        snprintf(text, sizeof text, "\\x%02x", cp);
    else if (cp < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", cp);
    else if (!o->json)
        snprintf(text, sizeof text, "\\U%08x", cp);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10),
                 0xdc00 + ((cp - 0x10000) & 0x3ff));
    put(r, text);
}

static void put_string(tpl_run *r, tpl_value s, const style *o)
{
    bool single = s.len && memchr(s.u.s, '\'', s.len),
         twofold = s.len && memchr(s.u.s, '"', s.len);
    char quote[] = {o->json || (single && !twofold) ? '"' : '\'', 0};
    uint32_t cp;
    put(r, quote);
    for (size_t at = 0, bytes; at < s.len && !r->status; at += bytes) {
        bytes = vptq_tpl_char(s.u.s + at, s.len - at, &cp);
        put_char(r, s.u.s + at, bytes, cp, o, quote[0]);
    }
    put(r, quote);
}

static void put_value(tpl_run *r, tpl_value v, const style *o, unsigned level);

static void put_line(tpl_run *r, const style *o, unsigned level)
{
    put(r, o->indent >= 0 ? "\n" : "");
    for (int64_t i = 0; i < (int64_t)level * o->indent && !r->status; i++)
        put(r, " ");
}

static void put_key(tpl_run *r, tpl_value key, const style *o)
{
    if (o->json && key.kind != TPL_STR)
        TPL_UNSUPPORTED(r, "%s as a key in JSON is not supported", vptq_tpl_type(key));
    put_value(r, key, o, 0);
    vptq_tpl_add(r, o->key_separator.u.s, o->key_separator.len);
}

/* A list, tuple or dict. */
static void put_items(tpl_run *r, tpl_value v, const style *o, unsigned level)
{
    bool dict = v.kind == TPL_DICT, tuple = v.kind == TPL_TUPLE && !o->json;
    put(r, dict ? "{" : tuple ? "(" : "[");
    for (uint32_t i = 0; i < v.len && !r->status; i++) {
        if (i > 0)
            vptq_tpl_add(r, o->item_separator.u.s, o->item_separator.len);
        put_line(r, o, level + 1);
        if (dict)
            put_key(r, v.u.items[i++], o);
        put_value(r, v.u.items[i], o, level + 1);
    }
    if (v.len > 0)
        put_line(r, o, level);
    put(r, dict ? "}" : !tuple ? "]" : v.len == 1 ? ",)" : ")");
}

static void put_value(tpl_run *r, tpl_value v, const style *o, unsigned level)
{
    char text[32];
    if (v.kind == TPL_NONE) {
        put(r, o->json ? "null" : "None");
    } else if (v.kind == TPL_BOOL) {
        put(r, v.u.i ? (o->json ? "true" : "True") : o->json ? "false" : "False");
    } else if (v.kind == TPL_INT) {
        snprintf(text, sizeof text, "%lld", (long long)v.u.i);
        put(r, text);
    } else if (v.kind == TPL_FLOAT) {
        put_float(r, v.u.f);
    } else if (v.kind == TPL_STR) {
        put_string(r, v, o);
    } else if (v.kind == TPL_LIST || v.kind == TPL_TUPLE || v.kind == TPL_DICT) {
        if (vptq_tpl_enter(r, TPL_MAX_DEPTH))
            put_items(r, v, o, level);
        r->depth--;
    } else if (o->json) {
        TPL_ERROR(r, "%s cannot be written as JSON", vptq_tpl_type(v));
    } else if (v.kind == TPL_UNDEFINED) {
        put(r, "Undefined");
    } else {
        TPL_UNSUPPORTED(r, "the text of %s is not supported", vptq_tpl_type(v));
    }
}

void vptq_tpl_print(tpl_run *r, tpl_value v)
{
    const style repr = {
        .indent = -1, .item_separator = TPL_LITERAL(", "), .key_separator = TPL_LITERAL(": ")};
    if (v.kind == TPL_STR)
        vptq_tpl_add(r, v.u.s, v.len);
    else if (v.kind > TPL_UNDEFINED)
        put_value(r, v, &repr, 0);
}

tpl_value vptq_tpl_str(tpl_run *r, tpl_value v)
{
    size_t start = r->text->len;
    if (v.kind == TPL_STR)
        return v;
    vptq_tpl_print(r, v);
    return vptq_tpl_take(r, start);
}

/* tojson(ensure_ascii, indent, separators), as transformers defines it. */
tpl_value vptq_tpl_json(tpl_call *c)
{
    tpl_run *r = c->run;
    tpl_value indent = c->arg[1], separators = c->arg[2];
    bool lines = indent.kind > TPL_NONE;
    style o = {.json = true, .ascii = vptq_tpl_truth(c->arg[0]), .indent = -1};
    if (lines && (indent.kind != TPL_INT || indent.u.i < 0 || indent.u.i > 100))
        return TPL_UNSUPPORTED(r, "an indent of tojson must be an integer from 0 to 100");
    o.indent = lines ? indent.u.i : -1;
    o.item_separator = lines ? TPL_LITERAL(",") : TPL_LITERAL(", ");
    o.key_separator = TPL_LITERAL(": ");
    if (separators.kind > TPL_NONE) {
        if (!tpl_is_sequence(separators) || separators.len != 2 ||
            separators.u.items[0].kind != TPL_STR || separators.u.items[1].kind != TPL_STR)
            return TPL_ERROR(r, "the separators of tojson are not a pair of strings");
        o.item_separator = separators.u.items[0];
        o.key_separator = separators.u.items[1];
    }
    size_t start = r->text->len;
    put_value(r, c->self, &o, 0);
    return vptq_tpl_take(r, start);
}
