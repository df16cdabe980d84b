/* Tests of templates, by name: "x is mapping". */
#include <string.h>

#include "lib/chat/internal.h"

static vptq_status no_argument(tpl_run *r, const tpl_args *args)
{
    return args->count || args->named_count ? vptq_tpl_fail(r, "a test with too many arguments")
                                            : VPTQ_OK;
}

/* Tests that only look at the value, in the order of `kinds`. */
static bool is_kind(const tpl_value *v, const char *kind)
{
    bool sequence = v->kind == TPL_LIST && v->u.list->form <= TPL_FORM_RANGE;
    if (strcmp(kind, "defined") == 0)
        return v->kind != TPL_UNDEFINED;
    if (strcmp(kind, "undefined") == 0)
        return v->kind == TPL_UNDEFINED;
    if (strcmp(kind, "none") == 0)
        return v->kind == TPL_NONE;
    if (strcmp(kind, "boolean") == 0)
        return v->kind == TPL_BOOL;
    if (strcmp(kind, "true") == 0)
        return v->kind == TPL_BOOL && v->u.i;
    if (strcmp(kind, "false") == 0)
        return v->kind == TPL_BOOL && !v->u.i;
    if (strcmp(kind, "string") == 0)
        return v->kind == TPL_STR;
    if (strcmp(kind, "mapping") == 0)
        return v->kind == TPL_DICT;
    if (strcmp(kind, "number") == 0)
        return vptq_tpl_is_number(v);
    if (strcmp(kind, "integer") == 0)
        return v->kind == TPL_INT;
    if (strcmp(kind, "float") == 0)
        return v->kind == TPL_FLOAT;
    if (strcmp(kind, "callable") == 0)
        return v->kind == TPL_MACRO || v->kind == TPL_FUNCTION || v->kind == TPL_METHOD ||
               v->kind == TPL_LOOP || v->kind == TPL_UNDEFINED;
    if (strcmp(kind, "sequence") == 0)
        return sequence || v->kind == TPL_STR || v->kind == TPL_DICT ||
               v->kind == TPL_UNDEFINED;
    /* iterable */
    return v->kind == TPL_LIST || v->kind == TPL_STR || v->kind == TPL_DICT ||
           v->kind == TPL_UNDEFINED || v->kind == TPL_LOOP;
}

