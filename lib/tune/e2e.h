/* Internal: end-to-end tuning: the stored numbers of a quantized model move so that its output
 * follows the original's on windows of a text.  The loss of a token is KL(original || model)
 * over the whole vocabulary.
 *
 *     vptq_e2e *e;
 *     vptq_e2e_open(dev, teacher, student, &opt, &e, &start, err);
 *     vptq_trainer *t = vptq_e2e_trainer(e);
 *     while (!vptq_trainer_done(t))
 *         vptq_trainer_step(t, &report, err);
 *     vptq_trainer_best(t, &step);
 *     vptq_e2e_close(e); */
#ifndef VPTQ_TUNE_E2E_H
#define VPTQ_TUNE_E2E_H

#include "hessian/hidden_states.h"
#include "lib/tune/trainer.h"

/* The teacher's hidden states of all windows, in opt->dir with opt->fingerprint: written by
 * rank 0 as soon as they are complete, read by that of the next run; its caller removes it. */
#define VPTQ_E2E_ORIGINAL_FILE "original.state"

typedef struct vptq_e2e vptq_e2e;

/* teacher and student->m have the same vocabulary.  Computes the teacher's hidden states of all
 * windows, unless they are kept from before, and the held-out divergence before the first step.
 * Ranks share that work; every rank has all hidden states. */
vptq_status vptq_e2e_open(vptq_device *dev, const vptq_model *teacher, vptq_student *student,
                          const vptq_trainer_options *opt, vptq_e2e **e,
                          vptq_trainer_report *start, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_e2e_close(vptq_e2e *e); /* accepts NULL */

/* Windows that go through the model at once. */
size_t vptq_e2e_group(const vptq_trainer_options *opt);

/* Takes the steps; losses are in nats per token. */
vptq_trainer *vptq_e2e_trainer(vptq_e2e *e);

#endif
