/* Values of templates: making them, and what Python says of truth, equality, order, arithmetic.
 */
#include <math.h>
#include <string.h>

#include "lib/chat/internal.h"

/* ---- making ---- */

tpl_value vptq_tpl_undefined(const char *name, size_t len)
{
    return (tpl_value){.kind = TPL_UNDEFINED, .len = (uint32_t)len, .u.s = name};
}

tpl_value vptq_tpl_none(void)
{
    return (tpl_value){.kind = TPL_NONE};
}

tpl_value vptq_tpl_bool(bool b)
{
    return (tpl_value){.kind = TPL_BOOL, .u.i = b};
}

tpl_value vptq_tpl_int(int64_t i)
{
    return (tpl_value){.kind = TPL_INT, .u.i = i};
}

tpl_value vptq_tpl_float(double f)
{
    return (tpl_value){.kind = TPL_FLOAT, .u.f = f};
}

/* Texts of a rendering end at TPL_MAX_BYTES, those of a template at VPTQ_TEMPLATE_LIMIT. */
tpl_value vptq_tpl_str(const char *s, size_t len)
{
    return (tpl_value){.kind = TPL_STR, .len = (uint32_t)len, .u.s = s};
}

vptq_status vptq_tpl_copy(tpl_run *r, const char *s, size_t len, tpl_value *out)
{
    void *own;
    TPL_TRY(vptq_tpl_alloc(r, len, 1, &own));
    if (len > 0)
        memcpy(own, s, len);
    *out = vptq_tpl_str(own, len);
    return VPTQ_OK;
}

vptq_status vptq_tpl_take(tpl_run *r, vptq_buf *b, tpl_value *out)
{
    vptq_status st = vptq_tpl_copy(r, b->data, b->len, out);
    vptq_buf_release(b);
    return st;
}

vptq_status vptq_tpl_list(tpl_run *r, tpl_form form, size_t count, tpl_value *out)
{
    void *list, *items;
    TPL_TRY(vptq_tpl_alloc(r, 1, sizeof(tpl_list), &list));
    TPL_TRY(vptq_tpl_alloc(r, count, sizeof(tpl_value), &items));
    tpl_list *l = list;
    *l = (tpl_list){.form = form, .count = count, .items = items};
    *out = (tpl_value){.kind = TPL_LIST, .u.list = l};
    return VPTQ_OK;
}

vptq_status vptq_tpl_pair(tpl_run *r, const tpl_value *a, const tpl_value *b, tpl_value *out)
{
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_TUPLE, 2, out));
    out->u.list->items[0] = *a;
    out->u.list->items[1] = *b;
    return VPTQ_OK;
}

vptq_status vptq_tpl_dict(tpl_run *r, tpl_kind kind, size_t cap, tpl_value *out)
{
    void *dict, *keys, *values;
    TPL_TRY(vptq_tpl_alloc(r, 1, sizeof(tpl_dict), &dict));
    TPL_TRY(vptq_tpl_alloc(r, cap, sizeof(tpl_value), &keys));
    TPL_TRY(vptq_tpl_alloc(r, cap, sizeof(tpl_value), &values));
    tpl_dict *d = dict;
    *d = (tpl_dict){.cap = cap, .keys = keys, .values = values};
    *out = (tpl_value){.kind = (uint8_t)kind, .u.dict = d};
    return VPTQ_OK;
}

vptq_status vptq_tpl_hashable(tpl_run *r, const tpl_value *key)
{
    bool tuple = key->kind == TPL_LIST && key->u.list->form == TPL_FORM_TUPLE;
    if (key->kind == TPL_DICT || (key->kind == TPL_LIST && key->u.list->form == TPL_FORM_LIST))
        return vptq_tpl_fail(r, "%s cannot be a key", vptq_tpl_type(key));
    if (!tuple)
        return VPTQ_OK;
    TPL_TRY(vptq_tpl_deeper(r));
    TPL_TRY(vptq_tpl_step(r, key->u.list->count));
    for (size_t i = 0; i < key->u.list->count; i++)
        TPL_TRY(vptq_tpl_hashable(r, &key->u.list->items[i]));
    r->depth--;
    return VPTQ_OK;
}

