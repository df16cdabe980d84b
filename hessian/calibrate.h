/* Internal: calibration.  All windows of a text go through a model one block at a time, and the
 * moments of the block's inputs are summed on the way.  Only one block's weights and sums are
 * in memory, with the hidden states of all windows; these go to a file if memory is capped.
 *
 *     vptq_calibrator c;
 *     vptq_calibrator_plan(dev, model, &opt, &c, err);
 *     vptq_calibrator_start(&c, dir, wanted, err);
 *     while (c.layer <= last)
 *         vptq_calibrator_run(&c, take, arg, err);
 *     vptq_calibrator_release(&c);
 *
 * The windows have two parts: those to learn from, and the held-out ones, the last of the
 * sample, whose moments show how much of the result is overfitted.
 *
 * A sequential calibration carries two streams: x of the original model, and x~ that passed the
 * quantized matrices so far.  It goes input by input, so that the inputs of o, gate and up, and
 * down have passed the quantized matrices of their own block:
 *
 *     while (c.layer <= last)
 *         vptq_calibrator_step(&c, linear, take, arg, err);
 *
 * Each step sums the moments of x~ at the input c.next, and those of x - x~ or, for o and down,
 * of the difference between the hidden states after them.
 *
 * Several ranks (lib/base/comm.h) call the same functions.  Each has the hidden states of its
 * own chunks of windows (hessian/total.h); all have the sums of all windows when fn is called.
 */
#ifndef VPTQ_HESSIAN_CALIBRATE_H
#define VPTQ_HESSIAN_CALIBRATE_H

#include "hessian/hessian.h"
#include "hessian/hidden_states.h"
#include "hessian/saliency.h"
#include "lib/model/corpus.h"
#include "lib/model/forward.h"

typedef enum { VPTQ_PART_MAIN, VPTQ_PART_HELD_OUT, VPTQ_PART_COUNT } vptq_part;

typedef struct vptq_calibrator {
    vptq_device *dev;
    const vptq_model *model;
    vptq_calibrate_options opt;
    char model_fingerprint[17], ids_fingerprint[17];
    /* hash of model, ids, length and weights for each part; "" for an empty one */
    char fingerprint[VPTQ_PART_COUNT][17];
    size_t windows[VPTQ_PART_COUNT];
    uint32_t layer, last; /* the block to run next; the last one to run, for the progress */
    uint64_t run;    /* sequential, set after planning: hash of everything else that decides x~,
                        so that no checkpoint of another run is loaded */
    size_t reserve;  /* set after planning: bytes that the caller needs under a memory cap */
    vptq_input next; /* sequential: input of that block; vptq_input_count after the last */
    /* the part that ran last; sequential: x~ at the input that ran last */
    vptq_hessian_sum *sum; /* [vptq_input_count]; those of experts may have no tokens */
    vptq_hessian_sum term[VPTQ_LINEAR_DENSE]; /* T, unset where a linear layer has no term
                                                 (vptq_term_of); tokens are windows */

    /* private */
    vptq_arena arena;
    vptq_corpus corpus;
    size_t *window, *starts; /* [all windows] first ids; [all windows + 1] rows */
    /* windows that this rank runs, in the order of their hidden states: main, then held out */
    size_t own[VPTQ_PART_COUNT];
    size_t *own_window; /* [own windows] index among all */
    vptq_forward *forward;
    vptq_hidden_states states;
    char state_path[4096];
    double state_time;
    size_t first;      /* first of the own windows in the present group */
    size_t group_rows; /* maximum rows of a group */
    double *mass;      /* [length] attention received; in device and host memory */
    double *host_mass;
    float *weight, *host_weight;                  /* [length] of the tokens of a window */
    vptq_hidden_states saliency;                  /* guided weights: of all windows */
    vptq_saliency_scale scale[VPTQ_LINEAR_DENSE]; /* of the present layer and part */
    struct vptq_second_stream *second;            /* sequential, else NULL */
} vptq_calibrator;

/* Samples the windows and computes the fingerprints; allocates little.  VPTQ_E_ARG if the
 * holdout would leave one of the parts empty. */
vptq_status vptq_calibrator_plan(vptq_device *dev, const vptq_model *m,
                                 const vptq_calibrate_options *opt, vptq_calibrator *c,
                                 vptq_err *err) VPTQ_MUST_CHECK;
/* The same without the fingerprints, for which all weights are read: enough for an estimate. */
vptq_status vptq_calibrator_sample(vptq_device *dev, const vptq_model *m,
                                   const vptq_calibrate_options *opt, vptq_calibrator *c,
                                   vptq_err *err) VPTQ_MUST_CHECK;
