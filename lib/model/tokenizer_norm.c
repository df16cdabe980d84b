/* The steps of a normalizer.  Bytes that are not UTF-8 pass unchanged. */
#include <string.h>
#include <utf8proc.h>

#include "lib/base/utf8.h"
#include "lib/model/tokenizer_impl.h"

/* Canonical ordering takes quadratic time in a run of combining marks; longer runs than this,
 * which no language has, are normalized in parts. */
enum { MARKS_MAX = 256 };

static vptq_status compose_part(vptq_mem *mem, vptq_norm_kind kind, const char *text,
                                size_t len, vptq_buf *out, vptq_err *err)
{
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
    /* one more: the result is written over the code points with a 0 behind it */
    utf8proc_int32_t *points = vptq_mem_alloc(mem, (size_t)n + 1, sizeof *points, err);
    if (!points)
        return VPTQ_E_NOMEM;
    n = utf8proc_decompose(bytes, (utf8proc_ssize_t)len, points, n, options[kind]);
    if (n >= 0)
        n = utf8proc_reencode(points, n, options[kind]);
    vptq_status st = n >= 0 ? vptq_buf_add(out, points, (size_t)n, err)
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

/* Where a part ends that can be normalized alone: before an ASCII character (none composes with
 * what is in front of it), before invalid bytes, or inside an absurd run of marks. */
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

static vptq_status compose(vptq_mem *mem, vptq_norm_kind kind, const char *text, size_t len,
                           vptq_buf *out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    for (size_t i = 0; i < len;) {
        size_t ascii = ascii_run(text + i, len - i);
        if (i + ascii == len)
            return vptq_buf_add(out, text + i, ascii, err);
        /* the last ASCII character may be the base of a mark behind it */
        size_t keep = ascii > 0 ? ascii - 1 : 0;
        VPTQ_TRY(vptq_buf_add(out, text + i, keep, err));
        i += keep;
        size_t n = part_length(text + i, len - i);
        if (n == 0)
            VPTQ_TRY(vptq_buf_add(out, text + i, n = 1, err));
        else
            VPTQ_TRY(compose_part(mem, kind, text + i, n, out, err));
        i += n;
    }
out:
    return st;
}

static vptq_status replace(const vptq_norm *step, const char *text, size_t len, vptq_buf *out,
                           vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    size_t pattern_len = strlen(step->pattern), content_len = strlen(step->content);
    size_t copied = 0;
    for (size_t i = 0; i + pattern_len <= len;) {
        const char *hit = memchr(text + i, step->pattern[0], len - pattern_len - i + 1);
        if (!hit)
            break;
        i = (size_t)(hit - text);
        if (memcmp(hit, step->pattern, pattern_len) != 0) {
            i++;
            continue;
        }
        VPTQ_TRY(vptq_buf_add(out, text + copied, i - copied, err));
        VPTQ_TRY(vptq_buf_add(out, step->content, content_len, err));
        i += pattern_len;
        copied = i;
    }
    VPTQ_TRY(vptq_buf_add(out, text + copied, len - copied, err));
out:
    return st;
}

static vptq_status replace_regex(const vptq_tokenizer *t, uint32_t step, vptq_regex_run *run,
                                 const char *text, size_t len, vptq_buf *out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    const char *content = t->v->norms[step].content;
    for (size_t i = 0; i < len;) {
        size_t valid = vptq_utf8_valid_prefix(text + i, len - i);
        for (size_t at = 0; at < valid;) {
            size_t begin = 0, end = 0;
            VPTQ_TRY(vptq_regex_find(t, t->norm_code[step], run, text + i, valid, at, &begin,
                                     &end, err));
            VPTQ_TRY(vptq_buf_add(out, text + i + at, begin - at, err));
            if (end > begin)
                VPTQ_TRY(vptq_buf_add(out, content, strlen(content), err));
            at = end;
        }
        i += valid;
        if (i < len)
            VPTQ_TRY(vptq_buf_add(out, text + i++, 1, err));
    }
out:
    return st;
}

vptq_status vptq_normalize(const vptq_tokenizer *t, vptq_regex_run *run, vptq_buf norm[2],
                           const char *text, size_t len, vptq_span *out, vptq_err *err)
{
    vptq_status st = VPTQ_OK;
    *out = (vptq_span){text, len};
    for (uint32_t s = 0; s < t->v->norm_count; s++) {
        const vptq_norm *step = &t->v->norms[s];
        vptq_buf *to = &norm[s % 2];
        vptq_buf_clear(to);
        switch (step->kind) {
        case VPTQ_NORM_PREPEND:
            if (out->len > 0)
                VPTQ_TRY(vptq_buf_add(to, step->content, strlen(step->content), err));
            VPTQ_TRY(vptq_buf_add(to, out->text, out->len, err));
            break;
        case VPTQ_NORM_REPLACE:
            VPTQ_TRY(replace(step, out->text, out->len, to, err));
            break;
        case VPTQ_NORM_REGEX:
            VPTQ_TRY(replace_regex(t, s, run, out->text, out->len, to, err));
            break;
        case VPTQ_NORM_NFC:
        case VPTQ_NORM_NFD:
        case VPTQ_NORM_NFKC:
        case VPTQ_NORM_NFKD:
            VPTQ_TRY(compose(t->arena.mem, step->kind, out->text, out->len, to, err));
            break;
        }
        *out = (vptq_span){to->data, to->len};
    }
out:
    return st;
}
