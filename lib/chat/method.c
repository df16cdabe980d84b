/* Attributes, subscripts and slices; methods of dicts, lists and loops; global functions. */
#include <string.h>

#include "lib/chat/internal.h"

#define COUNT(table) (sizeof(table) / sizeof *(table))

const tpl_function *vptq_tpl_lookup_function(const tpl_function *table, size_t count,
                                             const char *name, size_t len)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(table[i].name) == len && memcmp(table[i].name, name, len) == 0)
            return &table[i];
    return NULL;
}

/* ---- arguments ---- */

vptq_status vptq_tpl_bind(tpl_run *r, const char *what, const tpl_args *args,
                          const char *const *names, size_t count, tpl_value *slots)
{
    if (args->count > count)
        return vptq_tpl_fail(r, "%s takes at most %zu arguments, found %zu", what, count,
                             args->count);
    for (size_t i = 0; i < args->count; i++)
        slots[i] = args->items[i];
    for (size_t i = 0; i < args->named_count; i++) {
        const tpl_named *n = &args->named[i];
        size_t slot = 0;
        while (slot < count &&
               (strlen(names[slot]) != n->len || memcmp(names[slot], n->name, n->len) != 0))
            slot++;
        if (slot == count)
            return vptq_tpl_fail(r, "%s has no argument '%.*s'", what,
                                 n->len < 64 ? (int)n->len : 64, n->name);
        if (slot < args->count)
            return vptq_tpl_fail(r, "%s gets its argument '%s' twice", what, names[slot]);
        slots[slot] = n->value;
    }
    return VPTQ_OK;
}

vptq_status vptq_tpl_want_str(tpl_run *r, const char *what, const tpl_value *v)
{
    return v->kind == TPL_STR
               ? VPTQ_OK
               : vptq_tpl_fail(r, "%s is %s, expected a string", what, vptq_tpl_type(v));
}

vptq_status vptq_tpl_want_int(tpl_run *r, const char *what, const tpl_value *v, int64_t *out)
{
    if (v->kind != TPL_INT && v->kind != TPL_BOOL)
        return vptq_tpl_fail(r, "%s is %s, expected an integer", what, vptq_tpl_type(v));
    *out = v->u.i;
    return VPTQ_OK;
}

/* Methods that take strings by place alone: at most `max` of them, at least `min`. */
vptq_status vptq_tpl_strings_only(tpl_run *r, const char *what, const tpl_args *args,
                                  size_t min, size_t max)
{
    if (args->named_count > 0 || args->count < min || args->count > max)
        return vptq_tpl_fail(r, "%s takes %zu to %zu arguments by place", what, min, max);
    for (size_t i = 0; i < args->count; i++)
        TPL_TRY(vptq_tpl_want_str(r, what, &args->items[i]));
    return VPTQ_OK;
}

vptq_status vptq_tpl_no_arguments(tpl_run *r, const char *what, const tpl_args *args)
{
    return args->count || args->named_count ? vptq_tpl_fail(r, "%s takes no arguments", what)
                                            : VPTQ_OK;
}

/* ---- methods of dicts and lists ---- */

static vptq_status dict_view(tpl_run *r, const tpl_value *self, const tpl_args *args, char what,
                             tpl_value *out)
{
    const tpl_dict *d = self->u.dict;
    TPL_TRY(vptq_tpl_no_arguments(r,
                                  what == 'k'   ? "keys"
                                  : what == 'v' ? "values"
                                                : "items",
                                  args));
    TPL_TRY(vptq_tpl_step(r, d->count));
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_VIEW, d->count, out));
    for (size_t i = 0; i < d->count; i++) {
        if (what == 'i')
            TPL_TRY(vptq_tpl_pair(r, &d->keys[i], &d->values[i], &out->u.list->items[i]));
        else
            out->u.list->items[i] = what == 'k' ? d->keys[i] : d->values[i];
    }
    return VPTQ_OK;
}

