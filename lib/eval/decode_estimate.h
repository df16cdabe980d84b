/* Internal: estimates the time of decoding, from groups of prompts and steps that pass a few
 * blocks, and the head, of the model or of a narrow stand-in for a large one
 * (lib/model/narrow.h). */
#ifndef VPTQ_EVAL_DECODE_ESTIMATE_H
#define VPTQ_EVAL_DECODE_ESTIMATE_H

#include "lib/model/batch.h"

/* Sequences that run at the same time, and the tokens of each: of its prompt, and new ones. */
typedef struct vptq_decode_load {
    size_t batch, input, output;
} vptq_decode_load;

/* Seconds of groups of prompts in one block: `seconds` of `rows` rows, and more with each. */
typedef struct vptq_decode_prompts {
    double rows, seconds, per_row;
} vptq_decode_prompts;

typedef struct vptq_decode_times {
    vptq_decode_prompts prompts;
    double block, head; /* seconds of a step in one block, and in the head */
    double layers;
    double packed_bytes; /* of packed weights as the device prepares them, of all blocks; beyond
                            vptq_batch_plan */
} vptq_decode_times;

/* Measures for `seconds` per kind of group. `o` are the options of the batch that decodes.
 * VPTQ_E_NOMEM if that does not fit; packed_bytes is set nevertheless, if the packed weights
 * fit. */
vptq_status vptq_decode_measure(vptq_device *dev, const vptq_model *m,
                                const vptq_decode_load *c, const vptq_batch_options *o,
                                double seconds, vptq_decode_times *t,
                                vptq_err *err) VPTQ_MUST_CHECK;
/* Of all prompts and steps of a load, with the batch that was measured. */
double vptq_decode_seconds(const vptq_decode_times *t, const vptq_decode_load *c);

#endif
