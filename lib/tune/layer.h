/* Internal: layer-wise tuning (the VPTQ paper's Appendix B): block by block, from the first to
 * the last, what a block stores moves so that its output comes close to the original's.
 *
 *     vptq_layerwise *l;
 *     vptq_layerwise_open(dev, teacher, student, &opt, &l, err);
 *     while (!vptq_layerwise_done(l))
 *         vptq_layerwise_block(l, &report, err);
 *     vptq_layerwise_close(l);
 *
 * Two streams of hidden states of all windows go from block to block: the original's, h, and
 * the student's, h~, whose blocks so far are tuned.  The loss of a window is
 *     ||h~_out - h_out||^2 / ||h_out - h_in||^2
 * so that a block also compensates for those before it.  Both sums are without the
 * first token and without the largest of their differences (vptq_layer_distance): a few massive
 * activations would otherwise dominate the sum.  opt.steps are those of a block.  Ranks share
 * the windows, and every rank has both streams of all of them. */
#ifndef VPTQ_TUNE_LAYER_H
#define VPTQ_TUNE_LAYER_H

#include "hessian/hidden_states.h"
#include "lib/tune/trainer.h"

/* difference [n] = a - b.  Returns the sum of the squares of all that are at most *limit in
 * size: the largest 0.1 % are not (fewer of them where several are equal). */
double vptq_layer_distance(const float *a, const float *b, size_t n, float *difference,
                           float *limit);

typedef struct vptq_layerwise vptq_layerwise;

/* A block that has been tuned; NANs for one without packed matrices. */
typedef struct vptq_layer_report {
    double before, after; /* held-out loss, after: of the stored numbers that are kept */
    double best_step;     /* whose numbers those are; 0: the original ones */
    double rate;          /* of the optimizer */
} vptq_layer_report;

/* Models with the same blocks.  Both streams begin as the embeddings. */
vptq_status vptq_layerwise_open(vptq_device *dev, const vptq_model *teacher,
                                vptq_student *student, const vptq_trainer_options *opt,
                                vptq_layerwise **l, vptq_err *err) VPTQ_MUST_CHECK;
void vptq_layerwise_close(vptq_layerwise *l); /* accepts NULL */

/* Takes the steps of a block. */
vptq_trainer *vptq_layerwise_trainer(vptq_layerwise *l);

/* Whether no block is left that has packed matrices. */
bool vptq_layerwise_done(const vptq_layerwise *l);
/* Number of blocks that are finished, and the number at which all are. */
uint32_t vptq_layerwise_finished(const vptq_layerwise *l);
uint32_t vptq_layerwise_end(const vptq_layerwise *l);
/* Tunes the next block.  VPTQ_E_NUMERIC naming layer and window for a loss or gradient that is
 * not finite.  After an error the run can only be closed. */
vptq_status vptq_layerwise_block(vptq_layerwise *l, vptq_layer_report *r,
                                 vptq_err *err) VPTQ_MUST_CHECK;
/* The report of a finished block. */
const vptq_layer_report *vptq_layerwise_report(const vptq_layerwise *l, uint32_t layer);

/* The finished blocks as bytes, and back, before the first block: a run with the same options
 * and windows goes on with the next one.  A state begins with the number of finished blocks as
 * uint64_t.  VPTQ_E_FORMAT for a state that no such run has. */
size_t vptq_layerwise_state_bytes(const vptq_model_desc *d, const vptq_student *s);
void vptq_layerwise_get_state(const vptq_layerwise *l, void *state);
vptq_status vptq_layerwise_set_state(vptq_layerwise *l, const void *state,
                                     vptq_err *err) VPTQ_MUST_CHECK;

#endif
