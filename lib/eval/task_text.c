/* Python's string methods on UTF-8, as lm-evaluation-harness uses them to make texts. */
#include "lib/eval/task_text.h"

#include <string.h>
#include <utf8proc.h>

#include "lib/base/utf8.h"

/* ---- white space ---- */

vptq_task_text vptq_task_trim_end(vptq_task_text t)
{
    uint32_t cp;
    size_t k;
    while ((k = vptq_utf8_decode_last(t.s, t.n, &cp)) > 0 && vptq_utf8_python_space(cp))
        t.n -= k;
    return t;
}

vptq_task_text vptq_task_trim(vptq_task_text t)
{
    uint32_t cp;
    size_t k;
    while ((k = vptq_utf8_decode(t.s, t.n, &cp)) > 0 && vptq_utf8_python_space(cp)) {
        t.s += k;
        t.n -= k;
    }
    return vptq_task_trim_end(t);
}

uint32_t vptq_task_characters(vptq_task_text t)
{
    return (uint32_t)vptq_utf8_count(t.s, t.n);
}

vptq_status vptq_task_join(const vptq_task_text *parts, size_t count, vptq_arena *arena,
                           vptq_task_text *out, vptq_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        n += parts[i].n;
    char *s = vptq_arena_alloc(arena, n, 1, err);
    if (!s)
        return VPTQ_E_NOMEM;
    *out = (vptq_task_text){s, n};
    for (size_t i = 0; i < count; i++) {
        if (parts[i].n)
            memcpy(s, parts[i].s, parts[i].n);
        s += parts[i].n;
    }
    return VPTQ_OK;
}

/* ---- case ---- */

enum { DOTTED_I = 0x130, DOT_ABOVE = 0x307, CASE_BYTES_MAX = 4 };

/* Writes a character in lower or title case to `to`; returns its bytes, at most CASE_BYTES_MAX.
 */
static size_t put_case(uint32_t cp, bool title, char *to)
{
    if (cp == DOTTED_I && !title) {
        const size_t n = vptq_utf8_encode('i', to);
        return n + vptq_utf8_encode(DOT_ABOVE, to + n);
    }
    const utf8proc_int32_t c = (utf8proc_int32_t)cp;
    return vptq_utf8_encode((uint32_t)(title ? utf8proc_totitle(c) : utf8proc_tolower(c)), to);
}

/* Changes the first character to title or lower case, and the others to lower case or not. */
static vptq_status change_case(vptq_task_text t, bool title_first, bool lower_rest,
                               vptq_arena *arena, vptq_task_text *out, vptq_err *err)
{
    char *s = vptq_arena_alloc(arena, t.n, CASE_BYTES_MAX, err);
    if (!s)
        return VPTQ_E_NOMEM;
    size_t n = 0, k;
    for (size_t i = 0; i < t.n; i += k) {
        uint32_t cp = 0;
        k = vptq_utf8_decode(t.s + i, t.n - i, &cp);
        if (k == 0) { /* not UTF-8: copies the byte */
            s[n++] = t.s[i];
            k = 1;
        } else if (i == 0 || lower_rest) {
            n += put_case(cp, i == 0 && title_first, s + n);
        } else {
            memcpy(s + n, t.s + i, k);
            n += k;
        }
    }
    *out = (vptq_task_text){s, n};
    return VPTQ_OK;
}

vptq_status vptq_task_lower_first(vptq_task_text t, vptq_arena *arena, vptq_task_text *out,
                                  vptq_err *err)
{
    return change_case(t, false, false, arena, out, err);
}

vptq_status vptq_task_capitalize(vptq_task_text t, vptq_arena *arena, vptq_task_text *out,
                                 vptq_err *err)
{
    return change_case(t, true, true, arena, out, err);
}

/* ---- HellaSwag ---- */

static bool begins(vptq_task_text t, size_t at, const char *with)
{
    const size_t n = strlen(with);
    return t.n - at >= n && memcmp(t.s + at, with, n) == 0;
}

/* Replaces every `from` by `to`, which is not longer, in place; returns the new length. */
static size_t replace(char *s, size_t n, const char *from, const char *to)
{
    const size_t skip = strlen(from), put = strlen(to);
    size_t m = 0;
    for (size_t i = 0; i < n;) {
        if (begins((vptq_task_text){s, n}, i, from)) {
            memcpy(s + m, to, put);
            m += put;
            i += skip;
        } else {
            s[m++] = s[i++];
        }
    }
    return m;
}

/* re.sub("\\[.*?\\]", "") in place; returns the new length. */
static size_t drop_brackets(char *s, size_t n)
{
    size_t m = 0, open = 0; /* no "]" before `open` */
    for (size_t i = 0; i < n;) {
        size_t end = i;
        if (s[i] == '[' && i >= open) {
            while (end < n && s[end] != ']' && s[end] != '\n')
                end++;
            open = end;
        }
        if (end > i && end < n && s[end] == ']')
            i = end + 1;
        else
            s[m++] = s[i++];
    }
    return m;
}

vptq_status vptq_task_clean(vptq_task_text t, vptq_arena *arena, vptq_task_text *out,
                            vptq_err *err)
{
    t = vptq_task_trim(t);
    char *s = vptq_arena_strndup(arena, t.s, t.n, err);
    if (!s)
        return VPTQ_E_NOMEM;
    size_t n = replace(s, t.n, " [title]", ". ");
    n = drop_brackets(s, n);
    n = replace(s, n, "  ", " ");
    *out = (vptq_task_text){s, n};
    return VPTQ_OK;
}
