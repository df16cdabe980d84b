/* Methods of strings. */
#include <string.h>

#include <utf8proc.h>

#include "lib/chat/internal.h"

static vptq_status strip(tpl_run *r, const tpl_value *self, const tpl_args *args, bool left,
                         bool right, tpl_value *out)
{
    bool all = args->count == 0 || args->items[0].kind == TPL_NONE;
    if (!all || args->named_count > 0)
        TPL_TRY(vptq_tpl_strings_only(r, "strip", args, 0, 1));
    TPL_TRY(vptq_tpl_step(r, self->len / 4 * (all ? 1 : 1 + args->items[0].len / 8)));
    *out = vptq_tpl_strip(self, all ? NULL : &args->items[0], left, right);
    return VPTQ_OK;
}

static vptq_status str_strip(tpl_run *r, const tpl_value *self, const tpl_args *args,
                             tpl_value *out)
{
    return strip(r, self, args, true, true, out);
}

static vptq_status str_lstrip(tpl_run *r, const tpl_value *self, const tpl_args *args,
                              tpl_value *out)
{
    return strip(r, self, args, true, false, out);
}

static vptq_status str_rstrip(tpl_run *r, const tpl_value *self, const tpl_args *args,
                              tpl_value *out)
{
    return strip(r, self, args, false, true, out);
}

static vptq_status append(tpl_run *r, tpl_list *l, size_t *cap, tpl_value v)
{
    TPL_TRY(vptq_tpl_step(r, 1));
    if (l->count == *cap) {
        void *more;
        *cap = *cap ? 2 * *cap : 4;
        TPL_TRY(vptq_tpl_alloc(r, *cap, sizeof v, &more));
        if (l->count > 0)
            memcpy(more, l->items, l->count * sizeof v);
        l->items = more;
    }
    l->items[l->count++] = v;
    return VPTQ_OK;
}

/* At runs of white space, which leave no empty parts. */
static vptq_status split_space(tpl_run *r, const tpl_value *s, int64_t max, tpl_list *l)
{
    tpl_value rest = vptq_tpl_strip(s, NULL, true, false);
    size_t cap = 0;
    while (rest.len > 0) {
        size_t at = 0, bytes;
        if (max == 0)
            return append(r, l, &cap, rest);
        while (at < rest.len &&
               !vptq_tpl_space(vptq_tpl_char(rest.u.s + at, rest.len - at, &bytes)))
            at += bytes;
        TPL_TRY(vptq_tpl_step(r, at / 16));
        TPL_TRY(append(r, l, &cap, vptq_tpl_str(rest.u.s, at)));
        rest = vptq_tpl_str(rest.u.s + at, rest.len - at);
        rest = vptq_tpl_strip(&rest, NULL, true, false);
        max--;
    }
    return VPTQ_OK;
}

static vptq_status split_at(tpl_run *r, const tpl_value *s, const tpl_value *sep, int64_t max,
                            tpl_list *l)
{
    size_t from = 0, cap = 0;
    for (size_t at; max != 0; max--) {
        at = vptq_tpl_search(s, sep, from, false);
        if (at == SIZE_MAX)
            break;
        TPL_TRY(append(r, l, &cap, vptq_tpl_str(s->u.s + from, at - from)));
        from = at + sep->len;
    }
    return append(r, l, &cap, vptq_tpl_str(s->u.s ? s->u.s + from : s->u.s, s->len - from));
}

/* From the right, `max` times: the places are looked for backwards, then the list is turned. */
static vptq_status rsplit_at(tpl_run *r, const tpl_value *s, const tpl_value *sep, int64_t max,
                             tpl_list *l)
{
    tpl_value head = *s;
    size_t cap = 0;
    for (size_t at; max != 0; max--) {
        TPL_TRY(vptq_tpl_step(r, head.len / 16));
        at = vptq_tpl_search(&head, sep, 0, true);
        if (at == SIZE_MAX)
            break;
        size_t from = at + sep->len;
        TPL_TRY(append(r, l, &cap, vptq_tpl_str(head.u.s + from, head.len - from)));
        head.len = (uint32_t)at;
    }
    TPL_TRY(append(r, l, &cap, head));
    for (size_t i = 0, j = l->count - 1; i < j; i++, j--) {
        tpl_value v = l->items[i];
        l->items[i] = l->items[j];
        l->items[j] = v;
    }
    return VPTQ_OK;
}

