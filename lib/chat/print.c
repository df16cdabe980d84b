/* Values as text: Python's str and repr, and JSON as json.dumps writes it. */
#include <stdio.h>
#include <stdlib.h>

#include <utf8proc.h>

#include "lib/chat/internal.h"

typedef struct style {
    bool json;      /* or Python's repr */
    bool ascii;     /* JSON with escapes for other characters */
    int64_t indent; /* of one level; -1: everything on one line */
    tpl_value item_separator, key_separator;
} style;

static void put(tpl_run *r, const char *text)
{
    vptq_tpl_add(r, text, strlen(text));
}

/* A finite number (JSON has no others): the fewest digits that read back the same, laid out as
 * Python's repr of a float. */
static void put_float(tpl_run *r, double f)
{
    char digits[40], text[64];
    int precision = 1;
    do
        snprintf(digits, sizeof digits, "%.*e", precision - 1, f);
    while (strtod(digits, NULL) != f && ++precision <= 17);
    char *e = strchr(digits, 'e');
    int exponent = (int)strtol(e + 1, NULL, 10), decimals = precision - 1 - exponent;
    *e = 0;
    if (exponent < -4 || exponent >= 16)
        snprintf(text, sizeof text, "%se%c%02d", digits, exponent < 0 ? '-' : '+',
                 abs(exponent));
    else
        snprintf(text, sizeof text, "%.*f", decimals > 0 ? decimals : 1, f);
    put(r, text);
}

/* str.isprintable of a character. */
static bool is_printable(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return cp == ' ' || (c != UTF8PROC_CATEGORY_CN && c < UTF8PROC_CATEGORY_ZS);
}

/* A character of a string in quotes. */
static void put_char(tpl_run *r, const char *s, size_t bytes, uint32_t cp, const style *o,
                     char quote)
{
    static const char plain[] = "\n\r\t\f\b", letters[] = "nrtfb";
    const char *at = cp && cp < 0x80 ? strchr(plain, (int)cp) : NULL;
    char text[16];
    if (cp == '\\' || cp == (uint32_t)quote)
        snprintf(text, sizeof text, "\\%c", (char)cp);
    else if (at && (o->json || at < plain + 3))
        snprintf(text, sizeof text, "\\%c", letters[at - plain]);
    else if (o->json ? cp >= 0x20 && (cp < 0x80 || !o->ascii) : is_printable(cp))
        snprintf(text, sizeof text, "%.*s", (int)bytes, s);
    else if (!o->json && cp < 0x100)
        snprintf(text, sizeof text, "\\x%02x", cp);
    else if (cp < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", cp);
    else if (!o->json)
        snprintf(text, sizeof text, "\\U%08x", cp);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10),
                 0xdc00 + ((cp - 0x10000) & 0x3ff));
    put(r, text);
}

static void put_string(tpl_run *r, tpl_value s, const style *o)
{
    bool single = s.len && memchr(s.u.s, '\'', s.len),
         twofold = s.len && memchr(s.u.s, '"', s.len);
    char quote[] = {o->json || (single && !twofold) ? '"' : '\'', 0};
    uint32_t cp;
    put(r, quote);
    for (size_t at = 0, bytes; at < s.len && !r->status; at += bytes) {
        bytes = vptq_tpl_char(s.u.s + at, s.len - at, &cp);
        put_char(r, s.u.s + at, bytes, cp, o, quote[0]);
    }
    put(r, quote);
}

static void put_value(tpl_run *r, tpl_value v, const style *o, unsigned level);

static void put_line(tpl_run *r, const style *o, unsigned level)
{
    put(r, o->indent >= 0 ? "\n" : "");
    for (int64_t i = 0; i < (int64_t)level * o->indent && !r->status; i++)
        put(r, " ");
}

static void put_key(tpl_run *r, tpl_value key, const style *o)
{
    if (o->json && key.kind != TPL_STR)
        TPL_UNSUPPORTED(r, "%s as a key in JSON is not supported", vptq_tpl_type(key));
    put_value(r, key, o, 0);
    vptq_tpl_add(r, o->key_separator.u.s, o->key_separator.len);
}