/* The place of a key; count where it is not there. */
static vptq_status find_key(tpl_run *r, const tpl_dict *d, const tpl_value *key, size_t *at)
{
    TPL_TRY(vptq_tpl_hashable(r, key));
    TPL_TRY(vptq_tpl_step(r, d->count));
    for (*at = 0; *at < d->count; ++*at) {
        bool equal;
        TPL_TRY(vptq_tpl_equal(r, &d->keys[*at], key, &equal));
        if (equal)
            break;
    }
    return VPTQ_OK;
}

vptq_status vptq_tpl_find(tpl_run *r, const tpl_dict *d, const tpl_value *key,
                          const tpl_value **value)
{
    size_t at;
    TPL_TRY(find_key(r, d, key, &at));
    *value = at < d->count ? &d->values[at] : NULL;
    return VPTQ_OK;
}

vptq_status vptq_tpl_put(tpl_run *r, tpl_dict *d, const tpl_value *key, const tpl_value *value)
{
    size_t at;
    TPL_TRY(find_key(r, d, key, &at));
    if (at == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 4;
        void *keys, *values;
        TPL_TRY(vptq_tpl_alloc(r, cap, sizeof(tpl_value), &keys));
        TPL_TRY(vptq_tpl_alloc(r, cap, sizeof(tpl_value), &values));
        if (d->count > 0) {
            memcpy(keys, d->keys, d->count * sizeof(tpl_value));
            memcpy(values, d->values, d->count * sizeof(tpl_value));
        }
        d->keys = keys;
        d->values = values;
        d->cap = cap;
    }
    if (at == d->count)
        d->keys[d->count++] = *key;
    d->values[at] = *value;
    return VPTQ_OK;
}

static vptq_status list_from_json(tpl_run *r, const json_t *j, tpl_value *out)
{
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_LIST, json_array_size(j), out));
    for (size_t i = 0; i < out->u.list->count; i++)
        TPL_TRY(vptq_tpl_from_json(r, json_array_get(j, i), &out->u.list->items[i]));
    return VPTQ_OK;
}

/* Keys of a parsed object are different ones, so nothing is looked for. */
static vptq_status dict_from_json(tpl_run *r, const json_t *j, tpl_value *out)
{
    TPL_TRY(vptq_tpl_dict(r, TPL_DICT, json_object_size(j), out));
    tpl_dict *d = out->u.dict;
    for (void *at = json_object_iter((json_t *)(uintptr_t)j); at;
         at = json_object_iter_next((json_t *)(uintptr_t)j, at)) {
        const char *key = json_object_iter_key(at);
        TPL_TRY(vptq_tpl_copy(r, key, strlen(key), &d->keys[d->count]));
        TPL_TRY(vptq_tpl_from_json(r, json_object_iter_value(at), &d->values[d->count]));
        d->count++;
    }
    return VPTQ_OK;
}

vptq_status vptq_tpl_from_json(tpl_run *r, const json_t *j, tpl_value *out)
{
    vptq_status st = VPTQ_OK;
    TPL_TRY(vptq_tpl_deeper(r));
    TPL_TRY(vptq_tpl_step(r, 1));
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        st = dict_from_json(r, j, out);
        break;
    case JSON_ARRAY:
        st = list_from_json(r, j, out);
        break;
    case JSON_STRING:
        st = vptq_tpl_copy(r, json_string_value(j), json_string_length(j), out);
        break;
    case JSON_INTEGER:
        *out = vptq_tpl_int(json_integer_value(j));
        break;
    case JSON_REAL:
        *out = vptq_tpl_float(json_real_value(j));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = vptq_tpl_bool(json_is_true(j));
        break;
    case JSON_NULL:
        *out = vptq_tpl_none();
        break;
    }
    r->depth--;
    return st;
}

/* ---- asking ---- */

