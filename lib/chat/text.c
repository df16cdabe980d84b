/* Strings of templates, by characters as in Python; dates. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "lib/chat/internal.h"

/* ---- characters ---- */

bool vptq_tpl_space(uint32_t cp)
{
    return vptq_utf8_space(cp) || (cp >= 0x1c && cp <= 0x1f);
}

/* Texts are valid UTF-8, so there always is a character. */
uint32_t vptq_tpl_char(const char *s, size_t left, size_t *bytes)
{
    uint32_t cp = 0;
    *bytes = vptq_utf8_decode(s, left, &cp);
    VPTQ_BUG_IF(*bytes == 0);
    return cp;
}

size_t vptq_tpl_chars(const tpl_value *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->len; i++)
        n += ((unsigned char)s->u.s[i] & 0xC0) != 0x80;
    return n;
}

size_t vptq_tpl_char_at(const tpl_value *s, size_t index)
{
    for (size_t i = 0; i < s->len; i++)
        if (((unsigned char)s->u.s[i] & 0xC0) != 0x80 && index-- == 0)
            return i;
    return s->len;
}

/* The character in front of byte `end`. */
static size_t char_before(const tpl_value *s, size_t end)
{
    size_t at = end - 1;
    while (at > 0 && ((unsigned char)s->u.s[at] & 0xC0) == 0x80)
        at--;
    return at;
}

static bool goes(const tpl_value *s, size_t at, size_t bytes, uint32_t cp,
                 const tpl_value *chars)
{
    if (!chars)
        return vptq_tpl_space(cp);
    tpl_value one = vptq_tpl_str(s->u.s + at, bytes);
    return vptq_tpl_search(chars, &one, 0, false) != SIZE_MAX;
}

tpl_value vptq_tpl_strip(const tpl_value *s, const tpl_value *chars, bool left, bool right)
{
    size_t from = 0, to = s->len, bytes;
    while (left && from < to) {
        uint32_t cp = vptq_tpl_char(s->u.s + from, to - from, &bytes);
        if (!goes(s, from, bytes, cp, chars))
            break;
        from += bytes;
    }
    while (right && to > from) {
        size_t at = char_before(s, to);
        uint32_t cp = vptq_tpl_char(s->u.s + at, to - at, &bytes);
        if (!goes(s, at, bytes, cp, chars))
            break;
        to = at;
    }
    tpl_value part = vptq_tpl_str(s->u.s ? s->u.s + from : s->u.s, to - from);
    part.safe = s->safe;
    return part;
}

size_t vptq_tpl_search(const tpl_value *s, const tpl_value *what, size_t from, bool last)
{
    size_t found = SIZE_MAX;
    if (what->len > s->len || from > s->len - what->len)
        return found;
    if (what->len == 0)
        return last ? s->len : from;
    for (size_t i = from; i <= s->len - what->len; i++) {
        const char *at = memchr(s->u.s + i, what->u.s[0], s->len - what->len - i + 1);
        if (!at)
            break;
        i = (size_t)(at - s->u.s);
        if (memcmp(at, what->u.s, what->len) == 0) {
            found = i;
            if (!last)
                break;
        }
    }
    return found;
}

/* ---- case ---- */

