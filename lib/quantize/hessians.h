/* Where a quantize run gets the Hessians of a matrix from.  A directory is one source; whatever
 * makes them while the run goes on is another one: it fills a vptq_hessian_source of its own.
 */
#ifndef VPTQ_QUANTIZE_HESSIANS_H
#define VPTQ_QUANTIZE_HESSIANS_H

#include "hessian/collect.h"
#include "lib/encoder/encode.h"

/* What a sequential calibration's targets come from, besides the Hessian, of the tokens learnt
 * from or of those held out; NULL = none. */
typedef struct vptq_input_shifts {
    const float *shift;         /* E[(x - x~) x~^T] [hidden, hidden]; of q, k, v, gate and up */
    const float *drift;         /* E[(h - h~) x~^T] [hidden, n]; of o and down */
    const float *kv, *kv_shift; /* as k_proj and v_proj weight tokens: a Hessian, and shift */
} vptq_input_shifts;

/* The Hessians of one input of a block: packed lower triangles [n (n + 1) / 2]. */
typedef struct vptq_input_hessians {
    const float *plain;
    const float *kv;       /* that k_proj and v_proj minimize; NULL = the plain one */
    const float *held_out; /* NULL = none */
    vptq_input_shifts shifts, held_out_shifts;
    /* what they point into, where the source is a directory */
    vptq_hessian_file file, held_out_file;
    float *mixed;
} vptq_input_hessians;

typedef struct vptq_hessian_source vptq_hessian_source;
struct vptq_hessian_source {
    /* for the manifest: what decides the bytes of a matrix */
    char fingerprint[17];
    char held_out_fingerprint[17]; /* "" = no held-out Hessians */
    double kv_factor;              /* 0 = k and v have the plain Hessian */
    uint64_t tokens;               /* 0 = not known */
    bool diagonal;                 /* nothing but diagonals are known: zeros beside them */
    /* Gives the Hessians of `columns` columns; release takes them back. */
    vptq_status (*load)(const vptq_hessian_source *s, uint32_t layer, vptq_input input,
                        uint32_t columns, vptq_input_hessians *h, vptq_err *err);
    void (*release)(const vptq_hessian_source *s, vptq_input_hessians *h);
    void (*close)(vptq_hessian_source *s); /* NULL = nothing to close */
    vptq_mem *mem;
    void *state; /* of a source that is no directory */
    const char *dir;
    char held_out_dir[4096]; /* "" = none */
};

/* The source for directory `dir` and held-out Hessians (NULL: what `dir` itself keeps) of the
 * model with fingerprint `model` and layers first to last.  kv_factor: of the term of k and v,
 * NAN = the directory's, 0 = none.  VPTQ_E_MISMATCH for Hessians of another model, without
 * these layers, or without the term that the factor asks for, and for held-out diagonals beside
 * whole Hessians or the other way round. */
vptq_status vptq_hessian_source_open(const char *dir, const char *held_out, double kv_factor,
                                     const char *model, uint32_t first, uint32_t last,
                                     vptq_mem *mem, vptq_hessian_source *s,
                                     vptq_err *err) VPTQ_MUST_CHECK;

/* The three Hessians of linear `l`, which reads the input. */
void vptq_hessians_of(const vptq_input_hessians *h, vptq_linear l, vptq_encoder_input *input);

#endif
