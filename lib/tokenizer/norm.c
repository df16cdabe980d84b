/* Runs the steps of a normalizer. Bytes that are not UTF-8 pass unchanged. */
#define _GNU_SOURCE /* memmem */
#include <string.h>
#include <utf8proc.h>

#include "lib/base/utf8.h"
#include "lib/tokenizer/internal.h"

/* Canonical ordering takes quadratic time in a run of combining marks. Longer runs than this,
 * which occur in no language, are normalized in parts. */
enum { MARKS_MAX = 256 };

/* Appends n bytes, which the steps and the growth of the text include. */
static vptq_status put(vptq_encode_run *e, vptq_buf *out, const void *bytes, size_t n,
                       vptq_err *err)
{
    VPTQ_CHECK(vptq_charge(e, n, err));
    VPTQ_CHECK(vptq_check_growth(e, out->len + n, err));
    return vptq_buf_add(out, bytes, n, err);
}

static vptq_status compose_part(vptq_encode_run *e, vptq_norm_kind kind, const char *text,
                                size_t len, vptq_buf *out, vptq_err *err)
{
    vptq_mem *mem = e->mem;
    static const utf8proc_option_t options[4] = {
        [VPTQ_NORM_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [VPTQ_NORM_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [VPTQ_NORM_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [VPTQ_NORM_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};
    const utf8proc_uint8_t *bytes = (const utf8proc_uint8_t *)text;
    utf8proc_ssize_t n =
        utf8proc_decompose(bytes, (utf8proc_ssize_t)len, NULL, 0, options[kind]);
    if (n < 0)
        return vptq_fail(err, VPTQ_E_FORMAT, "normalizing %zu bytes of text: %s", len,
                         utf8proc_errmsg(n));
    /* one more: the result overwrites the code points and has a terminating 0 */
    utf8proc_int32_t *points = vptq_mem_alloc(mem, (size_t)n + 1, sizeof *points, err);
    if (!points)
        return VPTQ_E_NOMEM;
    n = utf8proc_decompose(bytes, (utf8proc_ssize_t)len, points, n, options[kind]);
    if (n >= 0)
        n = utf8proc_reencode(points, n, options[kind]);
    vptq_status st = n >= 0 ? put(e, out, points, (size_t)n, err)
                            : vptq_fail(err, VPTQ_E_FORMAT, "normalizing %zu bytes of text: %s",
                                        len, utf8proc_errmsg(n));
    vptq_mem_free(mem, points);
    return st;
}

static size_t ascii_run(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && (unsigned char)text[n] < 0x80)
        n++;
    return n;
}

/* Returns the length of a part that can be normalized alone: up to an ASCII character (which
 * composes with nothing before it), to invalid bytes, or into an overlong run of marks. */
static size_t part_length(const char *text, size_t len)
{
    size_t n = 0, marks = 0;
    while (n < len) {
        uint32_t cp = 0;
        size_t k = vptq_utf8_decode(text + n, len - n, &cp);
        if (k == 0 || (cp < 0x80 && n > 0))
            break;
        marks = utf8proc_get_property((utf8proc_int32_t)cp)->combining_class ? marks + 1 : 0;
        n += k;
        if (marks == MARKS_MAX)
            break;
    }
    return n;
}

static vptq_status compose(vptq_encode_run *e, vptq_norm_kind kind, const char *text,
                           size_t len, vptq_buf *out, vptq_err *err)
{
    for (size_t i = 0; i < len;) {
        size_t ascii = ascii_run(text + i, len - i);
        if (i + ascii == len)
            return put(e, out, text + i, ascii, err);
        /* the last ASCII character may be the base of a following mark */
        size_t keep = ascii > 0 ? ascii - 1 : 0;
        VPTQ_CHECK(put(e, out, text + i, keep, err));
        i += keep;
        size_t n = part_length(text + i, len - i);
        if (n == 0)
            VPTQ_CHECK(put(e, out, text + i, n = 1, err));
        else
            VPTQ_CHECK(compose_part(e, kind, text + i, n, out, err));
        i += n;
    }
    return VPTQ_OK;
}

/* Appends `content`; sets *cut as in vptq_normalize if it is empty and replaces the start of
 * the text. */
static vptq_status put_content(vptq_encode_run *e, const vptq_norm *step, bool at_start,
                               vptq_buf *out, bool *cut, vptq_err *err)
{
    size_t len = strlen(step->content);
    *cut = *cut || (at_start && len == 0);
    return put(e, out, step->content, len, err);
}

static vptq_status replace(vptq_encode_run *e, const vptq_norm *step, vptq_span s,
                           vptq_buf *out, bool *cut, vptq_err *err)
{
    size_t pattern_len = strlen(step->pattern), copied = 0;
    for (const char *hit;
         (hit = memmem(s.text + copied, s.len - copied, step->pattern, pattern_len)) != NULL;) {
        size_t at = (size_t)(hit - s.text);
        VPTQ_CHECK(put(e, out, s.text + copied, at - copied, err));
        VPTQ_CHECK(put_content(e, step, at == 0, out, cut, err));
        copied = at + pattern_len;
        VPTQ_CHECK(vptq_charge(e, pattern_len, err));
    }
    return put(e, out, s.text + copied, s.len - copied, err);
}

/* Replaces matches in each run of valid UTF-8; other bytes pass unchanged. */
static vptq_status replace_regex(vptq_encode_run *e, uint32_t step, vptq_span s, vptq_buf *out,
                                 bool *cut, vptq_err *err)
{
    for (size_t i = 0; i < s.len;) {
        size_t valid = vptq_utf8_valid_prefix(s.text + i, s.len - i), at = 0;
        for (vptq_matches m = {.found = valid > 0}; m.found; at = m.end) {
            const vptq_tokenizer *t = e->t;
            VPTQ_CHECK(vptq_regex_next(e, &t->norm_code[step], s.text + i, valid, &m, err));
            VPTQ_CHECK(put(e, out, s.text + i + at, m.begin - at, err));
            if (m.found)
                VPTQ_CHECK(put_content(e, &t->v->norms[step],
                                       m.end > 0 && m.begin == 0 && i == 0, out, cut, err));
        }
        i += valid;
        if (i < s.len)
            VPTQ_CHECK(put(e, out, s.text + i++, 1, err));
    }
    return VPTQ_OK;
}

uint32_t vptq_char_before(const char *text, size_t at, size_t *size)
{
    uint32_t cp = 0;
    *size = vptq_utf8_decode_last(text, at, &cp);
    if (*size > 0)
        return cp;
    *size = 1;
    return 0;
}

/* Returns the text without white space at its ends. */
static vptq_span strip(const vptq_norm *step, vptq_span s, bool *cut)
{
    size_t begin = 0, end = s.len, size = 0;
    uint32_t cp = 0;
    while (step->left && begin < end) {
        size = vptq_utf8_decode(s.text + begin, end - begin, &cp);
        if (size == 0 || !vptq_utf8_space(cp))
            break;
        begin += size;
    }
    while (step->right && begin < end && vptq_utf8_space(vptq_char_before(s.text, end, &size)))
        end -= size;
    *cut = *cut || begin > 0;
    return (vptq_span){s.text + begin, end - begin};
}

static bool is_mark(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

/* Applies LOWER or UNMARK to each character. */
static vptq_status each_char(vptq_encode_run *e, vptq_norm_kind kind, vptq_span s,
                             vptq_buf *out, bool *cut, vptq_err *err)
{
    for (size_t i = 0; i < s.len;) {
        uint32_t cp = 0;
        char lower[4];
        size_t size = vptq_utf8_decode(s.text + i, s.len - i, &cp);
        const char *text = s.text + i;
        size_t n = size > 0 ? size : 1;
        i += n;
        if (size > 0 && kind == VPTQ_NORM_LOWER && cp == 0x130) {
            text = "i\xCC\x87"; /* the only character whose lower case is two characters */
            n = 3;
        } else if (size > 0 && kind == VPTQ_NORM_LOWER) {
            n = vptq_utf8_encode((uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), lower);
            text = lower;
        } else if (size > 0 && is_mark(cp)) {
            *cut = *cut || i == n;
            continue;
        }
        VPTQ_CHECK(put(e, out, text, n, err));
    }
    return VPTQ_OK;
}

vptq_status vptq_normalize(vptq_encode_run *e, const char *text, size_t len, vptq_span *out,
                           bool *cut, vptq_err *err)
{
    const vptq_tokenizer *t = e->t;
    *out = (vptq_span){text, len};
    *cut = false;
    for (uint32_t s = 0; s < t->v->norm_count; s++) {
        const vptq_norm *step = &t->v->norms[s];
        vptq_buf *to = &e->norm[s % 2];
        vptq_buf_clear(to);
        VPTQ_CHECK(vptq_charge(e, out->len, err));
        switch (step->kind) {
        case VPTQ_NORM_PREPEND:
            if (out->len > 0)
                VPTQ_CHECK(put(e, to, step->content, strlen(step->content), err));
            VPTQ_CHECK(put(e, to, out->text, out->len, err));
            break;
        case VPTQ_NORM_REPLACE:
            VPTQ_CHECK(replace(e, step, *out, to, cut, err));
            break;
        case VPTQ_NORM_REGEX:
            VPTQ_CHECK(replace_regex(e, s, *out, to, cut, err));
            break;
        case VPTQ_NORM_NFC:
        case VPTQ_NORM_NFD:
        case VPTQ_NORM_NFKC:
        case VPTQ_NORM_NFKD:
            VPTQ_CHECK(compose(e, step->kind, out->text, out->len, to, err));
            break;
        case VPTQ_NORM_STRIP: {
            vptq_span rest = strip(step, *out, cut);
            VPTQ_CHECK(put(e, to, rest.text, rest.len, err));
            break;
        }
        case VPTQ_NORM_LOWER:
        case VPTQ_NORM_UNMARK:
            VPTQ_CHECK(each_char(e, step->kind, *out, to, cut, err));
            break;
        }
        *out = (vptq_span){to->data, to->len};
    }
    return VPTQ_OK;
}