const char *vptq_tpl_type(const tpl_value *v)
{
    static const char *const forms[] = {"a list", "a tuple", "a range", "a view of a dict",
                                        "what a filter gives item by item"};
    switch ((tpl_kind)v->kind) {
    case TPL_MISSING:
    case TPL_UNDEFINED:
        return "undefined";
    case TPL_NONE:
        return "none";
    case TPL_BOOL:
        return "a boolean";
    case TPL_INT:
        return "an integer";
    case TPL_FLOAT:
        return "a float";
    case TPL_STR:
        return "a string";
    case TPL_LIST:
        return forms[v->u.list->form];
    case TPL_DICT:
        return "a dict";
    case TPL_NAMESPACE:
        return "a namespace";
    case TPL_MACRO:
        return "a macro";
    case TPL_FUNCTION:
    case TPL_METHOD:
        return "a function";
    case TPL_LOOP:
        return "a loop";
    }
    return "nothing";
}

bool vptq_tpl_truth(const tpl_value *v)
{
    switch ((tpl_kind)v->kind) {
    case TPL_MISSING:
    case TPL_UNDEFINED:
    case TPL_NONE:
        return false;
    case TPL_BOOL:
    case TPL_INT:
        return v->u.i != 0;
    case TPL_FLOAT:
        return v->u.f != 0;
    case TPL_STR:
        return v->len > 0;
    case TPL_LIST:
        return v->u.list->form == TPL_FORM_LAZY || v->u.list->count > 0;
    case TPL_DICT:
        return v->u.dict->count > 0;
    case TPL_LOOP:
        return v->u.loop->items->count > 0;
    default:
        return true;
    }
}

bool vptq_tpl_is_number(const tpl_value *v)
{
    return v->kind == TPL_BOOL || v->kind == TPL_INT || v->kind == TPL_FLOAT;
}

bool vptq_tpl_same_text(const tpl_value *v, const char *text)
{
    return v->kind == TPL_STR && v->len == strlen(text) && memcmp(v->u.s, text, v->len) == 0;
}

double vptq_tpl_number(const tpl_value *v)
{
    return v->kind == TPL_FLOAT ? v->u.f : (double)v->u.i;
}

/* Exact, where a conversion to double would make different integers equal. */
static int order_int_float(int64_t i, double f)
{
    if (f >= 0x1p63)
        return -1;
    if (f < -0x1p63)
        return 1;
    double whole = floor(f);
    int64_t w = (int64_t)whole;
    return i < w ? -1 : i > w ? 1 : f > whole ? -1 : 0;
}

/* Neither is NaN. */
static int order_numbers(const tpl_value *a, const tpl_value *b)
{
    if (a->kind == TPL_FLOAT && b->kind == TPL_FLOAT)
        return a->u.f < b->u.f ? -1 : a->u.f > b->u.f;
    if (a->kind == TPL_FLOAT)
        return -order_int_float(b->u.i, a->u.f);
    if (b->kind == TPL_FLOAT)
        return order_int_float(a->u.i, b->u.f);
    return a->u.i < b->u.i ? -1 : a->u.i > b->u.i;
}

static bool is_nan(const tpl_value *v)
{
    return v->kind == TPL_FLOAT && isnan(v->u.f);
}

static int order_texts(const tpl_value *a, const tpl_value *b)
{
    size_t n = a->len < b->len ? a->len : b->len;
    int order = n ? memcmp(a->u.s, b->u.s, n) : 0; /* UTF-8 keeps the order of code points */
    return order ? order : a->len < b->len ? -1 : a->len > b->len;
}

static vptq_status equal_lists(tpl_run *r, const tpl_list *a, const tpl_list *b, bool *equal)
{
    *equal = a == b;
    if (*equal || a->form != b->form || a->form > TPL_FORM_RANGE || a->count != b->count)
        return VPTQ_OK;
    *equal = true;
    for (size_t i = 0; i < a->count && *equal; i++)
        TPL_TRY(vptq_tpl_equal(r, &a->items[i], &b->items[i], equal));
    return VPTQ_OK;
}