#define KIND_TEST(name)                                                                        \
    static vptq_status is_##name(tpl_run *r, const tpl_value *v, const tpl_args *args,         \
                                 tpl_value *out)                                               \
    {                                                                                          \
        *out = vptq_tpl_bool(is_kind(v, #name));                                               \
        return no_argument(r, args);                                                           \
    }
KIND_TEST(defined)
KIND_TEST(undefined)
KIND_TEST(none)
KIND_TEST(boolean)
KIND_TEST(true)
KIND_TEST(false)
KIND_TEST(string)
KIND_TEST(mapping)
KIND_TEST(number)
KIND_TEST(integer)
KIND_TEST(float)
KIND_TEST(callable)
KIND_TEST(sequence)
KIND_TEST(iterable)

static vptq_status compare(tpl_run *r, int op, const tpl_value *v, const tpl_args *args,
                           tpl_value *out)
{
    bool is;
    if (args->count != 1 || args->named_count > 0)
        return vptq_tpl_fail(r, "a comparison takes 1 argument");
    TPL_TRY(vptq_tpl_compare(r, op, v, &args->items[0], &is));
    *out = vptq_tpl_bool(is);
    return VPTQ_OK;
}

#define COMPARE_TEST(name, op)                                                                 \
    static vptq_status is_##name(tpl_run *r, const tpl_value *v, const tpl_args *args,         \
                                 tpl_value *out)                                               \
    {                                                                                          \
        return compare(r, op, v, args, out);                                                   \
    }
COMPARE_TEST(eq, TPL_OP_EQ)
COMPARE_TEST(ne, TPL_OP_NE)
COMPARE_TEST(lt, '<')
COMPARE_TEST(le, TPL_OP_LE)
COMPARE_TEST(gt, '>')
COMPARE_TEST(ge, TPL_OP_GE)
COMPARE_TEST(in, TPL_OP_IN)

/* v % n == rest */
static vptq_status remainder_is(tpl_run *r, const tpl_value *v, const tpl_value *n, int rest,
                                tpl_value *out)
{
    tpl_value left, want = vptq_tpl_int(rest);
    bool is;
    if (!vptq_tpl_is_number(v))
        return vptq_tpl_fail(r, "%s is not even, odd or divisible", vptq_tpl_type(v));
    TPL_TRY(vptq_tpl_binary(r, '%', v, n, &left));
    TPL_TRY(vptq_tpl_equal(r, &left, &want, &is));
    *out = vptq_tpl_bool(is);
    return VPTQ_OK;
}

static vptq_status is_even(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    tpl_value two = vptq_tpl_int(2);
    TPL_TRY(no_argument(r, args));
    return remainder_is(r, v, &two, 0, out);
}

static vptq_status is_odd(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    tpl_value two = vptq_tpl_int(2);
    TPL_TRY(no_argument(r, args));
    return remainder_is(r, v, &two, 1, out);
}

static vptq_status is_divisibleby(tpl_run *r, const tpl_value *v, const tpl_args *args,
                                  tpl_value *out)
{
    if (args->count != 1 || args->named_count > 0)
        return vptq_tpl_fail(r, "divisibleby takes 1 argument");
    return remainder_is(r, v, &args->items[0], 0, out);
}

/* Letters there are, all of them of that case. */
static vptq_status is_case(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_case how,
                           tpl_value *out)
{
    tpl_value text, same, other;
    TPL_TRY(no_argument(r, args));
    TPL_TRY(vptq_tpl_string(r, v, &text));
    TPL_TRY(vptq_tpl_to_case(r, &text, how, &same));
    TPL_TRY(vptq_tpl_to_case(r, &text, how == TPL_UPPER ? TPL_LOWER : TPL_UPPER, &other));
    bool is_same = same.len == text.len && memcmp(same.u.s, text.u.s, text.len) == 0;
    bool has_letters = other.len != text.len || memcmp(other.u.s, text.u.s, text.len) != 0;
    *out = vptq_tpl_bool(is_same && has_letters);
    return VPTQ_OK;
}

static vptq_status is_upper(tpl_run *r, const tpl_value *v, const tpl_args *args,
                            tpl_value *out)
{
    return is_case(r, v, args, TPL_UPPER, out);
}

static vptq_status is_lower(tpl_run *r, const tpl_value *v, const tpl_args *args,
                            tpl_value *out)
{
    return is_case(r, v, args, TPL_LOWER, out);
}

/* Python's `is`: for what is one of a kind; of other things it is an accident. */
static vptq_status is_sameas(tpl_run *r, const tpl_value *v, const tpl_args *args,
                             tpl_value *out)
{
    if (args->count != 1 || args->named_count > 0)
        return vptq_tpl_fail(r, "sameas takes 1 argument");
    const tpl_value *o = &args->items[0];
    bool single = v->kind == TPL_NONE || v->kind == TPL_BOOL || o->kind == TPL_NONE ||
                  o->kind == TPL_BOOL;
    if (!single)
        return vptq_tpl_unsupported(r, "sameas of other things than booleans and none");
    *out = vptq_tpl_bool(v->kind == o->kind && (v->kind == TPL_NONE || v->u.i == o->u.i));
    return VPTQ_OK;
}

static vptq_status exists(tpl_run *r, const tpl_value *v, const tpl_args *args, bool test,
                          tpl_value *out)
{
    TPL_TRY(no_argument(r, args));
    const tpl_function *f = v->kind != TPL_STR ? NULL
                            : test             ? vptq_tpl_test(v->u.s, v->len)
                                               : vptq_tpl_filter(v->u.s, v->len);
    *out = vptq_tpl_bool(f != NULL);
    return VPTQ_OK;
}

static vptq_status is_filter(tpl_run *r, const tpl_value *v, const tpl_args *args,
                             tpl_value *out)
{
    return exists(r, v, args, false, out);
}

static vptq_status is_test(tpl_run *r, const tpl_value *v, const tpl_args *args, tpl_value *out)
{
    return exists(r, v, args, true, out);
}

const tpl_function *vptq_tpl_test(const char *name, size_t len)
{
    static const tpl_function table[] = {{"defined", is_defined, false},
                                         {"undefined", is_undefined, false},
                                         {"none", is_none, false},
                                         {"string", is_string, false},
                                         {"mapping", is_mapping, false},
                                         {"iterable", is_iterable, false},
                                         {"sequence", is_sequence, false},
                                         {"true", is_true, false},
                                         {"false", is_false, false},
                                         {"boolean", is_boolean, false},
                                         {"number", is_number, false},
                                         {"integer", is_integer, false},
                                         {"float", is_float, false},
                                         {"callable", is_callable, false},
                                         {"eq", is_eq, false},
                                         {"==", is_eq, false},
                                         {"equalto", is_eq, false},
                                         {"ne", is_ne, false},
                                         {"!=", is_ne, false},
                                         {"lt", is_lt, false},
                                         {"<", is_lt, false},
                                         {"lessthan", is_lt, false},
                                         {"le", is_le, false},
                                         {"<=", is_le, false},
                                         {"gt", is_gt, false},
                                         {">", is_gt, false},
                                         {"greaterthan", is_gt, false},
                                         {"ge", is_ge, false},
                                         {">=", is_ge, false},
                                         {"in", is_in, false},
                                         {"even", is_even, false},
                                         {"odd", is_odd, false},
                                         {"divisibleby", is_divisibleby, false},
                                         {"upper", is_upper, false},
                                         {"lower", is_lower, false},
                                         {"sameas", is_sameas, false},
                                         {"filter", is_filter, false},
                                         {"test", is_test, false},
                                         {"escaped", NULL, false}};
    return vptq_tpl_lookup_function(table, sizeof table / sizeof *table, name, len);
}
