/* Text and its escaping in HTML, JSON, CSV and Markdown. */
#include "lib/report/emit.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "lib/base/text.h"
#include "lib/base/utf8.h"

void vptq_emit_bytes(vptq_emit *e, const char *s, size_t n)
{
    if (!e->st)
        e->st = vptq_buf_add(e->buf, s, n, e->err);
}

void vptq_emit_text(vptq_emit *e, const char *s)
{
    vptq_emit_bytes(e, s, strlen(s));
}

void vptq_emit_format(vptq_emit *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (!e->st)
        e->st = vptq_buf_vprintf(e->buf, e->err, fmt, ap);
    va_end(ap);
}

/* --- escaping ---------------------------------------------------------------------------- */

/* The escape of the character at `at`, in `text` or constant; NULL: the character itself. */
typedef const char *(*escape_fn)(uint32_t cp, const char *at, char text[8]);

static void emit_escaped(vptq_emit *e, const char *s, escape_fn escape)
{
    size_t n = strlen(s);
    while (n) {
        uint32_t cp = 0;
        char text[8];
        size_t len = vptq_utf8_decode(s, n, &cp);
        const char *to = len ? escape(cp, s, text) : "\xef\xbf\xbd";
        len = len ? len : 1;
        if (to)
            vptq_emit_text(e, to);
        else
            vptq_emit_bytes(e, s, len);
        s += len;
        n -= len;
    }
}

static const char *escape_xml(uint32_t cp, const char *at, char text[8])
{
    (void)at;
    (void)text;
    switch (cp) {
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    case '\t':
    case '\n':
        return NULL;
    default:
        return vptq_text_is_control(cp) || cp == 0xfffe || cp == 0xffff ? "\xef\xbf\xbd" : NULL;
    }
}

static const char *escape_json(uint32_t cp, const char *at, char text[8])
{
    (void)at;
    switch (cp) {
    case '"':
        return "\\\"";
    case '\\':
        return "\\\\";
    case '\n':
        return "\\n";
    default:
        break;
    }
    if (!vptq_text_is_control(cp))
        return NULL;
    snprintf(text, 8, "\\u%04x", (unsigned)cp & 0xffff);
    return text;
}

static const char *escape_csv(uint32_t cp, const char *at, char text[8])
{
    if (cp == '"')
        return "\"\"";
    if (cp == '\n' || cp == '\t' || !vptq_text_is_control(cp))
        return NULL;
    vptq_text_escape(at, strlen(at), text);
    return text;
}

static const char *escape_markdown(uint32_t cp, const char *at, char text[8])
{
    if (vptq_text_is_control(cp))
        return " ";
    if (cp == '<')
        return "&lt;";
    if (cp == '&')
        return "&amp;";
    const bool link =
        cp == '@' || strncmp(at, "://", 3) == 0 || strncasecmp(at, "www.", 4) == 0;
    if (!link && (cp >= 0x80 || !strchr("\\|`*[]#", (int)cp)))
        return NULL;
    snprintf(text, 8, link ? "&#%d;" : "\\%c", (int)cp);
    return text;
}

void vptq_emit_xml(vptq_emit *e, const char *s)
{
    emit_escaped(e, s, escape_xml);
}

void vptq_emit_json(vptq_emit *e, const char *s)
{
    if (!s) {
        vptq_emit_text(e, "null");
        return;
    }
    vptq_emit_text(e, "\"");
    emit_escaped(e, s, escape_json);
    vptq_emit_text(e, "\"");
}

/* Whether a spreadsheet would evaluate the text: it begins as a formula, but is not a number.
 */
static bool is_formula(const char *s)
{
    char *end;
    if (!*s || !strchr("=+-@\t\r", *s))
        return false;
    strtod(s, &end);
    return end == s || *end;
}

void vptq_emit_csv(vptq_emit *e, const char *s)
{
    bool quote = s[strcspn(s, ",\"\n")] != 0;
    vptq_emit_text(e, quote ? "\"" : "");
    vptq_emit_text(e, is_formula(s) ? "'" : "");
    emit_escaped(e, s, escape_csv);
    vptq_emit_text(e, quote ? "\"" : "");
}

void vptq_emit_markdown(vptq_emit *e, const char *s)
{
    emit_escaped(e, s, escape_markdown);
}

void vptq_emit_printable(vptq_emit *e, const char *s, size_t n, const char *kept)
{
    for (size_t len; n; s += len, n -= len) {
        char escape[VPTQ_TEXT_ESCAPE];
        len = vptq_text_escape(s, n, escape);
        if (*escape && !(*s && strchr(kept, *s)))
            vptq_emit_text(e, escape);
        else
            vptq_emit_bytes(e, s, len);
    }
}

void vptq_emit_line(vptq_emit *e, const char *s)
{
    vptq_emit_printable(e, s, strlen(s), "");
}

void vptq_emit_shortest(vptq_emit *e, double x)
{
    char text[40] = "null";
    for (int digits = 1; isfinite(x) && digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    vptq_emit_text(e, text);
}

void vptq_emit_real(vptq_emit *e, double x)
{
    if (isfinite(x) && fabs(x) < 1e15 && x == trunc(x))
        vptq_emit_format(e, "%.0f", x == 0 ? 0 : x);
    else
        vptq_emit_shortest(e, x);
}

/* --- for people -------------------------------------------------------------------------- */

void vptq_human_bytes(char text[32], uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)bytes;
    size_t u = 0;
    while (x >= 1024 && u + 1 < sizeof units / sizeof *units) {
        x /= 1024;
        u++;
    }
    snprintf(text, 32, u ? "%.1f %s" : "%.0f %s", x, units[u]);
}

void vptq_human_seconds(char text[32], double seconds)
{
    if (!(seconds >= 0) || seconds > 1e9) {
        snprintf(text, 32, "?");
        return;
    }
    if (seconds < 59.95) {
        snprintf(text, 32, "%.1f s", seconds);
        return;
    }
    uint64_t s = (uint64_t)(seconds + 0.5);
    if (s < 3600)
        snprintf(text, 32, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
    else
        snprintf(text, 32, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s % 3600 / 60);
}
