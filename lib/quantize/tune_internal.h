/* Internal: a tuning run.  tune.c runs it, tune_files.c has the files of its work directory. */
#ifndef VPTQ_QUANTIZE_TUNE_INTERNAL_H
#define VPTQ_QUANTIZE_TUNE_INTERNAL_H

#include "formats/json.h"
#include "lib/base/file.h"
#include "lib/quantize/tune.h"
#include "lib/report/column.h"
#include "lib/tune/e2e.h"
#include "lib/tune/layer.h"

typedef struct vptq_tuner {
    vptq_device *dev;
    const vptq_tune_options *opt;
    vptq_tune_result *result;
    vptq_model model, original; /* the work directory `from`; what it was made from */
    vptq_student student;
    vptq_trainer_options plan; /* windows, and the steps end to end */
    vptq_layerwise *layers;    /* while layers are tuned */
    vptq_e2e *e2e;             /* while it is tuned end to end */
    vptq_arena arena;
    int32_t *ids;
    json_t *manifest;                /* quantize.json of the result */
    char fingerprint[17];            /* of the run */
    const char *weights_fingerprint; /* of the original's weights; in the manifest */
    char original_fingerprint[17];   /* of the original and the windows */
    vptq_map saved; /* rank 0: the state of an interrupted run; data NULL without one */
    /* of the layers as they are now, which an end-to-end run begins with */
    char *layer_state;
    size_t layer_state_bytes;
    vptq_printer *layer_rows, *step_rows; /* NULL without output, and on other ranks */
    double start;                         /* of the clock */
} vptq_tuner;

/* ---- tune_estimate.c ---- */

/* Sets t->result->estimate, the layers that are left, and all steps unless it is finished.
 * t->saved is mapped if there is a state. */
vptq_status vptq_tuner_estimate(vptq_tuner *t, bool finished, vptq_err *err) VPTQ_MUST_CHECK;

/* ---- tune_files.c ---- */

/* Makes t->manifest, that of `from` with the key "tune", and the fingerprint. */
vptq_status vptq_tuner_make_manifest(vptq_tuner *t, const char *ids_fingerprint,
                                     vptq_err *err) VPTQ_MUST_CHECK;
/* Makes t->original_fingerprint, when all windows are known. */
void vptq_tuner_hash_original(vptq_tuner *t);
/* Rank 0: writes the manifest, with the paths of this run.  With `force` what another run left
 * is removed.  A dry run only compares it. */
vptq_status vptq_tuner_open_manifest(const vptq_tuner *t, vptq_err *err) VPTQ_MUST_CHECK;

/* Rank 0 alone calls the following functions.
 *
 * The state: t->layer_state, then that of the end-to-end run if there is one.  One that cannot
 * be written costs time after an interruption, nothing else: the run goes on. */
void vptq_tuner_save_state(const vptq_tuner *t);
/* Maps the state of an interrupted run to t->saved, if there is one of this run. */
vptq_status vptq_tuner_map_state(vptq_tuner *t, vptq_err *err) VPTQ_MUST_CHECK;
/* `bytes` bytes of it from byte `at` on; NULL if it has fewer. */
const void *vptq_tuner_saved(const vptq_tuner *t, size_t at, size_t bytes);
/* Warns of a state that is of no use. */
void vptq_tuner_warn_of_state(const vptq_tuner *t);

/* Writes the matrices and report.jsonl, and removes the state. */
vptq_status vptq_tuner_write_result(const vptq_tuner *t, vptq_err *err) VPTQ_MUST_CHECK;
/* *finished: whether all matrices are there; report.jsonl is then written anew, except in a dry
 * run. */
vptq_status vptq_tuner_find_result(const vptq_tuner *t, bool *finished,
                                   vptq_err *err) VPTQ_MUST_CHECK;

#endif
