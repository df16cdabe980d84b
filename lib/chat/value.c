/* Values of templates with Python's rules: containers, truth, equality, order, arithmetic,
 * iteration, attributes, subscripts and slices. */
#define _GNU_SOURCE /* memmem */

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

static void copy_items(tpl_value *to, tpl_value from)
{
    if (from.len > 0)
        memcpy(to, from.u.items, from.len * sizeof *to);
}

/* Lists grow at powers of two. */
void vptq_tpl_append(tpl_run *r, tpl_value *list, tpl_value item)
{
    if ((list->len & (list->len - 1)) == 0) {
        tpl_value more = vptq_tpl_list(r, TPL_LIST, list->len ? 2 * (size_t)list->len : 1);
        if (more.len == 0)
            return;
        copy_items(more.u.items, *list);
        list->u.items = more.u.items;
    }
    list->u.items[list->len++] = item;
}

tpl_value vptq_tpl_dict(tpl_run *r, tpl_kind kind, size_t cap)
{
    static tpl_dict empty;
    tpl_dict *d = vptq_tpl_alloc(r, 1, sizeof *d);
    tpl_value items = vptq_tpl_list(r, TPL_LIST, 2 * cap);
    if (d)
        *d = (tpl_dict){.cap = items.len / 2, .items = items.u.items};
    return (tpl_value){.kind = (uint8_t)kind, .u.dict = d ? d : &empty};
}

static bool is_hashable(tpl_value v)
{
    return v.kind != TPL_LIST && v.kind != TPL_DICT;
}

tpl_value *vptq_tpl_dict_find(tpl_run *r, const tpl_dict *d, tpl_value key)
{
    if (!is_hashable(key))
        TPL_ERROR(r, "%s cannot be a key", vptq_tpl_type(key));
    for (uint32_t i = 0; i < d->count && !r->status; i++)
        if (vptq_tpl_equal(r, d->items[2 * i], key))
            return &d->items[2 * i + 1];
    return NULL;
}

void vptq_tpl_dict_set(tpl_run *r, tpl_dict *d, tpl_value key, tpl_value value)
{
    tpl_value *found = vptq_tpl_dict_find(r, d, key);
    if (found)
        *found = value;
    if (found || r->status)
        return;
    if (d->count == d->cap) {
        tpl_value more = vptq_tpl_list(r, TPL_LIST, d->cap ? 4 * (size_t)d->cap : 8);
        if (more.len == 0)
            return;
        copy_items(more.u.items, (tpl_value){.len = 2 * d->count, .u.items = d->items});
        d->items = more.u.items;
        d->cap = more.len / 2;
    }
    d->items[2 * d->count] = key;
    d->items[2 * d->count++ + 1] = value;
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
    if (!vptq_tpl_step(r, 1) || !vptq_tpl_enter(r, TPL_MAX_DEPTH))
        return v;
    if (json_is_object(j)) {
        v = vptq_tpl_dict(r, TPL_DICT, json_object_size(j));
        json_object_foreach((json_t *)(uintptr_t)j, name, item)
        {
            tpl_value value = vptq_tpl_from_json(r, item);
            if (v.u.dict->count == v.u.dict->cap)
                break; /* a failure */
            tpl_value *pair = &v.u.dict->items[2 * v.u.dict->count++];
            pair[0] = TPL_TEXT(name, strlen(name));
            pair[1] = value;
        }
    } else if (json_is_array(j)) {
        v = vptq_tpl_list(r, TPL_LIST, json_array_size(j));
        for (uint32_t i = 0; i < v.len; i++)
            v.u.items[i] = vptq_tpl_from_json(r, json_array_get(j, i));
    } else if (json_is_string(j)) {
        v = TPL_TEXT(json_string_value(j), json_string_length(j));
    } else if (json_is_number(j)) {
        v = json_is_real(j) ? TPL_REAL(json_real_value(j)) : TPL_INTEGER(json_integer_value(j));
    }
    r->depth--;
    return v;
}

/* ---- properties ---- */

const char *vptq_tpl_type(tpl_value v)
{
    static const char *const names[] = {
        "undefined", "undefined",   "none",    "a boolean", "an integer",  "a float",
        "a string",  "a list",      "a tuple", "a range",   "a dict view", "an iterator",
        "a dict",    "a namespace", "a loop",  "a macro",   "a function"};
    return names[v.kind];
}

