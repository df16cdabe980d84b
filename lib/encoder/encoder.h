/* Inside lib/encoder: the state of one matrix while it is encoded, and the steps that change
 * it.
 *
 * Everything is in processing order and transposed: position p holds input channel
 * metric.order[p] as one run of `rows` floats (out, zero padded).  With Z the normalized
 * target, Q what codebooks and indices stand for, E = Q - Z and H' the metric, every step
 * behind training lowers the objective tr(E H' E^T), padded rows included.  Where the metric
 * does not factor, H' is the damped one that does, so that there is a least objective.
 *
 * A part is a run of positions with codebooks of its own: the outlier columns, then the groups.
 *
 * All arrays are the host's; a step mirrors what it works on (lib/backend/mirror.h). */
#ifndef VPTQ_ENCODER_ENCODER_H
#define VPTQ_ENCODER_ENCODER_H

#include "lib/backend/mirror.h"
#include "lib/encoder/encode.h"
#include "lib/encoder/metric.h"

typedef struct vptq_part {
    uint32_t first, cols; /* positions */
    uint32_t v, k, k_res;
    size_t vector_rows, rows;  /* vectors per column, vector rows * v */
    float *main, *res;         /* [k][v], [k_res][v] or NULL: the codebooks as they are now */
    uint32_t *idx, *idx_res;   /* [cols][vector rows]; idx_res NULL without residual codebook */
    float *main_f32, *res_f32; /* copies from before rounding; set by _round */
} vptq_part;

/* A Hessian that losses are reported with. */
typedef struct vptq_probe {
    const float *lower; /* packed, NULL = not used */
    float *h;           /* [in][in] full, processing order, raw; NULL where H' serves instead */
    double norm;        /* tr(W H W^T) */
} vptq_probe;

typedef struct vptq_encoder {
    vptq_device *dev;
    const vptq_encoder_settings *s;
    const vptq_encoder_input *input;
    vptq_vq_shape shape;
    vptq_arena *keep; /* the caller's: what the result points to */
    vptq_arena work;
    vptq_metric metric;
    vptq_probe plain, weighted, held_out;
    uint32_t in, out;
    size_t rows; /* of a column, padded: the longest of the parts */
    vptq_part *part;
    uint32_t parts;
    float *z;      /* [in][rows] target */
    float *q;      /* [in][rows] */
    float *e, *g;  /* [in][rows] E and G = H' E as vptq_encoder_gradient left them; scratch */
    float *h;      /* [in][in] H', full */
    float *u;      /* [in][in] its factor (vptq_hessian_factor) */
    float *diag;   /* [in] of H', by position */
    double damped; /* added to the diagonal of H' where only that factors, else 0 */
    double objective; /* of the present q, once vptq_encoder_gradient has run */
    bool rounded;     /* codebooks are exact in the storage type */
    double step_begin;
    vptq_step_fn on_step;
    void *arg;
    vptq_encoder_report *report;
} vptq_encoder;

/* ---- encoder.c: state ---- */
vptq_status vptq_encoder_gather(vptq_encoder *c,
                                vptq_err *err); /* q from codebooks and indices */
/* The part as the device has it: codebooks go there, indices too, and come back with `choices`.
 */
vptq_part vptq_part_mirror(vptq_mirror *m, const vptq_part *p, bool choices);
/* The part's columns of q [in][rows]: what the given codebooks stand for under its indices. All
 * in device memory. */
vptq_status vptq_part_gather(vptq_encoder *c, const vptq_part *p, const float *main,
                             const float *res, float *q, vptq_err *err);
/* g = h e, all columns and rows: h [in][in], e and g [in][rows].  May be cancelled. */
vptq_status vptq_encoder_product(vptq_encoder *c, const float *h, const float *e, float *g,
                                 vptq_err *err);
/* The same in device memory. */
vptq_status vptq_encoder_multiply(vptq_encoder *c, const float *h, const float *e, float *g,
                                  vptq_err *err);
/* e = q - z, g = H' e, objective. */
vptq_status vptq_encoder_gradient(vptq_encoder *c, vptq_err *err);
/* Codebooks to the storage type; VPTQ_E_NUMERIC when one does not fit. */
vptq_status vptq_encoder_round(vptq_encoder *c, vptq_err *err);
/* z, H' and its diagonal from W, H, scale, bias and damping. */
void vptq_encoder_normalize(vptq_encoder *c);
/* The part's columns of a [in][rows] array as vectors in a run: in place where the part fills
 * the rows, else a copy in c->work. */
vptq_status vptq_part_vectors(vptq_encoder *c, const vptq_part *p, const float *from,
                              const float **x, vptq_err *err);
static inline vptq_codebooks vptq_part_codebooks(const vptq_encoder *c, const vptq_part *p)
{
    uint32_t beam = c->s->beam < p->k ? c->s->beam : p->k;
    return (vptq_codebooks){.v = p->v,
                            .k = p->k,
                            .k_res = p->k_res,
                            .beam = beam,
                            .centroids = p->main,
                            .res_centroids = p->res};
}

/* ---- the steps; each leaves q unset unless it says otherwise ---- */
vptq_status vptq_train_main(vptq_encoder *c, vptq_err *err);     /* train.c */
vptq_status vptq_train_residual(vptq_encoder *c, vptq_err *err); /* train.c */
vptq_status vptq_train_joint(vptq_encoder *c, vptq_err *err);    /* train.c */
/* Algorithm 1 over all parts with the codebooks as they are: idx, q; g = the compensated target
 * at the moment of quantization.  `main_only` leaves the residual codebooks out. */
vptq_status vptq_column_pass(vptq_encoder *c, bool main_only,
                             vptq_err *err); /* column_pass.c */
/* Coordinate descent over indices: needs q and a fresh gradient; leaves q. */
vptq_status vptq_sweeps(vptq_encoder *c, uint32_t count, vptq_err *err); /* sweeps.c */

/* Least squares over the codebooks with fixed indices, by conjugate gradients from the
 * codebooks as they are (refit.c).  With `only` NULL: all codebooks together under the full H',
 * needs q and a fresh gradient.  Else the codebooks of that part alone under diag H' for
 * `target` [in][rows]; needs idx alone. */
vptq_status vptq_refit(vptq_encoder *c, vptq_part *only, const float *target, int iterations,
                       vptq_err *err);
/* Training as in vptq_train_joint, `rounds` of it and for parts without residual codebook too,
 * on what a pass with the codebooks as they are aims at instead of z. */
vptq_status vptq_retrain(vptq_encoder *c, uint32_t rounds, vptq_err *err); /* train.c */
/* Least squares over scale and bias with fixed codebooks and indices (scales.c).  Needs q and a
 * fresh gradient; changes scale and bias, and with them z, H' and its diagonal, but not u. */
vptq_status vptq_refit_scales(vptq_encoder *c, int iterations, vptq_err *err);

/* ---- column_pass.c ---- */
enum { VPTQ_PASS_BLOCK = 128 }; /* columns between updates of the rest by one matrix product */

/* ---- loss.c ---- */
/* *trace = tr(X H X^T) in double; x [rows, in], lower packed. */
vptq_status vptq_encoder_trace(vptq_device *dev, size_t rows, uint32_t in, const float *x,
                               const float *lower, double *trace, vptq_err *err);

#endif
