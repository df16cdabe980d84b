/* Internal: output Hessians: how the loss of a model depends on the outputs of its linear
 * layers, row against row.
 *
 * K = E[w dz dz^T], dz the gradient of the output z of a linear layer at one token, for labels
 * drawn from the model (hessian/sampled.h).  Only blocks of VPTQ_OUTPUT_ROWS rows on its
 * diagonal are kept.  With a = |dz|^2, b = |x|^2 (x the input) and q99 the quantile 0.99 over
 * the tokens of a window, token t weighs
 *     w = min(1, q99(a) / a_t) (0.2 + 0.8 min(b_t, q99(b)) / mean of min(b, q99(b))),
 * so that a few tokens do not dominate; w = 0 where a_t = 0, and the second factor is 1 where
 * all b are 0.  The first token of a window, whose input is unlike all others, is left out.
 *
 * They are in one file, docs/formats/hessians.md. */
#ifndef VPTQ_HESSIAN_OUTPUTS_H
#define VPTQ_HESSIAN_OUTPUTS_H

#include "formats/hf/safetensors.h"
#include "hessian/collect.h"

/* In a Hessian directory. */
#define VPTQ_OUTPUTS_FILE "outputs.safetensors"

/* Blocks of the K of a linear layer with `out` rows. */
static inline size_t vptq_output_blocks(uint32_t out)
{
    return ((size_t)out + VPTQ_OUTPUT_ROWS - 1) / VPTQ_OUTPUT_ROWS;
}
/* Floats of all K of a linear layer, and of one layer of a model. */
size_t vptq_output_entries(const vptq_model_desc *d, vptq_linear l);
size_t vptq_output_layer_entries(const vptq_model_desc *d);
/* Windows that vptq_outputs_collect runs: c->opt.outputs, or all there are to learn from. */
size_t vptq_outputs_windows(const vptq_calibrator *c);

/* Of everything that decides the file: model, windows, seed, version. */
void vptq_outputs_fingerprint(const vptq_calibrator *c, char fingerprint[17]);

/* Measures K of all layers of the model, and writes the file `path` atomically.  c is planned
 * and not started; its windows to learn from are used, evenly spread.  All sums are in device
 * memory at once.  If `path` is a whole file of the same model, windows, seed and version,
 * nothing runs.  An interrupted run starts again: it takes minutes, and its sums are larger
 * than the file.  Several ranks share the windows; rank 0 writes, and all return after it.
 * VPTQ_E_NUMERIC names window, layer and linear layer of a gradient that is not finite. */
vptq_status vptq_outputs_collect(const vptq_calibrator *c, const char *path,
                                 vptq_err *err) VPTQ_MUST_CHECK;

/* Whether `path` is that file (*finished).  A damaged one is not, with a log line. */
vptq_status vptq_outputs_find(const vptq_calibrator *c, const char *path, bool *finished,
                              vptq_err *err) VPTQ_MUST_CHECK;

typedef struct vptq_outputs {
    vptq_tensor_set set;           /* owns everything below */
    const char *fingerprint;       /* 16 hexadecimal digits */
    const char *model_fingerprint; /* the same */
    uint64_t windows, tokens;      /* averaged */
    const float **k;               /* [layers * VPTQ_LINEAR_DENSE] */
} vptq_outputs;

/* Opens a file and checks its tensors (names, types, shapes of a model; finite, symmetric, no
 * negative diagonal) and its checksum.  Without a description only metadata and checksum are
 * checked, and nothing can be loaded. */
vptq_status vptq_outputs_open(const char *path, const vptq_model_desc *d, vptq_mem *mem,
                              vptq_outputs *o, vptq_err *err) VPTQ_MUST_CHECK;
/* The same for the file of a Hessian directory with hessian.json `h`; *o is zeroed if it has
 * none.  VPTQ_E_FORMAT if the file is missing, VPTQ_E_MISMATCH if it is of another model or
 * number of windows than `h`. */
vptq_status vptq_outputs_open_dir(const char *dir, const vptq_hessian_dir *h,
                                  const vptq_model_desc *d, vptq_mem *mem, vptq_outputs *o,
                                  vptq_err *err) VPTQ_MUST_CHECK;
/* K [vptq_output_blocks(out), VPTQ_OUTPUT_ROWS, VPTQ_OUTPUT_ROWS] of a linear layer, both
 * triangles, 0 in rows from `out` on; valid until the file is closed. */
static inline const float *vptq_outputs_load(const vptq_outputs *o, uint32_t layer,
                                             vptq_linear l)
{
    return o->k[(size_t)layer * VPTQ_LINEAR_DENSE + (size_t)l];
}
void vptq_outputs_close(vptq_outputs *o); /* accepts a zeroed struct */

/* Values to write. */
typedef struct vptq_outputs_data {
    const vptq_model_desc *desc;
    const char *fingerprint, *model_fingerprint;
    uint64_t windows, tokens;
    const float *k; /* [layers][vptq_output_layer_entries], linear layers in order */
} vptq_outputs_data;
/* Atomic; replaces an old file. */
vptq_status vptq_outputs_write(const char *path, const vptq_outputs_data *data, vptq_mem *mem,
                               vptq_err *err) VPTQ_MUST_CHECK;

#endif