static vptq_status dict_keys(tpl_run *r, const tpl_value *self, const tpl_args *args,
                             tpl_value *out)
{
    return dict_view(r, self, args, 'k', out);
}

static vptq_status dict_values(tpl_run *r, const tpl_value *self, const tpl_args *args,
                               tpl_value *out)
{
    return dict_view(r, self, args, 'v', out);
}

static vptq_status dict_items(tpl_run *r, const tpl_value *self, const tpl_args *args,
                              tpl_value *out)
{
    return dict_view(r, self, args, 'i', out);
}

static vptq_status dict_get(tpl_run *r, const tpl_value *self, const tpl_args *args,
                            tpl_value *out)
{
    const tpl_value *found;
    if (args->count < 1 || args->count > 2 || args->named_count > 0)
        return vptq_tpl_fail(r, "get takes 1 or 2 arguments by place");
    TPL_TRY(vptq_tpl_find(r, self->u.dict, &args->items[0], &found));
    *out = found ? *found : args->count == 2 ? args->items[1] : vptq_tpl_none();
    return VPTQ_OK;
}

/* Nothing changes a dict, so that a copy is the same. */
static vptq_status dict_copy(tpl_run *r, const tpl_value *self, const tpl_args *args,
                             tpl_value *out)
{
    *out = *self;
    return vptq_tpl_no_arguments(r, "copy", args);
}

static const tpl_function dict_methods[] = {
    {"get", dict_get, false},       {"items", dict_items, false}, {"keys", dict_keys, false},
    {"values", dict_values, false}, {"copy", dict_copy, false},   {"clear", NULL, true},
    {"fromkeys", NULL, false},      {"pop", NULL, true},          {"popitem", NULL, true},
    {"setdefault", NULL, true},     {"update", NULL, true}};

static vptq_status list_count(tpl_run *r, const tpl_value *self, const tpl_args *args,
                              tpl_value *out)
{
    int64_t n = 0;
    if (args->count != 1 || args->named_count > 0)
        return vptq_tpl_fail(r, "count takes 1 argument");
    for (size_t i = 0; i < self->u.list->count; i++) {
        bool equal;
        TPL_TRY(vptq_tpl_equal(r, &self->u.list->items[i], &args->items[0], &equal));
        n += equal;
    }
    *out = vptq_tpl_int(n);
    return VPTQ_OK;
}

static vptq_status list_index(tpl_run *r, const tpl_value *self, const tpl_args *args,
                              tpl_value *out)
{
    if (args->count != 1 || args->named_count > 0)
        return vptq_tpl_unsupported(r, "index with other than one argument");
    for (size_t i = 0; i < self->u.list->count; i++) {
        bool equal;
        TPL_TRY(vptq_tpl_equal(r, &self->u.list->items[i], &args->items[0], &equal));
        *out = vptq_tpl_int((int64_t)i);
        if (equal)
            return VPTQ_OK;
    }
    return vptq_tpl_fail(r, "index of what is not in the list");
}

static vptq_status list_copy(tpl_run *r, const tpl_value *self, const tpl_args *args,
                             tpl_value *out)
{
    *out = *self;
    return vptq_tpl_no_arguments(r, "copy", args);
}

/* Those of tuples first. */
static const tpl_function list_methods[] = {
    {"count", list_count, false}, {"index", list_index, false}, {"append", NULL, true},
    {"clear", NULL, true},        {"copy", list_copy, false},   {"extend", NULL, true},
    {"insert", NULL, true},       {"pop", NULL, true},          {"remove", NULL, true},
    {"reverse", NULL, true},      {"sort", NULL, true}};
enum { TUPLE_METHODS = 2 };

/* ---- loops ---- */

static vptq_status loop_cycle(tpl_run *r, const tpl_value *self, const tpl_args *args,
                              tpl_value *out)
{
    if (args->count == 0 || args->named_count > 0)
        return vptq_tpl_fail(r, "loop.cycle takes arguments by place");
    *out = args->items[self->u.loop->index % args->count];
    return VPTQ_OK;
}

