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
 * the sample, on which the same moments tell what was only learnt by heart.
 *
 * A sequential calibration carries two streams: x of the model as it is, and x~ that passed the
 * quantized linears before.  It goes input by input, so that what o, gate and up, and down read
 * has passed what was just made of their own block:
 *
 *     while (c.layer <= last)
 *         vptq_calibrator_step(&c, linear, take, arg, err);
 *
 * Each step sums the moments of x~ at the input c.next and either how far x is from it, or, for
 * o and down, how far apart the hidden states behind them would be. */
#ifndef VPTQ_HESSIAN_CALIBRATE_H
#define VPTQ_HESSIAN_CALIBRATE_H

#include "hessian/hessian.h"
#include "hessian/hidden_states.h"
#include "lib/model/corpus.h"
#include "lib/model/forward.h"

typedef enum { VPTQ_PART_MAIN, VPTQ_PART_HELD_OUT, VPTQ_PART_COUNT } vptq_part;

typedef struct vptq_calibrator {
    vptq_device *dev;
    const vptq_model *model;
    vptq_calibrate_options opt;
    char model_fingerprint[17], ids_fingerprint[17];
    /* of each part: model, ids, length and weights; "" of an empty one */
    char fingerprint[VPTQ_PART_COUNT][17];
    size_t windows[VPTQ_PART_COUNT];
    uint32_t layer, last; /* to run next; the last that will be, for the progress */
    uint64_t run;         /* sequential, set after planning: what else decides x~, so that no
                             checkpoint of another run is loaded */
    size_t reserve;  /* set after planning: bytes the caller will need, under a memory cap */
    vptq_input next; /* sequential: input of that block, VPTQ_INPUT_COUNT behind the last */
    /* of the part that was run last; sequential: of x~ at the input that was run last */
    vptq_hessian_sum sum[VPTQ_INPUT_COUNT];
    vptq_hessian_sum term; /* of k and v; its tokens are windows */

    /* the rest is the calibrator's own */
    vptq_arena arena;
    vptq_corpus corpus;
    size_t *window, *starts; /* [all windows] first ids; [all windows + 1] rows */
    vptq_forward *forward;
    vptq_hidden_states states;
    char state_path[4096];
    double state_time;
    vptq_part part; /* being run */
    size_t first;   /* window of the group being run */
    size_t most;    /* rows of a group */
    double *mass;   /* [length] device memory, and on the host */
    double *host_mass;
    float *weight, *host_weight;
    struct vptq_second_stream *second; /* sequential, else NULL */
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

/* One stream: runs block c->layer over all windows, part by part; c->layer is the next one
 * then. With a NULL fn nothing is summed. */
vptq_status vptq_calibrator_run(vptq_calibrator *c, vptq_calibrator_fn fn, void *arg,
                                vptq_err *err) VPTQ_MUST_CHECK;

/* Sequential: the moments at input c->next of block c->layer over all windows, part by part;
 * linear [VPTQ_LINEAR_COUNT]: what the inputs before it in the block were made into, the
 * model's behind it (NULL: all the model's).  With a NULL fn nothing is summed.  Behind the
 * last input both streams leave the block, and fn is not called. */
vptq_status vptq_calibrator_step(vptq_calibrator *c, const vptq_weight *linear,
                                 vptq_calibrator_fn fn, void *arg,
                                 vptq_err *err) VPTQ_MUST_CHECK;

/* What a step summed besides, [hidden, n], as means over tokens (windows for the term); row =
 * component of the difference. */
typedef enum {
    VPTQ_SHIFT,      /* E[(x - x~) x~^T]; of QKV and UP */
    VPTQ_TERM_SHIFT, /* the same weighted as c->term; of QKV, where tokens are weighted */
    VPTQ_DRIFT,      /* E[(h - h~) x~^T], h the states behind o or down, h~ those that the
                        model's o or down makes of x~ */
    VPTQ_SHIFT_COUNT
} vptq_shift_kind;
bool vptq_calibrator_has(const vptq_calibrator *c, vptq_input input, vptq_shift_kind kind);
void vptq_calibrator_shift(const vptq_calibrator *c, vptq_input input, vptq_shift_kind kind,
                           float *shift);

/* A sum as the mean that a Hessian file holds, lower [n (n + 1) / 2] and mean [n];
 * VPTQ_E_NUMERIC naming `layer` and `input` when it is not finite. */
vptq_status vptq_calibrator_finish(const vptq_hessian_sum *s, uint32_t layer, const char *input,
                                   float *lower, float *mean, vptq_err *err) VPTQ_MUST_CHECK;

/* Writes a checkpoint when the last one is long enough ago.  A disk too full for it is only
 * logged: it saves nothing but time after an interruption. */
void vptq_calibrator_checkpoint(vptq_calibrator *c);
void vptq_calibrator_forget(const char *dir); /* removes it */

#endif
