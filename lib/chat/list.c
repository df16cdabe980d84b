#include "lib/chat/list.h"

#include <string.h>

/* ---- what several of them share ---- */

/* An item's attribute by a path such as "function.name" or 0; the item itself with none. */
static vptq_status item_attribute(tpl_run *r, const tpl_value *item, const tpl_value *path,
                                  tpl_value *out)
{
    *out = *item;
    if (path->kind == TPL_NONE)
        return VPTQ_OK;
    if (path->kind == TPL_INT)
        return vptq_tpl_subscript(r, item, path, out);
    TPL_TRY(vptq_tpl_want_str(r, "an attribute's name", path));
    for (size_t from = 0, to; from <= path->len; from = to + 1) {
        tpl_value dot = vptq_tpl_str(".", 1), of = *out, key;
        int64_t index;
        to = vptq_tpl_search(path, &dot, from, false);
        to = to == SIZE_MAX ? path->len : to;
        key = vptq_tpl_str(path->u.s + from, to - from);
        bool number = key.len > 0 && key.u.s[0] >= '0' && key.u.s[0] <= '9' &&
                      vptq_tpl_read_int(&key, 10, &index);
        if (number)
            key = vptq_tpl_int(index);
        TPL_TRY(vptq_tpl_subscript(r, &of, &key, out));
    }
    return VPTQ_OK;
}

/* What texts are compared by where case does not count. */
static vptq_status folded(tpl_run *r, const tpl_value *v, bool case_sensitive, tpl_value *out)
{
    *out = *v;
    return v->kind == TPL_STR && !case_sensitive ? vptq_tpl_to_case(r, v, TPL_LOWER, out)
                                                 : VPTQ_OK;
}

typedef struct sort_keys {
    const tpl_value *keys;
    bool reverse;
    bool in_lists; /* jinja2's sort compares lists of one key: equal ones need no order */
} sort_keys;

static vptq_status order_keys(tpl_run *r, const sort_keys *k, size_t a, size_t b, int *order)
{
    bool equal = false;
    if (k->in_lists)
        TPL_TRY(vptq_tpl_equal(r, &k->keys[a], &k->keys[b], &equal));
    *order = 0;
    return equal ? VPTQ_OK : vptq_tpl_order(r, &k->keys[a], &k->keys[b], order);
}

/* Merges the sorted halves [from, mid) and [mid, to) of `order` by keys. */
static vptq_status merge(tpl_run *r, const sort_keys *k, size_t *order, size_t *room,
                         size_t from, size_t mid, size_t to)
{
    size_t a = from, b = mid;
    for (size_t i = from; i < to; i++) {
        int less = 0;
        if (a < mid && b < to)
            TPL_TRY(order_keys(r, k, order[b], order[a], &less));
        bool take_b = a == mid || (b < to && (k->reverse ? less > 0 : less < 0));
        room[i] = take_b ? order[b++] : order[a++];
    }
    memcpy(order + from, room + from, (to - from) * sizeof *order);
    return VPTQ_OK;
}

/* The items in the order of their keys; equal ones stay in theirs. */
static vptq_status sort_by(tpl_run *r, const tpl_list *items, const sort_keys *k,
                           tpl_value *out)
{
    void *order, *room;
    size_t n = items->count;
    TPL_TRY(vptq_tpl_alloc(r, n, sizeof(size_t), &order));
    TPL_TRY(vptq_tpl_alloc(r, n, sizeof(size_t), &room));
    for (size_t i = 0; i < n; i++)
        ((size_t *)order)[i] = i;
    for (size_t width = 1; width < n; width *= 2)
        for (size_t from = 0; from + width < n; from += 2 * width) {
            size_t to = from + 2 * width < n ? from + 2 * width : n;
            TPL_TRY(merge(r, k, order, room, from, from + width, to));
        }
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_LIST, n, out));
    for (size_t i = 0; i < n; i++)
        out->u.list->items[i] = items->items[((size_t *)order)[i]];
    return VPTQ_OK;
}

