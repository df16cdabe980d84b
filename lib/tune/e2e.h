/* Internal: end-to-end tuning: the stored numbers of a quantized model move so that its output
 * follows the original's on windows of a text.  The loss of a token is KL(original || model)
 * over the whole vocabulary.
 *
 *     vptq_e2e *e;
 *     vptq_e2e_open(dev, teacher, student, &opt, &e, &start, err);
 *     while (!vptq_e2e_done(e))
 *         vptq_e2e_step(e, &report, err);
 *     vptq_e2e_best(e, &step);
 *     vptq_e2e_close(e);
 *
 * The last windows are held out: their divergence chooses the numbers that are kept, those of
 * the step with the lowest one, or the original ones if no step lowers it.  Results do not
 * depend on the number of threads, on memory or on interruptions. */
#ifndef VPTQ_TUNE_E2E_H
#define VPTQ_TUNE_E2E_H

#include "hessian/hidden_states.h"
#include "lib/model/backward.h"
#include "lib/tune/optimizer.h"

typedef struct vptq_e2e_options {
    uint32_t steps;
    size_t batch;       /* windows per step */
    double rate;        /* of the optimizer */
    size_t length;      /* tokens of a window, at least 2 */
    size_t windows;     /* to train on; passed in another order each time all have been used */
    size_t held_out;    /* windows after them, at least 1 */
    const int32_t *ids; /* [windows + held_out][length] */
    uint32_t every;     /* steps between measurements of the held-out windows, at least 1 */
    uint64_t seed;
    const char *dir; /* for the teacher's hidden states where memory is capped */
} vptq_e2e_options;

typedef struct vptq_e2e_report {
    uint32_t step; /* taken so far; 0: before the first */
    double loss;   /* mean of the batch before the step, nats per token */
    double norm;   /* of the gradient */
    double rate;
    double held_out; /* mean divergence after the step; NAN: not measured */
    double changed;  /* share of the stored numbers that differ from the original ones */
} vptq_e2e_report;

typedef struct vptq_e2e vptq_e2e;

/* teacher and student->m have the same vocabulary.  Computes the teacher's hidden states of all
 * windows, and the held-out divergence before the first step. */
vptq_status vptq_e2e_open(vptq_device *dev, const vptq_model *teacher, vptq_student *student,
                          const vptq_e2e_options *opt, vptq_e2e **e, vptq_e2e_report *start,
                          vptq_err *err) VPTQ_MUST_CHECK;
void vptq_e2e_close(vptq_e2e *e); /* accepts NULL */

bool vptq_e2e_done(const vptq_e2e *e);
/* Steps that have been taken. */
uint32_t vptq_e2e_taken(const vptq_e2e *e);
/* One step, or the measurement after it that an interruption has left out (loss, norm and rate
 * are NAN then).  VPTQ_E_NUMERIC naming the window or tensor if a loss or gradient is not
 * finite; if it is in a training window the student keeps the numbers of the step before. */
vptq_status vptq_e2e_step(vptq_e2e *e, vptq_e2e_report *report, vptq_err *err) VPTQ_MUST_CHECK;
/* The state after a step as bytes, and back: a run with the same options and windows goes on as
 * if it had not been interrupted. */
size_t vptq_e2e_state_bytes(const vptq_e2e *e);
void vptq_e2e_get_state(const vptq_e2e *e, void *state);
/* VPTQ_E_FORMAT for a state that no such run has. */
vptq_status vptq_e2e_set_state(vptq_e2e *e, const void *state, vptq_err *err) VPTQ_MUST_CHECK;

/* Sets the student's stored numbers, and their masters, to the best ones.  Returns their
 * held-out divergence; *step (may be NULL): after which step they were. */
double vptq_e2e_best(vptq_e2e *e, uint32_t *step);

#endif
