/* Internal: the predicted time of encoding one matrix on a GPU, step by step (docs/gpu.md,
 * "Predicted times").  k-means is taken to need all its iterations, and no step to be reverted:
 * what a run can take, not what it must. */
#ifndef VPTQ_ENCODER_PREDICT_H
#define VPTQ_ENCODER_PREDICT_H

#include "lib/backend/cuda/plan_cost.h"
#include "lib/encoder/encode.h"

/* Fills names and seconds of the report's steps, in the order in which a run reports them, and
 * report->seconds; what is outside of steps (copies, factor, losses) is the rest.  Nothing else
 * in the report means anything. */
void vptq_encoder_predict(const vptq_cuda_costs *costs, const vptq_encoder_settings *settings,
                          uint32_t out, uint32_t in, vptq_encoder_report *report);

#endif
