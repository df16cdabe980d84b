/* Internal: writes a self-contained HTML page, without scripts or external files, in light or
 * dark as the reader's system is set, readable on a phone.  The same input gives the same
 * bytes.
 *
 *     vptq_html h;
 *     vptq_html_begin(&h, &buf, err, "Serving", "147 runs of 7 models");
 *     vptq_html_heading(&h, 2, "summary", "Summary");
 *     vptq_html_table(&h, &table);
 *     vptq_html_figures_begin(&h);
 *     vptq_svg_bars(&h, &bars);
 *     vptq_html_figures_end(&h);
 *     return vptq_html_end(&h);
 *
 * All texts are escaped.  The first failure is kept, and vptq_html_end returns it. */
#ifndef VPTQ_REPORT_HTML_H
#define VPTQ_REPORT_HTML_H

#include "lib/report/table.h"

typedef struct vptq_html {
    vptq_emit e;
    unsigned pictures; /* so far; numbers the ids of their titles */
} vptq_html;

/* `lead`: text below the title; NULL = none. */
void vptq_html_begin(vptq_html *h, vptq_buf *out, vptq_err *err, const char *title,
                     const char *lead);
vptq_status vptq_html_end(vptq_html *h) VPTQ_MUST_CHECK;

/* Level 2 or 3; `id`: target of links, [a-z0-9-], or NULL. */
void vptq_html_heading(vptq_html *h, int level, const char *id, const char *text);
/* A line of links to headings of the page. */
void vptq_html_links_begin(vptq_html *h, const char *label);
void vptq_html_link(vptq_html *h, const char *id, const char *text);
void vptq_html_links_end(vptq_html *h);

void vptq_html_paragraph(vptq_html *h, const char *text);
void vptq_html_table(vptq_html *h, const vptq_table *t);

/* A row of key figures, each with its name below. */
typedef struct vptq_html_fact {
    const char *value, *name;
} vptq_html_fact;
void vptq_html_facts(vptq_html *h, const vptq_html_fact *facts, size_t count);

/* Places pictures side by side if the page is wide enough. */
void vptq_html_figures_begin(vptq_html *h);
void vptq_html_figures_end(vptq_html *h);
/* Content that is folded away until the reader opens it. */
void vptq_html_details_begin(vptq_html *h, const char *summary);
void vptq_html_details_end(vptq_html *h);

#endif
