/* Values as text: Python's str and repr, and JSON as json.dumps writes it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <utf8proc.h>

#include "lib/chat/internal.h"

typedef struct style {
    bool json;             /* or Python's repr */
    bool ascii, sort_keys; /* json */
    tpl_value indent;      /* of one level; NONE: everything on one line */
    tpl_value item_separator, key_separator;
} style;

static void put(tpl_run *r, const char *text)
{
    vptq_tpl_add(r, text, strlen(text));
}

/* The fewest digits that read back the same, laid out as Python's repr of a float. */
static void put_float(tpl_run *r, double f, bool json)
{
    char digits[40], text[64];
    int precision = 1;
    if (!isfinite(f)) {
        put(r, isnan(f) ? (json ? "NaN" : "nan")
               : f < 0  ? (json ? "-Infinity" : "-inf")
                        : (json ? "Infinity" : "inf"));
        return;
    }
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
    put(r, !o->json && s.safe ? "Markup(" : "");
    put(r, quote);
    for (size_t at = 0, bytes; at < s.len && !r->status; at += bytes) {
        bytes = vptq_tpl_char(s.u.s + at, s.len - at, &cp);
        put_char(r, s.u.s + at, bytes, cp, o, quote[0]);
    }
    put(r, quote);
    put(r, !o->json && s.safe ? ")" : "");
}

static void put_value(tpl_run *r, tpl_value v, const style *o, unsigned level);

static void put_line(tpl_run *r, const style *o, unsigned level)
{
    if (o->indent.kind != TPL_STR)
        return;
    put(r, "\n");
    for (unsigned i = 0; i < level; i++)
        vptq_tpl_add(r, o->indent.u.s, o->indent.len);
}

static void put_key(tpl_run *r, tpl_value key, const style *o)
{
    bool quoted = o->json && key.kind != TPL_STR;
    if (quoted && key.kind != TPL_NONE && !tpl_is_number(key))
        TPL_ERROR(r, "%s cannot be a key in JSON", vptq_tpl_type(key));
    put(r, quoted ? "\"" : "");
    put_value(r, key, o, 0);
    put(r, quoted ? "\"" : "");
    vptq_tpl_add(r, o->key_separator.u.s, o->key_separator.len);
}

/* A list, tuple or dict. */
static void put_items(tpl_run *r, tpl_value v, const style *o, unsigned level)
{
    bool dict = v.kind == TPL_DICT, tuple = v.kind == TPL_TUPLE && !o->json;
    uint32_t count = dict ? v.u.dict->count : v.len;
    tpl_value keys = vptq_tpl_list(r, TPL_LIST, dict ? count : 0), values = v;
    if (dict) {
        values = vptq_tpl_list(r, TPL_LIST, count);
        for (uint32_t i = 0; i < values.len; i++) {
            keys.u.items[i] = v.u.dict->items[2 * i];
            values.u.items[i] = v.u.dict->items[2 * i + 1];
        }
        if (o->sort_keys)
            vptq_tpl_sort(r, values.u.items, keys.u.items, values.len, false);
    }
    put(r, dict ? "{" : tuple ? "(" : "[");
    for (uint32_t i = 0; i < values.len && !r->status; i++) {
        if (i > 0)
            vptq_tpl_add(r, o->item_separator.u.s, o->item_separator.len);
        put_line(r, o, level + 1);
        if (dict)
            put_key(r, keys.u.items[i], o);
        put_value(r, values.u.items[i], o, level + 1);
    }
    if (count > 0)
        put_line(r, o, level);
    put(r, dict ? "}" : !tuple ? "]" : count == 1 ? ",)" : ")");
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
        put_float(r, v.u.f, o->json);
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
    const style repr = {.item_separator = TPL_LITERAL(", "),
                        .key_separator = TPL_LITERAL(": ")};
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

/* tojson(ensure_ascii, indent, separators, sort_keys), as transformers defines it. */
tpl_value vptq_tpl_json(tpl_call *c)
{
    tpl_run *r = c->run;
    tpl_value indent = c->arg[1], separators = c->arg[2];
    style o = {.json = true,
               .ascii = vptq_tpl_truth(c->arg[0]),
               .sort_keys = vptq_tpl_truth(c->arg[3]),
               .indent = indent,
               .item_separator = TPL_LITERAL(", "),
               .key_separator = TPL_LITERAL(": ")};
    if (tpl_is_integer(indent))
        o.indent = vptq_tpl_arithmetic(r, '*', TPL_LITERAL(" "), indent);
    else if (indent.kind > TPL_NONE && indent.kind != TPL_STR)
        return TPL_ERROR(r, "the indent of tojson is %s", vptq_tpl_type(indent));
    if (o.indent.kind == TPL_STR)
        o.item_separator = TPL_LITERAL(",");
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

void vptq_tpl_sort(tpl_run *r, tpl_value *items, tpl_value *keys, uint32_t n, bool reverse)
{
    for (uint32_t i = 1; i < n && !r->status; i++) {
        tpl_value item = items[i], key = keys[i];
        uint32_t at = i;
        for (; at > 0; at--) {
            tpl_value before = keys[at - 1];
            if (vptq_tpl_equal(r, before, key) ||
                !vptq_tpl_compare(r, '<', reverse ? before : key, reverse ? key : before))
                break;
            items[at] = items[at - 1];
            keys[at] = before;
        }
        items[at] = item;
        keys[at] = key;
    }
}