static vptq_status equal_dicts(tpl_run *r, const tpl_dict *a, const tpl_dict *b, bool *equal)
{
    *equal = a->count == b->count;
    for (size_t i = 0; i < a->count && *equal; i++) {
        const tpl_value *other;
        TPL_TRY(vptq_tpl_find(r, b, &a->keys[i], &other));
        *equal = other != NULL;
        if (other)
            TPL_TRY(vptq_tpl_equal(r, &a->values[i], other, equal));
    }
    return VPTQ_OK;
}

vptq_status vptq_tpl_equal(tpl_run *r, const tpl_value *a, const tpl_value *b, bool *equal)
{
    vptq_status st = VPTQ_OK;
    TPL_TRY(vptq_tpl_step(r, 1));
    *equal = false;
    if (vptq_tpl_is_number(a) && vptq_tpl_is_number(b)) {
        *equal = !is_nan(a) && !is_nan(b) && order_numbers(a, b) == 0;
        return VPTQ_OK;
    }
    if (a->kind != b->kind)
        return VPTQ_OK;
    TPL_TRY(vptq_tpl_deeper(r));
    switch ((tpl_kind)a->kind) {
    case TPL_UNDEFINED:
    case TPL_NONE:
        *equal = true;
        break;
    case TPL_STR:
        st = vptq_tpl_step(r, a->len / 64);
        *equal = a->len == b->len && order_texts(a, b) == 0;
        break;
    case TPL_LIST:
        st = equal_lists(r, a->u.list, b->u.list, equal);
        break;
    case TPL_DICT:
        st = equal_dicts(r, a->u.dict, b->u.dict, equal);
        break;
    default: /* things that are equal to themselves alone */
        *equal = a->u.dict == b->u.dict;
        break;
    }
    r->depth--;
    return st;
}

static vptq_status order_lists(tpl_run *r, const tpl_list *a, const tpl_list *b, int *order)
{
    size_t n = a->count < b->count ? a->count : b->count;
    TPL_TRY(vptq_tpl_deeper(r));
    for (size_t i = 0; i < n; i++) {
        bool equal;
        TPL_TRY(vptq_tpl_equal(r, &a->items[i], &b->items[i], &equal));
        if (!equal) {
            TPL_TRY(vptq_tpl_order(r, &a->items[i], &b->items[i], order));
            r->depth--;
            return VPTQ_OK;
        }
    }
    r->depth--;
    *order = a->count < b->count ? -1 : a->count > b->count;
    return VPTQ_OK;
}

vptq_status vptq_tpl_order(tpl_run *r, const tpl_value *a, const tpl_value *b, int *order)
{
    TPL_TRY(vptq_tpl_step(r, 1));
    if (vptq_tpl_is_number(a) && vptq_tpl_is_number(b)) {
        if (is_nan(a) || is_nan(b))
            return vptq_tpl_fail(r, "NaN has no order");
        *order = order_numbers(a, b);
        return VPTQ_OK;
    }
    if (a->kind == TPL_STR && b->kind == TPL_STR) {
        *order = order_texts(a, b);
        return vptq_tpl_step(r, a->len / 64);
    }
    if (a->kind == TPL_LIST && b->kind == TPL_LIST && a->u.list->form == b->u.list->form &&
        a->u.list->form <= TPL_FORM_TUPLE)
        return order_lists(r, a->u.list, b->u.list, order);
    return vptq_tpl_fail(r, "%s and %s cannot be compared by order", vptq_tpl_type(a),
                         vptq_tpl_type(b));
}

