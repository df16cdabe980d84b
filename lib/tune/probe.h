/* Internal: estimates the time of tuning, from a second of it in one block: its forward and
 * backward pass over some tokens, and a step of the optimizer. */
#ifndef VPTQ_TUNE_PROBE_H
#define VPTQ_TUNE_PROBE_H

#include "lib/tune/trainer.h"

typedef struct vptq_tune_probe {
    double forward, both; /* seconds per token of a block: forwards; forwards and backwards */
    double step;          /* seconds of a step of the block's numbers, without its windows */
    uint64_t memory;      /* peak of a trainer with groups of `rows` tokens, in bytes */
} vptq_tune_probe;

/* Measures the first block of the student that has packed matrices, whose numbers stay as they
 * are, over a window of at most `length` tokens.  opt->bf16 is used. */
vptq_status vptq_tune_measure(vptq_device *dev, vptq_student *student,
                              const vptq_trainer_options *opt, size_t rows, vptq_tune_probe *p,
                              vptq_err *err) VPTQ_MUST_CHECK;

#endif
