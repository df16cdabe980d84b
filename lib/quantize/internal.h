/* Internal to lib/quantize: the state of a quantize run and the steps that share it.
 *
 * quantize.c runs it, share.c with several ranks.  plan.c and allocate.c prepare it,
 * calibrate.c produces Hessians during the run, fold.c changes norms, cost.c weighs matrices,
 * estimate.c estimates time, memory and disk, predict.c predicts the time on a GPU, uniform.c
 * runs the methods of lib/uniform (additive.c those with additive codes), manifest.c keeps
 * quantize.json and the work directory, rows.c the rows of report.jsonl. */
#ifndef VPTQ_QUANTIZE_INTERNAL_H
#define VPTQ_QUANTIZE_INTERNAL_H

#include <limits.h>

#include "formats/vptq/layer_file.h"
#include "lib/backend/cuda/plan_cost.h"
#include "lib/base/buf.h"
#include "lib/base/comm.h"
#include "lib/quantize/hessians.h"
#include "lib/quantize/quantize.h"
#include "lib/uniform/uniform.h"

/* Scales of the layer that is quantized now (fold.c). */
typedef struct vptq_fold {
    bool ready;
    uint32_t layer;
    vptq_arena arena;
    float *scale[VPTQ_INPUT_DENSE]; /* [n] columns that read the input are multiplied by them;
                                       NULL = 1 */
    float *norm[VPTQ_INPUT_DENSE];  /* [n] the changed norm before the input, or NULL */
    double alpha[VPTQ_INPUT_DENSE]; /* exponent that AWQ chose; NAN = none */
} vptq_fold;

typedef struct vptq_quantizer {
    vptq_device *dev;
    const vptq_quantize_options *opt;
    vptq_quantize_fn fn;
    void *arg;
    vptq_quantize_result *result;
    /* the plan */
    vptq_model model;
    vptq_allocate_mode allocate; /* that of the options; of AUTO the mode for this model */
    char base_fingerprint[17];
    uint32_t first, last;         /* layers, inclusive */
    vptq_arena arena;             /* of the tables below */
    vptq_matrix_settings *matrix; /* [layers * vptq_linear_count] */
    json_t *rules;                /* of the recipe, or NULL */
    vptq_hessian_source hessians;
    uint64_t plain_bits, plain_weights; /* of everything but the matrices */
    uint64_t matrix_weights;            /* of all layers */
    double *predicted; /* [layers * vptq_linear_count] losses; NULL without allocation */
    /* the work directory */
    json_t *manifest;     /* quantize.json */
    char fingerprint[17]; /* of everything that affects the bytes of a matrix */
    vptq_buf report;      /* report.jsonl so far */
    /* sums over the rows so far */
    uint64_t bits, weights;
    double loss, held_out, predicted_loss;
    /* for the progress line: costs of all matrices and of the finished ones, of the current
     * one, and the steps of it that have begun */
    double all_cost, cost;
    vptq_encoder_report matrix_cost;
    uint32_t steps;
    /* the current matrix */
    uint32_t layer;
    vptq_linear linear;
    vptq_fold fold;
    struct vptq_share *share; /* several ranks: what they did; NULL: one, or not yet */
    bool sharing;             /* ranks make matrices now; rows are accounted for afterwards */
} vptq_quantizer;

static inline const vptq_matrix_settings *vptq_quantizer_matrix(const vptq_quantizer *q,
                                                                uint32_t layer, vptq_linear l)
{
    return &q->matrix[vptq_linear_index(q->model.desc, layer, l)];
}

/* Whether the run quantizes a matrix: the model has it, and no recipe skips it. */
static inline bool vptq_quantizer_has(const vptq_quantizer *q, uint32_t layer, int l)
{
    return vptq_linear_exists(q->model.desc, layer, (vptq_linear)l) &&
           !vptq_quantizer_matrix(q, layer, (vptq_linear)l)->skip;
}

/* Number of matrices of the layers [first, last] that a run quantizes. */
size_t vptq_quantizer_count(const vptq_quantizer *q, uint32_t first, uint32_t last);

