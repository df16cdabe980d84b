/* What vptq_eval_error finds, as tables and a page. */
#ifndef VPTQ_EVAL_ERROR_REPORT_H
#define VPTQ_EVAL_ERROR_REPORT_H

#include "lib/eval/eval.h"
#include "lib/report/table.h"

typedef enum {
    VPTQ_ERROR_ORDER_FORMAT, /* CSV and JSON by layer, what is for people worst first */
    VPTQ_ERROR_ORDER_WORST,  /* by falling output error, or weight error without Hessians */
    VPTQ_ERROR_ORDER_LAYER
} vptq_error_order;

typedef struct vptq_error_report {
    const vptq_error_row *rows;
    size_t count;
    vptq_error_order order;
    size_t top;               /* rows of the table at most; 0 = all.  Means are over all */
    const char *model, *base; /* their names, for the page */
} vptq_error_report;

/* CSV and JSON: the rows.  For people: the rows, and means of all matrices and of each kind;
 * the page has them as pictures over layers and kinds, too. */
vptq_status vptq_error_report_write(const vptq_error_report *r, vptq_format format,
                                    vptq_mem *mem, vptq_buf *out,
                                    vptq_err *err) VPTQ_MUST_CHECK;

#endif