vptq_status vptq_tpl_contains(tpl_run *r, const tpl_value *box, const tpl_value *item,
                              bool *found)
{
    const tpl_list *items;
    const tpl_value *value;
    *found = false;
    if (box->kind == TPL_STR) {
        if (item->kind != TPL_STR)
            return vptq_tpl_fail(r, "%s cannot be in a string", vptq_tpl_type(item));
        TPL_TRY(vptq_tpl_step(r, box->len / 16));
        *found = vptq_tpl_search(box, item, 0, false) != SIZE_MAX;
        return VPTQ_OK;
    }
    if (box->kind == TPL_DICT) {
        TPL_TRY(vptq_tpl_find(r, box->u.dict, item, &value));
        *found = value != NULL;
        return VPTQ_OK;
    }
    TPL_TRY(vptq_tpl_iterate(r, box, &items));
    for (size_t i = 0; i < items->count && !*found; i++)
        TPL_TRY(vptq_tpl_equal(r, &items->items[i], item, found));
    return VPTQ_OK;
}

vptq_status vptq_tpl_compare(tpl_run *r, int op, const tpl_value *a, const tpl_value *b,
                             bool *is)
{
    int order;
    if (op == TPL_OP_EQ || op == TPL_OP_NE) {
        TPL_TRY(vptq_tpl_equal(r, a, b, is));
        *is ^= op == TPL_OP_NE;
        return VPTQ_OK;
    }
    if (op == TPL_OP_IN || op == TPL_OP_NOT_IN) {
        TPL_TRY(vptq_tpl_contains(r, b, a, is));
        *is ^= op == TPL_OP_NOT_IN;
        return VPTQ_OK;
    }
    *is = false;
    if (vptq_tpl_is_number(a) && vptq_tpl_is_number(b) && (is_nan(a) || is_nan(b)))
        return VPTQ_OK;
    TPL_TRY(vptq_tpl_order(r, a, b, &order));
    *is = op == '<'         ? order < 0
          : op == '>'       ? order > 0
          : op == TPL_OP_LE ? order <= 0
                            : order >= 0;
    return VPTQ_OK;
}

/* ---- going through ---- */

static vptq_status characters(tpl_run *r, const tpl_value *s, tpl_value *out)
{
    size_t at = 0;
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_LIST, vptq_tpl_chars(s), out));
    for (size_t i = 0; i < out->u.list->count; i++) {
        size_t bytes;
        vptq_tpl_char(s->u.s + at, s->len - at, &bytes);
        out->u.list->items[i] = vptq_tpl_str(s->u.s + at, bytes);
        at += bytes;
    }
    return VPTQ_OK;
}

vptq_status vptq_tpl_iterate(tpl_run *r, const tpl_value *v, const tpl_list **items)
{
    tpl_value list;
    switch ((tpl_kind)v->kind) {
    case TPL_LIST:
        *items = v->u.list;
        return vptq_tpl_step(r, v->u.list->count / 16);
    case TPL_UNDEFINED:
        TPL_TRY(vptq_tpl_list(r, TPL_FORM_LIST, 0, &list));
        break;
    case TPL_STR:
        TPL_TRY(vptq_tpl_step(r, v->len));
        TPL_TRY(characters(r, v, &list));
        break;
    case TPL_DICT:
        TPL_TRY(vptq_tpl_list(r, TPL_FORM_LIST, v->u.dict->count, &list));
        if (v->u.dict->count > 0)
            memcpy(list.u.list->items, v->u.dict->keys, v->u.dict->count * sizeof(tpl_value));
        break;
    default:
        return vptq_tpl_fail(r, "%s cannot be gone through", vptq_tpl_type(v));
    }
    *items = list.u.list;
    return VPTQ_OK;
}

vptq_status vptq_tpl_length(tpl_run *r, const tpl_value *v, size_t *n)
{
    if (v->kind == TPL_UNDEFINED)
        *n = 0;
    else if (v->kind == TPL_STR)
        *n = vptq_tpl_chars(v);
    else if (v->kind == TPL_LIST && v->u.list->form != TPL_FORM_LAZY)
        *n = v->u.list->count;
    else if (v->kind == TPL_DICT)
        *n = v->u.dict->count;
    else if (v->kind == TPL_LOOP)
        *n = v->u.loop->items->count;
    else
        return vptq_tpl_fail(r, "%s has no length", vptq_tpl_type(v));
    return vptq_tpl_step(r, v->kind == TPL_STR ? v->len / 16 : 0);
}

/* ---- arithmetic ---- */

