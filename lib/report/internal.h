/* Internal: the parts of a report of served models, one per file. */
#ifndef VPTQ_REPORT_INTERNAL_H
#define VPTQ_REPORT_INTERNAL_H

#include "lib/report/html.h"
#include "lib/report/report.h"
#include "lib/report/svg.h"

/* names.c: sets the names of models and the labels of configurations. */
vptq_status vptq_report_name(vptq_report *r, vptq_err *err) VPTQ_MUST_CHECK;
/* remarks.c: lists repeated, missing and misplaced runs of each group and the models that a
 * configuration lacks. */
vptq_status vptq_report_remark(vptq_report *r, vptq_err *err) VPTQ_MUST_CHECK;

/* ratios.c: computes ranks, speedups over the original and families of configurations. */
vptq_status vptq_report_relate(vptq_report *r, vptq_err *err) VPTQ_MUST_CHECK;

/* rows.c: CSV or JSON with a row per group and all statistics. */
vptq_status vptq_report_write_rows(const vptq_report *r, vptq_format format, vptq_buf *out,
                                   vptq_err *err) VPTQ_MUST_CHECK;
/* pages.c: the Markdown or HTML page. */
vptq_status vptq_report_write_page(const vptq_report *r, vptq_format format, const char *source,
                                   vptq_buf *out, vptq_err *err) VPTQ_MUST_CHECK;

enum { REPORT_TEXT = 96, CONFIG_TEXT = 1200 }; /* bytes of a figure and of a configuration */

/* A page that is being written: headings, paragraphs and tables in Markdown or HTML, pictures
 * in HTML only. */
typedef struct report_page {
    const vptq_report *r;
    bool html;
    vptq_html h; /* Markdown uses its emit, too */
    vptq_arena arena;
} report_page;
void vptq_page_heading(report_page *p, int level, const char *id, const char *text);
void vptq_page_paragraph(report_page *p, const char *fmt, ...) VPTQ_PRINTF(2, 3);
void vptq_page_table(report_page *p, vptq_table *t); /* writes and releases it */
/* Memory until the end of the page; after a failure returns NULL and the page keeps the error.
 */
void *vptq_page_alloc(report_page *p, size_t count, size_t size);

/* "1.37 (1.28–1.46)", "1.37" without an interval, empty for NaN. */
void vptq_report_ratio_text(char text[REPORT_TEXT], const vptq_ratio *x);
/* "1.05–1.46" and a mark. */
void vptq_report_range_text(char text[REPORT_TEXT], int decimals, double low, double high,
                            const char *mark);
/* Decimals, 0 to 6, that show a positive value with at least `digits` digits. */
int vptq_report_decimals(double smallest, int digits);
/* Colour of a model in all pictures; the original is grey. */
unsigned vptq_report_series(const vptq_report_model *m, const vptq_report *r);
/* "interactive: batch 1, input 128, output 64". */
void vptq_report_config_text(char text[CONFIG_TEXT], const vptq_report_config *c);

/* configs.c: a section per configuration. */
void vptq_report_page_configs(report_page *p);
/* batches.c: break-even and speedups by batch size. */
void vptq_report_page_batches(report_page *p);

#endif