static vptq_status loop_changed(tpl_run *r, const tpl_value *self, const tpl_args *args,
                                tpl_value *out)
{
    tpl_loop *l = self->u.loop;
    bool same = l->has_changed && l->changed_count == args->count;
    void *values;
    TPL_TRY(vptq_tpl_no_arguments(r, "loop.changed",
                                  &(tpl_args){.named_count = args->named_count}));
    for (size_t i = 0; i < args->count && same; i++)
        TPL_TRY(vptq_tpl_equal(r, &l->changed[i], &args->items[i], &same));
    *out = vptq_tpl_bool(!same);
    if (same)
        return VPTQ_OK;
    TPL_TRY(vptq_tpl_alloc(r, args->count, sizeof(tpl_value), &values));
    if (args->count > 0)
        memcpy(values, args->items, args->count * sizeof(tpl_value));
    l->changed = values;
    l->changed_count = args->count;
    l->has_changed = true;
    return VPTQ_OK;
}

static const tpl_function loop_methods[] = {{"cycle", loop_cycle, false},
                                            {"changed", loop_changed, false}};

static bool name_is(const char *name, size_t len, const char *other)
{
    return strlen(other) == len && memcmp(name, other, len) == 0;
}

/* *known: the loop has such an attribute. */
static tpl_value loop_attribute(const tpl_loop *l, const char *name, size_t len, bool *known)
{
    int64_t i = (int64_t)l->index, n = (int64_t)l->items->count;
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"index", i + 1},         {"index0", i}, {"revindex", n - i},
                   {"revindex0", n - i - 1}, {"length", n}, {"depth", (int64_t)l->depth + 1},
                   {"depth0", l->depth}};
    *known = true;
    for (size_t k = 0; k < COUNT(numbers); k++)
        if (name_is(name, len, numbers[k].name))
            return vptq_tpl_int(numbers[k].value);
    if (name_is(name, len, "first"))
        return vptq_tpl_bool(i == 0);
    if (name_is(name, len, "last"))
        return vptq_tpl_bool(i == n - 1);
    if (name_is(name, len, "previtem"))
        return i > 0 ? l->items->items[i - 1] : vptq_tpl_undefined("loop.previtem", 13);
    if (name_is(name, len, "nextitem"))
        return i + 1 < n ? l->items->items[i + 1] : vptq_tpl_undefined("loop.nextitem", 13);
    *known = false;
    return vptq_tpl_undefined(name, len);
}

/* ---- attributes and subscripts ---- */

static const tpl_function *method_of(const tpl_value *v, const char *name, size_t len)
{
    if (v->kind == TPL_STR)
        return vptq_tpl_string_method(name, len);
    if (v->kind == TPL_DICT)
        return vptq_tpl_lookup_function(dict_methods, COUNT(dict_methods), name, len);
    if (v->kind == TPL_LOOP)
        return vptq_tpl_lookup_function(loop_methods, COUNT(loop_methods), name, len);
    if (v->kind == TPL_LIST && v->u.list->form <= TPL_FORM_RANGE)
        return vptq_tpl_lookup_function(
            list_methods,
            v->u.list->form == TPL_FORM_LIST ? COUNT(list_methods) : (size_t)TUPLE_METHODS,
            name, len);
    return NULL;
}

/* What Python's getattr finds. */
static vptq_status get_attribute(tpl_run *r, const tpl_value *v, const char *name, size_t len,
                                 tpl_value *out, bool *found)
{
    const tpl_function *method = method_of(v, name, len);
    *found = true;
    if (method) {
        void *bound;
        TPL_TRY(vptq_tpl_alloc(r, 1, sizeof(tpl_bound), &bound));
        *(tpl_bound *)bound = (tpl_bound){*v, method};
        *out = (tpl_value){.kind = TPL_METHOD, .u.bound = bound};
        return VPTQ_OK;
    }
    if (v->kind == TPL_NAMESPACE) {
        tpl_value key = vptq_tpl_str(name, len);
        const tpl_value *value;
        TPL_TRY(vptq_tpl_find(r, v->u.dict, &key, &value));
        *found = value != NULL;
        if (value)
            *out = *value;
        return VPTQ_OK;
    }
    *found = false;
    if (v->kind == TPL_LOOP)
        *out = loop_attribute(v->u.loop, name, len, found);
    return VPTQ_OK;
}