static vptq_status split(tpl_run *r, const tpl_value *self, const tpl_args *args, bool right,
                         tpl_value *out)
{
    static const char *const names[] = {"sep", "maxsplit"};
    tpl_value a[2] = {{.kind = TPL_NONE}, {.kind = TPL_INT, .u.i = -1}};
    int64_t max = -1;
    TPL_TRY(vptq_tpl_bind(r, "split", args, names, 2, a));
    TPL_TRY(vptq_tpl_want_int(r, "maxsplit", &a[1], &max));
    TPL_TRY(vptq_tpl_step(r, self->len / 16));
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_LIST, 0, out));
    if (a[0].kind == TPL_NONE && right && max >= 0)
        return vptq_tpl_unsupported(r, "rsplit at white space with a limit");
    if (a[0].kind == TPL_NONE)
        return split_space(r, self, max, out->u.list);
    TPL_TRY(vptq_tpl_want_str(r, "the separator of split", &a[0]));
    if (a[0].len == 0)
        return vptq_tpl_fail(r, "split at an empty separator");
    return right ? rsplit_at(r, self, &a[0], max, out->u.list)
                 : split_at(r, self, &a[0], max, out->u.list);
}

static vptq_status str_split(tpl_run *r, const tpl_value *self, const tpl_args *args,
                             tpl_value *out)
{
    return split(r, self, args, false, out);
}

static vptq_status str_rsplit(tpl_run *r, const tpl_value *self, const tpl_args *args,
                              tpl_value *out)
{
    return split(r, self, args, true, out);
}

static vptq_status str_splitlines(tpl_run *r, const tpl_value *self, const tpl_args *args,
                                  tpl_value *out)
{
    static const char *const names[] = {"keepends"};
    tpl_value keep = vptq_tpl_bool(false);
    TPL_TRY(vptq_tpl_bind(r, "splitlines", args, names, 1, &keep));
    return vptq_tpl_lines(r, self, vptq_tpl_truth(&keep), out);
}

static bool affix(const tpl_value *s, const tpl_value *part, bool end)
{
    return part->len <= s->len &&
           (part->len == 0 ||
            memcmp(end ? s->u.s + s->len - part->len : s->u.s, part->u.s, part->len) == 0);
}

/* startswith, endswith: of one string, or of one of a tuple. */
static vptq_status with(tpl_run *r, const tpl_value *self, const tpl_args *args, bool end,
                        tpl_value *out)
{
    const char *what = end ? "endswith" : "startswith";
    bool is = false;
    if (args->count != 1 || args->named_count > 0)
        return vptq_tpl_unsupported(r, "%s with other than one argument", what);
    const tpl_value *parts = args->items;
    size_t count = 1;
    if (parts->kind == TPL_LIST && parts->u.list->form == TPL_FORM_TUPLE) {
        count = parts->u.list->count;
        parts = parts->u.list->items;
    }
    for (size_t i = 0; i < count && !is; i++) {
        TPL_TRY(vptq_tpl_want_str(r, what, &parts[i]));
        is = affix(self, &parts[i], end);
    }
    *out = vptq_tpl_bool(is);
    return VPTQ_OK;
}

static vptq_status str_startswith(tpl_run *r, const tpl_value *self, const tpl_args *args,
                                  tpl_value *out)
{
    return with(r, self, args, false, out);
}

static vptq_status str_endswith(tpl_run *r, const tpl_value *self, const tpl_args *args,
                                tpl_value *out)
{
    return with(r, self, args, true, out);
}

static vptq_status str_replace(tpl_run *r, const tpl_value *self, const tpl_args *args,
                               tpl_value *out)
{
    int64_t count = -1;
    if (args->count < 2 || args->count > 3 || args->named_count > 0)
        return vptq_tpl_fail(r, "replace takes 2 or 3 arguments by place");
    TPL_TRY(vptq_tpl_want_str(r, "what replace looks for", &args->items[0]));
    TPL_TRY(vptq_tpl_want_str(r, "what replace puts there", &args->items[1]));
    if (args->count == 3)
        TPL_TRY(vptq_tpl_want_int(r, "the count of replace", &args->items[2], &count));
    return vptq_tpl_replace(r, self, &args->items[0], &args->items[1], count, out);
}