/* Columns of the widest matrix of a block. */
static inline uint32_t vptq_widest_input(const vptq_model_desc *d)
{
    uint32_t widest = 0;
    for (int i = 0; i < vptq_input_count(&d->experts); i++) {
        const uint32_t n = vptq_input_occurs(d, i) ? vptq_input_size(d, (vptq_input)i) : 0;
        widest = n > widest ? n : widest;
    }
    return widest;
}

/* ---- planning (plan.c, allocate.c) ---- */

/* Opens the model, makes the table of settings and checks it. */
vptq_status vptq_plan_settings(vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;
/* Opens the source of Hessians. */
vptq_status vptq_plan_hessians(vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;
/* Checks that all weights the run needs are finite: VPTQ_E_NUMERIC with tensor, row and column.
 */
vptq_status vptq_plan_weights(const vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;
/* Warns of what packing would refuse, which a work directory may keep, and of Hessians with few
 * tokens or only diagonals: after the errors, before the work. */
void vptq_plan_warn(const vptq_quantizer *q);
/* Rejects impossible settings.  Warns of codebooks larger than their training data. */
vptq_status vptq_plan_check(const vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;

/* Counts weights, and bits as packing would store them: 16 per number, or opt->embeddings. */
vptq_status vptq_plan_plain(vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;
/* Chooses the settings of all matrices for a bit budget; needs the Hessians if
 * vptq_allocate_measures. */
vptq_status vptq_plan_allocate(vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;
/* Whether allocation measures every matrix of the model first: for its divergences, or in a dry
 * run with Hessians to predict its losses; never with experts. */
static inline bool vptq_allocate_measures(const vptq_quantizer *q)
{
    const vptq_quantize_options *o = q->opt;
    return o->bits > 0 && !q->model.desc->experts.count &&
           (q->allocate == VPTQ_ALLOCATE_KL || (o->dry_run && o->hessians));
}

/* ---- one matrix (quantize.c) ---- */

/* Runs the method of the row's settings: *file gets what is stored, in `arena`. */
vptq_status vptq_choose_codes(const vptq_quantizer *q, const char *name,
                              const vptq_encoder_input *input, vptq_arena *arena,
                              vptq_quantize_row *row, vptq_layer_file *file,
                              vptq_err *err) VPTQ_MUST_CHECK;

/* Steps and seconds of a matrix by its settings; returns all seconds. */
double vptq_quantizer_cost(const vptq_quantizer *q, uint32_t layer, vptq_linear l,
                           vptq_encoder_report *cost);
/* Quantizes `count` matrices of a layer, or reuses finished ones. */
vptq_status vptq_quantizer_run(vptq_quantizer *q, uint32_t layer, int first, int count,
                               vptq_err *err) VPTQ_MUST_CHECK;

/* ---- several ranks (share.c) ---- */

/* Makes the files of all matrices, each on one rank: largest first, or where the run
 * calibrates, one input or layer after the other.  Afterwards rank 0 knows by q->share what was
 * made. */
vptq_status vptq_share_matrices(vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;
/* Notes the row of the current matrix on the rank that made it, and takes what was noted into a
 * row that was reused. */
void vptq_share_note(vptq_quantizer *q, const vptq_quantize_row *row);
void vptq_share_recall(const vptq_quantizer *q, vptq_quantize_row *row);
/* Hands the file of the current matrix to rank 0 if that does not see it. */
vptq_status vptq_share_file(const vptq_quantizer *q, const char *path,
                            vptq_err *err) VPTQ_MUST_CHECK;
/* Gives a file of rank 0 to all ranks that do not see it, under the same path.  All call it. */
vptq_status vptq_share_spread(const vptq_quantizer *q, const char *path,
                              vptq_err *err) VPTQ_MUST_CHECK;
/* Rank 0: matrices of which no rank has work left, about, and their cost. */
uint64_t vptq_share_done(const vptq_quantizer *q, double *cost);
/* Files of matrices in the work directory. */
uint32_t vptq_share_count_files(const vptq_quantizer *q);

/* ---- calibration during the run (calibrate.c) ---- */

/* Plans the calibration of q->opt and makes it the source q->hessians.  The model runs block by
 * block, from the first Hessian that is loaded on. */
vptq_status vptq_calibration_open(vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;

/* Bytes at most that a run keeps of a calibration: moments of both parts, and targets. */
size_t vptq_calibration_memory(const vptq_model_desc *d, const vptq_calibrate_options *o);

/* In a sequential run: replaces *w by the corrected target of the row's matrix, in `arena`, and
 * notes in the row how much of the correction was applied. */
vptq_status vptq_calibration_target(vptq_quantizer *q, const vptq_input_hessians *h,
                                    vptq_quantize_row *row, vptq_arena *arena, const float **w,
                                    vptq_err *err) VPTQ_MUST_CHECK;

/* ---- estimates (estimate.c) ---- */

/* Bytes that the matrix takes which needs most, of those that the run quantizes. */
size_t vptq_matrix_memory(const vptq_quantizer *q);
/* Fills the result's estimate of a planned run, whose packed_bytes are known. */
vptq_status vptq_plan_estimate(vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;

/* ---- predictions (predict.c) ---- */

/* Seconds that the calibration of q->opt takes on a GPU. */
double vptq_predict_calibration(const vptq_quantizer *q, const vptq_cuda_costs *c);

/* ---- the work directory (manifest.c) ---- */

#define VPTQ_SENSITIVITY_FILE "sensitivity.json"

#define VPTQ_TUNE_STATE_FILE "tune.state"

/* Sets the absolute paths of the model and of the tokenizer (NULL = leaves it). */
vptq_status vptq_manifest_set_paths(json_t *manifest, const char *model, const char *tokenizer,
                                    vptq_err *err) VPTQ_MUST_CHECK;
/* The manifest without these paths, as text for a fingerprint; free(*text). */
vptq_status vptq_manifest_text(const json_t *manifest, char **text,
                               vptq_err *err) VPTQ_MUST_CHECK;
/* VPTQ_E_MISMATCH with the first key in which the manifest at `path` is not `want`, apart from
 * these paths. */
vptq_status vptq_manifest_expect(const char *path, const json_t *want,
                                 vptq_err *err) VPTQ_MUST_CHECK;
/* Removes report.jsonl, the files of a tuning run and then the matrices, also of layers that
 * this run does not have. */
vptq_status vptq_work_clear(const char *work, bool keep_self_text, vptq_mem *mem,
                            vptq_err *err) VPTQ_MUST_CHECK;

/* Removes the output Hessians that a run has measured. */
vptq_status vptq_work_forget_outputs(const char *work, vptq_err *err) VPTQ_MUST_CHECK;

/* Fails if the output path holds anything but a work directory. */
vptq_status vptq_work_check_own(const vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;

/* Makes q->manifest and q->fingerprint. */
vptq_status vptq_manifest_make(vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;
/* Whether the work directory has a manifest. */
bool vptq_manifest_exists(const vptq_quantizer *q);
/* Fails if the work directory has another run, as vptq_manifest_open would; `early`: whatever
 * is allocated, before measuring. */
vptq_status vptq_manifest_check(vptq_quantizer *q, bool early, vptq_err *err) VPTQ_MUST_CHECK;
/* Dry runs: fails if this user may not write to the work directory. */
vptq_status vptq_manifest_check_write(const vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;
/* Before measuring, under the lock: removes the manifest of a run that has saved nothing, so
 * that the measurements do not become its own. */
vptq_status vptq_manifest_drop_unused(const vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;
/* Writes the manifest into the work directory.  VPTQ_E_MISMATCH with the first differing key if
 * the directory belongs to another run that has saved something; with `force` the matrices of
 * that run are removed. */
vptq_status vptq_manifest_open(const vptq_quantizer *q, vptq_err *err) VPTQ_MUST_CHECK;
/* Path of the file of a finished matrix. */
vptq_status vptq_matrix_path(const vptq_quantizer *q, uint32_t layer, vptq_linear l,
                             char path[PATH_MAX], vptq_err *err) VPTQ_MUST_CHECK;

/* ---- other methods (uniform.c) ---- */

vptq_uniform_settings vptq_uniform_settings_of(const vptq_encoder_settings *s);
/* Runs the method of the settings, other than vptq, and measures the matrix like the encoder:
 * what [out, in] gets its weights as readers decode them; *u their codes, in `arena`, if the
 * method has codes; *report one step. */
vptq_status vptq_quantize_uniform(vptq_device *dev, const vptq_encoder_settings *s,
                                  const vptq_encoder_input *input, vptq_arena *arena,
                                  vptq_uniform *u, float *what, vptq_encoder_report *report,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* Around a method that is not of the encoder and has one step: _begin starts the report; _end
 * measures the weights `what`, as readers decode them, and fills it. */
void vptq_quantize_begin(const char *name, const vptq_encoder_input *input,
                         vptq_encoder_report *report);
vptq_status vptq_quantize_end(vptq_device *dev, const vptq_encoder_settings *s,
                              const vptq_encoder_input *input, const float *what,
                              const char *name, double start, vptq_encoder_report *report,
                              vptq_err *err) VPTQ_MUST_CHECK;

/* ---- methods with additive codes (additive.c) ---- */

/* The shape that the settings give for a matrix; vptq_additive_shape_check says whether it is
 * possible. */
vptq_additive_shape vptq_additive_shape_of(const vptq_encoder_settings *s, uint32_t out,
                                           uint32_t in);
/* As vptq_quantize_uniform. */
vptq_status vptq_quantize_additive(vptq_device *dev, const vptq_encoder_settings *s,
                                   const vptq_encoder_input *input, vptq_arena *arena,
                                   vptq_additive *a, float *what, vptq_encoder_report *report,
                                   vptq_err *err) VPTQ_MUST_CHECK;

/* ---- scales of columns (fold.c) ---- */

/* How the scales of a matrix are chosen: ranges are cut off and weights pruned afterwards. */
vptq_uniform_settings vptq_fold_settings(const vptq_encoder_settings *s);
/* Whether a matrix of the layer has a method that changes norms. */
bool vptq_fold_applies(const vptq_quantizer *q, uint32_t layer);
/* Finds the scales of a layer, unless it has none or q->fold has them.  VPTQ_E_UNSUPPORTED if
 * the Hessians have no channel ranges. */
vptq_status vptq_fold_layer(vptq_quantizer *q, uint32_t layer, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_fold_release(vptq_quantizer *q);
/* Scales the weights of the current matrix and the Hessians of its input, in copies in `arena`.
 */
void vptq_fold_weights(const vptq_quantizer *q, const vptq_quantize_row *row, float *w);
vptq_status vptq_fold_hessians(const vptq_quantizer *q, vptq_arena *arena,
                               vptq_encoder_input *input, vptq_err *err) VPTQ_MUST_CHECK;
/* Marks the file of the current matrix, and adds the changed norm that it has to hold. */
void vptq_fold_file(const vptq_quantizer *q, vptq_layer_file *file);

/* ---- rows (rows.c) ---- */

/* A row with shape, settings and bits. */
vptq_quantize_row vptq_row_make(const vptq_quantizer *q, uint32_t layer, vptq_linear l);
/* The row as one line of JSON, without anything that differs between equal runs; `planned`
 * leaves out losses.  The caller frees *text with free(). */
vptq_status vptq_row_json(const vptq_quantize_row *r, bool planned, char **text,
                          vptq_err *err) VPTQ_MUST_CHECK;
/* Reads the report row of the finished matrix at `path` into *text and its losses into *row.
 * Sets *text to NULL if the file is missing, damaged or from another run; the matrix is then
 * quantized again. */
vptq_status vptq_row_reuse(const vptq_quantizer *q, const char *path, vptq_quantize_row *row,
                           char **text, vptq_err *err) VPTQ_MUST_CHECK;
/* Adds the row to the sums and to report.jsonl, and calls q->fn. */
vptq_status vptq_row_account(vptq_quantizer *q, vptq_quantize_row *row, const char *text,
                             vptq_err *err) VPTQ_MUST_CHECK;
/* Writes report.jsonl; `all`: with the rows of layers from earlier runs. */
vptq_status vptq_rows_write(vptq_quantizer *q, bool all, vptq_err *err) VPTQ_MUST_CHECK;

#endif