/* What v[key] finds; a slice is none of them. */
static vptq_status get_item(tpl_run *r, const tpl_value *v, const tpl_value *key,
                            tpl_value *out, bool *found)
{
    bool list = v->kind == TPL_LIST && v->u.list->form <= TPL_FORM_RANGE;
    *found = false;
    if (v->kind == TPL_DICT) {
        const tpl_value *value;
        /* what cannot be a key is not there */
        if (key->kind == TPL_DICT ||
            (key->kind == TPL_LIST && key->u.list->form == TPL_FORM_LIST))
            return VPTQ_OK;
        TPL_TRY(vptq_tpl_find(r, v->u.dict, key, &value));
        *found = value != NULL;
        if (value)
            *out = *value;
    } else if ((list || v->kind == TPL_STR) &&
               (key->kind == TPL_INT || key->kind == TPL_BOOL)) {
        size_t count, bytes;
        TPL_TRY(vptq_tpl_length(r, v, &count));
        int64_t i = key->u.i < 0 ? key->u.i + (int64_t)count : key->u.i;
        *found = i >= 0 && (uint64_t)i < count;
        if (*found && list) {
            *out = v->u.list->items[i];
        } else if (*found) {
            size_t at = vptq_tpl_char_at(v, (size_t)i);
            (void)vptq_tpl_char(v->u.s + at, v->len - at, &bytes);
            *out = vptq_tpl_str(v->u.s + at, bytes);
        }
    }
    return VPTQ_OK;
}

static vptq_status of_undefined(tpl_run *r, const tpl_value *v)
{
    return vptq_tpl_fail(r, "'%.*s' is undefined, and has no attributes",
                         v->len < 100 ? (int)v->len : 100, v->u.s ? v->u.s : "");
}

vptq_status vptq_tpl_attribute(tpl_run *r, const tpl_value *v, const char *name, size_t len,
                               tpl_value *out)
{
    bool found;
    tpl_value key = vptq_tpl_str(name, len);
    if (v->kind == TPL_UNDEFINED)
        return of_undefined(r, v);
    TPL_TRY(get_attribute(r, v, name, len, out, &found));
    if (!found)
        TPL_TRY(get_item(r, v, &key, out, &found));
    if (!found)
        *out = vptq_tpl_undefined(name, len);
    return VPTQ_OK;
}

vptq_status vptq_tpl_subscript(tpl_run *r, const tpl_value *v, const tpl_value *key,
                               tpl_value *out)
{
    bool found;
    if (v->kind == TPL_UNDEFINED)
        return of_undefined(r, v);
    TPL_TRY(get_item(r, v, key, out, &found));
    if (!found && key->kind == TPL_STR)
        TPL_TRY(get_attribute(r, v, key->u.s, key->len, out, &found));
    if (!found)
        *out = key->kind == TPL_STR ? vptq_tpl_undefined(key->u.s, key->len)
                                    : vptq_tpl_undefined("an item that is not there", 25);
    return VPTQ_OK;
}

/* A bound of a slice over n items, as Python clips it. */
static int64_t clip(int64_t i, int64_t n, bool down)
{
    if (i < 0)
        i += n;
    int64_t low = down ? -1 : 0, high = down ? n - 1 : n;
    return i < low ? low : i > high ? high : i;
}

