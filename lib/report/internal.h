/* Inside the report: its parts in their files. */
#ifndef VPTQ_REPORT_INTERNAL_H
#define VPTQ_REPORT_INTERNAL_H

#include "lib/report/html.h"
#include "lib/report/report.h"

/* report_names.c: models' names and configurations' labels from the groups' names. */
vptq_status vptq_report_name(vptq_report *r, vptq_err *err) VPTQ_MUST_CHECK;
/* Repeated, missing and misplaced runs of every group, models absent from a configuration. */
vptq_status vptq_report_remark(vptq_report *r, vptq_err *err) VPTQ_MUST_CHECK;

/* report_ratios.c: what is relative to others. */
vptq_status vptq_report_relate(vptq_report *r, vptq_err *err) VPTQ_MUST_CHECK;

/* report_rows.c: one row per group with all statistics. */
vptq_status vptq_report_write_rows(const vptq_report *r, vptq_format format, vptq_buf *out,
                                   vptq_err *err) VPTQ_MUST_CHECK;
/* report_pages.c: Markdown or HTML. */
vptq_status vptq_report_write_page(const vptq_report *r, vptq_format format, const char *source,
                                   vptq_buf *out, vptq_err *err) VPTQ_MUST_CHECK;

/* A document that is being written: the same headings, paragraphs and tables in Markdown or
 * HTML; pictures in HTML only. */
typedef struct report_page {
    const vptq_report *r;
    bool html;
    vptq_html h; /* its emit is that of Markdown, too */
} report_page;
void vptq_page_heading(report_page *p, int level, const char *id, const char *text);
void vptq_page_paragraph(report_page *p, const char *fmt, ...) VPTQ_PRINTF(2, 3);
void vptq_page_note(report_page *p, const char *fmt, ...) VPTQ_PRINTF(2, 3); /* small print */
void vptq_page_table(report_page *p, vptq_table *t); /* written and released */

enum { REPORT_TEXT = 96 };
/* "1.37 [1.28, 1.46]", "1.37" without an interval; "-" for none. */
void vptq_report_ratio_text(char text[REPORT_TEXT], const vptq_ratio *x);
/* "1.05-1.46" with a dash. */
void vptq_report_range_text(char text[REPORT_TEXT], int decimals, double low, double high);
/* Decimals that show a positive value with so many digits at least; 0 to 6. */
int vptq_report_decimals(double smallest, int digits);
/* Colour of a model in every picture; the original's is grey. */
unsigned vptq_report_series(const vptq_report_model *m, const vptq_report *r);
/* "interactive: batch 1, input 128, output 64". */
void vptq_report_config_text(char text[1200], const vptq_report_config *c);

/* report_configs.c: a section per configuration. */
void vptq_report_page_configs(report_page *p);
/* report_batches.c: break-even and speedups by batch size. */
void vptq_report_page_batches(report_page *p);

#endif