static bool is_cased(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

vptq_status vptq_tpl_to_case(tpl_run *r, const tpl_value *s, tpl_case how, tpl_value *out)
{
    void *text;
    size_t n = 0;
    bool begins = true; /* a word, or the text */
    TPL_TRY(vptq_tpl_step(r, s->len));
    TPL_TRY(vptq_tpl_alloc(r, 4 * (size_t)s->len, 1, &text)); /* a character has 4 at most */
    for (size_t at = 0, bytes; at < s->len; at += bytes) {
        uint32_t cp = vptq_tpl_char(s->u.s + at, s->len - at, &bytes);
        bool upper = how == TPL_UPPER || (how != TPL_LOWER && begins);
        utf8proc_int32_t c = (utf8proc_int32_t)cp;
        c = !upper             ? utf8proc_tolower(c)
            : how == TPL_UPPER ? utf8proc_toupper(c)
                               : utf8proc_totitle(c);
        begins = how == TPL_TITLE && !is_cased(cp);
        if (cp == 0xdf && upper) { /* the one of these that texts have */
            memcpy((char *)text + n, how == TPL_UPPER ? "SS" : "Ss", 2);
            n += 2;
        } else {
            n += vptq_utf8_encode((uint32_t)c, (char *)text + n);
        }
    }
    *out = vptq_tpl_str(text, n);
    return VPTQ_OK;
}

/* ---- cutting and joining ---- */

/* Python puts `with` in front of every character, and behind the last, for an empty `old`. */
static vptq_status replace_empty(tpl_run *r, vptq_buf *b, const tpl_value *s,
                                 const tpl_value *with, int64_t count)
{
    size_t at = 0;
    for (; count != 0; count--) {
        size_t bytes = 0;
        TPL_TRY(vptq_tpl_step(r, 1));
        TPL_TRY(vptq_tpl_add(r, b, with->u.s, with->len));
        if (at == s->len)
            return VPTQ_OK;
        (void)vptq_tpl_char(s->u.s + at, s->len - at, &bytes);
        TPL_TRY(vptq_tpl_add(r, b, s->u.s + at, bytes));
        at += bytes;
    }
    return vptq_tpl_add(r, b, s->u.s + at, s->len - at);
}

static vptq_status replace_in(tpl_run *r, vptq_buf *b, const tpl_value *s, const tpl_value *old,
                              const tpl_value *with, int64_t count)
{
    size_t at = 0;
    if (old->len == 0)
        return replace_empty(r, b, s, with, count);
    for (; count != 0; count--) {
        size_t found = vptq_tpl_search(s, old, at, false);
        TPL_TRY(vptq_tpl_step(r, 1));
        if (found == SIZE_MAX)
            break;
        TPL_TRY(vptq_tpl_add(r, b, s->u.s + at, found - at));
        TPL_TRY(vptq_tpl_add(r, b, with->u.s, with->len));
        at = found + old->len;
    }
    return vptq_tpl_add(r, b, s->u.s + at, s->len - at);
}

vptq_status vptq_tpl_replace(tpl_run *r, const tpl_value *s, const tpl_value *old,
                             const tpl_value *with, int64_t count, tpl_value *out)
{
    vptq_buf b;
    vptq_buf_init(&b, r->arena.mem);
    vptq_status st = vptq_tpl_step(r, s->len / 16);
    if (!st && s->len > 0)
        st = replace_in(r, &b, s, old, with, count);
    else if (!st && old->len == 0 && count != 0)
        st = vptq_tpl_add(r, &b, with->u.s, with->len);
    if (!st)
        return vptq_tpl_take(r, &b, out);
    vptq_buf_release(&b);
    return st;
}

/* Bytes of the line boundary at `at`, as str.splitlines sees them; 0 for none. */
static size_t line_break(const tpl_value *s, size_t at)
{
    size_t bytes;
    uint32_t cp = vptq_tpl_char(s->u.s + at, s->len - at, &bytes);
    if (cp == '\r' && at + 1 < s->len && s->u.s[at + 1] == '\n')
        return 2;
    bool is = (cp >= '\n' && cp <= '\r') || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 ||
              cp == 0x2028 || cp == 0x2029;
    return is ? bytes : 0;
}

/* Lines are counted with NULL, then put into items. */
static size_t cut_lines(const tpl_value *s, bool keep, tpl_value *items)
{
    size_t count = 0, from = 0, at = 0;
    while (at < s->len) {
        size_t bytes, end = line_break(s, at);
        if (!end) {
            (void)vptq_tpl_char(s->u.s + at, s->len - at, &bytes);
            at += bytes;
            if (at < s->len)
                continue;
        }
        if (items)
            items[count] = vptq_tpl_str(s->u.s + from, at - from + (keep ? end : 0));
        count++;
        from = at += end;
    }
    return count;
}

vptq_status vptq_tpl_lines(tpl_run *r, const tpl_value *s, bool keep, tpl_value *out)
{
    TPL_TRY(vptq_tpl_step(r, s->len / 4));
    TPL_TRY(vptq_tpl_list(r, TPL_FORM_LIST, cut_lines(s, keep, NULL), out));
    cut_lines(s, keep, out->u.list->items);
    return VPTQ_OK;
}

static vptq_status join_into(tpl_run *r, vptq_buf *b, const tpl_value *between,
                             const tpl_list *items, bool strings_only)
{
    for (size_t i = 0; i < items->count; i++) {
        const tpl_value *v = &items->items[i];
        if (strings_only && v->kind != TPL_STR)
            return vptq_tpl_fail(r, "join of %s, expected strings", vptq_tpl_type(v));
        if (i > 0)
            TPL_TRY(vptq_tpl_add(r, b, between->u.s, between->len));
        TPL_TRY(vptq_tpl_print(r, b, v));
    }
    return VPTQ_OK;
}

vptq_status vptq_tpl_join(tpl_run *r, const tpl_value *between, const tpl_list *items,
                          bool strings_only, tpl_value *out)
{
    vptq_buf b;
    vptq_buf_init(&b, r->arena.mem);
    vptq_status st = join_into(r, &b, between, items, strings_only);
    if (!st)
        return vptq_tpl_take(r, &b, out);
    vptq_buf_release(&b);
    return st;
}

/* ---- numbers in text ---- */

/* The stripped text with its single underscores between digits taken out; false when it has
 * other ones, or is too long for a number. */
static bool number_text(const tpl_value *s, char out[64])
{
    tpl_value t = vptq_tpl_strip(s, NULL, true, true);
    size_t n = 0;
    for (size_t i = 0; i < t.len; i++) {
        char c = t.u.s[i];
        bool digits = i > 0 && i + 1 < t.len && t.u.s[i - 1] >= '0' && t.u.s[i - 1] <= '9' &&
                      t.u.s[i + 1] >= '0' && t.u.s[i + 1] <= '9';
        if (c == '_' && digits)
            continue;
        if (!c || n + 1 == 64 || !strchr("0123456789abcdefABCDEFxXoOinftyINFTY+-.", c))
            return false;
        out[n++] = c;
    }
    out[n] = 0;
    return n > 0;
}

bool vptq_tpl_read_int(const tpl_value *s, int base, int64_t *out)
{
    char text[64], *end;
    if (!number_text(s, text))
        return false;
    errno = 0;
    *out = strtoll(text, &end, base);
    return *end == 0 && errno == 0 && end > text;
}

bool vptq_tpl_read_float(const tpl_value *s, double *out)
{
    char text[64], *end;
    if (!number_text(s, text) || strpbrk(text, "xX"))
        return false;
    *out = strtod(text, &end);
    return *end == 0 && end > text;
}

/* ---- dates ---- */

vptq_status vptq_tpl_read_date(const char *text, int date[6], vptq_err *err)
{
    static const int days[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int n = -1;
    memset(date, 0, 6 * sizeof *date);
    if (strlen(text) == 10)
        (void)sscanf(text, "%4d-%2d-%2d%n", &date[0], &date[1], &date[2], &n);
    else
        (void)sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d%n", &date[0], &date[1], &date[2], &date[3],
                     &date[4], &date[5], &n);
    bool ok = n > 0 && text[n] == 0 && date[0] > 0 && date[1] >= 1 && date[1] <= 12;
    if (ok) {
        bool leap = (date[0] % 4 == 0 && date[0] % 100 != 0) || date[0] % 400 == 0;
        ok = date[2] >= 1 && date[2] <= days[date[1] - 1] - (date[1] == 2 && !leap) &&
             date[3] >= 0 && date[3] < 24 && date[4] >= 0 && date[4] < 60 && date[5] >= 0 &&
             date[5] < 60;
    }
    if (!ok)
        return vptq_fail(err, VPTQ_E_ARG,
                         "'%.40s' is no date, expected YYYY-MM-DD or YYYY-MM-DDThh:mm:ss",
                         text);
    return VPTQ_OK;
}

static int day_of_year(const int date[6])
{
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    bool leap = (date[0] % 4 == 0 && date[0] % 100 != 0) || date[0] % 400 == 0;
    return before[date[1] - 1] + date[2] + (leap && date[1] > 2);
}

/* 0 = Sunday. */
static int week_day(const int date[6])
{
    int y = date[0] - 1;
    return (y + y / 4 - y / 100 + y / 400 + day_of_year(date)) % 7;
}

/* What one conversion of strftime gives in the C locale; false for one that is not handled.
 * `bare`: "%-d", without leading zeros. */
static bool convert(const int d[6], char what, bool bare, char out[64])
{
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    static const char *const week[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                       "Thursday", "Friday", "Saturday"};
    int hour = d[3] % 12 ? d[3] % 12 : 12, width = bare ? 1 : 2;
    const char *name = what == 'B' || what == 'b' || what == 'h' ? months[d[1] - 1]
                       : what == 'A' || what == 'a'              ? week[week_day(d)]
                                                                 : NULL;
    if (name)
        return snprintf(out, 64, "%.*s", what == 'A' || what == 'B' ? 9 : 3, name) > 0;
    switch (what) {
    case 'Y':
        return snprintf(out, 64, "%d", d[0]) > 0;
    case 'y':
        return snprintf(out, 64, "%0*d", width, d[0] % 100) > 0;
    case 'm':
        return snprintf(out, 64, "%0*d", width, d[1]) > 0;
    case 'd':
        return snprintf(out, 64, "%0*d", width, d[2]) > 0;
    case 'e':
        return snprintf(out, 64, "%*d", width, d[2]) > 0;
    case 'H':
        return snprintf(out, 64, "%0*d", width, d[3]) > 0;
    case 'I':
        return snprintf(out, 64, "%0*d", width, hour) > 0;
    case 'M':
        return snprintf(out, 64, "%0*d", width, d[4]) > 0;
    case 'S':
        return snprintf(out, 64, "%0*d", width, d[5]) > 0;
    case 'j':
        return snprintf(out, 64, "%0*d", bare ? 1 : 3, day_of_year(d)) > 0;
    case 'p':
        return snprintf(out, 64, "%s", d[3] < 12 ? "AM" : "PM") > 0;
    case 'F':
        return snprintf(out, 64, "%d-%02d-%02d", d[0], d[1], d[2]) > 0;
    case 'T':
        return snprintf(out, 64, "%02d:%02d:%02d", d[3], d[4], d[5]) > 0;
    case 'w':
        return snprintf(out, 64, "%d", week_day(d)) > 0;
    case '%':
        return snprintf(out, 64, "%%") > 0;
    default:
        return false;
    }
}

static vptq_status date_into(tpl_run *r, vptq_buf *b, const tpl_value *f)
{
    char text[64];
    for (size_t i = 0; i < f->len; i++) {
        if (f->u.s[i] != '%') {
            TPL_TRY(vptq_tpl_add(r, b, f->u.s + i, 1));
            continue;
        }
        bool bare = i + 1 < f->len && f->u.s[i + 1] == '-';
        i += 1 + (size_t)bare;
        char what = i < f->len ? f->u.s[i] : 0;
        if (!convert(r->date, what, bare, text))
            return vptq_tpl_unsupported(r, "'%%%c' of strftime_now", what ? what : ' ');
        TPL_TRY(vptq_tpl_add(r, b, text, strlen(text)));
    }
    return VPTQ_OK;
}

vptq_status vptq_tpl_date(tpl_run *r, const tpl_value *format, tpl_value *out)
{
    vptq_buf b;
    vptq_buf_init(&b, r->arena.mem);
    vptq_status st = date_into(r, &b, format);
    if (!st)
        return vptq_tpl_take(r, &b, out);
    vptq_buf_release(&b);
    return st;
}