static vptq_status keys_of(tpl_run *r, const tpl_list *items, const tpl_value *attribute,
                           bool case_sensitive, const tpl_value **keys)
{
    tpl_value list;
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_LIST, items->count, &list));
    for (size_t i = 0; i < items->count; i++) {
        tpl_value key;
        TPL_TRY(item_attribute(r, &items->items[i], attribute, &key));
        TPL_TRY(folded(r, &key, case_sensitive, &list.u.list->items[i]));
    }
    *keys = list.u.list->items;
    return VPTQ_OK;
}

/* ---- one item ---- */

static vptq_status f_first(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    const tpl_list *items;
    TPL_TRY(vptq_tpl_bind(r, "first", args, NULL, 0, NULL));
    TPL_TRY(vptq_tpl_iterate(r, v, &items));
    *out = items->count ? items->items[0] : vptq_tpl_undefined("the first of nothing", 20);
    return VPTQ_OK;
}

static vptq_status f_last(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    const tpl_list *items;
    TPL_TRY(vptq_tpl_bind(r, "last", args, NULL, 0, NULL));
    if (v->kind == TPL_LIST && v->u.list->form == TPL_FORM_LAZY)
        return vptq_tpl_fail(r, "last of %s", vptq_tpl_type(v));
    TPL_TRY(vptq_tpl_iterate(r, v, &items));
    *out = items->count ? items->items[items->count - 1]
                        : vptq_tpl_undefined("the last of nothing", 19);
    return VPTQ_OK;
}

static vptq_status extreme(tpl_run *r, const tpl_value *v, const tpl_args *args, bool max,
                           tpl_value *out)
{
    static const char *const names[] = {"case_sensitive", "attribute"};
    tpl_value a[2] = {vptq_tpl_bool(false), vptq_tpl_none()};
    const tpl_list *items;
    const tpl_value *keys;
    size_t best = 0;
    TPL_TRY(vptq_tpl_bind(r, max ? "max" : "min", args, names, 2, a));
    TPL_TRY(vptq_tpl_iterate(r, v, &items));
    TPL_TRY(keys_of(r, items, &a[1], vptq_tpl_truth(&a[0]), &keys));
    for (size_t i = 1; i < items->count; i++) {
        int order;
        TPL_TRY(vptq_tpl_order(r, &keys[i], &keys[best], &order));
        if (max ? order > 0 : order < 0)
            best = i;
    }
    *out = items->count ? items->items[best] : vptq_tpl_undefined("the best of nothing", 19);
    return VPTQ_OK;
}

static vptq_status f_min(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    return extreme(r, v, args, false, out);
}

static vptq_status f_max(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    return extreme(r, v, args, true, out);
}

static vptq_status f_sum(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    static const char *const names[] = {"attribute", "start"};
    tpl_value a[2] = {vptq_tpl_none(), vptq_tpl_int(0)};
    const tpl_list *items;
    TPL_TRY(vptq_tpl_bind(r, "sum", args, names, 2, a));
    TPL_TRY(vptq_tpl_iterate(r, v, &items));
    if (a[1].kind == TPL_STR)
        return vptq_tpl_fail(r, "sum of strings");
    *out = a[1];
    for (size_t i = 0; i < items->count; i++) {
        tpl_value item, sum = *out;
        TPL_TRY(item_attribute(r, &items->items[i], &a[0], &item));
        TPL_TRY(vptq_tpl_binary(r, '+', &sum, &item, out));
    }
    return VPTQ_OK;
}

/* ---- lists ---- */

static vptq_status f_join(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    static const char *const names[] = {"d", "attribute"};
    tpl_value a[2] = {vptq_tpl_str("", 0), vptq_tpl_none()}, list;
    const tpl_list *items;
    TPL_TRY(vptq_tpl_bind(r, "join", args, names, 2, a));
    TPL_TRY(vptq_tpl_iterate(r, v, &items));
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_LIST, items->count, &list));
    for (size_t i = 0; i < items->count; i++)
        TPL_TRY(item_attribute(r, &items->items[i], &a[1], &list.u.list->items[i]));
    TPL_TRY(vptq_tpl_string(r, &a[0], &a[0]));
    return vptq_tpl_join(r, &a[0], list.u.list, false, out);
}