static vptq_status str_upper(tpl_run *r, const tpl_value *self, const tpl_args *args,
                             tpl_value *out)
{
    TPL_TRY(vptq_tpl_no_arguments(r, "upper", args));
    return vptq_tpl_to_case(r, self, TPL_UPPER, out);
}

static vptq_status str_lower(tpl_run *r, const tpl_value *self, const tpl_args *args,
                             tpl_value *out)
{
    TPL_TRY(vptq_tpl_no_arguments(r, "lower", args));
    return vptq_tpl_to_case(r, self, TPL_LOWER, out);
}

static vptq_status str_title(tpl_run *r, const tpl_value *self, const tpl_args *args,
                             tpl_value *out)
{
    TPL_TRY(vptq_tpl_no_arguments(r, "title", args));
    return vptq_tpl_to_case(r, self, TPL_TITLE, out);
}

static vptq_status str_capitalize(tpl_run *r, const tpl_value *self, const tpl_args *args,
                                  tpl_value *out)
{
    TPL_TRY(vptq_tpl_no_arguments(r, "capitalize", args));
    return vptq_tpl_to_case(r, self, TPL_CAPITALIZE, out);
}

static vptq_status find(tpl_run *r, const tpl_value *self, const tpl_args *args, bool last,
                        tpl_value *out)
{
    TPL_TRY(vptq_tpl_strings_only(r, last ? "rfind" : "find", args, 1, 1));
    TPL_TRY(vptq_tpl_step(r, self->len / 16));
    size_t at = vptq_tpl_search(self, &args->items[0], 0, last);
    tpl_value head = vptq_tpl_str(self->u.s, at == SIZE_MAX ? 0 : at);
    *out = vptq_tpl_int(at == SIZE_MAX ? -1 : (int64_t)vptq_tpl_chars(&head));
    return VPTQ_OK;
}

static vptq_status str_find(tpl_run *r, const tpl_value *self, const tpl_args *args,
                            tpl_value *out)
{
    return find(r, self, args, false, out);
}

static vptq_status str_rfind(tpl_run *r, const tpl_value *self, const tpl_args *args,
                             tpl_value *out)
{
    return find(r, self, args, true, out);
}

static vptq_status str_count(tpl_run *r, const tpl_value *self, const tpl_args *args,
                             tpl_value *out)
{
    int64_t n = 0;
    TPL_TRY(vptq_tpl_strings_only(r, "count", args, 1, 1));
    TPL_TRY(vptq_tpl_step(r, self->len / 4));
    const tpl_value *what = &args->items[0];
    for (size_t at = 0; what->len && (at = vptq_tpl_search(self, what, at, false)) != SIZE_MAX;
         at += what->len)
        n++;
    *out = vptq_tpl_int(what->len ? n : (int64_t)vptq_tpl_chars(self) + 1);
    return VPTQ_OK;
}

static vptq_status str_join(tpl_run *r, const tpl_value *self, const tpl_args *args,
                            tpl_value *out)
{
    const tpl_list *items;
    if (args->count != 1 || args->named_count > 0)
        return vptq_tpl_fail(r, "join takes 1 argument");
    TPL_TRY(vptq_tpl_iterate(r, &args->items[0], &items));
    return vptq_tpl_join(r, self, items, true, out);
}

static vptq_status remove_affix(tpl_run *r, const tpl_value *self, const tpl_args *args,
                                bool end, tpl_value *out)
{
    TPL_TRY(vptq_tpl_strings_only(r, end ? "removesuffix" : "removeprefix", args, 1, 1));
    const tpl_value *part = &args->items[0];
    *out = *self;
    if (part->len > 0 && affix(self, part, end))
        *out = vptq_tpl_str(end ? self->u.s : self->u.s + part->len, self->len - part->len);
    return VPTQ_OK;
}

