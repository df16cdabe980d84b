/* Internal: text that a model writes itself, to train another one on.  Sequences begin with
 * BOS, or EOS if there is none, and go on with tokens drawn from the model's own distribution,
 * also after the end of a text.  A window goes from the middle of one to the middle of another.
 *
 * They are made a batch at a time and kept in a safetensors file: `ids` int32 [windows,
 * length], metadata `fingerprint` of all that they follow from, and a checksum `xxh3`.  A run
 * with more windows goes on from that file, one with fewer takes the first of them.  Ranks
 * share the batches; rank 0 has the file.
 *
 * Memory: the windows twice, and a vptq_batch whose keys and values take at most 512 MiB, or as
 * much as those of one sequence. */
#ifndef VPTQ_QUANTIZE_SELF_TEXT_H
#define VPTQ_QUANTIZE_SELF_TEXT_H

#include "lib/backend/backend.h"
#include "lib/model/model.h"

#define VPTQ_SELF_TEXT_FILE "self_text.safetensors"

/* VPTQ_E_UNSUPPORTED for a model without BOS and EOS. */
vptq_status vptq_self_text_check(const vptq_model *m, vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_self_text_args {
    vptq_device *dev;
    const vptq_model *model;
    const char *model_fingerprint; /* of its weights */
    const char *dir;               /* of the file */
    size_t windows, length;        /* length at least 2 */
    uint64_t seed;
} vptq_self_text_args;

/* ids [windows, length], of a model that has passed the check.  The same for any number of
 * ranks or threads, any memory and any interruption: a file that is damaged or follows from
 * something else is replaced, with a warning.  VPTQ_E_NUMERIC if the model's output is not a
 * number. */
vptq_status vptq_self_text(const vptq_self_text_args *a, int32_t *ids,
                           vptq_err *err) VPTQ_MUST_CHECK;

#endif
