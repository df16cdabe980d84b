/* Internal: error of quantized matrices against their originals, and reports of it. */
#ifndef VPTQ_EVAL_ERROR_H
#define VPTQ_EVAL_ERROR_H

#include "lib/backend/backend.h"
#include "lib/model/model.h"
#include "lib/report/table.h"
#include "lib/vptq.h"

/* One row per quantized matrix, ordered by layer and by linear layer. */
typedef struct vptq_error_row {
    uint32_t layer;
    const char *name; /* "q_proj" */
    uint32_t rows, columns;
    double proxy_loss;    /* of the outputs: tr(E H E^T) / tr(W H W^T) */
    double relative_mse;  /* of the weights: |E|^2 / |W|^2 */
    uint32_t worst_row;   /* output channel with the largest |E_r|^2 / |W_r|^2 ... */
    double worst_row_mse; /* ... and that quotient */
    double bits_per_weight;
    vptq_vq_shape shape;
    vptq_linear kind; /* vptq_linear_kind: experts count with the dense layer of their kind */
} vptq_error_row;
typedef vptq_status (*vptq_error_fn)(void *arg, const vptq_error_row *row, vptq_err *err);
/* Compares the quantized matrices with their originals, both as floats, in the metric of
 * opt->hessians (NULL: proxy_loss is NaN).  last_layer UINT32_MAX is the model's last.
 * VPTQ_E_UNSUPPORTED if no matrix is quantized, VPTQ_E_MISMATCH if the models differ in shape
 * or the Hessians are of another model than `base`. */
vptq_status vptq_eval_error(vptq_device *dev, const vptq_model *quantized,
                            const vptq_model *base, const vptq_error_options *opt,
                            vptq_error_fn fn, void *arg, vptq_err *err) VPTQ_MUST_CHECK;
/* The same of the first matrices alone, for about a second: estimates the time and memory of
 * all, which *e gets. */
vptq_status vptq_eval_error_estimate(vptq_device *dev, const vptq_model *quantized,
                                     const vptq_model *base, const vptq_error_options *opt,
                                     vptq_estimate *e, vptq_err *err) VPTQ_MUST_CHECK;
/* As vptq_measure_error. */
vptq_status vptq_eval_error_report(vptq_device *dev, const vptq_model *m,
                                   const vptq_model *base, const vptq_error_options *opt,
                                   const vptq_output *out, vptq_err *err) VPTQ_MUST_CHECK;

/* Whether two models can be versions of each other: VPTQ_E_MISMATCH with both files and shapes
 * if their shapes differ. */
vptq_status vptq_eval_check_shapes(const vptq_model *m, const vptq_model *base,
                                   vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_error_report {
    const vptq_error_row *rows;
    size_t count;
    vptq_error_order order;
    size_t top;               /* maximum rows of the table; 0 = all.  Means are over all rows */
    const char *model, *base; /* their names, for the page */
    uint32_t width;           /* of the terminal that shows text, as in vptq_output */
    const vptq_model_desc *desc;
} vptq_error_report;

/* Appends the report to `out`.  CSV and JSON have the rows; text and Markdown add means over
 * all matrices and over each kind; HTML adds charts over layers and kinds. */
vptq_status vptq_error_report_write(const vptq_error_report *r, vptq_format format,
                                    vptq_mem *mem, vptq_buf *out,
                                    vptq_err *err) VPTQ_MUST_CHECK;

#endif