static vptq_status str_removeprefix(tpl_run *r, const tpl_value *self, const tpl_args *args,
                                    tpl_value *out)
{
    return remove_affix(r, self, args, false, out);
}

static vptq_status str_removesuffix(tpl_run *r, const tpl_value *self, const tpl_args *args,
                                    tpl_value *out)
{
    return remove_affix(r, self, args, true, out);
}

/* Whether there are characters, all of them of the wanted kind. */
static vptq_status all_chars(tpl_run *r, const tpl_value *self, const tpl_args *args, char kind,
                             tpl_value *out)
{
    bool is = self->len > 0;
    TPL_TRY(vptq_tpl_no_arguments(r, "a test of characters", args));
    TPL_TRY(vptq_tpl_step(r, self->len / 4));
    for (size_t at = 0, bytes; is && at < self->len; at += bytes) {
        uint32_t cp = vptq_tpl_char(self->u.s + at, self->len - at, &bytes);
        utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
        bool letter = c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
        is = kind == ' '   ? vptq_tpl_space(cp)
             : kind == 'a' ? letter
                           : c == UTF8PROC_CATEGORY_ND;
    }
    *out = vptq_tpl_bool(is);
    return VPTQ_OK;
}

static vptq_status str_isspace(tpl_run *r, const tpl_value *self, const tpl_args *args,
                               tpl_value *out)
{
    return all_chars(r, self, args, ' ', out);
}

static vptq_status str_isalpha(tpl_run *r, const tpl_value *self, const tpl_args *args,
                               tpl_value *out)
{
    return all_chars(r, self, args, 'a', out);
}

static vptq_status str_isdecimal(tpl_run *r, const tpl_value *self, const tpl_args *args,
                                 tpl_value *out)
{
    return all_chars(r, self, args, 'd', out);
}

/* All of Python's, so that none is taken for a key. */
static const tpl_function string_methods[] = {{"strip", str_strip, false},
                                              {"lstrip", str_lstrip, false},
                                              {"rstrip", str_rstrip, false},
                                              {"split", str_split, false},
                                              {"rsplit", str_rsplit, false},
                                              {"splitlines", str_splitlines, false},
                                              {"startswith", str_startswith, false},
                                              {"endswith", str_endswith, false},
                                              {"replace", str_replace, false},
                                              {"upper", str_upper, false},
                                              {"lower", str_lower, false},
                                              {"title", str_title, false},
                                              {"capitalize", str_capitalize, false},
                                              {"find", str_find, false},
                                              {"rfind", str_rfind, false},
                                              {"count", str_count, false},
                                              {"join", str_join, false},
                                              {"removeprefix", str_removeprefix, false},
                                              {"removesuffix", str_removesuffix, false},
                                              {"isspace", str_isspace, false},
                                              {"isalpha", str_isalpha, false},
                                              {"isdecimal", str_isdecimal, false},
                                              {"isdigit", str_isdecimal, false},
                                              {"casefold", NULL, false},
                                              {"center", NULL, false},
                                              {"encode", NULL, false},
                                              {"expandtabs", NULL, false},
                                              {"format", NULL, false},
                                              {"format_map", NULL, false},
                                              {"index", NULL, false},
                                              {"isalnum", NULL, false},
                                              {"isascii", NULL, false},
                                              {"isidentifier", NULL, false},
                                              {"islower", NULL, false},
                                              {"isnumeric", NULL, false},
                                              {"isprintable", NULL, false},
                                              {"istitle", NULL, false},
                                              {"isupper", NULL, false},
                                              {"ljust", NULL, false},
                                              {"maketrans", NULL, false},
                                              {"partition", NULL, false},
                                              {"rindex", NULL, false},
                                              {"rjust", NULL, false},
                                              {"rpartition", NULL, false},
                                              {"swapcase", NULL, false},
                                              {"translate", NULL, false},
                                              {"zfill", NULL, false}};

const tpl_function *vptq_tpl_string_method(const char *name, size_t len)
{
    return vptq_tpl_lookup_function(string_methods,
                                    sizeof string_methods / sizeof *string_methods, name, len);
}