static vptq_status copy_items(tpl_run *r, const tpl_value *v, tpl_form form, tpl_value *out)
{
    const tpl_list *items;
    TPL_TRY(vptq_tpl_iterate(r, v, &items));
    TPL_TRY(vptq_tpl_list(r, form, items->count, out));
    if (items->count > 0)
        memcpy(out->u.list->items, items->items, items->count * sizeof(tpl_value));
    return VPTQ_OK;
}

static vptq_status f_list(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    TPL_TRY(vptq_tpl_bind(r, "list", args, NULL, 0, NULL));
    return copy_items(r, v, TPL_FORM_LIST, out);
}

static vptq_status f_reverse(tpl_run *r, const tpl_value *v, const tpl_args *args,
                             tpl_value *out)
{
    TPL_TRY(vptq_tpl_bind(r, "reverse", args, NULL, 0, NULL));
    if (v->kind == TPL_STR) {
        const tpl_value turned[3] = {vptq_tpl_none(), vptq_tpl_none(), vptq_tpl_int(-1)};
        return vptq_tpl_slice(r, v, turned, out);
    }
    TPL_TRY(copy_items(r, v, TPL_FORM_LAZY, out));
    tpl_list *l = out->u.list;
    for (size_t i = 0, j = l->count; i + 1 < j; i++) {
        tpl_value item = l->items[i];
        l->items[i] = l->items[--j];
        l->items[j] = item;
    }
    return VPTQ_OK;
}

static vptq_status f_sort(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    static const char *const names[] = {"reverse", "case_sensitive", "attribute"};
    tpl_value a[3] = {vptq_tpl_bool(false), vptq_tpl_bool(false), vptq_tpl_none()};
    const tpl_list *items;
    const tpl_value *keys;
    TPL_TRY(vptq_tpl_bind(r, "sort", args, names, 3, a));
    TPL_TRY(vptq_tpl_iterate(r, v, &items));
    if (a[2].kind == TPL_STR && a[2].len > 0 && memchr(a[2].u.s, ',', a[2].len))
        return vptq_tpl_unsupported(r, "sort by several attributes");
    TPL_TRY(keys_of(r, items, &a[2], vptq_tpl_truth(&a[1]), &keys));
    const sort_keys k = {keys, vptq_tpl_truth(&a[0]), true};
    return sort_by(r, items, &k, out);
}

static vptq_status f_unique(tpl_run *r, const tpl_value *v, const tpl_args *args,
                            tpl_value *out)
{
    static const char *const names[] = {"case_sensitive", "attribute"};
    tpl_value a[2] = {vptq_tpl_bool(false), vptq_tpl_none()};
    const tpl_list *items;
    const tpl_value *keys;
    size_t n = 0;
    TPL_TRY(vptq_tpl_bind(r, "unique", args, names, 2, a));
    TPL_TRY(vptq_tpl_iterate(r, v, &items));
    TPL_TRY(keys_of(r, items, &a[1], vptq_tpl_truth(&a[0]), &keys));
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_LAZY, items->count, out));
    for (size_t i = 0; i < items->count; i++) {
        bool seen = false;
        TPL_TRY(vptq_tpl_hashable(r, &keys[i]));
        for (size_t j = 0; j < i && !seen; j++)
            TPL_TRY(vptq_tpl_equal(r, &keys[i], &keys[j], &seen));
        if (!seen)
            out->u.list->items[n++] = items->items[i];
    }
    out->u.list->count = n;
    return VPTQ_OK;
}

/* ---- dicts ---- */