static vptq_status slice_string(tpl_run *r, const tpl_value *v, int64_t start, int64_t step,
                                size_t count, tpl_value *out)
{
    tpl_value all;
    if (step == 1) {
        size_t from = vptq_tpl_char_at(v, (size_t)start);
        tpl_value rest = vptq_tpl_str(v->u.s + from, v->len - from);
        *out = vptq_tpl_str(rest.u.s, vptq_tpl_char_at(&rest, count));
        return VPTQ_OK;
    }
    const tpl_list *chars;
    TPL_TRY(vptq_tpl_iterate(r, v, &chars));
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_LIST, count, &all));
    for (size_t i = 0; i < count; i++)
        all.u.list->items[i] = chars->items[start + (int64_t)i * step];
    tpl_value nothing = vptq_tpl_str("", 0);
    return vptq_tpl_join(r, &nothing, all.u.list, true, out);
}

vptq_status vptq_tpl_slice(tpl_run *r, const tpl_value *v, const tpl_value bounds[3],
                           tpl_value *out)
{
    int64_t b[3] = {0, 0, 1};
    size_t length;
    bool list = v->kind == TPL_LIST && v->u.list->form <= TPL_FORM_RANGE;
    if (v->kind == TPL_UNDEFINED)
        return of_undefined(r, v);
    for (int i = 0; i < 3; i++)
        if (bounds[i].kind != TPL_NONE)
            TPL_TRY(vptq_tpl_want_int(r, "a bound of a slice", &bounds[i], &b[i]));
    if (b[2] == 0)
        return vptq_tpl_fail(r, "a slice with a step of 0");
    if (!list && v->kind != TPL_STR)
        return vptq_tpl_fail(r, "a slice of %s", vptq_tpl_type(v));
    TPL_TRY(vptq_tpl_length(r, v, &length));
    int64_t n = (int64_t)length;
    bool down = b[2] < 0;
    int64_t start = bounds[0].kind == TPL_NONE ? (down ? n - 1 : 0) : clip(b[0], n, down);
    int64_t stop = bounds[1].kind == TPL_NONE ? (down ? -1 : n) : clip(b[1], n, down);
    int64_t step = b[2] > n ? n + 1 : b[2] < -n ? -n - 1 : b[2]; /* the same items */
    int64_t count = down ? (start - stop - step - 1) / -step : (stop - start + step - 1) / step;
    count = count > 0 ? count : 0;
    TPL_TRY(vptq_tpl_step(r, (size_t)count / 16));
    if (v->kind == TPL_STR)
        return slice_string(r, v, start, step, (size_t)count, out);
    tpl_form form = v->u.list->form;
    TPL_TRY(vptq_tpl_list(r, form, (size_t)count, out));
    for (int64_t i = 0; i < count; i++)
        out->u.list->items[i] = v->u.list->items[start + i * step];
    out->u.list->start = count > 0 && form == TPL_FORM_RANGE ? out->u.list->items[0].u.i : 0;
    out->u.list->step = step * v->u.list->step;
    return VPTQ_OK;
}

/* ---- global functions ---- */

static vptq_status fn_range(tpl_run *r, const tpl_value *self, const tpl_args *args,
                            tpl_value *out)
{
    enum { MAX_RANGE = 100000 }; /* jinja2's sandbox */
    int64_t b[3] = {0, 0, 1};
    (void)self;
    if (args->count < 1 || args->count > 3 || args->named_count > 0)
        return vptq_tpl_fail(r, "range takes 1 to 3 arguments by place");
    for (size_t i = 0; i < args->count; i++)
        TPL_TRY(vptq_tpl_want_int(r, "an argument of range", &args->items[i],
                                  &b[args->count == 1 ? 1 : i]));
    if (b[2] == 0)
        return vptq_tpl_fail(r, "range with a step of 0");
    /* in double, where nothing overflows: the limit is far below what it cannot hold */
    double span = ((double)b[1] - (double)b[0]) / (double)b[2];
    if (span > MAX_RANGE)
        return vptq_tpl_fail(r, "range of more than %d items", MAX_RANGE);
    size_t count = 0;
    for (int64_t i = b[0]; span > 0 && (b[2] > 0 ? i < b[1] : i > b[1]); i += b[2], count++)
        if (__builtin_add_overflow(i, b[2], &(int64_t){0}))
            return vptq_tpl_fail(r, "an integer is over 64 bits");
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_RANGE, count, out));
    for (size_t i = 0; i < count; i++)
        out->u.list->items[i] = vptq_tpl_int(b[0] + (int64_t)i * b[2]);
    out->u.list->start = b[0];
    out->u.list->step = b[2];
    return vptq_tpl_step(r, count);
}