bool vptq_tpl_truth(tpl_value v)
{
    if (v.kind == TPL_DICT)
        return v.u.dict->count > 0;
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

bool vptq_tpl_is_space(uint32_t cp)
{
    return vptq_utf8_space(cp) || (cp >= 0x1c && cp <= 0x1f);
}

static bool is_continuation(char c)
{
    return ((unsigned char)c & 0xC0) == 0x80;
}

/* Byte offset of character `index`, or the length of s. */
static size_t char_offset(tpl_value s, size_t index)
{
    for (size_t i = 0; i < s.len; i++)
        if (!is_continuation(s.u.s[i]) && index-- == 0)
            return i;
    return s.len;
}

tpl_value vptq_tpl_strip(tpl_value v, tpl_value chars, bool left, bool right)
{
    while (v.len > 0 && (left || right)) {
        uint32_t cp;
        size_t at = left ? 0 : v.len - 1;
        while (is_continuation(v.u.s[at]))
            at--;
        size_t bytes = vptq_tpl_char(v.u.s + at, v.len - at, &cp);
        bool strips = chars.kind == TPL_STR
                          ? vptq_tpl_find(chars, TPL_TEXT(v.u.s + at, bytes), 0) != SIZE_MAX
                          : vptq_tpl_is_space(cp);
        v.u.s += strips && left ? bytes : 0;
        v.len -= strips ? (uint32_t)bytes : 0;
        if (!strips && !left)
            break;
        left = left && strips;
    }
    return v;
}

size_t vptq_tpl_find(tpl_value s, tpl_value part, size_t from)
{
    if (from > s.len || part.len > s.len - from)
        return SIZE_MAX;
    if (part.len == 0)
        return from;
    const char *at = memmem(s.u.s + from, s.len - from, part.u.s, part.len);
    return at ? (size_t)(at - s.u.s) : SIZE_MAX;
}

/* ---- equality and order ---- */

static double number(tpl_value v)
{
    return v.kind == TPL_FLOAT ? v.u.f : (double)v.u.i;
}

static bool equal_items(tpl_run *r, tpl_value a, tpl_value b)
{
    bool is = a.kind == TPL_DICT ? a.u.dict->count == b.u.dict->count : a.len == b.len;
    for (uint32_t i = 0; a.kind != TPL_DICT && i < a.len && is; i++)
        is = vptq_tpl_equal(r, a.u.items[i], b.u.items[i]);
    for (uint32_t i = 0; a.kind == TPL_DICT && i < a.u.dict->count && is; i++) {
        const tpl_value *pair = &a.u.dict->items[2 * i];
        const tpl_value *other = vptq_tpl_dict_find(r, b.u.dict, pair[0]);
        is = other && vptq_tpl_equal(r, pair[1], *other);
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
    else if (vptq_tpl_enter(r, TPL_MAX_DEPTH))
        is = equal_items(r, a, b);
    r->depth -= a.kind == b.kind && (tpl_is_sequence(a) || a.kind == TPL_DICT);
    return vptq_tpl_step(r, 1 + a.len / 64) && is;
}

/* a < b; an error for values without an order. */
static bool less(tpl_run *r, tpl_value a, tpl_value b)
{
    uint32_t len = a.len < b.len ? a.len : b.len;
    if (!vptq_tpl_step(r, 1 + len / 64))
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
        return vptq_tpl_dict_find(r, box.u.dict, item) != NULL;
    if (box.kind == TPL_STR) {
        if (item.kind != TPL_STR)
            TPL_ERROR(r, "%s cannot be in a string", vptq_tpl_type(item));
        return vptq_tpl_step(r, box.len / 16) && vptq_tpl_find(box, item, 0) != SIZE_MAX;
    }
    tpl_value items = vptq_tpl_iterate(r, box);
    for (uint32_t i = 0; i < items.len && !r->status; i++)
        if (vptq_tpl_equal(r, items.u.items[i], item))
            return true;
    return false;
}

bool vptq_tpl_compare(tpl_run *r, int op, tpl_value a, tpl_value b)
{
    switch (op) {
    case '<':
        return less(r, a, b);
    case '>':
        return less(r, b, a);
    case TPL_T_LE:
        return less(r, a, b) || vptq_tpl_equal(r, a, b);
    case TPL_T_GE:
        return less(r, b, a) || vptq_tpl_equal(r, a, b);
    case TPL_T_IN:
        return contains(r, b, a);
    case TPL_T_NOT_IN:
        return !contains(r, b, a);
    default:
        return vptq_tpl_equal(r, a, b) == (op == TPL_T_EQ);
    }
}

/* ---- arithmetic ---- */

static tpl_value integer_arithmetic(tpl_run *r, int op, int64_t a, int64_t b)
{
    int64_t v = 0;
    bool exceeds = false;
    if ((op == TPL_T_FLOORDIV || op == '%') && b == 0)
        return TPL_ERROR(r, "division by zero");
    if (op == '+')
        exceeds = __builtin_add_overflow(a, b, &v);
    else if (op == '-')
        exceeds = __builtin_sub_overflow(a, b, &v);
    else if (op == '*')
        exceeds = __builtin_mul_overflow(a, b, &v);
    else if (b == -1) /* the smallest integer has no negative */
        exceeds = op == TPL_T_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &v);
    else if (op == TPL_T_FLOORDIV)
        v = a / b - (a % b != 0 && (a < 0) != (b < 0));
    else
        v = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
    return exceeds ? TPL_ERROR(r, "an integer exceeds 64 bits") : TPL_INTEGER(v);
}

static tpl_value float_arithmetic(tpl_run *r, int op, double a, double b)
{
    if (op == '+' || op == '-' || op == '*')
        return TPL_REAL(op == '+' ? a + b : op == '-' ? a - b : a * b);
    if (b == 0)
        return TPL_ERROR(r, "division by zero");
    if (op == '/')
        return TPL_REAL(a / b);
    return TPL_UNSUPPORTED(r, "'//' and '%%' of floats are not supported");
}

/* Appends s with the characters that are special in HTML escaped. */
static void add_escaped(tpl_run *r, tpl_value s)
{
    static const char special[] = "&<>'\"";
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    for (uint32_t i = 0; i < s.len && !r->status; i++) {
        const char *at = s.u.s[i] ? strchr(special, s.u.s[i]) : NULL;
        vptq_tpl_add(r, at ? names[at - special] : s.u.s + i,
                     at ? strlen(names[at - special]) : 1);
    }
}

/* a + b of two strings, or of two lists or tuples. */
static tpl_value join(tpl_run *r, tpl_value a, tpl_value b)
{
    if (a.kind == TPL_STR) {
        size_t start = r->text->len;
        b.safe && !a.safe ? add_escaped(r, a) : vptq_tpl_add(r, a.u.s, a.len);
        a.safe && !b.safe ? add_escaped(r, b) : vptq_tpl_add(r, b.u.s, b.len);
        tpl_value joined = vptq_tpl_take(r, start);
        joined.safe = a.safe || b.safe;
        return joined;
    }
    tpl_value joined = vptq_tpl_list(r, a.kind, (size_t)a.len + b.len);
    if (joined.len > 0) {
        copy_items(joined.u.items, a);
        copy_items(joined.u.items + a.len, b);
    }
    return joined;
}

static tpl_value repeat(tpl_run *r, tpl_value v, int64_t times)
{
    size_t bytes = v.len * (v.kind == TPL_STR ? 1 : sizeof(tpl_value));
    size_t n = times > 0 && bytes > 0 ? (size_t)times : 0;
    char *copies = vptq_tpl_alloc(r, n, bytes ? bytes : 1);
    for (size_t i = 0; copies && i < n && vptq_tpl_step(r, 1); i++)
        memcpy(copies + i * bytes, v.u.s, bytes);
    v.len = copies ? (uint32_t)(v.len * n) : 0;
    v.u.s = copies ? copies : "";
    return v;
}

static bool can_be_joined(tpl_value v)
{
    return v.kind == TPL_STR || v.kind == TPL_LIST || v.kind == TPL_TUPLE;
}

tpl_value vptq_tpl_arithmetic(tpl_run *r, int op, tpl_value a, tpl_value b)
{
    const char name[3] = {op == TPL_T_FLOORDIV ? '/' : (char)op,
                          op == TPL_T_FLOORDIV ? '/' : 0};
    size_t start = r->text->len;
    if (op == '~') {
        vptq_tpl_print(r, a);
        vptq_tpl_print(r, b);
        return vptq_tpl_take(r, start);
    }
    if (tpl_is_integer(a) && tpl_is_integer(b) && op != '/')
        return integer_arithmetic(r, op, a.u.i, b.u.i);
    if (tpl_is_number(a) && tpl_is_number(b))
        return float_arithmetic(r, op, number(a), number(b));
    if (op == '+' && a.kind == b.kind && can_be_joined(a))
        return join(r, a, b);
    if (op == '*' && can_be_joined(a) && tpl_is_integer(b))
        return repeat(r, a, b.u.i);
    if (op == '*' && can_be_joined(b) && tpl_is_integer(a))
        return repeat(r, b, a.u.i);
    if (op == '%' && a.kind == TPL_STR)
        return TPL_UNSUPPORTED(r, "formatting with '%%' is not supported");
    return TPL_ERROR(r, "'%s' of %s and %s", name, vptq_tpl_type(a), vptq_tpl_type(b));
}

/* ---- iteration, attributes, subscripts ---- */

size_t vptq_tpl_length(tpl_run *r, tpl_value v)
{
    size_t length = v.kind == TPL_DICT ? v.u.dict->count : v.len;
    for (uint32_t i = 0; v.kind == TPL_STR && i < v.len; i++)
        length -= is_continuation(v.u.s[i]);
    vptq_tpl_step(r, v.len / 16);
    if (v.kind == TPL_UNDEFINED)
        return 0;
    if (v.kind < TPL_STR || v.kind > TPL_DICT || v.kind == TPL_ITERATOR)
        TPL_ERROR(r, "%s has no length", vptq_tpl_type(v));
    return length;
}

tpl_value vptq_tpl_iterate(tpl_run *r, tpl_value v)
{
    size_t at = 0;
    uint32_t cp;
    if (v.kind >= TPL_LIST && v.kind <= TPL_ITERATOR)
        return v;
    if (v.kind != TPL_UNDEFINED && v.kind != TPL_STR && v.kind != TPL_DICT)
        TPL_ERROR(r, "%s cannot be iterated", vptq_tpl_type(v));
    tpl_value items = vptq_tpl_list(r, TPL_LIST, r->status ? 0 : vptq_tpl_length(r, v));
    for (uint32_t i = 0; i < items.len && vptq_tpl_step(r, 1); i++) {
        size_t bytes = v.kind == TPL_STR ? vptq_tpl_char(v.u.s + at, v.len - at, &cp) : 0;
        items.u.items[i] = bytes ? TPL_TEXT(v.u.s + at, bytes) : v.u.dict->items[2 * i];
        at += bytes;
    }
    return items;
}

static tpl_value loop_attribute(const tpl_loop *l, tpl_value name)
{
    int64_t i = l->index, n = l->items.len;
    const struct {
        const char *name;
        tpl_value value;
    } table[] = {{"index", TPL_INTEGER(i + 1)},
                 {"index0", TPL_INTEGER(i)},
                 {"revindex", TPL_INTEGER(n - i)},
                 {"revindex0", TPL_INTEGER(n - i - 1)},
                 {"first", TPL_BOOLEAN(i == 0)},
                 {"last", TPL_BOOLEAN(i == n - 1)},
                 {"length", TPL_INTEGER(n)},
                 {"previtem", i > 0 ? l->items.u.items[i - 1] : TPL_NO_VALUE(name)},
                 {"nextitem", i + 1 < n ? l->items.u.items[i + 1] : TPL_NO_VALUE(name)}};
    for (size_t k = 0; k < sizeof table / sizeof *table; k++)
        if (tpl_is(name, table[k].name))
            return table[k].value;
    return TPL_NO_VALUE(name);
}

/* As Python's getattr: methods, and attributes of namespaces and loops. */
static tpl_value get_attribute(tpl_run *r, tpl_value v, tpl_value name)
{
    const tpl_function *f = vptq_tpl_method(v, name);
    if (f)
        return vptq_tpl_bound(r, f, v);
    if (v.kind == TPL_LOOP)
        return loop_attribute(v.u.loop, name);
    const tpl_value *value =
        v.kind == TPL_NAMESPACE ? vptq_tpl_dict_find(r, v.u.dict, name) : NULL;
    return value ? *value : TPL_NO_VALUE(name);
}

/* v[key] alone. */
static tpl_value get_item(tpl_run *r, tpl_value v, tpl_value key)
{
    tpl_value none = TPL_NO_VALUE(key.kind == TPL_STR ? key : TPL_LITERAL("a missing item"));
    uint32_t cp;
    if (v.kind == TPL_DICT && is_hashable(key)) {
        const tpl_value *value = vptq_tpl_dict_find(r, v.u.dict, key);
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
    return TPL_TEXT(v.u.s + at, vptq_tpl_char(v.u.s + at, v.len - at, &cp));
}

tpl_value vptq_tpl_attribute(tpl_run *r, tpl_value v, tpl_value name)
{
    if (v.kind == TPL_UNDEFINED)
        return TPL_ERROR(r, "'%.*s' is undefined and has no attributes", TPL_NAME(v));
    tpl_value found = get_attribute(r, v, name);
    return found.kind == TPL_UNDEFINED ? get_item(r, v, name) : found;
}

tpl_value vptq_tpl_item(tpl_run *r, tpl_value v, tpl_value key)
{
    if (v.kind == TPL_UNDEFINED)
        return TPL_ERROR(r, "'%.*s' is undefined and has no items", TPL_NAME(v));
    tpl_value found = get_item(r, v, key);
    return found.kind == TPL_UNDEFINED && key.kind == TPL_STR ? get_attribute(r, v, key)
                                                              : found;
}

/* A bound of a slice over n items, as Python clips it; `other` if it is not given. */
static int64_t clip(tpl_value bound, int64_t n, bool down, int64_t other)
{
    int64_t low = down ? -1 : 0, high = down ? n - 1 : n;
    int64_t i = bound.u.i < 0 ? bound.u.i + n : bound.u.i;
    return bound.kind == TPL_NONE ? other : i < low ? low : i > high ? high : i;
}

tpl_value vptq_tpl_slice(tpl_run *r, tpl_value v, const tpl_value *bounds)
{
    size_t start = r->text->len;
    for (int i = 0; i < 3; i++)
        if (bounds[i].kind != TPL_NONE && !tpl_is_integer(bounds[i]))
            return TPL_ERROR(r, "%s cannot be the bound of a slice", vptq_tpl_type(bounds[i]));
    if (!tpl_is_sequence(v) && v.kind != TPL_STR)
        return TPL_ERROR(r, "a slice of %s", vptq_tpl_type(v));
    int64_t n = (int64_t)vptq_tpl_length(r, v);
    int64_t step = bounds[2].kind == TPL_NONE ? 1 : bounds[2].u.i;
    if (step == 0)
        return TPL_ERROR(r, "a slice with a step of 0");
    step = step > n ? n + 1 : step < -n ? -n - 1 : step; /* selects the same items */
    int64_t from = clip(bounds[0], n, step < 0, step < 0 ? n - 1 : 0);
    int64_t to = clip(bounds[1], n, step < 0, step < 0 ? -1 : n);
    int64_t count = (to - from + step - (step < 0 ? -1 : 1)) / step;
    count = count > 0 ? count : 0;
    if (v.kind == TPL_STR && step == 1) {
        size_t at = char_offset(v, (size_t)from);
        tpl_value rest = TPL_TEXT(v.u.s + at, v.len - at);
        return TPL_TEXT(rest.u.s, char_offset(rest, (size_t)count));
    }
    tpl_value all = vptq_tpl_iterate(r, v), slice = vptq_tpl_list(r, v.kind, (size_t)count);
    for (int64_t i = 0; i < slice.len && vptq_tpl_step(r, 1); i++) {
        slice.u.items[i] = all.u.items[from + i * step];
        if (v.kind == TPL_STR)
            vptq_tpl_print(r, slice.u.items[i]);
    }
    return v.kind == TPL_STR ? vptq_tpl_take(r, start) : slice;
}