/* Logs that the text has fewer windows than requested; apart, because a run may plan again. */
void vptq_calibrator_log_windows(const vptq_calibrator *c);
void vptq_calibrator_release(vptq_calibrator *c);

/* Allocates everything and sets the hidden states before block c->layer: those of the
 * checkpoint in `dir` if it belongs to this calibration and is not past block `wanted`,
 * otherwise, and with several ranks, the embeddings.  `last` is the last block to run.  `dir`
 * may be NULL where no checkpoint is wanted and memory holds the hidden states. */
vptq_status vptq_calibrator_start(vptq_calibrator *c, const char *dir, uint32_t wanted,
                                  uint32_t last, vptq_err *err) VPTQ_MUST_CHECK;

/* The block with which vptq_calibrator_start would begin, of one stream; reads only the header
 * of the checkpoint. */
vptq_status vptq_calibrator_find(const vptq_calibrator *c, const char *dir, uint32_t wanted,
                                 uint32_t *layer, vptq_err *err) VPTQ_MUST_CHECK;

/* Frees what vptq_calibrator_start allocated; c is planned, as before it. */
void vptq_calibrator_stop(vptq_calibrator *c);

/* Called when all windows of a part have passed the block: c->sum and, with token weights,
 * c->term hold its sums. */
typedef vptq_status (*vptq_calibrator_fn)(void *arg, vptq_calibrator *c, vptq_part part,
                                          vptq_err *err);

/* One stream: runs block c->layer over all windows, part by part, and increments c->layer. With
 * a NULL fn nothing is summed, and several ranks need not wait for each other. */
vptq_status vptq_calibrator_run(vptq_calibrator *c, vptq_calibrator_fn fn, void *arg,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* Sequential: sums the moments at input c->next of block c->layer over all windows, part by
 * part. linear [vptq_linear_count] holds the quantized weights of the inputs before it in the
 * block and the model's after it (NULL: the model's everywhere).  With a NULL fn nothing is
 * summed. After the last input both streams leave the block, and fn is not called. */
vptq_status vptq_calibrator_step(vptq_calibrator *c, const vptq_weight *linear,
                                 vptq_calibrator_fn fn, void *arg,
                                 vptq_err *err) VPTQ_MUST_CHECK;

/* The other sum of a step, [hidden, n], as a mean over tokens; row = component of the
 * difference:
 *     E[(x - x~) x~^T]  for QKV and UP
 *     E[(h - h~) x~^T]  for O and DOWN, the drift: h the hidden states after o or down, h~
 *                       those that the model's o or down computes from x~ */
bool vptq_calibrator_drifts(vptq_input input); /* which of the two */
bool vptq_calibrator_shifts(vptq_input input); /* whether it has one: not those of experts */
vptq_status vptq_calibrator_shift(vptq_calibrator *c, float *shift,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* The same weighted like c->term[term], as a mean over windows. */
vptq_status vptq_calibrator_term_shift(vptq_calibrator *c, vptq_linear term, float *shift,
                                       vptq_err *err) VPTQ_MUST_CHECK;
/* Whether there is a term of linear layer `term` itself and its input is that of c->next, or
 * any without a sequential calibration. */
bool vptq_calibrator_has_term(const vptq_calibrator *c, vptq_linear term);

/* Converts a sum to the means that a Hessian file holds, lower [n (n + 1) / 2] and mean [n];
 * the identity, as of inputs 1 and -1, for an expert that no token reached.  VPTQ_E_NUMERIC
 * naming `layer` and `input` if one is not finite. */
vptq_status vptq_calibrator_finish(const vptq_hessian_sum *s, uint32_t layer, const char *input,
                                   float *lower, float *mean, vptq_err *err) VPTQ_MUST_CHECK;

/* The same for the channel ranges [n] of an input (vptq_hessian_sum_range); its Hessian shows
 * whether they are finite. */
vptq_status vptq_calibrator_range(const vptq_hessian_sum *s, uint32_t layer, const char *input,
                                  float *abs_mean, float *min, float *max,
                                  vptq_err *err) VPTQ_MUST_CHECK;

/* Writes a checkpoint if opt.checkpoint_seconds have passed; several ranks write none.  A full
 * disk is only logged: a checkpoint saves nothing but time after an interruption. */
void vptq_calibrator_checkpoint(vptq_calibrator *c);
void vptq_calibrator_forget(const char *dir); /* removes the checkpoints */
/* Removes that of the hidden states only, for a calibration that starts again. */
void vptq_calibrator_forget_states(const char *dir);

#endif