static vptq_status over(tpl_run *r)
{
    return vptq_tpl_fail(r, "an integer is over 64 bits");
}

static bool power(int64_t base, int64_t exponent, int64_t *out)
{
    int64_t v = 1;
    if (base == 0 || base == 1 || base == -1) {
        *out = exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base;
        return true;
    }
    for (; exponent > 0; exponent--)
        if (__builtin_mul_overflow(v, base, &v))
            return false;
    *out = v;
    return true;
}

static vptq_status integers(tpl_run *r, int op, int64_t a, int64_t b, tpl_value *out)
{
    int64_t v = 0;
    bool bad = false;
    if ((op == TPL_OP_FLOORDIV || op == '%') && b == 0)
        return vptq_tpl_fail(r, "division by zero");
    if (op == '+')
        bad = __builtin_add_overflow(a, b, &v);
    else if (op == '-')
        bad = __builtin_sub_overflow(a, b, &v);
    else if (op == '*')
        bad = __builtin_mul_overflow(a, b, &v);
    else if (op == TPL_OP_POW)
        bad = !power(a, b, &v);
    else if (b == -1) /* the smallest integer has no negative */
        bad = op == TPL_OP_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &v);
    else if (op == TPL_OP_FLOORDIV)
        v = a / b - (a % b != 0 && (a < 0) != (b < 0));
    else
        v = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
    *out = vptq_tpl_int(v);
    return bad ? over(r) : VPTQ_OK;
}

static vptq_status floats(tpl_run *r, int op, double a, double b, tpl_value *out)
{
    double v;
    if ((op == '/' || op == TPL_OP_FLOORDIV || op == '%') && b == 0)
        return vptq_tpl_fail(r, "division by zero");
    double rest = op == TPL_OP_FLOORDIV || op == '%' ? fmod(a, b) : 0;
    if (op == '%' && rest == 0)
        v = copysign(0, b);
    else if (op == '%')
        v = (rest < 0) != (b < 0) ? rest + b : rest;
    else if (op == TPL_OP_FLOORDIV)
        v = round((a - rest) / b - (rest != 0 && (rest < 0) != (b < 0)));
    else if (op == TPL_OP_POW && ((a == 0 && b < 0) || (a < 0 && b != floor(b))))
        return vptq_tpl_fail(r, "a power that is no real number");
    else
        v = op == '+'   ? a + b
            : op == '-' ? a - b
            : op == '*' ? a * b
            : op == '/' ? a / b
                        : pow(a, b);
    if (op == TPL_OP_POW && isinf(v) && isfinite(a) && isfinite(b))
        return vptq_tpl_fail(r, "a power is too large");
    *out = vptq_tpl_float(v);
    return VPTQ_OK;
}

static bool would_escape(const tpl_value *v)
{
    for (size_t i = 0; i < v->len; i++)
        if (v->u.s[i] && strchr("&<>'\"", v->u.s[i]))
            return true;
    return false;
}

static vptq_status add_strings(tpl_run *r, const tpl_value *a, const tpl_value *b,
                               tpl_value *out)
{
    void *text;
    if ((a->safe && !b->safe && would_escape(b)) || (b->safe && !a->safe && would_escape(a)))
        return vptq_tpl_unsupported(r,
                                    "'+' of a text marked safe, which escapes the other one,");
    TPL_TRY(vptq_tpl_alloc(r, (size_t)a->len + b->len, 1, &text));
    if (a->len > 0)
        memcpy(text, a->u.s, a->len);
    if (b->len > 0)
        memcpy((char *)text + a->len, b->u.s, b->len);
    *out = vptq_tpl_str(text, (size_t)a->len + b->len);
    out->safe = a->safe || b->safe;
    return VPTQ_OK;
}

static vptq_status add_lists(tpl_run *r, const tpl_list *a, const tpl_list *b, tpl_value *out)
{
    TPL_TRY(vptq_tpl_list(r, a->form, a->count + b->count, out));
    if (a->count > 0)
        memcpy(out->u.list->items, a->items, a->count * sizeof(tpl_value));
    if (b->count > 0)
        memcpy(out->u.list->items + a->count, b->items, b->count * sizeof(tpl_value));
    return VPTQ_OK;
}

