/* Writing text into a buffer without a check behind every call: the first failure stays, what
 * comes after it is dropped, and the caller asks once, at the end.
 *
 *     vptq_emit e = {.buf = &buf, .err = err};
 *     vptq_emit_text(&e, "<td>");
 *     vptq_emit_xml(&e, name);
 *     return e.st;
 *
 * Names come from files: every writer of a format has its own escaping, and each takes any
 * bytes, of which those that are not UTF-8 become U+FFFD. */
#ifndef VPTQ_REPORT_EMIT_H
#define VPTQ_REPORT_EMIT_H

#include "lib/base/buf.h"

typedef struct vptq_emit {
    vptq_buf *buf;
    vptq_err *err; /* gets the sentence of the first failure; may be NULL */
    vptq_status st;
} vptq_emit;

void vptq_emit_bytes(vptq_emit *e, const char *s, size_t n);
void vptq_emit_text(vptq_emit *e, const char *s); /* as it is */
void vptq_emit_format(vptq_emit *e, const char *fmt, ...) VPTQ_PRINTF(2, 3);

/* Content of an XML or HTML element, or of an attribute in double quotes. */
void vptq_emit_xml(vptq_emit *e, const char *s);
/* A JSON string with its quotes; NULL becomes null. */
void vptq_emit_json(vptq_emit *e, const char *s);
/* A CSV field, in quotes where it must be (RFC 4180). */
void vptq_emit_csv(vptq_emit *e, const char *s);
/* Text in a Markdown paragraph or table cell; an underscore within a word needs no escape. */
void vptq_emit_markdown(vptq_emit *e, const char *s);

/* The fewest digits that read back as x; NaN and infinity as null. */
void vptq_emit_real(vptq_emit *e, double x);

#endif