static vptq_status dict_pairs(tpl_run *r, const tpl_dict *d, tpl_value *out)
{
    TPL_TRY(vptq_tpl_step(r, d->count));
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_LAZY, d->count, out));
    for (size_t i = 0; i < d->count; i++)
        TPL_TRY(vptq_tpl_pair(r, &d->keys[i], &d->values[i], &out->u.list->items[i]));
    return VPTQ_OK;
}

static vptq_status f_items(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    TPL_TRY(vptq_tpl_bind(r, "items", args, NULL, 0, NULL));
    if (v->kind == TPL_UNDEFINED)
        return vptq_tpl_list(r, TPL_FORM_LAZY, 0, out);
    if (v->kind != TPL_DICT)
        return vptq_tpl_fail(r, "items of %s, expected a dict", vptq_tpl_type(v));
    return dict_pairs(r, v->u.dict, out);
}

static vptq_status f_dictsort(tpl_run *r, const tpl_value *v, const tpl_args *args,
                              tpl_value *out)
{
    static const char *const names[] = {"case_sensitive", "by", "reverse"};
    tpl_value a[3] = {vptq_tpl_bool(false), vptq_tpl_str("key", 3), vptq_tpl_bool(false)};
    tpl_value pairs;
    const tpl_value *keys;
    TPL_TRY(vptq_tpl_bind(r, "dictsort", args, names, 3, a));
    bool by_key = vptq_tpl_same_text(&a[1], "key");
    if (!by_key && !vptq_tpl_same_text(&a[1], "value"))
        return vptq_tpl_fail(r, "dictsort by what is neither 'key' nor 'value'");
    if (v->kind != TPL_DICT)
        return vptq_tpl_fail(r, "dictsort of %s, expected a dict", vptq_tpl_type(v));
    tpl_value place = vptq_tpl_int(by_key ? 0 : 1);
    TPL_TRY(dict_pairs(r, v->u.dict, &pairs));
    TPL_TRY(keys_of(r, pairs.u.list, &place, vptq_tpl_truth(&a[0]), &keys));
    const sort_keys k = {keys, vptq_tpl_truth(&a[2]), false};
    return sort_by(r, pairs.u.list, &k, out);
}

/* ---- by a filter or a test of each item ---- */

/* The arguments behind the first `skip`, without those by name when `named` is false. */
static tpl_args rest_of(const tpl_args *args, size_t skip)
{
    tpl_args rest = *args;
    rest.items += skip;
    rest.count -= skip;
    return rest;
}

static vptq_status named_function(tpl_run *r, const char *kind, const tpl_value *name,
                                  const tpl_function *(*find)(const char *, size_t),
                                  const tpl_function **f)
{
    TPL_TRY(vptq_tpl_want_str(r, kind, name));
    *f = find(name->u.s, name->len);
    if (*f && (*f)->call)
        return VPTQ_OK;
    return vptq_tpl_unsupported(r, "the %s '%.*s'", kind, name->len < 64 ? (int)name->len : 64,
                                name->u.s);
}

static const tpl_value *named_argument(const tpl_args *args, const char *name)
{
    for (size_t i = 0; i < args->named_count; i++)
        if (args->named[i].len == strlen(name) &&
            memcmp(args->named[i].name, name, args->named[i].len) == 0)
            return &args->named[i].value;
    return NULL;
}

/* Items to work on; what is false, such as none, has none. */
static vptq_status iterate_if_true(tpl_run *r, const tpl_value *v, const tpl_list **items)
{
    const tpl_value nothing = vptq_tpl_undefined("", 0);
    return vptq_tpl_iterate(r, vptq_tpl_truth(v) ? v : &nothing, items);
}