static vptq_status repeat_string(tpl_run *r, const tpl_value *s, int64_t times, tpl_value *out)
{
    void *text;
    size_t n = times > 0 ? (size_t)times : 0;
    if (n > 0 && s->len > TPL_MAX_BYTES / n)
        return vptq_tpl_charge(r, TPL_MAX_BYTES + 1);
    TPL_TRY(vptq_tpl_alloc(r, s->len * n, 1, &text));
    for (size_t i = 0; s->len > 0 && i < n; i++)
        memcpy((char *)text + i * s->len, s->u.s, s->len);
    *out = vptq_tpl_str(text, s->len * n);
    return VPTQ_OK;
}

static vptq_status repeat_list(tpl_run *r, const tpl_list *l, int64_t times, tpl_value *out)
{
    size_t n = times > 0 ? (size_t)times : 0;
    if (n > 0 && l->count > TPL_MAX_BYTES / n)
        return vptq_tpl_charge(r, TPL_MAX_BYTES + 1);
    TPL_TRY(vptq_tpl_list(r, l->form, l->count * n, out));
    for (size_t i = 0; l->count > 0 && i < n; i++)
        memcpy(out->u.list->items + i * l->count, l->items, l->count * sizeof(tpl_value));
    return VPTQ_OK;
}

static bool is_sequence(const tpl_value *v)
{
    return v->kind == TPL_LIST && v->u.list->form <= TPL_FORM_TUPLE;
}

static vptq_status sequences(tpl_run *r, int op, const tpl_value *a, const tpl_value *b,
                             tpl_value *out, bool *done)
{
    bool a_int = a->kind == TPL_INT || a->kind == TPL_BOOL;
    bool b_int = b->kind == TPL_INT || b->kind == TPL_BOOL;
    *done = true;
    if (op == '+' && a->kind == TPL_STR && b->kind == TPL_STR)
        return add_strings(r, a, b, out);
    if (op == '+' && is_sequence(a) && is_sequence(b) && a->u.list->form == b->u.list->form)
        return add_lists(r, a->u.list, b->u.list, out);
    if (op == '*' && a->kind == TPL_STR && b_int)
        return repeat_string(r, a, b->u.i, out);
    if (op == '*' && b->kind == TPL_STR && a_int)
        return repeat_string(r, b, a->u.i, out);
    if (op == '*' && is_sequence(a) && b_int)
        return repeat_list(r, a->u.list, b->u.i, out);
    if (op == '*' && is_sequence(b) && a_int)
        return repeat_list(r, b->u.list, a->u.i, out);
    if (op == '%' && a->kind == TPL_STR)
        return vptq_tpl_unsupported(r, "formatting with '%%'");
    *done = false;
    return VPTQ_OK;
}

vptq_status vptq_tpl_binary(tpl_run *r, int op, const tpl_value *a, const tpl_value *b,
                            tpl_value *out)
{
    static const char *const twos[] = {"==", "!=", ">=", "<=", "//", "**"};
    bool done;
    TPL_TRY(sequences(r, op, a, b, out, &done));
    if (done)
        return VPTQ_OK;
    if (vptq_tpl_is_number(a) && vptq_tpl_is_number(b)) {
        bool whole = a->kind != TPL_FLOAT && b->kind != TPL_FLOAT && op != '/' &&
                     !(op == TPL_OP_POW && b->u.i < 0);
        return whole ? integers(r, op, a->u.i, b->u.i, out)
                     : floats(r, op, vptq_tpl_number(a), vptq_tpl_number(b), out);
    }
    char one[2] = {(char)op, 0};
    return vptq_tpl_fail(r, "'%s' of %s and %s", op >= TPL_OP_EQ ? twos[op - TPL_OP_EQ] : one,
                         vptq_tpl_type(a), vptq_tpl_type(b));
}
