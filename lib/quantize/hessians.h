/* Internal to lib/quantize: sources of the Hessians of a matrix.  hessians.c implements a
 * directory, calibrate.c a calibration during the run. */
#ifndef VPTQ_QUANTIZE_HESSIANS_H
#define VPTQ_QUANTIZE_HESSIANS_H

#include "hessian/collect.h"
#include "hessian/outputs.h"
#include "lib/encoder/encode.h"

/* Moments for the targets of a sequential calibration.  x and h are inputs and hidden states of
 * the original model, x~ and h~ those of the quantized one; NULL = none. */
typedef struct vptq_input_shifts {
    const float *shift; /* E[(x - x~) x~^T] [hidden, hidden]; for q, k, v, gate and up */
    const float *drift; /* E[(h - h~) x~^T] [hidden, n]; for o and down */
    /* Hessian and shift or drift with the token weights of a linear layer; NULL = plain */
    const float *mixed[VPTQ_LINEAR_DENSE], *mixed_shift[VPTQ_LINEAR_DENSE];
} vptq_input_shifts;

/* The Hessians of one input of a block: packed lower triangles [n (n + 1) / 2]. */
typedef struct vptq_input_hessians {
    const float *plain;
    /* [n] of the columns of the inputs: E[|x|], smallest and largest x; NULL = unknown */
    const float *abs_mean, *min, *max;
    /* what a linear layer minimizes; NULL = the plain one */
    const float *metric[VPTQ_LINEAR_DENSE];
    const float *held_out;                  /* NULL = none */
    const float *output[VPTQ_LINEAR_DENSE]; /* K of a linear layer; NULL = none */
    vptq_input_shifts shifts, held_out_shifts;
    /* owners of the arrays, if the source is a directory */
    vptq_hessian_file file, held_out_file;
    float *mixed[VPTQ_LINEAR_DENSE];
} vptq_input_hessians;

typedef struct vptq_hessian_source vptq_hessian_source;
struct vptq_hessian_source {
    /* for the manifest: everything that affects the bytes of a matrix */
    char fingerprint[17];
    char held_out_fingerprint[17]; /* "" = no held-out Hessians */
    char output_fingerprint[17];   /* "" = no output Hessians */
    vptq_token_weights weights;
    double kv_factor; /* of the terms; 0 = all linear layers use the plain Hessian */
    uint64_t tokens;  /* 0 = unknown */
    bool diagonal;    /* only diagonals are known, all other entries are 0 */
    /* Loads the Hessians of an input of `columns` columns, to be released by `release`. */
    vptq_status (*load)(const vptq_hessian_source *s, uint32_t layer, vptq_input input,
                        uint32_t columns, vptq_input_hessians *h, vptq_err *err);
    void (*release)(const vptq_hessian_source *s, vptq_input_hessians *h);
    void (*close)(vptq_hessian_source *s);
    vptq_mem *mem;
    void *state; /* of a source that is not a directory */
    const char *dir;
    char held_out_dir[4096]; /* "" = none */
    vptq_outputs outputs;    /* zeroed until they are there */
};

typedef struct vptq_hessian_source_options {
    const char *dir;
    const char *held_out; /* directory; NULL = the held-out Hessians that `dir` keeps */
    double kv_factor;     /* of the terms; NAN = that of `dir`, 0 = none */
    bool no_outputs;      /* does without the output Hessians of `dir` */
    const vptq_model_desc *desc;
    const char *model_fingerprint; /* of the model that the Hessians must belong to */
    uint32_t first_layer, last_layer;
} vptq_hessian_source_options;

/* Opens a directory as a source; o->dir must outlive it.  VPTQ_E_MISMATCH for Hessians of
 * another model, missing layers, missing terms, or if only one of `dir` and the
 * held-out Hessians has full matrices. */
vptq_status vptq_hessian_source_open(const vptq_hessian_source_options *o, vptq_mem *mem,
                                     vptq_hessian_source *s, vptq_err *err) VPTQ_MUST_CHECK;

/* Of a directory: fails as loading the input would if one of its files is missing. */
vptq_status vptq_hessian_source_find(const vptq_hessian_source *s, uint32_t layer,
                                     vptq_input input, vptq_err *err) VPTQ_MUST_CHECK;

/* Sets h->output for the linear layers that read `input`. */
void vptq_hessians_set_outputs(const vptq_hessian_source *s, uint32_t layer, vptq_input input,
                               vptq_input_hessians *h);
/* Sets the Hessians of `input` for linear layer `l`. */
void vptq_hessians_of(const vptq_input_hessians *h, vptq_linear l, vptq_encoder_input *input);

#endif