/* map(attribute='x', default=y), or map('filter', ...). */
static vptq_status f_map(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    const tpl_list *items;
    const tpl_function *f = NULL;
    const tpl_value *attribute = named_argument(args, "attribute");
    const tpl_value *other = named_argument(args, "default");
    tpl_args rest = *args;
    bool by_attribute = args->count == 0 && attribute;
    if (by_attribute && args->named_count > 1 + (size_t)(other != NULL))
        return vptq_tpl_fail(r, "map with arguments beside 'attribute' and 'default'");
    if (!by_attribute) {
        if (args->count == 0)
            return vptq_tpl_fail(r, "map without a filter");
        TPL_TRY(named_function(r, "filter", &args->items[0], vptq_tpl_filter, &f));
        rest = rest_of(args, 1);
    }
    TPL_TRY(iterate_if_true(r, v, &items));
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_LAZY, items->count, out));
    for (size_t i = 0; i < items->count; i++) {
        tpl_value *to = &out->u.list->items[i];
        TPL_TRY(vptq_tpl_step(r, 1));
        TPL_TRY(by_attribute ? item_attribute(r, &items->items[i], attribute, to)
                             : f->call(r, &items->items[i], &rest, to));
        if (by_attribute && other && to->kind == TPL_UNDEFINED)
            *to = *other;
    }
    return VPTQ_OK;
}

/* select, reject: by a test of the item, or of an attribute that the first argument names. */
static vptq_status choose(tpl_run *r, const tpl_value *v, const tpl_args *args, bool attribute,
                          bool wanted, tpl_value *out)
{
    const tpl_list *items;
    const tpl_function *test = NULL;
    tpl_value path = vptq_tpl_none();
    size_t n = 0, used = attribute;
    if (args->count < used)
        return vptq_tpl_fail(r, "a choice by attribute without its name");
    if (attribute)
        path = args->items[0];
    if (args->count > used)
        TPL_TRY(named_function(r, "test", &args->items[used++], vptq_tpl_test, &test));
    tpl_args rest = rest_of(args, used);
    TPL_TRY(iterate_if_true(r, v, &items));
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_LAZY, items->count, out));
    for (size_t i = 0; i < items->count; i++) {
        tpl_value of, is;
        TPL_TRY(vptq_tpl_step(r, 1));
        TPL_TRY(item_attribute(r, &items->items[i], &path, &of));
        is = of;
        if (test)
            TPL_TRY(test->call(r, &of, &rest, &is));
        if (vptq_tpl_truth(&is) == wanted)
            out->u.list->items[n++] = items->items[i];
    }
    out->u.list->count = n;
    return VPTQ_OK;
}

static vptq_status f_select(tpl_run *r, const tpl_value *v, const tpl_args *args,
                            tpl_value *out)
{
    return choose(r, v, args, false, true, out);
}

static vptq_status f_reject(tpl_run *r, const tpl_value *v, const tpl_args *args,
                            tpl_value *out)
{
    return choose(r, v, args, false, false, out);
}

static vptq_status f_selectattr(tpl_run *r, const tpl_value *v, const tpl_args *args,
                                tpl_value *out)
{
    return choose(r, v, args, true, true, out);
}

static vptq_status f_rejectattr(tpl_run *r, const tpl_value *v, const tpl_args *args,
                                tpl_value *out)
{
    return choose(r, v, args, true, false, out);
}

const tpl_function *vptq_tpl_list_filter(const char *name, size_t len)
{
    static const tpl_function table[] = {{"first", f_first, false},
                                         {"last", f_last, false},
                                         {"min", f_min, false},
                                         {"max", f_max, false},
                                         {"sum", f_sum, false},
                                         {"join", f_join, false},
                                         {"list", f_list, false},
                                         {"reverse", f_reverse, false},
                                         {"sort", f_sort, false},
                                         {"unique", f_unique, false},
                                         {"items", f_items, false},
                                         {"dictsort", f_dictsort, false},
                                         {"map", f_map, false},
                                         {"select", f_select, false},
                                         {"reject", f_reject, false},
                                         {"selectattr", f_selectattr, false},
                                         {"rejectattr", f_rejectattr, false}};
    return vptq_tpl_lookup_function(table, sizeof table / sizeof *table, name, len);
}
