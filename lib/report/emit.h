/* Internal: writes text into a buffer without a check after every call.  The first failure is
 * kept, later text is dropped, and the caller checks once, at the end.
 *
 *     vptq_emit e = {.buf = &buf, .err = err};
 *     vptq_emit_text(&e, "<td>");
 *     vptq_emit_xml(&e, name);
 *     return e.st;
 *
 * Names come from files, so every format has its own escaping, which takes any bytes; those
 * that are not UTF-8 become U+FFFD, or an escape in text for people. */
#ifndef VPTQ_REPORT_EMIT_H
#define VPTQ_REPORT_EMIT_H

#include "lib/base/buf.h"

typedef struct vptq_emit {
    vptq_buf *buf;
    vptq_err *err; /* message of the first failure; may be NULL */
    vptq_status st;
} vptq_emit;

void vptq_emit_bytes(vptq_emit *e, const char *s, size_t n);
void vptq_emit_text(vptq_emit *e, const char *s); /* unchanged */
void vptq_emit_format(vptq_emit *e, const char *fmt, ...) VPTQ_PRINTF(2, 3);

/* Content of an XML or HTML element, or of an attribute in double quotes. */
void vptq_emit_xml(vptq_emit *e, const char *s);
/* A JSON string in quotes; NULL becomes null.  What the printable form escapes, this does. */
void vptq_emit_json(vptq_emit *e, const char *s);
/* A CSV field, quoted if it needs to be (RFC 4180), in printable form but for newlines and
 * tabs. An apostrophe is put before a text, other than a number, that a spreadsheet would take
 * for a formula. */
void vptq_emit_csv(vptq_emit *e, const char *s);
/* Text of a Markdown paragraph or table cell, on one line and without markup, images or links;
 * an underscore within a word needs no escape. */
void vptq_emit_markdown(vptq_emit *e, const char *s);
/* The printable form (text.h), in which the characters `kept` stay; a line keeps none. */
void vptq_emit_printable(vptq_emit *e, const char *s, size_t n, const char *kept);
void vptq_emit_line(vptq_emit *e, const char *s);

/* The fewest digits that read back as x; NaN and infinity as null.  vptq_emit_real writes whole
 * numbers without an exponent, 14800 and not 1.48e+04 as vptq_emit_shortest does. */
void vptq_emit_real(vptq_emit *e, double x);
void vptq_emit_shortest(vptq_emit *e, double x);

void vptq_human_bytes(char text[32], uint64_t bytes); /* "12.3 MiB" */

#endif