/* From pairs or another dict, and named values: dict() and namespace(). */
static vptq_status make_dict(tpl_run *r, tpl_kind kind, const tpl_args *args, tpl_value *out)
{
    TPL_TRY(vptq_tpl_dict(r, kind, args->named_count, out));
    if (args->count > 1)
        return vptq_tpl_fail(r, "a dict from %zu values", args->count);
    if (args->count == 1 && args->items[0].kind == TPL_DICT) {
        const tpl_dict *d = args->items[0].u.dict;
        for (size_t i = 0; i < d->count; i++)
            TPL_TRY(vptq_tpl_put(r, out->u.dict, &d->keys[i], &d->values[i]));
    } else if (args->count == 1) {
        const tpl_list *pairs, *pair;
        TPL_TRY(vptq_tpl_iterate(r, &args->items[0], &pairs));
        for (size_t i = 0; i < pairs->count; i++) {
            TPL_TRY(vptq_tpl_iterate(r, &pairs->items[i], &pair));
            if (pair->count != 2)
                return vptq_tpl_fail(r, "a dict from what is no pair");
            TPL_TRY(vptq_tpl_put(r, out->u.dict, &pair->items[0], &pair->items[1]));
        }
    }
    for (size_t i = 0; i < args->named_count; i++) {
        tpl_value key = vptq_tpl_str(args->named[i].name, args->named[i].len);
        TPL_TRY(vptq_tpl_put(r, out->u.dict, &key, &args->named[i].value));
    }
    return VPTQ_OK;
}

static vptq_status fn_dict(tpl_run *r, const tpl_value *self, const tpl_args *args,
                           tpl_value *out)
{
    (void)self;
    return make_dict(r, TPL_DICT, args, out);
}

static vptq_status fn_namespace(tpl_run *r, const tpl_value *self, const tpl_args *args,
                                tpl_value *out)
{
    (void)self;
    return make_dict(r, TPL_NAMESPACE, args, out);
}

static vptq_status fn_raise_exception(tpl_run *r, const tpl_value *self, const tpl_args *args,
                                      tpl_value *out)
{
    static const char *const names[] = {"message"};
    tpl_value message = {.kind = TPL_MISSING}, text;
    (void)self;
    (void)out;
    TPL_TRY(vptq_tpl_bind(r, "raise_exception", args, names, 1, &message));
    TPL_TRY(vptq_tpl_string(r, &message, &text));
    /* its characters stay whole, for what shows the sentence as UTF-8 */
    size_t len = text.len < 400 ? text.len : vptq_utf8_valid_prefix(text.u.s, 400);
    return vptq_tpl_fail(r, "the template refuses: %.*s", (int)len, text.u.s ? text.u.s : "");
}

static vptq_status fn_strftime_now(tpl_run *r, const tpl_value *self, const tpl_args *args,
                                   tpl_value *out)
{
    (void)self;
    TPL_TRY(vptq_tpl_strings_only(r, "strftime_now", args, 1, 1));
    return vptq_tpl_date(r, &args->items[0], out);
}

const tpl_function *vptq_tpl_global(const char *name, size_t len, bool has_date)
{
    static const tpl_function table[] = {{"range", fn_range, false},
                                         {"dict", fn_dict, false},
                                         {"namespace", fn_namespace, false},
                                         {"raise_exception", fn_raise_exception, false},
                                         {"strftime_now", fn_strftime_now, false},
                                         {"cycler", NULL, false},
                                         {"joiner", NULL, false},
                                         {"lipsum", NULL, false}};
    const tpl_function *f = vptq_tpl_lookup_function(table, COUNT(table), name, len);
    return f && f->call == fn_strftime_now && !has_date ? NULL : f;
}