/* A list, tuple or dict. */
static void put_items(tpl_run *r, tpl_value v, const style *o, unsigned level)
{
    bool dict = v.kind == TPL_DICT, tuple = v.kind == TPL_TUPLE && !o->json;
    put(r, dict ? "{" : tuple ? "(" : "[");
    for (uint32_t i = 0; i < v.len && !r->status; i++) {
        if (i > 0)
            vptq_tpl_add(r, o->item_separator.u.s, o->item_separator.len);
        put_line(r, o, level + 1);
        if (dict)
            put_key(r, v.u.items[i++], o);
        put_value(r, v.u.items[i], o, level + 1);
    }
    if (v.len > 0)
        put_line(r, o, level);
    put(r, dict ? "}" : !tuple ? "]" : v.len == 1 ? ",)" : ")");
}

static void put_value(tpl_run *r, tpl_value v, const style *o, unsigned level)
{
    char text[32];
    if (v.kind == TPL_NONE) {
        put(r, o->json ? "null" : "None");
    } else if (v.kind == TPL_BOOL) {
        put(r, v.u.i ? (o->json ? "true" : "True") : o->json ? "false" : "False");
    } else if (v.kind == TPL_INT) {
        snprintf(text, sizeof text, "%lld", (long long)v.u.i);
        put(r, text);
    } else if (v.kind == TPL_FLOAT) {
        put_float(r, v.u.f);
    } else if (v.kind == TPL_STR) {
        put_string(r, v, o);
    } else if (v.kind == TPL_LIST || v.kind == TPL_TUPLE || v.kind == TPL_DICT) {
        if (vptq_tpl_enter(r, TPL_MAX_DEPTH))
            put_items(r, v, o, level);
        r->depth--;
    } else if (o->json) {
        TPL_ERROR(r, "%s cannot be written as JSON", vptq_tpl_type(v));
    } else if (v.kind == TPL_UNDEFINED) {
        put(r, "Undefined");
    } else {
        TPL_UNSUPPORTED(r, "the text of %s is not supported", vptq_tpl_type(v));
    }
}

void vptq_tpl_print(tpl_run *r, tpl_value v)
{
    const style repr = {
        .indent = -1, .item_separator = TPL_LITERAL(", "), .key_separator = TPL_LITERAL(": ")};
    if (v.kind == TPL_STR)
        vptq_tpl_add(r, v.u.s, v.len);
    else if (v.kind > TPL_UNDEFINED)
        put_value(r, v, &repr, 0);
}

tpl_value vptq_tpl_str(tpl_run *r, tpl_value v)
{
    size_t start = r->text->len;
    if (v.kind == TPL_STR)
        return v;
    vptq_tpl_print(r, v);
    return vptq_tpl_take(r, start);
}

/* tojson(ensure_ascii, indent, separators), as transformers defines it. */
tpl_value vptq_tpl_json(tpl_call *c)
{
    tpl_run *r = c->run;
    tpl_value indent = c->arg[1], separators = c->arg[2];
    bool lines = indent.kind > TPL_NONE;
    style o = {.json = true, .ascii = vptq_tpl_truth(c->arg[0]), .indent = -1};
    if (lines && (indent.kind != TPL_INT || indent.u.i < 0 || indent.u.i > 100))
        return TPL_UNSUPPORTED(r, "an indent of tojson must be an integer from 0 to 100");
    o.indent = lines ? indent.u.i : -1;
    o.item_separator = lines ? TPL_LITERAL(",") : TPL_LITERAL(", ");
    o.key_separator = TPL_LITERAL(": ");
    if (separators.kind > TPL_NONE) {
        if (!tpl_is_sequence(separators) || separators.len != 2 ||
            separators.u.items[0].kind != TPL_STR || separators.u.items[1].kind != TPL_STR)
            return TPL_ERROR(r, "the separators of tojson are not a pair of strings");
        o.item_separator = separators.u.items[0];
        o.key_separator = separators.u.items[1];
    }
    size_t start = r->text->len;
    put_value(r, c->self, &o, 0);
    return vptq_tpl_take(r, start);
}
