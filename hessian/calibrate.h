/* Calibration: all windows of a text go through a model one block at a time, and the moments of
 * the block's inputs are summed on the way.  Only one block's weights and sums are in memory;
 * the hidden states of all windows are, or are in a file where memory is capped.
 *
 *     vptq_calibrator c;
 *     vptq_calibrator_plan(dev, model, &opt, &c, err);
 *     vptq_calibrator_start(&c, dir, wanted, err);
 *     while (c.layer <= last)
 *         vptq_calibrator_run(&c, take, arg, err);
 *     vptq_calibrator_release(&c);
 *
 * The windows are in two parts: those that are learnt from, and the held-out ones, the last of
 * the sample, on which the same moments tell what was only learnt by heart. */
#ifndef HESSIAN_CALIBRATE_H
#define HESSIAN_CALIBRATE_H

#include "hessian/hessian.h"
#include "hessian/states.h"
#include "lib/model/corpus.h"
#include "lib/model/forward.h"

typedef enum { VPTQ_PART_MAIN, VPTQ_PART_HELD_OUT, VPTQ_PART_COUNT } vptq_part;

typedef struct vptq_calibrate_options {
    vptq_corpus_options corpus;
    size_t windows; /* at most; both parts */
    size_t length;  /* tokens per window */
    uint64_t seed;
    double holdout; /* share of the windows, rounded up, never all; 0 = none */
    vptq_token_weights weights;
    double checkpoint_seconds; /* at least between checkpoints */
} vptq_calibrate_options;

/* "plain", "sink", "sink:0.3", "attention:1": the kind, and the factor c of H + c T (the kind's
 * default where none is given). */
vptq_status vptq_token_weights_parse(const char *text, vptq_token_weights *weights,
                                     double *factor, vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_calibrator {
    vptq_device *dev;
    const vptq_model *model;
    vptq_calibrate_options opt;
    char model_fingerprint[17], ids_fingerprint[17];
    /* of each part: model, ids, length and weights; "" of an empty one */
    char fingerprint[VPTQ_PART_COUNT][17];
    size_t windows[VPTQ_PART_COUNT];
    uint32_t layer, last; /* to run next; the last that will be, for the progress */
    vptq_hessian_sum sum[VPTQ_INPUT_COUNT]; /* of the part that was run last */
    vptq_hessian_sum term;                  /* of k and v; its tokens are windows */

    /* the rest is the calibrator's own */
    vptq_arena arena;
    vptq_corpus corpus;
    size_t *window, *starts; /* [all windows] first ids; [all windows + 1] rows */
    vptq_forward *forward;
    vptq_states states;
    char state_path[4096];
    double state_time;
    vptq_part part; /* being run */
    size_t first;   /* window of the group being run */
    double *mass;   /* [length] device memory, and on the host */
    double *host_mass;
    float *weight, *host_weight;
} vptq_calibrator;

/* Windows and fingerprints; allocates little.  A holdout that would leave one of the parts
 * empty is VPTQ_E_ARG. */
vptq_status vptq_calibrator_plan(vptq_device *dev, const vptq_model *m,
                                 const vptq_calibrate_options *opt, vptq_calibrator *c,
                                 vptq_err *err) VPTQ_MUST_CHECK;
void vptq_calibrator_release(vptq_calibrator *c);

/* Memory, and the states in front of block c->layer: those of the checkpoint in `dir` when it
 * is one of this calibration and not past block `wanted`, else the embeddings.  `last`: of the
 * blocks to be run. */
vptq_status vptq_calibrator_start(vptq_calibrator *c, const char *dir, uint32_t wanted,
                                  uint32_t last, vptq_err *err) VPTQ_MUST_CHECK;

/* Called when all windows of a part went through the block: c->sum and c->term (where tokens
 * are weighted) hold its sums. */
typedef vptq_status (*vptq_calibrator_fn)(void *arg, vptq_calibrator *c, vptq_part part,
                                          vptq_err *err);

/* Runs block c->layer over all windows, part by part; c->layer is the next one then.  With a
 * NULL fn nothing is summed. */
vptq_status vptq_calibrator_run(vptq_calibrator *c, vptq_calibrator_fn fn, void *arg,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* A sum as the mean that a Hessian file holds, lower [n (n + 1) / 2] and mean [n];
 * VPTQ_E_NUMERIC naming `layer` and `input` when it is not finite. */
vptq_status vptq_calibrator_finish(const vptq_hessian_sum *s, uint32_t layer, const char *input,
                                   float *lower, float *mean, vptq_err *err) VPTQ_MUST_CHECK;

/* Writes a checkpoint when the last one is long enough ago.  A disk too full for it is only
 * logged: it saves nothing but time after an interruption. */
void vptq_calibrator_checkpoint(vptq_calibrator *c);
void vptq_calibrator_forget(const char *dir); /* removes it */

#endif
