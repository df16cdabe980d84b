/* Internal: the loop that layer-wise and end-to-end tuning share: batches of windows, steps of
 * the optimizer, measurements of held-out windows, the best numbers so far, and the state of
 * all that.  The caller has the loss.
 *
 *     vptq_trainer_open(dev, student, &opt, loss, arg, &t, err);
 *     vptq_trainer_begin(&t, &range, &start, err);
 *     while (!vptq_trainer_done(&t))
 *         vptq_trainer_step(&t, &report, err);
 *     vptq_trainer_best(&t, &step);
 *     vptq_trainer_close(&t);
 *
 * The last windows are held out: their loss chooses the numbers that are kept, those of the
 * step with the lowest one, or the original ones if no step lowers it.  Ranks take the groups
 * of windows in turns, and every rank takes every step.  Results do not depend on the number of
 * ranks or threads, on memory or on interruptions. */
#ifndef VPTQ_TUNE_TRAINER_H
#define VPTQ_TUNE_TRAINER_H

#include "lib/model/backward.h"
#include "lib/tune/optimizer.h"

typedef struct vptq_trainer_options {
    uint32_t steps;
    size_t batch;       /* windows per step */
    double rate;        /* of the optimizer; NAN: from numbers and loss before the first step */
    size_t length;      /* tokens of a window, at least 2 */
    size_t group;       /* windows that go through the model at once; set by its opener */
    size_t windows;     /* to train on; passed in another order each time all have been used */
    size_t held_out;    /* windows after them, at least 1 */
    const int32_t *ids; /* [windows + held_out][length] */
    uint32_t every;     /* steps between measurements of the held-out windows, at least 1 */
    uint64_t seed;
    bool bf16;       /* gradients from numbers rounded to bfloat16; measurements never are */
    const char *dir; /* for hidden states where memory is capped */
    /* 16 digits that name model and windows; NULL: nothing is kept in dir. */
    const char *fingerprint;
} vptq_trainer_options;

typedef struct vptq_trainer_report {
    uint32_t step; /* taken so far; 0: before the first */
    double loss;   /* mean of the batch before the step */
    double norm;   /* of the gradient */
    double rate;
    double held_out; /* mean loss after the step; NAN: not measured */
    double changed;  /* share of all stored numbers that differ from the original ones */
} vptq_trainer_report;

/* *loss: the sum of those of `count` windows, at most `group`.  With `backward`, the gradient
 * of *loss / batch goes to the trainer by vptq_trainer_backward.  VPTQ_E_NUMERIC naming the
 * window if a loss is not finite. */
typedef vptq_status (*vptq_trainer_fn)(void *arg, const size_t *windows, size_t count,
                                       bool backward, double *loss, vptq_err *err);

typedef struct vptq_trainer {
    vptq_device *dev;
    vptq_student *student;
    vptq_trainer_options opt;
    vptq_trainer_fn loss;
    void *arg;
    vptq_arena arena;
    vptq_forward *f; /* of the student's model */
    vptq_backward *b;
    vptq_stored *stored;
    vptq_optimizer optimizer; /* has the range of tensors that are trained */
    double *group;            /* [count] gradient of a group of windows */
    double *batch;            /* [count] of the batch */
    double *losses;           /* of the groups of a batch, or of the held-out windows */
    float *best;              /* [count] masters with the lowest held-out loss */
    double best_held_out;
    uint32_t best_step;
    bool due;      /* the held-out windows are to be measured after the last step */
    size_t *order; /* [windows] of the present pass */
    size_t *taken; /* [group] the windows of a group */
    size_t pass;   /* over all windows, that order is of; SIZE_MAX: none */
} vptq_trainer;

/* Must not be moved afterwards; the student and what `arg` points to must outlive it. */
vptq_status vptq_trainer_open(vptq_device *dev, vptq_student *student,
                              const vptq_trainer_options *opt, vptq_trainer_fn loss, void *arg,
                              vptq_trainer *t, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_trainer_close(vptq_trainer *t); /* accepts a zeroed struct */

/* Begins at step 0 with these tensors, measures the held-out windows and sets optimizer.rate.
 * May be called again for other tensors. */
vptq_status vptq_trainer_begin(vptq_trainer *t, const vptq_tensor_range *range,
                               vptq_trainer_report *start, vptq_err *err) VPTQ_MUST_CHECK;

bool vptq_trainer_done(const vptq_trainer *t);
/* One step, or the measurement after it that an interruption has left out (loss, norm and rate
 * are NAN then).  VPTQ_E_NUMERIC naming the window or tensor if a loss or gradient is not
 * finite; if it is in a training window the student keeps the numbers of the step before. */
vptq_status vptq_trainer_step(vptq_trainer *t, vptq_trainer_report *report,
                              vptq_err *err) VPTQ_MUST_CHECK;

/* Sets the student's stored numbers, and their masters, to the best ones.  Returns their
 * held-out loss; *step (may be NULL): after which step they were. */
double vptq_trainer_best(vptq_trainer *t, uint32_t *step);

/* The state after a step as bytes, and back: a run with the same options, windows and tensors
 * goes on as if it had not been interrupted.  A state begins with the number of steps as
 * uint64_t.  For runs over all tensors. */
size_t vptq_trainer_state_bytes(const vptq_trainer *t);
void vptq_trainer_get_state(const vptq_trainer *t, void *state);
/* VPTQ_E_FORMAT for a state that no such run has. */
vptq_status vptq_trainer_set_state(vptq_trainer *t, const void *state,
                                   vptq_err *err) VPTQ_MUST_CHECK;

/* ---- for the loss ---- */

/* The student's weights of a block, [VPTQ_LINEAR_DENSE]. */
const vptq_weight *vptq_trainer_weights(const vptq_trainer *t, uint32_t layer);
/* vptq_backward_block with the student's weights, adding the gradients of what they store. */
vptq_status vptq_trainer_backward(vptq_trainer *t, uint32_t layer, const float *hidden,
                                  float *dhidden, vptq_err *err) VPTQ_MUST_CHECK;
/* Device memory for [n][group * length, hidden] floats. */
vptq_status vptq_trainer_states(vptq_trainer *t, size_t n, float **to,
                                vptq_err *err) VPTQ_MUST_CHECK;

#endif
