/* Values as text: Python's str and repr, and JSON as json.dumps writes it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "lib/chat/internal.h"

static vptq_status add_text(tpl_run *r, vptq_buf *b, const char *text)
{
    return vptq_tpl_add(r, b, text, strlen(text));
}

/* ---- numbers ---- */

/* The fewest digits that read back the same, laid out as Python's repr of a float. */
static void float_text(double f, char text[64])
{
    char digits[40];
    if (!isfinite(f)) {
        snprintf(text, 64, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    int precision = 1;
    do
        snprintf(digits, sizeof digits, "%.*e", precision - 1, f);
    while (strtod(digits, NULL) != f && ++precision <= 17);
    char *e = strchr(digits, 'e');
    int exponent = (int)strtol(e + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) {
        *e = 0;
        snprintf(text, 64, "%se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    int decimals = precision - 1 - exponent;
    snprintf(text, 64, "%.*f", decimals > 0 ? decimals : 1, f);
}

static vptq_status add_float(tpl_run *r, vptq_buf *b, double f)
{
    char text[64];
    float_text(f, text);
    return add_text(r, b, text);
}

static vptq_status add_int(tpl_run *r, vptq_buf *b, int64_t i)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)i);
    return add_text(r, b, text);
}

/* ---- repr ---- */

/* str.isprintable of a character. */
static bool printable(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return cp == ' ';
    default:
        return true;
    }
}

