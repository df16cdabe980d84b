/* Internal: quantizing a whole model into a work directory (lib/vptq.h has the options). */
#ifndef VPTQ_QUANTIZE_QUANTIZE_H
#define VPTQ_QUANTIZE_QUANTIZE_H

#include "hessian/collect.h"
#include "lib/base/additive.h"
#include "lib/base/uniform.h"
#include "lib/encoder/encode.h"
#include "lib/encoder/presets.h"
#include "lib/quantize/settings.h"
#include "lib/vptq.h"

/* A finished matrix. */
typedef struct vptq_quantize_row {
    uint32_t layer;
    const char *name; /* "q_proj" */
    uint32_t rows, columns;
    const vptq_encoder_settings *settings;
    vptq_vq_shape shape;          /* method vptq; else zero */
    vptq_uniform_shape uniform;   /* methods with uniform codes; else zero */
    vptq_additive_shape additive; /* methods with additive codes; else zero */
    vptq_vq_bits bits;
    double predicted;        /* loss that the allocation expects; NAN = unknown */
    bool reused;             /* found finished in the work directory */
    bool weighted, held_out; /* whether the report has these losses */
    bool diagonal;           /* losses are under the diagonal of the Hessian */
    bool corrected;          /* sequential: the target was moved by alpha */
    double awq_alpha;        /* exponent of the scales that AWQ chose; NAN = none */
    double alpha, alpha_damping, alpha_gain; /* share of the correction, damping of its
                                                solution, and its gain on held-out windows */
    vptq_encoder_report report; /* zero in a dry run; of a reused matrix only the final losses
                                   and those of the first step */
    const char *json;           /* the row of report.jsonl; without losses in a dry run */
} vptq_quantize_row;
typedef vptq_status (*vptq_quantize_fn)(void *arg, const vptq_quantize_row *row, vptq_err *err);

/* Locks the work directory and resumes finished matrices.  The result is the same bytes for any
 * thread count and any interruption. */
vptq_status vptq_quantize_model(vptq_device *dev, const vptq_quantize_options *opt,
                                vptq_quantize_fn fn, void *arg, vptq_quantize_result *result,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* The same with the report of vptq_quantize on `out` (may be NULL). */
vptq_status vptq_quantize_report(vptq_device *dev, const vptq_quantize_options *opt,
                                 const vptq_output *out, vptq_quantize_result *r,
                                 vptq_err *err) VPTQ_MUST_CHECK;
/* Ends the report of a run with r->digest; in JSON an object with the sums. */
vptq_status vptq_quantize_report_end(const vptq_quantize_options *opt,
                                     const vptq_quantize_result *r, const vptq_output *out,
                                     vptq_err *err) VPTQ_MUST_CHECK;

/* Steps and seconds of a matrix, of which only the ratios to others mean anything (cost.c). */
void vptq_matrix_cost(const vptq_encoder_settings *s, uint32_t out, uint32_t in,
                      vptq_encoder_report *cost);
/* Bytes of the file of a matrix in a work directory, about. */
uint64_t vptq_work_bytes(const vptq_quantize_row *row);

/* In a work directory: the packed model while it is measured for its card. */
#define VPTQ_MEASURED_FILE "measured.vptq"

/* Removes a work directory if it holds only what the tools write, else those files;
 * VPTQ_E_EXISTS naming what stays. */
vptq_status vptq_work_remove(const char *dir, vptq_mem *mem, vptq_err *err) VPTQ_MUST_CHECK;

#endif
