/* A quantize run: what its parts share (pipeline_quantize.c runs it, pipeline_plan.c is what
 * comes before any work, pipeline_manifest.c keeps quantize.json, pipeline_rows.c the rows of
 * report.jsonl). */
#ifndef VPTQ_QUANTIZE_INTERNAL_H
#define VPTQ_QUANTIZE_INTERNAL_H

#include <limits.h>

#include "lib/base/buf.h"
#include "lib/quantize/hessians.h"
#include "lib/quantize/quantize.h"

typedef struct vptq_quantizer {
    vptq_device *dev;
    const vptq_quantize_options *opt;
    vptq_quantize_fn fn;
    void *arg;
    vptq_quantize_result *result;
    /* the plan */
    vptq_model model;
    char base_fingerprint[17];
    uint32_t first, last;         /* layers, inclusive */
    vptq_arena arena;             /* of the table of settings */
    vptq_matrix_settings *matrix; /* [layers * VPTQ_LINEAR_COUNT] */
    json_t *rules;                /* of the recipe, or NULL */
    vptq_hessian_source hessians;
    double *predicted; /* [layers * VPTQ_LINEAR_COUNT] losses; NULL without allocation */
    /* the work directory */
    json_t *manifest;     /* quantize.json */
    char fingerprint[17]; /* of everything that decides the bytes of a matrix */
    vptq_buf report;      /* report.jsonl so far */
    /* sums over the rows so far */
    uint64_t bits, weights;
    double loss, held_out, predicted_loss;
    uint64_t all_weights; /* of the layers to be done */
    /* being worked on, for the progress line */
    uint32_t layer;
    vptq_linear linear;
} vptq_quantizer;

static inline const vptq_matrix_settings *vptq_quantizer_matrix(const vptq_quantizer *q,
                                                                uint32_t layer, vptq_linear l)
{
    return &q->matrix[(size_t)layer * VPTQ_LINEAR_COUNT + (size_t)l];
}

/* ---- before any work (pipeline_plan.c) ---- */

/* Opens the model, makes the table of settings and checks it. */
vptq_status vptq_plan_settings(vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;
/* Opens the source of Hessians, and warns of one that is made of few tokens. */
vptq_status vptq_plan_hessians(vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;
/* Weights that are not finite, in every matrix that will be looked at: VPTQ_E_NUMERIC naming
 * tensor and place. */
vptq_status vptq_plan_weights(const vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;
/* Settings that cannot be, and warnings of codebooks larger than what they are trained on. */
vptq_status vptq_plan_check(const vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;

/* Settings of all matrices from a budget of bits (pipeline_allocate.c); Hessians first. */
vptq_status vptq_plan_allocate(vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;
/* Whether that looks at every matrix of the model first.  One setting for all is chosen
 * without, so that it needs no Hessians; a dry run that has them predicts its losses. */
static inline bool vptq_allocate_measures(const vptq_quantize_options *o)
{
    return o->bits > 0 && (o->allocate != VPTQ_ALLOCATE_UNIFORM || (o->dry_run && o->hessians));
}

/* ---- the work directory (pipeline_manifest.c) ---- */

#define VPTQ_SENSITIVITY_FILE "sensitivity.json"

/* Whether the work directory may be begun or continued there. */
vptq_status vptq_work_check_own(const vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;

vptq_status vptq_manifest_make(vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;
/* Writes it into the work directory.  One of another run is VPTQ_E_MISMATCH naming the first
 * key that differs; with force its matrices are removed. */
vptq_status vptq_manifest_open(const vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;
/* Path of a finished matrix. */
vptq_status vptq_matrix_path(const vptq_quantizer *q, uint32_t layer, vptq_linear l,
                             char path[PATH_MAX], vptq_err *err) VPTQ_MUST_CHECK;

/* ---- rows (pipeline_rows.c) ---- */

/* Shape, settings and bits. */
vptq_quantize_row vptq_row_make(const vptq_quantizer *q, uint32_t layer, vptq_linear l);
/* One line of JSON, everything that is the same on every run; freed by the caller with free().
 */
vptq_status vptq_row_json(const vptq_quantize_row *r, bool planned, char **text,
                          vptq_err *err) VPTQ_MUST_CHECK;
/* *text becomes the row of the finished matrix at `path` and `row` gets its losses; NULL when
 * there is none of this run: a damaged or foreign one is reported and made again. */
vptq_status vptq_row_reuse(const vptq_quantizer *q, const char *path, vptq_quantize_row *row,
                           char **text, vptq_err *err) VPTQ_MUST_CHECK;
/* Adds the row to the sums and to report.jsonl, and tells the caller. */
vptq_status vptq_row_account(vptq_quantizer *q, vptq_quantize_row *row, const char *text,
                             vptq_err *err) VPTQ_MUST_CHECK;
/* Writes report.jsonl; `all`: with the rows of layers that another run has done. */
vptq_status vptq_rows_write(vptq_quantizer *q, bool all, vptq_err *err) VPTQ_MUST_CHECK;

#endif