static vptq_status repr_char(tpl_run *r, vptq_buf *b, const char *s, size_t bytes, uint32_t cp,
                             char quote)
{
    char text[16];
    if (cp == (uint32_t)quote || cp == '\\') {
        char escaped[2] = {'\\', (char)cp};
        return vptq_tpl_add(r, b, escaped, 2);
    }
    if (cp == '\n' || cp == '\r' || cp == '\t')
        return add_text(r, b, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t");
    if (printable(cp))
        return vptq_tpl_add(r, b, s, bytes);
    snprintf(text, sizeof text,
             cp < 0x100     ? "\\x%02x"
             : cp < 0x10000 ? "\\u%04x"
                            : "\\U%08x",
             cp);
    return add_text(r, b, text);
}

static vptq_status repr_string(tpl_run *r, vptq_buf *b, const tpl_value *s)
{
    bool single = s->len && memchr(s->u.s, '\'', s->len);
    bool twofold = s->len && memchr(s->u.s, '"', s->len);
    char quote = single && !twofold ? '"' : '\'';
    TPL_TRY(vptq_tpl_step(r, s->len / 16));
    TPL_TRY(add_text(r, b, s->safe ? "Markup(" : ""));
    TPL_TRY(vptq_tpl_add(r, b, &quote, 1));
    for (size_t at = 0, bytes; at < s->len; at += bytes) {
        uint32_t cp = vptq_tpl_char(s->u.s + at, s->len - at, &bytes);
        TPL_TRY(repr_char(r, b, s->u.s + at, bytes, cp, quote));
    }
    TPL_TRY(vptq_tpl_add(r, b, &quote, 1));
    return add_text(r, b, s->safe ? ")" : "");
}

static vptq_status repr(tpl_run *r, vptq_buf *b, const tpl_value *v);

static vptq_status repr_items(tpl_run *r, vptq_buf *b, const tpl_list *l, const char *open,
                              const char *close)
{
    TPL_TRY(add_text(r, b, open));
    for (size_t i = 0; i < l->count; i++) {
        if (i > 0)
            TPL_TRY(add_text(r, b, ", "));
        TPL_TRY(repr(r, b, &l->items[i]));
    }
    return add_text(r, b, close);
}

static vptq_status repr_range(tpl_run *r, vptq_buf *b, const tpl_list *l, int64_t end)
{
    TPL_TRY(add_text(r, b, "range("));
    TPL_TRY(add_int(r, b, l->start));
    TPL_TRY(add_text(r, b, ", "));
    TPL_TRY(add_int(r, b, end));
    if (l->step != 1) {
        TPL_TRY(add_text(r, b, ", "));
        TPL_TRY(add_int(r, b, l->step));
    }
    return add_text(r, b, ")");
}

static vptq_status repr_list(tpl_run *r, vptq_buf *b, const tpl_value *v)
{
    const tpl_list *l = v->u.list;
    if (l->form == TPL_FORM_LIST)
        return repr_items(r, b, l, "[", "]");
    if (l->form == TPL_FORM_TUPLE)
        return repr_items(r, b, l, "(", l->count == 1 ? ",)" : ")");
    if (l->form == TPL_FORM_RANGE && l->count > 0 && l->items[0].kind == TPL_INT)
        return repr_range(r, b, l, l->start + (int64_t)l->count * l->step);
    return vptq_tpl_unsupported(r, "the text of %s", vptq_tpl_type(v));
}

static vptq_status repr_dict(tpl_run *r, vptq_buf *b, const tpl_dict *d)
{
    TPL_TRY(add_text(r, b, "{"));
    for (size_t i = 0; i < d->count; i++) {
        if (i > 0)
            TPL_TRY(add_text(r, b, ", "));
        TPL_TRY(repr(r, b, &d->keys[i]));
        TPL_TRY(add_text(r, b, ": "));
        TPL_TRY(repr(r, b, &d->values[i]));
    }
    return add_text(r, b, "}");
}

static vptq_status repr(tpl_run *r, vptq_buf *b, const tpl_value *v)
{
    vptq_status st = VPTQ_OK;
    TPL_TRY(vptq_tpl_deeper(r));
    TPL_TRY(vptq_tpl_step(r, 1));
    switch ((tpl_kind)v->kind) {
    case TPL_NONE:
        st = add_text(r, b, "None");
        break;
    case TPL_BOOL:
        st = add_text(r, b, v->u.i ? "True" : "False");
        break;
    case TPL_INT:
        st = add_int(r, b, v->u.i);
        break;
    case TPL_FLOAT:
        st = add_float(r, b, v->u.f);
        break;
    case TPL_STR:
        st = repr_string(r, b, v);
        break;
    case TPL_LIST:
        st = repr_list(r, b, v);
        break;
    case TPL_DICT:
        st = repr_dict(r, b, v->u.dict);
        break;
    case TPL_NAMESPACE:
        TPL_TRY(add_text(r, b, "<Namespace "));
        TPL_TRY(repr_dict(r, b, v->u.dict));
        st = add_text(r, b, ">");
        break;
    case TPL_UNDEFINED:
        st = add_text(r, b, "Undefined");
        break;
    default:
        st = vptq_tpl_unsupported(r, "the text of %s", vptq_tpl_type(v));
        break;
    }
    r->depth--;
    return st;
}

vptq_status vptq_tpl_print(tpl_run *r, vptq_buf *b, const tpl_value *v)
{
    if (v->kind == TPL_STR)
        return vptq_tpl_add(r, b, v->u.s, v->len);
    return v->kind == TPL_UNDEFINED ? VPTQ_OK : repr(r, b, v);
}

vptq_status vptq_tpl_string(tpl_run *r, const tpl_value *v, tpl_value *out)
{
    vptq_buf b;
    if (v->kind == TPL_STR) {
        *out = *v;
        return VPTQ_OK;
    }
    vptq_buf_init(&b, r->arena.mem);
    vptq_status st = vptq_tpl_print(r, &b, v);
    if (!st)
        return vptq_tpl_take(r, &b, out);
    vptq_buf_release(&b);
    return st;
}

/* ---- JSON ---- */

static vptq_status json_char(tpl_run *r, vptq_buf *b, const char *s, size_t bytes, uint32_t cp,
                             bool ascii)
{
    static const char plain[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
    char text[16];
    const char *at = cp && cp < 0x80 ? strchr(plain, (int)cp) : NULL;
    if (at) {
        char escaped[2] = {'\\', letters[at - plain]};
        return vptq_tpl_add(r, b, escaped, 2);
    }
    if (cp >= 0x20 && (cp < 0x7f || !ascii))
        return vptq_tpl_add(r, b, s, bytes);
    if (cp < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", cp);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10),
                 0xdc00 + ((cp - 0x10000) & 0x3ff));
    return add_text(r, b, text);
}

static vptq_status write_string(tpl_run *r, vptq_buf *b, const tpl_value *s, bool ascii)
{
    TPL_TRY(vptq_tpl_step(r, s->len / 16));
    TPL_TRY(vptq_tpl_add(r, b, "\"", 1));
    for (size_t at = 0, bytes; at < s->len; at += bytes) {
        uint32_t cp = vptq_tpl_char(s->u.s + at, s->len - at, &bytes);
        /* json.dumps leaves DEL as it is */
        TPL_TRY(cp == 0x7f ? vptq_tpl_add(r, b, s->u.s + at, bytes)
                           : json_char(r, b, s->u.s + at, bytes, cp, ascii));
    }
    return vptq_tpl_add(r, b, "\"", 1);
}

static vptq_status json_number(tpl_run *r, vptq_buf *b, const tpl_value *v)
{
    if (v->kind == TPL_INT)
        return add_int(r, b, v->u.i);
    if (!isfinite(v->u.f))
        return add_text(r, b, isnan(v->u.f) ? "NaN" : v->u.f < 0 ? "-Infinity" : "Infinity");
    return add_float(r, b, v->u.f);
}

static vptq_status json_value(tpl_run *r, vptq_buf *b, const tpl_value *v,
                              const tpl_json_style *s, size_t level);

static vptq_status new_line(tpl_run *r, vptq_buf *b, const tpl_json_style *s, size_t level)
{
    if (!s->indented)
        return VPTQ_OK;
    TPL_TRY(vptq_tpl_add(r, b, "\n", 1));
    for (size_t i = 0; i < level; i++)
        TPL_TRY(vptq_tpl_add(r, b, s->indent.u.s, s->indent.len));
    return VPTQ_OK;
}

static vptq_status json_list(tpl_run *r, vptq_buf *b, const tpl_list *l,
                             const tpl_json_style *s, size_t level)
{
    TPL_TRY(add_text(r, b, "["));
    for (size_t i = 0; i < l->count; i++) {
        if (i > 0)
            TPL_TRY(vptq_tpl_add(r, b, s->item.u.s, s->item.len));
        TPL_TRY(new_line(r, b, s, level + 1));
        TPL_TRY(json_value(r, b, &l->items[i], s, level + 1));
    }
    if (l->count > 0)
        TPL_TRY(new_line(r, b, s, level));
    return add_text(r, b, "]");
}

static vptq_status json_key(tpl_run *r, vptq_buf *b, const tpl_value *key,
                            const tpl_json_style *s)
{
    if (key->kind == TPL_STR)
        return write_string(r, b, key, s->ascii);
    if (key->kind != TPL_NONE && !vptq_tpl_is_number(key))
        return vptq_tpl_fail(r, "%s cannot be a key in JSON", vptq_tpl_type(key));
    TPL_TRY(add_text(r, b, "\""));
    TPL_TRY(json_value(r, b, key, s, 0));
    return add_text(r, b, "\"");
}

/* The order of a dict's keys: as they came, or sorted. */
static vptq_status key_order(tpl_run *r, const tpl_dict *d, bool sorted, size_t **order)
{
    void *places;
    TPL_TRY(vptq_tpl_alloc(r, d->count, sizeof(size_t), &places));
    size_t *at = places;
    for (size_t i = 0; i < d->count; i++) {
        size_t j = i;
        for (; sorted && j > 0; j--) {
            int less;
            TPL_TRY(vptq_tpl_order(r, &d->keys[i], &d->keys[at[j - 1]], &less));
            if (less >= 0)
                break;
            at[j] = at[j - 1];
        }
        at[j] = i;
    }
    *order = at;
    return VPTQ_OK;
}

static vptq_status json_dict(tpl_run *r, vptq_buf *b, const tpl_dict *d,
                             const tpl_json_style *s, size_t level)
{
    size_t *order;
    TPL_TRY(key_order(r, d, s->sort, &order));
    TPL_TRY(add_text(r, b, "{"));
    for (size_t i = 0; i < d->count; i++) {
        if (i > 0)
            TPL_TRY(vptq_tpl_add(r, b, s->item.u.s, s->item.len));
        TPL_TRY(new_line(r, b, s, level + 1));
        TPL_TRY(json_key(r, b, &d->keys[order[i]], s));
        TPL_TRY(vptq_tpl_add(r, b, s->key.u.s, s->key.len));
        TPL_TRY(json_value(r, b, &d->values[order[i]], s, level + 1));
    }
    if (d->count > 0)
        TPL_TRY(new_line(r, b, s, level));
    return add_text(r, b, "}");
}

static vptq_status json_value(tpl_run *r, vptq_buf *b, const tpl_value *v,
                              const tpl_json_style *s, size_t level)
{
    vptq_status st;
    TPL_TRY(vptq_tpl_deeper(r));
    TPL_TRY(vptq_tpl_step(r, 1));
    if (v->kind == TPL_NONE)
        st = add_text(r, b, "null");
    else if (v->kind == TPL_BOOL)
        st = add_text(r, b, v->u.i ? "true" : "false");
    else if (v->kind == TPL_INT || v->kind == TPL_FLOAT)
        st = json_number(r, b, v);
    else if (v->kind == TPL_STR)
        st = write_string(r, b, v, s->ascii);
    else if (v->kind == TPL_LIST && v->u.list->form <= TPL_FORM_TUPLE)
        st = json_list(r, b, v->u.list, s, level);
    else if (v->kind == TPL_DICT)
        st = json_dict(r, b, v->u.dict, s, level);
    else
        st = vptq_tpl_fail(r, "%s cannot be written as JSON", vptq_tpl_type(v));
    r->depth--;
    return st;
}

vptq_status vptq_tpl_json(tpl_run *r, vptq_buf *b, const tpl_value *v, const tpl_json_style *s)
{
    return json_value(r, b, v, s, 0);
}
